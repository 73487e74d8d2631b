//! Lists for the commands that people run. The program itself goes by its watches, and lists Nodes only before it lets an instance go for
//! want of one.
//!
//! Nodes and pods are read in pages, and reduced page by page: people run these commands in the container of a `serve`, whose
//! memory they share. What the API server may answer in a moment is asked for again: nobody else does that for a command.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::Lookup as _;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use super::answer::{ApiError, timely};
use super::client::Cluster;
use super::node_view::NodeView;
use super::partial::Partial;
use super::pods::PodView;
use super::projections::Budget;
use super::reflect::{Sink as _, Store};
use crate::k8s::{InstanceId, NodeName};

/// Objects in a page of a list.
const A_PAGE: u32 = 100;

/// Pauses before a read is tried again. Flow control asks for one second, and an API server that starts anew is away for some.
const AGAIN_AFTER: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Longest pause that the API server may ask for: somebody waits for the answer.
const ASKED_FOR_AT_MOST: Duration = Duration::from_secs(10);

/// What has failed for longer than this is not tried again: what was not answered within its time-out is asked for twice.
const PATIENCE: Duration = Duration::from_secs(15);

impl Cluster {
    /// Reads, and tries that again for some seconds where the API server may be better in a moment.
    async fn patiently<T, C>(&self, read: impl Fn() -> C) -> Result<T, ApiError>
    where
        C: Future<Output = Result<T, kube::Error>>,
    {
        let began = Instant::now();
        let mut pauses = AGAIN_AFTER.into_iter();
        loop {
            let error = match timely(read()).await {
                Err(error) if error.is_transient() && began.elapsed() < PATIENCE => error,
                answer => return answer,
            };
            let Some(pause) = pauses.next() else { return Err(error) };
            sleep(pause.max(self.requests.busy_for().min(ASKED_FOR_AT_MOST))).await;
        }
    }

    /// What `keep` makes of each object of a list, read in pages.
    async fn in_pages<K, V>(&self, api: &Api<K>, mut keep: impl FnMut(K) -> V) -> Result<Vec<V>, ApiError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut kept = Vec::new();
        let mut page = ListParams::default().limit(A_PAGE);
        loop {
            let list = self.patiently(|| api.list(&page)).await?;
            kept.extend(list.items.into_iter().map(&mut keep));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(kept),
            }
        }
    }

    /// All Nodes.
    pub async fn list_nodes(&self) -> Result<Vec<NodeView>, ApiError> {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        self.in_pages(&api, |node| NodeView::from(&node)).await
    }

    /// The instances of all Nodes.
    pub async fn list_instances(&self) -> Result<Vec<InstanceId>, ApiError> {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        let named = self.in_pages(&api, |node| NodeView::from(&node).instance).await?;
        Ok(named.into_iter().flatten().collect())
    }

    /// All pods, by Node.
    pub async fn list_pods(&self) -> Result<BTreeMap<NodeName, Vec<PodView>>, ApiError> {
        let api: Api<Partial<Pod>> = Api::all(self.client.clone());
        let mut by_node: BTreeMap<NodeName, Vec<PodView>> = BTreeMap::new();
        for pod in self.in_pages(&api, |pod| PodView::from(&pod)).await? {
            by_node.entry(pod.node.clone()).or_default().push(pod);
        }
        Ok(by_node)
    }

    /// One Node, whole.
    pub async fn get_whole_node(&self, name: &str) -> Result<Node, ApiError> {
        let api: Api<Node> = Api::all(self.client.clone());
        self.patiently(|| api.get(name)).await
    }

    /// The pods on a Node.
    pub async fn list_pods_on(&self, node: &str) -> Result<Vec<PodView>, ApiError> {
        let api: Api<Partial<Pod>> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
        Ok(self.patiently(|| api.list(&on_node)).await?.items.iter().map(PodView::from).collect())
    }

    /// All disruption budgets.
    pub async fn list_budgets(&self) -> Result<Store<Budget>, ApiError> {
        let api: Api<PodDisruptionBudget> = Api::all(self.client.clone());
        let params = ListParams::default().match_any();
        let budgets = Store::default();
        for budget in self.patiently(|| api.list(&params)).await?.items {
            budgets.apply(budgets.reduce(budget));
        }
        Ok(budgets)
    }

    /// UIDs of all DaemonSets.
    pub async fn list_daemon_sets(&self) -> Result<Vec<String>, ApiError> {
        let api: Api<PartialObjectMeta<DaemonSet>> = Api::all(self.client.clone());
        let params = ListParams::default().match_any();
        let all = self.patiently(|| api.list_metadata(&params)).await?.items;
        Ok(all.iter().filter_map(|one| one.uid().map(|uid| uid.into_owned())).collect())
    }

    /// How many volumes are attached to a Node.
    pub async fn count_attachments(&self, node: &str) -> Result<usize, ApiError> {
        let api: Api<Partial<VolumeAttachment>> = Api::all(self.client.clone());
        let params = ListParams::default().match_any();
        let all = self.patiently(|| api.list(&params)).await?.items;
        Ok(all.iter().filter(|one| one.0.spec.node_name == node).count())
    }
}
