//! Whom a drain waits for, and why.

use jiff::Timestamp;

use crate::cluster::PodName;

/// A pod that a drain waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The pod.
    pub pod: PodName,
    /// What for.
    pub why: WaitReason,
}

/// Why a pod is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It has been asked to go and has time until then.
    Exiting(Timestamp),
    /// It had time until then, and its kubelet has not said that it has ended.
    Overdue(Timestamp),
    /// A budget has no room: which, and the API server's words.
    Budget(String, String),
    /// It asked not to be disturbed.
    Patient,
    /// The API server refused for another reason.
    Refused(String),
    /// Its turn has not come.
    Queued,
}
