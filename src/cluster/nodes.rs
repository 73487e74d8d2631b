//! All Nodes of the cluster: a slim view of each, updated by a watch and by the answers to our own writes.
//!
//! Invariant: a Node's view does not go back in time. The next reader sees a write of ours, and an older event of the
//! watch does not undo it. A list replaces whatever was known before it was requested: an API server that was restored
//! from a backup counts from an older version.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::interner::Interner;
use super::node_view::{NodeView, Ready};
use super::partial::Partial;
use super::record::Phase;
use super::reflect::Sink;
use super::version::is_older;
use crate::k8s::{InstanceId, NodeName, names};

/// All Nodes of the cluster. Cheap to read from any task.
#[derive(Debug, Default)]
pub struct Nodes {
    inner: Mutex<Inner>,
    dirty: Notify,
    /// Told when the watch is to begin anew.
    doubted: Notify,
    synced: watch::Sender<bool>,
    /// How many instances are marked, to be read without the lock: each RPC asks for every instance of a group, and mostly there are none.
    marked: AtomicUsize,
    /// The same of those with a Node whose provider id is written oddly.
    odd: AtomicUsize,
}

/// A watch that has not failed for this long works, even if it has shown no event: a broken one is retried within 5 s,
/// and a try on a dead connection fails after 75 s.
const SILENCE: Duration = Duration::from_secs(80);

/// How long it is remembered when an instance's Node went. No hook holds an instance for longer.
const REMEMBERED: Duration = Duration::from_hours(48);

#[derive(Debug, Default)]
struct Inner {
    interner: Interner,
    by_name: BTreeMap<NodeName, Arc<NodeView>>,
    /// More than one Node if a kubelet came back under another name, or if somebody made a Node up.
    by_instance: HashMap<InstanceId, BTreeSet<NodeName>>,
    /// Those that are to be heard of, of the cluster ...
    cluster: Tally,
    /// ... and of each zone.
    zones: HashMap<Box<str>, Tally>,
    /// Instances with a Node that is marked to go.
    marked: BTreeSet<InstanceId>,
    /// Instances with a Node whose provider id is written oddly.
    odd: BTreeSet<InstanceId>,
    /// Nodes that have changed since the controller last asked.
    dirty: BTreeSet<NodeName>,
    /// How many changes there have been.
    changes: u64,
    /// Who waits for a change of which Node.
    waiting: BTreeMap<NodeName, Arc<Notify>>,
    /// Since when the views have been complete and current. In the future while that is not certain.
    whole_since: Option<Instant>,
    /// When the last Node of an instance went.
    gone: BTreeMap<InstanceId, Instant>,
    /// A list has been requested ...
    is_listing: bool,
    /// ... and our own writes have changed these Nodes since then, so the list may show them as they were.
    heard: BTreeSet<NodeName>,
}

/// Nodes of machines of EC2 that are to be heard of.
#[derive(Debug, Default)]
struct Tally {
    all: usize,
    /// The silent ones, and since when they are.
    silent: BTreeSet<(Timestamp, NodeName)>,
}

impl Tally {
    /// Whether a Node is to be heard of: nobody has shut its machine down, as a warm pool does, and its scale-in has not let go of it.
    fn counts(node: &NodeView) -> bool {
        let is_released = node.scale_in().is_some_and(|record| record.phase == Phase::Releasing);
        node.instance.is_some() && node.taint(names::SHUT_DOWN).is_none() && !is_released
    }

    fn count(&mut self, node: &NodeView, is_there: bool) {
        if !Self::counts(node) {
            return;
        }
        self.all = if is_there { self.all + 1 } else { self.all - 1 };
        if node.ready == Ready::Unknown {
            let silent = (node.unready_since.unwrap_or(Timestamp::MAX), node.name.clone());
            let _ = if is_there { self.silent.insert(silent) } else { self.silent.remove(&silent) };
        }
    }

    /// Whether all (two at least) or most (three at least) are silent, not counting those silent by `then`.
    ///
    /// Source: Kubernetes' node lifecycle controller, which then evicts at a low rate, or not at all
    /// ([`--unhealthy-zone-threshold`](https://kubernetes.io/docs/concepts/architecture/nodes/#rate-limits-on-eviction), 55 %).
    fn is_cut_off(&self, then: Timestamp) -> bool {
        let left_behind = self.silent.iter().take_while(|(since, _)| *since <= then).count();
        let (all, silent) = (self.all - left_behind, self.silent.len() - left_behind);
        silent >= 2 && silent == all || silent >= 3 && silent * 100 >= all * 55
    }
}

impl Nodes {
    /// The Node of this name.
    pub fn get(&self, name: &str) -> Option<Arc<NodeView>> {
        self.inner.lock().by_name.get(name).cloned()
    }

    /// Every Node that names this instance. The machine's own Node most likely comes first: Ready before others, then
    /// the oldest. A kubelet that came back under another name leaves a Node behind that is not Ready, and a made-up
    /// Node is younger.
    pub fn of_instance(&self, instance: &str) -> Vec<Arc<NodeView>> {
        let inner = self.inner.lock();
        let names = inner.by_instance.get(instance).into_iter().flatten();
        let mut nodes: Vec<_> = names.filter_map(|name| inner.by_name.get(name)).cloned().collect();
        nodes.sort_by_key(|node| own_first(node));
        nodes
    }

    /// The one Node that names this instance; `None` if there is none, or several.
    pub fn only_of_instance(&self, instance: &str) -> Option<Arc<NodeView>> {
        let inner = self.inner.lock();
        let names = inner.by_instance.get(instance).filter(|names| names.len() == 1)?;
        inner.by_name.get(names.first()?).cloned()
    }

    /// Whether a Node of this instance is marked to go: it carries a record or request of ours, or cluster-autoscaler's taint. Cheap.
    pub fn is_marked(&self, instance: &str) -> bool {
        self.marked.load(Ordering::Acquire) > 0 && self.inner.lock().marked.contains(instance)
    }

    /// Every Node of an instance with one that is marked to go.
    pub fn marked(&self) -> Vec<Arc<NodeView>> {
        let inner = self.inner.lock();
        let names = inner.marked.iter().filter_map(|instance| inner.by_instance.get(instance)).flatten();
        names.filter_map(|name| inner.by_name.get(name)).cloned().collect()
    }

    /// The provider id of this instance as the machine's own Node has it, where that is written oddly, or AWS has not told the zone. Cheap.
    pub fn provider_id(&self, instance: &str, zone: &str) -> Option<String> {
        if !zone.is_empty() && self.odd.load(Ordering::Acquire) == 0 {
            return None;
        }
        let inner = self.inner.lock();
        let is_odd = zone.is_empty() || inner.odd.contains(instance);
        let names = inner.by_instance.get(instance).filter(|_| is_odd)?;
        let nodes = names.iter().filter_map(|name| inner.by_name.get(name));
        nodes.min_by_key(|node| own_first(node))?.provider_id()
    }

    /// Whether this Node is silent together with most of its zone, of its group (`group`: its instances) or of the cluster: that is the
    /// trouble of the API server, the network or their credentials rather than of their machines. Nodes that fell silent by `then`, by the
    /// API server's clock, do not count: their machines are gone, and nobody has deleted them.
    pub fn is_cut_off<'a>(
        &self,
        node: &NodeView,
        group: impl IntoIterator<Item = &'a InstanceId>,
        then: Timestamp,
    ) -> bool {
        if node.ready != Ready::Unknown || node.is_off() {
            return false;
        }
        let inner = self.inner.lock();
        let zone = node.labels.get(names::ZONE).and_then(|zone| inner.zones.get(zone));
        [&inner.cluster].into_iter().chain(zone).any(|tally| tally.is_cut_off(then))
            || inner.tally_of(group).is_cut_off(then)
    }

    /// Whether several Nodes name this instance.
    pub fn has_twins(&self, instance: &str) -> bool {
        self.inner.lock().by_instance.get(instance).is_some_and(|names| names.len() > 1)
    }

    /// A Node whose machine may be any.
    pub fn unidentified(&self) -> Option<NodeName> {
        self.inner.lock().by_name.values().find(|node| node.is_unidentified).map(|node| node.name.clone())
    }

    /// Every Node.
    pub fn all(&self) -> Vec<Arc<NodeView>> {
        self.inner.lock().by_name.values().cloned().collect()
    }

    /// How many changes of Nodes there have been. While it stays the same, all Nodes do, but for heartbeats.
    pub fn changes(&self) -> u64 {
        self.inner.lock().changes
    }

    /// Whether the first list is in. Only then does an unknown Node not exist.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Has the watch begin anew, with a list: it has missed something.
    pub fn list_anew(&self) {
        self.inner.lock().is_listing = true;
        self.doubted.notify_one();
    }

    /// Waits until the watch is to begin anew.
    pub(super) async fn are_doubted(&self) {
        self.doubted.notified().await;
    }

    /// For how long the views have been complete and current; `None` while they may not be. Ask where acting on a
    /// missing Node would do harm.
    pub fn whole_for(&self) -> Option<Duration> {
        let inner = self.inner.lock();
        let since = inner.whole_since.filter(|_| !inner.is_listing)?;
        Instant::now().checked_duration_since(since)
    }

    /// For how long an instance's Node has been gone; `None` if it is there, or was never seen.
    pub fn gone_for(&self, instance: &str) -> Option<Duration> {
        self.inner.lock().gone.get(instance).map(Instant::elapsed)
    }

    /// Completes when the first list is in.
    pub async fn synced(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Stores a Node, unless the stored one is newer.
    pub fn apply(&self, node: NodeView) {
        let mut inner = self.inner.lock();
        if inner.is_known_better(&node) {
            return;
        }
        inner.insert(node);
        self.changed_by(inner);
    }

    /// Stores the answer to a write of ours, unless the Node has gone meanwhile or the stored one is newer. Returns
    /// false if the answer is older than what was stored.
    pub fn update(&self, node: NodeView) -> bool {
        let mut inner = self.inner.lock();
        if inner.by_name.get(&node.name).is_none_or(|known| known.uid != node.uid) {
            return true;
        }
        if inner.is_known_better(&node) {
            return false;
        }
        if inner.is_listing {
            inner.heard.insert(node.name.clone());
        }
        inner.insert(node);
        self.changed_by(inner);
        true
    }

    /// Waits for changes and returns the names of the changed Nodes.
    pub async fn changed(&self) -> BTreeSet<NodeName> {
        loop {
            let notified = self.dirty.notified();
            let names = std::mem::take(&mut self.inner.lock().dirty);
            if !names.is_empty() {
                return names;
            }
            notified.await;
        }
    }

    /// Notified of every change of one Node, until [`forget`](Self::forget).
    pub fn follow(&self, name: &str) -> Arc<Notify> {
        Arc::clone(self.inner.lock().waiting.entry(name.into()).or_default())
    }

    /// Ends [`follow`](Self::follow).
    pub fn forget(&self, name: &str) {
        self.inner.lock().waiting.remove(name);
    }

    fn changed_by(&self, inner: MutexGuard<'_, Inner>) {
        self.marked.store(inner.marked.len(), Ordering::Release);
        self.odd.store(inner.odd.len(), Ordering::Release);
        drop(inner);
        self.dirty.notify_one();
    }
}

impl Inner {
    /// Whether the stored Node is newer than this one.
    fn is_known_better(&self, node: &NodeView) -> bool {
        let known = self.by_name.get(&node.name);
        known.is_some_and(|known| is_older(&node.resource_version, &known.resource_version))
    }

    fn share(&mut self, node: &mut NodeView) {
        self.interner.share(&mut node.labels);
        self.interner.share_whole(&mut node.capacity);
        self.interner.share_whole(&mut node.allocatable);
    }

    fn insert(&mut self, mut node: NodeView) {
        self.share(&mut node);
        if let Some(known) = self.by_name.get_mut(&node.name)
            && known.is_but_for_its_version(&node)
        {
            // A heartbeat, mostly. The next write of ours goes by its version; nobody is to look again because of it.
            node.change = known.change;
            *known = Arc::new(node);
            return;
        }
        let left = self.take_out(&node.name.clone());
        self.count(&node, true);
        if let Some(instance) = &node.instance {
            self.gone.remove(instance);
            self.by_instance.entry(instance.clone()).or_default().insert(node.name.clone());
        }
        if let Some(instance) = left.filter(|left| node.instance.as_ref() != Some(left)) {
            self.note_gone(instance);
        }
        self.touch(&node);
        node.change = self.changes;
        let instance = node.instance.clone();
        self.by_name.insert(node.name.clone(), Arc::new(node));
        self.reindex(instance.as_ref());
    }

    /// Counts a Node in the cluster and in its zone, or no more.
    fn count(&mut self, node: &NodeView, is_there: bool) {
        self.cluster.count(node, is_there);
        if let Some(zone) = node.labels.get(names::ZONE) {
            self.zones.entry(zone.into()).or_default().count(node, is_there);
        }
    }

    /// The Nodes of these instances.
    fn tally_of<'a>(&self, instances: impl IntoIterator<Item = &'a InstanceId>) -> Tally {
        let mut tally = Tally::default();
        let names = instances.into_iter().filter_map(|instance| self.by_instance.get(instance)).flatten();
        names.filter_map(|name| self.by_name.get(name)).for_each(|node| tally.count(node, true));
        tally
    }

    /// Notes whether a Node of the instance is marked to go, and whether one has an odd provider id.
    fn reindex(&mut self, instance: Option<&InstanceId>) {
        let Some(instance) = instance else { return };
        let names = self.by_instance.get(instance).into_iter().flatten();
        let nodes: Vec<_> = names.filter_map(|name| self.by_name.get(name)).collect();
        let is_marked = nodes.iter().any(|node| node.is_marked());
        let is_odd = nodes.iter().any(|node| node.odd_provider_id.is_some());
        set_membership(&mut self.marked, instance, is_marked);
        set_membership(&mut self.odd, instance, is_odd);
    }

    fn remove(&mut self, name: &str) {
        if let Some(instance) = self.take_out(name) {
            self.note_gone(instance);
        }
    }

    /// Takes a Node out. Returns its instance if that has no other.
    fn take_out(&mut self, name: &str) -> Option<InstanceId> {
        let node = self.by_name.remove(name)?;
        self.count(&node, false);
        self.touch(&node);
        let instance = node.instance.clone();
        let names = instance.as_ref().and_then(|instance| self.by_instance.get_mut(instance));
        let is_last = names.is_some_and(|names| names.remove(name) && names.is_empty());
        let left = instance.filter(|_| is_last);
        if let Some(instance) = &left {
            self.by_instance.remove(instance);
        }
        self.reindex(node.instance.as_ref());
        left
    }

    fn note_gone(&mut self, instance: InstanceId) {
        self.gone.retain(|_, at| at.elapsed() < REMEMBERED);
        self.gone.insert(instance, Instant::now());
    }

    /// Counts a change of a Node, and notifies its followers and those of the other Nodes of its instance.
    fn touch(&mut self, node: &NodeView) {
        self.changes += 1;
        let twins = node.instance.as_ref().and_then(|instance| self.by_instance.get(instance));
        for name in twins.into_iter().flatten().chain([&node.name]) {
            self.dirty.insert(name.clone());
            if let Some(waiting) = self.waiting.get(name) {
                waiting.notify_one();
            }
        }
    }
}

/// Of several Nodes of an instance, the machine's own comes first by this, most likely.
fn own_first(node: &NodeView) -> (bool, Option<Timestamp>) {
    (node.ready != Ready::Yes, node.created)
}

fn set_membership(among: &mut BTreeSet<InstanceId>, instance: &InstanceId, belongs: bool) {
    if belongs {
        among.insert(instance.clone());
    } else {
        among.remove(instance);
    }
}

impl Sink<Partial<Node>> for Nodes {
    type Kept = NodeView;

    fn reduce(&self, node: Partial<Node>) -> NodeView {
        let mut view = NodeView::from(&node);
        self.inner.lock().share(&mut view);
        view
    }

    fn apply(&self, node: NodeView) {
        Self::apply(self, node);
    }

    fn delete(&self, gone: NodeView) {
        let mut inner = self.inner.lock();
        // A newer Node of the same name stays.
        if inner.by_name.get(&gone.name).is_some_and(|known| known.uid == gone.uid) {
            inner.remove(&gone.name);
        }
        self.changed_by(inner);
    }

    fn listing(&self) {
        let mut inner = self.inner.lock();
        inner.is_listing = true;
        inner.heard.clear();
    }

    fn reset(&self, nodes: Vec<NodeView>) {
        let mut inner = self.inner.lock();
        let nodes: BTreeMap<NodeName, NodeView> =
            nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        let gone: Vec<NodeName> =
            inner.by_name.keys().filter(|&name| !nodes.contains_key(name)).cloned().collect();
        for name in gone {
            inner.remove(&name);
        }
        let heard = std::mem::take(&mut inner.heard);
        for node in nodes.into_values() {
            if !heard.contains(&node.name) || !inner.is_known_better(&node) {
                inner.insert(node);
            }
        }
        inner.is_listing = false;
        inner.whole_since = Some(Instant::now());
        self.changed_by(inner);
        self.synced.send_replace(true);
    }

    fn connected(&self, connected: bool) {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let ahead = if connected { now } else { now + SILENCE };
        // A list that was just stored has set the moment already.
        if !connected || inner.whole_since.is_some_and(|since| since > now) {
            inner.whole_since = inner.whole_since.map(|_| ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use k8s_openapi::api::core::v1::Taint;
    use serde_json::json;

    use super::*;

    fn node(version: &str, record: Option<&str>) -> NodeView {
        NodeView {
            name: "n".into(),
            uid: "u".into(),
            resource_version: version.into(),
            instance: Some("i-1".into()),
            record: record.map(|text| Box::new(text.into())),
            ..NodeView::default()
        }
    }

    #[test]
    fn an_older_event_does_not_undo_a_write_of_ours() {
        let nodes = Nodes::default();
        nodes.apply(node("10", Some("{}")));
        nodes.apply(node("9", None));
        assert_eq!(nodes.of_instance("i-1")[0].record, Some(Box::new("{}".into())));
        nodes.apply(node("11", None));
        assert_eq!(nodes.of_instance("i-1")[0].record, None);
    }

    #[test]
    fn of_several_nodes_of_an_instance_the_oldest_that_is_ready_comes_first() {
        let nodes = Nodes::default();
        let of_age = |name: &str, ready, second| NodeView {
            name: name.into(),
            ready,
            created: Timestamp::from_second(second).ok(),
            ..node("1", None)
        };
        nodes.apply(of_age("silent", Ready::Unknown, 1));
        nodes.apply(of_age("young", Ready::Yes, 3));
        nodes.apply(of_age("own", Ready::Yes, 2));
        let names = || nodes.of_instance("i-1").iter().map(|node| node.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(), ["own", "young", "silent"]);
        Sink::delete(&nodes, of_age("own", Ready::Yes, 2));
        assert_eq!(names(), ["young", "silent"]);
    }

    /// A machine of a zone, and since when it is silent.
    fn machine(n: usize, zone: &str, silent: Option<i64>) -> NodeView {
        NodeView {
            name: format!("n{n}").into(),
            instance: Some(format!("i-{n}").into()),
            labels: [(names::ZONE, zone)].into_iter().collect(),
            ready: if silent.is_some() { Ready::Unknown } else { Ready::Yes },
            unready_since: silent.map(hour),
            ..node("1", None)
        }
    }

    fn hour(hour: i64) -> Timestamp {
        Timestamp::from_second(hour * 3_600).expect("in range")
    }

    /// Whether a silent machine of this zone counts as cut off, its group being these.
    fn is_cut_off(nodes: &Nodes, zone: &str, group: impl IntoIterator<Item = usize>, then: i64) -> bool {
        let group: Vec<InstanceId> = group.into_iter().map(|n| format!("i-{n}").into()).collect();
        nodes.is_cut_off(&machine(0, zone, Some(9)), &group, hour(then))
    }

    #[test]
    fn a_set_is_cut_off_where_all_of_two_are_silent_or_55_of_100_of_three_and_more() {
        for (silent, all, expected) in [
            (0, 1, false),
            (1, 1, false),
            (1, 2, false),
            (2, 2, true),
            (2, 3, false),
            (3, 3, true),
            (3, 5, true),
            (3, 6, false),
            (10, 19, false),
            (11, 20, true),
        ] {
            let nodes = Nodes::default();
            let told = format!("{silent} of {all}");
            (0..all).for_each(|n| nodes.apply(machine(n, "a", (n < silent).then_some(1))));
            assert_eq!(is_cut_off(&nodes, "b", [], 0), expected, "cluster, {told}");
            (100..200).for_each(|n| nodes.apply(machine(n, "b", None)));
            assert_eq!(is_cut_off(&nodes, "a", [], 0), expected, "zone, {told}");
            assert_eq!(is_cut_off(&nodes, "b", 0..all, 0), expected, "group, {told}");
            assert!(!is_cut_off(&nodes, "b", 100..200, 0), "{told}");
        }
    }

    #[test]
    fn what_need_not_be_heard_of_does_not_count_among_those_that_are_cut_off() {
        let nodes = Nodes::default();
        let off = |n| {
            let taint = Taint { key: names::SHUT_DOWN.into(), ..Taint::default() };
            NodeView { taints: vec![taint], ..machine(n, "a", Some(1)) }
        };
        let released = |n| {
            let then = "2026-01-01T00:00:00Z";
            let record = json!({
                "cause": "autoscaler", "group": "g", "instance": format!("i-{n}"), "phase": "Releasing",
                "release": "complete-hook", "requestedAt": then, "phaseSince": then,
            });
            let record = Some(Box::new(record.to_string().as_str().into()));
            let node = NodeView { record, ..machine(n, "a", Some(1)) };
            assert!(node.scale_in().is_some());
            node
        };
        let elsewhere = |n| NodeView { instance: None, ..machine(n, "a", None) };
        let cut_off = || is_cut_off(&nodes, "a", [0, 1, 2, 3, 4], 0);
        nodes.apply(machine(0, "a", Some(1)));
        for other in [off(1), off(2), released(3), released(4)] {
            nodes.apply(other);
            assert!(!cut_off(), "one");
        }
        nodes.apply(machine(1, "a", Some(1)));
        for n in 5..9 {
            nodes.apply(elsewhere(n));
        }
        assert!(cut_off(), "both");
        nodes.apply(off(1));
        assert!(!cut_off(), "one");
        nodes.apply(machine(1, "a", Some(1)));
        nodes.apply(machine(2, "a", None));
        assert!(!cut_off(), "two of three");
        Sink::delete(&nodes, machine(2, "a", None));
        assert!(cut_off());
        assert!(
            !nodes.is_cut_off(&off(0), [], hour(0)) && !nodes.is_cut_off(&machine(0, "a", None), [], hour(0))
        );
    }

    #[test]
    fn nodes_that_were_left_behind_do_not_count_among_those_not_heard_of() {
        let nodes = Nodes::default();
        let named = |n, silent| machine(n, "a", silent);
        let cut_off = |then| is_cut_off(&nodes, "a", [], then);
        for n in 0..4 {
            nodes.apply(named(n, Some(1)));
        }
        nodes.apply(named(4, None));
        assert!(cut_off(0), "in their first hour");
        assert!(!cut_off(1));
        for n in 4..7 {
            nodes.apply(named(n, Some(2)));
        }
        nodes.apply(named(7, None));
        assert!(cut_off(1), "three of the four others");
        nodes.apply(named(8, None));
        nodes.apply(named(9, None));
        assert!(!cut_off(1), "three of six");
        nodes.apply(named(0, None));
        Sink::delete(&nodes, named(8, None));
        Sink::delete(&nodes, named(9, None));
        assert!(cut_off(1), "three of five, with one that is back");
        assert!(!cut_off(2));
    }

    #[test]
    fn an_instance_is_marked_as_long_as_one_of_its_nodes_is() {
        let nodes = Nodes::default();
        let named = |name: &str, record| NodeView { name: name.into(), ..node("1", record) };
        let is_marked = || nodes.is_marked("i-1");
        nodes.apply(named("a", None));
        assert!(!is_marked() && !nodes.has_twins("i-1"));
        nodes.apply(named("b", Some("{}")));
        assert!(is_marked() && nodes.has_twins("i-1"));
        nodes.apply(NodeView { instance: Some("i-2".into()), ..named("b", Some("{}")) });
        assert!(!is_marked() && nodes.is_marked("i-2"), "the Node names another instance now");
        nodes.listing();
        nodes.reset(vec![named("a", Some("now"))]);
        assert!(is_marked() && !nodes.is_marked("i-2"));
        Sink::delete(&nodes, named("a", None));
        assert!(!is_marked());
        let taint = Taint { key: names::TO_BE_DELETED.into(), ..Taint::default() };
        nodes.apply(NodeView { taints: vec![taint], ..named("a", None) });
        assert!(is_marked(), "cluster-autoscaler is about to delete it");
    }

    #[test]
    fn an_instance_has_the_provider_id_that_the_machines_own_node_has() {
        let nodes = Nodes::default();
        let written = |name: &str, zone: &str, provider_id: &str, ready: &str| {
            let object = json!({
                "metadata": { "name": name, "resourceVersion": "1", "labels": { names::ZONE: zone } },
                "spec": { "providerID": provider_id },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            });
            NodeView::from(&serde_json::from_value::<Node>(object).expect("a Node"))
        };
        let odd = || nodes.provider_id("i-1", "z1");
        let provider_id = || nodes.provider_id("i-1", "").unwrap_or_default();
        assert_eq!(provider_id(), "", "it has no Node");
        nodes.apply(written("a", "z1", "aws:///z1/i-1", "True"));
        assert_eq!((odd(), provider_id()), (None, "aws:///z1/i-1".to_owned()));
        for text in ["aws:////i-1", "aws:///z2/i-1", "aws:///z1/op-1/i-1"] {
            nodes.apply(written("a", "z1", text, "True"));
            assert_eq!((odd().as_deref(), provider_id()), (Some(text), text.to_owned()));
        }
        nodes.apply(written("b", "z1", "aws:///z1/i-1", "False"));
        assert_eq!(
            provider_id(),
            "aws:///z1/op-1/i-1",
            "a machine whose kubelet came back under another name"
        );
        nodes.apply(written("a", "z1", "aws:////i-1", "Unknown"));
        nodes.apply(written("b", "z1", "aws:///z1/i-1", "True"));
        assert_eq!(provider_id(), "aws:///z1/i-1");
        Sink::delete(&nodes, written("b", "z1", "aws:///z1/i-1", "True"));
        assert_eq!(provider_id(), "aws:////i-1");
        Sink::delete(&nodes, written("a", "z1", "aws:////i-1", "Unknown"));
        assert!(odd().is_none() && nodes.odd.load(Ordering::Acquire) == 0);
        // However long somebody makes it, an answer to cluster-autoscaler has to stay short.
        nodes.apply(written("a", "z1", &format!("aws:///{}/i-1", "z".repeat(300)), "True"));
        assert_eq!(provider_id(), "aws:///z1/i-1");
    }

    #[test]
    fn a_node_may_be_any_machine_unless_its_provider_id_is_of_aws_or_says_that_it_is_elsewhere() {
        let known = [
            "aws:///z1/i-1",
            "aws:////i-1",
            "aws:///z1/1f2e/fargate-ip-10-0-0-1",
            "aws:///i-1",
            "aws://z1/i-1",
            "i-1",
            "eks-hybrid:///r/c/mi-1",
            "gce://p/z/n",
            "azure:///subscriptions/s/n",
            "kwok://n",
            "kwok:n",
        ];
        let unknown = [
            "",
            "k3s://n",
            "rke2://n",
            "aws:///z1/ip-10-0-0-1",
            "ip-10-0-0-1",
            "gcex://p/z/n",
            "k3s://fargate-1",
        ];
        for (text, expected) in
            known.map(|text| (text, None)).into_iter().chain(unknown.map(|text| (text, Some("n"))))
        {
            let nodes = Nodes::default();
            let object = json!({ "metadata": { "name": "n" }, "spec": { "providerID": text } });
            nodes.apply(NodeView::from(&serde_json::from_value::<Node>(object).expect("a Node")));
            assert_eq!(nodes.unidentified().as_deref(), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_heartbeat_counts_for_the_next_write_and_wakes_nobody() {
        let nodes = Nodes::default();
        nodes.apply(node("10", None));
        let follow = nodes.follow("n");
        assert_eq!(nodes.changed().await.len(), 1);
        let seen = || (nodes.changes(), nodes.get("n").expect("is there").change);
        let before = seen();
        nodes.apply(node("11", None));
        assert_eq!(seen(), before);
        assert!(nodes.changed().now_or_never().is_none() && follow.notified().now_or_never().is_none());
        assert_eq!(nodes.get("n").expect("is there").resource_version, "11");
        nodes.apply(node("12", Some("{}")));
        assert!(seen().0 > before.0 && seen().1 > before.1);
        assert!(nodes.changed().now_or_never().is_some() && follow.notified().now_or_never().is_some());
    }

    #[test]
    fn a_list_is_the_truth_save_for_what_was_written_while_it_was_on_its_way() {
        let nodes = Nodes::default();
        let record = || nodes.get("n").and_then(|n| n.record.clone());
        nodes.apply(node("1000", Some("{}")));
        nodes.listing();
        nodes.reset(vec![node("500", None)]);
        assert_eq!(record(), None, "restored from a backup");
        nodes.listing();
        assert!(nodes.update(node("510", Some("{}"))));
        nodes.reset(vec![node("505", None)]);
        assert_eq!(record(), Some(Box::new("{}".into())), "the list was made before the write");
        nodes.listing();
        nodes.reset(vec![node("505", None)]);
        assert_eq!(record(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_whole_after_a_list_and_not_while_the_watch_may_be_broken() {
        let nodes = Nodes::default();
        let pass = async |seconds| tokio::time::advance(Duration::from_secs(seconds)).await;
        nodes.connected(false);
        assert_eq!(nodes.whole_for(), None);
        nodes.listing();
        nodes.reset(vec![node("1", None)]);
        pass(10).await;
        assert_eq!(nodes.whole_for(), Some(Duration::from_secs(10)));
        nodes.connected(false);
        pass(79).await;
        assert_eq!(nodes.whole_for(), None);
        pass(2).await;
        assert_eq!(nodes.whole_for(), Some(Duration::from_secs(1)), "nothing has failed since");
        nodes.connected(false);
        nodes.connected(true);
        pass(3).await;
        assert_eq!(nodes.whole_for(), Some(Duration::from_secs(3)));
        nodes.listing();
        assert_eq!(nodes.whole_for(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_remembered_when_a_node_went_until_there_is_one_again() {
        let nodes = Nodes::default();
        nodes.apply(node("1", None));
        assert_eq!(nodes.gone_for("i-1"), None);
        Sink::delete(&nodes, node("2", None));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(nodes.gone_for("i-1"), Some(Duration::from_secs(7)));
        nodes.apply(node("3", None));
        assert_eq!(nodes.gone_for("i-1"), None);
    }

    #[test]
    fn a_deleted_node_is_found_by_neither_name_nor_instance() {
        let nodes = Nodes::default();
        nodes.apply(node("10", None));
        Sink::delete(&nodes, node("10", None));
        assert!(nodes.get("n").is_none());
        assert!(nodes.of_instance("i-1").is_empty());
    }
}
