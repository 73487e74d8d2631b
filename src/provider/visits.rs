//! When cluster-autoscaler comes to this process from another one, the groups are looked at before it is answered: its Refresh or, as a
//! connection may end in the middle of a loop, its first question about sizes. That one may be the first call ever: a process that was
//! never used knows the least of what others have done.
//!
//! Discovery has its own poll interval, and knows at once what this process changes: a look for every Refresh would be six a minute. It
//! may learn another replica's changes a minute late. Until then a size that cluster-autoscaler set there would seem unset, and it would
//! set it again.
//!
//! What another process has done does not show in descriptions for a while, however late they are asked for, and this one cannot remember
//! it.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::deadline::{CALL_WITHIN, Deadline};
use crate::clock::{Clock, elapsed};
use crate::groups::Groups;
use crate::slots::Connection;

/// cluster-autoscaler was elsewhere if it calls over another connection than before and has not called for this long: three of its loops.
/// While it computes it may be silent for longer, and keeps its connection, which leads to one process.
const AWAY: Duration = Duration::from_secs(30);

/// For this long after cluster-autoscaler came from another process, changes it asked of that process may not show: what was sent when that
/// was killed may arrive for [two minutes](crate::aws::DELIVERED_WITHIN), and descriptions may be half a minute old.
const UNSEEN_FOR: Duration = Duration::from_secs(150);

/// When cluster-autoscaler came.
#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<Visit>);

#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    last: Option<Timestamp>,
    /// What it called over then.
    connection: Option<Connection>,
    /// When it came from elsewhere, until the groups have been looked at since.
    unseen: Option<Timestamp>,
    /// When it came last from elsewhere.
    came: Timestamp,
    /// Whether it has begun a loop here.
    has_refreshed: bool,
}

impl Visits {
    /// cluster-autoscaler is here. If it was away, and the groups have not been looked at since it came, waits for that; not for
    /// longer than an RPC may take.
    pub(super) async fn received(&self, connection: Option<Connection>, groups: &Groups, clock: &Clock) {
        let now = clock.now();
        if let Some(came) = self.note(now, connection, true) {
            self.look(came, now, groups).await;
        }
    }

    /// The same for a question about sizes. A loop asks many: if AWS does not answer, together they wait no longer than one Refresh.
    pub(super) async fn asked(&self, connection: Option<Connection>, groups: &Groups, clock: &Clock) {
        let now = clock.now();
        if let Some(came) = self.note(now, connection, false).filter(|came| elapsed(*came, now) < CALL_WITHIN)
        {
            self.look(came, now, groups).await;
        }
    }

    /// The same for a change, which waits for no look: AWS describes the group for it. One begins, for what is asked next.
    pub(super) fn asked_to_change(&self, connection: Option<Connection>, groups: &Groups, clock: &Clock) {
        let now = clock.now();
        if self.note(now, connection, false) == Some(now) {
            groups.refresh_at_once();
        }
    }

    /// Waits until the groups have been looked at since it came.
    async fn look(&self, came: Timestamp, now: Timestamp, groups: &Groups) {
        let looked = Deadline::start().call("looking at the groups", groups.refreshed(came)).await;
        if looked.is_ok() {
            self.looked(came);
        } else if came == now {
            tracing::info!(
                "cluster-autoscaler switched to this replica and gets an older snapshot: AWS did not answer in time"
            );
        }
    }

    /// Returns when it came from elsewhere, if the groups have not been looked at since. `begins`: it is a Refresh. The first one counts as
    /// from elsewhere whatever was asked before: that may have been a person.
    fn note(&self, now: Timestamp, connection: Option<Connection>, begins: bool) -> Option<Timestamp> {
        let mut visit = self.0.lock();
        let is_first = begins && !std::mem::replace(&mut visit.has_refreshed, true);
        let is_same = connection.is_some() && visit.connection == connection;
        let was_away = visit.last.is_none_or(|last| !is_same && elapsed(last, now) >= AWAY);
        (visit.last, visit.connection) = (Some(now), connection);
        if is_first || was_away {
            (visit.came, visit.unseen) = (now, Some(now));
        }
        visit.unseen
    }

    /// Whether cluster-autoscaler came from another process so recently that what that process did may not show yet.
    pub(super) fn may_be_unseen(&self, now: Timestamp) -> bool {
        let visit = self.0.lock();
        visit.last.is_none() || elapsed(visit.came, now) < UNSEEN_FOR
    }

    fn looked(&self, came: Timestamp) {
        let mut visit = self.0.lock();
        visit.unseen = visit.unseen.filter(|unseen| *unseen != came);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which its loops begin, and whether another process's deeds may be unseen at the end of each.
    fn loops(seconds: &[(i64, bool)]) {
        let visits = Visits::default();
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
        assert!(visits.may_be_unseen(at(0)), "it was never here");
        for &(second, expected) in seconds {
            visits.note(at(second), None, true);
            visits.note(at(second + 2), None, false);
            assert_eq!(visits.may_be_unseen(at(second + 3)), expected, "{second}");
        }
    }

    #[test]
    fn what_was_done_elsewhere_may_be_unseen_for_two_minutes_and_a_half_after_it_came() {
        let every_20_s = |seconds: std::ops::Range<i64>| seconds.step_by(20);
        let since = |came: i64| move |second: i64| (second, second < came + 150);
        loops(&every_20_s(0..200).map(since(0)).collect::<Vec<_>>());
        loops(
            &every_20_s(0..80).map(since(0)).chain(every_20_s(100..300).map(since(100))).collect::<Vec<_>>(),
        );
    }

    #[test]
    fn an_autoscaler_in_mid_loop_came_from_elsewhere() {
        let visits = Visits::default();
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
        for second in (0..200).step_by(10) {
            visits.note(at(second), None, true);
        }
        visits.note(at(219), None, false);
        assert!(!visits.may_be_unseen(at(219)));
        visits.note(at(249), None, false);
        assert!(visits.may_be_unseen(at(249)));
    }

    #[test]
    fn one_that_was_never_here_came_from_elsewhere_whatever_it_calls_first_and_a_person_before_it_is_not_it()
    {
        for begins in [false, true] {
            let visits = Visits::default();
            let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
            assert_eq!(visits.note(at(0), None, begins), Some(at(0)));
            assert!(visits.may_be_unseen(at(149)), "{begins}");
            visits.looked(at(0));
            assert_eq!(visits.note(at(5), None, false), None, "it was looked since");
            let first_refresh = (!begins).then_some(at(10));
            assert_eq!(visits.note(at(10), None, true), first_refresh);
            assert_eq!(visits.may_be_unseen(at(155)), !begins);
        }
    }
}
