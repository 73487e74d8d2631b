//! Warm pools of groups that reuse instances on scale-in: an instance on its way there may be a node that a hook holds, and
//! the group's description does not list it.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use super::Snapshot;
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance, Operation};

/// Pools that are asked for at once: one call for each group comes in every refresh.
const AT_ONCE: usize = 8;

/// Longest wait for all of them. What is held in other groups is seen when that is over, and the shortest time-out is 30 s.
const WITHIN: Duration = Duration::from_secs(5);

/// Adds the instances of the warm pool to each group that reuses instances, those of `before` if AWS does not answer in time. Returns the
/// last error.
pub(super) async fn add<'a>(
    aws: &Aws,
    before: Option<&Snapshot>,
    groups: impl Iterator<Item = &'a mut AutoScalingGroup>,
) -> Result<(), AwsError> {
    let until = Instant::now() + WITHIN;
    let asked = groups.filter(|group| group.warm_pool.is_some_and(|pool| pool.reuses));
    let asked: Vec<_> = asked.map(|group| add_to(aws, before, group, until).boxed()).collect();
    let errors: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    errors.into_iter().flatten().next_back().map_or(Ok(()), Err)
}

/// The same for one group.
async fn add_to(
    aws: &Aws,
    before: Option<&Snapshot>,
    group: &mut AutoScalingGroup,
    until: Instant,
) -> Option<AwsError> {
    let late = |elapsed: Elapsed| {
        Err(AwsError::Unreachable { operation: Operation::DescribeWarmPool, source: Box::new(elapsed) })
    };
    // Not even begun when the time is over.
    let outcome = match until > Instant::now() {
        true => Some(timeout_at(until, aws.warm_pool(&group.name)).await.unwrap_or_else(late)),
        false => None,
    };
    let (told, error) = match outcome {
        Some(Ok(told)) => (told, None),
        Some(Err(error)) => (known(before, group), Some(error)),
        None => (known(before, group), None),
    };
    group.instances.extend(told);
    error
}

/// The warm pool's instances as they were, without those now in the group.
fn known(before: Option<&Snapshot>, group: &AutoScalingGroup) -> Vec<Instance> {
    let before = before.and_then(|before| before.groups.get(&group.name));
    let was_warm =
        before.into_iter().flat_map(|group| &group.asg.instances).filter(|i| i.lifecycle.is_warm());
    was_warm.filter(|known| group.instances.iter().all(|seen| seen.id != known.id)).cloned().collect()
}
