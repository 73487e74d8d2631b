//! The groups as everybody reads them: the last snapshot with our own later changes laid over it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, watch};

use super::group_locks::{GroupLock, GroupLocks, SharedGroupLock};
use super::{Group, Snapshot};
use crate::aws::{AutoScalingGroup, Lifecycle};
use crate::clock::elapsed;
use crate::k8s::{GroupName, InstanceId, NodeName};

/// How long after a change of ours a description may still show what was before: AWS promises no more than that descriptions
/// are right in the end, and one may be older than another before it.
///
/// Source: [Eventual consistency in the Amazon EC2
/// API](https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// The last look at AWS is older than allowed (or there was none yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the last successful look at AWS is too old to answer from")]
pub struct Stale;

/// Something we did that AWS has accepted, and that a snapshot taken before does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The desired capacity was set.
    Desired {
        /// Name of the group.
        group: GroupName,
        /// What it was.
        from: i32,
        /// What it is.
        to: i32,
    },
    /// An instance was told to terminate.
    Terminated {
        /// Name of the group.
        group: GroupName,
        /// EC2 instance id.
        instance: InstanceId,
        /// Whether the desired capacity went down with it.
        decrement: bool,
    },
}

impl Change {
    fn group(&self) -> &str {
        let (Self::Desired { group, .. } | Self::Terminated { group, .. }) = self;
        group
    }
}

/// Shared view of the groups. Cheap to read from any task.
#[derive(Debug)]
pub struct Groups {
    max_age: Duration,
    /// What is read; what it is made of is under a lock of its own, so that no reader waits while it is made.
    view: watch::Sender<Option<Arc<Snapshot>>>,
    seen: Mutex<Seen>,
    refresh: Notify,
    locks: GroupLocks,
    /// Groups that cluster-autoscaler grew, and instances without a Node that it gave up, in this run.
    asked_for: Mutex<BTreeSet<String>>,
    /// Instances whose scale-in is on record on a Node, by that, with their groups.
    claims: Mutex<BTreeMap<NodeName, (GroupName, InstanceId)>>,
}

/// What the view is made of.
#[derive(Debug, Default)]
struct Seen {
    /// What discovery saw last, before our changes.
    base: Option<Arc<Snapshot>>,
    /// Our changes, with the moment by which AWS had accepted them.
    changes: Vec<(Timestamp, Change)>,
}

impl Groups {
    /// No groups yet; a snapshot serves reads for `max_age`.
    pub fn new(max_age: Duration) -> Self {
        Self {
            max_age,
            view: watch::Sender::new(None),
            seen: Mutex::default(),
            refresh: Notify::new(),
            locks: GroupLocks::default(),
            asked_for: Mutex::default(),
            claims: Mutex::default(),
        }
    }

    /// The present view, whatever its age and complete or not: for what must go on through an outage.
    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.view.borrow().clone()
    }

    /// The present view, unless it is too old to decide from or not complete.
    pub fn fresh(&self, now: Timestamp) -> Result<Arc<Snapshot>, Stale> {
        let snapshot = self.latest().filter(|snapshot| snapshot.is_complete).ok_or(Stale)?;
        if elapsed(snapshot.taken_at, now) <= self.max_age { Ok(snapshot) } else { Err(Stale) }
    }

    /// Takes a new look at AWS. Changes accepted well before the look began are in it and are forgotten.
    pub fn publish(&self, snapshot: Snapshot) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.take(&mut seen, snapshot);
    }

    /// Takes what a look has seen of sizes and lifecycle states while the rest is still to be looked up: what was known of
    /// that stays. An instance that a hook holds must not wait for templates.
    pub fn publish_states(&self, mut states: Snapshot) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        states.is_complete = seen.base.as_ref().is_some_and(|base| base.is_complete);
        for (name, group) in &mut states.groups {
            if let Some(before) = seen.base.as_ref().and_then(|base| base.groups.get(name)) {
                let group = Arc::make_mut(group);
                (group.template, group.options) = (before.template.clone(), before.options);
                group.stand_in.clone_from(&before.stand_in);
            }
        }
        self.take(&mut seen, states);
    }

    /// Lays a change of our own over the snapshot and asks for a new look.
    pub fn changed(&self, at: Timestamp, change: Change) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.changes.push((at, change));
        self.swap(&seen);
        drop(seen);
        self.refresh_soon();
    }

    /// Takes note of the scale-in that is on record on a Node, by group and instance, or that there is none.
    pub fn claim(&self, node: &NodeName, record: Option<(GroupName, InstanceId)>) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((group, instance)) = record.filter(|(group, _)| is_group_name(group)) else {
            claims.remove(node);
            return;
        };
        let is_seen = self.latest().is_some_and(|view| view.groups.contains_key(&group));
        let is_new = claims.insert(node.to_owned(), (group, instance)).is_none();
        drop(claims);
        if is_new && !is_seen {
            self.refresh_soon();
        }
    }

    /// The instances whose scale-in is on record on Nodes, by group.
    pub fn claims(&self) -> BTreeMap<GroupName, BTreeSet<InstanceId>> {
        let mut by_group: BTreeMap<GroupName, BTreeSet<InstanceId>> = BTreeMap::new();
        for (group, instance) in self.claims.lock().unwrap_or_else(PoisonError::into_inner).values() {
            by_group.entry(group.clone()).or_default().insert(instance.clone());
        }
        by_group
    }

    /// A group as it was just described, with changes of ours that the description may not show yet.
    pub fn brought_up_to_date(&self, asg: AutoScalingGroup, now: Timestamp) -> AutoScalingGroup {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let recent: Vec<_> =
            seen.changes.iter().filter(|(at, _)| elapsed(*at, now) < SHOWN_WITHIN).cloned().collect();
        let mut group = Group { asg, ..Group::default() };
        lay_over(&mut group, &recent, Timestamp::MIN);
        group.asg
    }

    /// Waits for the turn to change the size of a group, or who of it may be ended. The group has to exist, so that
    /// there are no more turns than there have been groups.
    pub async fn lock(&self, group: &GroupName) -> GroupLock {
        self.locks.of(group).await
    }

    /// Waits for the turn to take instances out of a group, which others may have at the same time.
    pub async fn shared_lock(&self, group: &GroupName) -> SharedGroupLock {
        self.locks.of_termination(group).await
    }

    /// cluster-autoscaler has grown this group, or given up this instance, by its name or id: that they are ours is its word.
    pub fn note_asked_for(&self, name: &str) {
        self.asked_for.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    /// Whether it has, in this run.
    pub fn is_asked_for(&self, name: &str) -> bool {
        self.asked_for.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Asks discovery to look at AWS again at once.
    pub fn refresh_soon(&self) {
        self.refresh.notify_one();
    }

    /// Completes when somebody has asked for a new look.
    pub async fn refresh_wanted(&self) {
        self.refresh.notified().await;
    }

    /// The present view and every later one; one that reads slowly misses those between.
    pub fn versions(&self) -> watch::Receiver<Option<Arc<Snapshot>>> {
        self.view.subscribe()
    }

    fn take(&self, seen: &mut Seen, snapshot: Snapshot) {
        seen.changes.retain(|(at, _)| elapsed(*at, snapshot.taken_at) < SHOWN_WITHIN);
        let snapshot = match &seen.base {
            Some(before) => snapshot.after(before),
            None => snapshot,
        };
        seen.base = Some(Arc::new(snapshot));
        self.swap(seen);
    }

    fn swap(&self, seen: &Seen) {
        let Some(base) = &seen.base else { return };
        let view =
            if seen.changes.is_empty() { Arc::clone(base) } else { Arc::new(overlay(base, &seen.changes)) };
        self.view.send_replace(Some(view));
    }
}

/// Whether AWS could have a group of this name: it refuses a whole question for one that it could not.
///
/// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html).
fn is_group_name(name: &str) -> bool {
    (1..=255).contains(&name.chars().count()) && !name.chars().any(char::is_control)
}

/// The snapshot as it would be, had it seen these changes. Each applies only where the snapshot does not show it yet.
fn overlay(base: &Snapshot, changes: &[(Timestamp, Change)]) -> Snapshot {
    let mut view = base.clone();
    let names: BTreeSet<&str> = changes.iter().map(|(_, change)| change.group()).collect();
    for name in names {
        if let Some(group) = view.groups.get_mut(name) {
            lay_over(Arc::make_mut(group), changes, base.taken_at);
        }
    }
    view
}

/// Lays those of the changes that are the group's over it. Sizes follow each other, so that the last one counts whichever of
/// them the group has; but where it shows a termination, it shows all sizes that were set before that.
fn lay_over(group: &mut Group, changes: &[(Timestamp, Change)], taken_at: Timestamp) {
    let of_group = changes.iter().filter(|(_, change)| *change.group() == *group.asg.name);
    let changes: Vec<&(Timestamp, Change)> = of_group.collect();
    let is_shown = |(_, change): &&(Timestamp, Change)| match change {
        Change::Desired { .. } => false,
        Change::Terminated { instance, .. } => {
            !group.asg.instances.iter().any(|i| i.id == *instance && is_to_end(i.lifecycle))
        }
    };
    let shown = changes.iter().rposition(is_shown).unwrap_or_default();
    for (n, (at, change)) in changes.into_iter().enumerate() {
        if n >= shown || matches!(change, Change::Terminated { .. }) {
            apply(group, change, *at >= taken_at);
        }
    }
}

/// `is_news` says that the group was looked at before the change.
fn apply(group: &mut Group, change: &Change, is_news: bool) {
    match change {
        Change::Desired { from, to, .. } => {
            if to > from {
                // What failed before says nothing of what has been asked for now.
                group.failure = group.failure.take().filter(|_| !is_news);
            } else if group.asg.desired == *from {
                let given_up = usize::try_from(from.saturating_sub(*to)).unwrap_or(0);
                group.failure = group.failure.take().and_then(|failure| failure.without(given_up));
            }
            if group.asg.desired == *from {
                group.asg.desired = *to;
            }
        }
        Change::Terminated { instance: id, decrement, .. } => {
            // AWS lowers the capacity and takes the instance out of service in one step: seeing one is seeing both.
            let mut instances = group.asg.instances.iter_mut();
            if let Some(instance) = instances.find(|i| i.id == *id && is_to_end(i.lifecycle)) {
                let counted = instance.lifecycle.is_live();
                instance.lifecycle = Lifecycle::Terminating;
                if *decrement && counted {
                    group.asg.desired -= group.asg.weight(id);
                }
            }
        }
    }
}

/// Whether an instance in this state shows nothing yet of having been told to terminate. One that is listed no more has
/// ended, one in the warm pool has been given back to it.
fn is_to_end(lifecycle: Lifecycle) -> bool {
    !lifecycle.is_terminating() && !lifecycle.is_warm()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{Instance, Weights};
    use crate::groups::LaunchFailure;
    use crate::template::TemplateError;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn look(second: i64, desired: i32, states: &[Lifecycle]) -> Snapshot {
        let instances = states
            .iter()
            .enumerate()
            .map(|(n, &lifecycle)| Instance {
                id: format!("i-{n}").into(),
                zone: "z".into(),
                lifecycle,
                protected: false,
                launched_from: None,
            })
            .collect();
        let group = Group {
            asg: AutoScalingGroup { name: "g".into(), desired, instances, ..AutoScalingGroup::default() },
            ..Group::default()
        };
        Snapshot::new(at(second), [Arc::new(group)])
    }

    fn desired(groups: &Groups) -> i32 {
        groups.latest().expect("published").groups["g"].asg.desired
    }

    fn terminated(decrement: bool) -> Change {
        Change::Terminated { group: "g".into(), instance: "i-0".into(), decrement }
    }

    #[test]
    fn a_change_of_ours_shows_at_once_and_only_once() {
        use Lifecycle::{InService, Terminating};
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(look(0, 2, &[InService, InService]));
        groups.changed(at(5), terminated(true));
        assert_eq!(desired(&groups), 1);
        // A look that began before the change and saw nothing of it.
        groups.publish(look(4, 2, &[InService, InService]));
        assert_eq!(desired(&groups), 1);
        // One that began before and saw it all the same.
        groups.publish(look(4, 1, &[Terminating, InService]));
        assert_eq!(desired(&groups), 1);
        // One that began after, and is answered from before.
        groups.publish(look(6, 2, &[InService, InService]));
        assert_eq!(desired(&groups), 1);
        // One that began long after: it is the truth, whatever it says.
        groups.publish(look(36, 3, &[InService, InService]));
        assert_eq!(desired(&groups), 3);
    }

    #[test]
    fn a_size_that_was_set_before_a_termination_that_shows_is_not_set_again() {
        use Lifecycle::{InService, Terminating, Warmed};
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(look(0, 2, &[InService]));
        groups.changed(at(1), Change::Desired { group: "g".into(), from: 2, to: 3 });
        groups.changed(at(2), terminated(true));
        for (shown, states) in
            [(2, &[InService][..]), (3, &[InService]), (2, &[Terminating]), (2, &[Warmed]), (2, &[])]
        {
            groups.publish(look(3, shown, states));
            assert_eq!(desired(&groups), 2, "{shown} {states:?}");
        }
    }

    #[test]
    fn what_no_group_can_be_called_is_not_asked_for() {
        let groups = Groups::new(Duration::from_mins(10));
        let long = "x".repeat(256);
        for (node, group) in [("a", ""), ("b", long.as_str()), ("c", "web\n"), ("d", "web")] {
            groups.claim(&node.into(), Some((group.into(), "i-1".into())));
        }
        assert_eq!(groups.claims().into_keys().collect::<Vec<_>>(), ["web"]);
    }

    #[test]
    fn of_sizes_that_follow_each_other_the_last_one_counts_whichever_a_description_shows() {
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(look(0, 5, &[]));
        for (at_second, from, to) in [(1, 5, 4), (2, 4, 3), (3, 3, 4), (4, 4, 6)] {
            groups.changed(at(at_second), Change::Desired { group: "g".into(), from, to });
        }
        for shown in [5, 4, 3, 6] {
            let described =
                AutoScalingGroup { name: "g".into(), desired: shown, ..AutoScalingGroup::default() };
            assert_eq!(groups.brought_up_to_date(described, at(5)).desired, 6, "{shown}");
        }
        let by_a_person = AutoScalingGroup { name: "g".into(), desired: 9, ..AutoScalingGroup::default() };
        assert_eq!(groups.brought_up_to_date(by_a_person, at(5)).desired, 9);
        let long_after = AutoScalingGroup { name: "g".into(), desired: 5, ..AutoScalingGroup::default() };
        assert_eq!(groups.brought_up_to_date(long_after, at(40)).desired, 5, "it is the truth by now");
    }

    #[test]
    fn a_failure_explains_nothing_that_is_asked_for_after_it_and_nothing_twice() {
        let groups = Groups::new(Duration::from_mins(10));
        let mut seen = look(0, 5, &[Lifecycle::InService]);
        let failure =
            LaunchFailure { code: "x".into(), message: String::new(), out_of_resources: true, launches: 3 };
        Arc::make_mut(seen.groups.get_mut("g").expect("there")).failure = Some(failure);
        groups.publish(seen.clone());
        let explained =
            || groups.latest().expect("published").groups["g"].failure.as_ref().map(|f| f.launches);
        groups.changed(at(1), Change::Desired { group: "g".into(), from: 5, to: 4 });
        assert_eq!(explained(), Some(2));
        groups.changed(at(2), Change::Desired { group: "g".into(), from: 4, to: 2 });
        assert_eq!(explained(), None);
        groups.publish(seen);
        groups.changed(at(3), Change::Desired { group: "g".into(), from: 5, to: 6 });
        assert_eq!(explained(), None);
    }

    #[test]
    fn an_instance_that_has_a_weight_takes_its_units_along() {
        let groups = Groups::new(Duration::from_mins(10));
        let mut seen = look(0, 6, &[Lifecycle::InService, Lifecycle::InService]);
        let weights = Weights { of_instances: [("i-0".into(), 4)].into() };
        Arc::make_mut(seen.groups.get_mut("g").expect("there")).asg.weights = Some(weights);
        groups.publish(seen);
        groups.changed(at(5), terminated(true));
        assert_eq!(desired(&groups), 2);
    }

    #[test]
    fn a_set_size_and_a_termination_do_not_undo_each_other() {
        use Lifecycle::{InService, Terminating};
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(look(0, 5, &[InService]));
        groups.changed(at(1), Change::Desired { group: "g".into(), from: 5, to: 7 });
        groups.changed(at(2), terminated(true));
        assert_eq!(desired(&groups), 6);
        for (seen, states) in [(5, [InService]), (7, [InService]), (6, [Terminating])] {
            groups.publish(look(0, seen, &states));
            assert_eq!(desired(&groups), 6, "a look that saw {seen}");
        }
    }

    #[test]
    fn states_are_seen_at_once_and_what_was_known_of_templates_stays() {
        use Lifecycle::{InService, TerminatingWait};
        let groups = Groups::new(Duration::from_mins(10));
        let state =
            |groups: &Groups| groups.latest().expect("published").groups["g"].asg.instances[0].lifecycle;
        groups.publish_states(look(0, 1, &[TerminatingWait]));
        assert_eq!(state(&groups), TerminatingWait);
        assert_eq!(groups.fresh(at(0)).err(), Some(Stale), "there is no template to answer with");
        let mut whole = look(0, 1, &[InService]);
        let template = Some(Err(TemplateError::new("none")));
        let known = Arc::make_mut(whole.groups.get_mut("g").expect("there"));
        known.template.clone_from(&template);
        known.options.zero_or_max_node_scaling = Some(true);
        groups.publish(whole);
        groups.publish_states(look(10, 1, &[TerminatingWait]));
        assert_eq!(state(&groups), TerminatingWait);
        let view = groups.fresh(at(10)).expect("is complete");
        assert_eq!(view.groups["g"].template.is_some(), template.is_some());
        assert_eq!(view.groups["g"].options.zero_or_max_node_scaling, Some(true));
    }

    #[test]
    fn an_old_snapshot_is_refused_but_not_forgotten() {
        let groups = Groups::new(Duration::from_mins(10));
        assert_eq!(groups.fresh(at(0)).err(), Some(Stale));
        groups.publish(look(0, 1, &[]));
        assert!(groups.fresh(at(600)).is_ok());
        assert_eq!(groups.fresh(at(601)).err(), Some(Stale));
        assert!(groups.latest().is_some());
    }
}
