//! Node groups: what AWS last said about them, and what we have changed since.
//!
//! Discovery refreshes in the background and publishes an immutable [`Snapshot`], sizes and lifecycle states first; RPCs and
//! the scale-in controller read it through [`Groups`]. A change of ours is laid over the snapshot from the moment AWS accepts it
//! until a later refresh shows it, so sizes are always right. Arithmetic on sizes is in [`sizes`], pure.

mod clusters;
pub mod discovery;
pub mod failures;
mod group_locks;
pub mod hooks;
mod launch;
pub mod managed_hooks;
mod managed_node_groups;
mod metrics;
mod poll_interval;
pub mod protection;
pub mod selector;
pub mod sizes;
mod view;
mod warm_pools;
pub mod weights;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

pub use group_locks::{GroupLock, LowerLock, SharedGroupLock};
pub use metrics::register;
pub use view::{Change, ENDS_WITHIN, FailedLaunches, Groups, Stale, size_in_doubt};

use crate::aws::{AutoScalingGroup, Instance};
use crate::clock::elapsed;
use crate::cluster::NodeView;
use crate::k8s::{GroupName, InstanceId};
use crate::template::tags::OptionOverrides;
use crate::template::{Template, TemplateError};

/// All groups, as one refresh showed them. Immutable; a newer one replaces it whole.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When the refresh began ...
    pub taken_at: Timestamp,
    /// ... by the wall clock, which goes on while the machine is suspended.
    pub asked_at: Timestamp,
    /// Whether templates were looked up too: not while the first refresh is under way.
    pub is_complete: bool,
    /// By name.
    pub groups: BTreeMap<GroupName, Arc<Group>>,
    /// Where an instance is, by instance id. The same one as before where AWS has said the same of every group.
    pub by_instance: Arc<HashMap<InstanceId, Place>>,
    /// Groups that disappeared a moment ago, by name: cluster-autoscaler may still ask for them.
    pub gone: BTreeMap<GroupName, Gone>,
}

/// Where a snapshot has an instance.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its group.
    pub group: GroupName,
    /// Which of the group's instances it is.
    index: usize,
}

/// A group that has disappeared.
#[derive(Clone, Debug)]
pub struct Gone {
    /// What it was last.
    pub group: Arc<Group>,
    /// When the first refresh began that did not see it.
    pub since: Timestamp,
}

/// How long a group is remembered: longer than a loop of cluster-autoscaler, which reads the groups' names at its beginning and
/// fails for all groups if one is unknown.
const REMEMBERED: Duration = Duration::from_secs(30);

impl Snapshot {
    /// A snapshot of these groups.
    pub fn new(taken_at: Timestamp, groups: impl IntoIterator<Item = Arc<Group>>) -> Self {
        Self::placed(taken_at, groups, None)
    }

    /// The same, with the places of their instances where they are known.
    fn placed(
        taken_at: Timestamp,
        groups: impl IntoIterator<Item = Arc<Group>>,
        places: Option<Arc<HashMap<InstanceId, Place>>>,
    ) -> Self {
        let groups: BTreeMap<_, _> =
            groups.into_iter().map(|group| (group.asg.name.clone(), group)).collect();
        let places_of = |group: &Arc<Group>| {
            let place = |index| Place { group: group.asg.name.clone(), index };
            let instances = group.asg.instances.iter().enumerate();
            instances.map(|(index, instance)| (instance.id.clone(), place(index))).collect::<Vec<_>>()
        };
        let by_instance = places.unwrap_or_else(|| Arc::new(groups.values().flat_map(places_of).collect()));
        Self { taken_at, asked_at: taken_at, is_complete: true, groups, by_instance, gone: BTreeMap::new() }
    }

    /// Whether both certainly have the same instances in the same places: they share one map of them.
    #[must_use]
    pub fn has_places_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.by_instance, &other.by_instance)
    }

    /// Whether both certainly describe the same groups alike: they share the descriptions, with what is laid over them.
    #[must_use]
    pub fn has_descriptions_of(&self, other: &Self) -> bool {
        let mut pairs = self.groups.values().zip(other.groups.values());
        self.groups.len() == other.groups.len() && pairs.all(|(a, b)| Arc::ptr_eq(&a.asg, &b.asg))
    }

    /// These groups, whose descriptions are those of this snapshot.
    fn completed(&self, groups: impl IntoIterator<Item = Group>) -> Self {
        let groups = groups.into_iter().map(|group| (group.asg.name.clone(), Arc::new(group))).collect();
        let by_instance = Arc::clone(&self.by_instance);
        let &Self { taken_at, asked_at, .. } = self;
        Self { taken_at, asked_at, is_complete: true, groups, by_instance, gone: BTreeMap::new() }
    }

    /// The same with the groups that have disappeared since `before`. Each is kept for at least one more refresh.
    #[must_use]
    fn after(mut self, before: &Self) -> Self {
        let missing = |name: &GroupName| !self.groups.contains_key(name);
        let is_young = |gone: &Gone| elapsed(gone.since, self.taken_at) < REMEMBERED;
        let remembered = before.gone.iter().filter(|(name, gone)| missing(name) && is_young(gone));
        let remembered = remembered.map(|(name, gone)| (name.clone(), gone.clone()));
        let vanished = before
            .groups
            .iter()
            .filter(|(name, _)| missing(name))
            .map(|(name, group)| (name.clone(), Gone { group: Arc::clone(group), since: self.taken_at }));
        self.gone = remembered.chain(vanished).collect();
        self
    }

    /// Whether it has the group, or one before it had it a moment ago.
    #[must_use]
    pub fn knows(&self, group: &GroupName) -> bool {
        self.last_seen(group).is_some()
    }

    /// Whether it knows the group, which is not one made anew since `before`.
    #[must_use]
    pub fn still_knows(&self, group: &GroupName, before: Option<&Self>) -> bool {
        let then = before.and_then(|before| before.last_seen(group));
        self.last_seen(group).is_some_and(|now| then.is_none_or(|then| !now.asg.is_another(&then.asg)))
    }

    /// The group, or the one of this name that it had a moment ago.
    pub fn last_seen(&self, group: &str) -> Option<&Arc<Group>> {
        self.groups.get(group).or_else(|| Some(&self.gone.get(group)?.group))
    }

    /// The group that has this instance, and the instance.
    pub fn instance(&self, id: &str) -> Option<(&Arc<Group>, &Instance)> {
        let place = self.by_instance.get(id)?;
        let group = self.groups.get(&place.group)?;
        let instance = group.asg.instances.get(place.index).filter(|instance| instance.id == id)?;
        Some((group, instance))
    }

    /// The same of a Node's instance.
    pub fn place_of(&self, node: &NodeView) -> Option<(&Arc<Group>, &Instance)> {
        self.instance(node.instance.as_deref()?)
    }
}

/// An Auto Scaling group, as a node group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// AWS's description, the same as before if AWS said the same.
    pub asg: Arc<AutoScalingGroup>,
    /// Template of a new node, or why there is none. `None` while something that it depends on is still to be asked for.
    pub template: Option<Result<Arc<Template>, TemplateError>>,
    /// Used while there is none: the last template, or one made without what is still to be asked for.
    pub stand_in: Option<Arc<Template>>,
    /// Autoscaling options from its tags.
    pub options: OptionOverrides,
    /// Why instances are missing, if failed launches explain it.
    pub failure: Option<LaunchFailure>,
}

/// Why a group cannot launch what it should. `/status.json` has it like this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchFailure {
    /// AWS's code, or ours if its text has none.
    pub code: String,
    /// AWS's text.
    pub message: String,
    /// Whether capacity or quota is lacking (class 1), so that another group may succeed.
    pub out_of_resources: bool,
    /// How many missing instances it explains: a launch may be for several.
    #[serde(rename = "failed")]
    pub launches: usize,
}

impl LaunchFailure {
    /// The same after so many of those instances were given up. `None` if none is left.
    #[must_use]
    fn without(self, given_up: usize) -> Option<Self> {
        let launches = self.launches.saturating_sub(given_up);
        (launches > 0).then_some(Self { launches, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(second: u64, names: &[&str]) -> Snapshot {
        let group = |name: &&str| {
            Arc::new(Group {
                asg: Arc::new(AutoScalingGroup { name: (*name).into(), ..AutoScalingGroup::default() }),
                ..Group::default()
            })
        };
        Snapshot::new(Timestamp::UNIX_EPOCH + Duration::from_secs(second), names.iter().map(group))
    }

    #[test]
    fn an_instance_is_found_where_its_group_has_it() {
        let group = |name: &str, ids: &[&str]| {
            let instances =
                ids.iter().map(|id| Instance { id: (*id).into(), ..Instance::default() }).collect();
            let asg = AutoScalingGroup { name: name.into(), instances, ..AutoScalingGroup::default() };
            Group { asg: Arc::new(asg), ..Group::default() }
        };
        let groups = [group("a", &["i-9", "i-3", "i-5"]), group("b", &["i-4"])];
        let states = Snapshot::new(Timestamp::UNIX_EPOCH, groups.iter().cloned().map(Arc::new));
        for snapshot in [&states, &states.completed(groups)] {
            for (id, of) in [("i-9", "a"), ("i-3", "a"), ("i-5", "a"), ("i-4", "b")] {
                let (group, instance) = snapshot.instance(id).expect("it has one");
                assert_eq!((group.asg.name.as_str(), instance.id.as_str()), (of, id));
            }
            assert!(snapshot.instance("i-1").is_none());
        }
    }

    #[test]
    fn a_group_that_vanishes_is_remembered_for_one_refresh_and_for_half_a_minute() {
        let gone = |snapshot: &Snapshot| snapshot.gone.keys().cloned().collect::<Vec<_>>();
        let first = snapshot(0, &["a", "b"]);
        let second = snapshot(60, &["a"]).after(&first);
        assert_eq!(gone(&second), ["b"]);
        assert_eq!(gone(&snapshot(120, &["a"]).after(&second)), [""; 0]);
        let third = snapshot(61, &["a"]).after(&second);
        assert_eq!(gone(&third), ["b"]);
        assert_eq!(gone(&snapshot(89, &[]).after(&third)), ["a", "b"]);
        assert_eq!(gone(&snapshot(90, &["a"]).after(&third)), [""; 0]);
        assert_eq!(gone(&snapshot(62, &["a", "b"]).after(&third)), [""; 0], "it is back");
    }

    #[test]
    fn a_group_made_anew_is_not_the_one_that_was_known() {
        let with_arn = |second, arn: &str| {
            let mut snapshot = snapshot(second, &["a"]);
            let group = snapshot.groups.get_mut("a").map(Arc::make_mut).expect("it");
            Arc::make_mut(&mut group.asg).arn = arn.to_owned();
            snapshot
        };
        let (name, first) = (GroupName::from("a"), with_arn(0, "arn:1"));
        let gone = snapshot(60, &[]).after(&first);
        let forgotten = snapshot(120, &[]).after(&gone);
        assert!(first.still_knows(&name, None) && gone.still_knows(&name, Some(&first)));
        assert!(!forgotten.still_knows(&name, Some(&gone)));
        for before in [&first, &gone] {
            assert!(with_arn(61, "arn:1").still_knows(&name, Some(before)));
            assert!(!with_arn(61, "arn:2").still_knows(&name, Some(before)));
        }
    }
}
