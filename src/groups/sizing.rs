//! Changing sizes at AWS, for the RPCs.
//!
//! While a desired capacity goes down, the instances that live are protected from scale-in: should one launch at the last
//! moment, the group must not make room by ending another. The protection is taken off again whatever becomes of the
//! caller: the sequence runs to its end in a task of its own. Only the end of the program in the middle of it leaves
//! instances protected.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::task::TaskTracker;

use super::selector::Selectors;
use super::{Group, Groups};
use crate::aws::{Aws, AwsError};
use crate::provider::{Sizing, SizingError};
use crate::telemetry::chain;

/// Reads and sets sizes at AWS.
#[derive(Debug)]
pub struct AwsSizing {
    aws: Aws,
    selectors: Selectors,
    groups: Arc<Groups>,
    running: TaskTracker,
}

impl AwsSizing {
    /// Sizes of the groups of `selectors`. `running` keeps what must end even if nobody waits for it.
    pub fn new(aws: Aws, selectors: Selectors, groups: Arc<Groups>, running: TaskTracker) -> Self {
        Self { aws, selectors, groups, running }
    }
}

#[async_trait]
impl Sizing for AwsSizing {
    async fn current(&self, group: &Group) -> Result<Group, SizingError> {
        let found = self.aws.describe_groups(std::slice::from_ref(&group.name)).await.map_err(told)?;
        let found = found.into_iter().find(|found| found.group.name == group.name);
        let missing = || SizingError::Refused(format!("there is no group {}", group.name));
        let mut now = Group {
            template: group.template.clone(),
            failure: group.failure.clone(),
            options: group.options,
            ..found.ok_or_else(missing)?.group
        };
        self.selectors.tighten(&mut now);
        Ok(now)
    }

    async fn set_desired(
        &self,
        group: &str,
        from: i32,
        to: i32,
        protect: &[String],
    ) -> Result<(), SizingError> {
        let (aws, group, protect) = (self.aws.clone(), group.to_owned(), protect.to_vec());
        let sequence = self.running.spawn(async move {
            if to >= from || protect.is_empty() {
                return aws.set_desired(&group, to).await;
            }
            let result = match aws.protect(&group, &protect, true).await {
                Ok(()) => aws.set_desired(&group, to).await,
                // Some of them may be protected all the same: an answer was lost, or there are many.
                Err(error) => Err(error),
            };
            if let Err(error) = aws.protect(&group, &protect, false).await {
                tracing::warn!(group, instances = ?protect, error = %chain(&error), "instances are still protected from scale-in");
            }
            result
        });
        let result = sequence.await.map_err(|panic| SizingError::Unreachable(Box::new(panic)))?;
        if result.is_err() {
            // It may have had its effect all the same.
            self.groups.refresh_soon();
        }
        result.map_err(told)
    }

    async fn terminate(&self, _group: &str, instance: &str, decrement: bool) -> Result<(), SizingError> {
        let result = self.aws.terminate(instance, decrement).await;
        if result.is_err() {
            self.groups.refresh_soon();
        }
        result.map_err(told)
    }
}

fn told(error: AwsError) -> SizingError {
    match error {
        AwsError::Throttled { .. } => SizingError::Throttled,
        AwsError::ScalingActivityInProgress { .. } => SizingError::Busy,
        AwsError::Denied { .. } => SizingError::Denied(error.to_string()),
        AwsError::Unreachable { .. } => SizingError::Unreachable(Box::new(error)),
        other => SizingError::Refused(other.to_string()),
    }
}
