//! How things are when nothing is under way any more.

use std::collections::BTreeSet;

use ebbtide::groups::protection::PROTECTION_TAG;
use ebbtide::k8s::names;
use ebbtide::sim::aws::{Event, InstanceSnapshot, LifecycleState, Operation};
use ebbtide::sim::cluster::{Entry, Event as ClusterEvent, Name};
use ebbtide::sim::report::{PodEnd, Run};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};

use super::Violation;
use super::pods::DEAD;
use crate::history::{History, Note};
use crate::play::OURS;
use crate::scenario::{AwsFault, Cause, Deed, GroupCause, What};

/// What a scale-in takes beside the longest grace once nothing is broken, at the most.
const BESIDE: SignedDuration = SignedDuration::from_mins(20);

/// How long a changed hook may be unknown: two groups' hooks are looked up in each refresh, or one after the other where AWS has trouble.
const UNSEEN: SignedDuration = SignedDuration::from_mins(6);

/// Refreshes may be so many seconds apart while no shorter hook is known.
const REFRESHED: u32 = 60;

/// How long calls are throttled, or answered from the past, at the most.
const BLIND: SignedDuration = SignedDuration::from_mins(5);

/// Beside the age of descriptions, a hold is noticed within so many seconds, and renewed.
const NOTICED: u32 = 30;

/// For how long instances are protected at the most after a size went down.
const PROTECTED: SignedDuration = SignedDuration::from_mins(6);

/// Within this the replica that leads has released what one that did not lead, and ended, has left protected.
const SWEPT: SignedDuration = SignedDuration::from_mins(35);

/// Events by which the program says that a scale-in is over without the node's end.
const GIVEN_UP: [&str; 3] = ["ScaleInReturned", "ScaleInCancelled", "ScaleInNotPossible"];

/// A Node still has a record, or DeleteNodes was accepted and the instance is still there.
pub(super) fn scale_ins(history: &History) -> Vec<Violation> {
    let at = history.end.at;
    let mut found = accepted(history);
    for node in &history.end.nodes {
        let Some(record) = annotation(node, names::RECORD) else { continue };
        // A word that is none counts as none. A wish that the group's minimum forbids stands, or of a node that is of none, and an Event says so.
        let (for_good, to_replace) = (record.starts_with("now"), record.starts_with("replace"));
        let is_idle = record == "nwo"
            || for_good && is_at_minimum(history, node)
            || (for_good || to_replace) && is_of_no_group(history, node);
        // An instance refresh goes on for as long as it takes: what it began last is under way.
        let instance = history.instance_at(name(node), at).unwrap_or_default();
        let is_new = history.may_be_under_way(instance);
        // In its group's warm pool a node keeps its marks until it is out of there.
        let is_warm = history.is_warm(instance, history.aws.len());
        // This world's cloud controller goes by what groups say of their instances.
        let is_detached = is_of_no_group(history, node) && history.is_dead(instance, at);
        if !is_idle && !is_new && !is_warm && !is_detached && !history.is_waited_for(name(node)) {
            found.push(Violation { at, what: format!("{}: {record}", name(node)) });
        }
    }
    found
}

/// Nodes for which DeleteNodes was answered without an error, and which are still there in service.
fn accepted(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, note) in &history.diary {
        let Note::Accepted(machine) = note else { continue };
        // A person may cancel it, and a group that has come to its minimum meanwhile keeps it.
        let is_cancelled = history.diary.iter().any(|(_, note)| match note {
            Note::Person(Deed::Cancel | Deed::Mistype, other) => other == machine,
            _ => false,
        });
        let told = |entry: &Entry| match &entry.what {
            ClusterEvent::KubernetesEvent { regarding, reason, .. } => {
                *regarding == format!("Node/{}", machine.node) && GIVEN_UP.contains(&reason.as_str())
            }
            _ => false,
        };
        let group = history.end.groups.iter().find(|group| group.name == machine.group);
        let is_there = group.is_some_and(|group| {
            group.instances.iter().any(|i| i.id == machine.instance && i.state == LifecycleState::InService)
        });
        // Before AWS is told, which has to hold the machine, the record on the Node is all there is of it. Another's hook has it drained first too.
        let spec = history.scenario.groups.iter().find(|spec| spec.name == machine.group);
        let is_forgotten = spec.is_some_and(|spec| spec.hook.is_none() || spec.foreign.is_some())
            && history
                .diary
                .iter()
                .any(|(_, note)| matches!(note, Note::Person(Deed::DeleteNode, other) if other == machine));
        if is_there && !is_cancelled && !is_forgotten && !history.cluster.iter().any(told) {
            found.push(Violation {
                at: *at,
                what: format!("{} was accepted, and is in service", machine.node),
            });
        }
    }
    found
}

/// Whether its instance is in no group any more: an Event says so too.
fn is_of_no_group(history: &History, node: &Node) -> bool {
    let instance = history.instance_at(name(node), history.end.at).unwrap_or_default();
    !history.end.groups.iter().any(|group| group.instances.iter().any(|i| i.id == instance))
}

fn is_at_minimum(history: &History, node: &Node) -> bool {
    let instance = history.instance_at(name(node), history.end.at).unwrap_or_default();
    let group = history.end.groups.iter().find(|group| group.instances.iter().any(|i| i.id == instance));
    let weighs = |name: &str| history.scenario.groups.iter().any(|group| group.name == name && group.weighs);
    // A person's other wishes come before this one, or what else the group has to give up.
    group.is_some_and(|group| group.desired < group.min + if weighs(&group.name) { 2 } else { 1 })
}

/// As many heartbeats in a row that AWS does not hear are a hold that nobody can keep.
const TRIES: usize = 3;

/// An instance is still held by our hook; ours timed out though somebody was there; somebody else's was touched.
pub(super) fn hooks(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for group in &history.end.groups {
        // What is in a warm pool is no node: its hooks are left to time out.
        let is_held = |i: &&InstanceSnapshot| i.waits.contains_key(OURS) && !i.state.is_warm();
        for instance in group.instances.iter().filter(is_held) {
            let is_new = history.may_be_under_way(&instance.id);
            if is_new || history.names.get(&instance.id).is_some_and(|node| history.is_waited_for(node)) {
                continue;
            }
            let what = format!("{} of {} is held by our hook", instance.id, group.name);
            found.push(Violation { at: history.end.at, what });
        }
        // One that is off is kept for as long as its pods have their grace, as one that is held.
        let waits = |id: &str| history.names.get(id).is_some_and(|node| history.is_waited_for(node));
        for id in group.in_state(LifecycleState::TerminatingRetained).into_iter().filter(|id| !waits(id)) {
            found.push(Violation { at: history.end.at, what: format!("{id} of {} is retained", group.name) });
        }
    }
    for (n, entry) in history.aws.iter().enumerate() {
        match &entry.what {
            Event::Called {
                operation:
                    operation @ (Operation::CompleteLifecycleAction | Operation::RecordLifecycleActionHeartbeat),
                arguments,
                ..
            } if arguments.get("LifecycleHookName").is_some_and(|hook| hook != OURS) => {
                found.push(Violation { at: entry.at, what: format!("{operation:?}: {arguments:?}") });
            }
            Event::HookTimedOut { hook, instance, group, .. }
                if hook == OURS
                    && history.was_there(group, entry.at)
                    && !history.is_warm(instance, n)
                    && !history.is_of_unknown_age(instance, n)
                    && history.hold_by_heartbeats(instance, entry.at).1 < TRIES =>
            {
                found.push(Violation {
                    at: entry.at,
                    what: format!("our hook timed out for {instance} of {group}"),
                });
            }
            _ => {}
        }
    }
    found
}

impl History {
    /// Whether an instance's end was wished so shortly before the end of the run.
    fn may_be_under_way(&self, instance: &str) -> bool {
        let takes = SignedDuration::from_secs(self.scenario.longest_grace()) + BESIDE;
        self.requested(instance).is_some_and(|since| self.end.at < since + takes)
    }

    /// Whether, at the end, pods of a machine that is off, or whose Node somebody has deleted, have what is left of their grace: nobody
    /// confirms their exits, not even of those that were bound to it when it was off already, and some have graces as long as the hold of a
    /// hook.
    fn is_waited_for(&self, node: &str) -> bool {
        let was_cut = |run: &Run| run.node == node && matches!(run.end, Some((_, PodEnd::PowerOff)));
        let bound = |entry: &Entry| match &entry.what {
            ClusterEvent::PodScheduled { pod, node: to } if to == node => Some(pod.clone()),
            _ => None,
        };
        let bound: BTreeSet<Name> = self.cluster.iter().filter_map(bound).collect();
        let was_deleted = |(_, note): &(Timestamp, Note)| match note {
            Note::Person(Deed::DeleteNode, machine) => machine.node == node,
            _ => false,
        };
        (self.runs.iter().any(was_cut) || self.diary.iter().any(was_deleted))
            && self.cluster.iter().any(|entry| match &entry.what {
                ClusterEvent::PodAsked { pod, grace, .. } if bound.contains(pod) => {
                    self.end.at < entry.at + SignedDuration::from_secs((*grace).clamp(0, 200_000)) + DEAD
                }
                _ => false,
            })
    }

    /// Whether the hold that ends at this place of AWS's journal is one for a root volume, and began before a replica was started that
    /// may lead by now: no activity tells since when it lasts.
    fn is_of_unknown_age(&self, instance: &str, n: usize) -> bool {
        let of_this = |e: &Event| matches!(e, Event::EnteredWait { instance: id, .. } if id == instance);
        let Some(began) = self.aws[..n].iter().rev().find(|entry| of_this(&entry.what)) else { return false };
        let goes_on = |e: &Event| matches!(e, Event::Entered { instance: id, state: LifecycleState::ReplacingRootVolumeProceed, .. } if id == instance);
        let (began, ended) = (began.at, self.aws[n].at);
        let is_for_its_volume =
            self.aws[n..].iter().take_while(|entry| entry.at == ended).any(|e| goes_on(&e.what));
        let starts =
            |(at, note): &(Timestamp, Note)| matches!(note, Note::Started(_)) && (began..ended).contains(at);
        is_for_its_volume && self.diary.iter().any(starts)
    }

    /// Whether the program ran and AWS answered for the last heartbeat time-out of a group's hook.
    fn was_there(&self, group: &str, at: Timestamp) -> bool {
        let all = || self.heartbeats(group, Timestamp::MIN, Timestamp::MAX);
        let (shortest, heartbeat) = (all().min(), all().max().unwrap_or_default());
        let from = at - SignedDuration::from_secs(i64::from(heartbeat));
        // Half a minute is too short where nine calls of ten are refused, and any time-out where descriptions are as old.
        let is_too_short = |shortest: u32| {
            self.did(from - BLIND, at, |what| match what {
                What::Aws(AwsFault::Throttled { percent: 90.., .. }) => shortest <= 30,
                What::Aws(AwsFault::Stale { by, .. }) => shortest <= by + NOTICED,
                _ => false,
            })
        };
        // Heartbeats that are late by more than a time-out.
        let late = self.scenario.longest_delay(Operation::RecordLifecycleActionHeartbeat);
        let is_late =
            |shortest: u32| late.as_secs() > i64::from(shortest) && self.aws_had_trouble(from - late, at);
        let is_hopeless = shortest.is_some_and(|shortest| is_too_short(shortest) || is_late(shortest));
        !self.was_disturbed(from, at) && !is_hopeless && !self.has_unseen_hook(group, from - UNSEEN, at)
    }

    /// Whether somebody put a hook, within a span, that can time out between two refreshes.
    fn has_unseen_hook(&self, group: &str, from: Timestamp, to: Timestamp) -> bool {
        self.diary.iter().any(|(at, note)| match note {
            Note::AskedOfGroup(GroupCause::Hook(heartbeat), name) => {
                name == group && *heartbeat <= REFRESHED && (from..=to).contains(at)
            }
            _ => false,
        })
    }

    /// Whether, within a span, no replica ran for a moment, or AWS had trouble.
    pub(super) fn was_disturbed(&self, from: Timestamp, to: Timestamp) -> bool {
        let mut running = vec![false; self.scenario.program.replicas as usize];
        let mut away = false;
        let mut disturbed = false;
        let mut last = Timestamp::MIN;
        for (at, note) in self.diary.iter().take_while(|(at, _)| *at <= to) {
            let undisturbed = running.iter().any(|running| *running) && !away;
            disturbed |= !undisturbed && *at >= from && last <= to;
            last = *at;
            match note {
                Note::Started(n) => running[*n] = true,
                Note::Gone(n) | Note::EndedByItself(n) => running[*n] = false,
                Note::AwsAway => away = true,
                Note::AwsBack | Note::Mended => away = false,
                _ => {}
            }
        }
        disturbed || away || !running.iter().any(|running| *running)
    }
}

/// A Node that is not leaving is cordoned by us, or carries marks of ours.
pub(super) fn leftovers(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for node in history.end.nodes.iter().filter(|node| annotation(node, names::RECORD).is_none()) {
        let name = name(node);
        let instance = history.instance_at(name, history.end.at).unwrap_or_default();
        // Until a notice has lapsed, hours later, its node is cordoned.
        let is_noticed = history.diary.iter().any(|(_, note)| match note {
            Note::Asked(
                Cause::Spot | Cause::RebalanceNotice | Cause::Scheduled | Cause::FarAhead,
                machine,
            ) => machine.instance == instance,
            _ => false,
        });
        let is_cordoned = |(_, note): &(Timestamp, Note)| match note {
            Note::Person(Deed::Cordon | Deed::Drain | Deed::Update, machine) => machine.instance == instance,
            _ => false,
        };
        let by_hand = history.diary.iter().any(is_cordoned);
        let spec = node.spec.as_ref();
        let mut left = Vec::new();
        if spec.and_then(|spec| spec.unschedulable) == Some(true) && !by_hand && !is_noticed {
            left.push("cordoned".to_owned());
        }
        // Of a cluster-autoscaler that started while nobody answered it, which takes its taints off no second time.
        let is_guarded = has_autoscalers_taint(node);
        if !is_guarded && taints(node).iter().any(|taint| taint.key == names::TO_BE_DELETED) {
            left.push(names::TO_BE_DELETED.to_owned());
        }
        let labels = node.metadata.labels.iter().flatten().map(|(key, _)| key.clone());
        left.extend(labels.filter(|key| key == names::EXCLUDE_FROM_LOAD_BALANCERS && !is_noticed));
        // The guard, and the name of the installation.
        let is_guard = |marks: &str| marks.split(',').all(|word| word == "guard" || word.contains('/'));
        let marks = annotation(node, names::MARKS).filter(|marks| !is_guarded || !is_guard(marks));
        left.extend(marks.map(|marks| format!("{}={marks}", names::MARKS)));
        left.extend(
            annotation(node, names::CORDON).filter(|_| !is_noticed).map(|_| names::CORDON.to_owned()),
        );
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        let says_so = |it: &&NodeCondition| it.type_ == "DrainInProgress" && it.status == "True";
        left.extend(conditions.unwrap_or_default().iter().filter(says_so).map(|it| it.type_.clone()));
        if !left.is_empty() {
            found.push(Violation { at: history.end.at, what: format!("{name}: {}", left.join(", ")) });
        }
    }
    found
}

/// An instance is protected from scale-in, or says that it is by our doing, long after a size went down.
pub(super) fn protection(history: &History) -> Vec<Violation> {
    let at = history.end.at;
    let changed = history.aws.iter().rev().find(|entry| matches!(entry.what, Event::DesiredChanged { .. }));
    let went = history.diary.iter().rev().find(|(_, note)| matches!(note, Note::Gone(_)));
    let is_swept = went.is_none_or(|(went, _)| at >= *went + SWEPT) || history.scenario.program.replicas == 1;
    if changed.is_some_and(|entry| at < entry.at + PROTECTED) || !is_swept {
        return Vec::new();
    }
    let is_left = |i: &&InstanceSnapshot| i.protected || i.tags.contains_key(PROTECTION_TAG);
    let left = history.end.groups.iter().flat_map(|group| group.instances.iter().filter(is_left));
    left.map(|i| Violation { at, what: format!("{} of {} is protected", i.id, i.group) }).collect()
}

/// Whether cluster-autoscaler's own taint is on a Node, which is hard where ours is soft.
pub(super) fn has_autoscalers_taint(node: &Node) -> bool {
    taints(node).iter().any(|taint| taint.key == names::TO_BE_DELETED && taint.effect == "NoSchedule")
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}
