//! One node's scale-in, carried out: watches its pods, asks [`plan`](super::plan) what to do, does it, remembers.
//!
//! The worker holds no state that must survive. Dropping it at any moment is safe: what it had asked for is done or
//! not, and the next one finds out by looking.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::sync::Notify;

use super::controller::{Shared, needs_worker};
use super::memory::{Memory, Refusal, Task};
use super::names;
use super::plan::{self, Action, Announcement, HookKnowledge, Situation};
use super::surroundings::{attachments_on, may_shrink, whereabouts};
use crate::aws::{AwsError, Hook};
use crate::cluster::{Answer, ApiError, NodeView, PodView, Sink, brings_news, deliver, patiently};
use crate::groups::Change;
use crate::telemetry::chain;

/// Pause after a write that another one had overtaken: the watch brings the newer Node within this time.
const OVERTAKEN: SignedDuration = SignedDuration::from_millis(50);

/// Pause between tries of an eviction that a budget blocks, as `kubectl drain` has it.
/// Source: [kubectl drain](https://github.com/kubernetes/kubectl/blob/master/pkg/drain/drain.go).
const BLOCKED: SignedDuration = SignedDuration::from_secs(5);

/// How soon a group's hooks are asked for again, where none of ours was found or what was found has proved wrong.
const HOOK_LIFE: SignedDuration = SignedDuration::from_secs(60);

/// The watch shows a guard that was set within this time.
const GUARD_SEEN: SignedDuration = SignedDuration::from_secs(5);

/// Shortest time between two plans that only the clock asks for.
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_millis(20);

/// What came of an action.
enum Outcome {
    NodeWritten(Result<NodeView, ApiError>, Option<Announcement>),
    Asked { uid: String, answer: Answer, budgets: Vec<(String, String)>, evicted: bool },
    Guarded { uid: String, result: Result<(), ApiError> },
    Hook(Result<Option<Hook>, AwsError>),
    Terminated { change: Change, result: Result<(), AwsError> },
    Completed { hook: Hook, instance: String, result: Result<(), AwsError> },
    Announced,
}

/// Pods of the node, by UID.
#[derive(Default)]
struct Pods {
    listed: std::cell::Cell<bool>,
    by_uid: std::cell::RefCell<BTreeMap<String, PodView>>,
}

impl Sink<Pod> for Pods {
    type Kept = PodView;

    fn reduce(&self, pod: Pod) -> PodView {
        PodView::from(&pod)
    }

    fn apply(&self, pod: PodView) {
        self.by_uid.borrow_mut().insert(pod.uid.clone(), pod);
    }

    fn delete(&self, pod: PodView) {
        self.by_uid.borrow_mut().remove(&pod.uid);
    }

    fn reset(&self, pods: Vec<PodView>) {
        *self.by_uid.borrow_mut() = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        self.listed.set(true);
    }
}

/// Works on one node until nothing is left to do for it or it has gone.
pub(super) async fn work(shared: Arc<Shared>, name: String) {
    let follow = shared.nodes.follow(&name);
    Worker::new(Arc::clone(&shared), name.clone()).run(&follow).await;
    shared.nodes.forget(&name);
    shared.waiting.forget(&name);
}

/// How a worker goes on.
enum Next {
    /// Nothing is left to do.
    Over,
    /// Until something happens, or this moment.
    Wait(Option<jiff::Timestamp>),
}

struct Worker {
    shared: Arc<Shared>,
    name: String,
    pods: Pods,
    memory: Memory,
    hook: HookKnowledge,
    /// By how much the wall clock was ahead of ours when the record came: its moments are read by that one, whatever
    /// becomes of the wall clock since.
    ahead: SignedDuration,
    has_record: bool,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
}

impl Worker {
    fn new(shared: Arc<Shared>, name: String) -> Self {
        Self {
            ahead: shared.clock.ahead(),
            has_record: false,
            shared,
            name,
            pods: Pods::default(),
            memory: Memory::default(),
            hook: HookKnowledge::Unknown,
            running: FuturesUnordered::new(),
        }
    }

    async fn run(&mut self, follow: &Notify) {
        let shared = Arc::clone(&self.shared);
        let mut events = std::pin::pin!(patiently(shared.cluster.pods_on(&self.name)));
        let mut listed = Vec::new();
        let mut groups = shared.groups.versions();
        let mut budgets = shared.budgets.versions();
        let mut daemon_sets = shared.daemon_sets.versions();
        let mut attachments = shared.attachments.versions();
        let mut watching = true;
        loop {
            let Next::Wait(wake_at) = self.step() else { return };
            let clock = shared.clock.clone();
            let wake = async move {
                match wake_at {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return self.hear_out().await,
                Some(outcome) = self.running.next() => self.remember(outcome),
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        watching |= brings_news(&event);
                        deliver(event, &mut listed, &self.pods);
                        // Everything that has arrived counts before the next plan is made.
                        while let Some(Some(Ok(event))) = events.next().now_or_never() {
                            deliver(event, &mut listed, &self.pods);
                        }
                    }
                    Some(Err(error)) => {
                        if std::mem::take(&mut watching) {
                            tracing::warn!(node = self.name, error = %chain(&error), "the watch of a draining node's pods broke");
                        }
                    }
                    None => return,
                },
                () = follow.notified() => {}
                Ok(()) = groups.changed() => {}
                Ok(()) = budgets.changed() => {}
                Ok(()) = daemon_sets.changed() => {}
                Ok(()) = attachments.changed() => {}
                () = wake => {}
            }
        }
    }

    /// Plans and starts what is to be done.
    fn step(&mut self) -> Next {
        let Some(node) = self.shared.nodes.get(&self.name) else { return Next::Over };
        if !std::mem::replace(&mut self.has_record, node.record.is_some()) {
            self.ahead = self.shared.clock.ahead();
        }
        let now = self.shared.clock.now();
        let pods = self.pods.by_uid.borrow();
        self.memory.keep_pods(|uid| pods.contains_key(uid));
        let situation = Situation {
            now,
            wall: self.shared.clock.wall(),
            ahead: self.ahead,
            settings: self.shared.settings,
            node: &node,
            pods: self.pods.listed.get().then_some(&*pods),
            daemon_set_exists: &|uid| {
                // Until the DaemonSets are known, a pod that says it is of one is believed.
                !self.shared.daemon_sets.is_synced() || self.shared.daemon_sets.contains(uid)
            },
            budgets: &|pod| self.shared.budgets.covering(pod),
            attachments: attachments_on(&self.shared, &self.name),
            may_shrink: &|| may_shrink(&self.shared, &node),
            instance: whereabouts(&self.shared, &node),
            hook: &self.hook,
            memory: &self.memory,
        };
        let plan = plan::plan(&situation);
        let wanted = needs_worker(&node, &situation.instance, self.shared.settings.guard);
        drop(pods);
        self.shared.waiting.set(&self.name, plan.waiting);
        for action in plan.actions {
            self.start(&node, action);
        }
        if !wanted && self.running.is_empty() {
            return Next::Over;
        }
        // A moment that has come and changed nothing does not make this a busy loop.
        Next::Wait(plan.wake_at.map(|at| at.max(now + SHORTEST_WAIT)))
    }

    /// Waits for the answers still out, and for nothing new.
    async fn hear_out(&mut self) {
        while let Some(outcome) = self.running.next().await {
            self.remember(outcome);
        }
    }

    fn start(&mut self, node: &Arc<NodeView>, action: Action) {
        let shared = Arc::clone(&self.shared);
        let node = Arc::clone(node);
        let future: BoxFuture<'static, Outcome> = match action {
            Action::PatchNode { patch, then } => {
                self.memory.begin(Task::Node);
                Box::pin(async move {
                    let result = shared.cluster.patch_node(&node.name, &patch).await;
                    if matches!(result, Err(ApiError::Conflict)) {
                        // The watch may be behind; the next try must not be made from the same stale view.
                        if let Ok(fresh) = shared.cluster.get_node(&node.name).await {
                            shared.nodes.update(fresh);
                        }
                    }
                    Outcome::NodeWritten(result, then)
                })
            }
            Action::Evict { pod, uid, grace, budgets } => {
                self.memory.begin(Task::Pod(uid.clone()));
                Box::pin(async move {
                    let answer = shared.cluster.evict(&pod, &uid, grace).await;
                    // A budget that blocks is told by an Event, not by a line for each try.
                    if matches!(answer, Answer::Blocked(_)) {
                        tracing::debug!(node = node.name, pod = %pod, answer = ?answer, "asked for an eviction");
                    } else {
                        tracing::info!(node = node.name, pod = %pod, grace, answer = ?answer, "asked for an eviction");
                    }
                    Outcome::Asked { uid, answer, budgets, evicted: true }
                })
            }
            Action::Delete { pod, uid, grace } => {
                self.memory.begin(Task::Pod(uid.clone()));
                Box::pin(async move {
                    let answer = shared.cluster.delete_pod(&pod, &uid, grace).await;
                    tracing::info!(node = node.name, pod = %pod, grace, answer = ?answer, "asked for a deletion");
                    Outcome::Asked { uid, answer, budgets: Vec::new(), evicted: false }
                })
            }
            Action::Guard { pod, uid, on } => {
                self.memory.begin(Task::Guard(uid.clone()));
                let annotations = if on {
                    json!({ names::ENABLE_DS_EVICTION: "false", names::GUARDED: "true" })
                } else {
                    json!({ names::ENABLE_DS_EVICTION: null, names::GUARDED: null })
                };
                Box::pin(async move {
                    let result = shared.cluster.annotate_pod(&pod, &uid, &annotations).await;
                    Outcome::Guarded { uid, result }
                })
            }
            Action::LookUpHook { group } => {
                self.memory.begin(Task::Hook);
                Box::pin(async move { Outcome::Hook(shared.hooks.of(&group, shared.clock.now()).await) })
            }
            Action::Terminate { group, instance, decrement } => {
                self.memory.begin(Task::Terminate);
                Box::pin(async move {
                    let result = shared.aws.terminate(&instance, decrement).await;
                    tracing::info!(
                        node = node.name,
                        group,
                        instance,
                        decrement,
                        ok = result.is_ok(),
                        "terminated"
                    );
                    Outcome::Terminated { change: Change::Terminated { group, instance, decrement }, result }
                })
            }
            Action::CompleteHook { hook, instance } => {
                self.memory.begin(Task::Complete);
                Box::pin(async move {
                    let result = shared.aws.complete(&hook.group, &hook.name, &instance).await;
                    Outcome::Completed { hook, instance, result }
                })
            }
            Action::Announce(announcement) => {
                self.memory.announced.insert(announcement.topic.clone(), self.shared.clock.now());
                Box::pin(announce(shared, node, announcement))
            }
        };
        self.running.push(future);
    }

    fn remember(&mut self, outcome: Outcome) {
        let now = self.shared.clock.now();
        match outcome {
            Outcome::NodeWritten(Ok(node), then) => {
                self.memory.worked(Task::Node, now);
                if self.memory.at_minimum && node.record.is_none() {
                    self.memory.at_minimum = false;
                }
                self.shared.nodes.update(node.clone());
                if let Some(announcement) = then {
                    self.running.push(Box::pin(announce(
                        Arc::clone(&self.shared),
                        Arc::new(node),
                        announcement,
                    )));
                }
            }
            Outcome::NodeWritten(Err(error), _) => {
                let pause = matches!(error, ApiError::Conflict).then_some(OVERTAKEN);
                if pause.is_none() {
                    tracing::warn!(node = self.name, error = %chain(&error), "could not write the Node");
                }
                self.memory.failed(&Task::Node, now, pause);
            }
            Outcome::Asked { uid, answer, budgets, evicted } => self.hear(uid, answer, budgets, evicted),
            Outcome::Guarded { uid, result: Ok(()) | Err(ApiError::NotFound | ApiError::Conflict) } => {
                // Until the watch shows it, once is enough.
                self.memory.failed(&Task::Guard(uid), now, Some(GUARD_SEEN));
            }
            Outcome::Guarded { uid, result: Err(error) } => {
                tracing::warn!(node = self.name, error = %chain(&error), "could not guard a DaemonSet pod");
                self.memory.failed(&Task::Guard(uid), now, None);
            }
            Outcome::Hook(Ok(hook)) => {
                // Asked again in a while: a hook can be added, and its time-out changed.
                self.memory.failed(&Task::Hook, now, Some(HOOK_LIFE));
                self.hook = hook.map_or(HookKnowledge::None, HookKnowledge::Ours);
            }
            Outcome::Hook(Err(error)) => {
                tracing::warn!(node = self.name, error = %chain(&error), "could not look up the group's lifecycle hooks");
                self.memory.failed(&Task::Hook, now, None);
            }
            Outcome::Terminated { change, result } => self.hear_of_termination(change, result),
            Outcome::Completed { hook, instance, result } => match result {
                Ok(()) | Err(AwsError::NoActiveHook { .. }) => {
                    tracing::info!(
                        node = self.name,
                        instance,
                        hook = hook.name,
                        "the lifecycle hook is completed"
                    );
                    self.memory.worked(Task::Complete, now);
                    self.shared.groups.refresh_soon();
                }
                Err(error) => {
                    tracing::warn!(node = self.name, instance, error = %chain(&error), "could not complete the lifecycle hook");
                    self.memory.failed(&Task::Complete, now, None);
                }
            },
            Outcome::Announced => {}
        }
    }

    fn hear(&mut self, uid: String, answer: Answer, budgets: Vec<(String, String)>, evicted: bool) {
        let now = self.shared.clock.now();
        self.shared.metrics.answered(&answer, evicted);
        let task = Task::Pod(uid.clone());
        let (text, by_budget, pause) = match answer {
            Answer::Going | Answer::Gone | Answer::GoingAnyway => {
                self.memory.refusals.remove(&uid);
                self.memory.asked.insert(uid, now);
                return self.memory.worked(task, now);
            }
            Answer::Busy(pause) => {
                // The room that was seen has been asked for: no sooner again than the API server says.
                if let Some(refusal) = self.memory.refusals.get_mut(&uid) {
                    refusal.budgets = budgets;
                }
                return self.memory.failed(&task, now, Some(pause));
            }
            Answer::Blocked(text) => {
                let tries = self.memory.tries(&task).map_or(0, |tries| tries.failures);
                (text, true, Some(super::memory::jittered(BLOCKED, &task, tries)))
            }
            Answer::Unclear(text) => (text, false, None),
        };
        self.memory.refusals.insert(uid, Refusal { budgets, text, by_budget });
        self.memory.failed(&task, now, pause);
    }

    fn hear_of_termination(&mut self, change: Change, result: Result<(), AwsError>) {
        let now = self.shared.clock.now();
        match result {
            Ok(()) => {
                self.memory.worked(Task::Terminate, now);
                self.shared.groups.changed(now, change);
            }
            Err(AwsError::AtMinimum { .. }) => {
                self.memory.at_minimum = true;
                self.hook = HookKnowledge::Unknown;
                self.memory.worked(Task::Terminate, now);
            }
            Err(error) => {
                // Whether it had its effect is seen by the look that this asks for; none is blindly repeated.
                tracing::warn!(node = self.name, error = %chain(&error), "could not terminate the instance");
                self.memory.failed(&Task::Terminate, now, None);
                self.hook = HookKnowledge::Unknown;
                self.shared.groups.refresh_soon();
            }
        }
    }
}

async fn announce(shared: Arc<Shared>, node: Arc<NodeView>, what: Announcement) -> Outcome {
    let Announcement { reason, note, warning, .. } = what;
    tracing::info!(node = node.name, reason, note, "scale-in");
    let now = shared.clock.wall();
    if let Err(error) = shared.cluster.announce(&node, reason, &note, warning, now).await {
        tracing::warn!(node = node.name, error = %chain(&error), "could not publish an Event");
    }
    Outcome::Announced
}
