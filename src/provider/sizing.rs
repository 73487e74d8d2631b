//! The little of AWS that the RPCs need: the size of one group, as it is now.

use async_trait::async_trait;

use crate::groups::{Group, GroupLock};
use crate::k8s::InstanceId;

/// Reads and changes sizes of Auto Scaling groups.
///
/// What AWS has accepted is laid over the view in [`Groups`](crate::groups::Groups) here, whether or not the caller still waits.
/// The caller bounds every call in time and may drop it at any point, so that an implementation must leave nothing
/// behind that hurts when it is (a scale-in protection that is only for a moment, for example).
#[async_trait]
pub trait Sizing: Send + Sync + 'static {
    /// `group` as AWS describes it at this moment: desired capacity, limits, suspended processes and instances are
    /// new; what discovery computed (the template, say) is kept.
    async fn current(&self, group: &Group) -> Result<Group, SizingError>;

    /// Sets the desired capacity of the group whose lock it holds to `to`; `from` is what [`Sizing::current`] said last.
    /// The instances in `protect` are protected from scale-in until AWS has acted on the new size. What is left to do in
    /// the group's lock keeps it.
    async fn set_desired(
        &self,
        lock: &GroupLock,
        from: i32,
        to: i32,
        protect: &[InstanceId],
    ) -> Result<(), SizingError>;

    /// Terminates an instance of the group whose lock it holds, and lowers the desired capacity with it if `decrement`. What is
    /// left to do under the group's lock keeps it.
    async fn terminate(
        &self,
        lock: &GroupLock,
        instance: &InstanceId,
        decrement: bool,
    ) -> Result<(), SizingError>;
}

/// Why AWS did not do it.
#[derive(Debug, thiserror::Error)]
pub enum SizingError {
    /// Too many requests, in this account and region.
    #[error("AWS throttles requests")]
    Throttled,
    /// The group is in the middle of another change (`ScalingActivityInProgress`, `ResourceContention`).
    #[error("the group is busy with another change")]
    Busy,
    /// AWS says that this cannot be done as things are.
    #[error("AWS refuses: {0}")]
    Refused(String),
    /// The credentials do not allow it.
    #[error("AWS denies it to this program's credentials: {0}")]
    Denied(String),
    /// No answer, or none that could be read.
    #[error("AWS cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The task that made the change is gone. AWS may have carried it out.
    #[error("the change was cut off: the program is stopping, or its task panicked")]
    CutOff,
}
