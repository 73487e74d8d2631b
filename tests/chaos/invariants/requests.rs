//! How many requests to the API server a minute may have, as docs/testing.md reckons it.
//!
//! Minutes with trouble have retries on top, and are left out.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide::k8s::names;
use ebbtide::sim::aws::Event as AwsEvent;
use ebbtide::sim::cluster::{EBBTIDE, Event, NodeChange, Verb};
use ebbtide::sim::report::{PodEnd, Run};
use jiff::Timestamp;

use super::Violation;
use super::calls::{CALM, MINUTE, leaving};
use crate::history::{History, Note};
use crate::play::RECORD;
use crate::scenario::{Cause, Deed};

/// The most of one kind a minute.
struct Most {
    verb: Verb,
    /// `pods`, `pods/eviction`.
    resource: &'static str,
    /// For each replica.
    replica: usize,
    /// For each Node that is to leave, that is in a warm pool or that cluster-autoscaler drains. What every replica asks stands twice.
    node: usize,
    /// For each pod on one.
    pod: usize,
    /// For each instance that is to leave: what is asked of those without a Node.
    instance: usize,
    /// For each time that one begins anew within the minute, on top: a workload pod comes to it, or somebody takes a record off that AWS has
    /// been told of, or writes over it.
    anew: usize,
}

const fn most(verb: Verb, resource: &'static str, replica: usize, node: usize, pod: usize) -> Most {
    Most { verb, resource, replica, node, pod, instance: 0, anew: 0 }
}

impl Most {
    /// So many more when a node that flushes drains once more, and flushes anew.
    const fn anew(self, anew: usize) -> Self {
        Self { anew, ..self }
    }

    const fn instance(self, instance: usize) -> Self {
        Self { instance, ..self }
    }
}

/// All that the program asks. A kind that is not here is one too many.
const MOST: &[Most] = &[
    // A watch lasts a minute.
    most(Verb::Watch, "nodes", 2, 0, 0),
    // Before one that the watch shows no Node of is let go; one list serves all within ten seconds.
    most(Verb::List, "nodes", 0, 0, 0).instance(2),
    most(Verb::Watch, "poddisruptionbudgets", 2, 0, 0),
    most(Verb::Watch, "daemonsets", 2, 0, 0),
    most(Verb::Watch, "volumeattachments", 2, 0, 0),
    // Begun anew where a list before the release shows a pod that they have not shown yet.
    most(Verb::Watch, "pods", 0, 4, 0).anew(2),
    most(Verb::List, "pods", 0, 8, 0).anew(2),
    // One object, every 30 s: whether an etcd was restored from a backup.
    most(Verb::List, "poddisruptionbudgets", 3, 0, 0),
    // Every second by who does not lead, renewed every three seconds by who does.
    most(Verb::Get, "leases", 61, 0, 0),
    most(Verb::Update, "leases", 21, 0, 0),
    // What nodes have shown, half a minute apart.
    most(Verb::Get, "configmaps", 2, 0, 0),
    most(Verb::Patch, "configmaps", 2, 0, 0),
    // If there is none yet.
    most(Verb::Create, "configmaps", 1, 0, 0),
    // The marks and phases of the shortest scale-in, and some that were overtaken; the taint is renewed every three minutes. A termination
    // that is not sent after all, or refused, is noted before each try, and its note is void after it.
    most(Verb::Patch, "nodes", 0, 16, 0).anew(3),
    // One that was deleted in mid-drain is asked for before a pod that it has left is deleted, again and again if it is back unseen.
    most(Verb::Get, "nodes", 0, 2, 6),
    // Each phase.
    most(Verb::Patch, "nodes/status", 0, 6, 0).anew(2),
    // A DaemonSet that no watch shows is asked for by name.
    most(Verb::Get, "daemonsets", 0, 0, 2),
    // Flow control's refusal, and that by a budget nobody can name, is tried again every 5 s.
    most(Verb::Create, "pods/eviction", 0, 0, 13),
    // At a deadline, and whoever wants to be asked after the flush; guards.
    most(Verb::Patch, "pods/status", 0, 0, 4),
    most(Verb::Delete, "pods", 0, 0, 4),
    most(Verb::Patch, "pods", 0, 0, 4),
    most(Verb::Create, "events", 0, 4, 2).anew(3),
];

/// A minute with more requests than that.
pub(super) fn of_a_minute(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (from, to) in calm_minutes(history) {
        let nodes = nodes(history, from, to);
        let is_there = |node: &str| nodes.contains(node);
        // An object may be there before its containers run, and after; after those of a machine that is off until its Node goes.
        let exists = |run: &&Run| {
            let is_off = matches!(run.end, Some((_, PodEnd::PowerOff)));
            run.from.is_none_or(|since| since < to) && (is_off || run.lasts_beyond(from - CALM))
        };
        let on_them: Vec<_> = history.runs.iter().filter(|run| is_there(&run.node)).filter(exists).collect();
        let has_come = |run: &&&Run| !run.daemon && run.from.is_some_and(|since| since >= from);
        let overruled = |(at, note): &&(Timestamp, Note)| {
            let is_so = matches!(
                note,
                Note::Person(Deed::Cancel | Deed::Mistype, _) | Note::Asked(Cause::Now | Cause::Replace, _)
            );
            is_so && (from..to).contains(at)
        };
        let anew = on_them.iter().filter(has_come).count() + history.diary.iter().filter(overruled).count();
        let (replicas, pods) = (history.scenario.program.replicas as usize, on_them.len());
        let leaving = leaving(history, from, to);
        for ((verb, resource), asked) in asked(history, from, to) {
            let of_kind = MOST.iter().find(|kind| (kind.verb, kind.resource) == (verb, resource.as_str()));
            let most = of_kind.map_or(0, |kind| {
                kind.replica * replicas
                    + kind.node * nodes.len()
                    + kind.pod * pods
                    + kind.instance * leaving
                    + kind.anew * anew
            });
            if asked > most {
                let what = format!(
                    "{asked} times {verb} {resource}, the most is {most}: {} Nodes on their way, {pods} pods on them",
                    nodes.len()
                );
                found.push(Violation { at: from, what });
            }
        }
    }
    found
}

/// Minutes in which nothing is broken, and in which it is so long ago that something was that it counts no more.
pub(crate) fn calm_minutes(history: &History) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let first = history.aws.first().map_or(history.end.at, |entry| entry.at);
    let minutes = std::iter::successors(Some(first + MINUTE), |from| Some(*from + MINUTE));
    let minutes = minutes.take_while(|from| *from < history.end.at).map(|from| (from, from + MINUTE));
    minutes.filter(move |(from, to)| {
        let calm = (*from - CALM).max(first);
        !history.aws_had_trouble(calm, *to)
            && !history.cluster_had_trouble(calm, *to)
            && !history.was_disturbed(calm, *to)
            && !history.has_started_within(CALM + MINUTE, *to)
    })
}

/// What the program asked, by kind.
fn asked(history: &History, from: Timestamp, to: Timestamp) -> BTreeMap<(Verb, String), usize> {
    let mut asked = BTreeMap::new();
    for event in history.cluster_between(from, to) {
        let Event::Request { verb, resource, subresource, by, .. } = event else { continue };
        if by.as_deref() == Some(EBBTIDE) {
            let resource = match subresource {
                Some(subresource) => format!("{resource}/{subresource}"),
                None => (*resource).to_owned(),
            };
            *asked.entry((*verb, resource)).or_default() += 1;
        }
    }
    asked
}

/// The Nodes of instances on their way out or in a warm pool, and those that carried a record, a cordon of ours or
/// cluster-autoscaler's taint before.
fn nodes(history: &History, from: Timestamp, to: Timestamp) -> BTreeSet<&str> {
    // In a warm pool an instance is no node of the group any more, as if it left.
    let warmed = history.aws.iter().take_while(|entry| entry.at < to).filter_map(|entry| match &entry.what {
        AwsEvent::Entered { instance, state, .. } if state.is_warm() => Some(instance),
        _ => None,
    });
    let is_wished = |id: &&String| history.requested(id).is_some_and(|since| since < to);
    // Who has gone so shortly before may still be asked about.
    let from = from - MINUTE;
    let is_there = |id: &&String| history.lives[*id].gone.is_none_or(|gone| gone >= from);
    let instances = history.lives.keys().filter(is_wished).chain(warmed).filter(is_there);
    let mut nodes: BTreeSet<&str> =
        instances.filter_map(|id| history.names.get(id)).map(String::as_str).collect();
    // A notice is looked at, also of a machine that somebody has set aside.
    nodes.extend(history.diary.iter().take_while(|(at, _)| *at < to).filter_map(|(_, note)| match note {
        Note::Asked(_, machine) => Some(machine.node.as_str()),
        _ => None,
    }));
    let mut gone = BTreeSet::new();
    for entry in history.cluster.iter().take_while(|entry| entry.at < to) {
        match &entry.what {
            Event::NodeRemoved { node } if entry.at < from => drop(gone.insert(node.as_str())),
            // Another machine has its name.
            Event::NodeRegistered { node } => drop(gone.remove(node.as_str())),
            Event::NodeChanged { node, changes } if changes.iter().any(is_mark) => {
                gone.remove(node.as_str());
                nodes.insert(node);
            }
            _ => {}
        }
    }
    nodes.retain(|node| !gone.contains(node));
    nodes
}

fn is_mark(change: &NodeChange) -> bool {
    match change {
        NodeChange::Annotated(key, _) => [RECORD, names::CORDON, names::MARKS].contains(&key.as_str()),
        NodeChange::Tainted { key, .. } => key == names::TO_BE_DELETED,
        _ => false,
    }
}

impl History {
    fn cluster_between(&self, from: Timestamp, to: Timestamp) -> impl Iterator<Item = &Event> {
        let first = self.cluster.partition_point(|entry| entry.at < from);
        self.cluster[first..].iter().take_while(move |entry| entry.at < to).map(|entry| &entry.what)
    }
}
