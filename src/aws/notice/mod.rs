//! What AWS tells of instances that are about to go: messages of EventBridge and of the groups themselves, read from a
//! queue. Pure data; [`Aws`](super::Aws) receives them.
//!
//! A notice is only a claim by whoever may write to the queue. It makes the program look sooner and sets deadlines; what
//! is done to an instance depends on what AWS shows of it.

mod reading;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

use crate::k8s::{GroupName, InstanceId};

/// What is in a message of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// News of instances; more than one if the message names several.
    Notices(Vec<Notice>),
    /// A message that is well-formed and ends no instance: what it is, such as a test notification.
    Nothing(String),
    /// A message that nobody can make sense of: why.
    Malformed(String),
}

/// What AWS has told of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which instances.
    pub about: About,
    /// When AWS wrote it, by AWS's clock.
    pub at: Timestamp,
    /// What happens to it.
    pub news: News,
}

/// What a notice is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// One instance.
    Instance(InstanceId),
    /// All instances in this Capacity Reservation, by id.
    CapacityReservation(String),
}

/// What happens to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The group holds it under this lifecycle hook before it is terminated or goes back to the warm pool.
    LifecycleAction {
        /// The group.
        group: GroupName,
        /// The hook's name.
        hook: String,
    },
    /// The group holds it under a hook of another transition, as when it launches: what is told is for the hook's owner.
    OtherTransition,
    /// Spot capacity is taken back two minutes after the notice.
    SpotInterruption,
    /// A spot instance is more likely than others to be interrupted.
    RebalanceRecommendation,
    /// AWS Health: maintenance of its host, a retirement, a reboot.
    ScheduledEvent {
        /// Its ARN, the same in all that AWS tells of it; `None` if AWS does not say.
        event: Option<String>,
        /// From when on the instance may be unavailable; `None`: AWS has not said.
        starts: Option<Timestamp>,
        /// When it is over.
        ends: Option<Timestamp>,
        /// It is over or was called off.
        is_over: bool,
    },
    /// It stops or ends, whoever did that.
    StateChange,
    /// Its capacity is taken back from this moment on: a Capacity Block or an interruptible reservation.
    CapacityEnds(Timestamp),
}
