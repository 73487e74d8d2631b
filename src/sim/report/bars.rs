//! Pods as bars: started, asked to go, gone.

use serde::Serialize;

use super::runs::Run;
use super::scale_ins::ScaleIn;
use super::seconds::Seconds;
use super::seen::Seen;

/// One pod's stay on a node; moments count from the node's own start.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodBar {
    /// Namespace and name; the namespace `default` is omitted.
    pub pod: String,
    /// Whether it stays until the end.
    pub daemon: bool,
    /// Since when it ran; negative if before the scale-in.
    pub from: Seconds,
    /// When it was asked to go.
    pub asked: Option<Seconds>,
    /// Its grace in seconds.
    pub grace: Option<i64>,
    /// When it was gone.
    pub gone: Option<Seconds>,
    /// How it ended; `None` while it runs.
    pub end: Option<PodEnd>,
}

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodEnd {
    /// By itself.
    Exited,
    /// Asked before its containers ran.
    NeverRan,
    /// A DaemonSet pod, with its instance.
    WithInstance,
    /// Killed at the end of its grace.
    GraceOver,
    /// Killed because its object was removed.
    Removed,
    /// Killed because its instance ended.
    PowerOff,
}

impl PodEnd {
    /// Whether it was killed while it ran.
    pub fn is_cut_short(self) -> bool {
        matches!(self, Self::GraceOver | Self::Removed | Self::PowerOff)
    }

    /// Why it was killed, in words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::NeverRan => "never ran",
            Self::WithInstance => "went with its instance",
            Self::GraceOver => "its grace was over",
            Self::Removed => "its object was removed",
            Self::PowerOff => "its instance went away",
        }
    }
}

/// The bars of a node, workloads first, then by end.
pub(super) fn bars(seen: &Seen<'_>, scale_in: &ScaleIn) -> Vec<PodBar> {
    let mut ran: Vec<&Run> = seen.runs_in(scale_in).filter(|run| run.from.is_some()).collect();
    ran.sort_by_key(|run| (run.daemon, run.end.map_or(seen.ended, |(at, _)| at)));
    let since = |at| Seconds::between(scale_in.start, at);
    let bar = |run: &Run| PodBar {
        pod: run.pod.to_string(),
        daemon: run.daemon,
        from: run.from.map(since).unwrap_or_default(),
        asked: run.asked.map(|asked| since(asked.at)),
        grace: run.asked.map(|asked| asked.grace),
        gone: run.end.map(|(at, _)| since(at)),
        end: run.end.map(|(_, end)| end),
    };
    ran.into_iter().map(bar).collect()
}
