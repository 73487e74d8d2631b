//! One change of a group's size at a time: what one has decided from holds until it is carried out and tidied up.
//!
//! Who sets a size needs the group to itself, because a size is absolute. Who takes an instance out with a decrement may
//! do so beside others that do the same, but not beside one that sets a size.

use crate::k8s::GroupName;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The turns of all groups.
#[derive(Debug, Default)]
pub(super) struct GroupLocks(Mutex<HashMap<GroupName, Arc<RwLock<()>>>>);

/// The right to change one group. It ends when all clones are dropped.
#[derive(Clone, Debug)]
pub struct GroupLock {
    group: GroupName,
    _held: Arc<OwnedRwLockWriteGuard<()>>,
}

/// The right to take instances out of a group, beside others that do. It ends when it is dropped.
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
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(group.clone()).or_default())
    }
}

impl GroupLock {
    /// Name of the group.
    pub fn group(&self) -> &GroupName {
        &self.group
    }
}
