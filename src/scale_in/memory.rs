//! What one run remembers of its tries for a node. Nothing in it must survive: a restart tries again what is still to be
//! done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::absences::Absences;
use super::action::{Action, Plan};
use super::asked::{Asked, Obstacle};
use super::claims::Claims;
use super::class::{Flush, replaces_asked};
use super::events::{ANNOUNCE_AGAIN_AFTER, Reason, ScaleInEvent};
use super::going::Going;
use super::membership::{Membership, SETTLED_AFTER};
use super::node_patch;
use super::record::{Phase, Record};
use super::returns::Returns;
use super::same_writes::SameWrites;
use super::tries::{Task, Tries, jittered};
use crate::aws::{AwsError, Lifecycle};
use crate::clock::{backoff, later, signed, spread};
use crate::cluster::{Answer, BudgetSeen, DaemonOwner, DrainState, NodeView, PodView, Ready};
use crate::k8s::{GroupName, InstanceId, NodeName};
use crate::telemetry::chain;

/// This soon before AWS ends a machine, its node is no longer put back into service.
const TOO_LATE: SignedDuration = SignedDuration::from_mins(5);

/// How far the record's clock and ours may drift apart between two readings. Terminations that two processes note at the same time, as one
/// takes over from the other, are further apart than that.
const CLOCKS_PART_BY: SignedDuration = SignedDuration::from_micros(10);

/// First and longest pause before a completion that AWS throttled or did not answer is tried again: it is the last step of a scale-in.
const COMPLETED_AGAIN: [SignedDuration; 2] = [SignedDuration::from_millis(500), SignedDuration::from_secs(5)];

/// How many terminations that had no effect are remembered. Each has a pause of its own before the next.
const VOID_KEPT: usize = 8;

/// What was found out in this scale-in and does not count for another.
#[derive(Clone, Debug, Default)]
pub struct OfScaleIn {
    /// The version of the pods on the node that were noted last.
    noted: Option<u64>,
    /// When AWS refused to shrink the group.
    pub at_minimum_since: Option<Timestamp>,
    /// When AWS refused the last termination in words that say nothing to us.
    pub refused_unclearly_at: Option<Timestamp>,
    /// Whether this run has seen the group take the instance out.
    pub was_seen_out: bool,
    /// Pods that come back to the cordoned node.
    pub returns: Returns,
    /// DaemonSet pods that were away for a while during the drain.
    pub absences: Absences,
    /// The call, of those that release the instance, that AWS refuses for good, and AWS's words.
    refused_by_aws: Option<(Task, String)>,
    /// Since when AWS has said that our hook, which was to be completed, does not hold the instance.
    pub not_held_by_ours_since: Option<Timestamp>,
}

/// What was tried for one node.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    tries: BTreeMap<Task, Tries>,
    /// A number of the node's own, by which it does not retry in step with others.
    node: u64,
    /// By UID.
    pods: BTreeMap<String, Asked>,
    same_writes: SameWrites,
    told_of_same_writes: Option<Timestamp>,
    /// What is believed of the record.
    pub claims: Claims,
    /// What a scale-in takes with it.
    pub of_scale_in: OfScaleIn,
    /// What we last wrote into the Node's conditions, and when.
    pub reported: Option<(DrainState, Timestamp)>,
    /// Whether an Event has said that no hook of ours holds the instance that its group ends.
    pub told_not_held: bool,
    /// What was announced last, by topic, and when.
    pub announced: BTreeMap<String, Timestamp>,
    /// What to announce when the Node has gone, which we have deleted and finalizers keep.
    pub once_gone: Option<ScaleInEvent>,
    /// The group of ours in which this run first saw the instance.
    pub first_group: Option<GroupName>,
    /// Since when this run has waited for a list of the node's pods.
    pub unlisted_since: Option<Timestamp>,
    /// Since when this run has seen no workload on the node.
    pub empty_since: Option<Timestamp>,
    /// UIDs of DaemonSets that the API server does not have.
    pub deleted_daemon_sets: BTreeSet<String>,
    /// Nodes of the machine that this run has seen Ready, and since when they have not been.
    not_ready: BTreeMap<NodeName, Option<Timestamp>>,
    /// When the grace of pods that are going ends.
    pub going: Going,
    /// The record, removed or overwritten once AWS was told to end the instance or its group took it out, of a scale-in that goes on.
    pub lost: Option<Record>,
    /// When the last call to terminate ended that may have taken effect.
    pub told_at: Option<Timestamp>,
    /// Whether AWS acknowledged that call.
    pub is_acknowledged: bool,
    /// When the last few terminations were noted that certainly had no effect.
    void_terminations: VecDeque<Timestamp>,
    /// Why the last write of the Node failed, unless somebody else was quicker.
    pub not_written: Option<String>,
    /// Since when the instance has been in none of our groups.
    pub elsewhere_since: Option<Timestamp>,
    /// Since when descriptions have shown the instance in service, or on its way into it.
    pub in_service_since: Option<Timestamp>,
    /// Since when they have shown it in service.
    pub back_since: Option<Timestamp>,
}

impl Memory {
    /// An empty one of this node.
    pub fn of_node(node: &NodeName) -> Self {
        Self { node: spread(node), ..Self::default() }
    }

    /// Whether the record was written by somebody else, about an instance that this run has never seen in our groups: another replica
    /// would not have accepted it.
    pub fn is_only_claimed(&self) -> bool {
        self.claims.is_written_by_others() && self.first_group.is_none()
    }

    /// The tries of a task.
    pub fn tries(&self, task: &Task) -> &Tries {
        match task {
            Task::Evict(uid) => &self.of(uid).eviction,
            Task::DeletePod(uid) => &self.of(uid).deletion,
            Task::Guard(uid) => &self.of(uid).guard,
            other => self.tries.get(other).unwrap_or(const { &Tries::NONE }),
        }
    }

    fn tries_mut(&mut self, task: &Task) -> &mut Tries {
        match task {
            Task::Evict(uid) => &mut self.of_mut(uid).eviction,
            Task::DeletePod(uid) => &mut self.of_mut(uid).deletion,
            Task::Guard(uid) => &mut self.of_mut(uid).guard,
            other => self.tries.entry(other.clone()).or_default(),
        }
    }

    /// What is remembered of the pod with this UID.
    pub fn of(&self, uid: &str) -> &Asked {
        static NOTHING: Asked = Asked::NOTHING;
        self.pods.get(uid).unwrap_or(&NOTHING)
    }

    /// The same, to note more of it.
    pub fn of_mut(&mut self, uid: &str) -> &mut Asked {
        self.pods.entry(uid.to_owned()).or_default()
    }

    /// Notes that a try begins.
    pub fn begin(&mut self, task: &Task, now: Timestamp) {
        self.tries_mut(task).begin(now);
    }

    /// Notes that a try worked.
    pub fn worked(&mut self, task: &Task, now: Timestamp) {
        self.tries_mut(task).worked(now);
    }

    /// Notes that a try failed; the next one after `pause`, by default the usual backoff.
    pub fn failed(&mut self, task: &Task, now: Timestamp, pause: Option<SignedDuration>) {
        let failures = self.tries(task).failures + 1;
        let pause = pause.unwrap_or_else(|| self.jittered(task, task.pause_after(failures)));
        self.tries_mut(task).failed(now, pause);
    }

    /// A pause of this node's before it tries again.
    fn jittered(&self, task: &Task, pause: SignedDuration) -> SignedDuration {
        jittered(pause, (self.node, task, self.tries(task).failures))
    }

    /// Notes a request whose effect should show by itself. If it has not after this pause, the request is repeated.
    pub fn put_off(&mut self, task: &Task, now: Timestamp, pause: SignedDuration) {
        self.tries_mut(task).put_off(now, pause);
    }

    /// Notes an announcement and forgets those that may be repeated: topics may contain arbitrary text.
    pub fn note_announced(&mut self, topic: String, now: Timestamp) {
        self.announced.retain(|_, at| *at + ANNOUNCE_AGAIN_AFTER > now);
        self.announced.insert(topic, now);
    }

    /// Notes what a plan says of the node's pods.
    pub fn note_planned(&mut self, plan: &Plan, now: Timestamp) {
        self.note_occupied(plan.occupied, now);
        if let Some(until) = plan.asks_last {
            self.of_scale_in.returns.ask_last(until);
        }
    }

    /// Notes whether workloads are on the node; `None`: unknown.
    pub(super) fn note_occupied(&mut self, occupied: Option<bool>, now: Timestamp) {
        match occupied {
            Some(true) => self.empty_since = None,
            Some(false) => {
                self.empty_since.get_or_insert(now);
            }
            None => {}
        }
    }

    /// Notes whether all pods on the node are known.
    pub fn note_listed(&mut self, are_known: bool, now: Timestamp) {
        if are_known {
            self.unlisted_since = None;
        } else {
            self.unlisted_since.get_or_insert(now);
        }
    }

    /// Notes where the instance is.
    pub fn note_membership(&mut self, instance: &Membership) {
        if let Membership::In { group, .. } = instance {
            self.first_group.get_or_insert_with(|| group.clone());
        }
        let is_taken_out = |lifecycle: &Lifecycle| lifecycle.is_terminating() || lifecycle.is_warm();
        self.of_scale_in.was_seen_out |=
            matches!(instance, Membership::In { lifecycle, .. } if is_taken_out(lifecycle));
        // What was refused in one way of release says nothing of another.
        self.of_scale_in.refused_by_aws.take_if(|(task, _)| match instance {
            Membership::Unknown => false,
            Membership::In { lifecycle, .. } => {
                let is_out = is_taken_out(lifecycle);
                if *task == Task::Terminate { is_out } else { !is_out && !lifecycle.is_held() }
            }
            Membership::Elsewhere { .. } => true,
        });
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
        if let Membership::In { lifecycle: Lifecycle::InService, seen, .. } = instance {
            // Of a hook that held it before it came back.
            let completed = self.tries(&Task::Complete).ended;
            if completed.is_some_and(|at| later(at, SETTLED_AFTER) < *seen) {
                self.tries.remove(&Task::Complete);
                self.of_scale_in.not_held_by_ours_since = None;
            }
        }
    }

    /// Notes whether a Node of the machine is Ready.
    pub fn note_ready(&mut self, node: &NodeView, now: Timestamp) {
        if node.ready == Ready::Yes {
            self.not_ready.insert(node.name.clone(), None);
        } else if let Some(since) = self.not_ready.get_mut(&node.name) {
            since.get_or_insert(now);
        }
    }

    /// Since when this run has seen a Node not Ready that it had seen Ready: the kubelet dates that by its own clock, which may be off.
    pub fn not_ready_since(&self, node: &NodeName) -> Option<Timestamp> {
        self.not_ready.get(node).copied().flatten()
    }

    /// Whether this version of the pods on the node is to be noted.
    pub fn is_news(&mut self, version: u64) -> bool {
        self.of_scale_in.noted.replace(version) != Some(version)
    }

    /// Notes the pods on the node and forgets those that are gone.
    pub fn note_pods(&mut self, pods: &BTreeMap<String, PodView>, now: Timestamp) {
        self.going.see(pods, now);
        self.pods.retain(|uid, _| pods.contains_key(uid));
        self.of_scale_in.returns.see(pods, self.claims.record().map(|record| record.requested_at));
        self.of_scale_in.returns.see_last_round(pods, now);
    }

    /// Notes what the node's DaemonSet pods do, once they are listed. `now` is with how far the API server's clock is ahead.
    pub fn note_daemons(
        &mut self,
        pods: &BTreeMap<String, PodView>,
        flush: &Flush,
        now: (Timestamp, SignedDuration),
    ) {
        let record = self.claims.record();
        let is_draining = record.is_some_and(|record| record.phase == Phase::Draining);
        let flushing_since = record.filter(|_| !is_draining).map(|record| record.phase_since);
        if is_draining {
            // It has gone back from a flush: what comes instead of those asked then is needed again.
            self.of_scale_in.absences.forget_asked();
        }
        let (memory, deleted) = (&self.pods, &self.deleted_daemon_sets);
        let is_asked = |uid: &str| {
            let was_asked =
                memory.get(uid).is_some_and(|pod| pod.to_go.is_some() || pod.deletion != Tries::NONE);
            let Some(pod) = pods.get(uid) else { return was_asked && !is_draining };
            // Nobody makes another one for a DaemonSet that was deleted.
            let is_orphan =
                matches!(&pod.daemon, Some(DaemonOwner::DaemonSet { uid, .. }) if deleted.contains(uid));
            was_asked && !is_draining
                || is_orphan
                || flushing_since.is_some_and(|since| replaces_asked(pod, since))
        };
        self.of_scale_in.absences.see(pods, is_asked, flush, now);
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
            (_, Some(task)) => self.begin(&task, now),
            (Action::Announce(what), None) => {
                self.told_not_held |= what.reason == Reason::NotHeld;
                self.note_announced(what.topic.clone(), now);
            }
            (_, None) => {}
        }
    }

    /// Notes the Node as it was written.
    pub fn note_written(&mut self, node: &NodeView, now: Timestamp) {
        self.worked(&Task::Node, now);
        self.not_written = None;
        self.same_writes.end(now);
        if node.record.is_none() {
            self.forget_the_scale_in();
        }
    }

    /// Notes the record that was there before, and where the Node's instance is now. A record that somebody takes off is lost only if AWS
    /// was told, or the group takes the instance out; else that calls off the scale-in, as where AWS has ended nothing after all.
    pub fn note_before(&mut self, before: Option<Record>, node: &NodeView, instance: &Membership) {
        let lifecycle = match instance {
            Membership::In { lifecycle, .. } => Some(*lifecycle),
            Membership::Unknown | Membership::Elsewhere { .. } => None,
        };
        let is_going = lifecycle.is_some_and(Lifecycle::is_terminating);
        let is_over = !is_going && !node_patch::has_our_taint(node);
        if is_over || self.claims.record().is_some() {
            self.lost = None;
        } else if let Some(before) = before {
            let is_told = before.terminate_at.is_some() || is_going;
            self.lost = is_told.then_some(before);
        }
    }

    /// The record to put back, if somebody took it off or wrote over it in vain: a request was written over a scale-in under way, or AWS
    /// ends the machine so soon that pods that came to the node would end with it. `now` is by the record's clock.
    pub fn overruled_in_vain(&self, instance: &InstanceId, now: Timestamp) -> Option<&Record> {
        let ends_soon =
            |record: &&Record| record.ends_at.is_some_and(|end| now < end && end <= later(now, TOO_LATE));
        let claims = &self.claims;
        claims.written_over(instance).or_else(|| claims.overruled(instance).filter(ends_soon))
    }

    /// Whether the node's pods could not be listed when that was last tried.
    pub fn is_listing_failing(&self) -> bool {
        self.tries(&Task::ListPods).failures > 0
    }

    /// Whether the termination noted at this moment certainly had no effect. The moment may have been converted to the record's clock
    /// twice, and the clocks drift apart a little in between.
    pub fn is_void(&self, noted_at: Timestamp) -> bool {
        self.void_terminations.iter().any(|void| void.duration_since(noted_at).abs() < CLOCKS_PART_BY)
    }

    /// Notes that the termination noted at this moment certainly had no effect. The last one is not enough: the Node may show an earlier
    /// note, as a write that seemed to fail may have happened.
    pub fn note_void(&mut self, noted_at: Timestamp) {
        self.void_terminations.truncate(VOID_KEPT - 1);
        self.void_terminations.push_front(noted_at);
    }

    /// Forgets what does not count for another scale-in.
    pub fn forget_the_scale_in(&mut self) {
        self.of_scale_in = OfScaleIn::default();
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

    /// Until when a write of the Node waits because the same was written again and again.
    pub fn same_write_waits_until(&self, patch: &Value) -> Option<Timestamp> {
        self.same_writes.wait_until(patch)
    }

    /// Whether a warning is due that the same is written on the Node again and again, and is therefore paced: once in a while.
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
        self.of_mut(&uid).note_eviction(&Task::Evict(uid), answer, budgets, now);
    }

    /// Whether a budget has refused the eviction of a pod that is there still.
    pub fn is_blocked_by_a_budget(&self) -> bool {
        let mut refusals = self.pods.values().filter_map(|pod| pod.refusal.as_ref());
        refusals.any(|refusal| refusal.by == Obstacle::Budget)
    }

    /// Notes the API server's answer to the deletion of a pod.
    pub fn note_deletion(&mut self, uid: String, answer: Answer, now: Timestamp) {
        self.of_mut(&uid).note_deletion(&Task::DeletePod(uid), answer, now);
    }

    /// Notes AWS's answer to the termination noted at `noted_at`, or that there was none.
    pub fn note_termination(&mut self, noted_at: Timestamp, result: &Result<(), AwsError>, now: Timestamp) {
        self.of_scale_in.refused_unclearly_at = None;
        let Err(error) = result else {
            self.of_scale_in.refused_by_aws = None;
            (self.told_at, self.is_acknowledged) = (Some(now), true);
            return self.worked(&Task::Terminate, now);
        };
        if !error.is_refusal() {
            // A refresh shows whether it took effect; it is never repeated blindly.
            (self.told_at, self.is_acknowledged) = (Some(now), false);
            return self.failed(&Task::Terminate, now, None);
        }
        self.note_void(noted_at);
        if matches!(error, AwsError::AtMinimum { .. }) {
            self.of_scale_in.at_minimum_since = Some(now);
            return self.worked(&Task::Terminate, now);
        }
        self.of_scale_in.refused_unclearly_at = matches!(error, AwsError::Other { .. }).then_some(now);
        self.note_refusal(Task::Terminate, error);
        self.failed(&Task::Terminate, now, None);
    }

    /// Notes AWS's answer to the completion of our hook.
    pub fn note_completion(&mut self, result: &Result<(), AwsError>, now: Timestamp) {
        let Err(error) = result else {
            (self.of_scale_in.refused_by_aws, self.of_scale_in.not_held_by_ours_since) = (None, None);
            return self.worked(&Task::Complete, now);
        };
        // AWS shows Terminating:Wait before a hook can be completed and after it was: the next refresh tells.
        if matches!(error, AwsError::NoActiveHook { .. }) {
            // Completed before, it was over then.
            let completed = Some(self.tries(&Task::Complete)).filter(|tries| tries.done);
            let since = completed.and_then(|tries| tries.ended).unwrap_or(now);
            self.of_scale_in.not_held_by_ours_since.get_or_insert(since);
        } else {
            self.note_refusal(Task::Complete, error);
        }
        let failures = self.tries(&Task::Complete).failures;
        let soon = || {
            let [first, longest] = COMPLETED_AGAIN.map(SignedDuration::unsigned_abs);
            self.jittered(&Task::Complete, signed(backoff(failures + 1, first, longest)))
        };
        let pause = error.is_transient().then(soon);
        self.failed(&Task::Complete, now, pause);
    }

    /// Keeps AWS's words for people if trying again alone will not help.
    fn note_refusal(&mut self, task: Task, error: &AwsError) {
        if !error.is_transient() {
            self.of_scale_in.refused_by_aws = Some((task, chain(error)));
        }
    }

    /// AWS's words if it refuses for good to release the instance.
    pub fn refused_by_aws(&self) -> Option<&str> {
        self.of_scale_in.refused_by_aws.as_ref().map(|(_, words)| words.as_str())
    }
}
