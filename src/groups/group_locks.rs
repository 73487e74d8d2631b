//! A lock for each group: the size a change was decided from holds until the change is done.
//!
//! Setting a size takes the lock alone, because a size is absolute. Terminations with a decrement share it. A holder waits for that
//! change's calls only: cluster-autoscaler backs off a group that it cannot raise within a few seconds.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::k8s::GroupName;

/// The locks of all groups.
#[derive(Debug, Default)]
pub(super) struct GroupLocks(Mutex<HashMap<GroupName, Arc<RwLock<()>>>>);

/// Exclusive lock of one group. Released when all clones are dropped.
#[derive(Clone, Debug)]
pub struct GroupLock {
    group: GroupName,
    _held: Arc<OwnedRwLockWriteGuard<()>>,
}

/// Locks of one group whose size goes down: that of its instances' protection, which outlasts the change, and that of its size.
#[derive(Clone, Debug)]
pub struct LowerLock {
    pub(super) protection: GroupLock,
    /// To be given back as soon as the size is set.
    pub(super) size: GroupLock,
}

/// Lock of one group that terminations share. Released when dropped.
#[derive(Debug)]
pub struct SharedGroupLock {
    _held: OwnedRwLockReadGuard<()>,
}

impl GroupLocks {
    pub(super) async fn of(&self, group: &GroupName) -> GroupLock {
        GroupLock { group: group.clone(), _held: Arc::new(self.lock(group).write_owned().await) }
    }

    pub(super) async fn of_termination(&self, group: &GroupName) -> SharedGroupLock {
        SharedGroupLock { _held: self.lock(group).read_owned().await }
    }

    fn lock(&self, group: &GroupName) -> Arc<RwLock<()>> {
        let mut locks = self.0.lock();
        // Whoever holds one, or waits for it, has a clone. Groups come and go.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(group.clone()).or_default())
    }
}

impl LowerLock {
    /// The lock of the size alone.
    pub fn size(&self) -> &GroupLock {
        &self.size
    }
}

impl GroupLock {
    /// Name of the group.
    pub fn group(&self) -> &GroupName {
        &self.group
    }
}
