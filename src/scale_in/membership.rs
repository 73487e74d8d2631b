//! Whether a Node's instance is in a group of ours.

use jiff::Timestamp;

use crate::aws::Lifecycle;
use crate::k8s::GroupName;

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
