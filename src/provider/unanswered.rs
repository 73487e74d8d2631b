//! Terminations that AWS has not answered.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

use crate::clock::later;
use crate::k8s::InstanceId;

/// How long a termination whose answer was lost may take effect late, and descriptions may show the instance as before.
const UNCLEAR_FOR: SignedDuration = SignedDuration::from_secs(30);

/// Terminations whose answer never came, and when that was: a second one with a decrement takes a healthy node.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<BTreeMap<InstanceId, Timestamp>>);

impl Unanswered {
    /// Whether it may still take effect.
    pub(super) fn is_unclear(&self, instance: &InstanceId, now: Timestamp) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, since| later(*since, UNCLEAR_FOR) > now);
        all.contains_key(instance)
    }

    /// Notes a call that has no answer, or not yet.
    pub(super) fn note(&self, instance: &InstanceId, now: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(instance.clone(), now);
    }

    /// Notes that AWS has answered.
    pub(super) fn answered(&self, instance: &InstanceId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(instance);
    }
}
