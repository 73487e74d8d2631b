//! What one run of the program remembers of what it tried for a node. Nothing that must survive: a restart tries again
//! what is then still to be done.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::action::Action;
use super::claims::Claims;
use super::events::REPEAT_AFTER;
use super::membership::Membership;
use super::node_patch;
use super::returns::Returns;
use crate::aws::AwsError;
use crate::clock::{backoff, signed};
use crate::cluster::{Answer, NodeView, PodView};
use crate::telemetry::chain;

/// Pause between tries of an eviction that a budget blocks, as `kubectl drain` has it.
/// Source: [kubectl drain](https://github.com/kubernetes/kubectl/blob/master/pkg/drain/drain.go).
const BLOCKED: SignedDuration = SignedDuration::from_secs(5);

/// Something that is tried until it works.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// A write to the Node.
    Node,
    /// Asking a pod to go, by UID.
    Pod(String),
    /// Setting or taking off the guard of a DaemonSet pod, by UID.
    Guard(String),
    /// Asking whether a DaemonSet exists, by UID.
    DaemonSet(String),
    /// Having AWS looked at again.
    Look,
    /// Terminating the instance.
    Terminate,
    /// Completing the lifecycle hook.
    Complete,
}

/// How the tries of a task stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// A try is under way.
    pub in_flight: bool,
    /// Tries in a row that did not work.
    pub failures: u32,
    /// Not again before then.
    pub not_before: Option<Timestamp>,
    /// When the last try ended.
    pub ended: Option<Timestamp>,
    /// It has worked.
    pub done: bool,
}

/// Why the API server has not evicted a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The budgets that cover the pod, `namespace/name`, with the resource version they had.
    pub budgets: Vec<(String, String)>,
    /// The answer, for people.
    pub text: String,
    /// Whether a budget has no room (429), as against anything else.
    pub by_budget: bool,
}

/// What was tried for one node.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    tries: BTreeMap<Task, Tries>,
    /// What of the record is believed.
    pub claims: Claims,
    /// Why pods were not evicted, by UID.
    pub refusals: BTreeMap<String, Refusal>,
    /// Pods asked to go, by UID, and when.
    pub asked: BTreeMap<String, Timestamp>,
    /// What was announced last, by topic, and when.
    pub announced: BTreeMap<String, Timestamp>,
    /// AWS does not let the group shrink.
    pub at_minimum: bool,
    /// Since when there has been no workload on the node, as far as this run has seen.
    pub empty_since: Option<Timestamp>,
    /// DaemonSets that the API server does not have, by UID.
    pub deleted_daemon_sets: BTreeSet<String>,
    /// Pods that come back to the cordoned node.
    pub returns: Returns,
    /// When a try to terminate the instance ended that may have had its effect.
    pub told_at: Option<Timestamp>,
    /// The termination noted in the record at this moment certainly had no effect.
    pub void_termination: Option<Timestamp>,
    /// What AWS says to giving the instance back, when it refuses for good.
    pub refused_by_aws: Option<String>,
    /// Since when the instance has been in none of our groups.
    pub elsewhere_since: Option<Timestamp>,
}

/// Pause after the n-th failure in a row: 1 s, doubled up to 30 s, give or take a fifth so that many nodes do not ask
/// in step. From a hash: the same tries give the same pauses.
fn pause_after(task: &Task, failures: u32) -> SignedDuration {
    let pause = backoff(failures, Duration::from_secs(1), Duration::from_secs(30));
    jittered(signed(pause), task, failures)
}

/// `pause`, give or take a fifth.
pub(super) fn jittered(pause: SignedDuration, task: &Task, tries: u32) -> SignedDuration {
    let mut hasher = DefaultHasher::new();
    (task, tries).hash(&mut hasher);
    let share = 80 + i64::try_from(hasher.finish() % 41).unwrap_or_default();
    SignedDuration::from_millis((pause.as_millis() as i64).saturating_mul(share) / 100)
}

impl Task {
    /// The task that an action is a try of; one that is not tried again has none.
    pub fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::PatchNode { .. } => Self::Node,
            Action::Evict { uid, .. } | Action::Delete { uid, .. } => Self::Pod(uid.clone()),
            Action::Guard { uid, .. } => Self::Guard(uid.clone()),
            Action::LookUpDaemonSet { uid, .. } => Self::DaemonSet(uid.clone()),
            Action::LookAtAws => Self::Look,
            Action::Terminate { .. } => Self::Terminate,
            Action::CompleteHook { .. } => Self::Complete,
            Action::GiveUpReplacement { .. } | Action::Announce(_) => return None,
        })
    }
}

impl Hash for Task {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Pod(uid) | Self::Guard(uid) | Self::DaemonSet(uid) => uid.hash(state),
            other => std::mem::discriminant(other).hash(state),
        }
    }
}

impl Memory {
    /// How the tries of a task stand.
    pub fn tries(&self, task: &Task) -> Option<&Tries> {
        self.tries.get(task)
    }

    /// When a task may be tried: none while a try is under way.
    pub fn may_try_at(&self, task: &Task) -> Option<Timestamp> {
        match self.tries.get(task) {
            Some(tries) if tries.in_flight => None,
            Some(tries) => Some(tries.not_before.unwrap_or(Timestamp::MIN)),
            None => Some(Timestamp::MIN),
        }
    }

    /// Whether a task has worked.
    pub fn is_done(&self, task: &Task) -> bool {
        self.tries.get(task).is_some_and(|tries| tries.done)
    }

    /// A try begins.
    pub fn begin(&mut self, task: Task) {
        self.tries.entry(task).or_default().in_flight = true;
    }

    /// A try worked.
    pub fn worked(&mut self, task: Task, now: Timestamp) {
        self.tries.insert(task, Tries { done: true, ended: Some(now), ..Tries::default() });
    }

    /// A try did not work; the next one after `pause`, or the usual backoff.
    pub fn failed(&mut self, task: &Task, now: Timestamp, pause: Option<SignedDuration>) {
        let tries = self.tries.entry(task.clone()).or_default();
        tries.in_flight = false;
        tries.done = false;
        tries.failures += 1;
        tries.ended = Some(now);
        tries.not_before = Some(now + pause.unwrap_or_else(|| pause_after(task, tries.failures)));
    }

    /// Takes note of what is announced, and forgets what may be announced again: a topic can be anything that people write.
    pub fn note_announced(&mut self, topic: String, now: Timestamp) {
        self.announced.retain(|_, at| *at + REPEAT_AFTER > now);
        self.announced.insert(topic, now);
    }

    /// Takes note of whether workloads are on the node; none while that is not known.
    pub fn note_occupied(&mut self, occupied: Option<bool>, now: Timestamp) {
        match occupied {
            Some(true) => self.empty_since = None,
            Some(false) => {
                self.empty_since.get_or_insert(now);
            }
            None => {}
        }
    }

    /// Takes note of where the instance is.
    pub fn note_membership(&mut self, instance: &Membership) {
        self.elsewhere_since = match instance {
            Membership::Elsewhere { seen } => self.elsewhere_since.or(Some(*seen)),
            _ => None,
        };
    }

    /// Takes note of the pods on the node, and forgets those that are not there any more.
    pub fn note_pods(&mut self, pods: &BTreeMap<String, PodView>) {
        let there = |uid: &String| pods.contains_key(uid);
        self.refusals.retain(|uid, _| there(uid));
        self.asked.retain(|uid, _| there(uid));
        self.tries.retain(|task, _| match task {
            Task::Pod(uid) | Task::Guard(uid) => there(uid),
            _ => true,
        });
        self.returns.see(pods);
    }

    /// An action begins.
    pub fn note_begun(&mut self, action: &Action, now: Timestamp) {
        if let Action::PatchNode { patch, .. } = action
            && let Some(record) = node_patch::record_in(patch)
        {
            self.claims.write(record);
        }
        match (action, Task::of(action)) {
            (_, Some(task)) => self.begin(task),
            (Action::Announce(what), None) => self.note_announced(what.topic.clone(), now),
            (_, None) => {}
        }
    }

    /// The Node was written, and is so now.
    pub fn note_written(&mut self, node: &NodeView, now: Timestamp) {
        self.worked(Task::Node, now);
        if node.record.is_none() {
            self.at_minimum = false;
        }
    }

    /// The API server was asked to have a pod go, which these budgets covered then, and answered.
    pub fn note_answer(
        &mut self,
        uid: String,
        answer: Answer,
        budgets: Vec<(String, String)>,
        now: Timestamp,
    ) {
        let task = Task::Pod(uid.clone());
        let (text, by_budget, pause) = match answer {
            Answer::Going | Answer::Gone | Answer::GoingAnyway => {
                self.refusals.remove(&uid);
                self.asked.insert(uid, now);
                return self.worked(task, now);
            }
            Answer::Busy(pause) => {
                // The room that was seen has been asked for: no sooner again than the API server says.
                if let Some(refusal) = self.refusals.get_mut(&uid) {
                    refusal.budgets = budgets;
                }
                return self.failed(&task, now, Some(pause));
            }
            Answer::Blocked(text) => {
                let tries = self.tries(&task).map_or(0, |tries| tries.failures);
                (text, true, Some(jittered(BLOCKED, &task, tries)))
            }
            Answer::Unclear(text) => (text, false, None),
        };
        self.refusals.insert(uid, Refusal { budgets, text, by_budget });
        self.failed(&task, now, pause);
    }

    /// AWS was told to terminate the instance, as the record notes it for `noted_at`, and answered or did not.
    pub fn note_termination(&mut self, noted_at: Timestamp, result: &Result<(), AwsError>, now: Timestamp) {
        let Err(error) = result else {
            self.refused_by_aws = None;
            self.told_at = Some(now);
            return self.worked(Task::Terminate, now);
        };
        if !error.is_refusal() {
            // Whether it had its effect is seen by a look; none is blindly repeated.
            self.told_at = Some(now);
            return self.failed(&Task::Terminate, now, None);
        }
        self.void_termination = Some(noted_at);
        if matches!(error, AwsError::AtMinimum { .. }) {
            self.at_minimum = true;
            return self.worked(Task::Terminate, now);
        }
        self.note_refusal(error);
        self.failed(&Task::Terminate, now, None);
    }

    /// For people: what AWS says when trying again alone will not help.
    pub fn note_refusal(&mut self, error: &AwsError) {
        if !error.is_transient() {
            self.refused_by_aws = Some(chain(error));
        }
    }
}
