//! Groups that give their instances weights: desired capacity, minimum and maximum are units, and cluster-autoscaler knows only
//! instances. Pure.
//!
//! - Units are never converted to instances to come: AWS chooses what it launches, and so how many.
//! - Such a group has no placeholders and is not grown, and its desired capacity is not set: one unit too few would end healthy
//!   nodes undrained. Its nodes are scaled in one by one.
//! - The minimum is kept in units, whichever nodes leave.
//!
//! Source: [Configure an Auto Scaling group to use instance
//! weights](https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-weighting.html).

use crate::aws::{AutoScalingGroup, Instance};

/// Units left to decrement once accepted decrements are done: the smaller of desired and live units. Missing instances may never
/// come, and surplus ones do not raise the desired capacity.
pub(super) fn units(group: &AutoScalingGroup, accepted: impl Fn(&Instance) -> bool) -> i32 {
    let weight = |instance: &Instance| group.weight(&instance.id);
    let there: i32 = group.live().map(weight).sum();
    let leaving: i32 = group.live().filter(|&instance| accepted(instance)).map(weight).sum();
    group.desired.min(there) - leaving
}

/// How many instances may leave, whichever they are, with the units still at the minimum: cluster-autoscaler does not know
/// weights, so the heaviest count first.
pub(super) fn spare(group: &AutoScalingGroup, accepted: impl Fn(&Instance) -> bool) -> i32 {
    let mut left = units(group, &accepted);
    let mut weights: Vec<i32> =
        group.live().filter(|&instance| !accepted(instance)).map(|i| group.weight(&i.id)).collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    let fits = |weight: &i32| {
        left -= weight;
        left >= group.min
    };
    weights.into_iter().take_while(fits).count() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{Lifecycle, Weights};
    use crate::groups::sizes::{self, Leaves, SizeError};
    use crate::k8s::InstanceId;

    /// Instances in service, `i-0` and so on, of these weights.
    fn group(min: i32, desired: i32, weights: &[i32]) -> AutoScalingGroup {
        let ids = || (0..weights.len()).map(|n| format!("i-{n}"));
        let instances = ids()
            .map(|id| Instance { id: id.into(), lifecycle: Lifecycle::InService, ..Instance::default() })
            .collect();
        let weights = Some(Weights {
            of_instances: ids().map(InstanceId::from).zip(weights.iter().copied()).collect(),
        });
        AutoScalingGroup {
            name: "g".into(),
            min,
            max: 99,
            desired,
            instances,
            weights,
            ..AutoScalingGroup::default()
        }
    }

    #[test]
    fn an_unhealthy_instance_is_being_replaced_once_the_healthy_ones_fill_the_group() {
        for (desired, is_replaced) in [(8, true), (10, false)] {
            let mut group = group(0, desired, &[4, 4, 4]);
            group.instances[0].unhealthy = true;
            let told = [0, 1].map(|n| sizes::is_replaced_first(&group, &group.instances[n]));
            assert_eq!(told, [is_replaced, false], "{desired}");
        }
    }

    #[test]
    fn as_many_are_spare_as_the_minimum_allows_of_the_heaviest() {
        let none = |_: &Instance| false;
        let table: &[(i32, i32, &[i32], i32)] = &[
            (0, 8, &[2, 2, 4], 3),
            (4, 8, &[2, 2, 4], 1),
            (5, 8, &[2, 2, 4], 0),
            (8, 8, &[8], 0),
            // More is there than is wanted: what is wanted must stay at the minimum.
            (4, 8, &[4, 8], 0),
            // Less is there than is wanted: what is to come may never come.
            (4, 99, &[2, 2, 4], 1),
        ];
        for (min, desired, weights, expected) in table {
            assert_eq!(
                spare(&group(*min, *desired, weights), none),
                *expected,
                "{min} {desired} {weights:?}"
            );
        }
    }

    #[test]
    fn what_is_accepted_has_left_already() {
        let group = group(2, 8, &[4, 2, 2]);
        let heavy = |instance: &Instance| instance.id == "i-0";
        assert_eq!((units(&group, heavy), spare(&group, heavy)), (4, 1));
        assert_eq!(group.weight("i-9"), 1);
        // More is there than is wanted: what leaves lowers what is wanted by all its units.
        let surplus = self::group(0, 4, &[4, 2, 2]);
        assert_eq!((units(&surplus, heavy), spare(&surplus, heavy)), (0, 0));
    }

    #[test]
    fn nodes_leave_down_to_the_minimum_in_units_and_none_while_terminate_is_suspended() {
        let mut group = group(2, 8, &[4, 2, 2]);
        let heavy = |instance: &Instance| instance.id == "i-0";
        let leaves = |i: &Instance| if heavy(i) { Leaves::WithDecrement } else { Leaves::No };
        assert_eq!(sizes::limits(&group, leaves), (1, 2));
        assert_eq!(sizes::removable(&group, ["i-1"], heavy), Ok(()));
        let refused = SizeError::BelowMinUnits { group: "g".into(), units: 0, min: 2 };
        assert_eq!(sizes::removable(&group, ["i-1", "i-2"], heavy), Err(refused));
        assert_eq!(sizes::to_keep(&group, ["i-1", "i-2"], heavy), ["i-2"]);
        let at_four = self::group(4, 8, &[4, 2, 2]);
        assert_eq!(
            sizes::to_keep(&at_four, ["i-1", "i-0", "i-2"], |_| false),
            ["i-0"],
            "too heavy for what is left"
        );
        group.suspended.insert("Terminate".into());
        assert_eq!(sizes::limits(&group, leaves), (2, 2));
        let refused = sizes::removable(&group, ["i-1"], heavy);
        assert!(matches!(refused, Err(SizeError::Stopped { change: "shrink", .. })), "{refused:?}");
        assert_eq!(sizes::to_keep(&group, ["i-1"], heavy), ["i-1"]);
    }
}
