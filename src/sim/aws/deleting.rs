//! Groups being deleted: they terminate their instances under their hooks, refuse changes, and are shown until a while after
//! the last instance is gone.
//!
//! That a forced deletion waits for terminating hooks is observed (<https://github.com/radkawar/stackd>,
//! testdata/aws/autoscaling), unlike what
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DeleteAutoScalingGroup.html> says.

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

    /// Schedules the group's end once its last instance is gone.
    pub(super) fn dissolve(&mut self, at: Timestamp) {
        if self.deleting == Some(Deleting::Draining) && self.instances.is_empty() {
            self.deleting = Some(Deleting::Until(after(at, SHOWN_EMPTY)));
        }
    }

    /// Whether the group is gone.
    pub(super) fn is_gone(&self, at: Timestamp) -> bool {
        matches!(self.deleting, Some(Deleting::Until(gone)) if gone <= at)
    }

    /// Refuses changes to a group being deleted, or by anybody but its operator.
    ///
    /// The wording for a group pending delete is observed: <https://github.com/kubernetes/kops/issues/844>. The wording for
    /// a group that a service operates is not documented; the refusal is:
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
