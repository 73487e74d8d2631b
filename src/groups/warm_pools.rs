//! Warm pools, of groups that give instances back to them when they scale in: on its way there an instance may be a node
//! that a hook holds, and a group does not tell of it.

use futures::future::join_all;

use super::Snapshot;
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance};

/// Adds the instances of their warm pools to the groups that reuse instances. What AWS does not tell stays as it was
/// `before`; the last error is given back.
pub(super) async fn add<'a>(
    aws: &Aws,
    before: Option<&Snapshot>,
    groups: impl Iterator<Item = &'a mut AutoScalingGroup>,
) -> Result<(), AwsError> {
    let asked = groups.filter(|group| group.reuses).map(async |group| {
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

/// The instances of the group's warm pool as they were, less those that are in the group by now.
fn known(before: Option<&Snapshot>, group: &AutoScalingGroup) -> Vec<Instance> {
    let before = before.and_then(|before| before.groups.get(&group.name));
    let was_warm =
        before.into_iter().flat_map(|group| &group.asg.instances).filter(|i| i.lifecycle.is_warm());
    was_warm.filter(|known| group.instances.iter().all(|seen| seen.id != known.id)).cloned().collect()
}
