//! The timeline of a node that was scaled in, as data.

use serde::Serialize;

use super::bars::PodBar;
use super::facts::Program;
use super::seconds::Seconds;
use crate::scale_in::record::Phase;

/// What happened to a node from the moment it had to go. Moments are counted from that moment.
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
    /// How long it took until the instance was gone; none while it is not.
    pub took: Option<Seconds>,
    /// Until when there is something to show.
    pub span: Seconds,
    /// When the last workload was gone; none where there was none, or one is still there.
    pub last_exit: Option<Seconds>,
    /// From the last exit to the beginning of the flush.
    pub exit_to_flush: Option<Seconds>,
    /// What happened, in order.
    pub lines: Vec<Line>,
    /// The phases, in order, without gaps between them.
    pub phases: Vec<PhaseSpan>,
    /// The pods, workloads first.
    pub pods: Vec<PodBar>,
    /// The heartbeats of its hook.
    pub heartbeats: Vec<Seconds>,
    /// The program's deaths and starts.
    pub program: Vec<ProgramMark>,
}

/// One line of a timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// When; of several things folded into one line, the first.
    pub at: Seconds,
    /// What kind of thing.
    pub kind: Kind,
    /// In words.
    pub text: String,
}

/// The kinds of things in a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The scale-in was written down, or wished for.
    Began,
    /// Marks on the Node changed.
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
    /// Another phase began.
    Phase,
    /// Volumes were still attached at the release.
    Volumes,
    /// Heartbeats.
    Heartbeats,
    /// A call to AWS that was refused or lost.
    CallFailed,
    /// The instance was given back.
    Released,
    /// A hook timed out.
    TimedOut,
    /// The instance is gone.
    Gone,
    /// Log lines went with it.
    LinesLost,
    /// The Node is gone.
    Removed,
    /// The program died or was started.
    Program,
    /// The program said something on the Node.
    Said,
    /// The scale-in was called off.
    Cancelled,
}

impl Kind {
    /// Whether it should never happen.
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

/// A moment in the program's own life.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramMark {
    /// When.
    pub at: Seconds,
    /// What.
    pub what: Program,
}
