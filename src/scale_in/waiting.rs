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
    /// Asked to go, with time until then.
    Exiting(Timestamp),
    /// Had time until then; its kubelet has not confirmed its exit.
    Overdue(Timestamp),
    /// A budget has no room: its name, and the API server's words.
    Budget(String, String),
    /// Asked not to be disturbed.
    Patient,
    /// Pods of this order, which is an earlier one, are still there.
    After(i32),
    /// The API server refused for another reason.
    Refused(String),
    /// It is other nodes' turn under the rate of evictions.
    Rate,
    /// Not asked yet, or not answered.
    Queued,
}
