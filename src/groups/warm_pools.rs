//! Warm pools of groups that reuse instances on scale-in: an instance on its way there may be a node that a hook holds, and
//! the group's description does not list it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::Snapshot;
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance, Operation};

/// Pools that are asked for at once: one call for each group comes in every refresh.
const AT_ONCE: usize = 8;

/// Longest wait for all of them. What is held in other groups is seen when that is over, and the shortest time-out is 30 s.
const WITHIN: Duration = Duration::from_secs(5);

/// Adds the warm pool's instances to each group that reuses instances, those of `before` if AWS does not answer in time. Returns the last
/// error. `begun`: how many pools have been asked for so far, so that those left out come first.
pub(super) async fn add<'a>(
    aws: &Aws,
    before: Option<&Snapshot>,
    groups: impl Iterator<Item = &'a mut Arc<AutoScalingGroup>>,
    begun: &mut usize,
) -> Result<(), AwsError> {
    let until = Instant::now() + WITHIN;
    let asked = groups.filter(|group| group.warm_pool.is_some_and(|pool| pool.reuses));
    let asked = asked.map(|group| add_to(aws, before, Arc::make_mut(group), until).boxed());
    let mut asked: Vec<_> = asked.collect();
    let first = begun.checked_rem(asked.len()).unwrap_or_default();
    asked.rotate_left(first);
    let answers: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    let in_time = answers.iter().filter(|answer| answer.is_some()).count();
    *begun = first + in_time;
    let unasked = (in_time < answers.len()).then(|| late("other warm pools took all the time"));
    let last = answers.into_iter().flatten().filter_map(Result::err).next_back();
    last.or(unasked).map_or(Ok(()), Err)
}

/// The same for one group; `None` if the time is over before it is asked for.
async fn add_to(
    aws: &Aws,
    before: Option<&Snapshot>,
    group: &mut AutoScalingGroup,
    until: Instant,
) -> Option<Result<(), AwsError>> {
    if until <= Instant::now() {
        group.instances.extend(known(before, group));
        return None;
    }
    let answer = timeout_at(until, aws.warm_pool(&group.name)).await;
    let (told, error) = match answer.unwrap_or_else(|elapsed| Err(late(elapsed))) {
        Ok(told) => (told, Ok(())),
        Err(error) => (known(before, group), Err(error)),
    };
    group.instances.extend(told);
    Some(error)
}

fn late(why: impl Into<Box<dyn Error + Send + Sync>>) -> AwsError {
    AwsError::unreachable(Operation::DescribeWarmPool, why)
}

/// The warm pool's instances as they were, without those now in the group.
fn known(before: Option<&Snapshot>, group: &AutoScalingGroup) -> Vec<Instance> {
    let before = before.and_then(|before| before.groups.get(&group.name));
    let was_warm =
        before.into_iter().flat_map(|group| &group.asg.instances).filter(|i| i.lifecycle.is_warm());
    was_warm.filter(|known| group.instances.iter().all(|seen| seen.id != known.id)).cloned().collect()
}
