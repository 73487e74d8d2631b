//! The watches that feed scale-ins. Each lasts as long as the program, and starts again when it ends or the API server
//! has gone back to an older version.

use std::sync::Arc;

use futures::Stream;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;

use super::client::Cluster;
use super::nodes::Nodes;
use super::partial::Partial;
use super::projections::{Attachment, Budget, Existing};
use super::reflect::{Store, anew_after_failures, in_turn, reflect};

/// How long one watch request lasts before it is renewed. `kube` takes the connection for dead five seconds later; with
/// its default of 290 s a pod's exit could stay unseen for as long.
pub(super) const WATCH_SECONDS: u32 = 60;

/// Nodes in a page of a list. A Node of EKS is some 20 kB, and `kube` holds a page's text twice before it is decoded: with its default
/// of 500, a start would take more memory than everything that is kept.
const NODES_A_PAGE: u32 = 100;

impl Cluster {
    /// Keeps `nodes` up to date, for ever.
    pub async fn watch_nodes(&self, nodes: &Nodes) {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(NODES_A_PAGE);
        loop {
            tokio::select! {
                () = reflect(self.rewinds.follow(api.clone(), config.clone()), nodes) => return,
                () = nodes.are_doubted() => {}
            }
        }
    }

    /// Keeps the disruption budgets up to date, for ever.
    pub async fn watch_budgets(&self, budgets: &Store<Budget>) {
        let api: Api<PodDisruptionBudget> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), budgets).await;
    }

    /// Keeps the DaemonSets up to date, for ever. Reads their metadata only.
    pub async fn watch_daemon_sets(&self, daemon_sets: &Store<Existing>) {
        let api: Api<PartialObjectMeta<DaemonSet>> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), daemon_sets)
            .await;
    }

    /// Keeps the volume attachments up to date, for ever.
    pub async fn watch_attachments(&self, attachments: &Store<Attachment>) {
        let api: Api<Partial<VolumeAttachment>> = Api::all(self.client.clone());
        reflect(self.rewinds.follow(api, watcher::Config::default().timeout(WATCH_SECONDS)), attachments)
            .await;
    }

    /// The pods of one node, as they change. Listed anew after each failure, with a growing pause, once fewer than twenty other lists are
    /// under way. In one page: an API server from 1.31 on answers that from its cache, and reads every pod of the cluster from etcd for a
    /// list with a limit.
    ///
    /// Source: [consistent reads from
    /// cache](https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
    pub fn pods_on(
        &self,
        node: &str,
    ) -> impl Stream<Item = watcher::Result<watcher::Event<Partial<Pod>>>> + Send + use<> {
        let mut config =
            watcher::Config::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH_SECONDS);
        config.page_size = None;
        let (rewinds, api, lists) =
            (Arc::clone(&self.rewinds), Api::all(self.client.clone()), self.lists.clone());
        anew_after_failures(move || in_turn(rewinds.follow(api.clone(), config.clone()), lists.clone()))
    }

    /// Watches for a restored etcd, for ever.
    pub async fn watch_version(&self) {
        self.rewinds.watch(self.client.clone()).await;
    }

    /// Has the version read now: an object was older than before.
    pub fn suspect_rewind(&self) {
        self.rewinds.suspect();
    }
}
