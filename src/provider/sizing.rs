//! What the RPCs need of AWS: one group's present size, and changes of it.
//!
//! Each change runs in a task of its own that holds the group's lock to the end, even if the caller gives up. Lower
//! sizes go through [`Protection`].

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Running;
use crate::aws::{Aws, AwsError, Lifecycle, Operation};
use crate::groups::protection::Protection;
use crate::groups::selector::Selectors;
use crate::groups::{Change, Group, GroupLock, Groups, LowerLock};
use crate::k8s::{GroupName, InstanceId};

/// Reads and sets sizes at AWS. The caller may drop a call at any await; nothing harmful is left behind then (a temporary scale-in
/// protection, for example).
#[derive(Debug)]
pub struct Sizing {
    aws: Aws,
    selectors: Selectors,
    groups: Arc<Groups>,
    protection: Arc<Protection>,
    running: Running,
}

impl Sizing {
    /// Sizes of the groups of `selectors`. The changes run in `running`.
    pub fn new(
        aws: Aws,
        selectors: Selectors,
        groups: Arc<Groups>,
        protection: Arc<Protection>,
        running: Running,
    ) -> Self {
        Self { aws, selectors, groups, protection, running }
    }

    /// A size that comes late undoes what is set meanwhile, and the group ends healthy instances for it.
    fn refuse_while_another_may_come(&self, group: &GroupName, seen: i32) -> Result<(), SizingError> {
        self.protection.late_size(group, seen).map_or(Ok(()), |late| Err(SizingError::MayCome(late)))
    }

    /// Waits for AWS's answer to a change.
    async fn heard(&self, result: oneshot::Receiver<Result<(), AwsError>>) -> Result<(), SizingError> {
        let result = result.await.map_err(|_| SizingError::CutOff)?;
        if result.is_err() {
            // The change may have taken effect all the same.
            self.groups.refresh_soon();
        }
        Ok(result?)
    }

    /// `group` as AWS describes it at this moment: desired capacity, limits, suspended processes and instances are
    /// new; what discovery computed (the template, say) is kept.
    pub async fn current(&self, group: &Group) -> Result<Group, SizingError> {
        let found = self.aws.describe_group_now(&group.asg.name).await?;
        let missing = || {
            self.groups.refresh_soon();
            SizingError::LeftOut(group.asg.name.clone())
        };
        // AWS's description may lag behind what we have just set.
        let mut asg = self.protection.brought_up_to_date(found.ok_or_else(missing)?);
        self.selectors.tighten(&mut asg);
        if !self.selectors.selects(&asg) || self.selectors.is_of_another_cluster(&asg) {
            // Somebody has taken its tag off: its size is no longer ours to change.
            let size = group.asg.desired;
            (asg.min, asg.max, asg.desired, asg.described_desired) = (size, size, size, None);
        }
        Ok(Group { asg: Arc::new(asg), ..group.clone() })
    }

    /// Raises the desired capacity of the locked group to `to`; `from` is what [`current`](Self::current) said last, which was asked at
    /// `asked_at` by the wall clock. Work that outlives the call keeps the lock.
    pub async fn raise(
        &self,
        lock: &GroupLock,
        from: i32,
        to: i32,
        asked_at: Timestamp,
    ) -> Result<(), SizingError> {
        self.refuse_while_another_may_come(lock.group(), from)?;
        let (protection, lock) = (Arc::clone(&self.protection), lock.clone());
        let set = self.running.start(async move {
            let set = protection.set(lock.group(), to, asked_at).await;
            if set.is_ok() {
                protection.note(Change::Desired { group: lock.group().to_owned(), from, to });
            }
            set
        });
        self.heard(set).await
    }

    /// Lowers it to `to`, which was decided in the same way. The instances in `protect` are protected from scale-in until AWS has acted on
    /// the new size. Work that outlives the call keeps the locks, that of the size no longer than it needs it.
    pub async fn lower(
        &self,
        lock: &LowerLock,
        from: i32,
        to: i32,
        protect: &[InstanceId],
        asked_at: Timestamp,
    ) -> Result<(), SizingError> {
        self.refuse_while_another_may_come(lock.size().group(), from)?;
        let (answer, set) = oneshot::channel();
        let (protection, lock, protect) = (Arc::clone(&self.protection), lock.clone(), protect.to_vec());
        self.running
            .spawn(async move { protection.lower(lock, (from, to), protect, asked_at, answer).await });
        self.heard(set).await
    }

    /// Terminates an instance of the locked group, and lowers the desired capacity by it if `decrement`, as was decided from what was asked
    /// for at `asked_at` by the wall clock. Work that outlives the call keeps the lock.
    pub async fn terminate(
        &self,
        lock: &GroupLock,
        instance: &InstanceId,
        decrement: bool,
        asked_at: Timestamp,
    ) -> Result<(), SizingError> {
        self.protection.refuse_old(Operation::TerminateInstanceInAutoScalingGroup, asked_at)?;
        let (aws, lock, instance) = (self.aws.clone(), lock.clone(), instance.to_owned());
        let protection = Arc::clone(&self.protection);
        let terminated = self.running.start(async move {
            let terminated = aws.terminate(&instance, decrement).await;
            if terminated.is_ok() {
                let group = lock.group().to_owned();
                protection.note(Change::Terminated {
                    group,
                    instance,
                    state: Lifecycle::Terminating,
                    decrement,
                });
            }
            drop(lock);
            terminated
        });
        self.heard(terminated).await
    }
}

/// Why a size was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SizingError {
    /// AWS's answer, or that there was none.
    #[error(transparent)]
    Aws(#[from] AwsError),
    /// AWS has not answered an earlier change of its size, which may still come.
    #[error("an earlier change of its size to {0} got no answer; it may take effect for two minutes")]
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
