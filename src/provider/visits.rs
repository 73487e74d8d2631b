//! cluster-autoscaler's Refresh: when it comes to this process from another one, the groups are looked at before it is answered.
//!
//! Discovery has its own poll interval, and knows at once what this process changes: a look for every Refresh would be six a minute. What
//! another replica has changed it may learn a minute later. Until then a size that cluster-autoscaler has set there would seem not to be
//! set, and it would set it again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use super::deadline::Deadline;
use crate::clock::{Clock, elapsed};
use crate::groups::Groups;

/// It was elsewhere meanwhile, if it has not come for as long as this: three of its loops.
const AWAY: Duration = Duration::from_secs(30);

/// When cluster-autoscaler came last.
#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<Option<Timestamp>>);

impl Visits {
    /// cluster-autoscaler is here. Looks at the groups first if it was away; not for longer than an RPC may take.
    pub(super) async fn received(&self, groups: &Groups, clock: &Clock) {
        let now = clock.now();
        if self.note(now) {
            let looked = Deadline::start().call("looking at the groups", groups.refreshed(now)).await;
            if looked.is_err() {
                tracing::info!(
                    "cluster-autoscaler is answered from groups as they were before it came: AWS has not answered in time"
                );
            }
        }
    }

    /// Returns whether it was away.
    fn note(&self, now: Timestamp) -> bool {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        last.is_none_or(|last| elapsed(last, now) >= AWAY)
    }
}
