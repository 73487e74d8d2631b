//! How instances go: chosen, `Terminating`, held by terminating hooks, gone.
//!
//! From the first moment of this an instance is no capacity any more. Nothing brings it back.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html>

use jiff::Timestamp;

use super::activity::{Activity, Status, termination_cause};
use super::group::{Group, after};
use super::journal::{Event, TerminationCause};
use super::lifecycle::{LifecycleState, Transition};
use super::state::Shared;

impl Group {
    /// Starts to terminate an instance. One that is terminating already goes on as before.
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
        instance.state = LifecycleState::Terminating;
        (instance.due, instance.replaces) = (None, None);
        instance.waits.clear();
        let launch = instance.activity;
        instance.activity = shared.next_number();
        let activity = Activity {
            id: shared.uuid(),
            group: self.name.clone(),
            description: format!("Terminating EC2 instance: {id}"),
            cause: termination_cause(at, cause, id, self.last_change.as_deref(), decrement, had),
            started: at,
            ended: None,
            status: Status::InProgress,
            message: None,
            zone: Some(instance.zone.clone()),
        };
        self.activities.insert(instance.activity, activity);
        if let Some(launch) = self.activities.get_mut(&launch).filter(|launch| launch.ended.is_none()) {
            launch.end(Status::Cancelled, at);
        }
        let (group, instance) = (self.name.clone(), id.to_owned());
        shared.journal.record(at, Event::TerminationStarted { group, instance, cause, decrement });
        // An instance whose launch was abandoned never did anything that a terminating hook would have to end.
        if cause == TerminationCause::LaunchAbandoned || !self.hold(shared, id, Transition::Terminating, at) {
            self.shut_down(id, LifecycleState::Terminating, at);
        }
    }

    /// No hook holds the instance any more: EC2 shuts it down.
    pub(super) fn shut_down(&mut self, id: &str, state: LifecycleState, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        instance.state = state;
        instance.waits.clear();
        instance.due = Some(after(at, self.timing.terminating));
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.status = Status::InProgress;
        }
    }

    /// The instance is gone.
    pub(super) fn remove(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(mut instance) = self.instances.remove(id) else { return };
        instance.state = LifecycleState::Terminated;
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.end(Status::Successful, at);
        }
        self.last_activity_end = Some(at);
        shared.journal.record(at, Event::Terminated { group: self.name.clone(), instance: id.to_owned() });
        shared.bury(instance, at);
    }
}
