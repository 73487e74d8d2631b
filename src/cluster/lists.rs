//! Lists of what the commands for people look at once. The program itself goes by its watches.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::Lookup as _;

use super::answer::{ApiError, timely};
use super::budgets::Budget;
use super::client::Cluster;
use super::pods::PodView;
use super::reflect::{Sink as _, Store};
use super::seen::Seen;

impl Cluster {
    /// All Nodes.
    pub async fn list_nodes(&self) -> Result<Vec<Node>, ApiError> {
        let api: Api<Node> = Api::all(self.client.clone());
        Ok(timely(api.list(&ListParams::default().match_any())).await?.items)
    }

    /// One Node, whole.
    pub async fn read_node(&self, name: &str) -> Result<Node, ApiError> {
        let api: Api<Node> = Api::all(self.client.clone());
        timely(api.get(name)).await
    }

    /// The pods on a Node.
    pub async fn list_pods_on(&self, node: &str) -> Result<Vec<PodView>, ApiError> {
        let api: Api<Seen<Pod>> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
        Ok(timely(api.list(&on_node)).await?.items.iter().map(PodView::from).collect())
    }

    /// All disruption budgets.
    pub async fn list_budgets(&self) -> Result<Store<Budget>, ApiError> {
        let api: Api<PodDisruptionBudget> = Api::all(self.client.clone());
        let budgets = Store::default();
        for budget in timely(api.list(&ListParams::default().match_any())).await?.items {
            budgets.apply(budgets.reduce(budget));
        }
        Ok(budgets)
    }

    /// UIDs of all DaemonSets.
    pub async fn list_daemon_sets(&self) -> Result<Vec<String>, ApiError> {
        let api: Api<PartialObjectMeta<DaemonSet>> = Api::all(self.client.clone());
        let all = timely(api.list_metadata(&ListParams::default().match_any())).await?.items;
        Ok(all.iter().filter_map(|one| one.uid().map(|uid| uid.into_owned())).collect())
    }

    /// How many volumes are attached to a Node.
    pub async fn count_attachments(&self, node: &str) -> Result<usize, ApiError> {
        let api: Api<Seen<VolumeAttachment>> = Api::all(self.client.clone());
        let all = timely(api.list(&ListParams::default().match_any())).await?.items;
        Ok(all.iter().filter(|one| one.0.spec.node_name == node).count())
    }
}
