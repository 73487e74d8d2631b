//! What the caller knows and the journals do not say.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::seconds::Seconds;
use crate::sim::cluster::{Lines, Name};

/// What the caller of a report knows.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The instance under each node that ever was.
    pub nodes: BTreeMap<String, Machine>,
    /// The pods that stay until the instance goes: those of DaemonSets, their replacements too, and static ones. All
    /// others are workloads.
    pub daemons: BTreeSet<Name>,
    /// The lines of each node's workloads, as of the end.
    pub lines: BTreeMap<String, Lines>,
    /// When the program was killed and when it was started again, in order.
    pub program: Vec<(Timestamp, Program)>,
    /// The scenes, in order.
    pub scenes: Vec<Scene>,
    /// Instances that a scene has the group choose for termination, or ends without a scale-in of ours: asked for.
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
    /// It was started again.
    Restarted,
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
    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Killed => "ebbtide killed",
            Self::Restarted => "ebbtide started again",
        }
    }
}

impl Facts {
    /// Whether a pod is one that stays until the end.
    pub(super) fn is_daemon(&self, pod: &Name) -> bool {
        self.daemons.contains(pod)
    }

    /// The node over an instance.
    pub(super) fn node_of(&self, instance: &str) -> Option<&str> {
        let mut nodes = self.nodes.iter();
        nodes.find(|(_, machine)| machine.instance == instance).map(|(node, _)| node.as_str())
    }

    /// Whether the program was down at any moment between these two.
    pub(super) fn was_down(&self, from: Timestamp, to: Timestamp) -> bool {
        let mut down_since = None;
        for (at, what) in &self.program {
            match what {
                Program::Killed => down_since = down_since.or(Some(*at)),
                Program::Restarted => {
                    if down_since.take().is_some_and(|since| since <= to && *at >= from) {
                        return true;
                    }
                }
            }
        }
        down_since.is_some_and(|since| since <= to)
    }
}
