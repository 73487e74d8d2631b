//! The calls to AWS, each with a time-out, so that a group's lock is released in time.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::tag::PROTECTION_TAG;
use crate::aws::{AutoScalingGroup, Aws, AwsError, Operation};
use crate::k8s::{GroupName, InstanceId};

/// Tagging before a size is set, out of the caller's few seconds (see [`crate::provider`]): EC2 answers within half of it.
const TAG_WITHIN: Duration = Duration::from_secs(1);
/// Every other call.
const WITHIN: Duration = Duration::from_secs(5);

pub(super) async fn describe(aws: &Aws, group: &GroupName) -> Result<Option<AutoScalingGroup>, AwsError> {
    within(WITHIN, Operation::DescribeAutoScalingGroups, aws.describe_group_now(group).boxed()).await
}

/// Turns scale-in protection on or off.
pub(super) async fn protect(
    aws: &Aws,
    group: &GroupName,
    instances: &[InstanceId],
    on: bool,
) -> Result<(), AwsError> {
    within(WITHIN, Operation::SetInstanceProtection, aws.protect(group, instances, on).boxed()).await
}

/// Tags instances. Also whether they may have the tag afterwards: none has if EC2 refused.
pub(super) async fn tag(aws: &Aws, instances: &[InstanceId], value: &str) -> (Result<(), AwsError>, bool) {
    let call = aws.tag_instances(instances, PROTECTION_TAG, value).boxed();
    let result = within(TAG_WITHIN, Operation::CreateTags, call).await;
    let may_have_it = !instances.is_empty() && result.as_ref().err().is_none_or(AwsError::is_transient);
    (result, may_have_it)
}

/// Takes the tag with this value off: one that another process has put in its place stays.
pub(super) async fn untag(aws: &Aws, instances: &[InstanceId], value: &str) -> Result<(), AwsError> {
    within(WITHIN, Operation::DeleteTags, aws.untag_instances(instances, PROTECTION_TAG, value).boxed()).await
}

/// Tagged instances of the whole account, with the tag's value.
pub(super) async fn tagged_instances(aws: &Aws) -> Result<Vec<(InstanceId, String)>, AwsError> {
    within(WITHIN, Operation::DescribeTags, aws.tagged_instances(PROTECTION_TAG).boxed()).await
}

/// Abandons a call after `limit`. It may take effect all the same. Boxed: the SDK's futures are large.
async fn within<T>(
    limit: Duration,
    operation: Operation,
    call: BoxFuture<'_, Result<T, AwsError>>,
) -> Result<T, AwsError> {
    let late = |elapsed| Err(AwsError::unreachable(operation, elapsed));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}
