//! Settings of scale-ins, from flags.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::class::Flush;
use super::record::{Cause, Record};
use crate::clock::{later, signed};

/// Settings of scale-ins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This installation: its Lease, `namespace/name`. `None`: it has none.
    pub installation: Option<String>,
    /// Flush times.
    pub flush: Flush,
    /// How long to wait for pods that asked not to be disturbed, unless cluster-autoscaler asked for the drain; `None`: as
    /// long as it takes.
    pub patience: Option<Duration>,
    /// Longest time from request to release, for every cause.
    pub drain_timeout: Option<Duration>,
    /// What becomes of pods that are left when that time is over.
    pub on_deadline: OnDeadline,
    /// Namespaces whose pods can ask for a place in the order of a drain; empty: all.
    pub order_namespaces: BTreeSet<String>,
    /// How long an instance must be gone before we delete its Node; `None`: never.
    pub delete_node_after: Option<Duration>,
    /// Whether an instance is released only when no load balancer reaches it any more.
    pub wait_for_load_balancers: bool,
    /// What to do on a rebalance recommendation, unless the group rebalances its capacity itself.
    pub on_rebalance: Treatment,
    /// What to do when AWS Health announces an event.
    pub on_scheduled_event: Treatment,
    /// Whether to keep cluster-autoscaler from draining DaemonSet pods itself.
    pub guard: bool,
    /// How many scale-ins by annotation go on at once in a group.
    pub operator_at_once: AtOnce,
}

impl Settings {
    /// When the patience of this scale-in ends, if it does, by the record's clock. cluster-autoscaler has checked for such pods
    /// itself.
    pub(super) fn patience_ends(&self, record: &Record) -> Option<Timestamp> {
        let patience = self.patience.filter(|_| record.cause != Cause::Autoscaler)?;
        Some(later(record.requested_at, signed(patience)))
    }
}

impl Default for Settings {
    /// What the flags default to.
    fn default() -> Self {
        let default = Duration::from_secs(5);
        let longest = default + Duration::from_mins(2);
        Self {
            installation: None,
            flush: Flush { default, longest, namespaces: BTreeSet::new() },
            patience: None,
            drain_timeout: None,
            on_deadline: OnDeadline::Delete,
            order_namespaces: BTreeSet::new(),
            delete_node_after: None,
            wait_for_load_balancers: false,
            on_rebalance: Treatment::Cordon,
            on_scheduled_event: Treatment::Drain,
            guard: true,
            operator_at_once: AtOnce::Share(1_000),
        }
    }
}

/// What to do with a node that may have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Treatment {
    /// Nothing.
    Nothing,
    /// Keep new pods away until the notice has lapsed.
    Cordon,
    /// Drain it and have it replaced.
    Drain,
}

/// What to do with pods left at a limit of our own. At AWS's limits they are always deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeadline {
    /// They are deleted, whatever their budgets say.
    Delete,
    /// They are waited for, and named in an Event.
    Wait,
}

/// How many scale-ins by annotation go on at once in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// This many.
    Number(u32),
    /// Hundredths of a percent of the group's instances; at least one instance.
    Share(u32),
}

impl AtOnce {
    /// The number for a group of this size.
    pub(super) fn of(self, size: usize) -> usize {
        match self {
            Self::Number(number) => usize::try_from(number).unwrap_or(usize::MAX),
            Self::Share(share) => size.saturating_mul(usize::try_from(share).unwrap_or(usize::MAX)) / 10_000,
        }
        .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_group_is_rounded_down_and_one_at_least() {
        let table = [(AtOnce::Share(1_000), 9, 1), (AtOnce::Share(1_000), 29, 2), (AtOnce::Share(0), 50, 1)];
        for (limit, size, expected) in table {
            assert_eq!(limit.of(size), expected, "{limit:?} of {size}");
        }
        assert_eq!(AtOnce::Number(3).of(1), 3);
        assert_eq!(AtOnce::Share(u32::MAX).of(usize::MAX), usize::MAX / 10_000);
    }
}
