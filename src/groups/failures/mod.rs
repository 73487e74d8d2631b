//! Why groups cannot launch what they should.
//!
//! A group is short while fewer instances live than its desired capacity asks for. Only the scaling activities of such groups
//! are read, a few groups a refresh, and only those since the present size was set: earlier failures explain nothing, nor do failures
//! before a launch that is under way, which is the next try. A failed try is one activity for all its instances, or one for each: as many
//! count as failed as it was for, and none is given up twice. Pure; discovery asks AWS.

mod cause;
mod explain;
mod message;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use self::explain::{explain, failed_tries, is_launch};
pub use self::metrics::LaunchMetrics;
use super::sizes;
use super::{LaunchFailure, Snapshot};
use crate::aws::{Activity, AutoScalingGroup};
use crate::clock::elapsed;
use crate::k8s::GroupName;

/// How long a group must be short before its activities are read: a launch that works shows an instance within seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after activities without a failure they are read again.
const AGAIN_UNKNOWN: Duration = Duration::from_secs(10);
/// How long after a failure they are read again: groups retry every few minutes.
const AGAIN_KNOWN: Duration = Duration::from_mins(1);
/// How far back activities count if a group was short when first seen: longer than a group waits between two tries.
const BEFORE_US: Duration = Duration::from_mins(15);
/// Allowed difference between AWS's clock and ours.
const SKEW: Duration = Duration::from_secs(5);
/// Groups whose activities are read in one refresh: an outage of a zone makes many groups short at once.
const A_LOOK: usize = 10;

/// The groups that are short, and what is known about it.
#[derive(Clone, Debug, Default)]
pub struct Shortages {
    looked_at: Option<Timestamp>,
    /// Groups of the last refresh.
    seen: BTreeSet<GroupName>,
    short: BTreeMap<GroupName, Shortage>,
}

#[derive(Clone, Debug)]
struct Shortage {
    /// When it was first seen.
    seen_at: Timestamp,
    /// Desired capacity at the last refresh.
    desired: i32,
    /// Live instances (or units) then.
    live: i32,
    /// The tries that failed among the activities last read, newest first: the id of one launch of each, and how many of its
    /// instances have not been given up.
    failed: Vec<(String, usize)>,
    /// By how many the desired capacity has been lowered for each since.
    spent: BTreeMap<String, usize>,
    /// Earlier activities do not count.
    since: Timestamp,
    asked_at: Option<Timestamp>,
    failure: Option<LaunchFailure>,
}

/// Whether the group has fewer instances than desired and may launch more.
pub fn is_short(group: &AutoScalingGroup) -> bool {
    !sizes::launches_nothing(group) && live(group) < group.desired
}

fn live(group: &AutoScalingGroup) -> i32 {
    group.live().map(|instance| group.weight(&instance.id)).fold(0, i32::saturating_add)
}

/// The launches that failed among these activities: the id of each, and whether capacity or quota was lacking. What was called off has not
/// failed.
pub(super) fn failed_launches(activities: &[Activity]) -> impl Iterator<Item = (&str, bool)> {
    let failed = activities.iter().filter(|activity| is_launch(activity) && activity.status == "Failed");
    failed.map(|launch| (launch.id.as_str(), message::read(&launch.message).out_of_resources))
}

impl Shortage {
    /// The shortage at a later refresh, the desired capacity not raised.
    fn still(mut self, group: &AutoScalingGroup) -> Self {
        let live = live(group);
        // A scale-in lowers the desired capacity too, but gives up no missing instance.
        let scaled_in = self.live.saturating_sub(live).max(0);
        let given_up = self.desired.saturating_sub(group.desired).saturating_sub(scaled_in);
        let given_up = usize::try_from(given_up).unwrap_or(0);
        if let Some(failure) = self.failure.take_if(|_| given_up > 0) {
            self.failure = failure.without(given_up);
            let left = self.failure.as_ref().map_or(0, |rest| rest.launches);
            self.spend_all_but(left);
        }
        Self { desired: group.desired, live, ..self }
    }

    /// Leaves so many instances for failed launches to explain, the newest.
    fn spend_all_but(&mut self, mut left: usize) {
        for (id, instances) in &mut self.failed {
            let stays = left.min(*instances);
            *self.spent.entry(id.clone()).or_default() += *instances - stays;
            (*instances, left) = (stays, left - stays);
        }
        self.failed.retain(|(_, instances)| *instances > 0);
    }

    /// Notes the group's activities, newest first. They are told apart by id: a launch that began before another was given up may
    /// fail after that.
    fn learn(&mut self, group: &AutoScalingGroup, activities: &[Activity]) {
        self.spent.retain(|id, _| activities.iter().any(|activity| activity.id == *id));
        let launches: Vec<&Activity> = activities.iter().filter(|activity| is_launch(activity)).collect();
        let failed = failed_tries(group, &launches, &self.spent);
        self.failed = failed.iter().map(|(launch, left)| (launch.id.clone(), *left)).collect();
        self.failure = explain(group, &launches, &failed, self.since);
    }
}

impl Shortages {
    /// Notes a refresh.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        let now = snapshot.taken_at;
        let mut before = std::mem::take(&mut self.short);
        for (name, group) in snapshot.groups.iter().filter(|(_, group)| is_short(&group.asg)) {
            let shortage = match before.remove(name) {
                Some(known) if group.asg.desired <= known.desired => known.still(&group.asg),
                // New or larger: asked for after the last refresh, which did not show it.
                _ => Shortage {
                    seen_at: now,
                    desired: group.asg.desired,
                    live: live(&group.asg),
                    failed: Vec::new(),
                    spent: BTreeMap::new(),
                    since: match self.looked_at {
                        Some(at) if self.seen.contains(name) => at - SKEW,
                        _ => now - BEFORE_US,
                    },
                    asked_at: None,
                    failure: None,
                },
            };
            self.short.insert(name.clone(), shortage);
        }
        self.seen = snapshot.groups.keys().cloned().collect();
        self.looked_at = Some(now);
    }

    /// Forgets a group that is gone: another one has its name.
    pub fn forget(&mut self, group: &GroupName) {
        self.short.remove(group);
    }

    /// Groups whose activities should be read now, with the time back to which they count. Those read longest ago come first.
    pub fn due(&self, now: Timestamp) -> Vec<(GroupName, Timestamp)> {
        let mut due: Vec<_> = self
            .short
            .iter()
            .filter(|(_, shortage)| match shortage.asked_at {
                None => elapsed(shortage.seen_at, now) >= PATIENCE,
                Some(at) if shortage.failure.is_some() => elapsed(at, now) >= AGAIN_KNOWN,
                Some(at) => elapsed(at, now) >= AGAIN_UNKNOWN,
            })
            .collect();
        due.sort_by_key(|(_, shortage)| shortage.asked_at);
        due.into_iter().take(A_LOOK).map(|(name, shortage)| (name.clone(), shortage.since)).collect()
    }

    /// Notes a group's activities, newest first.
    pub fn learn(&mut self, group: &AutoScalingGroup, now: Timestamp, activities: &[Activity]) {
        if let Some(shortage) = self.short.get_mut(&group.name) {
            shortage.asked_at = Some(now);
            shortage.learn(group, activities);
        }
    }

    /// Why the group is short, if that is known.
    pub fn failure(&self, group: &str) -> Option<LaunchFailure> {
        self.short.get(group)?.failure.clone()
    }
}

#[cfg(test)]
mod tests;
