//! Which failed launches explain that a group is short.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::cause::tried;
use super::message::read;
use crate::aws::{Activity, AutoScalingGroup};
use crate::clock::elapsed;
use crate::groups::LaunchFailure;

/// How far apart the launches of one try may begin.
const ONE_TRY: Duration = Duration::from_secs(5);

/// The newest of the failed tries since `since` (activities come newest first), and how many missing instances they explain.
pub(super) fn explain(
    group: &AutoScalingGroup,
    launches: &[&Activity],
    failed_tries: &[(&Activity, usize)],
    since: Timestamp,
) -> Option<LaunchFailure> {
    let under_way = launches.iter().filter(|launch| launch.started >= since && !launch.is_over());
    let under_way: Vec<_> = under_way.collect();
    let last_try = under_way.iter().map(|launch| launch.started).max();
    let counts = |failed: &Activity| {
        failed.started >= since
            && last_try.is_none_or(|last_try| elapsed(failed.started, last_try) <= ONE_TRY)
    };
    let failed: Vec<_> = failed_tries.iter().filter(|(failed, _)| counts(failed)).collect();
    let to_come = under_way.iter().filter(|launch| !is_of_an_instance(group, launch)).count();
    // Units do not tell how many instances are missing.
    let missing = if group.is_weighted() { usize::MAX } else { group.missing() };
    let in_vain = failed.iter().fold(0_usize, |sum, (_, instances)| sum.saturating_add(*instances));
    let explained = in_vain.min(missing.saturating_sub(to_come));
    let (newest, _) = failed.first().filter(|_| explained > 0)?;
    Some(LaunchFailure { launches: explained, ..read(&newest.message) })
}

/// The tries that failed, as the newest failed launch of each, and how many instances failed in it, less those that are `spent`.
///
/// AWS has been seen to log a try without capacity as one failed activity for all instances that were missing, and each instance that does
/// launch as one of its own, with the same cause. So these are as many as the try was for, less its activities that have not failed, but no
/// fewer than its failed activities.
///
/// Source: [aws-parallelcluster#1944](https://github.com/aws/aws-parallelcluster/issues/1944). AWS documents neither.
pub(super) fn failed_tries<'a>(
    group: &AutoScalingGroup,
    launches: &[&'a Activity],
    spent: &BTreeMap<String, usize>,
) -> Vec<(&'a Activity, usize)> {
    let mut tries: Vec<(&Activity, usize)> = Vec::new();
    for &failed in launches.iter().filter(|launch| is_failed(launch)) {
        if tries.iter().any(|(newest, _)| is_of_try(newest, failed)) {
            continue;
        }
        let of_try = launches.iter().filter(|launch| is_of_try(failed, launch));
        let (in_vain, others): (Vec<&Activity>, Vec<_>) =
            of_try.copied().partition(|launch| is_failed(launch));
        let wanted = if group.is_weighted() { 1 } else { tried(&failed.cause) };
        let instances = wanted.saturating_sub(others.len()).max(in_vain.len());
        let spent: usize = in_vain.iter().filter_map(|launch| spent.get(&launch.id)).sum();
        tries.push((failed, instances.saturating_sub(spent)));
    }
    tries.retain(|(_, left)| *left > 0);
    tries
}

fn is_of_try(one: &Activity, other: &Activity) -> bool {
    one.id == other.id || (!one.cause.is_empty() && one.cause == other.cause)
}

/// Whether the launch has brought an instance that the group has.
fn is_of_an_instance(group: &AutoScalingGroup, launch: &Activity) -> bool {
    group.instances.iter().any(|instance| launch.names(&instance.id))
}

/// Whether it is a launch of the group's own, cold or from its warm pool. What is launched into the pool is no capacity of the group.
///
/// Source: [warm pools](https://github.com/aws-samples/amazon-ec2-auto-scaling-group-examples/tree/main/features/warm-pools).
pub(super) fn is_launch(activity: &Activity) -> bool {
    activity.description.starts_with("Launching") && !activity.description.contains("into warm pool")
}

pub(super) fn is_failed(activity: &Activity) -> bool {
    matches!(activity.status.as_str(), "Failed" | "Cancelled")
}
