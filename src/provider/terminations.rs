//! Terminations of instances without a Node that descriptions need not show yet.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use crate::aws::DELIVERED_WITHIN;
use crate::clock::{later, signed};
use crate::groups::ENDS_WITHIN;
use crate::k8s::InstanceId;

/// What is known of a termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// No answer has come, or not yet.
    Unclear,
    /// AWS does it.
    Done,
}

/// Terminations that were sent, and when that was: a second one with a decrement takes a healthy node.
#[derive(Debug, Default)]
pub(super) struct Terminations(Mutex<BTreeMap<InstanceId, (Sent, Timestamp)>>);

impl Terminations {
    /// What is known of one that may still have to show its effect.
    pub(super) fn of(&self, instance: &InstanceId, now: Timestamp) -> Option<Sent> {
        self.pending(now).get(instance).map(|(sent, _)| *sent)
    }

    /// Those of which no answer has come, or not yet.
    pub(super) fn unclear(&self, now: Timestamp) -> BTreeSet<InstanceId> {
        let pending = self.pending(now);
        let unclear = pending.iter().filter(|(_, (sent, _))| *sent == Sent::Unclear);
        unclear.map(|(instance, _)| instance.clone()).collect()
    }

    /// Those that may still have to show their effect.
    fn pending(&self, now: Timestamp) -> MutexGuard<'_, BTreeMap<InstanceId, (Sent, Timestamp)>> {
        let mut all = self.0.lock();
        let counts_for = |sent| if sent == Sent::Done { signed(ENDS_WITHIN) } else { DELIVERED_WITHIN };
        all.retain(|_, (sent, at)| later(*at, counts_for(*sent)) > now);
        all
    }

    /// Notes one that is about to be sent as [`Sent::Unclear`].
    pub(super) fn intend(&self, instance: InstanceId, now: Timestamp) -> Intended<'_> {
        self.note(&instance, Some(Sent::Unclear), now);
        Intended { terminations: self, instance, is_begun: false }
    }

    /// Notes what is known of one; `None`: AWS has refused it.
    pub(super) fn note(&self, instance: &InstanceId, sent: Option<Sent>, now: Timestamp) {
        let mut all = self.0.lock();
        match sent {
            Some(sent) => drop(all.insert(instance.clone(), (sent, now))),
            None => drop(all.remove(instance)),
        }
    }
}

/// A termination that is about to be sent. One that never is (the time is up, or the client has cancelled) is noted no longer.
#[derive(Debug)]
pub(super) struct Intended<'a> {
    terminations: &'a Terminations,
    pub(super) instance: InstanceId,
    is_begun: bool,
}

impl Intended<'_> {
    /// From now on, AWS may hear of it.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
    }
}

impl Drop for Intended<'_> {
    fn drop(&mut self) {
        if !self.is_begun {
            self.terminations.0.lock().remove(&self.instance);
        }
    }
}
