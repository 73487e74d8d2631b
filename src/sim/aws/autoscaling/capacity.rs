//! The operations that change how many instances a group has.
//!
//! None of them waits for an instance to come or go.

use jiff::Timestamp;

use crate::sim::aws::autoscaling::groups::arn;
use crate::sim::aws::error::ApiError;
use crate::sim::aws::group::after;
use crate::sim::aws::journal::TerminationCause;
use crate::sim::aws::lifecycle::LifecycleState;
use crate::sim::aws::operation::Operation;
use crate::sim::aws::query::Form;
use crate::sim::aws::state::State;
use crate::sim::aws::xml::Xml;

/// Refused outside min and max, and during a cooldown that the caller wants honoured.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetDesiredCapacity.html> and
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-scaling-cooldowns.html>
pub(super) fn set_desired(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let name = form.required("AutoScalingGroupName")?;
    form.required("DesiredCapacity")?;
    let desired = form.parsed::<i64>("DesiredCapacity")?.unwrap_or_default();
    let honor = form.parsed::<bool>("HonorCooldown")?.unwrap_or_default();
    let (group, shared) = state.changing(name)?;
    if desired > i64::from(group.max) {
        return Err(ApiError::validation(format!(
            "New SetDesiredCapacity value {desired} is above max value {} for the AutoScalingGroup.",
            group.max
        )));
    }
    if desired < i64::from(group.min) {
        return Err(ApiError::validation(format!(
            "New SetDesiredCapacity value {desired} is below min value {} for the AutoScalingGroup.",
            group.min
        )));
    }
    let cooling = group.last_activity_end.is_some_and(|end| now < after(end, group.cooldown));
    if honor && cooling {
        let last = group.activities.values().next_back().map(|activity| activity.id.as_str());
        return Err(ApiError::client(
            "ScalingActivityInProgress",
            format!("Scaling activity {} is in progress and blocks this action", last.unwrap_or_default()),
        ));
    }
    let why = "a user request explicitly set group desired capacity";
    group.want(shared, desired as u32, Operation::SetDesiredCapacity, why, now);
    group.settle(shared, now);
    Ok(Xml::default())
}

/// With a decrement, refused at min; without, the group launches a replacement.
///
/// An instance with a weight takes its units out of the desired capacity. AWS's documentation says only that sizes are in
/// the units of the weights (<https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-weighting.html>) and that
/// the call decrements the size of the group.
///
/// AWS documents nothing for an instance that is already terminating. Here the call succeeds and, if asked to, lowers
/// desired capacity once more: a caller that repeats itself loses a healthy instance. For `Standby` see
/// [`Behaviour::standby_decrements`](crate::sim::aws::Behaviour).
///
/// A retained instance can be terminated only without a decrement, and its hooks hold it again (the refusal's wording is
/// observed: <https://github.com/radkawar/stackd>, testdata/aws/autoscaling/retention_decrement_native.json). An instance in
/// a warm pool is refused.
///
/// `InstanceIds` (several instances at once) is not modelled: nothing here uses it.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html>
pub(super) fn terminate(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let id = form.required("InstanceId")?;
    form.required("ShouldDecrementDesiredCapacity")?;
    let decrement = form.parsed::<bool>("ShouldDecrementDesiredCapacity")?.unwrap_or_default();
    let (group, shared) = state.group_of_mut(id).ok_or_else(|| ApiError::no_such_instance(id))?;
    group.changeable()?;
    let found = group.instances.get(id).ok_or_else(|| ApiError::no_such_instance(id))?;
    let (lifecycle, weight) = (found.state, found.units() as u32);
    if lifecycle.is_retained() && decrement {
        return Err(ApiError::validation(format!(
            "The instance {id} is in a Retained state and can't be terminated while decreasing desired capacity. Retry \
             without decreasing the Auto Scaling group's desired capacity."
        )));
    }
    if lifecycle.is_warm() && !lifecycle.is_retained() {
        return Err(ApiError::validation(format!("The instance {id} is in a warm pool.")));
    }
    let uncounted = lifecycle == LifecycleState::Standby && !shared.behaviour.standby_decrements;
    let decrement = decrement && !uncounted;
    if decrement && group.desired < group.min + weight {
        return Err(ApiError::validation(format!(
            "Currently, desiredSize equals minSize ({}). Terminating instance without replacement will violate \
             group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's \
             min size.",
            group.min
        )));
    }
    group.terminate(shared, id, TerminationCause::Request, decrement, now);
    if decrement {
        let why = format!("instance {id} was taken out of service in response to a user request");
        let to = group.desired.saturating_sub(weight);
        group.want(shared, to, Operation::TerminateInstanceInAutoScalingGroup, &why, now);
    }
    group.settle(shared, now);
    let (arn, ahead) = (arn(group), shared.ahead);
    let activity = group.instances.get(id).and_then(|instance| group.activities.get(&instance.activity));
    Ok(Xml::build(|xml| {
        if let Some(activity) = activity {
            xml.inside("Activity", |xml| activity.write(xml, &arn, ahead));
        }
    }))
}

/// Changes sizes and the instance lifecycle policy; what is not given stays. A new min or max moves the desired capacity into
/// its range if none is given.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_UpdateAutoScalingGroup.html>
pub(super) fn update(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    let min = form.parsed::<u32>("MinSize")?.unwrap_or(group.min);
    let max = form.parsed::<u32>("MaxSize")?.unwrap_or(group.max);
    if min > max {
        return Err(ApiError::validation(format!(
            "Max bound, {max}, must be greater than or equal to min bound, {min}"
        )));
    }
    let desired = form.parsed::<u32>("DesiredCapacity")?.unwrap_or_else(|| group.desired.clamp(min, max));
    if !(min..=max).contains(&desired) {
        return Err(ApiError::validation(format!(
            "Desired capacity:{desired} must be between the specified min size:{min} and max size:{max}"
        )));
    }
    match form.get("InstanceLifecyclePolicy.RetentionTriggers.TerminateHookAbandon") {
        None => {}
        Some("retain") => group.policies.retains = !group.policies.ignores_retention,
        Some("terminate") => group.policies.retains = false,
        Some(other) => {
            return Err(ApiError::validation(format!(
                "1 validation error detected: Value '{other}' at \
                 'instanceLifecyclePolicy.retentionTriggers.terminateHookAbandon' failed to satisfy constraint: Member \
                 must satisfy enum value set: [retain, terminate]"
            )));
        }
    }
    (group.min, group.max) = (min, max);
    let why = format!("a user request update of AutoScalingGroup constraints to min: {min}, max: {max}");
    group.want(shared, desired, Operation::UpdateAutoScalingGroup, &why, now);
    group.settle(shared, now);
    Ok(Xml::default())
}
