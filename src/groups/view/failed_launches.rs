//! Groups whose launches have failed lately. Lost at a restart: the next failure teaches it again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::clock::elapsed;
use crate::groups::Snapshot;
use crate::k8s::GroupName;

/// How long cluster-autoscaler leaves a group alone in which launches have failed (`--initial-node-group-backoff-duration`).
const BACK_OFF: Duration = Duration::from_mins(5);

/// How long refused capacity counts as missing. cluster-autoscaler backs the group off for five minutes at first, and up to thirty;
/// meanwhile it must not try the next group with the same type in the same zone.
const REFUSED_FOR: Duration = Duration::from_mins(15);

/// When a view last showed failed launches of a group, and when it showed some that failed for want of capacity.
#[derive(Debug, Default)]
pub struct FailedLaunches(Mutex<BTreeMap<GroupName, (Timestamp, Option<Timestamp>)>>);

impl FailedLaunches {
    /// Notes what a view shows.
    pub(super) fn note(&self, view: &Snapshot) {
        let (mut known, at) = (self.0.lock(), view.taken_at);
        known.retain(|_, (failed, _)| elapsed(*failed, at) < REFUSED_FOR);
        for (name, group) in &view.groups {
            if let Some(failure) = &group.failure {
                let (failed, refused) = known.entry(name.clone()).or_default();
                *failed = at;
                *refused = failure.out_of_resources.then_some(at).or(*refused);
            }
        }
    }

    /// Whether launches of the group have failed, for any reason, so lately that cluster-autoscaler may leave it alone.
    pub fn have_failed(&self, group: &GroupName, now: Timestamp) -> bool {
        self.0.lock().get(group).is_some_and(|(failed, _)| elapsed(*failed, now) < BACK_OFF)
    }

    /// The groups whose capacity was refused so lately that it counts as missing.
    pub fn refused(&self, now: Timestamp) -> BTreeSet<GroupName> {
        let counts = |at: Option<Timestamp>| at.is_some_and(|at| elapsed(at, now) < REFUSED_FOR);
        let known = self.0.lock();
        known.iter().filter(|(_, (_, at))| counts(*at)).map(|(name, _)| name.clone()).collect()
    }
}
