//! The watches that feed a scale-in. Each lasts as long as the program, and begins anew when it ends or the API server has
//! gone back.

use futures::Stream;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;

use super::budgets::{Attachment, Budget, Existing};
use super::client::Cluster;
use super::nodes::Nodes;
use super::reflect::{Store, reflect};

/// How long one watch lasts before it is taken up anew. `kube` takes a connection for dead five seconds after that; its
/// default of 290 s would leave a last exit, or a Node, unseen for as long.
pub(super) const WATCH_SECONDS: u32 = 60;

impl Cluster {
    /// Keeps `nodes` in step, for ever.
    pub async fn watch_nodes(&self, nodes: &Nodes) {
        let api: Api<Node> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), nodes).await;
    }

    /// Keeps the disruption budgets in step, for ever.
    pub async fn watch_budgets(&self, budgets: &Store<Budget>) {
        let api: Api<PodDisruptionBudget> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), budgets).await;
    }

    /// Keeps the set of DaemonSets in step, for ever. Only their metadata is read.
    pub async fn watch_daemon_sets(&self, daemon_sets: &Store<Existing>) {
        let api: Api<PartialObjectMeta<DaemonSet>> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), daemon_sets)
            .await;
    }

    /// Keeps the volume attachments in step, for ever.
    pub async fn watch_attachments(&self, attachments: &Store<Attachment>) {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), attachments)
            .await;
    }

    /// The pods of one node, as they change.
    pub fn pods_on(
        &self,
        node: &str,
    ) -> impl Stream<Item = watcher::Result<watcher::Event<Pod>>> + Send + use<> {
        let config =
            watcher::Config::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH_SECONDS);
        self.rewinds.follow(Api::all(self.client.clone()), config)
    }

    /// Looks for a restored etcd, for ever.
    pub async fn watch_version(&self) {
        self.rewinds.watch(self.client.clone()).await;
    }

    /// Has the version looked at now: an object was older than it had been before.
    pub fn suspect_rewind(&self) {
        self.rewinds.suspect();
    }
}
