//! Performs actions: one call to the API server or AWS, or a few that belong together.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use serde_json::{Value, json};

use super::action::{Action, Ask};
use super::context::Shared;
use super::events::{self, ScaleInEvent};
use super::outcome::{Outcome, Removal};
use super::record::{Phase, Record};
use super::terminate::{self, Termination};
use crate::aws::Operation;
use crate::cluster::{About, Answer, ApiError, NodeView, PodName, keeping};
use crate::k8s::{InstanceId, NodeName, names};
use crate::telemetry::chain;

/// Longest that a pod's deletion waits for its condition DisruptionTarget to be set.
const NOTE_WITHIN: Duration = Duration::from_secs(1);

/// Longest that a stop waits for what others are told, before another process may lead: nothing depends on it.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// How long after a write of the Node the watch shows it, mostly: a few milliseconds.
const SEEN_WITHIN: Duration = Duration::from_millis(50);

/// Performs an action. Every call in here has a time-out, from when it has a place among those that are under way; of what only tells others
/// (`report_drain`, `announce`) the wait for a place counts too.
pub(super) fn perform(
    shared: Arc<Shared>,
    node: Arc<NodeView>,
    action: Action,
) -> BoxFuture<'static, Outcome> {
    match action {
        Action::PatchNode { patch, then } => patch_node(shared, node, patch, then).boxed(),
        Action::Evict(ask) => {
            let under_way = shared.eviction_rate.begin();
            async move {
                // This is the one place that would make an EvictionRequest (`lifecycle.k8s.io`) instead, once those are no longer alpha:
                // who interprets them (a controller, the pod's own) decides how the pod leaves, and the request's status would be the
                // answer (https://github.com/kubernetes/enhancements/tree/master/keps/sig-apps/4563-eviction-request-api).
                let is_wanted = || may_write(&shared) && is_scaled_in(&shared, &node.name);
                let eviction = shared.cluster.evict(&ask.pod, &ask.uid, ask.grace, is_wanted);
                let answer = keeping(under_way, eviction).await;
                Outcome::Asked(ask, answer, Removal::Eviction)
            }
            .boxed()
        }
        Action::Delete(ask) => delete(shared, node, ask).boxed(),
        Action::Guard { pod, uid, on } => async move {
            let result = guard(&shared, &pod, &uid, on).await;
            Outcome::Guarded { uid, result }
        }
        .boxed(),
        Action::ListPods { nodes } => async move {
            let lists = nodes.iter().map(|node| shared.cluster.list_pods_now(node));
            Outcome::PodsListed(try_join_all(lists).await.map(|lists| lists.concat()))
        }
        .boxed(),
        Action::LookUpDaemonSet { name, uid } => async move {
            let exists = shared.cluster.has_daemon_set(&name, &uid).await;
            Outcome::DaemonSet { uid, exists }
        }
        .boxed(),
        Action::Terminate { group, instance, decrement, under_hook, noted_at } => {
            let one = Termination { node: Some(node.name.clone()), group, instance, decrement };
            terminate::as_noted(shared, one, under_hook, noted_at).boxed()
        }
        Action::GiveUpReplacement { group, requested_at } => async move {
            terminate::give_up_replacement(&shared, &group, requested_at).await;
            Outcome::GivenUp
        }
        .boxed(),
        Action::HandOver => async move {
            tracing::info!("giving up the Lease: this process's own node is scaled in");
            shared.leadership.hand_over();
            Outcome::HandedOver
        }
        .boxed(),
        Action::Refresh => async move {
            shared.groups.refresh_soon();
            Outcome::Refreshed
        }
        .boxed(),
        Action::CompleteHook { hook, instance } => async move {
            let began = shared.clock.cluster();
            let result = shared.aws.complete(&hook.group, &hook.name, &instance).await;
            let took = [began, shared.clock.cluster()];
            shared.history.note_call(&node.name, Operation::CompleteLifecycleAction, took, &result);
            Outcome::Completed { hook, instance, result }
        }
        .boxed(),
        Action::Heartbeat { hook, instance } => async move {
            let heartbeat = shared.aws.try_heartbeat(&hook.group, &hook.name, &instance);
            let error = shared.holds.try_heartbeat(&hook.group, &shared.clock, heartbeat).await;
            Outcome::HeartbeatTried { group: hook.group, error }
        }
        .boxed(),
        Action::Report(state) => async move {
            let report = shared.cluster.report_drain(&node, state, shared.clock.cluster());
            let reported = unless_stopped(&shared, report).await;
            Outcome::Reported(state, reported.map(Box::new))
        }
        .boxed(),
        Action::DeleteNode { instance, event } => delete_node(shared, node, instance, event).boxed(),
        Action::Announce(event) => announce(shared, node, event).boxed(),
    }
}

async fn patch_node(shared: Arc<Shared>, node: Arc<NodeView>, patch: Value, then: Vec<Action>) -> Outcome {
    let result = shared.cluster.patch_node(&node.name, &patch, || may_write(&shared)).await;
    if matches!(result, Err(ApiError::Conflict)) {
        read_again(&shared, &node).await;
    }
    Outcome::NodeWritten(result.map(Arc::new), then)
}

/// Whether this process leads, and is not about to stop.
fn may_write(shared: &Shared) -> bool {
    shared.leadership.leads() && !shared.stop.is_cancelled()
}

/// Whether the Node is there and is scaled in still.
fn is_scaled_in(shared: &Shared, node: &NodeName) -> bool {
    shared.nodes.get(node).is_some_and(|node| node.scale_in().is_some())
}

/// The next try must not start from the same stale view. Mostly the watch brings the write that came first; where it lags, the Node is
/// read.
async fn read_again(shared: &Shared, node: &NodeView) {
    tokio::time::sleep(SEEN_WITHIN).await;
    let seen = shared.nodes.get(&node.name);
    if seen.is_none_or(|seen| seen.resource_version != node.resource_version) {
        return;
    }
    if let Ok(fresh) = shared.cluster.get_node(&node.name).await
        && !shared.nodes.update(fresh)
    {
        shared.cluster.suspect_rewind();
    }
}

async fn delete_node(
    shared: Arc<Shared>,
    node: Arc<NodeView>,
    instance: InstanceId,
    event: ScaleInEvent,
) -> Outcome {
    if !is_deletable(&shared, &node, &instance).await {
        return Outcome::NodeDeleted { overtaken: false, once_gone: None };
    }
    let deleted = shared.cluster.delete_node(&node).await;
    let mut once_gone = None;
    match &deleted {
        Ok(finalizers) if finalizers.is_empty() => drop(announce(shared, node, event).await),
        Ok(finalizers) => {
            once_gone = Some(event);
            announce(shared, node, events::node_kept(&instance, finalizers)).await;
        }
        Err(ApiError::Conflict) => read_again(&shared, &node).await,
        Err(error) => {
            tracing::warn!(node = node.name.as_str(), error = %chain(error), "the Node of an instance that is gone could not be deleted: tried again in some minutes");
        }
    }
    Outcome::NodeDeleted { overtaken: matches!(deleted, Err(ApiError::Conflict)), once_gone }
}

/// Whether EC2 says that the instance is terminated, and this process leads still.
async fn is_deletable(shared: &Shared, node: &NodeView, instance: &InstanceId) -> bool {
    let (name, id) = (node.name.as_str(), instance.as_str());
    match shared.aws.instance_exists(instance).await {
        Ok(false) if shared.leadership.leads() => return true,
        Ok(false) => {
            tracing::info!(
                node = name,
                instance = id,
                "Node not deleted: this process does not lead any more"
            );
        }
        Ok(true) => {
            tracing::info!(node = name, instance = id, "Node not deleted: EC2 still has the instance");
        }
        Err(error) => {
            tracing::warn!(node = name, instance = id, error = %chain(&error), "Node not deleted: EC2 could not be asked for the instance, tried again in some minutes");
        }
    }
    false
}

async fn guard(shared: &Shared, pod: &PodName, uid: &str, on: bool) -> Result<(), ApiError> {
    let annotations = if on {
        json!({ names::ENABLE_DS_EVICTION: "false", names::GUARDED: "true" })
    } else {
        json!({ names::ENABLE_DS_EVICTION: null, names::GUARDED: null })
    };
    shared.cluster.annotate_pod(pod, uid, &annotations).await
}

async fn delete(shared: Arc<Shared>, node: Arc<NodeView>, ask: Ask) -> Outcome {
    let is_workload = ask.owner.is_some();
    let how = match (is_workload, ask.is_lost) {
        (false, _) => Removal::DaemonSet,
        (true, false) => Removal::Deletion,
        (true, true) => Removal::LostDeletion,
    };
    if shared.nodes.get(&node.name).is_none() && !has_gone(&shared, &node.name).await {
        return Outcome::Asked(ask, Answer::Unsent, how);
    }
    if is_workload {
        // As the eviction API does: a Job's podFailurePolicy can then tell this from a failure. Not worth the pod's time.
        let why = if ask.is_lost { "its node is lost" } else { "time is up for the pod" };
        let told = shared.cluster.note_disruption(&ask.pod, &ask.uid, why, shared.clock.cluster());
        match tokio::time::timeout(NOTE_WITHIN, told).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(node = node.name.as_str(), pod = %ask.pod, error = %chain(&error), "condition DisruptionTarget not set: the pod is deleted all the same");
            }
            Err(_) => {
                tracing::debug!(node = node.name.as_str(), pod = %ask.pod, "condition DisruptionTarget not set in time: the pod is deleted all the same");
            }
        }
    }
    // The wait for a place may take minutes. If workloads have come meanwhile, DaemonSet pods stay for them.
    let is_so_still = |record: &Record| is_workload || record.phase != Phase::Draining;
    // If the Node has gone in mid-drain, the garbage collector deletes a workload's pod in seconds, with less grace.
    let is_wanted = || {
        let now = shared.nodes.get(&node.name);
        let is_left_behind = || is_workload && shared.nodes.whole_for().is_some();
        let is_so = now.map_or_else(is_left_behind, |node| node.scale_in().is_some_and(is_so_still));
        may_write(&shared) && is_so
    };
    let answer = shared.cluster.delete_pod(&ask.pod, &ask.uid, ask.grace, is_wanted).await;
    Outcome::Asked(ask, answer, how)
}

/// Whether a Node that the watch does not show has gone: a watch that has fallen silent does not show that it is back.
async fn has_gone(shared: &Shared, node: &NodeName) -> bool {
    matches!(shared.cluster.get_node(node).await, Err(ApiError::NotFound))
}

pub(super) async fn announce(shared: Arc<Shared>, node: Arc<NodeView>, event: ScaleInEvent) -> Outcome {
    let ScaleInEvent { reason, note, warning, .. } = event;
    let reason = reason.as_str();
    if warning {
        tracing::warn!(node = node.name.as_str(), reason, note, "Event on the Node");
    } else {
        tracing::info!(node = node.name.as_str(), reason, note, "Event on the Node");
    }
    let now = shared.clock.cluster();
    let told = shared.cluster.announce(About::Node(&node), reason, &note, warning, now);
    let told = unless_stopped(&shared, told).await;
    if let Err(error) = told
        && !matches!(error, ApiError::DryRun)
    {
        tracing::warn!(node = node.name.as_str(), error = %chain(&error), "Event not published, and not tried again");
    }
    Outcome::Announced
}

/// Publishes an Event on a pod that was asked to go. For people only: tried once, and told rarely if it does not work, as where the right
/// to it was left out.
pub(super) async fn announce_pod(
    shared: Arc<Shared>,
    pod: PodName,
    uid: String,
    event: ScaleInEvent,
) -> Outcome {
    let ScaleInEvent { reason, note, warning, .. } = event;
    let now = shared.clock.cluster();
    let told = shared.cluster.announce(About::Pod(&pod, &uid), reason.as_str(), &note, warning, now);
    let told = unless_stopped(&shared, told).await;
    let outage = &mut shared.pod_events.lock().outage;
    match told {
        Ok(()) => drop(outage.recovered()),
        Err(error) => {
            if outage.failed().is_some() {
                tracing::warn!(
                    pod = %pod,
                    error = %chain(&error),
                    "Events on evicted pods cannot be published: the pods are evicted all the same"
                );
            }
        }
    }
    Outcome::Announced
}

/// What a call that tells others came to; one that a stop would have to wait for counts as not answered.
async fn unless_stopped<T>(
    shared: &Shared,
    told: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let over = async {
        shared.stop.cancelled().await;
        tokio::time::sleep(TOLD_WITHIN).await;
    };
    tokio::select! {
        biased;
        told = told => told,
        () = over => Err(ApiError::TimedOut),
    }
}
