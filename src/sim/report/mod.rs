//! The report of `ebbtide simulate`: a timeline of each node that was scaled in, and a verdict, from the journals of both
//! worlds.
//!
//! ```text
//!  aws journal ─────▶ machines ─┐
//!  cluster journal ─▶ runs ─────┼─▶ Seen ─▶ timeline, arrivals, verdict ─▶ Report ─▶ text · svg · json
//!  Facts ───────────▶ scale_ins ┘
//! ```
//!
//! Pure: journals in, data out; no clock, no file, no terminal. Invariants: the verdict comes from the worlds' journals,
//! never from what the program says of itself (its record and Events only tell phases apart); the same journals give the
//! same report, byte for byte.

mod arrivals;
mod bars;
mod facts;
mod fold;
mod json;
mod live;
mod machines;
mod node;
mod runs;
mod scale_ins;
mod seconds;
mod seen;
mod short;
mod svg;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
mod verdict;

use jiff::Timestamp;
use serde::Serialize;

use crate::sim::{aws, cluster};

pub use self::arrivals::Arrival;
pub use self::bars::{PodBar, PodEnd};
pub use self::facts::{Facts, Machine, Moment, Program, Scene};
pub use self::json::json;
pub use self::live::{Happening, live};
pub use self::machines::{Ending, Life, machines};
pub use self::node::{Kind, Line, NodeReport, PhaseSpan, ProgramMark};
pub use self::runs::{Asked, Run, runs};
pub use self::seconds::Seconds;
pub use self::svg::{Picture, pictures, svg};
pub use self::text::text;
pub use self::verdict::{Check, Number, Verdict};

/// The report of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The first moment of the journals; moments that belong to no node count from here.
    pub started: Timestamp,
    /// The scenes that were played.
    pub scenes: Vec<Moment>,
    /// The nodes that came up, in order of launch.
    pub arrivals: Vec<Arrival>,
    /// The nodes that were scaled in, in order of their start.
    pub nodes: Vec<NodeReport>,
    /// Whether every promise was kept.
    pub verdict: Verdict,
}

impl Report {
    /// Builds a report from the journals and the facts that they do not contain.
    pub fn from(aws: &[aws::Entry], cluster: &[cluster::Entry], facts: &Facts) -> Self {
        let seen = seen::Seen::of(aws, cluster, facts);
        Self {
            started: seen.started,
            scenes: seen.moments(),
            arrivals: arrivals::arrivals(&seen),
            nodes: seen.scale_ins.iter().map(|scale_in| timeline::node(&seen, scale_in)).collect(),
            verdict: verdict::verdict(&seen),
        }
    }
}
