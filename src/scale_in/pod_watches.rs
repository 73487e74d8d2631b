//! The watches of a worker: the pods of its node, and of others that name the same instance.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;
use tokio_stream::StreamMap;

use super::context::Shared;
use crate::cluster::{PodView, Seen, Sink, deliver};
use crate::k8s::NodeName;
use crate::telemetry::{Outage, chain};

/// Pods of the node and of others that name the same instance, by UID.
#[derive(Default)]
pub(super) struct Pods {
    /// Nodes whose pods have been listed.
    pub(super) listed: RefCell<BTreeSet<NodeName>>,
    /// Those whose pods are being listed, or whose watch broke.
    pub(super) relisting: RefCell<BTreeSet<NodeName>>,
    pub(super) by_uid: RefCell<BTreeMap<String, PodView>>,
}

impl Pods {
    /// Whether a watch has shown this pod, which is still there.
    pub(super) fn shows(&self, uid: &str) -> bool {
        self.by_uid.borrow().contains_key(uid)
    }

    /// Notes that the pods of these nodes are about to be listed anew.
    pub(super) fn list_anew(&self, nodes: &BTreeSet<NodeName>) {
        self.relisting.borrow_mut().extend(nodes.iter().cloned());
    }
}

/// The pods of one node.
struct PodsOf<'a>(&'a str, &'a Pods);

impl Sink<Seen<Pod>> for PodsOf<'_> {
    type Kept = PodView;

    fn reduce(&self, pod: Seen<Pod>) -> PodView {
        PodView::from(&pod)
    }

    fn apply(&self, pod: PodView) {
        self.1.by_uid.borrow_mut().insert(pod.uid.clone(), pod);
    }

    fn delete(&self, pod: PodView) {
        self.1.by_uid.borrow_mut().remove(&pod.uid);
    }

    fn listing(&self) {
        self.1.relisting.borrow_mut().insert(self.0.into());
    }

    fn reset(&self, pods: Vec<PodView>) {
        self.1.relisting.borrow_mut().remove(self.0);
        let mut by_uid = self.1.by_uid.borrow_mut();
        by_uid.retain(|_, pod| pod.node != self.0);
        by_uid.extend(pods.into_iter().map(|pod| (pod.uid.clone(), pod)));
        self.1.listed.borrow_mut().insert(self.0.into());
    }
}

/// Pod watches by node, and what each has listed so far.
#[derive(Default)]
pub(super) struct Watches {
    pub(super) streams: StreamMap<NodeName, BoxStream<'static, watcher::Result<Event<Seen<Pod>>>>>,
    listing: BTreeMap<NodeName, Vec<PodView>>,
    outage: Outage,
    /// When one of them failed last.
    failed: Option<Instant>,
}

/// Watches that run this long without a failure work: a failure after that begins another outage.
const STABLE_AFTER: Duration = Duration::from_secs(30);

impl Watches {
    /// Watches the pods of exactly these nodes.
    pub(super) fn keep(&mut self, shared: &Shared, nodes: &BTreeSet<NodeName>, pods: &Pods) {
        let is_other = |name: &&NodeName| !nodes.contains(*name);
        let ended: BTreeSet<NodeName> =
            pods.listed.borrow().iter().chain(self.streams.keys()).filter(is_other).cloned().collect();
        for name in ended {
            self.streams.remove(&name);
            self.listing.remove(&name);
            pods.listed.borrow_mut().remove(&name);
            pods.relisting.borrow_mut().remove(&name);
            pods.by_uid.borrow_mut().retain(|_, pod| pod.node != name);
        }
        for name in nodes {
            if !self.streams.contains_key(name) {
                self.streams.insert(name.clone(), shared.cluster.pods_on(name).boxed());
            }
        }
    }

    /// Takes in an event.
    pub(super) fn take_in(&mut self, node: &NodeName, event: watcher::Result<Event<Seen<Pod>>>, pods: &Pods) {
        let error = match event {
            Ok(event) => return self.deliver(node, event, pods),
            Err(error) => error,
        };
        pods.relisting.borrow_mut().insert(node.clone());
        let failed = Instant::now();
        if self.failed.replace(failed).is_some_and(|before| before + STABLE_AFTER < failed) {
            // Nothing has changed since to tell that it works again.
            self.outage.recovered();
        }
        if let Some(outage_seconds) = self.outage.failed() {
            tracing::warn!(node = node.as_str(), outage_seconds, error = %chain(&error), "watch of the node's pods broke: they are listed anew, and nothing is released before that");
        }
    }

    fn deliver(&mut self, node: &NodeName, event: Event<Seen<Pod>>, pods: &Pods) {
        // A list says nothing of the watch, which may be refused all the same.
        let is_of_the_watch = matches!(event, Event::Apply(_) | Event::Delete(_));
        let outage_took = if is_of_the_watch { self.outage.recovered() } else { None };
        if let Some(outage_seconds) = outage_took {
            tracing::info!(node = node.as_str(), outage_seconds, "the watch of the node's pods works again");
        }
        deliver(event, self.listing.entry(node.clone()).or_default(), &PodsOf(node, pods));
    }
}
