//! The timeline of a node that was scaled in, as data.

use serde::Serialize;

use super::bars::PodBar;
use super::facts::Program;
use super::seconds::Seconds;
use crate::scale_in::record::Phase;

/// The scale-in of a node. Moments count from its start.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Name of the Node.
    pub node: String,
    /// EC2 instance id.
    pub instance: String,
    /// Name of its group.
    pub group: String,
    /// Whether a lifecycle hook held the instance.
    pub held_by_hook: bool,
    /// Why it went.
    pub cause: String,
    /// The scene in which it began.
    pub scene: Option<String>,
    /// When it began, from the start of the report.
    pub start: Seconds,
    /// How long until the instance was gone; `None` if it is not.
    pub took: Option<Seconds>,
    /// How long the timeline is.
    pub span: Seconds,
    /// When the last workload was gone; `None` if there was none, or one is still there.
    pub last_exit: Option<Seconds>,
    /// From the last exit to the start of the flush.
    pub exit_to_flush: Option<Seconds>,
    /// What happened, in order.
    pub lines: Vec<Line>,
    /// The phases, in order, without gaps.
    pub phases: Vec<PhaseSpan>,
    /// The pods, workloads first.
    pub pods: Vec<PodBar>,
    /// The heartbeats of its hook.
    pub heartbeats: Vec<Seconds>,
    /// When the program was killed and restarted.
    pub program: Vec<ProgramMark>,
}

/// A line of a timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// When; for several events in one line, the first.
    pub at: Seconds,
    /// What kind of thing.
    pub kind: Kind,
    /// The text.
    pub text: String,
}

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The scale-in was recorded or requested.
    Began,
    /// Cordon, taints or labels on the Node changed.
    Marked,
    /// The group takes the instance out.
    Terminating,
    /// A hook holds the instance.
    Held,
    /// A pod was asked to go.
    Asked,
    /// Budgets refused evictions.
    Refused,
    /// A pod exited by itself.
    Exited,
    /// A pod was killed while it ran.
    CutShort,
    /// A phase began.
    Phase,
    /// Volumes were still attached at the release.
    Volumes,
    /// Heartbeats.
    Heartbeats,
    /// A call to AWS that was refused or lost.
    CallFailed,
    /// The instance was released.
    Released,
    /// A hook timed out.
    TimedOut,
    /// The instance is gone.
    Gone,
    /// Log lines were lost with it.
    LinesLost,
    /// The Node is gone.
    Removed,
    /// The program was killed or restarted.
    Program,
    /// An Event of the program on the Node.
    Said,
    /// The scale-in was called off.
    Cancelled,
}

impl Kind {
    /// Whether it must never happen.
    pub fn is_bad(self) -> bool {
        matches!(self, Self::CutShort | Self::TimedOut | Self::LinesLost)
    }
}

/// A phase of a scale-in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseSpan {
    /// Which.
    pub phase: Phase,
    /// Its beginning.
    pub from: Seconds,
    /// Its end.
    pub to: Seconds,
}

/// A kill or restart of the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramMark {
    /// When.
    pub at: Seconds,
    /// What.
    pub what: Program,
}
