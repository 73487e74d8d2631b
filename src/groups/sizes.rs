//! Arithmetic on sizes: what cluster-autoscaler hears, and which changes are allowed. Pure.
//!
//! Two sets of instances are subtracted from the desired capacity, both only while AWS still counts them in it:
//! - those that leave ([`Leaves`]): cluster-autoscaler counts their nodes as deleted, so the target size and both
//!   limits leave them out. One that is being replaced is subtracted only until its replacement is there, which is the
//!   node that is to come;
//! - those that will `decrement`: only these lower the desired capacity when they go, so the minimum is kept with
//!   them. When what never came is given up, nodes that cluster-autoscaler drains itself count too: their deletion is yet to
//!   come.
//!
//! Invariants: nodes leave as a whole batch within the group's minimum or not at all; what never came is given up as far
//! as the minimum allows; what is told fits together, so that cluster-autoscaler asks for nothing that is refused.

use super::weights;
use crate::aws::{AutoScalingGroup, Frozen, Instance};

/// Why a change of a size is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum SizeError {
    /// The delta has the wrong sign for the call.
    #[error("{call} takes a {wanted} delta, got {delta}")]
    Delta {
        call: &'static str,
        /// `positive` or `negative`.
        wanted: &'static str,
        delta: i32,
    },
    /// The group would grow past its largest size.
    #[error(
        "group {group} would have {size} instances ({leaving} of them still draining), its maximum is {max}"
    )]
    AboveMax { group: String, size: i32, leaving: i32, max: i32 },
    /// The group would shrink below its smallest size.
    #[error("group {group} would have {size} instances, its minimum is {min}")]
    BelowMin { group: String, size: i32, min: i32 },
    /// AWS does not change the group this way now.
    #[error("group {group} cannot {change}: {why}")]
    Stopped {
        group: String,
        /// `grow` or `shrink`.
        change: &'static str,
        why: String,
    },
    /// The group's sizes are units, those of the call instances.
    #[error(
        "group {group} gives its instances weights, so that its sizes are units of capacity and not nodes: its \
         desired capacity is not set, as that could end healthy nodes; scale-ins of its nodes work"
    )]
    Weighted { group: String },
    /// A weighted group would shrink below its smallest size.
    #[error(
        "group {group} would have {units} units of capacity by its instances' weights, its minimum is {min}"
    )]
    BelowMinUnits { group: String, units: i32, min: i32 },
}

/// Whether an instance is on its way out, and what becomes of the desired capacity when it has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// It stays.
    No,
    /// The group replaces it: the desired capacity stays.
    Replaced,
    /// The desired capacity is lowered by it.
    WithDecrement,
    /// cluster-autoscaler drains it itself, and will ask for its deletion then: with a decrement.
    BeingDrained,
}

/// Target size for cluster-autoscaler: desired instances without those that leave. In a weighted group live instances stand for
/// desired ones.
///
/// A group that launches first (Capacity Rebalancing, an instance maintenance policy) has a surplus until the replaced instance has
/// gone: as many replaced ones are not subtracted. Otherwise the replacement would not count as a node to come, and another would be
/// bought for the evicted pods.
pub fn target_size(group: &AutoScalingGroup, leaves: impl Fn(&Instance) -> Leaves) -> i32 {
    let (mut live, mut replaced, mut decremented) = (0, 0, 0);
    for instance in group.live() {
        live += 1;
        match leaves(instance) {
            Leaves::No => {}
            Leaves::Replaced => replaced += 1,
            Leaves::WithDecrement | Leaves::BeingDrained => decremented += 1,
        }
    }
    let wanted = wanted(group);
    let surplus = (live - wanted).max(0);
    wanted - decremented - (replaced - surplus).max(0)
}

/// Whether the group has launched the replacement of an instance that it is still to end: an unhealthy one, where replacements come first
/// (an instance maintenance policy), so that the healthy ones alone fill it. A decrement would then end a healthy one as well.
///
/// Source: [Instance maintenance
/// policies](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-maintenance-policy.html).
pub fn is_replaced_first(group: &AutoScalingGroup, instance: &Instance) -> bool {
    let healthy = || group.live().filter(|one| !one.unhealthy).map(|one| group.weight(&one.id)).sum::<i32>();
    instance.unhealthy && instance.lifecycle.is_live() && healthy() >= group.desired
}

/// Desired instances; in a weighted group the live ones.
fn wanted(group: &AutoScalingGroup) -> i32 {
    if group.is_weighted() { group.live().count() as i32 } else { group.desired }
}

fn count(group: &AutoScalingGroup, such: impl Fn(&Instance) -> bool) -> i32 {
    group.live().filter(|&instance| such(instance)).count() as i32
}

/// How many instances the minimum lets go beside those that decrement: less than 0 if not even all of them.
fn spare(group: &AutoScalingGroup, decrements: impl Fn(&Instance) -> bool) -> i32 {
    wanted(group) - count(group, decrements) - group.min
}

/// A process of Auto Scaling without which a size does not change.
#[derive(Clone, Copy)]
enum Process {
    Launch,
    Terminate,
}

impl Process {
    /// As AWS spells it.
    fn name(self) -> &'static str {
        match self {
            Self::Launch => "Launch",
            Self::Terminate => "Terminate",
        }
    }

    /// What a group cannot do without it.
    fn change(self) -> &'static str {
        match self {
            Self::Launch => "grow",
            Self::Terminate => "shrink",
        }
    }
}

/// Refuses what only this process could do, if AWS does not run it for the group now.
fn runs(group: &AutoScalingGroup, process: Process) -> Result<(), SizeError> {
    let why = match &group.frozen {
        _ if !suspends(group, process) => return Ok(()),
        Some(Frozen::OperatedBy(service)) => format!("{service} operates it, and alone may change it"),
        Some(Frozen::Deleting) => "it is being deleted".to_owned(),
        None => format!("its process {} is suspended", process.name()),
    };
    Err(SizeError::Stopped { group: group.name.to_string(), change: process.change(), why })
}

/// Whether AWS does not run this process for the group now. Without Launch it cannot grow, without Terminate not shrink; nor can one that
/// AWS refuses to change.
///
/// Source: [Suspend and resume
/// processes](https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html).
fn suspends(group: &AutoScalingGroup, process: Process) -> bool {
    group.frozen.is_some() || group.suspended.contains(process.name())
}

/// Whether the group launches no instance of its own now: nothing replaces what leaves.
pub fn launches_nothing(group: &AutoScalingGroup) -> bool {
    group.suspended.contains(Process::Launch.name())
}

/// Whether no node of the group may leave for good: AWS ends none of its instances on request now.
pub fn keeps_its_nodes(group: &AutoScalingGroup) -> bool {
    suspends(group, Process::Terminate)
}

/// Smallest and largest number of nodes, for cluster-autoscaler.
///
/// - The maximum is reduced by as much as the target size is, since AWS still counts what leaves: otherwise an IncreaseSize that
///   seems allowed would be refused, and the group be backed off for minutes.
/// - The minimum is reduced by as much as leaving instances bring the target size below it: AWS replaces those without a
///   decrement, `--enforce-node-group-min-size` must not.
/// - The minimum is reduced by the nodes that cluster-autoscaler drains itself, too: it takes those off the target size once more.
///   Source: `verifyMinSize` in
///   [`unneeded/nodes.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.30.2/cluster-autoscaler/core/scaledown/unneeded/nodes.go).
/// - A group that may not launch does not grow: a minimum of `--nodes` above its size makes no room for an IncreaseSize.
/// - One that may not terminate loses what never came, and nothing else ([`keeps_its_nodes`]): cluster-autoscaler gives up as many as the
///   target size is above the minimum. Source: `removeOldUnregisteredNodes` in
///   [`static_autoscaler.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.34.0/cluster-autoscaler/core/static_autoscaler.go).
/// - A weighted group does not grow, and shrinks as far as its minimum is kept whichever nodes leave.
pub fn limits(group: &AutoScalingGroup, leaves: impl Fn(&Instance) -> Leaves) -> (i32, i32) {
    let target = target_size(group, &leaves);
    let drained = count(group, |instance| leaves(instance) == Leaves::BeingDrained);
    if group.is_weighted() {
        let leaves = |instance: &Instance| leaves(instance) != Leaves::No;
        let spare = if suspends(group, Process::Terminate) { 0 } else { weights::spare(group, leaves) };
        return (target - spare - drained, target);
    }
    let may_grow = !suspends(group, Process::Launch);
    let max = if may_grow { group.max } else { group.desired } - (group.desired - target);
    let least = if suspends(group, Process::Terminate) {
        let decrements =
            |instance: &Instance| matches!(leaves(instance), Leaves::WithDecrement | Leaves::BeingDrained);
        target - i32::try_from(spare_missing(group, decrements)).unwrap_or_default()
    } else {
        let min = if may_grow { group.min } else { group.min.min(group.desired) };
        let below = (min.min(group.desired) - drained - target).max(0);
        min - drained - below
    };
    (least, max.max(least))
}

/// How many missing instances may be given up, as far as the group's own minimum allows: without Terminate AWS still takes a lower size,
/// and ends nothing that is in service for it.
pub fn spare_missing(group: &AutoScalingGroup, decrements: impl Fn(&Instance) -> bool) -> usize {
    let missing = group.missing();
    // Whether there is room is found out of every instance, and mostly none is missing.
    if missing == 0 || group.frozen.is_some() {
        return 0;
    }
    missing.min(usize::try_from(spare(group, decrements)).unwrap_or_default())
}

/// Refuses a group whose desired capacity is not ours to set.
pub fn in_instances(group: &AutoScalingGroup) -> Result<(), SizeError> {
    if group.is_weighted() { Err(SizeError::Weighted { group: group.name.to_string() }) } else { Ok(()) }
}

/// Desired capacity for up to `delta` more nodes: as many as the maximum has room for, and an error if that is none.
///
/// cluster-autoscaler reads the maximum at the beginning of its loop, and the target size in the middle. If nodes begin to leave in
/// between, it asks for more than there is room for; refused, it would buy nothing, and back the group off for minutes.
pub fn increased(
    group: &AutoScalingGroup,
    delta: i32,
    leaves: impl Fn(&Instance) -> Leaves,
) -> Result<i32, SizeError> {
    if delta <= 0 {
        return Err(SizeError::Delta { call: "IncreaseSize", wanted: "positive", delta });
    }
    in_instances(group)?;
    runs(group, Process::Launch)?;
    if group.desired >= group.max {
        return Err(above_max(group, delta, leaves));
    }
    Ok(group.desired.saturating_add(delta).min(group.max))
}

/// Why a group has no room for `delta` more nodes.
pub fn above_max(group: &AutoScalingGroup, delta: i32, leaves: impl Fn(&Instance) -> Leaves) -> SizeError {
    let size = group.desired.saturating_add(delta);
    let leaving = count(group, |instance| leaves(instance) != Leaves::No);
    SizeError::AboveMax { group: group.name.to_string(), size, leaving, max: group.max }
}

/// Desired capacity for a target lower by up to `-delta`: as many missing instances as the minimum allows. Not refused for asking
/// too much, which would end cluster-autoscaler's loop for all groups; it asks again for the rest.
pub fn decreased(
    group: &AutoScalingGroup,
    delta: i32,
    decrements: impl Fn(&Instance) -> bool,
) -> Result<i32, SizeError> {
    if delta >= 0 {
        return Err(SizeError::Delta { call: "DecreaseTargetSize", wanted: "negative", delta });
    }
    in_instances(group)?;
    let spare = i32::try_from(spare_missing(group, decrements)).unwrap_or(i32::MAX);
    Ok(group.desired - spare.min(delta.saturating_neg()))
}

/// Checks that these live instances may all leave for good.
pub fn removable<'a>(
    group: &AutoScalingGroup,
    leaving: impl IntoIterator<Item = &'a str>,
    decrements: impl Fn(&Instance) -> bool,
) -> Result<(), SizeError> {
    let leaving: Vec<&str> = leaving.into_iter().collect();
    if leaving.is_empty() {
        return Ok(());
    }
    runs(group, Process::Terminate)?;
    if group.is_weighted() {
        return removable_units(group, &leaving, decrements);
    }
    let left = spare(group, decrements) - leaving.len() as i32;
    if left < 0 {
        let (name, min) = (group.name.to_string(), group.min);
        return Err(SizeError::BelowMin { group: name, size: min + left, min });
    }
    Ok(())
}

/// [`removable`] in units: AWS refuses a decrement below the minimum.
fn removable_units(
    group: &AutoScalingGroup,
    leaving: &[&str],
    decrements: impl Fn(&Instance) -> bool,
) -> Result<(), SizeError> {
    let leaving: i32 = leaving.iter().map(|id| group.weight(id)).sum();
    let units = weights::units(group, decrements) - leaving;
    if units < group.min {
        return Err(SizeError::BelowMinUnits { group: group.name.to_string(), units, min: group.min });
    }
    Ok(())
}

/// Which of these live instances have to stay while as many of them leave for good as may.
pub fn to_keep<'a>(
    group: &AutoScalingGroup,
    leaving: impl IntoIterator<Item = &'a str>,
    decrements: impl Fn(&Instance) -> bool,
) -> Vec<&'a str> {
    let mut spare = match group.is_weighted() {
        _ if keeps_its_nodes(group) => 0,
        true => weights::units(group, decrements) - group.min,
        false => spare(group, decrements),
    };
    let stays = |id: &&str| {
        let leaves = group.weight(id) <= spare;
        spare -= if leaves { group.weight(id) } else { 0 };
        !leaves
    };
    leaving.into_iter().filter(stays).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::aws::{Lifecycle, Weights};
    use crate::k8s::InstanceId;

    fn group(min: i32, max: i32, desired: i32, live: usize, terminating: usize) -> AutoScalingGroup {
        let states = std::iter::repeat_n(Lifecycle::InService, live)
            .chain(std::iter::repeat_n(Lifecycle::Terminating, terminating));
        let instances = states
            .enumerate()
            .map(|(n, lifecycle)| Instance { id: format!("i-{n}").into(), lifecycle, ..Instance::default() })
            .collect();
        AutoScalingGroup { name: "g".into(), min, max, desired, instances, ..AutoScalingGroup::default() }
    }

    /// Says of the first `count` instances that they are to go.
    fn first(count: usize) -> impl Fn(&Instance) -> bool {
        move |instance| instance.id.trim_start_matches("i-").parse().is_ok_and(|n: usize| n < count)
    }

    /// Says that the first are to go with a decrement, and those after them, up to so many in all, for a replacement.
    fn leave(with_decrement: usize, in_all: usize) -> impl Fn(&Instance) -> Leaves {
        move |instance| match instance.id.trim_start_matches("i-").parse() {
            Ok(n) if (0..with_decrement).contains(&n) => Leaves::WithDecrement,
            Ok(n) if (0..in_all).contains(&n) => Leaves::Replaced,
            _ => Leaves::No,
        }
    }

    /// Says that cluster-autoscaler drains the first.
    fn drained(count: usize) -> impl Fn(&Instance) -> Leaves {
        let drained = first(count);
        move |instance| if drained(instance) { Leaves::BeingDrained } else { Leaves::No }
    }

    fn none(_: &Instance) -> Leaves {
        Leaves::No
    }

    #[test]
    fn a_scale_in_counts_until_aws_has_taken_the_instance_out() {
        for leaving in [leave(2, 2), leave(0, 2)] {
            assert_eq!(target_size(&group(0, 10, 3, 3, 0), none), 3);
            assert_eq!(target_size(&group(0, 10, 3, 3, 0), leaving), 1);
        }
        // Its decrement is in the desired capacity already.
        assert_eq!(target_size(&group(0, 10, 0, 0, 3), leave(3, 3)), 0);
    }

    #[test]
    fn what_is_replaced_counts_no_more_from_when_its_replacement_does() {
        // Three are wanted: with as many, one of two replacements, both, and one more than that.
        let told = |live| {
            (
                target_size(&group(0, 4, 3, live, 0), leave(0, 2)),
                limits(&group(0, 4, 3, live, 0), leave(0, 2)),
            )
        };
        assert_eq!([3, 4, 5, 6].map(told), [(1, (0, 2)), (2, (0, 3)), (3, (0, 4)), (3, (0, 4))]);
        // A decrement counts whatever there is.
        assert_eq!(target_size(&group(0, 4, 3, 5, 0), leave(1, 2)), 2);
        assert_eq!(target_size(&group(0, 4, 3, 4, 0), leave(2, 2)), 1);
    }

    #[test]
    fn what_leaves_is_in_no_figure_that_cluster_autoscaler_hears() {
        let mut group = group(2, 5, 3, 3, 0);
        assert_eq!(limits(&group, none), (2, 5));
        assert_eq!((target_size(&group, leave(0, 1)), limits(&group, leave(0, 1))), (2, (2, 4)));
        // Replaced at the minimum: nothing is to be made up for.
        assert_eq!((target_size(&group, leave(0, 2)), limits(&group, leave(0, 2))), (1, (1, 3)));
        // What a tighter flag asks for is.
        group.min = 4;
        assert_eq!((target_size(&group, leave(0, 2)), limits(&group, leave(0, 2))), (1, (2, 3)));
    }

    /// As cluster-autoscaler reckons: it deletes another node if the target size without those that it drains is above the minimum.
    #[test]
    fn as_many_nodes_may_be_deleted_while_others_are_drained_as_if_those_had_gone() {
        for (min, draining, others) in
            (0..4).flat_map(|m| (0..4).flat_map(move |k| (0..4).map(move |n| (m, k, n))))
        {
            let size = draining + others;
            let group = group(min.min(size), 9, size, size as usize, 0);
            let leaves = drained(draining as usize);
            let (least, most) = limits(&group, &leaves);
            let target = target_size(&group, &leaves);
            assert_eq!(target, others);
            assert_eq!(target - draining > least, others > group.min, "{min}, {draining}, {others}");
            assert!(target >= least, "nothing is made up for: {min}, {draining}, {others}");
            assert_eq!(most - target, 9 - size);
        }
    }

    #[test]
    fn a_weighted_group_shrinks_by_what_is_left_beside_the_nodes_that_cluster_autoscaler_drains() {
        let of_instances = (0..4).map(|n| (InstanceId::from(format!("i-{n}")), 2)).collect();
        let group = AutoScalingGroup { weights: Some(Weights { of_instances }), ..group(4, 20, 8, 4, 0) };
        // Two units can go beside the two that are drained: one node. cluster-autoscaler takes the drained one off once more.
        assert_eq!(limits(&group, drained(1)), (1, 3));
        assert_eq!(limits(&group, none), (2, 4));
    }

    #[test]
    fn a_suspended_process_fixes_the_size_on_its_side() {
        let mut group = group(1, 10, 4, 4, 0);
        group.suspended.insert("Launch".into());
        assert_eq!(limits(&group, leave(0, 1)), (1, 3));
        let why = "group g cannot grow: its process Launch is suspended";
        assert_eq!(increased(&group, 1, none).map_err(|e| e.to_string()), Err(why.to_owned()));
        // A tighter flag wants more than it may have.
        group.min = 6;
        assert_eq!([limits(&group, none), limits(&group, leave(0, 1))], [(4, 4), (3, 3)]);
        group.min = 1;
        group.suspended.insert("Terminate".into());
        assert_eq!(limits(&group, leave(0, 1)), (3, 3));
        assert!(matches!(removable(&group, ["i-0"], first(0)), Err(SizeError::Stopped { .. })));
    }

    #[test]
    fn what_never_came_is_given_up_while_nothing_may_be_terminated() {
        // Of seven, three have not come.
        let mut group = group(5, 10, 7, 4, 0);
        group.suspended.insert("Terminate".into());
        assert_eq!((spare_missing(&group, first(0)), decreased(&group, -9, first(0))), (2, Ok(5)));
        assert_eq!((target_size(&group, none), limits(&group, none)), (7, (5, 10)));
        // One leaves with a decrement that was accepted before, another one is drained by cluster-autoscaler.
        assert_eq!((target_size(&group, leave(1, 1)), limits(&group, leave(1, 1))), (6, (5, 9)));
        assert_eq!((target_size(&group, drained(1)), limits(&group, drained(1))), (6, (5, 9)));
        let why = "group g cannot shrink: its process Terminate is suspended";
        assert_eq!(removable(&group, ["i-0"], first(0)).map_err(|e| e.to_string()), Err(why.to_owned()));
        group.frozen = Some(Frozen::Deleting);
        assert_eq!((spare_missing(&group, first(0)), decreased(&group, -9, first(0))), (0, Ok(7)));
        assert_eq!(limits(&group, none), (7, 7));
    }

    #[test]
    fn a_group_that_aws_changes_for_nobody_stays_as_it_is() {
        for (frozen, why) in [
            (
                Frozen::OperatedBy("eks.amazonaws.com".into()),
                "eks.amazonaws.com operates it, and alone may change it",
            ),
            (Frozen::Deleting, "it is being deleted"),
        ] {
            let group = AutoScalingGroup { frozen: Some(frozen), ..group(1, 10, 4, 4, 0) };
            assert_eq!(limits(&group, none), (4, 4));
            let refused = |change| Err(SizeError::Stopped { group: "g".into(), change, why: why.to_owned() });
            assert_eq!(increased(&group, 1, none), refused("grow").map(|()| 0));
            assert_eq!(removable(&group, ["i-0"], first(0)), refused("shrink"));
        }
    }

    #[test]
    fn a_delta_of_the_wrong_sign_is_the_callers_mistake() {
        let group = group(0, 10, 5, 5, 0);
        for delta in [0, -1, i32::MIN] {
            assert!(matches!(increased(&group, delta, none), Err(SizeError::Delta { .. })));
        }
        for delta in [0, 1, i32::MAX] {
            assert!(matches!(decreased(&group, delta, first(0)), Err(SizeError::Delta { .. })));
        }
    }

    #[test]
    fn a_group_grows_by_as_much_as_its_maximum_has_room_for() {
        for (desired, delta, size) in [(7, 1, 8), (7, 3, 9), (8, i32::MAX, 9)] {
            assert_eq!(increased(&group(0, 9, desired, 7, 0), delta, none), Ok(size), "{desired} {delta}");
        }
        for desired in [9, 12] {
            let refused = SizeError::AboveMax { group: "g".into(), size: desired + 2, leaving: 3, max: 9 };
            assert_eq!(increased(&group(0, 9, desired, 7, 0), 2, leave(1, 3)), Err(refused));
        }
    }

    #[test]
    fn as_much_is_given_up_as_never_came_and_the_minimum_lets_go() {
        // Of seven, three have not come.
        let decreased =
            |min, delta, decrementing| decreased(&group(min, 9, 7, 4, 0), delta, first(decrementing));
        assert_eq!(decreased(0, -2, 0), Ok(5));
        assert_eq!(decreased(0, -5, 0), Ok(4));
        assert_eq!(decreased(6, -5, 0), Ok(6));
        assert_eq!(decreased(7, -1, 0), Ok(7));
        // AWS will take one more off, and has to have it above the minimum.
        assert_eq!(decreased(5, -5, 1), Ok(6));
        assert_eq!(decreased(0, i32::MIN, 0), Ok(4));
    }

    proptest! {
        #[test]
        fn no_size_leaves_the_limits_or_costs_an_instance_that_lives(
            min in 0..5i32, more in 0..20i32, desired in 0..30i32, live in 0..30usize, going in 0..30usize,
            delta in any::<i32>(), count in 1..40usize,
        ) {
            let group = group(min, min + more, desired, live, 2);
            if let Ok(size) = increased(&group, delta, leave(0, going)) {
                prop_assert!(size > desired && size <= group.max);
                prop_assert!(size == group.max || size == desired + delta);
            }
            if let Ok(size) = decreased(&group, delta, first(going)) {
                prop_assert!(size <= desired);
                prop_assert!(size == desired || size - (going.min(live) as i32) >= min && size >= live as i32);
            }
            let ids: Vec<String> = (0..count).map(|n| format!("i-{n}")).collect();
            if removable(&group, ids.iter().map(String::as_str), first(going)).is_ok() {
                prop_assert!(target_size(&group, leave(going, going)) - count as i32 >= min);
            }
        }

        #[test]
        fn whatever_cluster_autoscaler_may_do_by_what_it_hears_is_not_refused(
            min in 0..10i32, more in 0..20i32, above in 0..20i32, live in 0..30usize, leaving in 0..30usize,
            decrementing in 0..30usize,
        ) {
            let (desired, decrementing) = (min + above.min(more), decrementing.min(leaving));
            let group = group(min, min + more, desired, live, 2);
            let leaves = || leave(decrementing, leaving);
            let target = target_size(&group, leaves());
            let (least, most) = limits(&group, leaves());
            prop_assert!(least <= target && least <= most);
            if most > target {
                prop_assert_eq!(increased(&group, most - target, leaves()), Ok(desired + most - target));
            }
            let stay: Vec<String> = (leaving..group.live().count()).map(|n| format!("i-{n}")).collect();
            let may_leave = stay.iter().take((target - least) as usize).map(String::as_str);
            prop_assert!(removable(&group, may_leave, first(decrementing)).is_ok());
        }
    }
}
