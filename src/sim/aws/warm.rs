//! Warm pools: instances beside the group, started once and then stopped, for when the group needs them.
//!
//! The pool has `max(min, prepared − desired)` instances. The group takes an instance from the pool before it launches one.
//! A group that reuses instances returns a victim to the pool when it chooses one itself, under its terminating hooks
//! (`Warmed:Pending:Wait`). An instance terminated by a call or for its health is not returned.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-warm-pools.html> and
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/warm-pool-instance-lifecycle.html>

use jiff::Timestamp;

use super::activity::{Activity, Status, launch_cause, termination_cause};
use super::group::{Group, Instance, after};
use super::journal::TerminationCause;
use super::lifecycle::{LifecycleState, Transition};
use super::power::Power;
use super::state::Shared;

/// A warm pool.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutWarmPool.html>
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmPoolSpec {
    pub(super) min: u32,
    pub(super) prepared: Option<u32>,
    pub(super) rests: LifecycleState,
    pub(super) reuses: bool,
}

impl WarmPoolSpec {
    /// A pool of stopped instances that fills the group up to its maximum.
    pub fn stopped() -> Self {
        Self { min: 0, prepared: None, rests: LifecycleState::WarmedStopped, reuses: false }
    }

    /// Its instances keep running.
    #[must_use]
    pub fn running(mut self) -> Self {
        self.rests = LifecycleState::WarmedRunning;
        self
    }

    /// At least this many, whatever the group's size.
    #[must_use]
    pub fn at_least(mut self, min: u32) -> Self {
        self.min = min;
        self
    }

    /// This many together with the group's (`MaxGroupPreparedCapacity`), instead of the group's maximum.
    #[must_use]
    pub fn prepared(mut self, prepared: u32) -> Self {
        self.prepared = Some(prepared);
        self
    }

    /// The group returns instances to it on scale-in (`ReuseOnScaleIn`).
    #[must_use]
    pub fn reusing(mut self) -> Self {
        self.reuses = true;
        self
    }

    /// The pool's state as in DescribeAutoScalingGroups.
    pub(super) fn state(&self) -> &'static str {
        if self.rests == LifecycleState::WarmedRunning { "Running" } else { "Stopped" }
    }
}

impl Group {
    /// How many instances the pool should have.
    fn warm_wanted(&self) -> usize {
        let Some(pool) = self.policies.warm_pool.filter(|_| self.deleting.is_none()) else { return 0 };
        let beside = pool.prepared.unwrap_or(self.max).saturating_sub(self.desired);
        pool.min.max(beside) as usize
    }

    /// Instances of the pool, including those entering it.
    fn warm(&self) -> impl Iterator<Item = &Instance> {
        let of_pool =
            |state: LifecycleState| state.is_warm() && !state.is_terminating() && !state.is_retained();
        self.instances.values().filter(move |instance| of_pool(instance.state))
    }

    fn resting(&self) -> impl Iterator<Item = &Instance> {
        let rests = self.policies.warm_pool.map(|pool| pool.rests);
        self.instances.values().filter(move |instance| Some(instance.state) == rests)
    }

    /// Launches what the pool lacks, and terminates its excess.
    pub(super) fn fill_pool(&mut self, shared: &mut Shared, at: Timestamp) {
        let coming = self.launches.values().filter(|launch| launch.warm).count();
        let (has, wants) = (self.warm().count() + coming, self.warm_wanted());
        if !self.suspends("Launch") {
            // Do not launch what the group is about to return.
            let excess = self.capacity().saturating_sub(self.desired as usize);
            for _ in has..wants.saturating_sub(if self.reuses() { excess } else { 0 }) {
                self.decide_warm_launch(shared, at);
            }
        }
        let surplus: Vec<String> =
            self.resting().take(has.saturating_sub(wants)).map(|instance| instance.id.clone()).collect();
        for id in surplus {
            self.terminate(shared, &id, TerminationCause::ScaleIn, false, at);
        }
    }

    /// Moves an instance from the pool into the group; false if none is ready.
    pub(super) fn take_from_pool(&mut self, shared: &mut Shared, at: Timestamp) -> bool {
        let Some(id) = self.resting().map(|instance| instance.id.clone()).next() else { return false };
        let cause = launch_cause(at, self.last_change.as_deref(), false, self.one_more());
        let description = format!("Launching a new EC2 instance from warm pool: {id}");
        self.begin_activity(shared, &id, description, cause, Status::PreInService, at);
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.protected = self.protect_new;
            instance.switch(shared, Power::Pending, at);
        }
        self.enter(shared, &id, LifecycleState::Pending, at);
        self.due(&id, after(at, shared.draw(self.timing.boot)));
        true
    }

    /// Whether the group returns its excess instances to the pool.
    pub(super) fn reuses(&self) -> bool {
        self.policies.warm_pool.is_some_and(|pool| pool.reuses) && self.warm().count() < self.warm_wanted()
    }

    /// Returns an instance to the pool once load balancers and hooks let go of it.
    pub(super) fn give_back(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let had = self.counted().count();
        let cause =
            termination_cause(at, TerminationCause::ScaleIn, id, self.last_change.as_deref(), false, had);
        let description = format!("Returning EC2 instance to warm pool: {id}");
        self.begin_activity(shared, id, description, cause, Status::InProgress, at);
        if let Some(instance) = self.instances.get_mut(id) {
            (instance.protected, instance.replaces) = (false, None);
        }
        self.enter(shared, id, LifecycleState::WarmedPending, at);
        match self.policies.deregistration + shared.draw(self.timing.deregister) {
            none if none.is_zero() => self.warm_up(shared, id, at),
            takes => self.due(id, after(at, takes)),
        }
    }

    /// `Warmed:Pending` is over: hooks hold the instance, launching ones on its way in, terminating ones on its return.
    pub(super) fn warm_up(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        let returns = instance.power == Power::Running;
        let transition = if returns { Transition::Terminating } else { Transition::Launching };
        instance.switch(shared, Power::Running, at);
        if !self.hold(shared, id, transition, at) {
            self.cool(shared, id, at);
        }
    }

    /// No hook holds the instance any more: it is stopped, if the pool's instances are stopped.
    pub(super) fn cool(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        self.enter(shared, id, LifecycleState::WarmedPendingProceed, at);
        self.due(id, after(at, shared.draw(self.timing.stop)));
    }

    /// The instance is ready in the pool.
    pub(super) fn rest(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(pool) = self.policies.warm_pool else {
            return self.terminate(shared, id, TerminationCause::ScaleIn, false, at);
        };
        let Some(instance) = self.instances.get_mut(id) else { return };
        if pool.rests != LifecycleState::WarmedRunning {
            instance.switch(shared, Power::Stopped, at);
        }
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.end(Status::Successful, at);
        }
        self.last_activity_end = Some(at);
        self.enter(shared, id, pool.rests, at);
    }

    /// Starts an activity for an instance, in place of its last one.
    pub(super) fn begin_activity(
        &mut self,
        shared: &mut Shared,
        id: &str,
        description: String,
        cause: String,
        status: Status,
        at: Timestamp,
    ) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        let last = std::mem::replace(&mut instance.activity, shared.next_number());
        let activity = Activity {
            id: shared.uuid(),
            group: self.name.clone(),
            description,
            cause,
            started: at,
            ended: None,
            status,
            message: None,
            zone: Some(instance.zone.clone()),
        };
        self.activities.insert(instance.activity, activity);
        if let Some(last) = self.activities.get_mut(&last).filter(|last| last.ended.is_none()) {
            last.end(Status::Cancelled, at);
        }
    }
}
