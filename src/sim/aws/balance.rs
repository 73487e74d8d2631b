//! What a group does on its own: it fills its size from the warm pool or by launching, chooses victims, replaces unhealthy
//! instances, rebalances zones, refreshes instances.
//!
//! [`Group::settle`] does all of this from the current state, so it may be called at any time. Suspended processes are
//! honoured: without `Launch` nothing is launched, without `Terminate` no victim is chosen, and so on.
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

/// An instance refresh under way: one instance at a time, the next when the group is whole again. Instances protected from
/// scale-in are skipped.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-refresh.html>
#[derive(Clone, Debug, Default)]
pub(super) struct Refresh {
    left: Vec<String>,
    current: Option<String>,
    /// Whether instances stay and only get new root volumes.
    volumes: bool,
}

/// How far a rebalance may take a group above its maximum: this share, and at least one instance.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html>, rebalancing activities
const REBALANCE_MARGIN_PERCENT: usize = 10;

impl Group {
    /// Takes the steps that the group's state calls for now.
    pub(super) fn settle(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.deleting.is_some() {
            return self.dissolve(at);
        }
        self.replace_unhealthy(shared, at);
        self.refresh_next(shared, at);
        self.replace_first(shared, at);
        self.launch_missing(shared, at);
        self.drop_excess(shared, at);
        self.fill_pool(shared, at);
        self.note_imbalance(shared, at);
    }

    /// Sets the desired capacity, because of `by`.
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
            self.looks_at = Some(after(at, shared.draw(self.timing.scale_in)));
        }
        shared.journal.record(at, Event::DesiredChanged { group: self.name.clone(), from, to, by });
    }

    /// Marks an instance to leave once its replacement is in service; false if it does not count or is protected.
    pub(super) fn rebalance(&mut self, id: &str) -> bool {
        let movable = self.counted().any(|instance| instance.id == id && !instance.is_protected());
        movable && self.replacing.insert(id.to_owned(), TerminationCause::Rebalance).is_none()
    }

    /// The instance that a rebalance would move: the victim in the fullest zone.
    pub(super) fn rebalance_victim(&self) -> Option<String> {
        let candidates = self.counted().filter(|i| !i.is_protected() && !self.replacing.contains_key(&i.id));
        self.victim_among(candidates)
    }

    /// Starts to refresh all instances.
    pub(super) fn start_refresh(&mut self, volumes: bool) {
        let mut left: Vec<_> = self.counted().filter(|i| !i.is_protected()).map(|i| i.id.clone()).collect();
        left.reverse();
        self.refresh = Some(Refresh { left, current: None, volumes });
    }

    /// Replaces unhealthy instances. With `Terminate` suspended those in service stay, and only those.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html>; that an unhealthy one in
    /// service stays is observed: <https://github.com/radkawar/stackd>, testdata/aws/autoscaling.
    fn replace_unhealthy(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.suspends("ReplaceUnhealthy") {
            return;
        }
        let spares =
            |instance: &Instance| self.suspends("Terminate") && instance.state == LifecycleState::InService;
        let sick = self.counted().filter(|i| !i.healthy && !spares(i) && !self.replacing.contains_key(&i.id));
        for id in sick.map(|i| i.id.clone()).collect::<Vec<_>>() {
            self.replace(shared, &id, TerminationCause::HealthCheck, at);
        }
    }

    /// Terminates an instance, or launches its replacement first if the group does that.
    fn replace(&mut self, shared: &mut Shared, id: &str, cause: TerminationCause, at: Timestamp) {
        if self.policies.launches_first {
            self.replacing.insert(id.to_owned(), cause);
        } else {
            self.terminate(shared, id, cause, false, at);
        }
    }

    fn refresh_next(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.suspends("Terminate") || self.suspends("Launch") {
            return;
        }
        let in_service = self.instances.values().filter(|i| i.state == LifecycleState::InService);
        let whole = in_service.map(Instance::units).sum::<usize>() >= self.desired as usize;
        let Some(refresh) = &mut self.refresh else { return };
        let busy = refresh.current.as_ref().and_then(|id| self.instances.get(id));
        let busy = busy.is_some_and(|i| !refresh.volumes || i.state != LifecycleState::InService);
        if busy || !whole {
            return;
        }
        refresh.current = refresh
            .left
            .pop()
            .filter(|id| self.instances.get(id).is_some_and(|instance| instance.state.counts()));
        match refresh.current.clone() {
            Some(id) if refresh.volumes => drop(self.begin_volume(shared, &id, at)),
            Some(id) => self.replace(shared, &id, TerminationCause::Refresh, at),
            None if refresh.left.is_empty() => self.refresh = None,
            None => self.refresh_next(shared, at),
        }
    }

    /// Launches the replacements of instances that leave only afterwards.
    ///
    /// A rebalance launches even with `Terminate` suspended, which leaves the group too large:
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html>.
    fn replace_first(&mut self, shared: &mut Shared, at: Timestamp) {
        self.replacing.retain(|id, _| self.instances.get(id).is_some_and(|i| i.state.counts()));
        if self.suspends("Launch") {
            return;
        }
        let under_way = self.on_their_way();
        for (old, cause) in self.replacing.clone() {
            let allowed = cause != TerminationCause::Rebalance || !self.suspends("AZRebalance");
            if allowed && !under_way.contains(&old) && self.capacity() < self.ceiling() {
                self.decide_launch(shared, Some(old), self.one_more(), at);
            }
        }
    }

    /// Schedules a rebalance if zones are out of balance; it comes after a delay, as a scale-in does.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html>: "tries to
    /// rebalance the group, and rebalancing might terminate instances in other zones".
    fn note_imbalance(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.balances_at.is_none() && self.imbalance().is_some() && shared.behaviour.rebalances {
            self.balances_at = Some(after(at, shared.draw(self.timing.scale_in)));
        }
    }

    /// Moves an instance out of the fullest zone: its replacement comes first.
    pub(super) fn balance_zones(&mut self) {
        if let Some(zone) = self.imbalance() {
            let there = |i: &&Instance| i.zone == zone && !i.is_protected();
            let victim = self.counted().filter(there).map(|i| i.id.clone()).next();
            victim.map(|victim| self.rebalance(&victim));
        }
    }

    /// The fullest zone, if another has two instances fewer and no launch or termination under way could change that.
    fn imbalance(&self) -> Option<String> {
        if self.suspends("AZRebalance") || !self.launches.is_empty() || !self.replacing.is_empty() {
            return None;
        }
        let there = |zone: &String| self.counted().filter(|i| i.zone == *zone).count();
        let fullest = self.zones.iter().max_by_key(|zone| there(zone))?;
        let least = self.zones.iter().map(there).min()?;
        (there(fullest) >= least + 2).then(|| fullest.clone())
    }

    /// The instances whose replacement is under way.
    fn on_their_way(&self) -> Vec<String> {
        let launches = self.launches.values().filter_map(|launch| launch.replaces.clone());
        launches.chain(self.counted().filter_map(|instance| instance.replaces.clone())).collect()
    }

    /// Desired capacity plus what a rebalance adds for a while.
    fn wanted(&self) -> usize {
        let under_way = self.on_their_way();
        let twice = under_way.iter().filter(|old| self.replacing.contains_key(*old));
        let surplus: usize = twice.filter_map(|old| self.instances.get(old)).map(Instance::units).sum();
        (self.desired as usize + surplus).min(self.ceiling())
    }

    /// The most that the group may have during a rebalance.
    fn ceiling(&self) -> usize {
        let max = self.max as usize;
        max + (max * REBALANCE_MARGIN_PERCENT / 100).max(1)
    }

    fn launch_missing(&mut self, shared: &mut Shared, at: Timestamp) {
        if self.suspends("Launch") {
            return;
        }
        let sizes = (self.capacity(), self.wanted());
        while self.capacity() < self.wanted() {
            if !self.take_from_pool(shared, at) {
                self.decide_launch(shared, None, sizes, at);
            }
        }
    }

    /// Terminates the excess, but never below the desired capacity: with weights, more units than wanted may stay.
    fn drop_excess(&mut self, shared: &mut Shared, at: Timestamp) {
        while let Some(excess) = self.capacity().checked_sub(self.wanted()).filter(|excess| *excess > 0) {
            // A launch under way completes even if no longer wanted; a failed one is not tried again.
            let recalled = |launch: &Launch| {
                !launch.warm
                    && launch.trying.is_none()
                    && launch.units() <= excess
                    && (launch.failed || shared.behaviour.recalls_launches)
            };
            let last =
                self.launches.iter().rev().find(|(_, launch)| recalled(launch)).map(|(number, _)| *number);
            if let Some(last) = last {
                self.launches.remove(&last);
                continue;
            }
            if !self.counted().any(|instance| instance.units() <= excess) {
                break;
            }
            if self.suspends("Terminate") {
                return;
            }
            // AWS records a lower desired capacity and acts on it later.
            if self.looks_at.is_some() {
                return;
            }
            let Some(victim) =
                self.victim_among(self.counted().filter(|i| !i.is_protected() && i.units() <= excess))
            else {
                return self.note_protection(shared, at);
            };
            if self.reuses() {
                self.give_back(shared, &victim, at);
            } else {
                self.terminate(shared, &victim, TerminationCause::ScaleIn, false, at);
            }
        }
        self.blocked = false;
    }

    /// The default termination policy: among zones with a candidate the one with the most instances, then the oldest launch
    /// configuration or template, then the oldest instance.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/default-termination-policy.html>. AWS breaks the last tie by
    /// the next billing hour and then at random; age keeps runs repeatable.
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
            cause: self.last_change.clone().unwrap_or_else(|| launch_cause(at, None, false, self.one_more())),
            started: at,
            ended: Some(at),
            status: Status::Cancelled,
            message: None,
            zone: None,
        };
        self.activities.insert(shared.next_number(), activity);
    }
}
