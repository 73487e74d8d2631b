//! Taking an instance out of its group: terminations, and the replacement that comes if the group does it by itself.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::context::{Shared, is_without_node, leaves, will_decrement};
use super::holds::Heartbeats;
use super::outcome::Outcome;
use super::record::Phase;
use super::release::SENT_WITHIN;
use super::taken_out::Counted;
use crate::aws::{AwsError, Instance, Lifecycle, Operation};
use crate::clock::{elapsed, later};
use crate::groups::sizes::Leaves;
use crate::groups::{Change, SharedGroupLock};
use crate::k8s::{GroupName, InstanceId, NodeName};
use crate::telemetry::chain;

/// A lock that is obtained within this time was free: what was seen before still stands.
const FREE_WITHIN: Duration = Duration::from_secs(1);

/// An instance to be terminated.
pub(super) struct Termination {
    /// `None` if it has no Node.
    pub(super) node: Option<NodeName>,
    pub(super) group: GroupName,
    pub(super) instance: InstanceId,
    /// Whether the desired capacity goes down with it.
    pub(super) decrement: bool,
}

/// Terminates an instance, as noted in its record at `noted_at`. `under_hook`: only if our hook will hold it.
pub(super) async fn as_noted(
    shared: Arc<Shared>,
    one: Termination,
    under_hook: bool,
    noted_at: Timestamp,
) -> Outcome {
    let may_be_sent = || {
        let is_old = later(noted_at, SENT_WITHIN) < shared.clock.now();
        !is_old && shared.leadership.leads() && is_still_noted(&shared, &one, under_hook)
    };
    let lock = loop {
        if !may_be_sent() {
            return Outcome::NotSent { noted_at, unknown: None };
        }
        // Where AWS does not say, the next try asks again: it may be throttled now and then.
        if one.decrement {
            let counted = is_counted(&shared, &one).await;
            if !matches!(counted, Ok(Counted::Yes)) {
                shared.groups.refresh_soon();
                return Outcome::NotSent { noted_at, unknown: counted.err() };
            }
        }
        if under_hook && let Err(unknown) = is_held_by_ours_alone(&shared, &one).await {
            return Outcome::NotHeld { noted_at, unknown };
        }
        // Only for the call itself: whoever raises the size waits for this.
        let looked_at = shared.clock.now();
        let lock = shared.groups.shared_lock(&one.group).await;
        // What was seen before a wait is looked at again.
        if elapsed(looked_at, shared.clock.now()) <= FREE_WITHIN {
            break lock;
        }
    };
    if !may_be_sent() {
        return Outcome::NotSent { noted_at, unknown: None };
    }
    let (group, instance) = (one.group.clone(), one.instance.clone());
    Outcome::Terminated { noted_at, group, instance, result: terminate(&shared, one, lock).await }
}

/// Whether the desired capacity still counts it. Errors: AWS's, if it did not say.
async fn is_counted(shared: &Shared, one: &Termination) -> Result<Counted, AwsError> {
    let seen_by = (shared.groups.as_ref(), &shared.aws, &shared.clock);
    shared.taken_out.counts(&one.instance, &one.group, seen_by).await
}

/// Whether its Node, if it is there, still asks for it: the scale-in may have been cancelled, or begun anew, while the hook was
/// looked up and the group's lock was waited for.
fn is_still_noted(shared: &Shared, one: &Termination, under_hook: bool) -> bool {
    let Some(node) = one.node.as_ref().and_then(|name| shared.nodes.get(name)) else { return true };
    node.scale_in().is_some_and(|record| {
        record.instance == one.instance
            && record.terminate_at.is_some()
            && (under_hook || record.phase != Phase::Draining)
    })
}

/// Terminates an instance that its group retains and that has no Node. The desired capacity does not count it. `None`: AWS was not asked,
/// as another process leads by now, or the instance has a Node.
pub(super) async fn retained(
    shared: &Shared,
    group: GroupName,
    instance: InstanceId,
) -> Option<Result<(), AwsError>> {
    if !is_without_node(shared, &instance).await {
        return None;
    }
    let lock = shared.groups.shared_lock(&group).await;
    // While the lock was waited for, its kubelet may have registered.
    if !shared.leadership.leads() || !shared.nodes.of_instance(&instance).is_empty() {
        return None;
    }
    let one = Termination { node: None, group, instance, decrement: false };
    Some(terminate(shared, one, lock).await)
}

/// Asks AWS, as the cache may be a minute old: without our hook the machine stops at once, and another's owner would drain
/// it by other rules. Errors: `None` if it is not so, AWS's error if AWS did not say.
async fn is_held_by_ours_alone(shared: &Shared, one: &Termination) -> Result<(), Option<AwsError>> {
    let is_denied = matches!(shared.holds.heartbeats(&one.group), Heartbeats::DeniedAt(_));
    match shared.hooks.of_now(&one.group).await {
        Ok(hooks) if hooks.is_ours_alone() && !is_denied => Ok(()),
        Ok(_) => Err(None),
        Err(error) => Err(Some(error)),
    }
}

/// The caller tells of an error.
async fn terminate(shared: &Shared, one: Termination, lock: SharedGroupLock) -> Result<(), AwsError> {
    let Termination { node, group, instance, decrement } = one;
    let began = shared.clock.cluster();
    let result = shared.aws.terminate(&instance, decrement).await;
    if let Some(node) = &node {
        let (operation, took) =
            (Operation::TerminateInstanceInAutoScalingGroup, [began, shared.clock.cluster()]);
        shared.history.note_call(node, operation, took, &result);
    }
    let node = node.as_deref();
    match &result {
        Ok(()) => {
            tracing::info!(
                node,
                group = group.as_str(),
                instance = instance.as_str(),
                decrement,
                "instance terminated"
            );
            // Still under the lock: sizes are decided from the view.
            let change = Change::Terminated { group, instance, state: Lifecycle::Terminating, decrement };
            shared.groups.changed(shared.clock.now(), change);
        }
        // What a refresh shows decides.
        Err(_) => shared.groups.refresh_soon(),
    }
    drop(lock);
    result
}

/// Tried once: at worst the group has one node more than cluster-autoscaler wanted, which it sees and takes back.
pub(super) async fn give_up_replacement(shared: &Shared, group: &GroupName, requested_at: Timestamp) {
    let lock = shared.groups.lock_to_lower(group).await;
    if !shared.leadership.leads() {
        return;
    }
    let is_to_decrement = |instance: &Instance| {
        will_decrement(&shared.nodes, &instance.id)
            || leaves(&shared.nodes, group, instance, || None) == Leaves::BeingDrained
    };
    match shared
        .protection
        .give_up_one(lock, requested_at, is_to_decrement, || shared.leadership.leads())
        .await
    {
        Ok(true) => {
            tracing::info!(
                group = group.as_str(),
                "the group itself removed an instance under scale-in: desired capacity lowered, no replacement launches"
            );
        }
        Ok(false) => {
            tracing::info!(
                group = group.as_str(),
                "the group itself removed an instance under scale-in: its replacement runs already, or the group is another by now, and its size stays"
            );
        }
        Err(error) => {
            tracing::warn!(
                group = group.as_str(),
                error = %chain(&error),
                "the group itself removed an instance under scale-in, and desired capacity could not be lowered: a replacement may launch"
            );
        }
    }
}
