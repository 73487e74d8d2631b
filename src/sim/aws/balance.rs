//! What a group does of its own accord: it launches what is missing, chooses who has to go, replaces the unhealthy,
//! rebalances zones, refreshes instances.
//!
//! Everything is in [`Group::settle`], which looks at the state and not at what happened, and may be called at any
//! time. Suspended processes are honoured: nothing is launched without `Launch`, nobody is chosen to go without
//! `Terminate`, and so on.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html>

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::activity::{Activity, Status, launch_cause};
use super::group::{Group, Instance, Launch, Origin, after};
use super::journal::{Event, TerminationCause};
use super::lifecycle::LifecycleState;
use super::operation::Operation;
use super::state::Shared;

/// An instance refresh under way: one instance at a time, the next when the group is whole again. Instances that are
/// protected from scale-in are left alone.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-refresh.html>
#[derive(Clone, Debug, Default)]
pub(super) struct Refresh {
    left: Vec<String>,
    current: Option<String>,
}

/// A rebalance may take a group this share of its maximum above it, and one instance at least.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html>, rebalancing activities
const REBALANCE_MARGIN_PERCENT: u32 = 10;

impl Group {
    /// Brings the group closer to what it wants to be.
    pub(super) fn settle(&mut self, shared: &mut Shared, at: Timestamp) {
        self.replace_unhealthy(shared, at);
        self.refresh_next(shared, at);
        self.replace_rebalanced(shared, at);
        self.launch_missing(shared, at);
        self.drop_excess(shared, at);
    }

    /// Wants another number of instances, because `by` said so.
    pub(super) fn want(&mut self, shared: &mut Shared, to: u32, by: Operation, why: &str, at: Timestamp) {
        let from = std::mem::replace(&mut self.desired, to);
        if from == to {
            return;
        }
        let moment = super::activity::moment(at);
        self.last_change =
            Some(format!("At {moment} {why} changing the desired capacity from {from} to {to}."));
        self.blocked = false;
        if to < from && by != Operation::TerminateInstanceInAutoScalingGroup {
            self.looks_at = Some(after(at, self.timing.scale_in));
        }
        shared.journal.record(at, Event::DesiredChanged { group: self.name.clone(), from, to, by });
    }

    /// Marks an instance to go when its replacement is in service; false if it does not count, or is protected.
    pub(super) fn rebalance(&mut self, id: &str) -> bool {
        let movable = self.counted().any(|instance| instance.id == id && !instance.protected);
        movable && self.rebalancing.insert(id.to_owned())
    }

    /// The instance that a rebalance would move: the victim in the fullest zone.
    pub(super) fn rebalance_victim(&self) -> Option<String> {
        let candidates = self.counted().filter(|i| !i.protected && !self.rebalancing.contains(&i.id));
        self.victim_among(candidates)
    }

    /// Refreshes every instance there is.
    pub(super) fn start_refresh(&mut self) {
        let mut left: Vec<_> = self.counted().filter(|i| !i.protected).map(|i| i.id.clone()).collect();
        left.reverse();
        self.refresh = Some(Refresh { left, current: None });
    }

    fn replace_unhealthy(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.suspends("ReplaceUnhealthy") || self.suspends("Terminate") {
            return;
        }
        let sick: Vec<_> = self.counted().filter(|i| !i.healthy).map(|i| i.id.clone()).collect();
        for id in sick {
            self.terminate(shared, &id, TerminationCause::HealthCheck, false, at);
        }
    }

    fn refresh_next(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.suspends("Terminate") || self.suspends("Launch") {
            return;
        }
        let in_service = self.instances.values().filter(|i| i.state == LifecycleState::InService);
        let whole = in_service.map(Instance::units).sum::<usize>() >= self.desired as usize;
        let Some(refresh) = &mut self.refresh else { return };
        let busy = refresh.current.as_ref().is_some_and(|id| self.instances.contains_key(id));
        if busy || !whole {
            return;
        }
        refresh.current = refresh
            .left
            .pop()
            .filter(|id| self.instances.get(id).is_some_and(|instance| instance.state.counts()));
        match refresh.current.clone() {
            Some(id) => self.terminate(shared, &id, TerminationCause::Refresh, false, at),
            None if refresh.left.is_empty() => self.refresh = None,
            None => self.refresh_next(shared, at),
        }
    }

    fn replace_rebalanced(&mut self, shared: &mut Shared, at: Timestamp) {
        self.rebalancing.retain(|id| self.instances.get(id).is_some_and(|i| i.state.counts()));
        if ["AZRebalance", "Launch", "Terminate"].iter().any(|process| self.suspends(process)) {
            return;
        }
        let under_way = self.replacing();
        for old in self.rebalancing.clone() {
            if !under_way.contains(&old) && self.capacity() < self.ceiling() {
                self.decide_launch(shared, Some(old), at);
            }
        }
    }

    /// The instances whose replacement is on its way.
    fn replacing(&self) -> Vec<String> {
        let launches = self.launches.values().filter_map(|launch| launch.replaces.clone());
        launches.chain(self.counted().filter_map(|instance| instance.replaces.clone())).collect()
    }

    /// Desired capacity and what a rebalance adds to it for a while.
    fn wanted(&self) -> usize {
        let replacing = self.replacing();
        let twice = replacing.iter().filter(|old| self.rebalancing.contains(*old));
        let surplus: usize = twice.filter_map(|old| self.instances.get(old)).map(Instance::units).sum();
        (self.desired as usize + surplus).min(self.ceiling())
    }

    /// As many as the group may ever have, for a while.
    fn ceiling(&self) -> usize {
        let margin = (self.max * REBALANCE_MARGIN_PERCENT / 100).max(1);
        (self.max + margin) as usize
    }

    fn launch_missing(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.suspends("Launch") {
            return;
        }
        while self.capacity() < self.wanted() {
            self.decide_launch(shared, None, at);
        }
    }

    /// Ends what is too much, but nothing without which there would be too little: of instances with weights, more
    /// than is wanted may stay.
    fn drop_excess(&mut self, shared: &mut Shared, at: Timestamp) {
        while let Some(excess) = self.capacity().checked_sub(self.wanted()).filter(|excess| *excess > 0) {
            let fits = |launch: &Launch| launch.units() <= excess;
            if let Some(last) = self.launches.last_entry().filter(|last| fits(last.get())) {
                last.remove();
                continue;
            }
            if !self.counted().any(|instance| instance.units() <= excess) {
                break;
            }
            if self.suspends("Terminate") {
                return;
            }
            // AWS notes a desired capacity down and acts on it later.
            if self.looks_at.is_some() {
                return;
            }
            let Some(victim) =
                self.victim_among(self.counted().filter(|i| !i.protected && i.units() <= excess))
            else {
                return self.note_protection(shared, at);
            };
            self.terminate(shared, &victim, TerminationCause::ScaleIn, false, at);
        }
        self.blocked = false;
    }

    /// The default termination policy: the zone with the most instances, of those that have a candidate; there the
    /// oldest launch configuration or template, then the oldest instance.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/default-termination-policy.html>. AWS breaks the last tie
    /// by the next billing hour and then at random; here it is age, so that a run can be repeated.
    fn victim_among<'a>(&'a self, candidates: impl Iterator<Item = &'a Instance>) -> Option<String> {
        let mut population: BTreeMap<&str, usize> = BTreeMap::new();
        for instance in self.counted() {
            *population.entry(&instance.zone).or_default() += 1;
        }
        let template_age = |instance: &Instance| match &instance.origin {
            Origin::Configuration(_) => 0,
            Origin::Template { version, .. } => *version,
        };
        candidates
            .min_by_key(|i| {
                let crowd = population.get(i.zone.as_str()).copied().unwrap_or_default();
                (std::cmp::Reverse(crowd), i.zone.clone(), template_age(i), i.launched, i.id.clone())
            })
            .map(|instance| instance.id.clone())
    }

    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-protection.html>
    fn note_protection(&mut self, shared: &mut Shared, at: Timestamp) {
        if std::mem::replace(&mut self.blocked, true) {
            return;
        }
        let activity = Activity {
            id: shared.uuid(),
            group: self.name.clone(),
            description:
                "Could not scale to desired capacity because all remaining instances are protected from \
                          scale-in."
                    .to_owned(),
            cause: self.last_change.clone().unwrap_or_else(|| launch_cause(at, None, false, self.capacity())),
            started: at,
            ended: Some(at),
            status: Status::Cancelled,
            message: None,
            zone: None,
        };
        self.activities.insert(shared.next_number(), activity);
    }
}
