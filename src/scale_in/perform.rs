//! Performs actions: one call to the API server or AWS, or a few that belong together.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::action::Action;
use super::context::{Shared, will_decrement};
use super::events::NodeEvent;
use crate::aws::{AwsError, Hook};
use crate::clock::elapsed;
use crate::cluster::{About, Answer, ApiError, NodeView, PodName};
use crate::groups::{Change, SharedGroupLock};
use crate::k8s::{GroupName, InstanceId, names};
use crate::telemetry::chain;

/// Longest that a pod's deletion waits for its condition DisruptionTarget to be set.
const NOTE_WITHIN: Duration = Duration::from_secs(1);

/// A termination that waited longer is noted anew: another run goes by the noted time.
const SENT_WITHIN: Duration = Duration::from_secs(10);

/// How a pod was asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Evicted, under its budgets.
    Evicted,
    /// A DaemonSet's, which wanted to be asked.
    Asked,
    /// Deleted, whatever its budgets say.
    Deleted,
}

/// Result of an action.
pub(super) enum Outcome {
    NodeWritten(Result<Arc<NodeView>, ApiError>, Vec<Action>),
    Asked {
        pod: PodName,
        uid: String,
        answer: Answer,
        budgets: Vec<(String, String)>,
        how: How,
        /// The evicted pod's owner, and whether the pod had come back to the cordoned node.
        owner: Option<(String, bool)>,
    },
    Guarded {
        uid: String,
        result: Result<(), ApiError>,
    },
    DaemonSet {
        uid: String,
        exists: Result<bool, ApiError>,
    },
    /// Not terminated: our hook, which was to hold the instance, is missing, is not the only one, or is not known.
    NotHeld {
        noted_at: jiff::Timestamp,
        unknown: Option<AwsError>,
    },
    /// Not terminated: the group's lock came too late for the moment noted in the record, or another process leads by now.
    NotSent {
        noted_at: jiff::Timestamp,
    },
    Terminated {
        noted_at: jiff::Timestamp,
        result: Result<(), AwsError>,
    },
    Completed {
        hook: Hook,
        instance: InstanceId,
        result: Result<(), AwsError>,
    },
    Reported(Result<Box<NodeView>, ApiError>),
    Refreshed,
    HandedOver,
    /// The Node is deleted, or not. `overtaken`: only because it was another one by then.
    NodeDeleted {
        overtaken: bool,
    },
    Announced,
}

/// Performs an action. Every call in here has a time-out.
pub(super) fn perform(
    shared: Arc<Shared>,
    node: Arc<NodeView>,
    action: Action,
) -> BoxFuture<'static, Outcome> {
    match action {
        Action::PatchNode { patch, then } => patch_node(shared, node, patch, then).boxed(),
        Action::Evict { pod, uid, grace, budgets, owner, returned } => async move {
            let answer = evict(&shared, &node, &pod, &uid, grace).await;
            Outcome::Asked { pod, uid, answer, budgets, how: How::Evicted, owner: Some((owner, returned)) }
        }
        .boxed(),
        Action::Delete { pod, uid, grace, disruption } => {
            delete(shared, node, pod, uid, grace, disruption).boxed()
        }
        Action::Guard { pod, uid, on } => async move {
            let result = guard(&shared, &pod, &uid, on).await;
            Outcome::Guarded { uid, result }
        }
        .boxed(),
        Action::LookUpDaemonSet { name, uid } => async move {
            let exists = shared.cluster.has_daemon_set(&name, &uid).await;
            Outcome::DaemonSet { uid, exists }
        }
        .boxed(),
        Action::Terminate { group, instance, decrement, under_hook, noted_at } => async move {
            if under_hook && let Err(unknown) = is_held_by_ours_alone(&shared, &group).await {
                return Outcome::NotHeld { noted_at, unknown };
            }
            let lock = shared.groups.shared_lock(&group).await;
            if elapsed(noted_at, shared.clock.now()) > SENT_WITHIN || !shared.leadership.leads() {
                return Outcome::NotSent { noted_at };
            }
            let result = terminate(&shared, &node, &group, &instance, decrement, lock).await;
            Outcome::Terminated { noted_at, result }
        }
        .boxed(),
        Action::GiveUpReplacement { group } => async move {
            give_up_replacement(&shared, &group).await;
            Outcome::Refreshed
        }
        .boxed(),
        Action::HandOver => async move {
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
            let result = shared.aws.complete(&hook.group, &hook.name, &instance).await;
            Outcome::Completed { hook, instance, result }
        }
        .boxed(),
        Action::Report(state) => async move {
            let reported = shared.cluster.report_drain(&node, state, shared.clock.wall()).await;
            Outcome::Reported(reported.map(Box::new))
        }
        .boxed(),
        Action::DeleteNode { instance, event } => delete_node(shared, node, instance, event).boxed(),
        Action::Announce(event) => announce(shared, node, event).boxed(),
        Action::AnnouncePod { pod, uid, event } => announce_pod(shared, pod, uid, event).boxed(),
    }
}

async fn patch_node(shared: Arc<Shared>, node: Arc<NodeView>, patch: Value, then: Vec<Action>) -> Outcome {
    let result = shared.cluster.patch_node(&node.name, &patch).await;
    if matches!(result, Err(ApiError::Conflict)) {
        read_again(&shared, &node).await;
    }
    Outcome::NodeWritten(result.map(Arc::new), then)
}

/// The watch may lag: the next try must not start from the same stale view.
async fn read_again(shared: &Shared, node: &NodeView) {
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
    event: NodeEvent,
) -> Outcome {
    let exists = shared.aws.instance_exists(&instance).await;
    if !matches!(exists, Ok(false)) || !shared.leadership.leads() {
        tracing::info!(node = node.name.as_str(), instance = instance.as_str(), exists = ?exists, "EC2 does not say that the instance is terminated: its Node is not deleted");
        return Outcome::NodeDeleted { overtaken: false };
    }
    let deleted = shared.cluster.delete_node(&node).await;
    match &deleted {
        Ok(()) => drop(announce(shared, node, event).await),
        Err(ApiError::Conflict) => read_again(&shared, &node).await,
        Err(error) => {
            tracing::warn!(node = node.name.as_str(), error = %chain(error), "the Node of an instance that is gone could not be deleted: tried again in some minutes");
        }
    }
    Outcome::NodeDeleted { overtaken: matches!(deleted, Err(ApiError::Conflict)) }
}

async fn evict(shared: &Shared, node: &NodeView, pod: &PodName, uid: &str, grace: Option<i64>) -> Answer {
    let answer = shared.cluster.evict(pod, uid, grace).await;
    // An Event tells of a budget that blocks; no log line for each try.
    if matches!(answer, Answer::Blocked(_)) {
        tracing::debug!(node = node.name.as_str(), pod = %pod, answer = ?answer, "eviction asked for");
    } else {
        tracing::info!(node = node.name.as_str(), pod = %pod, grace, answer = ?answer, "eviction asked for");
    }
    answer
}

async fn guard(shared: &Shared, pod: &PodName, uid: &str, on: bool) -> Result<(), ApiError> {
    let annotations = if on {
        json!({ names::ENABLE_DS_EVICTION: "false", names::GUARDED: "true" })
    } else {
        json!({ names::ENABLE_DS_EVICTION: null, names::GUARDED: null })
    };
    shared.cluster.annotate_pod(pod, uid, &annotations).await
}

async fn delete(
    shared: Arc<Shared>,
    node: Arc<NodeView>,
    pod: PodName,
    uid: String,
    grace: Option<i64>,
    disruption: bool,
) -> Outcome {
    if disruption {
        // As the eviction API does: a Job's podFailurePolicy can then tell this from a failure. Not worth the pod's time.
        let told = shared.cluster.note_disruption(&pod, &uid, shared.clock.wall());
        match tokio::time::timeout(NOTE_WITHIN, told).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(node = node.name.as_str(), pod = %pod, error = %chain(&error), "condition DisruptionTarget not set: the pod is deleted all the same");
            }
            Err(_) => {
                tracing::debug!(node = node.name.as_str(), pod = %pod, "condition DisruptionTarget not set in time: the pod is deleted all the same");
            }
        }
    }
    let answer = shared.cluster.delete_pod(&pod, &uid, grace).await;
    tracing::info!(node = node.name.as_str(), pod = %pod, grace, answer = ?answer, "deletion asked for");
    let how = if disruption { How::Deleted } else { How::Asked };
    Outcome::Asked { pod, uid, answer, budgets: Vec::new(), how, owner: None }
}

/// Asks AWS, as the cache may be a minute old: without our hook the machine stops at once, and another's owner would drain
/// it by other rules. Errors: `None` if it is not so, AWS's error if AWS did not say.
async fn is_held_by_ours_alone(shared: &Shared, group: &GroupName) -> Result<(), Option<AwsError>> {
    match shared.hooks.of_now(group).await {
        Ok(hooks) if hooks.ours.is_some() && !hooks.others => Ok(()),
        Ok(_) => Err(None),
        Err(error) => Err(Some(error)),
    }
}

async fn terminate(
    shared: &Shared,
    node: &NodeView,
    group: &GroupName,
    instance: &InstanceId,
    decrement: bool,
    lock: SharedGroupLock,
) -> Result<(), AwsError> {
    let result = shared.aws.terminate(instance, decrement).await;
    match &result {
        Ok(()) => {
            tracing::info!(
                node = node.name.as_str(),
                group = group.as_str(),
                instance = instance.as_str(),
                decrement,
                "instance terminated"
            );
            let (group, instance) = (group.to_owned(), instance.to_owned());
            // Still under the lock: sizes are decided from the view.
            shared.groups.changed(shared.clock.now(), Change::Terminated { group, instance, decrement });
        }
        Err(error) => {
            tracing::warn!(node = node.name.as_str(), group = group.as_str(), instance = instance.as_str(), error = %chain(error), "termination failed or not confirmed: what a refresh shows decides");
            shared.groups.refresh_soon();
        }
    }
    drop(lock);
    result
}

/// Tried once: at worst the group has one node more than cluster-autoscaler wanted, which it sees and takes back.
async fn give_up_replacement(shared: &Shared, group: &GroupName) {
    let lock = shared.groups.lock(group).await;
    if !shared.leadership.leads() {
        return;
    }
    let given_up =
        shared.protection.give_up_one(lock, |instance| will_decrement(&shared.nodes, &instance.id));
    match given_up.await {
        Ok(true) => {
            tracing::info!(
                group = group.as_str(),
                "the group itself took out an instance that was to go: desired capacity lowered, no replacement comes"
            );
        }
        Ok(false) => {
            tracing::info!(
                group = group.as_str(),
                "the group itself took out an instance that was to go: its replacement is there already and stays"
            );
        }
        Err(error) => {
            tracing::warn!(group = group.as_str(), error = %chain(&error), "the group itself took out an instance that was to go, and desired capacity could not be lowered: a replacement may come");
        }
    }
}

pub(super) async fn announce(shared: Arc<Shared>, node: Arc<NodeView>, event: NodeEvent) -> Outcome {
    let NodeEvent { reason, note, warning, .. } = event;
    let reason = reason.as_str();
    tracing::info!(node = node.name.as_str(), reason, note, "Event on the Node");
    let now = shared.clock.wall();
    if let Err(error) = shared.cluster.announce(About::Node(&node), reason, &note, warning, now).await {
        tracing::warn!(node = node.name.as_str(), error = %chain(&error), "Event not published, and not tried again");
    }
    Outcome::Announced
}

/// For people only: tried once, and told rarely if it does not work, as where the right to it was left out.
async fn announce_pod(shared: Arc<Shared>, pod: PodName, uid: String, event: NodeEvent) -> Outcome {
    let NodeEvent { reason, note, warning, .. } = event;
    let now = shared.clock.wall();
    let told = shared.cluster.announce(About::Pod(&pod, &uid), reason.as_str(), &note, warning, now).await;
    let mut outage = shared.pod_events.lock().unwrap_or_else(PoisonError::into_inner);
    match told {
        Ok(()) => drop(outage.ends()),
        Err(error) => {
            if outage.lasts().is_some() {
                tracing::warn!(pod = %pod, error = %chain(&error), "Events on pods that are asked to go cannot be published: they go all the same");
            }
        }
    }
    Outcome::Announced
}
