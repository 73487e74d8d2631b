//! How instances leave: chosen, `Terminating`, held by terminating hooks, gone.
//!
//! From the start the instance is no longer capacity, and nothing brings it back. Load balancers let go of it, then hooks
//! hold it, then its machine shuts down, and some time later its group stops listing it. If its hook was abandoned, the
//! group may retain it, machine and all, until it is terminated again, with hooks again.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html> and
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/manage-retained-instances.html>

use jiff::Timestamp;

use super::activity::{Status, termination_cause};
use super::group::{Group, after};
use super::journal::{Event, TerminationCause};
use super::lifecycle::{LifecycleState, Transition};
use super::power::Power;
use super::state::Shared;

/// AWS's text for a launch that fails after `Pending`.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-instancelaunchfailure.html>
const NEVER_HEALTHY: &str = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: \
     Client.InternalError: Client error on launch";

impl Group {
    /// Starts to terminate an instance; no change if it is already terminating.
    pub(super) fn terminate(
        &mut self,
        shared: &mut Shared,
        id: &str,
        cause: TerminationCause,
        decrement: bool,
        at: Timestamp,
    ) {
        let had = self.counted().count();
        let Some(instance) = self.instances.get_mut(id).filter(|i| !i.state.is_terminating()) else { return };
        let state = if instance.state.is_warm() {
            LifecycleState::WarmedTerminating
        } else {
            LifecycleState::Terminating
        };
        instance.state = state;
        (instance.due, instance.replaces) = (None, None);
        instance.waits.clear();
        if cause == TerminationCause::LaunchFailed
            && let Some(launch) = self.activities.get_mut(&instance.activity)
        {
            launch.cancel(NEVER_HEALTHY, at);
        }
        let why = termination_cause(at, cause, id, self.last_change.as_deref(), decrement, had);
        let description = format!("Terminating EC2 instance: {id}");
        self.begin_activity(shared, id, description, why, Status::InProgress, at);
        let (group, instance) = (self.name.clone(), id.to_owned());
        shared.journal.record(at, Event::TerminationStarted { group, instance, cause, decrement });
        // No terminating hooks for an instance that was never in service: it has done nothing that needs them.
        if matches!(cause, TerminationCause::LaunchAbandoned | TerminationCause::LaunchFailed) {
            return self.shut_down(shared, id, state, at);
        }
        match self.policies.deregistration + shared.draw(self.timing.deregister) {
            none if none.is_zero() => self.leave(shared, id, at),
            takes => self.due(id, after(at, takes)),
        }
    }

    /// Load balancers have let go of the instance: hooks hold it, if any.
    pub(super) fn leave(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(state) = self.instances.get(id).map(|instance| instance.state) else { return };
        if !self.hold(shared, id, Transition::Terminating, at) {
            self.shut_down(shared, id, state, at);
        }
    }

    /// No hook holds the instance any more: EC2 shuts its machine down.
    pub(super) fn shut_down(&mut self, shared: &mut Shared, id: &str, state: LifecycleState, at: Timestamp) {
        let due = after(at, shared.draw(self.timing.terminating));
        let Some(instance) = self.instances.get_mut(id) else { return };
        instance.state = state;
        instance.waits.clear();
        instance.due = Some(due);
        instance.switch(shared, Power::ShuttingDown, at);
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.status = Status::InProgress;
        }
    }

    /// The instance's hook was abandoned and the group retains it: it runs on, and is no capacity.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/configure-instance-retention.html>; the activity's wording is
    /// from <https://github.com/radkawar/stackd>, testdata/aws/autoscaling/retention_decrement_native.json.
    pub(super) fn retain(
        &mut self,
        shared: &mut Shared,
        id: &str,
        state: LifecycleState,
        token: &str,
        at: Timestamp,
    ) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.due = None;
            instance.waits.clear();
            if let Some(activity) = self.activities.get_mut(&instance.activity) {
                let why = format!(
                    "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {token} was \
                     abandoned: Lifecycle Action Completed with ABANDON Result"
                );
                activity.cancel(&why, at);
            }
        }
        self.last_activity_end = Some(at);
        self.enter(shared, id, state, at);
    }

    /// Sets when time moves the instance on.
    pub(super) fn due(&mut self, id: &str, at: Timestamp) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.due = Some(at);
        }
    }

    /// Removes the instance from the group.
    pub(super) fn remove(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(mut instance) = self.instances.remove(id) else { return };
        instance.state = if instance.state.is_warm() {
            LifecycleState::WarmedTerminated
        } else {
            LifecycleState::Terminated
        };
        instance.power = Power::Terminated;
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.end(Status::Successful, at);
        }
        self.last_activity_end = Some(at);
        shared.journal.record(at, Event::Terminated { group: self.name.clone(), instance: id.to_owned() });
        shared.bury(instance, at);
    }
}
