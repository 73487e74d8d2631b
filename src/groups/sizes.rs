//! Arithmetic on sizes: what the target size is, and which changes of it are allowed. Pure.
//!
//! Invariant: a change either keeps the whole batch within the group's limits or changes nothing.

use super::{Group, Instance, weights};

/// Why a size is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The number makes no sense for the call.
    #[error("{call} takes a {wanted} delta, got {delta}")]
    Delta {
        /// The RPC.
        call: &'static str,
        /// `positive` or `negative`.
        wanted: &'static str,
        /// What came.
        delta: i32,
    },
    /// The group would grow past its largest size.
    #[error(
        "group {group} would have {size} instances ({leaving} of them still draining), its maximum is {max}"
    )]
    AboveMax {
        /// Name of the group.
        group: String,
        /// Desired capacity it would have.
        size: i32,
        /// Nodes on their way out that still count in it.
        leaving: i32,
        /// The maximum in force.
        max: i32,
    },
    /// The group would shrink below its smallest size.
    #[error("group {group} would have {size} instances, its minimum is {min}")]
    BelowMin {
        /// Name of the group.
        group: String,
        /// Size it would have.
        size: i32,
        /// The minimum in force.
        min: i32,
    },
    /// A lower target would cost an instance that lives.
    #[error("group {group} has {live} instances, a target size of {size} would terminate some of them")]
    BelowLive {
        /// Name of the group.
        group: String,
        /// Desired capacity it would have.
        size: i32,
        /// Instances the desired capacity counts.
        live: i32,
    },
    /// The group's sizes are units, and the call reckons in instances.
    #[error(
        "group {group} gives its instances weights, so that its sizes are units of capacity and not nodes: its \
         desired capacity is not set, as that could end healthy nodes; scale-ins of its nodes work"
    )]
    Weighted {
        /// Name of the group.
        group: String,
    },
    /// A weighted group would shrink below its smallest size.
    #[error(
        "group {group} would have {units} units of capacity by its instances' weights, its minimum is {min}"
    )]
    BelowMinUnits {
        /// Name of the group.
        group: String,
        /// Units it would have.
        units: i32,
        /// The minimum in force, in units.
        min: i32,
    },
}

/// The number of nodes the group is to have: its desired capacity less the scale-ins accepted whose decrement AWS
/// has not done yet. `accepted` says so of an instance; one that is terminating or gone has had its decrement. Where
/// the desired capacity is units, what is there stands for it.
pub fn target_size(group: &Group, accepted: impl Fn(&Instance) -> bool) -> i32 {
    let size = if group.is_weighted() { group.live().count() as i32 } else { group.desired };
    size - pending_decrements(group, accepted)
}

fn pending_decrements(group: &Group, accepted: impl Fn(&Instance) -> bool) -> i32 {
    group.live().filter(|&instance| accepted(instance)).count() as i32
}

/// The largest size in force: with Launch suspended the group cannot grow.
///
/// Source: [Suspend and resume
/// processes](https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html).
pub fn max_size(group: &Group) -> i32 {
    if group.suspended.contains("Launch") { group.desired } else { group.max }
}

/// The smallest size in force: with Terminate suspended the group cannot shrink.
pub fn min_size(group: &Group) -> i32 {
    if group.suspended.contains("Terminate") { group.desired } else { group.min }
}

/// The smallest and the largest number of nodes, for cluster-autoscaler. A weighted group is not to grow, and shrinks
/// as far as its minimum is kept whichever nodes leave.
pub fn limits(group: &Group, accepted: impl Fn(&Instance) -> bool) -> (i32, i32) {
    if !group.is_weighted() {
        return (min_size(group), max_size(group));
    }
    let size = target_size(group, &accepted);
    let spare = if group.suspended.contains("Terminate") { 0 } else { weights::spare(group, accepted) };
    (size - spare, size)
}

/// Says no for a group whose desired capacity is not ours to set.
pub fn in_instances(group: &Group) -> Result<(), SizeError> {
    if group.is_weighted() { Err(SizeError::Weighted { group: group.name.clone() }) } else { Ok(()) }
}

/// The desired capacity to set for `delta` more nodes.
pub fn increased(group: &Group, delta: i32, accepted: impl Fn(&Instance) -> bool) -> Result<i32, SizeError> {
    if delta <= 0 {
        return Err(SizeError::Delta { call: "IncreaseSize", wanted: "positive", delta });
    }
    in_instances(group)?;
    let size = group.desired.saturating_add(delta);
    if size > max_size(group) {
        let leaving = pending_decrements(group, accepted);
        return Err(SizeError::AboveMax { group: group.name.clone(), size, leaving, max: max_size(group) });
    }
    Ok(size)
}

/// The desired capacity to set for a target lower by `-delta`, which costs no instance that lives.
pub fn decreased(group: &Group, delta: i32) -> Result<i32, SizeError> {
    if delta >= 0 {
        return Err(SizeError::Delta { call: "DecreaseTargetSize", wanted: "negative", delta });
    }
    in_instances(group)?;
    let size = group.desired.saturating_add(delta);
    let live = group.live().count() as i32;
    if size < live {
        return Err(SizeError::BelowLive { group: group.name.clone(), size, live });
    }
    if size < min_size(group) {
        return Err(SizeError::BelowMin { group: group.name.clone(), size, min: min_size(group) });
    }
    Ok(size)
}

/// Checks that `missing` placeholders may be given up and these live instances may leave for good, all together.
pub fn removable<'a>(
    group: &Group,
    missing: usize,
    leaving: impl IntoIterator<Item = &'a str>,
    accepted: impl Fn(&Instance) -> bool,
) -> Result<(), SizeError> {
    if missing > 0 {
        in_instances(group)?;
    }
    let leaving: Vec<&str> = leaving.into_iter().collect();
    let count = missing + leaving.len();
    if group.is_weighted() {
        return removable_units(group, &leaving, accepted);
    }
    let size = target_size(group, accepted).saturating_sub(i32::try_from(count).unwrap_or(i32::MAX));
    if count > 0 && size < min_size(group) {
        return Err(SizeError::BelowMin { group: group.name.clone(), size, min: min_size(group) });
    }
    Ok(())
}

/// AWS's minimum is units, and it refuses a decrement below that. With Terminate suspended nothing may leave.
fn removable_units(
    group: &Group,
    leaving: &[&str],
    accepted: impl Fn(&Instance) -> bool,
) -> Result<(), SizeError> {
    let had = weights::units(group, accepted);
    let min = if group.suspended.contains("Terminate") { had } else { group.min };
    let units = had - leaving.iter().map(|id| group.weight(id)).sum::<i32>();
    if !leaving.is_empty() && units < min {
        return Err(SizeError::BelowMinUnits { group: group.name.clone(), units, min });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::groups::Lifecycle;

    fn group(min: i32, max: i32, desired: i32, live: usize, terminating: usize) -> Group {
        let states = std::iter::repeat_n(Lifecycle::InService, live)
            .chain(std::iter::repeat_n(Lifecycle::Terminating, terminating));
        let instances = states
            .enumerate()
            .map(|(n, lifecycle)| Instance {
                id: format!("i-{n}"),
                zone: "z".into(),
                lifecycle,
                protected: false,
            })
            .collect();
        Group { name: "g".into(), min, max, desired, instances, ..Group::default() }
    }

    /// Says of the first `count` instances that they are to go.
    fn first(count: usize) -> impl Fn(&Instance) -> bool {
        move |instance| instance.id.trim_start_matches("i-").parse().is_ok_and(|n: usize| n < count)
    }

    #[test]
    fn a_scale_in_counts_until_aws_has_taken_the_instance_out() {
        let none = |_: &Instance| false;
        assert_eq!(target_size(&group(0, 10, 3, 3, 0), none), 3);
        assert_eq!(target_size(&group(0, 10, 3, 3, 0), first(2)), 1);
        // Its decrement is in the desired capacity already.
        assert_eq!(target_size(&group(0, 10, 0, 0, 3), first(3)), 0);
    }

    #[test]
    fn a_suspended_process_fixes_the_size_on_its_side() {
        let mut group = group(1, 10, 4, 4, 0);
        group.suspended.insert("Launch".into());
        assert!(matches!(increased(&group, 1, |_| false), Err(SizeError::AboveMax { max: 4, .. })));
        group.suspended.insert("Terminate".into());
        assert!(matches!(removable(&group, 0, ["i-0"], |_| false), Err(SizeError::BelowMin { min: 4, .. })));
    }

    #[test]
    fn a_delta_of_the_wrong_sign_is_the_callers_mistake() {
        let group = group(0, 10, 5, 5, 0);
        for delta in [0, -1, i32::MIN] {
            assert!(matches!(increased(&group, delta, |_| false), Err(SizeError::Delta { .. })));
        }
        for delta in [0, 1, i32::MAX] {
            assert!(matches!(decreased(&group, delta), Err(SizeError::Delta { .. })));
        }
    }

    proptest! {
        #[test]
        fn no_size_leaves_the_limits_or_costs_an_instance_that_lives(
            min in 0..5i32, more in 0..20i32, desired in 0..30i32, live in 0..30usize, going in 0..30usize,
            delta in any::<i32>(), count in 0..40usize,
        ) {
            let group = group(min, min + more, desired, live, 2);
            if let Ok(size) = increased(&group, delta, first(going)) {
                prop_assert!(size > desired && size <= group.max);
            }
            if let Ok(size) = decreased(&group, delta) {
                prop_assert!(size < desired && size >= min && size >= live as i32);
            }
            if count > 0 && removable(&group, count, [], first(going)).is_ok() {
                prop_assert!(target_size(&group, first(going)) - count as i32 >= min);
            }
        }
    }
}
