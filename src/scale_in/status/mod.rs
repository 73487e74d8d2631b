//! What is going on, as data for people: the status page, `/status.json` and `ebbtide status` show it, and nothing else decides
//! what they say. `docs/status.md` describes the fields.
//!
//! It is put together when somebody asks ([`Status::of`]) and costs nothing otherwise. Moments are the API server's clock's.

mod gather;
mod groups;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

pub use self::groups::{GroupStatus, HookStatus, Sizes, TemplateStatus};
use super::drain::OVERDUE_AFTER;
pub use super::history::Ending;
use super::history::{Past, Stage as PastStage, stages_of, with_ends};
use super::node_patch;
use super::record::{Annotation, Cause, Phase, Record, Release, Written};
use super::waiting::{Progress, WaitReason, Waiting};
use crate::clock::{elapsed, later};
use crate::cluster::{NodeView, PodName, PodView, Ready};
use crate::dry_run::Would;
use crate::k8s::{GroupName, InstanceId, NodeName};

/// Everything that a process knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The program's version.
    pub version: &'static str,
    /// When it was put together.
    pub at: Timestamp,
    /// What a dry run would have done, the last to come first; `null`: this is no dry run.
    pub dry_run: Option<Vec<Would>>,
    /// Who leads.
    pub leader: Leader,
    /// How old what it knows is.
    pub known: Known,
    /// Scale-ins under way, and those that wait for their turn, the oldest first.
    pub scale_ins: Vec<ScaleIn>,
    /// Nodes that cluster-autoscaler drains by itself, the oldest first.
    pub autoscaler_drains: Vec<AutoscalerDrain>,
    /// Nodes that are closed because of notices, the one that opens first before the others.
    pub cordoned: Vec<Cordoned>,
    /// The last hundred that ended, as this process saw them, the last first.
    pub ended: Vec<Ended>,
    /// Node groups, by name.
    pub groups: Vec<GroupStatus>,
    /// Queues of notices.
    pub queues: Vec<Queue>,
    /// What AWS has told of instances' ends and no record shows yet.
    pub notices: Vec<Notice>,
}

/// Who leads: that process alone drains nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leader {
    /// Whether it is the process that answers.
    pub here: bool,
    /// Its name in the Lease; `null` while unknown.
    pub name: Option<String>,
}

/// How old what a process knows is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Known {
    /// How long ago the last successful refresh from AWS began; `null`: there was none yet.
    pub groups_age_seconds: Option<u64>,
    /// Whether cluster-autoscaler is answered from it.
    pub groups_fresh: bool,
    /// What the API server has listed, by kind.
    pub listed: BTreeMap<&'static str, bool>,
    /// How long the quietest watch has shown no life.
    pub watch_silence_seconds: u64,
    /// Whether that is not too long.
    pub watches_alive: bool,
}

/// A scale-in under way, or requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaleIn {
    /// Name of the Node.
    pub node: NodeName,
    /// EC2 instance id.
    pub instance: Option<InstanceId>,
    /// Name of the group.
    pub group: Option<GroupName>,
    /// Why the node goes.
    pub cause: Cause,
    /// How far it is; `Queued`: requested by a person, not begun yet.
    pub phase: &'static str,
    /// When it was asked for.
    pub requested_at: Option<Timestamp>,
    /// Its phases so far.
    pub stages: Vec<Stage>,
    /// When the present phase ends at the latest; `null`: nothing limits it, or this process does not lead.
    pub phase_until: Option<Timestamp>,
    /// When the first pod that has not been asked to go is deleted, whatever its budgets say; `null`: none is before the phase ends, or this
    /// process does not lead.
    pub last_call: Option<Timestamp>,
    /// When the instance must be released; `null`: no limit.
    pub release_by: Option<Timestamp>,
    /// When AWS ends the machine; `null`: no notice says so.
    pub ends_at: Option<Timestamp>,
    /// How the instance is given back.
    pub release: Option<Release>,
    /// Whom it waits for; `null`: only the leader knows.
    pub waiting: Option<Vec<Wait>>,
    /// The target groups through which load balancers still reach the instance, where its release waits for nothing else; empty:
    /// AWS has not said which; `null`: it does not wait for them, or this process does not lead.
    pub load_balancers: Option<Vec<String>>,
    /// Whether another's lifecycle hook is all that holds the instance; `null`: only the leader knows.
    pub held_by_another: Option<bool>,
    /// AWS's words if it refuses to release the instance.
    pub refused: Option<String>,
}

/// A phase of a scale-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// The phase.
    pub phase: Phase,
    /// When it began.
    pub since: Timestamp,
    /// When it ended; `null`: it has not.
    pub until: Option<Timestamp>,
    /// How long it has lasted.
    pub seconds: u64,
}

/// A pod that a drain waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// `namespace/name`.
    pub pod: String,
    /// Why it is still there: `exiting`, `overdue`, `budget`, `patient`, `order`, `refused`, `rate`, `queued` or `volumes`;
    /// `unknown` where only the leader knows, which is not asked.
    pub reason: &'static str,
    /// The same in the words of the Event.
    pub text: String,
    /// The budget without room, or several.
    pub budget: Option<String>,
    /// Until when it has time, if that is known.
    pub until: Option<Timestamp>,
}

/// A node that cluster-autoscaler drains by itself, as it does before it asks for the end of one with workloads. Until then no scale-in is
/// under way, and ebbtide only looks on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerDrain {
    /// Name of the Node.
    pub node: NodeName,
    /// EC2 instance id.
    pub instance: Option<InstanceId>,
    /// Since when, by cluster-autoscaler's clock; `null`: its taint does not say.
    pub since: Option<Timestamp>,
    /// Its workloads that are to go, what is due first before the others; `null`: they were not looked up.
    pub waiting: Option<Vec<Wait>>,
}

/// Scale-ins that nobody works on, for somebody who sees Nodes alone: whoever leads renews the taint of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unattended {
    /// When somebody has last worked on one of them, as far as their Nodes tell.
    pub since: Timestamp,
    /// How long the lifecycle hook that holds an instance waits for a heartbeat, in seconds, by node.
    pub heartbeat_timeout_seconds: BTreeMap<NodeName, u64>,
}

/// A node that takes no new pods because of notices, and is not drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cordoned {
    /// Name of the Node.
    pub node: NodeName,
    /// EC2 instance id.
    pub instance: Option<InstanceId>,
    /// What the notices are.
    pub causes: Vec<Cause>,
    /// When the last of them has lapsed: the Node is opened again if its instance lives.
    pub until: Timestamp,
}

/// A scale-in that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Name of the Node.
    pub node: NodeName,
    /// EC2 instance id.
    pub instance: InstanceId,
    /// Name of the group.
    pub group: GroupName,
    /// Why the node went.
    pub cause: Cause,
    /// How it ended.
    pub outcome: Ending,
    /// Why it was called off, where this process did that.
    pub why: Option<String>,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How long it took.
    pub seconds: u64,
    /// Its phases.
    pub stages: Vec<Stage>,
}

/// A queue of notices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Its URL.
    pub url: String,
    /// For how long this process has tried to read it; `null`: it does not lead.
    pub reading_for_seconds: Option<u64>,
    /// How long ago AWS last answered a read; `null`: never, or this process does not lead.
    pub read_age_seconds: Option<u64>,
    /// Why reads have failed since, in AWS's words.
    pub error: Option<String>,
}

impl Queue {
    /// For how long AWS has answered no read; `None`: this process does not read it.
    pub fn silent_seconds(&self) -> Option<u64> {
        self.read_age_seconds.or(self.reading_for_seconds)
    }
}

/// What AWS has told of an instance's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// EC2 instance id.
    pub instance: InstanceId,
    /// Why it may have to go.
    pub cause: Cause,
    /// When AWS ends the machine, if it does.
    pub ends_at: Option<Timestamp>,
}

impl AutoscalerDrain {
    /// Those of these Nodes that are drained so, the oldest first.
    pub fn among<'a>(nodes: impl IntoIterator<Item = &'a NodeView>) -> Vec<Self> {
        let of = |node: &NodeView| {
            let is_drained = node_patch::is_drained_by_autoscaler(node) && node.scale_in().is_none();
            is_drained.then(|| Self {
                node: node.name.clone(),
                instance: node.instance.clone(),
                since: node_patch::tainted_at(node),
                waiting: None,
            })
        };
        let mut all: Vec<Self> = nodes.into_iter().filter_map(of).collect();
        all.sort_by_key(|one| (one.since.is_none(), one.since));
        all
    }

    /// Those of the Node's pods that are to go. cluster-autoscaler waits for no DaemonSet pods, but for what has finished and is still there.
    pub fn going(pods: &[PodView], now: Timestamp) -> Vec<Wait> {
        let workloads = pods.iter().filter(|pod| pod.is_workload());
        let mut going: Vec<(Timestamp, &PodName)> =
            workloads.filter_map(|pod| Some((pod.deletion_timestamp?, &pod.name))).collect();
        going.sort();
        let wait = |(until, pod): (Timestamp, &PodName)| {
            let is_overdue = later(until, OVERDUE_AFTER) <= now;
            let why = if is_overdue { WaitReason::Overdue(until) } else { WaitReason::Exiting(until) };
            Wait::of(&Waiting { pod: pod.clone(), why }, None)
        };
        going.into_iter().map(wait).collect()
    }
}

/// Without a sign of work for this long, nobody works on scale-ins. The taint is renewed every three minutes; a slow write, a change of
/// leaders, or clocks that differ by a minute are no reason to worry people.
const UNATTENDED_AFTER: SignedDuration = SignedDuration::from_mins(5);

impl Unattended {
    /// Whether nobody works on the scale-ins of these Nodes. One sign of work is enough for all: whoever gives it works on the others, too.
    pub fn among<'a>(nodes: impl IntoIterator<Item = &'a NodeView>, now: Timestamp) -> Option<Self> {
        let under_way: Vec<(&NodeView, &Record)> =
            nodes.into_iter().filter_map(|node| Some((node, node.scale_in()?))).collect();
        let since = under_way.iter().map(|(node, record)| worked_on_at(node, record)).max()?;
        let is_renewed = under_way.iter().any(|(node, record)| is_renewed(node, record));
        let timeout = |(node, record): &(&NodeView, &Record)| {
            let is_held = record.phase != Phase::Releasing;
            Some((node.name.clone(), record.heartbeat_timeout_seconds.filter(|_| is_held)?))
        };
        (is_renewed && later(since, UNATTENDED_AFTER) < now).then(|| Self {
            since,
            heartbeat_timeout_seconds: under_way.iter().filter_map(timeout).collect(),
        })
    }
}

/// When somebody has last worked on a scale-in, as far as its Node tells: renewed the taint, or begun the phase. The taint's time is no earlier
/// than the API server's was; where the leader's machine had a clock that is ahead, it is later by as much.
fn worked_on_at(node: &NodeView, record: &Record) -> Timestamp {
    let renewed = node_patch::tainted_at(node).filter(|_| node_patch::has_our_taint(node));
    renewed.map_or(record.phase_since, |at| at.max(record.phase_since))
}

/// Whether the leader certainly renews the taint. It does not for an instance that has gone, or is in the warm pool; those have been released, or
/// their Nodes are not Ready.
fn is_renewed(node: &NodeView, record: &Record) -> bool {
    record.phase != Phase::Releasing && node.ready == Ready::Yes
}

impl Cordoned {
    /// Those of these Nodes that are closed, the one that opens first before the others.
    pub fn among<'a>(nodes: impl IntoIterator<Item = &'a NodeView>) -> Vec<Self> {
        let of = |node: &NodeView| {
            let cordon = node.closed_for()?;
            let (node, instance) = (node.name.clone(), node.instance.clone());
            Some(Self { node, instance, causes: cordon.causes(), until: cordon.until() })
        };
        let mut all: Vec<Self> = nodes.into_iter().filter_map(of).collect();
        all.sort_by_key(|one| one.until);
        all
    }
}

impl ScaleIn {
    /// What a Node tells by itself; `None` if nobody wants it to go.
    pub fn of(node: &NodeView, now: Timestamp) -> Option<Self> {
        match node.record.as_deref().map(Annotation::written) {
            Some(Written::Request(request)) => Some(Self {
                phase: "Queued",
                requested_at: request.since,
                release: Some(request.release),
                ..Self::bare(node, Cause::Operator)
            }),
            _ => node.scale_in().map(|record| Self::of_record(node, record, &stages_of(record), now)),
        }
    }

    fn bare(node: &NodeView, cause: Cause) -> Self {
        Self {
            node: node.name.clone(),
            instance: node.instance.clone(),
            group: None,
            cause,
            phase: Phase::Draining.as_str(),
            requested_at: None,
            stages: Vec::new(),
            phase_until: None,
            last_call: None,
            release_by: None,
            ends_at: None,
            release: None,
            waiting: None,
            load_balancers: None,
            held_by_another: None,
            refused: None,
        }
    }

    fn of_record(node: &NodeView, record: &Record, stages: &[PastStage], now: Timestamp) -> Self {
        Self {
            group: Some(record.group.clone()),
            phase: record.phase.as_str(),
            requested_at: Some(record.requested_at),
            stages: stages_with_ends(stages, None, now),
            release_by: record.release_by,
            ends_at: record.ends_at,
            release: Some(record.release),
            ..Self::bare(node, record.cause)
        }
    }

    /// The same with what the leader knows besides. `patience_ends`: until when pods that asked not to be disturbed are waited for.
    fn with_progress(self, progress: &Progress, patience_ends: Option<Timestamp>) -> Self {
        let waiting = progress.waiting.iter().map(|waiting| Wait::of(waiting, patience_ends)).collect();
        Self {
            waiting: Some(waiting),
            phase_until: progress.phase_until,
            last_call: progress.last_call,
            load_balancers: progress.load_balancers.clone(),
            held_by_another: Some(progress.held_by_another),
            refused: progress.refused.clone(),
            ..self
        }
    }
}

impl Wait {
    /// `patience_ends`: until when pods that asked not to be disturbed are waited for.
    pub(super) fn of(waiting: &Waiting, patience_ends: Option<Timestamp>) -> Self {
        let (budget, until) = match &waiting.why {
            WaitReason::Budget { names, .. } => ((!names.is_empty()).then(|| names.join(", ")), None),
            WaitReason::Budgets(names) => (Some(names.join(", ")), None),
            WaitReason::Exiting(until) | WaitReason::Overdue(until) => (None, Some(*until)),
            WaitReason::Patient => (None, patience_ends),
            WaitReason::After(_)
            | WaitReason::Refused(_)
            | WaitReason::Rate
            | WaitReason::Queued
            | WaitReason::Volumes => (None, None),
        };
        Self {
            pod: waiting.pod.to_string(),
            reason: waiting.why.as_str(),
            text: waiting.why.in_words(),
            budget,
            until,
        }
    }

    /// The same from somebody who does not know what the leader has asked, and what the API server has answered.
    pub(super) fn unexplained(self) -> Self {
        let text = "has not gone; see the Events of its Node, or /status of the leader".to_owned();
        Self { reason: "unknown", text, ..self }
    }
}

impl Ended {
    fn of(past: &Past) -> Self {
        let record = &past.course.record;
        Self {
            node: past.node.clone(),
            instance: record.instance.clone(),
            group: record.group.clone(),
            cause: record.cause,
            outcome: past.outcome,
            why: past.why().map(str::to_owned),
            requested_at: record.requested_at,
            ended_at: past.at,
            seconds: elapsed(record.requested_at, past.at).as_secs(),
            stages: stages_with_ends(&past.course.stages, Some(past.at), past.at),
        }
    }
}

/// Phases with their ends; the last one ends at `end`.
fn stages_with_ends(stages: &[PastStage], end: Option<Timestamp>, now: Timestamp) -> Vec<Stage> {
    let stage = |(phase, since, until): (_, _, Option<_>)| {
        let seconds = elapsed(since, until.unwrap_or(now)).as_secs();
        Stage { phase, since, until, seconds }
    };
    with_ends(stages, end).map(stage).collect()
}
