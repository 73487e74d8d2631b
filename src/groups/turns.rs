//! One change of a group at a time: what one has decided from holds until it is carried out and tidied up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The turns of all groups.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

/// The right to change one group. It ends when all clones are dropped.
#[derive(Clone, Debug)]
pub struct Turn {
    group: String,
    _held: Arc<OwnedMutexGuard<()>>,
}

impl Turns {
    pub(super) async fn of(&self, group: &str) -> Turn {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(group.to_owned()).or_default())
        };
        Turn { group: group.to_owned(), _held: Arc::new(turn.lock_owned().await) }
    }
}

impl Turn {
    /// Name of the group.
    pub fn group(&self) -> &str {
        &self.group
    }
}
