//! The operations that take instances out of a group, or out of its size, without terminating them.
//!
//! Each takes effect at once; AWS passes through `Detaching` and `EnteringStandby`.

use jiff::Timestamp;

use crate::sim::aws::error::ApiError;
use crate::sim::aws::group::Group;
use crate::sim::aws::journal::Event;
use crate::sim::aws::lifecycle::LifecycleState;
use crate::sim::aws::operation::Operation;
use crate::sim::aws::query::Form;
use crate::sim::aws::state::{Shared, State};
use crate::sim::aws::xml::Xml;

/// Instances run on outside the group. A retained one can be detached only without a decrement.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DetachInstances.html> and
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-detach-attach-instances.html>
pub(super) fn detach(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let (ids, decrement) = asked(form)?;
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    let may = |state: LifecycleState| {
        matches!(state, LifecycleState::InService | LifecycleState::Standby)
            || state == LifecycleState::TerminatingRetained && !decrement
    };
    check(group, &ids, decrement, may)?;
    for id in ids {
        group.detach(shared, id, decrement, now);
    }
    group.settle(shared, now);
    Ok(no_activities())
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_EnterStandby.html>
pub(super) fn enter_standby(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let (ids, decrement) = asked(form)?;
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    check(group, &ids, decrement, |state| state == LifecycleState::InService)?;
    for id in ids {
        group.set_aside(shared, id, decrement, now);
    }
    group.settle(shared, now);
    Ok(no_activities())
}

/// Desired capacity grows by the instances that return.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_ExitStandby.html>
pub(super) fn exit_standby(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let ids = form.list("InstanceIds.member");
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    check(group, &ids, false, |state| state == LifecycleState::Standby)?;
    if group.desired as usize + ids.len() > group.max as usize {
        return Err(ApiError::validation("The new desired capacity would be above the group's max size."));
    }
    for id in ids {
        group.enter(shared, id, LifecycleState::InService, now);
        let why = format!("instance {id} was moved out of standby in response to a user request");
        let to = group.desired + group.instances.get(id).map_or(1, |instance| instance.units() as u32);
        group.want(shared, to, Operation::ExitStandby, &why, now);
    }
    group.settle(shared, now);
    Ok(no_activities())
}

impl Group {
    /// Takes an instance out of the group; it runs on.
    pub(in crate::sim::aws) fn detach(
        &mut self,
        shared: &mut Shared,
        id: &str,
        decrement: bool,
        at: Timestamp,
    ) {
        let Some(mut instance) = self.instances.remove(id) else { return };
        let units = instance.units() as u32;
        instance.state = LifecycleState::Detached;
        shared.journal.record(at, Event::Detached { group: self.name.clone(), instance: id.to_owned() });
        shared.detached.insert(id.to_owned(), instance);
        if decrement {
            let why = format!("instance {id} was detached in response to a user request");
            let to = self.desired.saturating_sub(units);
            self.want(shared, to, Operation::DetachInstances, &why, at);
        }
    }

    /// Moves an instance to `Standby`: it runs on in the group, and does not count.
    pub(in crate::sim::aws) fn set_aside(
        &mut self,
        shared: &mut Shared,
        id: &str,
        decrement: bool,
        at: Timestamp,
    ) {
        let units = self.instances.get(id).map_or(1, |instance| instance.units() as u32);
        self.enter(shared, id, LifecycleState::Standby, at);
        if decrement {
            let why = format!("instance {id} was moved to standby in response to a user request");
            let to = self.desired.saturating_sub(units);
            self.want(shared, to, Operation::EnterStandby, &why, at);
        }
    }
}

/// These operations take no time here and leave no activity.
fn no_activities() -> Xml {
    Xml::build(|xml| {
        xml.inside("Activities", |_| {});
    })
}

fn asked(form: &Form) -> Result<(Vec<&str>, bool), ApiError> {
    form.required("ShouldDecrementDesiredCapacity")?;
    let decrement = form.parsed::<bool>("ShouldDecrementDesiredCapacity")?.unwrap_or_default();
    Ok((form.list("InstanceIds.member"), decrement))
}

/// Refuses the call if one of the instances may not leave, or a decrement would pass the minimum.
fn check(
    group: &Group,
    ids: &[&str],
    decrement: bool,
    may: impl Fn(LifecycleState) -> bool,
) -> Result<(), ApiError> {
    for id in ids {
        let found = group.instances.get(*id).ok_or_else(|| {
            ApiError::validation(format!(
                "The instance {id} is not part of Auto Scaling group {}.",
                group.name
            ))
        })?;
        if !may(found.state) {
            return Err(ApiError::validation(format!("The instance {id} is in {}.", found.state)));
        }
    }
    if decrement && (group.desired as usize) < group.min as usize + ids.len() {
        return Err(ApiError::validation(format!(
            "Currently, desiredSize equals minSize ({}). Decrementing it will violate group's min size constraint.",
            group.min
        )));
    }
    Ok(())
}
