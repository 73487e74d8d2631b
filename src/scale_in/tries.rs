//! What is tried until it works, and when it is tried again.

use std::hash::Hash;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::action::Action;
use crate::clock::{backoff, signed, spread};

/// A failure counts as lasting after this many in a row: an API server that has just started, or learned of a right, needs a moment.
pub(super) const LASTING_AFTER: u32 = 5;

/// For this many tries, about two minutes, a write of the Node is tried again after five seconds at most: a spot notice gives no more time,
/// and no pod is asked to leave before the record is on the Node.
const QUICK_WRITES: u32 = 25;

/// Something tried until it works.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// A write to the Node.
    Node,
    /// A write to the Node's conditions.
    Report,
    /// Evicting a pod, by UID.
    Evict(String),
    /// Deleting a pod, by UID; a task of its own, so that failed evictions do not delay it.
    DeletePod(String),
    /// Setting or taking off the guard of a DaemonSet pod, by UID.
    Guard(String),
    /// Listing the pods.
    ListPods,
    /// Asking whether a DaemonSet exists, by UID.
    DaemonSet(String),
    /// Looking at AWS again.
    Refresh,
    /// Terminating the instance.
    Terminate,
    /// Completing the lifecycle hook.
    Complete,
    /// Finding out whether AWS lets heartbeats through.
    Heartbeat,
    /// Letting another process lead.
    HandOver,
    /// Deleting the Node.
    Delete,
}

impl Task {
    /// The task an action is a try of; `None` if it is not retried.
    pub fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::PatchNode { .. } => Self::Node,
            Action::Report(_) => Self::Report,
            Action::Evict(ask) => Self::Evict(ask.uid.clone()),
            Action::Delete(ask) => Self::DeletePod(ask.uid.clone()),
            Action::Guard { uid, .. } => Self::Guard(uid.clone()),
            Action::ListPods { .. } => Self::ListPods,
            Action::LookUpDaemonSet { uid, .. } => Self::DaemonSet(uid.clone()),
            Action::Refresh => Self::Refresh,
            Action::Terminate { .. } => Self::Terminate,
            Action::CompleteHook { .. } => Self::Complete,
            Action::Heartbeat { .. } => Self::Heartbeat,
            Action::HandOver => Self::HandOver,
            Action::DeleteNode { .. } => Self::Delete,
            Action::GiveUpReplacement { .. } | Action::Announce(_) => return None,
        })
    }

    /// Pause after the n-th failure in a row: 1 s, doubled up to 30 s.
    pub(super) fn pause_after(&self, failures: u32) -> SignedDuration {
        let is_quick = *self == Self::Node && failures <= QUICK_WRITES;
        let longest = Duration::from_secs(if is_quick { 5 } else { 30 });
        signed(backoff(failures, Duration::from_secs(1), longest))
    }
}

/// `pause`, plus or minus a fifth, so that nodes and pods (`key` tells them apart) do not retry in step. Hashed: the same tries give the same
/// pauses.
pub(super) fn jittered(pause: SignedDuration, key: impl Hash) -> SignedDuration {
    let share = 80 + i64::try_from(spread(key) % 41).unwrap_or_default();
    SignedDuration::from_millis((pause.as_millis() as i64).saturating_mul(share) / 100)
}

/// State of a task's tries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// A try is under way.
    pub in_flight: bool,
    /// When the last try began.
    pub began: Option<Timestamp>,
    /// Failed tries in a row.
    pub failures: u32,
    /// No try before this moment.
    pub not_before: Option<Timestamp>,
    /// When the last try ended.
    pub ended: Option<Timestamp>,
    /// Whether the last try worked.
    pub done: bool,
}

impl Tries {
    /// None yet.
    pub const NONE: Self =
        Self { in_flight: false, began: None, failures: 0, not_before: None, ended: None, done: false };

    /// When the next one may begin; `None` while one is under way.
    pub fn may_begin_at(&self) -> Option<Timestamp> {
        (!self.in_flight).then(|| self.not_before.unwrap_or(Timestamp::MIN))
    }

    /// Whether the last one ended before `moment`, so that its answer may be out of date.
    pub fn ended_before(&self, moment: Timestamp) -> bool {
        !self.in_flight && self.ended.is_some_and(|ended| ended < moment)
    }

    /// Notes that one begins.
    pub fn begin(&mut self, now: Timestamp) {
        (self.in_flight, self.began) = (true, Some(now));
    }

    /// Notes that one worked.
    pub fn worked(&mut self, now: Timestamp) {
        *self = Self { done: true, ended: Some(now), ..Self::NONE };
    }

    /// Notes that one failed; the next one after `pause`.
    pub fn failed(&mut self, now: Timestamp, pause: SignedDuration) {
        (self.in_flight, self.done) = (false, false);
        self.failures += 1;
        (self.ended, self.not_before) = (Some(now), Some(now + pause));
    }

    /// Notes that one was not made after all; the next one after `pause`.
    pub fn unsent(&mut self, now: Timestamp, pause: SignedDuration) {
        (self.in_flight, self.began) = (false, None);
        self.failures += 1;
        self.not_before = Some(now + pause);
    }

    /// Notes that what was asked for is to show by itself, and is asked for again if it has not after this pause.
    pub fn put_off(&mut self, now: Timestamp, pause: SignedDuration) {
        *self = Self { ended: Some(now), not_before: Some(now + pause), ..Self::NONE };
    }
}
