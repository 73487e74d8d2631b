//! The operations that change what a group may do: protection, suspended processes, tags.

use jiff::Timestamp;

use crate::sim::aws::error::ApiError;
use crate::sim::aws::lifecycle::LifecycleState;
use crate::sim::aws::query::Form;
use crate::sim::aws::state::State;
use crate::sim::aws::xml::Xml;

/// All processes.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html>
const PROCESSES: [&str; 9] = [
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "Launch",
    "ReplaceUnhealthy",
    "ScheduledActions",
    "Terminate",
];

/// All instances or none.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html>
pub(super) fn protect(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let name = form.required("AutoScalingGroupName")?;
    form.required("ProtectedFromScaleIn")?;
    let protected = form.parsed::<bool>("ProtectedFromScaleIn")?.unwrap_or_default();
    let ids = form.list("InstanceIds.member");
    let (group, shared) = state.changing(name)?;
    if ids.len() > 50 {
        return Err(ApiError::validation(
            "The number of instance ids that may be passed in is limited to 50",
        ));
    }
    for id in &ids {
        let instance = group.instances.get(*id).ok_or_else(|| {
            ApiError::validation(format!("The instance {id} is not part of Auto Scaling group {name}."))
        })?;
        let allowed = [LifecycleState::InService, LifecycleState::EnteringStandby, LifecycleState::Standby];
        if !allowed.contains(&instance.state) {
            return Err(ApiError::validation(format!(
                "The instance {id} is not in InService or EnteringStandby or Standby."
            )));
        }
    }
    for id in ids {
        if let Some(instance) = group.instances.get_mut(id) {
            instance.protected = protected;
        }
    }
    group.settle(shared, now);
    Ok(Xml::default())
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SuspendProcesses.html>
pub(super) fn suspend(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let processes = processes(form)?;
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    group.suspended.extend(processes.into_iter().map(str::to_owned));
    group.settle(shared, now);
    Ok(Xml::default())
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_ResumeProcesses.html>
pub(super) fn resume(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let processes = processes(form)?;
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    group.suspended.retain(|process| !processes.contains(&process.as_str()));
    group.settle(shared, now);
    Ok(Xml::default())
}

/// The processes that a request names; without any, all.
fn processes(form: &Form) -> Result<Vec<&str>, ApiError> {
    let named = form.list("ScalingProcesses.member");
    if let Some(unknown) = named.iter().find(|process| !PROCESSES.contains(process)) {
        return Err(ApiError::validation(format!("Invalid Process Type: {unknown}")));
    }
    Ok(if named.is_empty() { PROCESSES.to_vec() } else { named })
}

/// All tags or none.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CreateOrUpdateTags.html>
pub(super) fn tag(state: &mut State, form: &Form) -> Result<Xml, ApiError> {
    let tags = form.structures("Tags.member");
    for tag in &tags {
        let name = tag.required("ResourceId")?;
        tag.required("Key")?;
        tag.parsed::<bool>("PropagateAtLaunch")?;
        state.changing(name)?;
    }
    for tag in &tags {
        let (group, _) = state.group_mut(tag.required("ResourceId")?)?;
        let value = tag.get("Value").unwrap_or_default().to_owned();
        let propagate = tag.parsed("PropagateAtLaunch")?.unwrap_or_default();
        group.tags.insert(tag.required("Key")?.to_owned(), (value, propagate));
    }
    Ok(Xml::default())
}
