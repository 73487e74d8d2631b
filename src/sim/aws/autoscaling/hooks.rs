//! The operations on lifecycle hooks, and on the instances that hooks hold.

use std::time::Duration;

use jiff::Timestamp;

use crate::sim::aws::error::ApiError;
use crate::sim::aws::lifecycle::{HEARTBEAT_SECONDS, HookResult, HookSpec, Transition};
use crate::sim::aws::query::Form;
use crate::sim::aws::state::State;
use crate::sim::aws::waiting::Named;
use crate::sim::aws::xml::Xml;

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLifecycleHooks.html>
pub(super) fn describe(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let name = form.required("AutoScalingGroupName")?;
    let group = state.groups.get(name).ok_or_else(|| ApiError::no_such_group(name))?;
    let names = form.list("LifecycleHookNames.member");
    let hooks = group.hooks.values().filter(|hook| names.is_empty() || names.contains(&hook.name.as_str()));
    Ok(Xml::build(|xml| {
        xml.list("LifecycleHooks", "member", hooks, |xml, hook| {
            xml.text("LifecycleHookName", &hook.name)
                .text("AutoScalingGroupName", name)
                .text("LifecycleTransition", hook.transition.name())
                .optional("NotificationMetadata", hook.metadata.as_ref())
                .text("HeartbeatTimeout", hook.heartbeat.as_secs())
                .text("GlobalTimeout", hook.global_timeout().as_secs())
                .text("DefaultResult", hook.default.name());
        });
    }))
}

/// Most hooks of a group.
const HOOKS_A_GROUP: usize = 50;
/// Longest name of a hook, in characters.
const LONGEST_NAME: usize = 255;
/// Longest metadata of a hook, in characters.
const LONGEST_METADATA: usize = 4000;

/// Creates a hook, or changes the given fields of one. Instances already held keep the old terms.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html>
pub(super) fn put(state: &mut State, form: &Form) -> Result<Xml, ApiError> {
    let (group, _) = state.changing(form.required("AutoScalingGroupName")?)?;
    let name = form.required("LifecycleHookName")?;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_of_name) {
        return Err(ApiError::validation("Invalid lifecycle hook name"));
    }
    if !group.hooks.contains_key(name) && group.hooks.len() >= HOOKS_A_GROUP {
        let text = format!("You have exceeded the limit of {HOOKS_A_GROUP} lifecycle hooks for this group.");
        return Err(ApiError::client("LimitExceeded", text));
    }
    let transition = form
        .get("LifecycleTransition")
        .map(|text| Transition::of(text).ok_or_else(|| ApiError::validation("Invalid lifecycle transition")))
        .transpose()?;
    let known = group.hooks.get(name).cloned();
    let mut hook = match (known, transition) {
        (Some(known), transition) => HookSpec { transition: transition.unwrap_or(known.transition), ..known },
        (None, Some(transition)) => HookSpec::new(name, transition),
        (None, None) => {
            return Err(ApiError::validation("LifecycleTransition is required to create a lifecycle hook."));
        }
    };
    if let Some(seconds) = form.parsed::<u64>("HeartbeatTimeout")? {
        if !HEARTBEAT_SECONDS.contains(&seconds) {
            return Err(ApiError::validation(format!(
                "Heartbeat timeout must be between {} and {} seconds",
                HEARTBEAT_SECONDS.start(),
                HEARTBEAT_SECONDS.end()
            )));
        }
        hook.heartbeat = Duration::from_secs(seconds);
    }
    if let Some(result) = form.get("DefaultResult") {
        hook.default =
            HookResult::of(result).ok_or_else(|| ApiError::validation("Invalid default result"))?;
    }
    if let Some(metadata) = form.get("NotificationMetadata") {
        if metadata.len() > LONGEST_METADATA {
            return Err(ApiError::validation("Notification metadata is too long"));
        }
        hook.metadata = Some(metadata.to_owned());
    }
    group.hooks.insert(name.to_owned(), hook);
    Ok(Xml::default())
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DeleteLifecycleHook.html>
pub(super) fn delete(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let (group, shared) = state.changing(form.required("AutoScalingGroupName")?)?;
    let name = form.required("LifecycleHookName")?;
    if !group.delete_hook(shared, name, now) {
        return Err(ApiError::validation(format!("No Lifecycle Hook found with name {name}")));
    }
    group.settle(shared, now);
    Ok(Xml::default())
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html>
pub(super) fn heartbeat(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let (group, shared) = state.group_mut(form.required("AutoScalingGroupName")?)?;
    group.heartbeat(shared, form.required("LifecycleHookName")?, named(form)?, now)?;
    Ok(Xml::default())
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html>
pub(super) fn complete(state: &mut State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let (group, shared) = state.group_mut(form.required("AutoScalingGroupName")?)?;
    let result = HookResult::of(form.required("LifecycleActionResult")?)
        .ok_or_else(|| ApiError::validation("Invalid lifecycle action result"))?;
    group.complete(shared, form.required("LifecycleHookName")?, named(form)?, result, now)?;
    group.settle(shared, now);
    Ok(Xml::default())
}

/// The token, or else the instance id.
fn named(form: &Form) -> Result<Named<'_>, ApiError> {
    let token = form.get("LifecycleActionToken").map(Named::Token);
    token
        .or_else(|| form.get("InstanceId").map(Named::Instance))
        .ok_or_else(|| ApiError::validation("Either LifecycleActionToken or InstanceId must be specified."))
}
