//! What one run remembers of its tries for a node. Nothing in it must survive: a restart tries again what is still to be
//! done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::action::Action;
use super::claims::Claims;
use super::class::Flush;
use super::events::{ANNOUNCE_AGAIN_AFTER, Reason};
use super::going::Going;
use super::membership::Membership;
use super::node_patch;
use super::record::{Phase, Record, Written};
use super::returns::Returns;
use super::rolled::Rolled;
use super::same_writes::SameWrites;
use crate::aws::{AwsError, Lifecycle};
use crate::clock::{backoff, later, signed, spread};
use crate::cluster::{Answer, BudgetSeen, DrainState, NodeView, PodView};
use crate::k8s::InstanceId;
use crate::telemetry::chain;

/// Pause between tries of an eviction that a budget blocks, the same as in `kubectl drain`.
/// Source: [kubectl drain](https://github.com/kubernetes/kubectl/blob/master/pkg/drain/drain.go).
const BLOCKED: SignedDuration = SignedDuration::from_secs(5);

/// The same after many refusals by a budget that is watched: when it has room, the pod is tried at once. Hundreds of nodes whose budgets have
/// none for hours are to cost the API server less than a `kubectl drain` of each.
const BLOCKED_FOR_LONG: SignedDuration = SignedDuration::from_secs(30);

/// After this many answers 429 in a row that name no budget, it is a webhook that says so for ever: flow control lets a request in within
/// fewer tries.
const PUT_OFF_FOR_EVER_AFTER: u32 = 3;

/// What failed this often in a row counts as lasting. An API server that has just started, or learned of a right, allows it a little later.
pub(super) const LASTING_AFTER: u32 = 5;

/// So shortly before AWS ends a machine, its node is not opened any more.
const TOO_LATE: SignedDuration = SignedDuration::from_mins(5);

/// How far the record's clock and ours part between two readings. Terminations are further apart.
const CLOCKS_PART_BY: SignedDuration = SignedDuration::from_millis(100);

/// Something tried until it works.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// A write to the Node.
    Node,
    /// A write to the Node's conditions.
    Report,
    /// Evicting a pod, by UID.
    Evict(String),
    /// Deleting a pod, by UID: what its evictions came to costs it no time.
    DeletePod(String),
    /// Setting or taking off the guard of a DaemonSet pod, by UID.
    Guard(String),
    /// Listing the pods.
    ListPods,
    /// Asking whether a DaemonSet exists, by UID.
    DaemonSet(String),
    /// Looking at AWS again.
    Refresh,
    /// Terminating the instance.
    Terminate,
    /// Completing the lifecycle hook.
    Complete,
    /// Finding out whether AWS lets heartbeats through.
    Heartbeat,
    /// Letting another process lead.
    HandOver,
    /// Deleting the Node.
    Delete,
}

/// State of a task's tries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// A try is under way.
    pub in_flight: bool,
    /// When the last try began.
    pub began: Option<Timestamp>,
    /// Failed tries in a row.
    pub failures: u32,
    /// No try before this moment.
    pub not_before: Option<Timestamp>,
    /// When the last try ended.
    pub ended: Option<Timestamp>,
    /// Whether the last try worked.
    pub done: bool,
}

/// Why the API server did not evict a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Budgets that covered the pod.
    pub budgets: Vec<BudgetSeen>,
    /// The answer, for people.
    pub text: String,
    /// Who did not let it.
    pub by: Obstacle,
}

/// A pod whose namespace is being deleted is asked again after this time.
const GOING_ANYWAY: SignedDuration = SignedDuration::from_secs(30);

/// A completion that AWS throttles or does not answer is tried again after the first of these pauses, later after up to the second: everything is
/// over but for it.
const COMPLETED_AGAIN: [SignedDuration; 2] = [SignedDuration::from_millis(500), SignedDuration::from_secs(5)];

/// How many terminations that had no effect are remembered. Each has a pause of its own before the next.
const VOID_KEPT: usize = 8;

/// What keeps a pod from being evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A budget without room.
    Budget,
    /// Whoever wants to be asked again a little later: flow control, or a webhook.
    Busy,
    /// Anything else.
    Other,
}

/// What was tried for one node.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    tries: BTreeMap<Task, Tries>,
    same_writes: SameWrites,
    told_of_same_writes: Option<Timestamp>,
    /// What is believed of the record.
    pub claims: Claims,
    /// Why pods were not evicted, by UID.
    pub refusals: BTreeMap<String, Refusal>,
    /// How often pods were put off in a row, by UID.
    put_off: BTreeMap<String, u32>,
    /// Pods asked to go, by UID, and when.
    pub asked: BTreeMap<String, Timestamp>,
    /// Pods that an Event has told of their end, by UID, and in which phase.
    pub told_pods: BTreeSet<(String, Phase)>,
    /// What the Node's conditions were made to say last, and when.
    pub reported: Option<(DrainState, Timestamp)>,
    /// Whether it was told that no hook of ours holds the instance that its group ends.
    pub told_not_held: bool,
    /// What was announced last, by topic, and when.
    pub announced: BTreeMap<String, Timestamp>,
    /// When AWS refused to shrink the group.
    pub at_minimum_since: Option<Timestamp>,
    /// Whether this run has seen the group take the instance out.
    pub was_seen_out: bool,
    /// Since when this run has seen no workload on the node.
    pub empty_since: Option<Timestamp>,
    /// UIDs of DaemonSets that the API server does not have.
    pub deleted_daemon_sets: BTreeSet<String>,
    /// Pods that come back to the cordoned node.
    pub returns: Returns,
    /// When pods were seen to be asked.
    pub going: Going,
    /// DaemonSet pods that are replaced on it.
    pub rolled: Rolled,
    /// The record that somebody has taken off or written over while the group took its instance out: the scale-in goes on.
    pub lost: Option<Record>,
    /// When the last termination ended that may have taken effect.
    pub told_at: Option<Timestamp>,
    /// Whether AWS has said that it does that one.
    pub is_acknowledged: bool,
    /// Terminations that the record notes, or noted, at these moments certainly had no effect: the last few.
    void_terminations: VecDeque<Timestamp>,
    /// The API server's words if it did not take the last write of the Node, and nobody else was quicker.
    pub not_written: Option<String>,
    /// AWS's words if it refuses for good to release the instance.
    pub refused_by_aws: Option<String>,
    /// Since when the instance has been in none of our groups.
    pub elsewhere_since: Option<Timestamp>,
    /// Since when descriptions have shown the instance in service, or on its way into it.
    pub in_service_since: Option<Timestamp>,
    /// Since when they have shown it in service.
    pub back_since: Option<Timestamp>,
}

/// A write of the Node is tried again after five seconds at most, so many times: two minutes long, which is all the time that a spot notice
/// gives. Nobody is asked to leave before the record is on the Node.
const QUICK_WRITES: u32 = 25;

/// Pause after the n-th failure in a row: 1 s, doubled up to 30 s, plus or minus a fifth so that nodes do not retry in
/// step. Hashed: the same tries give the same pauses.
fn pause_after(task: &Task, failures: u32) -> SignedDuration {
    let is_quick = *task == Task::Node && failures <= QUICK_WRITES;
    let longest = Duration::from_secs(if is_quick { 5 } else { 30 });
    let pause = backoff(failures, Duration::from_secs(1), longest);
    jittered(signed(pause), task, failures)
}

/// `pause`, plus or minus a fifth.
pub(super) fn jittered(pause: SignedDuration, task: &Task, tries: u32) -> SignedDuration {
    let share = 80 + i64::try_from(spread((task.seed(), tries)) % 41).unwrap_or_default();
    SignedDuration::from_millis((pause.as_millis() as i64).saturating_mul(share) / 100)
}

impl Task {
    /// A number by which pauses of one task differ from those of another of its kind.
    fn seed(&self) -> u64 {
        match self {
            Self::Evict(uid) | Self::DeletePod(uid) | Self::Guard(uid) | Self::DaemonSet(uid) => spread(uid),
            other => spread(std::mem::discriminant(other)),
        }
    }

    /// The task an action is a try of; `None` if it is not retried.
    pub fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::PatchNode { .. } => Self::Node,
            Action::Report(_) => Self::Report,
            Action::Evict { uid, .. } => Self::Evict(uid.clone()),
            Action::Delete { uid, .. } => Self::DeletePod(uid.clone()),
            Action::Guard { uid, .. } => Self::Guard(uid.clone()),
            Action::ListPods { .. } => Self::ListPods,
            Action::LookUpDaemonSet { uid, .. } => Self::DaemonSet(uid.clone()),
            Action::Refresh => Self::Refresh,
            Action::Terminate { .. } => Self::Terminate,
            Action::CompleteHook { .. } => Self::Complete,
            Action::Heartbeat { .. } => Self::Heartbeat,
            Action::HandOver => Self::HandOver,
            Action::DeleteNode { .. } => Self::Delete,
            Action::GiveUpReplacement { .. } | Action::Announce(_) | Action::AnnouncePod { .. } => {
                return None;
            }
        })
    }
}

impl Memory {
    /// The tries of a task.
    pub fn tries(&self, task: &Task) -> Option<&Tries> {
        self.tries.get(task)
    }

    /// When a task may be tried; `None` while a try is under way.
    pub fn may_try_at(&self, task: &Task) -> Option<Timestamp> {
        match self.tries.get(task) {
            Some(tries) if tries.in_flight => None,
            Some(tries) => Some(tries.not_before.unwrap_or(Timestamp::MIN)),
            None => Some(Timestamp::MIN),
        }
    }

    /// Whether the last try of a task worked.
    pub fn is_done(&self, task: &Task) -> bool {
        self.tries.get(task).is_some_and(|tries| tries.done)
    }

    /// Whether a pod was put off more often in a row than flow control does it.
    pub fn is_put_off_for_ever(&self, uid: &str) -> bool {
        self.put_off.get(uid).is_some_and(|times| *times >= PUT_OFF_FOR_EVER_AFTER)
    }

    /// Notes that a try begins.
    pub fn begin(&mut self, task: Task, now: Timestamp) {
        let tries = self.tries.entry(task).or_default();
        tries.in_flight = true;
        tries.began = Some(now);
    }

    /// Notes that a try worked.
    pub fn worked(&mut self, task: Task, now: Timestamp) {
        self.tries.insert(task, Tries { done: true, ended: Some(now), ..Tries::default() });
    }

    /// Notes that a try failed; the next one after `pause`, by default the usual backoff.
    pub fn failed(&mut self, task: &Task, now: Timestamp, pause: Option<SignedDuration>) {
        let tries = self.tries.entry(task.clone()).or_default();
        tries.in_flight = false;
        tries.done = false;
        tries.failures += 1;
        tries.ended = Some(now);
        tries.not_before = Some(now + pause.unwrap_or_else(|| pause_after(task, tries.failures)));
    }

    /// Notes that what was asked for is to show by itself, and is asked for again if it has not after this pause.
    pub fn put_off(&mut self, task: &Task, now: Timestamp, pause: SignedDuration) {
        let tries = self.tries.entry(task.clone()).or_default();
        *tries = Tries { ended: Some(now), not_before: Some(now + pause), ..Tries::default() };
    }

    /// Notes an announcement and forgets those that may be repeated: topics may contain arbitrary text.
    pub fn note_announced(&mut self, topic: String, now: Timestamp) {
        self.announced.retain(|_, at| *at + ANNOUNCE_AGAIN_AFTER > now);
        self.announced.insert(topic, now);
    }

    /// Notes whether workloads are on the node; `None`: unknown.
    pub fn note_occupied(&mut self, occupied: Option<bool>, now: Timestamp) {
        match occupied {
            Some(true) => self.empty_since = None,
            Some(false) => {
                self.empty_since.get_or_insert(now);
            }
            None => {}
        }
    }

    /// Notes where the instance is.
    pub fn note_membership(&mut self, instance: &Membership) {
        self.was_seen_out |= matches!(
            instance,
            Membership::In { lifecycle, .. } if lifecycle.is_terminating() || lifecycle.is_warm()
        );
        self.elsewhere_since = match instance {
            Membership::Elsewhere { seen } => self.elsewhere_since.or(Some(*seen)),
            _ => None,
        };
        self.in_service_since = match instance {
            Membership::In { lifecycle: Lifecycle::Pending | Lifecycle::InService, seen, .. } => {
                self.in_service_since.or(Some(*seen))
            }
            _ => None,
        };
        self.back_since = match instance {
            Membership::In { lifecycle: Lifecycle::InService, seen, .. } => self.back_since.or(Some(*seen)),
            _ => None,
        };
    }

    /// Notes the pods on the node and forgets those that are gone.
    pub fn note_pods(&mut self, pods: &BTreeMap<String, PodView>, now: Timestamp) {
        self.going.see(pods, now);
        let there = |uid: &String| pods.contains_key(uid);
        self.refusals.retain(|uid, _| there(uid));
        self.put_off.retain(|uid, _| there(uid));
        self.asked.retain(|uid, _| there(uid));
        self.told_pods.retain(|(uid, _)| there(uid));
        self.tries.retain(|task, _| match task {
            Task::Evict(uid) | Task::DeletePod(uid) | Task::Guard(uid) => there(uid),
            _ => true,
        });
        self.returns.see(pods);
    }

    /// Notes what the node's DaemonSet pods do, once they are listed.
    pub fn note_daemons(&mut self, pods: &BTreeMap<String, PodView>, flush: &Flush, now: Timestamp) {
        let (asked, tries) = (&self.asked, &self.tries);
        let is_asked =
            |uid: &str| asked.contains_key(uid) || tries.contains_key(&Task::DeletePod(uid.to_owned()));
        self.rolled.see(pods, is_asked, flush, now);
    }

    /// Notes that an action begins.
    pub fn note_begun(&mut self, action: &Action, now: Timestamp) {
        if let Action::PatchNode { patch, .. } = action {
            self.same_writes.begin(patch);
            if let Some(record) = node_patch::record_in(patch) {
                self.claims.write(record);
            }
        }
        match (action, Task::of(action)) {
            (_, Some(task)) => self.begin(task, now),
            (Action::Announce(what), None) => {
                self.told_not_held |= what.reason == Reason::NotHeld;
                self.note_announced(what.topic.clone(), now);
            }
            (_, None) => {}
        }
    }

    /// Notes the Node as it was written.
    pub fn note_written(&mut self, node: &NodeView, now: Timestamp) {
        self.worked(Task::Node, now);
        self.not_written = None;
        self.same_writes.end(now);
        if node.record.is_none() {
            self.forget_the_scale_in();
        }
    }

    /// Notes the record that was there before, and where the Node's instance is now. Only what somebody takes off once AWS was told, or the
    /// group takes the instance out, is lost: else that calls the scale-in off, as it does where AWS has ended nothing after all.
    pub fn note_before(&mut self, before: Option<Record>, node: &NodeView, instance: &Membership) {
        let lifecycle = match instance {
            Membership::In { lifecycle, .. } => Some(*lifecycle),
            Membership::Unknown | Membership::Elsewhere { .. } => None,
        };
        let is_going = lifecycle.is_some_and(Lifecycle::is_terminating);
        let is_over = !is_going && !node_patch::has_our_taint(node);
        if is_over || matches!(self.claims.believed(), Some(Written::Record(_))) {
            self.lost = None;
        } else if let Some(before) = before {
            let is_told = before.terminate_at.is_some() || is_going;
            self.lost = is_told.then_some(before);
        }
    }

    /// A record that somebody took off or wrote over, and that is put back: a request was written over it though the scale-in is under way, or
    /// AWS ends the machine so soon that pods which came to the node would end with it. `now` is by the record's clock.
    pub fn overruled_in_vain(&self, instance: &InstanceId, now: Timestamp) -> Option<&Record> {
        let ends_soon =
            |record: &&Record| record.ends_at.is_some_and(|end| now < end && end <= later(now, TOO_LATE));
        let claims = &self.claims;
        claims.written_over(instance).or_else(|| claims.overruled(instance).filter(ends_soon))
    }

    /// Whether the node's pods could not be listed when that was last tried.
    pub fn is_listing_failing(&self) -> bool {
        self.tries(&Task::ListPods).is_some_and(|tries| tries.failures > 0)
    }

    /// Whether the termination that is noted for this moment certainly had no effect. The moment may have been read by the record's clock twice,
    /// which differs a little from ours by then.
    pub fn is_void(&self, noted_at: Timestamp) -> bool {
        self.void_terminations.iter().any(|void| void.duration_since(noted_at).abs() < CLOCKS_PART_BY)
    }

    /// Notes that the termination noted for this moment certainly had no effect. The Node may show an earlier note than the last one: a write
    /// that is said to have failed may have happened.
    pub fn note_void(&mut self, noted_at: Timestamp) {
        self.void_terminations.truncate(VOID_KEPT - 1);
        self.void_terminations.push_front(noted_at);
    }

    /// Of another scale-in nothing counts that was found out in this one.
    pub fn forget_the_scale_in(&mut self) {
        self.at_minimum_since = None;
        self.was_seen_out = false;
        self.refused_by_aws = None;
        self.returns = Returns::default();
        self.rolled = Rolled::default();
        self.tries.remove(&Task::HandOver);
    }

    /// Notes that a write of the Node failed. It may have happened, but the actions that were to follow did not.
    pub fn note_not_written(&mut self, then: &[Action], pause: Option<SignedDuration>, now: Timestamp) {
        for action in then {
            if let Action::Terminate { noted_at, .. } = action {
                self.note_void(*noted_at);
            }
        }
        if pause.is_some() {
            self.same_writes.end(now);
        }
        self.failed(&Task::Node, now, pause);
    }

    /// Until when a write of the Node waits, as others that wanted the same were made again and again.
    pub fn same_write_waits_until(&self, patch: &Value) -> Option<Timestamp> {
        self.same_writes.wait_until(patch)
    }

    /// Whether people are to be told that the writes of the Node want the same again and again, and are paced: once in a while.
    pub fn tells_of_same_writes(&mut self, now: Timestamp) -> bool {
        let is_due = self.told_of_same_writes.is_none_or(|at| at + ANNOUNCE_AGAIN_AFTER <= now);
        let tells = is_due && self.same_writes.are_telling();
        if tells {
            self.told_of_same_writes = Some(now);
        }
        tells
    }

    /// Notes the API server's answer to an eviction, and the budgets that covered the pod when asked.
    pub fn note_eviction(&mut self, uid: String, answer: Answer, budgets: Vec<BudgetSeen>, now: Timestamp) {
        let task = Task::Evict(uid.clone());
        let tries = self.tries(&task).map_or(0, |tries| tries.failures);
        if !matches!(answer, Answer::Busy(..)) {
            self.put_off.remove(&uid);
        }
        let (text, by, pause) = match answer {
            Answer::Going | Answer::Gone => {
                self.refusals.remove(&uid);
                self.asked.insert(uid, now);
                return self.worked(task, now);
            }
            Answer::GoingAnyway => {
                // Whoever deletes the namespace asks it some time: nobody has yet.
                self.refusals.remove(&uid);
                return self.put_off(&task, now, GOING_ANYWAY);
            }
            Answer::Busy(pause, text) => {
                let times = self.put_off.entry(uid.clone()).or_default();
                *times += 1;
                if *times < PUT_OFF_FOR_EVER_AFTER {
                    // As long as it says. What is known of the pod beside that stands, but the room that we saw is taken.
                    if let Some(refusal) = self.refusals.get_mut(&uid) {
                        refusal.budgets = budgets;
                    } else {
                        self.refusals.insert(uid, Refusal { budgets, text, by: Obstacle::Busy });
                    }
                    return self.failed(&task, now, Some(pause));
                }
                // A webhook that says so for ever: no more often than a budget.
                (text, Obstacle::Busy, Some(pause.max(jittered(BLOCKED, &task, tries))))
            }
            Answer::Blocked(text) => {
                let longest = if budgets.is_empty() { BLOCKED } else { BLOCKED_FOR_LONG };
                let pause = backoff(tries + 1, BLOCKED.unsigned_abs(), longest.unsigned_abs());
                (text, Obstacle::Budget, Some(jittered(signed(pause), &task, tries)))
            }
            Answer::Unclear(text) => (text, Obstacle::Other, None),
        };
        self.refusals.insert(uid, Refusal { budgets, text, by });
        self.failed(&task, now, pause);
    }

    /// Whether a budget has refused the eviction of a pod that is there still.
    pub fn is_blocked_by_a_budget(&self) -> bool {
        self.refusals.values().any(|refusal| refusal.by == Obstacle::Budget)
    }

    /// Notes the API server's answer to the deletion of a pod.
    pub fn note_deletion(&mut self, uid: String, answer: Answer, now: Timestamp) {
        let task = Task::DeletePod(uid.clone());
        match answer {
            Answer::Going | Answer::Gone | Answer::GoingAnyway => {
                self.refusals.remove(&uid);
                self.asked.insert(uid, now);
                self.worked(task, now);
            }
            Answer::Busy(pause, _) => self.failed(&task, now, Some(pause)),
            Answer::Blocked(text) | Answer::Unclear(text) => {
                self.refusals.insert(uid, Refusal { budgets: Vec::new(), text, by: Obstacle::Other });
                self.failed(&task, now, None);
            }
        }
    }

    /// Notes AWS's answer to the termination noted at `noted_at`, or that there was none.
    pub fn note_termination(&mut self, noted_at: Timestamp, result: &Result<(), AwsError>, now: Timestamp) {
        let Err(error) = result else {
            self.refused_by_aws = None;
            (self.told_at, self.is_acknowledged) = (Some(now), true);
            return self.worked(Task::Terminate, now);
        };
        if !error.is_refusal() {
            // A refresh shows whether it took effect; it is never repeated blindly.
            (self.told_at, self.is_acknowledged) = (Some(now), false);
            return self.failed(&Task::Terminate, now, None);
        }
        self.note_void(noted_at);
        if matches!(error, AwsError::AtMinimum { .. }) {
            self.at_minimum_since = Some(now);
            return self.worked(Task::Terminate, now);
        }
        self.note_refusal(error);
        self.failed(&Task::Terminate, now, None);
    }

    /// Notes AWS's answer to the completion of our hook.
    pub fn note_completion(&mut self, result: &Result<(), AwsError>, now: Timestamp) {
        let Err(error) = result else {
            self.refused_by_aws = None;
            return self.worked(Task::Complete, now);
        };
        // AWS shows Terminating:Wait before a hook can be completed and after it was: the next refresh tells.
        if !matches!(error, AwsError::NoActiveHook { .. }) {
            self.note_refusal(error);
        }
        let failures = self.tries(&Task::Complete).map_or(0, |tries| tries.failures);
        let soon = || {
            let [first, longest] = COMPLETED_AGAIN.map(SignedDuration::unsigned_abs);
            jittered(signed(backoff(failures + 1, first, longest)), &Task::Complete, failures)
        };
        let pause = error.is_transient().then(soon);
        self.failed(&Task::Complete, now, pause);
    }

    /// Keeps AWS's words for people if trying again alone will not help.
    pub fn note_refusal(&mut self, error: &AwsError) {
        if !error.is_transient() {
            self.refused_by_aws = Some(chain(error));
        }
    }
}
