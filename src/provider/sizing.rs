//! What the RPCs need of AWS: one group's present size, and changes of it.

use async_trait::async_trait;

use crate::aws::AwsError;
use crate::groups::{Group, GroupLock, LowerLock};
use crate::k8s::{GroupName, InstanceId};

/// Reads and changes sizes of Auto Scaling groups.
///
/// The caller may drop a call at any await. An implementation must then leave nothing harmful behind (a temporary
/// scale-in protection, for example).
#[async_trait]
pub trait Sizing: Send + Sync + 'static {
    /// `group` as AWS describes it at this moment: desired capacity, limits, suspended processes and instances are
    /// new; what discovery computed (the template, say) is kept.
    async fn current(&self, group: &Group) -> Result<Group, SizingError>;

    /// Raises the desired capacity of the locked group to `to`; `from` is what [`Sizing::current`] said last. Work that outlives the
    /// call keeps the lock.
    async fn raise(&self, lock: &GroupLock, from: i32, to: i32) -> Result<(), SizingError>;

    /// Lowers it to `to`. The instances in `protect` are protected from scale-in until AWS has acted on the new size. Work that outlives
    /// the call keeps the locks, that of the size no longer than it needs it.
    async fn lower(
        &self,
        lock: &LowerLock,
        from: i32,
        to: i32,
        protect: &[InstanceId],
    ) -> Result<(), SizingError>;

    /// Terminates an instance of the locked group, and lowers the desired capacity by it. Work that outlives the call keeps the lock.
    async fn terminate(&self, lock: &GroupLock, instance: &InstanceId) -> Result<(), SizingError>;
}

/// Why a size was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SizingError {
    /// AWS's answer, or that there was none.
    #[error(transparent)]
    Aws(#[from] AwsError),
    /// AWS has not answered an earlier change of its size, which may still come.
    #[error("an earlier change of its size to {0} had no answer, and may still come for two minutes")]
    MayCome(i32),
    /// Descriptions leave the group out: somebody has deleted it, which the next refresh shows, or they do not show it for the moment.
    #[error("AWS's descriptions of group {0} leave it out; nothing was changed")]
    LeftOut(GroupName),
    /// The task that made the change is gone.
    #[error("the change was cut off: the program is stopping, or its task panicked")]
    CutOff,
}

impl SizingError {
    /// Whether AWS may have made the change all the same.
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Aws(error) => !error.is_refusal(),
            Self::CutOff => true,
            Self::MayCome(_) | Self::LeftOut(_) => false,
        }
    }

    /// Whether the same call may succeed later without intervention.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Aws(error) => error.is_transient(),
            Self::MayCome(_) | Self::LeftOut(_) | Self::CutOff => true,
        }
    }
}
