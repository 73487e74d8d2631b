//! Whether a Node's instance is in a group of ours.

use jiff::{SignedDuration, Timestamp};

use crate::aws::Lifecycle;
use crate::k8s::GroupName;

/// How long after a call it may still take effect, and a refresh may still show the state before it.
pub(super) const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Where the node's instance is, by the last refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// There was no refresh yet.
    Unknown,
    /// In none of our groups.
    Elsewhere {
        /// When the refresh began.
        seen: Timestamp,
    },
    /// In a group of ours.
    In {
        /// Name of the group.
        group: GroupName,
        /// State of the instance.
        lifecycle: Lifecycle,
        /// When the refresh began.
        seen: Timestamp,
    },
}
