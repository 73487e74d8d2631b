//! Our own changes, laid over descriptions that do not show them yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::aws::{AutoScalingGroup, Instance, Lifecycle};
use crate::clock::elapsed;
use crate::groups::{Group, Snapshot};
use crate::k8s::{GroupName, InstanceId};

/// How long after a change descriptions may show the state before it: AWS's descriptions are eventually consistent, and one may
/// be older than the last.
///
/// Source: [Eventual consistency in the Amazon EC2
/// API](https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
pub(super) const SHOWN_WITHIN: Duration = Duration::from_mins(1);

/// How long at most an acknowledged termination counts that no description shows, and is not sent again.
pub const ENDS_WITHIN: Duration = Duration::from_mins(6);

/// How long a raised size counts, at most, if no description shows it: the next raise must not start from the smaller size before it.
const RAISED_WITHIN: Duration = Duration::from_mins(2);

/// What a snapshot has to be told, as the next description may not show it yet.
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
    /// An instance was told to terminate, or seen on its way out.
    Terminated {
        /// Name of the group.
        group: GroupName,
        /// EC2 instance id.
        instance: InstanceId,
        /// Its state since.
        state: Lifecycle,
        /// Whether the desired capacity went down with it.
        decrement: bool,
    },
}

impl Change {
    /// What others did to the group since `view`, by the description `fresh`. The snapshot needs it because a change of ours is
    /// applied only to the size it started from, and because a termination that another task of ours is about to report must not lower the
    /// size twice. A smaller size [in doubt](size_in_doubt) is not learned: for a minute it would override every description of the
    /// larger one.
    pub(super) fn learned(view: &Snapshot, fresh: &AutoScalingGroup, now: Timestamp) -> Vec<Self> {
        let Some(seen) = view.groups.get(&fresh.name).map(|seen| &seen.asg) else { return Vec::new() };
        let group = || seen.name.clone();
        let stay: BTreeMap<&InstanceId, Lifecycle> =
            seen.instances.iter().filter(|i| may_end(i.lifecycle)).map(|i| (&i.id, i.lifecycle)).collect();
        let goes = |i: &&Instance| stay.get(&i.id).is_some_and(|before| *before != i.lifecycle);
        let go = fresh.instances.iter().filter(|i| i.lifecycle.is_leaving()).filter(goes);
        let mut changes: Vec<_> = go
            .map(|i| Self::Terminated {
                group: group(),
                instance: i.id.clone(),
                state: i.lifecycle,
                decrement: false,
            })
            .collect();
        if fresh.desired != seen.desired && size_in_doubt(view, fresh, now).is_none() {
            changes.push(Self::Desired { group: group(), from: seen.desired, to: fresh.desired });
        }
        changes
    }

    fn group(&self) -> &str {
        let (Self::Desired { group, .. } | Self::Terminated { group, .. }) = self;
        group
    }
}

/// Changes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<Accepted>);

/// A change that AWS has accepted.
#[derive(Debug)]
struct Accepted {
    /// By when it had.
    at: Timestamp,
    change: Change,
    /// The group before it.
    before: Option<Arc<Group>>,
    /// Whether it is a size that we have set, and that nothing has shown yet.
    is_unseen: bool,
}

impl Accepted {
    /// Notes whether a description of its group shows this size or a later one. Instances that lived before and no longer do may have lowered
    /// a raised one since.
    fn look_for_it_in(&mut self, asg: &AutoScalingGroup) {
        let Change::Desired { from, to, .. } = &self.change else { return };
        let live: BTreeSet<&InstanceId> = asg.live().map(|instance| &instance.id).collect();
        let before = self.before.iter().flat_map(|before| before.asg.live());
        let ended = before.filter(|instance| !live.contains(&instance.id)).count();
        self.is_unseen &= !shows(asg.desired, ended, *from, *to);
    }

    /// Whether it was accepted for a group that had this one's name before it.
    fn is_of_a_predecessor(&self, group: &Group) -> bool {
        self.before.as_ref().is_some_and(|before| group.asg.is_another(&before.asg))
    }

    /// How long at most it counts that no description shows it.
    fn lasts(&self) -> Duration {
        match &self.change {
            Change::Terminated { .. } => ENDS_WITHIN,
            Change::Desired { from, to, .. } if self.is_unseen && from < to => RAISED_WITHIN,
            Change::Desired { .. } => SHOWN_WITHIN,
        }
    }
}

/// Whether a size comes after a larger one, of which `ended` instances went since: each takes it down by one at most.
fn explains(described: i32, ended: usize, larger: i32) -> bool {
    described.saturating_add(i32::try_from(ended).unwrap_or(i32::MAX)) >= larger
}

/// Whether a described size is the one that was set, or a later one, after `ended` instances have gone since.
fn shows(described: i32, ended: usize, from: i32, to: i32) -> bool {
    if from < to { explains(described, ended, to) } else { described <= to }
}

impl Changes {
    /// A change of ours. `view`: the groups before it.
    pub(super) fn push(&mut self, at: Timestamp, change: Change, view: Option<&Snapshot>) {
        if let Change::Desired { group, from, to } = &change
            && to < from
        {
            self.lower_unseen_raises(group, *to);
        }
        self.push_as(at, change, view, true);
    }

    /// What a description asked for at `asked` shows that others have done. Of a size that we have set since, it knows nothing.
    pub(super) fn push_learned(
        &mut self,
        asked: Timestamp,
        at: Timestamp,
        change: Change,
        view: Option<&Snapshot>,
    ) {
        let is_later = |accepted: &Accepted| {
            accepted.at >= asked
                && matches!(&accepted.change, Change::Desired { group, .. } if **group == *change.group())
        };
        if !(matches!(change, Change::Desired { .. }) && self.0.iter().any(is_later)) {
            self.push_as(at, change, view, false);
        }
    }

    fn push_as(&mut self, at: Timestamp, change: Change, view: Option<&Snapshot>, is_unseen: bool) {
        let before = view.and_then(|view| view.groups.get(change.group())).cloned();
        self.0.push(Accepted { at, change, before, is_unseen });
    }

    /// Lowers raises to `size` that no description has shown yet.
    fn lower_unseen_raises(&mut self, group: &GroupName, size: i32) {
        for earlier in self.0.iter_mut().filter(|earlier| earlier.is_unseen) {
            if let Change::Desired { group: of, from, to } = &mut earlier.change
                && of == group
                && from < to
            {
                *to = size.min(*to);
            }
        }
    }

    /// Forgets what a snapshot shows for certain. What AWS has acknowledged may be missing in it for longer: until then an instance that was
    /// terminated would be taken for one in service, and a size for smaller than it is.
    pub(super) fn forget_shown(&mut self, base: &Snapshot) {
        let shows_end = |change: &Change| {
            let Change::Terminated { instance, .. } = change else { return false };
            base.instance(instance).is_none_or(|(_, found)| found.lifecycle != Lifecycle::InService)
        };
        for accepted in &mut self.0 {
            if let Some(group) = base.groups.get(accepted.change.group()) {
                accepted.look_for_it_in(&group.asg);
            }
        }
        self.0.retain(|accepted| {
            let within = if shows_end(&accepted.change) { SHOWN_WITHIN } else { accepted.lasts() };
            elapsed(accepted.at, base.taken_at) < within
        });
    }

    /// The snapshot as if it had seen the changes.
    pub(super) fn laid_over(&self, base: &Arc<Snapshot>) -> Arc<Snapshot> {
        if self.0.is_empty() {
            return Arc::clone(base);
        }
        let mut view = Snapshot::clone(base);
        let names: BTreeSet<&str> = self.0.iter().map(|accepted| accepted.change.group()).collect();
        for name in names {
            if let Some(group) = view.groups.get_mut(name) {
                lay_over(Arc::make_mut(group), &self.0.iter().collect::<Vec<_>>(), base.taken_at);
            }
        }
        Arc::new(view)
    }

    /// A group described at `now`, as if the description had seen the changes.
    pub(super) fn laid_over_group(&mut self, asg: AutoScalingGroup, now: Timestamp) -> AutoScalingGroup {
        for accepted in self.0.iter_mut().filter(|accepted| *accepted.change.group() == *asg.name) {
            accepted.look_for_it_in(&asg);
        }
        let counts = |accepted: &&Accepted| elapsed(accepted.at, now) < accepted.lasts();
        let recent: Vec<_> = self.0.iter().filter(counts).collect();
        let mut group = Group { asg: Arc::new(asg), ..Group::default() };
        lay_over(&mut group, &recent, Timestamp::MIN);
        Arc::unwrap_or_clone(group.asg)
    }
}

/// Applies the changes that this group does not show yet. Sizes follow each other, so the last one counts whichever of
/// them is shown. A termination that is shown, also one by another replica or a person, shows every size set before it: an instance
/// live when the size was set is on its way out, and the described size fits that.
fn lay_over(group: &mut Group, changes: &[&Accepted], taken_at: Timestamp) {
    let is_of_group = |accepted: &&&Accepted| {
        *accepted.change.group() == *group.asg.name && !accepted.is_of_a_predecessor(group)
    };
    let changes: Vec<_> = changes.iter().filter(is_of_group).collect();
    let is_shown = |accepted: &&&Accepted| match &accepted.change {
        Change::Desired { from, to, .. } => {
            let ending = group.asg.instances.iter().filter(|i| !may_end(i.lifecycle));
            let ended = accepted.before.as_ref().map_or(0, |before| live_of(&before.asg, ending).count());
            ended > 0 && shows(group.asg.desired, ended, *from, *to)
        }
        Change::Terminated { instance, .. } => {
            !group.asg.instances.iter().any(|i| i.id == *instance && may_end(i.lifecycle))
        }
    };
    let shown = changes.iter().rposition(is_shown);
    let live: BTreeSet<InstanceId> = group.asg.live().map(|i| i.id.clone()).collect();
    let mut described = group.asg.desired;
    for (n, Accepted { at, change, before, is_unseen }) in changes.into_iter().enumerate() {
        if shown.is_none_or(|shown| n > shown) || !matches!(change, Change::Desired { .. }) {
            if let Change::Desired { from, to, .. } = change
                && *is_unseen
                && described == *from
            {
                described = *to;
            }
            apply((&mut *group, &mut described), change, (before.as_deref(), &live), *at >= taken_at);
        }
    }
    if described != group.asg.desired {
        Arc::make_mut(&mut group.asg).described_desired = Some(described);
    }
}

/// `described`: the desired capacity by the description and terminations, and sizes that nothing has shown. `before`: the group before the
/// change. `live`: the instances that the description shows to live. `is_news`: the group was described before the change.
fn apply(
    (group, described): (&mut Group, &mut i32),
    change: &Change,
    (before, live): (Option<&Group>, &BTreeSet<InstanceId>),
    is_news: bool,
) {
    match change {
        Change::Desired { from, to, .. } => {
            if to > from {
                // An earlier failure does not explain why the new instances are missing.
                group.failure = group.failure.take().filter(|_| !is_news);
            } else if group.asg.desired == *from {
                let given_up = usize::try_from(from.saturating_sub(*to)).unwrap_or(0);
                group.failure = group.failure.take().and_then(|failure| failure.without(given_up));
            }
            if group.asg.desired == *from {
                Arc::make_mut(&mut group.asg).desired = *to;
            }
        }
        Change::Terminated { instance: id, state, decrement, .. } => {
            let asg = Arc::make_mut(&mut group.asg);
            let mut instances = asg.instances.iter_mut();
            if let Some(instance) = instances.find(|i| i.id == *id && may_end(i.lifecycle)) {
                let counted = instance.lifecycle.is_live();
                instance.lifecycle = *state;
                // AWS does not say that it lowers the capacity and changes the lifecycle state in one step: a description may show the first
                // alone. One node too many costs money for a while; a size that is set too low costs nodes.
                let weight = asg.weight(id);
                let lowered = before.map(|before| {
                    // For those that it shows on their way out, it may have been lowered as well.
                    let ended = before.asg.live().filter(|i| !live.contains(&i.id));
                    let ended: i32 = ended.map(|i| before.asg.weight(&i.id)).sum();
                    let counts = before.asg.live().any(|i| i.id == *id);
                    before.asg.desired - ended - if counts { weight } else { 0 }
                });
                for desired in [&mut asg.desired, described] {
                    if *decrement && counted && lowered.is_none_or(|lowered| *desired > lowered) {
                        *desired -= weight;
                    }
                }
            }
        }
    }
}

/// The size that the group may have instead of that of the description `fresh`, asked for at `now`, the larger if there are two:
/// - that in `view`, if the description may be older: its size is lower, by more than the instances that it shows on their way out and the
///   view does not. Those would prove it newer;
/// - that of the description itself, if one of ours [counts over it](AutoScalingGroup::described_desired).
pub fn size_in_doubt(view: &Snapshot, fresh: &AutoScalingGroup, now: Timestamp) -> Option<i32> {
    let seen = view.groups.get(&fresh.name).map(|seen| &seen.asg).filter(|seen| !fresh.is_another(seen));
    let is_newer = |seen: &&Arc<AutoScalingGroup>| {
        let ended = live_of(seen, terminating(fresh)).count();
        elapsed(view.taken_at, now) < SHOWN_WITHIN && !explains(fresh.desired, ended, seen.desired)
    };
    seen.filter(is_newer).map(|seen| seen.desired).max(fresh.described_desired)
}

/// Whether `one` is from before `other`: an instance that lives in it is on its way out there.
pub(super) fn is_older(one: &AutoScalingGroup, other: &AutoScalingGroup) -> bool {
    live_of(one, terminating(other)).next().is_some()
}

/// The instances on their way out. One in the warm pool may be on its way in.
fn terminating(group: &AutoScalingGroup) -> impl Iterator<Item = &Instance> {
    group.instances.iter().filter(|instance| instance.lifecycle.is_terminating())
}

/// Those of these that live in a group.
fn live_of<'a>(
    group: &AutoScalingGroup,
    instances: impl Iterator<Item = &'a Instance>,
) -> impl Iterator<Item = &'a Instance> {
    instances.filter(|instance| group.live().any(|live| live.id == instance.id))
}

/// Whether an instance in this state does not show yet that it was told to terminate. One in the warm pool has been given back.
fn may_end(lifecycle: Lifecycle) -> bool {
    !lifecycle.is_terminating() && !lifecycle.is_warm()
}
