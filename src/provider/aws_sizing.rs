//! Changing sizes at AWS, for the RPCs.
//!
//! Each change runs in a task of its own that holds the group's lock to the end, even if the caller gives up. Lower
//! sizes go through [`Protection`].

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{Running, Sizing, SizingError};
use crate::aws::{Aws, AwsError, Lifecycle};
use crate::groups::protection::Protection;
use crate::groups::selector::Selectors;
use crate::groups::{Change, Group, GroupLock, Groups, LowerLock};
use crate::k8s::{GroupName, InstanceId};

/// Reads and sets sizes at AWS.
#[derive(Debug)]
pub struct AwsSizing {
    aws: Aws,
    selectors: Selectors,
    groups: Arc<Groups>,
    protection: Arc<Protection>,
    running: Running,
}

impl AwsSizing {
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
}

#[async_trait]
impl Sizing for AwsSizing {
    async fn current(&self, group: &Group) -> Result<Group, SizingError> {
        let found = self.aws.describe_group_now(&group.asg.name).await?;
        let missing = || {
            self.groups.refresh_soon();
            SizingError::LeftOut(group.asg.name.clone())
        };
        // AWS's description may lag behind what we have just set.
        let mut asg = self.protection.brought_up_to_date(found.ok_or_else(missing)?);
        self.selectors.tighten(&mut asg);
        Ok(Group { asg: Arc::new(asg), ..group.clone() })
    }

    async fn raise(&self, lock: &GroupLock, from: i32, to: i32) -> Result<(), SizingError> {
        self.refuse_while_another_may_come(lock.group(), from)?;
        let (protection, lock) = (Arc::clone(&self.protection), lock.clone());
        let set = self.running.start(async move {
            let set = protection.set(lock.group(), to).await;
            if set.is_ok() {
                protection.note(Change::Desired { group: lock.group().to_owned(), from, to });
            }
            set
        });
        self.heard(set).await
    }

    async fn lower(
        &self,
        lock: &LowerLock,
        from: i32,
        to: i32,
        protect: &[InstanceId],
    ) -> Result<(), SizingError> {
        self.refuse_while_another_may_come(lock.size().group(), from)?;
        let (answer, set) = oneshot::channel();
        let (protection, lock, protect) = (Arc::clone(&self.protection), lock.clone(), protect.to_vec());
        self.running.spawn(async move { protection.lower(lock, (from, to), protect, answer).await });
        self.heard(set).await
    }

    async fn terminate(&self, lock: &GroupLock, instance: &InstanceId) -> Result<(), SizingError> {
        let (aws, lock, instance) = (self.aws.clone(), lock.clone(), instance.to_owned());
        let protection = Arc::clone(&self.protection);
        let terminated = self.running.start(async move {
            let terminated = aws.terminate(&instance, true).await;
            if terminated.is_ok() {
                let group = lock.group().to_owned();
                protection.note(Change::Terminated {
                    group,
                    instance,
                    state: Lifecycle::Terminating,
                    decrement: true,
                });
            }
            drop(lock);
            terminated
        });
        self.heard(terminated).await
    }
}
