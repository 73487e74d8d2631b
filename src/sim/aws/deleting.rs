//! Groups that are being deleted: they end their instances, under their hooks, refuse changes, and are there until the
//! last has gone and a while longer.
//!
//! That a forced deletion waits for terminating hooks is seen (<https://github.com/radkawar/stackd>,
//! testdata/aws/autoscaling), whatever
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DeleteAutoScalingGroup.html> says of them.

use std::time::Duration;

use jiff::Timestamp;

use super::error::ApiError;
use super::group::{Deleting, Group, after};
use super::journal::TerminationCause;
use super::state::Shared;

/// How long a group without instances is still shown. Guessed: DescribeAutoScalingGroups has a `Status` for it.
const SHOWN_EMPTY: Duration = Duration::from_secs(30);

impl Group {
    /// Begins to delete the group with all its instances.
    pub(super) fn delete(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.deleting.is_some() {
            return;
        }
        self.deleting = Some(Deleting::Draining);
        (self.min, self.max, self.desired) = (0, 0, 0);
        self.launches.clear();
        self.replacing.clear();
        for id in self.instances.keys().cloned().collect::<Vec<_>>() {
            self.terminate(shared, &id, TerminationCause::GroupDeletion, false, at);
        }
        self.settle(shared, at);
    }

    /// Once its last instance has gone, the group goes too.
    pub(super) fn dissolve(&mut self, at: Timestamp) {
        if self.deleting == Some(Deleting::Draining) && self.instances.is_empty() {
            self.deleting = Some(Deleting::Until(after(at, SHOWN_EMPTY)));
        }
    }

    /// Whether the group is gone by now.
    pub(super) fn is_gone(&self, at: Timestamp) -> bool {
        matches!(self.deleting, Some(Deleting::Until(gone)) if gone <= at)
    }

    /// Refuses changes that nobody but the group's operator may make, or nobody any more.
    ///
    /// The words about a group pending delete are seen: <https://github.com/kubernetes/kops/issues/844>. What AWS
    /// answers for a group that a service operates is not documented; that it refuses is:
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operator.html>.
    pub(super) fn changeable(&self) -> Result<(), ApiError> {
        if let Some(operator) = &self.policies.operator {
            return Err(ApiError::validation(format!(
                "AutoScalingGroup {} is managed by {operator} and can only be changed by it",
                self.name
            )));
        }
        if self.deleting.is_some() {
            return Err(ApiError::validation(
                "The AutoScaling group may not be modified while it is pending delete",
            ));
        }
        Ok(())
    }
}
