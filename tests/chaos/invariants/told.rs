//! TargetSize at every answer, held against what AWS and the Nodes had it be within the time that an answer may be old.
//!
//! Each state that AWS had is put together with each set of scale-ins that the Nodes had: an answer beyond all of these is wrong.
//! docs/autoscaler.md has the sum.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide::k8s::names::TO_BE_DELETED;
use ebbtide::sim::aws::{Event as AwsEvent, LifecycleState};
use ebbtide::sim::cluster::{Event, NodeChange};
use jiff::{SignedDuration, Timestamp};

use super::Violation;
use crate::history::{History, Note};
use crate::play::{OURS, RECORD};
use crate::scenario::{AwsFault, What};

/// How old AWS's state may be in an answer: a refresh a minute, of a description that is 45 s old, and the calls.
const REFRESHED: SignedDuration = SignedDuration::from_secs(120);

/// The same once calls to AWS were in trouble: what was known counts for ten minutes (`--snapshot-max-age`).
const KEPT: SignedDuration = SignedDuration::from_secs(600 + 120);

/// How late a watch may tell of a Node.
const WATCHED: SignedDuration = SignedDuration::from_secs(15);

/// The same once the API server, its watches or the program were in trouble: a watch that has fallen silent is begun anew.
const MISSED: SignedDuration = SignedDuration::from_mins(6);

/// From a program's start to its first answer.
const STARTS: SignedDuration = SignedDuration::from_mins(1);

/// A group as AWS had it from a moment on.
#[derive(Clone, Default)]
struct Sizes {
    desired: i32,
    /// The instances that count in it.
    live: BTreeSet<String>,
    /// Those of them that are on their way in, or in service again after a hook of ours: out of the warm pool, or with another root volume.
    /// The record of their drain may still be there.
    pending: BTreeSet<String>,
}

/// The instances on their way out, as the Nodes had it from a moment on.
#[derive(Clone, Default)]
struct Leaving {
    /// By a record, which names the group.
    certain: BTreeSet<String>,
    /// Those of them that the group replaces.
    replaced: BTreeSet<String>,
    /// By cluster-autoscaler's taint, by a wish that may be accepted, or by a Node that somebody deleted.
    possible: BTreeSet<String>,
}

/// An answer beyond what could be right.
pub(super) fn target_sizes(history: &History) -> Vec<Violation> {
    let leaving = leaving(history);
    let mut found = Vec::new();
    for group in &history.scenario.groups {
        let sizes = sizes(history, group.name, i32::try_from(group.nodes).unwrap_or_default());
        let (mut is_known, first) = (false, history.diary.first().map_or(history.end.at, |(at, _)| *at));
        for (at, note) in &history.diary {
            let Note::Told(name, answer) = note else { continue };
            if name != group.name || history.has_started_within(STARTS, *at) {
                continue;
            }
            // A description may be from before the group was made, and cluster-autoscaler asks of no group that it was not told of.
            is_known |= answer.is_ok();
            if !is_known && *at < first + REFRESHED * 2 {
                continue;
            }
            let told = match answer {
                Ok(told) => *told,
                Err(_)
                    if history.was_disturbed(*at - STARTS, *at)
                        || history.goes_at(*at)
                        || history.aws_had_trouble(*at - KEPT, *at) =>
                {
                    continue;
                }
                Err(error) => {
                    found.push(Violation { at: *at, what: format!("{name}: {error}") });
                    continue;
                }
            };
            let right = right(history, &sizes, &leaving, group.weighs, *at);
            if !right.contains(&told) {
                found.push(Violation { at: *at, what: format!("{name}: told {told}, right is {right:?}") });
            }
        }
    }
    found
}

/// What could be told of a group at a moment.
fn right(
    history: &History,
    sizes: &[(Timestamp, Sizes)],
    leaving: &[(Timestamp, Leaving)],
    weighs: bool,
    at: Timestamp,
) -> std::ops::RangeInclusive<i32> {
    let old = if history.aws_had_trouble(at - KEPT, at) { KEPT } else { REFRESHED };
    let is_stale = history.was_stale(at - KEPT, at);
    let late = if history.cluster_had_trouble(at - MISSED, at) { MISSED } else { WATCHED };
    let (mut least, mut most) = (i32::MAX, i32::MIN);
    for sizes in between(sizes, at - old, at) {
        let live = count(&sizes.live, |_| true);
        let wanted = if weighs { live } else { sizes.desired };
        for leaving in between(leaving, at - late, at) {
            // Of those that are replaced by what is there already none is taken off.
            let replaced = count(&sizes.live, |id| leaving.replaced.contains(id));
            let there = replaced.min((live - wanted).max(0));
            let is_certain = |id: &String| leaving.certain.contains(id) && !sizes.pending.contains(id);
            let certain = count(&sizes.live, is_certain) - there;
            let may_leave = |id: &String| leaving.possible.contains(id) || leaving.certain.contains(id);
            let possible = count(&sizes.live, |id| may_leave(id) && !is_certain(id));
            // Of what has left with a smaller size, another replica than the one that made it so knows by descriptions alone.
            let unseen = if is_stale && history.scenario.program.replicas > 1 { replaced } else { 0 };
            (least, most) = (least.min(wanted - certain - possible), most.max(wanted - certain + unseen));
        }
    }
    // Of a group with weights the nodes are counted, and a description may leave one out (docs/testing.md); of any other one that is on
    // its way out.
    let has_gap = history.end.gaps.iter().any(|gap| (at - old..=at).contains(gap));
    least - i32::from(weighs)..=most + i32::from(has_gap && !weighs)
}

fn count(instances: &BTreeSet<String>, such: impl Fn(&String) -> bool) -> i32 {
    instances.iter().filter(|id| such(id)).count() as i32
}

/// What was so at some moment of a span.
fn between<T>(all: &[(Timestamp, T)], from: Timestamp, to: Timestamp) -> impl Iterator<Item = &T> {
    let first = all.partition_point(|(at, _)| *at <= from).saturating_sub(1);
    all[first..].iter().take_while(move |(at, _)| *at <= to).map(|(_, what)| what)
}

/// A group's sizes, from moment to moment.
fn sizes(history: &History, group: &str, nodes: i32) -> Vec<(Timestamp, Sizes)> {
    let mut now = Sizes { desired: nodes, ..Sizes::default() };
    let mut all = vec![(Timestamp::MIN, now.clone())];
    let mut given_back = BTreeSet::new();
    for entry in &history.aws {
        let is_ours = |name: &String| name == group;
        match &entry.what {
            AwsEvent::DesiredChanged { group, to, .. } if is_ours(group) => {
                now.desired = i32::try_from(*to).unwrap_or(i32::MAX);
            }
            AwsEvent::InstanceLaunched { group, instance, .. } | AwsEvent::InService { group, instance }
                if is_ours(group) =>
            {
                now.live.insert(instance.clone());
                if given_back.contains(instance) {
                    now.pending.insert(instance.clone());
                } else {
                    now.pending.remove(instance);
                }
            }
            AwsEvent::HookCompleted { group, instance, hook, .. }
            | AwsEvent::HookTimedOut { group, instance, hook, .. }
                if is_ours(group) && hook == OURS =>
            {
                given_back.insert(instance.clone());
                continue;
            }
            AwsEvent::Entered { group, instance, state } if is_ours(group) => {
                // Somebody may have asked for its Node to be replaced while it was in the pool.
                if state.is_warm() {
                    given_back.insert(instance.clone());
                }
                let is_back = given_back.contains(instance) && state.counts();
                if *state == LifecycleState::Pending || is_back {
                    now.pending.insert(instance.clone());
                } else {
                    now.pending.remove(instance);
                }
                if state.counts() {
                    now.live.insert(instance.clone());
                } else {
                    now.live.remove(instance);
                }
            }
            AwsEvent::TerminationStarted { group, instance, .. }
            | AwsEvent::Terminated { group, instance }
            | AwsEvent::Detached { group, instance }
                if is_ours(group) =>
            {
                now.live.remove(instance);
                given_back.remove(instance);
            }
            _ => continue,
        }
        // What one call does is one change.
        match all.last_mut() {
            Some((at, sizes)) if *at == entry.at => *sizes = now.clone(),
            _ => all.push((entry.at, now.clone())),
        }
    }
    all
}

/// Who is on the way out, from moment to moment.
fn leaving(history: &History) -> Vec<(Timestamp, Leaving)> {
    let mut marks: BTreeMap<&str, Marks> = BTreeMap::new();
    let mut gone = BTreeSet::new();
    let mut all = vec![(Timestamp::MIN, Leaving::default())];
    for entry in &history.cluster {
        match &entry.what {
            Event::NodeChanged { node, changes } => {
                marks.entry(node).or_default().change(changes);
            }
            Event::NodeRemoved { node } => {
                gone.extend(marks.remove(node.as_str()).and_then(|marks| marks.record));
            }
            _ => continue,
        }
        let mut now = Leaving { possible: gone.clone(), ..Leaving::default() };
        for (node, marks) in &marks {
            let here = || history.instance_at(node, entry.at).map(str::to_owned);
            match &marks.record {
                Some(record) if record.is_empty() => now.possible.extend(here()),
                Some(record) => {
                    now.certain.insert(record.clone());
                    if !marks.decrements {
                        now.replaced.insert(record.clone());
                    }
                }
                // Its group is known by a description alone, and one may leave the instance out.
                None if marks.is_tainted => now.possible.extend(here()),
                None => {}
            }
        }
        all.push((entry.at, now));
    }
    all
}

/// What a Node carries.
#[derive(Default)]
struct Marks {
    /// The instance that its record names; empty for a wish.
    record: Option<String>,
    /// Whether by that record the desired capacity is lowered.
    decrements: bool,
    is_tainted: bool,
}

impl Marks {
    fn change(&mut self, changes: &[NodeChange]) {
        for change in changes {
            match change {
                NodeChange::Annotated(key, value) if key == RECORD => {
                    let record = serde_json::from_str::<serde_json::Value>(value).unwrap_or_default();
                    self.decrements = record["release"] == "terminate-and-decrement";
                    self.record = Some(record["instance"].as_str().unwrap_or_default().to_owned());
                }
                NodeChange::AnnotationRemoved(key) if key == RECORD => self.record = None,
                NodeChange::Tainted { key, .. } if key == TO_BE_DELETED => self.is_tainted = true,
                NodeChange::TaintRemoved(key) if key == TO_BE_DELETED => self.is_tainted = false,
                _ => {}
            }
        }
    }
}

impl History {
    /// Whether a replica has started so shortly ago: here cluster-autoscaler reaches one that runs, though a Service would not send
    /// it to one that is not ready.
    pub(super) fn has_started_within(&self, span: SignedDuration, at: Timestamp) -> bool {
        let started =
            |(when, note): &_| matches!(note, Note::Started(_)) && (*when..*when + span).contains(&at);
        self.diary.iter().any(started)
    }

    pub(super) fn did(&self, from: Timestamp, to: Timestamp, such: impl Fn(&What) -> bool) -> bool {
        let is_such = |(at, note): &_| match note {
            Note::Did(what) => (from..=to).contains(at) && such(what),
            _ => false,
        };
        self.diary.iter().any(is_such)
    }

    /// Whether calls to AWS, or the program, were in trouble.
    pub(super) fn aws_had_trouble(&self, from: Timestamp, to: Timestamp) -> bool {
        self.had(from, to, |_| true)
            || self.did(from, to, |what| matches!(what, What::Program(..)))
            || self.end.hits[0].iter().any(|at| (from..=to).contains(at))
    }

    /// Whether AWS's answers were old.
    fn was_stale(&self, from: Timestamp, to: Timestamp) -> bool {
        self.had(from, to, |fault| matches!(fault, AwsFault::Stale { .. }))
    }

    /// Whether AWS had such a fault, which may have begun before.
    fn had(&self, from: Timestamp, to: Timestamp, such: impl Fn(&AwsFault) -> bool) -> bool {
        let is_such = |(at, note): &_| match note {
            Note::Did(What::Aws(fault)) => from <= *at + fault.lasts() && *at <= to && such(fault),
            _ => false,
        };
        self.diary.iter().any(is_such)
    }

    /// Whether the API server, its watches or the program were in trouble.
    pub(super) fn cluster_had_trouble(&self, from: Timestamp, to: Timestamp) -> bool {
        self.did(from, to, |what| matches!(what, What::Cluster(_) | What::Api { .. } | What::Program(..)))
            || self.end.hits[1].iter().any(|at| (from..=to).contains(at))
    }
}
