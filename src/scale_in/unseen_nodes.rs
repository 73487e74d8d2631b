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
use crate::telemetry::chain;

/// An older list may not show a Node that has come since. In a large cluster a list takes seconds.
const RECENT: Duration = Duration::from_secs(10);

/// The instances that have Nodes, by the last list, and when that began; `None`: it failed then.
#[derive(Debug, Default)]
pub struct UnseenNodes(Mutex<Option<(Timestamp, Option<BTreeSet<InstanceId>>)>>);

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
        let mut last = self.0.lock().await;
        if last.as_ref().is_none_or(|(at, _)| elapsed(*at, clock.now()) > RECENT) {
            let began = clock.now();
            *last = match cluster.list_nodes().await {
                Ok(all) => Some((began, Some(all.into_iter().filter_map(|node| node.instance).collect()))),
                Err(error) => {
                    tracing::warn!(
                        error = %chain(&error),
                        "Nodes could not be listed: no instance is let go for want of one before they are"
                    );
                    Some((clock.now(), None))
                }
            };
        }
        let Some((_, Some(listed))) = &*last else { return false };
        let is_unseen = listed.contains(instance);
        if is_unseen && nodes.of_instance(instance).is_empty() {
            tracing::warn!(
                instance = instance.as_str(),
                "the watch of Nodes has missed one, whose instance was about to be let go: it begins anew"
            );
            nodes.list_anew();
        }
        !is_unseen
    }
}
