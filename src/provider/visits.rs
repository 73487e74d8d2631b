//! When cluster-autoscaler comes to this process from another one, the groups are looked at before it is answered: its Refresh, or, as a
//! connection may end in the middle of its loop, whatever it asks of sizes first.
//!
//! Discovery has its own poll interval, and knows at once what this process changes: a look for every Refresh would be six a minute. What
//! another replica has changed it may learn a minute later. Until then a size that cluster-autoscaler has set there would seem not to be
//! set, and it would set it again.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::deadline::{CALL_WITHIN, Deadline};
use crate::clock::{Clock, elapsed};
use crate::groups::Groups;

/// It was elsewhere meanwhile, if it has not come for as long as this: three of its loops.
const AWAY: Duration = Duration::from_secs(30);

/// When cluster-autoscaler came.
#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<Visit>);

#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    last: Option<Timestamp>,
    /// When it came from elsewhere, until the groups have been looked at since.
    unseen: Option<Timestamp>,
}

impl Visits {
    /// cluster-autoscaler is here. If it was away, and the groups have not been looked at since it came, waits for that; not for
    /// longer than an RPC may take.
    pub(super) async fn received(&self, groups: &Groups, clock: &Clock) {
        let now = clock.now();
        if let Some(came) = self.note(now, true) {
            self.look(came, now, groups).await;
        }
    }

    /// The same of a question about sizes, where cluster-autoscaler has been here before. There are many in a loop: where AWS does not
    /// answer, they wait for a Refresh's time in all.
    pub(super) async fn asked(&self, groups: &Groups, clock: &Clock) {
        let now = clock.now();
        if let Some(came) = self.note(now, false).filter(|came| elapsed(*came, now) < CALL_WITHIN) {
            self.look(came, now, groups).await;
        }
    }

    /// Waits until the groups have been looked at since it came.
    async fn look(&self, came: Timestamp, now: Timestamp, groups: &Groups) {
        let looked = Deadline::start().call("looking at the groups", groups.refreshed(came)).await;
        if looked.is_ok() {
            self.looked(came);
        } else if came == now {
            tracing::info!(
                "cluster-autoscaler is answered from groups as they were before it came: AWS has not answered in time"
            );
        }
    }

    /// Returns when it came from elsewhere, if the groups have not been looked at since. `begins`: by a Refresh, which counts as a visit
    /// also where it was never here.
    fn note(&self, now: Timestamp, begins: bool) -> Option<Timestamp> {
        let mut visit = self.0.lock();
        if visit.last.is_none() && !begins {
            return None;
        }
        if visit.last.replace(now).is_none_or(|last| elapsed(last, now) >= AWAY) {
            visit.unseen = Some(now);
        }
        visit.unseen
    }

    fn looked(&self, came: Timestamp) {
        let mut visit = self.0.lock();
        visit.unseen = visit.unseen.filter(|unseen| *unseen != came);
    }
}
