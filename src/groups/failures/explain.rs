//! Which failed launches explain that a group is short.

use std::time::Duration;

use jiff::Timestamp;

use super::message::read;
use crate::aws::{Activity, AutoScalingGroup};
use crate::clock::elapsed;
use crate::groups::LaunchFailure;

/// How far apart the launches of one try may begin.
const ONE_TRY: Duration = Duration::from_secs(5);

/// The newest failed launch since `since` (activities come newest first), and how many missing instances failed launches explain.
pub(super) fn explain(
    group: &AutoScalingGroup,
    activities: &[Activity],
    since: Timestamp,
) -> Option<LaunchFailure> {
    let launches = activities.iter().filter(|activity| is_launch(activity) && activity.started >= since);
    let (failed, others): (Vec<_>, Vec<_>) = launches.partition(|activity| is_failed(activity));
    let under_way: Vec<_> = others.into_iter().filter(|activity| activity.status != "Successful").collect();
    let last_try = under_way.iter().map(|activity| activity.started).max();
    let failed: Vec<_> = failed
        .into_iter()
        .filter(|failed| last_try.is_none_or(|last_try| elapsed(failed.started, last_try) <= ONE_TRY))
        .collect();
    let to_come = under_way.iter().filter(|activity| !is_of_an_instance(group, activity)).count();
    // Units do not tell how many instances are missing.
    let missing = if group.is_weighted() { usize::MAX } else { group.missing() };
    let explained = failed.len().min(missing.saturating_sub(to_come));
    let newest = failed.first().filter(|_| explained > 0)?;
    Some(LaunchFailure { launches: explained, ..read(&newest.message) })
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
