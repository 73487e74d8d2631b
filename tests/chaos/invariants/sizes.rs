//! What becomes of groups' sizes.

use std::collections::BTreeMap;

use ebbtide::sim::autoscaler::Event as AutoscalerEvent;
use ebbtide::sim::aws::{Event, GroupSnapshot, LifecycleState, Operation, TerminationCause};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;

use super::Violation;
use super::ends::has_autoscalers_taint;
use super::pods::is_called;
use crate::history::{History, Note};
use crate::scenario::{AwsFault, Cause, GroupCause, What};

/// How old a look at AWS is at the most when a request has followed it, if nothing is wrong there.
const CROSSED: SignedDuration = SignedDuration::from_secs(15);

/// How old a description may be in an answer.
const REFRESHED: SignedDuration = SignedDuration::from_secs(120);

/// The desired capacity goes down twice for one instance.
pub(super) fn decrements(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut seen: BTreeMap<&str, Timestamp> = BTreeMap::new();
    let mut called: Option<&str> = None;
    for entry in &history.aws {
        match &entry.what {
            Event::Called {
                operation: Operation::TerminateInstanceInAutoScalingGroup, arguments, ..
            } => {
                called = arguments.get("InstanceId").map(String::as_str);
            }
            Event::Called { .. } => called = None,
            Event::DesiredChanged {
                by: Operation::TerminateInstanceInAutoScalingGroup, from, to, ..
            } if to < from => {
                if let Some(instance) = called
                    && let Some(first) = seen.insert(instance, entry.at)
                {
                    found.push(Violation {
                        at: entry.at,
                        what: format!("{instance} lowered the size at {first} already"),
                    });
                }
            }
            _ => {}
        }
    }
    found
}

/// A size is set below the group's minimum.
pub(super) fn minimum(history: &History) -> Vec<Violation> {
    let below = |entry: &ebbtide::sim::aws::Entry| match &entry.what {
        Event::DesiredChanged { group, to, from, .. } => {
            let min = history.end.groups.iter().find(|end| end.name == *group)?.min;
            let what = format!("{group} went from {from} to {to}, its minimum is {min}");
            (*to < min).then_some(Violation { at: entry.at, what })
        }
        _ => None,
    };
    history.aws.iter().filter_map(below).collect()
}

/// An instance in service ends though nobody wished that.
pub(super) fn unasked(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (n, entry) in history.aws.iter().enumerate() {
        let Event::TerminationStarted { group, instance, cause, .. } = &entry.what else { continue };
        let was_in_service = history.aws[..n]
            .iter()
            .any(|e| matches!(&e.what, Event::InService { instance: id, .. } if id == instance))
            || history.lives.get(instance).is_some_and(|life| life.in_service.is_none_or(|at| at < entry.at));
        let by_us = *cause == TerminationCause::Request && is_called(history, n, instance);
        // What is in a warm pool is no node, and the pool's size is the group's own matter.
        if history.is_warm(instance, n) {
            continue;
        }
        let chosen = *cause == TerminationCause::ScaleIn
            && !may_choose(history, group)
            && !is_crossed(history, n)
            && !is_left_lowered(history, n, group);
        if was_in_service && (by_us && !is_wished(history, instance, n) || chosen) {
            found.push(Violation { at: entry.at, what: format!("{instance} of {group} ended: {cause:?}") });
        }
    }
    found
}

/// Whether AWS was told to end an instance, and lower the size, when it had just begun to end that by itself or for somebody else, or had
/// while its descriptions were older than that.
fn is_crossed(history: &History, n: usize) -> bool {
    let at = history.aws[n].at;
    let ended = |e: &Event| match e {
        Event::TerminationStarted { cause: TerminationCause::Request, .. } => true,
        Event::TerminationStarted { instance, .. } => is_called(history, n, instance),
        _ => false,
    };
    let stale = history.diary.iter().filter_map(|(when, note)| match note {
        Note::Did(What::Aws(AwsFault::Stale { by, lasting })) => {
            let until = *when + SignedDuration::from_secs(i64::from(*lasting));
            (*when <= at && at <= until).then_some(SignedDuration::from_secs(i64::from(*by)))
        }
        _ => None,
    });
    let from = at - CROSSED - stale.max().unwrap_or_default();
    history.aws[..n].iter().any(|entry| from <= entry.at && entry.at < at && ended(&entry.what))
}

/// Whether the program has lowered the size, and was killed before it could see a launch that came all the same.
fn is_left_lowered(history: &History, n: usize, name: &str) -> bool {
    let at = history.aws[n].at;
    let lowered = history.aws[..n].iter().rev().find(|entry| match &entry.what {
        Event::DesiredChanged { group, from, to, by } => {
            group == name && to < from && *by == Operation::SetDesiredCapacity
        }
        _ => false,
    });
    let Some(lowered) = lowered.filter(|entry| at.duration_since(entry.at) <= LEFT_LOWERED) else {
        return false;
    };
    let is_gone =
        |(when, note): &(Timestamp, Note)| matches!(note, Note::Gone(_)) && (lowered.at..=at).contains(when);
    history.diary.iter().any(is_gone)
}

/// So long after a size went down, instances are protected; a group looks for a victim within that time.
const LEFT_LOWERED: SignedDuration = SignedDuration::from_mins(2);

/// Whether somebody has wished the end of an instance.
fn is_wished(history: &History, instance: &str, n: usize) -> bool {
    let node = history.names.get(instance).map_or("", String::as_str);
    let asked = history.diary.iter().any(|(at, note)| match note {
        Note::Asked(cause, machine) => {
            *at <= history.aws[n].at && machine.instance == instance && *cause != Cause::Unhealthy
        }
        _ => false,
    });
    let deleted = history.autoscaler.iter().any(|(_, event)| match event {
        AutoscalerEvent::Deleted { nodes, .. } => nodes.iter().any(|id| id == node || id.ends_with(instance)),
        _ => false,
    });
    // Its group took it out before, and retained it.
    let started = |e: &Event| matches!(e, Event::TerminationStarted { instance: id, .. } if id == instance);
    asked || deleted || history.aws[..n].iter().any(|entry| started(&entry.what))
}

/// Whether a group may choose victims itself: somebody lowered it, or it launches more than it should have for a while (another
/// zone's, a replacement that comes first).
fn may_choose(history: &History, name: &str) -> bool {
    let lowered = |(_, note): &(Timestamp, Note)| match note {
        Note::AskedOfGroup(GroupCause::Lowered | GroupCause::Refresh, group) => group == name,
        _ => false,
    };
    let Some(group) = history.scenario.groups.iter().find(|group| group.name == name) else { return true };
    group.zones > 1 || group.is_spot || history.diary.iter().any(lowered)
}

/// TargetSize is not what the group wants when nothing is under way.
pub(super) fn target(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for group in &history.end.groups {
        let settled =
            group.instances.iter().all(|i| i.state == LifecycleState::InService || i.state.is_warm());
        // What AWS cannot launch is told as placeholders; what still leaves is another invariant's.
        if !settled {
            continue;
        }
        let weight = history
            .scenario
            .groups
            .iter()
            .find(|g| g.name == group.name)
            .map_or(1, |g| if g.weighs { 2 } else { 1 });
        let nodes = i32::try_from(group.desired.div_ceil(weight)).unwrap_or(i32::MAX);
        let expected = nodes - drained_by_autoscaler(history, group);
        let told = history.end.targets.get(&group.name);
        // Of a group with weights the nodes are counted, and a description may leave one out (docs/testing.md).
        let has_gap = weight > 1 && history.end.gaps.iter().any(|gap| history.end.at - REFRESHED <= *gap);
        if told != Some(&Ok(expected)) && !(has_gap && told == Some(&Ok(expected - 1))) {
            let what = format!("{}: told {told:?}, right is {expected}", group.name);
            found.push(Violation { at: history.end.at, what });
        }
    }
    found
}

/// How many nodes of a group cluster-autoscaler still counts as deleted: its taint is on them. What is in the warm pool is none.
fn drained_by_autoscaler(history: &History, group: &GroupSnapshot) -> i32 {
    // One that is warm, or was detached, is in no size.
    let is_warm = |id: &str| group.instances.iter().any(|i| i.id == id && i.state.is_warm());
    let was_detached = |id: &str| {
        let detached = |e: &Event| matches!(e, Event::Detached { instance, .. } if instance == id);
        history.aws.iter().any(|entry| detached(&entry.what))
    };
    let is_here = |node: &&Node| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        history.instance_at(name, history.end.at).is_some_and(|instance| {
            let life = history.lives.get(instance);
            let is_away = is_warm(instance) || was_detached(instance);
            !is_away && life.is_some_and(|life| life.group == group.name)
        })
    };
    history.end.nodes.iter().filter(|node| has_autoscalers_taint(node)).filter(is_here).count() as i32
}
