//! Warm pools of groups that reuse instances on scale-in: an instance on its way there may be a node that a hook holds, and
//! the group's description does not list it.

use futures::future::join_all;

use super::Snapshot;
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance};

/// Adds the instances of the warm pool to each group that reuses instances, those of `before` if AWS does not answer. Returns the
/// last error.
pub(super) async fn add<'a>(
    aws: &Aws,
    before: Option<&Snapshot>,
    groups: impl Iterator<Item = &'a mut AutoScalingGroup>,
) -> Result<(), AwsError> {
    let asked = groups.filter(|group| group.warm_pool.is_some_and(|pool| pool.reuses)).map(async |group| {
        let outcome = aws.warm_pool(&group.name).await;
        let (told, error) = match outcome {
            Ok(told) => (told, None),
            Err(error) => (known(before, group), Some(error)),
        };
        group.instances.extend(told);
        error
    });
    let errors = join_all(asked).await;
    errors.into_iter().flatten().next_back().map_or(Ok(()), Err)
}

/// The warm pool's instances as they were, without those now in the group.
fn known(before: Option<&Snapshot>, group: &AutoScalingGroup) -> Vec<Instance> {
    let before = before.and_then(|before| before.groups.get(&group.name));
    let was_warm =
        before.into_iter().flat_map(|group| &group.asg.instances).filter(|i| i.lifecycle.is_warm());
    was_warm.filter(|known| group.instances.iter().all(|seen| seen.id != known.id)).cloned().collect()
}
