//! What a worker keeps of an action's outcome: when to try again, and what the next plan must know.

use std::sync::Arc;

use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Ask};
use super::deadline;
use super::drain::{ASK_AGAIN, OVERDUE_AFTER};
use super::events;
use super::history::Step;
use super::outcome::{Outcome, Removal};
use super::perform::announce_pod;
use super::tries::{LASTING_AFTER, Task};
use super::worker::Worker;
use crate::aws::{AwsError, Hook};
use crate::clock::later;
use crate::cluster::{Answer, ApiError, DrainState, NodeView, PodName, PodView};
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::chain;

/// Pause after a write conflict: the newer Node is known by now.
const OVERTAKEN: SignedDuration = SignedDuration::ZERO;

/// A new guard (which is not repeated before), or an existing DaemonSet, is seen on the watch within this time.
const SOON_SEEN: SignedDuration = SignedDuration::from_secs(5);

/// A guard that is forbidden is tried again after this time: a candidate is drained ten minutes later, by default.
const STAYS_FORBIDDEN: SignedDuration = SignedDuration::from_mins(5);

/// A Node that could not be deleted (EC2 still has its instance, somebody's finalizer keeps it, a right is missing) is tried
/// again after this time.
const NODE_STAYS: SignedDuration = SignedDuration::from_mins(5);

/// Pods whose watch begins anew are listed within this time.
const LISTED_ANEW: SignedDuration = SignedDuration::from_secs(1);

/// A requested refresh has begun within this time.
const REFRESH: SignedDuration = SignedDuration::from_secs(5);

/// A heartbeat of which AWS has not said whether it lets any through is followed by another one after this time.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(5);

impl Worker {
    pub(super) fn remember(&mut self, outcome: Outcome) {
        let now = self.shared.clock.now();
        match outcome {
            Outcome::NodeWritten(Ok(node), then) => {
                self.memory.note_written(&node, now);
                self.tell_that_writes_work();
                self.tell_of_same_writes();
                self.shared.nodes.update(NodeView::clone(&node));
                for action in then {
                    match action {
                        Action::Terminate { under_hook: false, noted_at, .. }
                            if self.is_in_use_again(&node) =>
                        {
                            self.not_terminated(noted_at);
                        }
                        action => self.start(&node, action),
                    }
                }
            }
            Outcome::NodeWritten(Err(error), then) => self.hear_of_failed_write(&error, &then),
            Outcome::Asked(ask, answer, how) => {
                self.tell_answer(&ask, &answer, how);
                self.note_asked(&ask, &answer, how);
                let Ask { pod, uid, owner, budgets, .. } = ask;
                let goes = matches!(answer, Answer::Going | Answer::Gone | Answer::GoingAnyway);
                // One that was refused is still there, and waited for like any other.
                if let Some((owner, again)) = owner.filter(|_| goes) {
                    self.memory.of_scale_in.returns.asked(owner, again);
                }
                self.shared.metrics.answered(&answer, how);
                if goes && how == Removal::Deletion {
                    self.shared.history.cut_short(&self.name);
                }
                if answer == Answer::Going {
                    self.tell_pod(pod, &uid, how);
                }
                let is_asked_again = how == Removal::Eviction && self.memory.of(&uid).to_go.is_some();
                let is_known = self.pods.by_uid.contains_key(&uid) && !self.is_relisting();
                if answer == Answer::Gone && is_asked_again && is_known {
                    // It was asked half a minute ago: the API server's watch cache has fallen behind, and a list has not.
                    self.pods.list_anew(&self.nodes);
                }
                match how {
                    Removal::Eviction => self.memory.note_eviction(uid, answer, budgets, now),
                    Removal::DaemonSet | Removal::Deletion | Removal::LostDeletion => {
                        self.memory.note_deletion(uid, answer, now);
                    }
                }
            }
            Outcome::Guarded { uid, result } => self.hear_of_guard(uid, result),
            Outcome::PodsListed(pods) => self.hear_of_pods(pods),
            Outcome::DaemonSet { uid, exists } => self.hear_of_daemon_set(uid, &exists),
            Outcome::NotHeld { noted_at, unknown } | Outcome::NotSent { noted_at, unknown } => {
                self.tell_of_look_up(unknown);
                self.not_terminated(noted_at);
            }
            Outcome::Terminated { noted_at, group, instance, result } => {
                self.tell_of_termination(&group, &instance, &result);
                if result.is_ok() {
                    self.note_release();
                }
                self.memory.note_termination(noted_at, &result, now);
            }
            Outcome::Completed { hook, instance, result } => {
                self.hear_of_completion(&hook, &instance, result);
            }
            Outcome::Reported(state, result) => self.hear_of_report(state, result.map(|node| *node)),
            Outcome::Refreshed => self.memory.put_off(&Task::Refresh, now, REFRESH),
            Outcome::HeartbeatTried { group, error } => {
                self.memory.put_off(&Task::Heartbeat, now, HEARTBEAT);
                self.tell_of_heartbeat(&group, error.as_ref());
            }
            Outcome::HandedOver => self.memory.worked(&Task::HandOver, now),
            Outcome::NodeDeleted { overtaken, once_gone } => {
                self.memory.once_gone = once_gone.or(self.memory.once_gone.take());
                let pause = if overtaken { OVERTAKEN } else { NODE_STAYS };
                self.memory.failed(&Task::Delete, now, Some(pause));
            }
            Outcome::GivenUp | Outcome::Announced => {}
        }
    }

    /// Logs the API server's answers to requests to remove a pod; of repeated answers, the first of each kind. Events tell of blocking
    /// budgets and of refusals.
    fn tell_answer(&mut self, ask: &Ask, answer: &Answer, how: Removal) {
        let Ask { pod, uid, grace, .. } = ask;
        if *answer == Answer::Unsent {
            return;
        }
        let is_news = self.told.is_news(uid, answer) && !matches!(answer, Answer::Blocked(_));
        let asked = if how == Removal::Eviction { "eviction asked for" } else { "deletion asked for" };
        let (node, answer) = (self.name.as_str(), answer.to_string());
        if is_news {
            tracing::info!(node, pod = %pod, grace, answer, "{asked}");
        } else {
            tracing::debug!(node, pod = %pod, grace, answer, "{asked}");
        }
    }

    /// Tells that the hook or the group could not be looked up before a termination, if so. The error names the call.
    fn tell_of_look_up(&mut self, unknown: Option<AwsError>) {
        let Some(error) = unknown else { return };
        if let Some(outage_seconds) = self.told.look_ups.failed() {
            tracing::warn!(node = self.name.as_str(), outage_seconds, error = %chain(&error), "what AWS knows of the instance could not be looked up before its termination: not terminated, tried again");
        }
    }

    fn tell_of_termination(
        &mut self,
        group: &GroupName,
        instance: &InstanceId,
        result: &Result<(), AwsError>,
    ) {
        let Err(error) = result else {
            self.told.look_ups.recovered();
            self.told.terminations.recovered();
            return;
        };
        if let Some(outage_seconds) = self.told.terminations.failed() {
            let node = self.name.as_str();
            tracing::warn!(
                node,
                group = group.as_str(),
                instance = instance.as_str(),
                outage_seconds,
                error = %chain(error),
                "termination failed or not confirmed: the next refresh decides"
            );
        }
    }

    /// Keeps for the trace what came of asking a pod to go.
    fn note_asked(&self, ask: &Ask, answer: &Answer, how: Removal) {
        let (name, told) = match (answer, how) {
            (Answer::Blocked(_), _) => {
                let names: Vec<_> = ask.budgets.iter().map(|budget| budget.name.as_str()).collect();
                ("blocked", Some(names.join(", ")))
            }
            (Answer::Going | Answer::Gone | Answer::GoingAnyway, Removal::Eviction) => ("evicted", None),
            (Answer::Going | Answer::Gone | Answer::GoingAnyway, Removal::DaemonSet) => ("asked to go", None),
            (
                Answer::Going | Answer::Gone | Answer::GoingAnyway,
                Removal::Deletion | Removal::LostDeletion,
            ) => ("deleted", None),
            (Answer::Busy(..) | Answer::Unclear(_) | Answer::Unsent, _) => return,
        };
        let now = self.shared.clock.cluster();
        let step = Step { name, pod: Some(ask.pod.clone()), began: now, ended: now, told };
        self.shared.history.note(&self.name, step);
    }

    /// AWS was told to end the instance.
    fn note_release(&mut self) {
        if let Some(after) = self.shared.history.released(&self.name, self.shared.clock.cluster()) {
            self.shared.metrics.released(after);
        }
    }

    fn hear_of_guard(&mut self, uid: String, result: Result<(), ApiError>) {
        let (task, now) = (Task::Guard(uid), self.shared.clock.now());
        let mut outage = self.shared.guards.lock();
        match result {
            Ok(()) | Err(ApiError::NotFound | ApiError::Conflict) => {
                outage.recovered();
                self.memory.put_off(&task, now, SOON_SEEN);
            }
            Err(error) => {
                if !matches!(error, ApiError::DryRun) && outage.failed().is_some() {
                    tracing::warn!(node = self.name.as_str(), error = %chain(&error), "annotation that keeps cluster-autoscaler from evicting a DaemonSet pod could not be changed: tried again");
                }
                let failures = self.memory.tries(&task).failures;
                let is_lasting = error.is_forbidden() && failures >= LASTING_AFTER;
                self.memory.failed(&task, now, is_lasting.then_some(STAYS_FORBIDDEN));
            }
        }
    }

    /// Conditions are for others: nothing waits for them, and what fails is told rarely, as where the right was left out.
    fn hear_of_report(&mut self, state: DrainState, result: Result<NodeView, ApiError>) {
        let now = self.shared.clock.now();
        let mut outage = self.shared.reports.lock();
        match result {
            Ok(node) => {
                outage.recovered();
                self.memory.worked(&Task::Report, now);
                self.memory.reported = Some((state, now));
                self.shared.nodes.update(node);
            }
            Err(error) => {
                if outage.failed().is_some() {
                    tracing::warn!(node = self.name.as_str(), error = %chain(&error), "conditions DrainInProgress and Drained could not be written: tried again, drains go on");
                }
                self.memory.reported = None;
                self.memory.failed(&Task::Report, now, None);
            }
        }
    }

    /// Publishes an Event on a pod that goes now: one a phase.
    fn tell_pod(&mut self, pod: PodName, uid: &str, how: Removal) {
        let Some(node) = self.shared.nodes.get(&self.name) else { return };
        let Some((cause, phase)) = node.scale_in().map(|record| (record.cause, record.phase)) else { return };
        if !self.memory.of_mut(uid).tell_in(phase) {
            return;
        }
        let event = match how {
            Removal::Eviction => events::pod_evicted(&self.name, cause),
            Removal::DaemonSet => events::daemon_pod_asked(&self.name, cause),
            Removal::Deletion => events::pod_deleted(&self.name, cause),
            Removal::LostDeletion => events::pod_deleted_with_its_machine(&self.name, cause),
        };
        let now = self.shared.clock.now();
        let mut events = self.shared.pod_events.lock();
        let is_allowed = events.allow(event.warning, now);
        drop(events);
        if !is_allowed {
            return self.shared.metrics.suppressed();
        }
        if self.shared.leadership.leads() {
            let told = announce_pod(Arc::clone(&self.shared), pod, uid.to_owned(), event);
            self.running.push(told.boxed());
        }
    }

    fn hear_of_failed_write(&mut self, error: &ApiError, then: &[Action]) {
        let pause = matches!(error, ApiError::Conflict).then_some(OVERTAKEN);
        if pause.is_none() && !matches!(error, ApiError::DryRun | ApiError::Unwanted) {
            let words = chain(error);
            if let Some(outage_seconds) = self.told.node_writes.failed() {
                tracing::warn!(node = self.name.as_str(), outage_seconds, error = %words, "the Node could not be written: tried again");
            }
            self.memory.not_written = Some(words);
        }
        self.memory.note_not_written(then, pause, self.shared.clock.now());
        if pause.is_some() {
            self.tell_of_same_writes();
        }
    }

    fn tell_that_writes_work(&mut self) {
        if let Some(outage_seconds) = self.told.node_writes.recovered() {
            tracing::info!(node = self.name.as_str(), outage_seconds, "the Node can be written again");
        }
    }

    fn tell_of_same_writes(&mut self) {
        if self.memory.tells_of_same_writes(self.shared.clock.now()) {
            tracing::warn!(
                node = self.name.as_str(),
                "writes to the Node are overwritten, or always conflict: something else writes the same fields (a second installation, a webhook); tried again after longer and longer pauses"
            );
        }
    }

    /// Whether a workload has come to the node while its release was written, or may have, and there is time to have it leave.
    fn is_in_use_again(&self, node: &NodeView) -> bool {
        let hard = node.scale_in().and_then(deadline::released_anyway);
        let (_, ahead) = self.record_seen(node.record.is_some());
        let has_time = hard.is_none_or(|hard| hard > later(self.shared.clock.now(), ahead));
        has_time && (self.memory.empty_since.is_none() || self.is_relisting())
    }

    /// AWS was not told, although the record says so.
    fn not_terminated(&mut self, noted_at: Timestamp) {
        self.memory.note_void(noted_at);
        self.memory.failed(&Task::Terminate, self.shared.clock.now(), None);
    }

    /// A listed pod that the watch has not shown came while the watch was silent, or is about to be shown.
    fn hear_of_pods(&mut self, pods: Result<Vec<PodView>, ApiError>) {
        let now = self.shared.clock.now();
        match pods {
            Ok(pods) => {
                let is_shown = |pod: &PodView| pod.finished || self.pods.by_uid.contains_key(&pod.uid);
                let overdue = later(self.shared.clock.cluster(), -OVERDUE_AFTER);
                let is_listed = |pod: &PodView| self.shared.nodes.get(&pod.node).is_some();
                let is_overdue = |pod: &&PodView| {
                    let to_go = || self.memory.of(&pod.uid).to_go;
                    let has_shown_nothing = || to_go().is_some_and(|at| at + ASK_AGAIN <= now);
                    pod.deletion_timestamp.map_or_else(has_shown_nothing, |end| end <= overdue)
                        && is_listed(pod)
                };
                let is_as_known = |known: &PodView| {
                    let is_it = |pod: &PodView| pod.uid == known.uid && !pod.finished;
                    let goes = |pod: &PodView| pod.deletion_timestamp.is_some();
                    known.finished || pods.iter().any(|pod| is_it(pod) && goes(pod) == goes(known))
                };
                if pods.iter().all(is_shown) && self.pods.by_uid.values().filter(is_overdue).all(is_as_known)
                {
                    self.memory.worked(&Task::ListPods, now);
                    self.pods.confirmed_at = (!self.is_relisting()).then_some(now);
                } else {
                    self.memory.put_off(&Task::ListPods, now, LISTED_ANEW);
                    tracing::info!(
                        node = self.name.as_str(),
                        "the watch of the node's pods has missed something: it is restarted, and nothing is released before that"
                    );
                    self.pods.list_anew(&self.nodes);
                }
            }
            Err(error) => {
                self.memory.failed(&Task::ListPods, now, None);
                if self.memory.tries(&Task::ListPods).failures == LASTING_AFTER {
                    tracing::warn!(
                        node = self.name.as_str(),
                        error = %chain(&error),
                        "the node's pods cannot be listed before its release: the release waits; retrying"
                    );
                }
            }
        }
    }

    fn hear_of_daemon_set(&mut self, uid: String, exists: &Result<bool, ApiError>) {
        let now = self.shared.clock.now();
        if exists.is_ok() {
            self.told.daemon_sets.recovered();
        }
        match exists {
            Ok(true) => self.memory.put_off(&Task::DaemonSet(uid), now, SOON_SEEN),
            Ok(false) => _ = self.memory.deleted_daemon_sets.insert(uid),
            Err(error) => {
                if let Some(outage_seconds) = self.told.daemon_sets.failed() {
                    tracing::warn!(node = self.name.as_str(), outage_seconds, error = %chain(error), "DaemonSet could not be looked up: its pods stay until it is known to be deleted");
                }
                self.memory.failed(&Task::DaemonSet(uid), now, None);
            }
        }
    }

    /// Tells why the instance is not terminated under the hook: its node is drained before.
    fn tell_of_heartbeat(&mut self, group: &GroupName, error: Option<&AwsError>) {
        match error {
            None => drop(self.told.heartbeats.recovered()),
            // That passes, and the hook is used all the same.
            Some(error) if error.is_transient() => {}
            Some(error) => {
                if let Some(outage_seconds) = self.told.heartbeats.failed() {
                    tracing::warn!(
                        node = self.name.as_str(),
                        group = group.as_str(),
                        outage_seconds,
                        error = %chain(error),
                        "AWS refuses heartbeats for the group: the node is drained before its instance is terminated, not under the \
                        lifecycle hook"
                    );
                }
            }
        }
    }

    fn hear_of_completion(&mut self, hook: &Hook, instance: &InstanceId, result: Result<(), AwsError>) {
        let now = self.shared.clock.now();
        self.memory.note_completion(&result, now);
        match result {
            Ok(()) => {
                self.told.completions.recovered();
                self.note_release();
                self.shared.holds.note_completed(instance, now);
                tracing::info!(
                    node = self.name.as_str(),
                    instance = instance.as_str(),
                    hook = hook.name,
                    "lifecycle hook completed"
                );
            }
            Err(AwsError::NoActiveHook { .. }) => {}
            Err(error) => {
                if let Some(outage_seconds) = self.told.completions.failed() {
                    tracing::warn!(node = self.name.as_str(), instance = instance.as_str(), outage_seconds, error = %chain(&error), "lifecycle hook not completed: tried again; after five minutes no more heartbeats are sent and the hook times out");
                }
                self.tell_of_timeout(hook, instance, now);
            }
        }
        self.shared.groups.refresh_soon();
    }

    /// Tells once that no more heartbeats hold the instance.
    fn tell_of_timeout(&mut self, hook: &Hook, instance: &InstanceId, now: Timestamp) {
        let is_so = self.shared.holds.is_left_to_its_timeout(instance, now);
        let is_told = std::mem::replace(&mut self.told.of_timeout, is_so);
        if is_so && !is_told {
            let (node, instance) = (self.name.as_str(), instance.as_str());
            let timeout_seconds = hook.heartbeat_timeout.as_secs();
            tracing::warn!(
                node,
                instance,
                hook = hook.name,
                timeout_seconds,
                "the lifecycle hook could not be completed for five minutes: no more heartbeats are sent for the instance, and the hook times out"
            );
        }
    }
}
