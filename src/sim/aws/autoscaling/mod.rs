//! The Auto Scaling API, version 2011-01-01: each operation reads its form, changes groups and writes its result.
//!
//! A refused operation has changed nothing. After a change the group settles at once: the only delays are those of its
//! `Timing`.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operations.html>

mod capacity;
mod describe;
mod groups;
mod hooks;
mod members;
mod settings;

use jiff::Timestamp;

use super::error::ApiError;
use super::operation::Operation;
use super::query::Form;
use super::state::State;
use super::xml::Xml;

pub(super) fn dispatch(
    state: &mut State,
    operation: Operation,
    form: &Form,
    now: Timestamp,
) -> Result<Xml, ApiError> {
    match operation {
        Operation::DescribeAutoScalingGroups => groups::describe(state, form),
        Operation::DescribeAutoScalingInstances => describe::instances(state, form),
        Operation::DescribeLaunchConfigurations => describe::launch_configurations(state, form),
        Operation::DescribeLifecycleHooks => hooks::describe(state, form),
        Operation::DescribeScalingActivities => describe::activities(state, form),
        Operation::DescribeWarmPool => describe::warm_pool(state, form),
        Operation::SetDesiredCapacity => capacity::set_desired(state, form, now),
        Operation::TerminateInstanceInAutoScalingGroup => capacity::terminate(state, form, now),
        Operation::UpdateAutoScalingGroup => capacity::update(state, form, now),
        Operation::DetachInstances => members::detach(state, form, now),
        Operation::EnterStandby => members::enter_standby(state, form, now),
        Operation::ExitStandby => members::exit_standby(state, form, now),
        Operation::SetInstanceProtection => settings::protect(state, form, now),
        Operation::SuspendProcesses => settings::suspend(state, form, now),
        Operation::ResumeProcesses => settings::resume(state, form, now),
        Operation::CreateOrUpdateTags => settings::tag(state, form),
        Operation::PutLifecycleHook => hooks::put(state, form),
        Operation::DeleteLifecycleHook => hooks::delete(state, form, now),
        Operation::RecordLifecycleActionHeartbeat => hooks::heartbeat(state, form, now),
        Operation::CompleteLifecycleAction => hooks::complete(state, form, now),
        _ => {
            let (action, version) = (form.get("Action"), form.get("Version"));
            Err(ApiError::invalid_action(action.unwrap_or_default(), version.unwrap_or_default()))
        }
    }
}
