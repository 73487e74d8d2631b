//! Shared store of what is learned of nodes: discovery adds to it at each poll, [`super::config_map`] keeps it over
//! restarts.
//!
//! If the first poll did not wait for the load, what it learned is merged with what is loaded.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Learned, is_settled};
use crate::aws::{AutoScalingGroup, Lifecycle, ManagedNodeGroup, Revision};
use crate::clock::elapsed;
use crate::cluster::Nodes;
use crate::k8s::GroupName;

/// How long what is learned of a group is kept while no refresh shows it: a tag that was removed or mistyped, there or in a flag, is put
/// right within days, and nothing would teach it again of a group at zero.
const KEPT_FOR: Duration = Duration::from_hours(7 * 24);

/// All that is learned, by group.
#[derive(Debug)]
pub struct LearnedStore {
    nodes: Arc<Nodes>,
    by_group: Mutex<BTreeMap<GroupName, Known>>,
    version: watch::Sender<u64>,
    loaded: watch::Sender<bool>,
}

#[derive(Debug)]
struct Known {
    learned: Arc<Learned>,
    /// Whether the group has nodes to learn it from again.
    has_nodes: bool,
    /// The last look, if it taught nothing: the same again would teach nothing either.
    fruitless: Option<Look>,
}

/// All that a look at a group's nodes depends on, apart from what was known before.
#[derive(Debug)]
struct Look {
    revisions: BTreeSet<Revision>,
    types: Vec<String>,
    given: Option<ManagedNodeGroup>,
    /// The changes that made the nodes what they are. The Nodes themselves are not held.
    nodes: Vec<u64>,
    /// Since when the node is Ready that settles next.
    unsettled: Option<Timestamp>,
    /// With the same description, and no change of a Node since, the group has the same nodes.
    group: Arc<AutoScalingGroup>,
    changes: u64,
}

impl Look {
    /// Whether all but the nodes is as it was, and none has settled since.
    fn is(
        &self,
        revisions: &BTreeSet<Revision>,
        types: &[&str],
        given: Option<&ManagedNodeGroup>,
        now: Timestamp,
    ) -> bool {
        !is_settled(self.unsettled, now)
            && self.revisions == *revisions
            && self.types == types
            && self.given.as_ref() == given
    }
}

impl LearnedStore {
    /// An empty store that learns from `nodes`.
    pub fn new(nodes: Arc<Nodes>) -> Self {
        let by_group = Mutex::default();
        Self { nodes, by_group, version: watch::Sender::new(0), loaded: watch::Sender::new(false) }
    }

    /// Looks at the nodes of a group that launches `types` from `revisions`. An instance without a known launch source counts as one
    /// of those. `given` is EKS's description of its node group.
    pub fn learn(
        &self,
        group: &Arc<AutoScalingGroup>,
        revisions: &BTreeSet<Revision>,
        types: &[&str],
        given: Option<&ManagedNodeGroup>,
        now: Timestamp,
    ) -> Option<Arc<Learned>> {
        let mut by_group = self.by_group.lock();
        let entry = by_group.get_mut(&group.name);
        let known = entry.as_ref().map(|entry| Arc::clone(&entry.learned));
        let look = entry.and_then(|entry| entry.fruitless.as_mut());
        let look = look.filter(|look| look.is(revisions, types, given, now));
        // Read before the nodes: what changes meanwhile is seen by the next look.
        let changes = self.nodes.changes();
        if look.as_ref().is_some_and(|look| look.changes == changes && Arc::ptr_eq(&look.group, group)) {
            return known;
        }
        let is_current =
            |from: &Option<Revision>| from.as_ref().is_none_or(|revision| revisions.contains(revision));
        let nodes: Vec<_> = group
            .instances
            .iter()
            .filter(|instance| {
                instance.lifecycle == Lifecycle::InService && is_current(&instance.launched_from)
            })
            // If several Nodes claim the instance, one may be forged.
            .filter_map(|instance| self.nodes.only_of_instance(&instance.id))
            .collect();
        if let Some(look) = look
            && look.nodes.iter().copied().eq(nodes.iter().map(|node| node.change))
        {
            (look.group, look.changes) = (Arc::clone(group), changes);
            return known;
        }
        let learned = Learned::from(known.as_deref(), revisions, types, given, &nodes, now);
        let has_seen = |learned: &Learned| learned.has_seen_nodes();
        if known.as_deref().is_some_and(has_seen) && !learned.as_ref().is_some_and(has_seen) {
            tracing::info!(
                group = group.name.as_str(),
                "launch template changed: forgetting what was learned of the group's nodes, except memory and EKS's answer"
            );
        }
        let Some(learned) = learned else {
            if by_group.remove(&group.name).is_some() {
                self.touch();
            }
            return None;
        };
        let has_nodes = !nodes.is_empty();
        if let Some(known) = known.filter(|known| **known == learned) {
            if let Some(entry) = by_group.get_mut(&group.name) {
                let (revisions, given) = (revisions.clone(), given.cloned());
                let types = types.iter().map(|&name| name.to_owned()).collect();
                let ready_since = nodes.iter().map(|node| node.ready_since);
                let unsettled = ready_since.filter(|since| !is_settled(*since, now)).flatten().min();
                let (nodes, group) = (nodes.iter().map(|node| node.change).collect(), Arc::clone(group));
                entry.fruitless = Some(Look { revisions, types, given, nodes, unsettled, group, changes });
                if std::mem::replace(&mut entry.has_nodes, has_nodes) != has_nodes {
                    // The ConfigMap lists groups without nodes first, so it changes.
                    self.touch();
                }
            }
            return Some(known);
        }
        let learned = Arc::new(learned);
        if learned.has_seen_nodes() {
            tracing::info!(
                group = group.name.as_str(),
                instance_type = learned.last,
                labels = learned.labels.len(),
                taints = ?learned.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(),
                "template corrected by what the group's nodes report"
            );
        }
        let known = Known { learned: Arc::clone(&learned), has_nodes, fruitless: None };
        by_group.insert(group.name.clone(), known);
        self.touch();
        Some(learned)
    }

    /// What is known of a group now.
    pub fn known(&self, group: &str) -> Option<Arc<Learned>> {
        self.by_group.lock().get(group).map(|known| Arc::clone(&known.learned))
    }

    /// Notes that a refresh has shown these groups, and forgets those that none has shown for a week. A refresh that shows no group at all
    /// tells of selectors that are wrong.
    pub fn shown(&self, groups: &BTreeSet<GroupName>, now: Timestamp) {
        if groups.is_empty() {
            return;
        }
        let mut is_changed = false;
        self.by_group.lock().retain(|group, known| {
            let before = known.learned.absent_since;
            let since = if groups.contains(group) { None } else { before.or(Some(now)) };
            let stays = since.is_none_or(|since| elapsed(since, now) < KEPT_FOR);
            is_changed |= since != before || !stays;
            if since != before {
                Arc::make_mut(&mut known.learned).absent_since = since;
            }
            stays
        });
        if is_changed {
            self.touch();
        }
    }

    /// Merges in what an earlier run had learned.
    pub fn load(&self, kept: BTreeMap<GroupName, Learned>) {
        let mut by_group = self.by_group.lock();
        for (group, earlier) in kept {
            match by_group.entry(group) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.learned = Arc::new(known.learned.merged(&earlier));
                    known.fruitless = None;
                    self.touch();
                }
                Entry::Vacant(place) => {
                    place.insert(Known { learned: Arc::new(earlier), has_nodes: false, fruitless: None });
                }
            }
        }
        self.loaded.send_replace(true);
    }

    /// Waits until [`load`](Self::load) has been called.
    pub async fn loaded(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.loaded.subscribe().wait_for(|loaded| *loaded).await;
    }

    /// All that is learned. Groups without nodes come first, as nothing would teach it again; those that are absent come last.
    pub fn all(&self) -> Vec<(GroupName, Arc<Learned>)> {
        let by_group = self.by_group.lock();
        let mut all: Vec<_> = by_group.iter().collect();
        all.sort_by_key(|(_, known)| (known.learned.absent_since.is_some(), known.has_nodes));
        all.into_iter().map(|(group, known)| (group.clone(), Arc::clone(&known.learned))).collect()
    }

    /// Changes whenever something is learned or forgotten.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn touch(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::aws::Instance;
    use crate::clock::later;
    use crate::cluster::NodeView;
    use crate::k8s::names;
    use crate::template::learned::config_map;

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).expect("in range")
    }

    fn revisions() -> BTreeSet<Revision> {
        [Revision("lt-1:1".into())].into()
    }

    /// A store for a cluster with one node, that of `i-1`.
    fn store() -> LearnedStore {
        let nodes = Nodes::default();
        nodes.apply(NodeView {
            name: "n".into(),
            instance: Some("i-1".into()),
            labels: [("team", "blue")].into_iter().collect(),
            ready_since: Some(Timestamp::UNIX_EPOCH),
            ..NodeView::default()
        });
        LearnedStore::new(Arc::new(nodes))
    }

    fn group(instances: &[&str]) -> Arc<AutoScalingGroup> {
        let instance =
            |id: &&str| Instance { id: (*id).into(), lifecycle: Lifecycle::InService, ..Instance::default() };
        Arc::new(AutoScalingGroup {
            name: "web".into(),
            instances: instances.iter().map(instance).collect(),
            ..AutoScalingGroup::default()
        })
    }

    /// Has the store look at a group of these instances.
    fn seen(store: &LearnedStore, instances: &[&str]) -> Option<Arc<Learned>> {
        store.learn(&group(instances), &revisions(), &[], None, now())
    }

    #[test]
    fn a_group_that_goes_to_zero_is_written_again_and_one_that_stays_is_not() {
        let store = store();
        let mut versions = store.versions();
        let mut changed = || std::mem::replace(&mut versions, store.versions()).has_changed();
        for (instances, is_written) in
            [(&["i-1"][..], true), (&["i-1"], false), (&[], true), (&[], false), (&["i-1"], true)]
        {
            seen(&store, instances).expect("is known");
            assert_eq!(changed().expect("the store is there"), is_written, "{instances:?}");
        }
    }

    #[test]
    fn a_group_that_no_refresh_shows_is_forgotten_after_a_week_in_which_others_are_shown() {
        let names = |names: &[&str]| names.iter().map(|name| GroupName::from(*name)).collect::<BTreeSet<_>>();
        let (web, other, none) = (names(&["web"]), names(&["other"]), names(&[]));
        let day = |n: i64| later(now(), SignedDuration::from_hours(24 * n));
        let kept = |looks: &[(i64, &BTreeSet<GroupName>)]| {
            let store = store();
            seen(&store, &["i-1"]).expect("is known");
            for (at, groups) in looks {
                store.shown(groups, day(*at));
                // As from another process.
                let text = config_map::written(&store);
                let next = LearnedStore::new(Arc::clone(&store.nodes));
                next.load(config_map::read(&text).expect("well-formed"));
                assert_eq!(next.known("web"), store.known("web"));
            }
            store.known("web").is_some()
        };
        assert!(kept(&[(0, &other), (6, &other)]));
        assert!(!kept(&[(0, &other), (6, &other), (7, &other)]));
        assert!(kept(&[(0, &other), (6, &web), (7, &other), (13, &other)]));
        assert!(kept(&[(0, &none), (7, &none), (99, &none)]));
    }

    #[test]
    fn groups_that_are_absent_are_the_last_to_be_written_and_those_with_nodes_the_last_but_those() {
        let store = store();
        let learned = |absent_since| Learned { absent_since, ..Learned::default() };
        store.load(
            [("a-absent", learned(Some(now()))), ("b-at-zero", learned(None))]
                .map(|(name, learned)| (name.into(), learned))
                .into(),
        );
        seen(&store, &["i-1"]).expect("is known");
        let order: Vec<_> = store.all().into_iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(order, ["b-at-zero", "web", "a-absent"]);
    }

    #[test]
    fn nodes_that_come_go_or_are_claimed_by_another_are_seen_after_a_fruitless_look() {
        let store = store();
        let node = |name: &str, instance: &str, team| NodeView {
            name: name.into(),
            instance: Some(instance.into()),
            labels: [("team", team)].into_iter().collect(),
            ready_since: Some(Timestamp::UNIX_EPOCH),
            ..NodeView::default()
        };
        let (small, large) = (group(&["i-1"]), group(&["i-1", "i-2"]));
        let look = |group| store.learn(group, &revisions(), &[], None, now()).expect("is known");
        let has_nodes = || store.by_group.lock()["web"].has_nodes;
        for _ in 0..3 {
            look(&small);
        }
        store.nodes.apply(node("made-up", "i-1", "red"));
        assert!(look(&small).varying.is_empty() && !has_nodes());
        store.nodes.apply(node("made-up", "i-2", "red"));
        for _ in 0..3 {
            assert!(look(&small).varying.is_empty() && has_nodes());
        }
        assert!(look(&large).varying.contains("team"));
    }

    /// A look is skipped only if nothing of what it depends on has changed.
    #[test]
    fn whatever_changes_after_a_fruitless_look_teaches() {
        let view = |team: &str, ready: Timestamp| NodeView {
            name: "n".into(),
            instance: Some("i-1".into()),
            labels: [("team", team), (names::INSTANCE_TYPE, "m5.large")].into_iter().collect(),
            ready_since: Some(ready),
            ..NodeView::default()
        };
        let (old, new) = (Timestamp::UNIX_EPOCH, now());
        let settled = later(new, SignedDuration::from_mins(2));
        let given =
            ManagedNodeGroup { labels: [("a".into(), "b".into())].into(), ..ManagedNodeGroup::default() };
        let (this, other) = (revisions(), [Revision("lt-1:2".into())].into());
        let (gone, large) = (["m5.xlarge"], ["m5.large"]);
        let cases = [
            ("a label", old, (view("red", old), &this, &large, None, new)),
            ("what it launches", old, (view("blue", old), &other, &large, None, new)),
            ("EKS's answer", old, (view("blue", old), &this, &large, Some(&given), new)),
            ("the time it is Ready", new, (view("blue", new), &this, &large, None, settled)),
        ];
        for (what, ready, changed) in cases {
            let nodes = Arc::new(Nodes::default());
            let store = LearnedStore::new(Arc::clone(&nodes));
            let group = group(&["i-1"]);
            let look = |(node, revisions, types, given, now): (_, &_, &[&str; 1], _, _)| {
                nodes.apply(node);
                store.learn(&group, revisions, types, given, now)
            };
            let before = [0, 1, 2].map(|_| look((view("blue", ready), &this, &large, None, new)));
            let is_same = |(a, b): (&Arc<Learned>, &Arc<Learned>)| Arc::ptr_eq(a, b);
            assert!(
                before.iter().all(|learned| learned.as_ref().zip(before[0].as_ref()).is_some_and(is_same))
            );
            assert_ne!(look(changed), before[0], "{what}");
        }
        let store = store();
        let earlier = Learned {
            settled: ["m5.xlarge".to_owned()].into(),
            revisions: this.clone(),
            ..Learned::default()
        };
        store.load([("web".into(), earlier.clone())].into());
        store.nodes.apply(view("blue", old));
        let look = |types| store.learn(&group(&["i-1"]), &this, types, None, new).expect("is known");
        assert_eq!([look(&gone), look(&gone)].map(|learned| (*learned).clone()), [earlier.clone(), earlier]);
        assert_eq!(look(&large).labels["team"], "blue", "its types");
    }

    #[test]
    fn what_is_loaded_late_is_merged_with_what_was_seen_meanwhile() {
        let store = store();
        seen(&store, &["i-1"]).expect("is known");
        let versions = store.versions();
        let earlier = Learned {
            revisions: revisions(),
            settled: [String::new()].into(),
            varying: ["team".to_owned()].into(),
            ..Learned::default()
        };
        store.load([("web".into(), earlier)].into());
        assert!(versions.has_changed().expect("the store is there"), "what is kept lacks what was seen");
        let learned = seen(&store, &["i-1"]).expect("is known");
        assert_eq!((learned.labels.len(), learned.varying.len()), (0, 1));
    }
}
