//! Whether an instance has a Node that the watch does not show: asked before its machine ends for want of one.
//!
//! The watch cache of an API server can be minutes behind etcd while that server renews watches and sends bookmarks; a list without a
//! version is up to date all the same. One list serves all that wait for it.
//!
//! Source: [consistent reads](https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list);
//! [etcd#15402](https://github.com/etcd-io/etcd/issues/15402).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex;

use crate::clock::{Clock, elapsed};
use crate::cluster::{Cluster, Nodes};
use crate::k8s::InstanceId;
use crate::telemetry::{Outage, chain};

/// An older list may not show a Node that has come since. In a large cluster a list takes seconds.
const RECENT: Duration = Duration::from_secs(10);

/// What the last list has shown.
#[derive(Debug, Default)]
pub struct UnseenNodes(Mutex<Look>);

#[derive(Debug, Default)]
struct Look {
    /// When it began or, if it failed, ended.
    at: Option<Timestamp>,
    /// The instances whose Nodes the watch did not show then; `None`: it failed.
    unseen: Option<BTreeSet<InstanceId>>,
    outage: Outage,
}

impl UnseenNodes {
    /// Whether the instance certainly has no Node. If a list has one that the watch does not show, the watch begins anew.
    pub(super) async fn are_none_of(
        &self,
        instance: &InstanceId,
        (cluster, nodes, clock): (&Cluster, &Nodes, &Clock),
    ) -> bool {
        if !nodes.of_instance(instance).is_empty() {
            return false;
        }
        let asked_at = clock.now();
        let mut look = self.0.lock().await;
        // One that began while this one waited for it serves, however long it took.
        if look.at.is_none_or(|at| elapsed(at, asked_at) > RECENT) {
            look.list(cluster, nodes, clock).await;
        }
        let Some(unseen) = &look.unseen else { return false };
        let is_unseen = unseen.contains(instance);
        if is_unseen && nodes.of_instance(instance).is_empty() && nodes.whole_for().is_some() {
            tracing::warn!(
                instance = instance.as_str(),
                "the watch of Nodes has missed one, whose instance was about to be let go: it begins anew"
            );
            nodes.list_anew();
        }
        !is_unseen
    }
}

impl Look {
    async fn list(&mut self, cluster: &Cluster, nodes: &Nodes, clock: &Clock) {
        let began = clock.now();
        match cluster.list_instances().await {
            Ok(all) => {
                self.at = Some(began);
                self.unseen = Some(all.into_iter().filter(|one| nodes.of_instance(one).is_empty()).collect());
                if let Some(outage_seconds) = self.outage.recovered() {
                    tracing::info!(outage_seconds, "Nodes can be listed again");
                }
            }
            Err(error) => {
                (self.at, self.unseen) = (Some(clock.now()), None);
                if self.outage.failed().is_some() {
                    tracing::warn!(
                        error = %chain(&error),
                        "Nodes cannot be listed: no instance is let go for want of one before they are"
                    );
                }
            }
        }
    }
}
