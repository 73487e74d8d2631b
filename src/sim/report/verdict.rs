//! The verdict: one check per promise, each with a number, from the worlds' journals.
//!
//! A simulation in which nothing happened has failed: at least one node must have been scaled in to the end.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::bars::PodEnd;
use super::scale_ins::ScaleIn;
use super::seconds::Seconds;
use super::seen::{LastExit, Seen};
use super::short;
use crate::sim::aws::{self, Operation, Outcome, TerminationCause};
use crate::sim::cluster::{self, Verb};

/// From the last workload's exit to the start of the flush: a watch and a write away. More would mean polling.
const EXIT_TO_FLUSH: Seconds = Seconds::milliseconds(300);

/// The checks, in the order shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Each promise.
    pub checks: Vec<Check>,
}

/// A promise and whether it was kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What must not happen.
    pub name: &'static str,
    /// How much of it was found.
    pub found: Number,
    /// How much of it is allowed, in words.
    pub allowed: &'static str,
    /// Out of how many, and which.
    pub detail: String,
    /// Whether it was kept.
    pub passed: bool,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// A count.
    Count(u64),
    /// A duration; `None` if there was nothing to measure.
    Span(Option<Seconds>),
}

impl Verdict {
    /// Whether every promise was kept.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }
}

impl Check {
    fn none(name: &'static str, found: u64, detail: impl Into<String>) -> Self {
        Self { name, found: Number::Count(found), allowed: "0", detail: detail.into(), passed: found == 0 }
    }
}

/// Checks every promise.
pub(super) fn verdict(seen: &Seen<'_>) -> Verdict {
    let checks = vec![
        cut_short(seen),
        lines_lost(seen),
        daemons_gone_early(seen),
        released_early(seen),
        hooks_timed_out(seen),
        terminations(seen),
        unasked(seen),
        unfinished(seen),
        exit_to_flush(seen),
        pod_gets(seen),
    ];
    Verdict { checks }
}

fn cut_short(seen: &Seen<'_>) -> Check {
    let workloads = || seen.runs.iter().filter(|run| run.is_workload());
    let cut = workloads().filter(|run| run.end.is_some_and(|(_, end)| end.is_cut_short()));
    let cut: Vec<String> = cut.map(|run| short::pod(&run.pod)).collect();
    let detail = format!("of {} workload pods{}", workloads().count(), listed(&cut));
    Check::none("workloads cut short", cut.len() as u64, detail)
}

fn lines_lost(seen: &Seen<'_>) -> Check {
    let journalled: u64 = seen
        .cluster
        .iter()
        .map(|entry| match &entry.what {
            cluster::Event::LinesLost { count, .. } => *count,
            _ => 0,
        })
        .sum();
    let counted: u64 = seen.facts.lines.values().map(|lines| lines.lost).sum();
    let written: u64 = seen.facts.lines.values().map(|lines| lines.written).sum();
    let shipped: u64 = seen.facts.lines.values().map(|lines| lines.shipped).sum();
    let detail = format!("of {written} written, {shipped} shipped");
    Check::none("log lines lost", journalled.max(counted), detail)
}

fn daemons_gone_early(seen: &Seen<'_>) -> Check {
    let (mut early, mut all) = (Vec::new(), 0);
    for scale_in in &seen.scale_ins {
        let last_exit = seen.last_exit(scale_in);
        if last_exit == LastExit::NoWorkload {
            continue;
        }
        for run in seen.runs_in(scale_in).filter(|run| run.daemon) {
            all += 1;
            let time = scale_in.start..=scale_in.cancelled.unwrap_or(seen.ended);
            let early_by = |at| time.contains(&at) && last_exit.at().is_none_or(|exit| at < exit);
            let asked = run.asked.is_some_and(|asked| early_by(asked.at));
            if asked || run.end.is_some_and(|(at, _)| early_by(at)) {
                early.push(short::pod(&run.pod));
            }
        }
    }
    let detail = format!("of {all} on nodes with workloads{}", listed(&early));
    Check::none("DaemonSet pods gone before last workload", early.len() as u64, detail)
}

fn released_early(seen: &Seen<'_>) -> Check {
    let mut early = Vec::new();
    let mut all = 0;
    for (node, machine) in &seen.facts.nodes {
        let Some(released) = seen.lives.get(&machine.instance).and_then(|life| life.released) else {
            continue;
        };
        all += 1;
        let there = |run: &&super::runs::Run| {
            let went_with_it = run.end == Some((released, PodEnd::PowerOff));
            run.from.is_some_and(|from| from < released) && (run.lasts_beyond(released) || went_with_it)
        };
        let mut workloads = seen.runs.iter().filter(|run| run.node == *node && run.is_workload());
        if workloads.any(|run| there(&run)) {
            early.push(node.clone());
        }
    }
    let detail = format!("of {all} released{}", listed(&early));
    Check::none("instances released before last workload", early.len() as u64, detail)
}

/// Hooks whose time-out ended an instance. Where the group retains it, workloads run on.
fn hooks_timed_out(seen: &Seen<'_>) -> Check {
    let held = seen.lives.values().filter(|life| life.held).count();
    let timed_out = seen.lives.values().map(|life| life.timed_out).sum();
    let retained = seen.lives.values().filter(|life| life.retained).count();
    let kept =
        if retained > 0 { format!(", {retained} kept by its group after a time-out") } else { String::new() };
    Check::none(
        "hooks timed out",
        timed_out,
        format!("of {} held{kept}", short::count(held as u64, "instance")),
    )
}

/// At most one termination per instance, and one decrement for each asked for with one.
fn terminations(seen: &Seen<'_>) -> Check {
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    let mut with_decrement = BTreeSet::new();
    let mut decrements = 0;
    for entry in seen.aws {
        match &entry.what {
            aws::Event::Called {
                operation: Operation::TerminateInstanceInAutoScalingGroup,
                arguments,
                outcome: Outcome::Answered | Outcome::LostAfter,
            } => {
                let instance = arguments.get("InstanceId").map(String::as_str).unwrap_or_default();
                *calls.entry(instance).or_default() += 1;
                if arguments.get("ShouldDecrementDesiredCapacity").is_some_and(|value| value == "true") {
                    with_decrement.insert(instance);
                }
            }
            aws::Event::DesiredChanged {
                by: Operation::TerminateInstanceInAutoScalingGroup,
                from,
                to,
                ..
            } => decrements += u64::from(from.saturating_sub(*to)),
            _ => {}
        }
    }
    let surplus: u64 = calls.values().map(|count| count - 1).sum();
    let expected = with_decrement.len() as u64;
    let detail =
        format!("{} terminated, {} of {expected}", calls.len(), short::count(decrements, "decrement"));
    Check::none("surplus terminations or decrements", surplus + decrements.abs_diff(expected), detail)
}

/// Instances in service that a group chose itself, or that were terminated without a scale-in.
fn unasked(seen: &Seen<'_>) -> Check {
    let mut unasked = Vec::new();
    for (id, life) in &seen.lives {
        let Some(ending) = life.ending else { continue };
        if !life.was_in_service() || seen.facts.asked_for.contains(id) {
            continue;
        }
        let node = seen.facts.node_of(id);
        let recorded = |scale_in: &ScaleIn| {
            Some(scale_in.node.as_str()) == node && scale_in.recorded.is_some_and(|at| at <= ending.at)
        };
        let asked = match ending.cause {
            TerminationCause::ScaleIn => false,
            TerminationCause::Request => node.is_none() || seen.scale_ins.iter().any(recorded),
            _ => true,
        };
        if !asked {
            unasked.push(short::instance(id));
        }
    }
    let ended = seen.lives.values().filter(|life| life.ending.is_some()).count();
    let detail = format!("of {ended} ended{}", listed(&unasked));
    Check::none("healthy instances ended unasked", unasked.len() as u64, detail)
}

fn unfinished(seen: &Seen<'_>) -> Check {
    let gone = |scale_in: &ScaleIn| {
        let life = seen.lives.get(&scale_in.instance);
        life.is_some_and(|life| life.gone.is_some()) || scale_in.cancelled.is_some()
    };
    let open: Vec<String> =
        seen.scale_ins.iter().filter(|scale_in| !gone(scale_in)).map(|s| s.node.clone()).collect();
    let mut check = Check::none(
        "scale-ins not finished",
        open.len() as u64,
        format!("of {}{}", seen.scale_ins.len(), listed(&open)),
    );
    check.passed &= !seen.scale_ins.is_empty();
    check
}

/// The slowest node. Nodes during whose last exit the program was down are left out and mentioned.
fn exit_to_flush(seen: &Seen<'_>) -> Check {
    let mut worst: Option<(Seconds, &str)> = None;
    let (mut measured, mut down) = (0, 0);
    for scale_in in &seen.scale_ins {
        let Some((exit, flush)) = seen.exit_to_flush(scale_in) else { continue };
        if seen.facts.was_down(exit, flush) {
            down += 1;
            continue;
        }
        measured += 1;
        let delay = (Seconds::between(exit, flush), scale_in.node.as_str());
        worst = worst.max(Some(delay));
    }
    let node = worst.map(|(_, node)| format!(", slowest {node}")).unwrap_or_default();
    let apart = if down > 0 { format!(", {down} not counted: ebbtide was down") } else { String::new() };
    Check {
        name: "slowest: last exit to flush began",
        found: Number::Span(worst.map(|(delay, _)| delay)),
        allowed: "< 0.3 s",
        detail: format!("{}{node}{apart}", short::count(measured, "node")),
        passed: worst.is_none_or(|(delay, _)| delay < EXIT_TO_FLUSH),
    }
}

fn pod_gets(seen: &Seen<'_>) -> Check {
    let (mut gets, mut all) = (0, 0);
    for entry in seen.cluster {
        if let cluster::Event::Request { verb, resource, subresource, .. } = &entry.what {
            all += 1;
            gets += u64::from(*verb == Verb::Get && *resource == "pods" && subresource.is_none());
        }
    }
    Check::none("GETs of a pod", gets, format!("of {}", short::count(all, "request")))
}

fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!(": {one}"),
        [one, others @ ..] => format!(": {one} and {} more", others.len()),
    }
}
