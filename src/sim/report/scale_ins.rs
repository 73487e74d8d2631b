//! Which nodes were scaled in: since when, why, and how far.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::Facts;
use super::machines::Life;
use crate::k8s::names;
use crate::scale_in::events::Reason;
use crate::scale_in::record::{Phase, Written, read};
use crate::sim::aws::TerminationCause;
use crate::sim::cluster::{Entry, Event, NodeChange};

/// A node's scale-in.
#[derive(Clone, Debug)]
pub(super) struct ScaleIn {
    pub(super) node: String,
    pub(super) instance: String,
    pub(super) group: String,
    pub(super) cause: String,
    /// The first of the record, a person's request and the group's own decision.
    pub(super) start: Timestamp,
    /// When the record, or a person's request, first appeared.
    pub(super) recorded: Option<Timestamp>,
    /// The phases, each with its start.
    pub(super) phases: Vec<(Phase, Timestamp)>,
    pub(super) cancelled: Option<Timestamp>,
    pub(super) powered_off: Option<Timestamp>,
    pub(super) removed: Option<Timestamp>,
}

impl ScaleIn {
    fn new(node: &str, start: Timestamp, facts: &Facts) -> Self {
        let machine = facts.nodes.get(node);
        Self {
            node: node.to_owned(),
            instance: machine.map(|machine| machine.instance.clone()).unwrap_or_default(),
            group: machine.map(|machine| machine.group.clone()).unwrap_or_default(),
            cause: String::new(),
            start,
            recorded: None,
            phases: Vec::new(),
            cancelled: None,
            powered_off: None,
            removed: None,
        }
    }

    fn annotate(&mut self, value: &str, at: Timestamp) {
        self.recorded.get_or_insert(at);
        match read(value) {
            Written::Record(record) => {
                self.cancelled = None;
                record.cause.as_str().clone_into(&mut self.cause);
                if self.instance.is_empty() {
                    (self.instance, self.group) = (record.instance.into(), record.group.into());
                }
                if self.phases.last().is_none_or(|(phase, _)| *phase != record.phase) {
                    self.phases.push((record.phase, at));
                }
            }
            Written::Request(_) => "operator".clone_into(&mut self.cause),
            Written::Unreadable(_) => {}
        }
    }

    /// When the last flush began, the one not interrupted.
    pub(super) fn flushing(&self) -> Option<Timestamp> {
        self.phases.iter().rev().find(|(phase, _)| *phase == Phase::Flushing).map(|(_, at)| *at)
    }
}

/// The scale-ins, in order of their start.
pub(super) fn scale_ins(cluster: &[Entry], lives: &BTreeMap<String, Life>, facts: &Facts) -> Vec<ScaleIn> {
    let mut all: BTreeMap<String, ScaleIn> = BTreeMap::new();
    for entry in cluster {
        match &entry.what {
            Event::NodeChanged { node, changes } => {
                for change in changes {
                    match change {
                        NodeChange::Annotated(key, value) if key == names::RECORD => {
                            let scale_in = all
                                .entry(node.clone())
                                .or_insert_with(|| ScaleIn::new(node, entry.at, facts));
                            scale_in.annotate(value, entry.at);
                        }
                        NodeChange::AnnotationRemoved(key) if key == names::RECORD => {
                            if let Some(scale_in) = all.get_mut(node) {
                                scale_in.cancelled = Some(entry.at);
                            }
                        }
                        _ => {}
                    }
                }
            }
            Event::PoweredOff { node } => {
                if let Some(scale_in) = all.get_mut(node) {
                    scale_in.powered_off.get_or_insert(entry.at);
                }
            }
            Event::NodeRemoved { node } => {
                if let Some(scale_in) = all.get_mut(node) {
                    scale_in.removed.get_or_insert(entry.at);
                }
            }
            _ => {}
        }
    }
    for (node, machine) in &facts.nodes {
        let Some(ending) = lives.get(&machine.instance).and_then(|life| life.ending) else { continue };
        let scale_in = all.entry(node.clone()).or_insert_with(|| ScaleIn::new(node, ending.at, facts));
        scale_in.start = scale_in.start.min(ending.at);
        if scale_in.cause.is_empty() {
            scale_in.cause = format!("{} (no scale-in of ours)", cause_words(ending.cause));
        }
        if scale_in.recorded.is_none() {
            scale_in.removed = cluster
                .iter()
                .find(|entry| matches!(&entry.what, Event::NodeRemoved { node: gone } if gone == node))
                .map(|entry| entry.at);
        }
    }
    let mut all: Vec<ScaleIn> = all.into_values().collect();
    all.sort_by(|a, b| (a.start, &a.node).cmp(&(b.start, &b.node)));
    all
}

/// The program's reason in an Event; `None` for Events of others.
pub(super) fn reason_of(text: &str) -> Option<Reason> {
    Reason::ALL.into_iter().find(|reason| reason.as_str() == text)
}

/// Why a group terminates an instance, in words.
pub(super) fn cause_words(cause: TerminationCause) -> &'static str {
    match cause {
        TerminationCause::Request => "termination asked for",
        TerminationCause::ScaleIn => "the group's own scale-in",
        TerminationCause::Rebalance => "zone rebalance",
        TerminationCause::Refresh => "instance refresh",
        TerminationCause::HealthCheck => "failed health check",
        TerminationCause::LaunchAbandoned => "launch abandoned",
        TerminationCause::LaunchFailed => "launch failed",
        TerminationCause::GroupDeletion => "the group is deleted",
    }
}
