//! The watches of a worker: the pods of its node, and of others that name the same instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use tokio_stream::StreamMap;

use super::context::Shared;
use crate::cluster::{Partial, PodView, has_expired};
use crate::k8s::NodeName;
use crate::telemetry::{Outage, chain};

/// Pods of the node and of others that name the same instance, and the watches that bring them.
#[derive(Default)]
pub(super) struct Pods {
    pub(super) by_uid: BTreeMap<String, PodView>,
    /// Nodes whose pods have been listed.
    pub(super) listed: BTreeSet<NodeName>,
    /// Those whose pods are being listed, or whose watch broke.
    pub(super) relisting: BTreeSet<NodeName>,
    /// When a list last confirmed the watches: it had no pod that they had not shown.
    pub(super) confirmed_at: Option<Timestamp>,
    /// How often something about them has changed.
    pub(super) version: u64,
    watches: Watches,
}

/// Pod watches by node, and what each has listed so far.
#[derive(Default)]
struct Watches {
    streams: StreamMap<NodeName, BoxStream<'static, WatchEvent>>,
    listing: BTreeMap<NodeName, Vec<PodView>>,
    outage: Outage,
}

type WatchEvent = watcher::Result<Event<Partial<Pod>>>;

/// Watches that run this long without a failure work: a failure after that begins another outage.
const STABLE_AFTER: Duration = Duration::from_secs(30);

impl Pods {
    /// Watches the pods of exactly these nodes.
    pub(super) fn watch(&mut self, shared: &Shared, nodes: &BTreeSet<NodeName>) {
        let is_other = |name: &&NodeName| !nodes.contains(*name);
        let ended: BTreeSet<NodeName> =
            self.listed.iter().chain(self.watches.streams.keys()).filter(is_other).cloned().collect();
        for name in ended {
            self.version += 1;
            self.watches.streams.remove(&name);
            self.watches.listing.remove(&name);
            self.listed.remove(&name);
            self.relisting.remove(&name);
            self.by_uid.retain(|_, pod| pod.node != name);
        }
        for name in nodes {
            if !self.watches.streams.contains_key(name) {
                self.watches.streams.insert(name.clone(), shared.cluster.pods_on(name).boxed());
            }
        }
    }

    /// Ends the watches: those that follow list the pods of these nodes anew.
    pub(super) fn list_anew(&mut self, nodes: &BTreeSet<NodeName>) {
        self.relisting.extend(nodes.iter().cloned());
        self.end_watches();
    }

    /// Ends the watches.
    pub(super) fn end_watches(&mut self) {
        self.watches = Watches::default();
    }

    /// Takes in events until one is news: kubelets report much that a drain does not go by. `None` without a watch.
    pub(super) async fn news(&mut self) -> Option<()> {
        let before = self.version;
        while self.version == before {
            let (node, event) = self.watches.streams.next().await?;
            self.take_in(&node, event);
        }
        Some(())
    }

    /// Takes in an event. A list from before a watch broke says nothing of what the watch missed.
    fn take_in(&mut self, node: &NodeName, event: WatchEvent) {
        let error = match event {
            Ok(event) => return self.apply(node, event),
            Err(error) => error,
        };
        self.version += 1;
        self.confirmed_at = None;
        self.relisting.insert(node.clone());
        if has_expired(&error) {
            tracing::debug!(
                node = node.as_str(),
                "the watch of the node's pods has expired: they are listed anew"
            );
            return;
        }
        // Nothing may have changed since to tell that it works again.
        self.watches.outage.recovered_after(STABLE_AFTER);
        if let Some(outage_seconds) = self.watches.outage.failed() {
            tracing::warn!(node = node.as_str(), outage_seconds, error = %chain(&error), "watch of the node's pods broke: they are listed anew, and nothing is released before that");
        }
    }

    fn apply(&mut self, node: &NodeName, event: Event<Partial<Pod>>) {
        // A list says nothing of the watch, which may be refused all the same.
        let is_of_the_watch = matches!(event, Event::Apply(_) | Event::Delete(_));
        let outage_took = if is_of_the_watch { self.watches.outage.recovered() } else { None };
        if let Some(outage_seconds) = outage_took {
            tracing::info!(node = node.as_str(), outage_seconds, "the watch of the node's pods works again");
        }
        let listing = self.watches.listing.entry(node.clone()).or_default();
        match event {
            Event::Init => {
                listing.clear();
                self.relisting.insert(node.clone());
                self.version += 1;
            }
            Event::InitApply(pod) => listing.push(PodView::from(&pod)),
            Event::InitDone => {
                self.relisting.remove(node);
                self.by_uid.retain(|_, pod| pod.node != *node);
                self.by_uid.extend(std::mem::take(listing).into_iter().map(|pod| (pod.uid.clone(), pod)));
                self.listed.insert(node.clone());
                self.version += 1;
            }
            Event::Apply(pod) => {
                let pod = PodView::from(&pod);
                if self.by_uid.get(&pod.uid) != Some(&pod) {
                    self.by_uid.insert(pod.uid.clone(), pod);
                    self.version += 1;
                }
            }
            Event::Delete(pod) => {
                let removed = self.by_uid.remove(&PodView::from(&pod).uid);
                self.version += u64::from(removed.is_some());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, stream};
    use kube::core::Status;
    use serde_json::json;
    use tracing::Level;

    use super::*;
    use crate::telemetry::captured;

    fn pod(uid: &str, more: serde_json::Value) -> Partial<Pod> {
        let mut pod = json!({ "metadata": { "uid": uid, "name": uid }, "spec": { "nodeName": "n" } });
        pod["status"] = more;
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn what_a_drain_does_not_go_by_is_no_news() {
        let running = || pod("a", json!({ "phase": "Running" }));
        let with_an_address = pod("a", json!({ "phase": "Running", "podIP": "10.0.0.7" }));
        let ended = pod("a", json!({ "phase": "Succeeded" }));
        // Each event, and whether it is news.
        let events = vec![
            (Event::Init, true),
            (Event::InitApply(running()), false),
            (Event::InitDone, true),
            (Event::Apply(running()), false),
            (Event::Apply(with_an_address), false),
            (Event::Apply(ended), true),
            (Event::Delete(pod("b", json!({}))), false),
            (Event::Delete(running()), true),
        ];
        let node = NodeName::from("n");
        let mut pods = Pods::default();
        for (at, (event, is_news)) in events.into_iter().enumerate() {
            let told = stream::iter([Ok(event)]).chain(stream::pending());
            pods.watches.streams.insert(node.clone(), told.boxed());
            assert_eq!(pods.news().now_or_never().flatten().is_some(), is_news, "event {at}");
        }
        pods.watches.streams.insert(node, stream::iter([Err(watcher::Error::NoResourceVersion)]).boxed());
        assert!(pods.news().now_or_never().flatten().is_some(), "it broke");
        assert!(pods.by_uid.is_empty());
    }

    /// That is in the way of things: on a node where nothing changes, while much does elsewhere.
    #[test]
    fn a_watch_that_has_expired_is_listed_anew_without_a_warning() {
        let (log, _guard) = captured::log(Level::INFO);
        let mut pods = Pods::default();
        for (code, warns) in [(410, false), (500, true)] {
            let error = watcher::Error::WatchError(Box::new(Status { code, ..Status::default() }));
            pods.relisting.clear();
            pods.take_in(&"n".into(), Err(error));
            assert!(pods.relisting.contains("n"), "{code}");
            assert_eq!(!log.text().is_empty(), warns, "{}", log.text());
        }
    }
}
