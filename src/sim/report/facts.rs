//! Facts that the journals do not contain.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::seconds::Seconds;
use crate::sim::cluster::{Lines, Name};

/// Facts that the caller of a report knows.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The instance of each node, present or past.
    pub nodes: BTreeMap<String, Machine>,
    /// The pods that stay until the instance goes: DaemonSets' pods and their replacements, and static pods. All others are
    /// workloads.
    pub daemons: BTreeSet<Name>,
    /// The lines of each node's workloads, at the end.
    pub lines: BTreeMap<String, Lines>,
    /// When the program was killed, restarted or taken over from, in order.
    pub program: Vec<(Timestamp, Program)>,
    /// The scenes, in order.
    pub scenes: Vec<Scene>,
    /// Instances whose termination a scene asked for: by the group's choice, or without our scale-in.
    pub asked_for: BTreeSet<String>,
}

/// The instance under a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// EC2 instance id.
    pub instance: String,
    /// Name of its group.
    pub group: String,
}

/// Something that happened to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// It was killed.
    Killed,
    /// It was restarted.
    Restarted,
    /// Another process of it leads.
    TookOver,
}

/// A part of the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    /// When it began.
    pub at: Timestamp,
    /// What it shows.
    pub title: String,
}

/// A scene in a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// When it began, from the start of the report.
    pub at: Seconds,
    /// What it shows.
    pub title: String,
}

impl Program {
    /// As a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Killed => "ebbtide killed",
            Self::Restarted => "ebbtide started again",
            Self::TookOver => "another ebbtide leads",
        }
    }
}

impl Facts {
    /// Whether a pod stays until the end.
    pub(super) fn is_daemon(&self, pod: &Name) -> bool {
        self.daemons.contains(pod)
    }

    /// The node of an instance.
    pub(super) fn node_of(&self, instance: &str) -> Option<&str> {
        let mut nodes = self.nodes.iter();
        nodes.find(|(_, machine)| machine.instance == instance).map(|(node, _)| node.as_str())
    }

    /// Whether the program was down at any time between the two.
    pub(super) fn was_down(&self, from: Timestamp, to: Timestamp) -> bool {
        let mut down_since = None;
        for (at, what) in &self.program {
            match what {
                Program::Killed => down_since = down_since.or(Some(*at)),
                Program::Restarted | Program::TookOver => {
                    if down_since.take().is_some_and(|since| since <= to && *at >= from) {
                        return true;
                    }
                }
            }
        }
        down_since.is_some_and(|since| since <= to)
    }
}
