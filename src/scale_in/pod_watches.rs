//! The watches of a worker: the pods of its node, and of others that name the same instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;
use tokio_stream::StreamMap;

use super::context::Shared;
use crate::cluster::{Partial, PodView};
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
    watches: Watches,
}

/// Pod watches by node, and what each has listed so far.
#[derive(Default)]
struct Watches {
    streams: StreamMap<NodeName, BoxStream<'static, WatchEvent>>,
    listing: BTreeMap<NodeName, Vec<PodView>>,
    outage: Outage,
    /// When one of them failed last.
    failed: Option<Instant>,
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

    /// The next event; `None` without a watch.
    pub(super) async fn next(&mut self) -> Option<(NodeName, WatchEvent)> {
        self.watches.streams.next().await
    }

    /// Takes in an event. A list from before a watch broke says nothing of what the watch missed.
    pub(super) fn take_in(&mut self, node: &NodeName, event: WatchEvent) {
        let error = match event {
            Ok(event) => return self.apply(node, event),
            Err(error) => error,
        };
        self.confirmed_at = None;
        self.relisting.insert(node.clone());
        let failed = Instant::now();
        if self.watches.failed.replace(failed).is_some_and(|before| before + STABLE_AFTER < failed) {
            // Nothing has changed since to tell that it works again.
            self.watches.outage.recovered();
        }
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
            }
            Event::InitApply(pod) => listing.push(PodView::from(&pod)),
            Event::InitDone => {
                self.relisting.remove(node);
                self.by_uid.retain(|_, pod| pod.node != *node);
                self.by_uid.extend(std::mem::take(listing).into_iter().map(|pod| (pod.uid.clone(), pod)));
                self.listed.insert(node.clone());
            }
            Event::Apply(pod) => {
                let pod = PodView::from(&pod);
                self.by_uid.insert(pod.uid.clone(), pod);
            }
            Event::Delete(pod) => _ = self.by_uid.remove(&PodView::from(&pod).uid),
        }
    }
}
