//! The watches of a worker: the pods of its node, and of others that name the same instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use tokio_stream::StreamMap;

use super::context::Shared;
use crate::clock::{Clock, later};
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
    /// How many pods have to exit before there is something to do, by the last plan; 0: any news may be something to do.
    pub(super) exits_to_come: usize,
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

/// What is new of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// One has exited, or its object has gone after that, and nothing is to be done before others have exited.
    NotTheLastExit,
    /// Anything else that a drain goes by.
    Other,
}

/// An exit is shown to people this much later at most, where nothing is to be done before others have exited: while thousands of pods exit,
/// it would have its node planned twice.
const EXITS_SHOWN_WITHIN: SignedDuration = SignedDuration::from_secs(1);

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
            self.exits_to_come = 0;
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

    /// Takes in events until there is something to plan with. `None` without a watch.
    pub(super) async fn news(&mut self, clock: &Clock) -> Option<()> {
        let mut show_by = None;
        loop {
            tokio::select! {
                biased;
                news = self.next() => match news? {
                    News::NotTheLastExit => _ = show_by.get_or_insert(later(clock.now(), EXITS_SHOWN_WITHIN)),
                    News::Other => return Some(()),
                },
                () = clock.sleep_until_some(show_by) => return Some(()),
            }
        }
    }

    /// Takes in events until one is news: kubelets report much that a drain does not go by. `None` without a watch.
    pub(super) async fn next(&mut self) -> Option<News> {
        loop {
            let (node, event) = self.watches.streams.next().await?;
            if let Some(news) = self.take_in(&node, event) {
                self.version += 1;
                return Some(news);
            }
        }
    }

    /// Takes in an event. A list from before a watch broke says nothing of what the watch missed.
    fn take_in(&mut self, node: &NodeName, event: WatchEvent) -> Option<News> {
        let error = match event {
            Ok(event) => return self.apply(node, event),
            Err(error) => error,
        };
        self.confirmed_at = None;
        self.relisting.insert(node.clone());
        if has_expired(&error) {
            tracing::debug!(
                node = node.as_str(),
                "the watch of the node's pods has expired: they are listed anew"
            );
            return Some(News::Other);
        }
        // Nothing may have changed since to tell that it works again.
        self.watches.outage.recovered_after(STABLE_AFTER);
        if let Some(outage_seconds) = self.watches.outage.failed() {
            tracing::warn!(node = node.as_str(), outage_seconds, error = %chain(&error), "watch of the node's pods broke: they are listed anew, and nothing is released before that");
        }
        Some(News::Other)
    }

    fn apply(&mut self, node: &NodeName, event: Event<Partial<Pod>>) -> Option<News> {
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
                Some(News::Other)
            }
            Event::InitApply(pod) => {
                listing.push(PodView::from(&pod));
                None
            }
            Event::InitDone => {
                self.relisting.remove(node);
                self.by_uid.retain(|_, pod| pod.node != *node);
                self.by_uid.extend(std::mem::take(listing).into_iter().map(|pod| (pod.uid.clone(), pod)));
                self.listed.insert(node.clone());
                Some(News::Other)
            }
            Event::Apply(pod) => {
                let pod = PodView::from(&pod);
                let before = self.by_uid.get(&pod.uid);
                if before == Some(&pod) {
                    return None;
                }
                let has_exited = pod.finished && before.is_some_and(|before| !before.finished);
                self.by_uid.insert(pod.uid.clone(), pod);
                Some(if has_exited { self.exited() } else { News::Other })
            }
            Event::Delete(pod) => {
                let removed = self.by_uid.remove(&PodView::from(&pod).uid)?;
                Some(if removed.finished { self.after_exits() } else { self.exited() })
            }
        }
    }

    fn exited(&mut self) -> News {
        self.exits_to_come = self.exits_to_come.saturating_sub(1);
        self.after_exits()
    }

    fn after_exits(&self) -> News {
        if self.exits_to_come > 0 { News::NotTheLastExit } else { News::Other }
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
            let news = is_news.then_some(News::Other);
            assert_eq!(pods.next().now_or_never().flatten(), news, "event {at}");
        }
        pods.watches.streams.insert(node, stream::iter([Err(watcher::Error::NoResourceVersion)]).boxed());
        assert!(pods.next().now_or_never().flatten().is_some(), "it broke");
        assert!(pods.by_uid.is_empty());
    }

    #[test]
    fn of_several_exits_the_last_one_is_something_to_do_and_so_is_all_that_is_no_exit() {
        let running = |uid| pod(uid, json!({ "phase": "Running" }));
        let ended = |uid| pod(uid, json!({ "phase": "Succeeded" }));
        let node = NodeName::from("n");
        let mut pods = Pods::default();
        for uid in ["a", "b", "c"] {
            pods.apply(&node, Event::Apply(running(uid)));
        }
        pods.exits_to_come = 3;
        let (more, other) = (Some(News::NotTheLastExit), Some(News::Other));
        let is_going = json!({ "metadata": { "uid": "c", "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        let mut says = |event| pods.apply(&node, event);
        assert_eq!(says(Event::Apply(ended("a"))), more);
        assert_eq!(says(Event::Apply(ended("a"))), None);
        assert_eq!(says(Event::Delete(ended("a"))), more);
        assert_eq!(says(Event::Apply(running("new"))), other);
        assert_eq!(says(Event::Apply(serde_json::from_value(is_going).expect("a pod"))), other);
        // The kubelet's last word and the object's end may come together.
        assert_eq!(says(Event::Delete(running("b"))), more);
        assert_eq!(says(Event::Apply(ended("c"))), other);
        assert_eq!(says(Event::Delete(ended("c"))), other);
        assert!(pods.apply(&node, Event::Init) == other && pods.exits_to_come == 0);
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
