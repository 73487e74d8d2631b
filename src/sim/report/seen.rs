//! The journals, read once for all parts of the report.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::{Facts, Moment};
use super::machines::{Life, machines};
use super::runs::{Run, runs};
use super::scale_ins::{ScaleIn, scale_ins};
use super::seconds::Seconds;
use crate::sim::{aws, cluster};

pub(super) struct Seen<'a> {
    pub(super) aws: &'a [aws::Entry],
    pub(super) cluster: &'a [cluster::Entry],
    pub(super) facts: &'a Facts,
    pub(super) lives: BTreeMap<String, Life>,
    pub(super) runs: Vec<Run>,
    pub(super) scale_ins: Vec<ScaleIn>,
    pub(super) started: Timestamp,
    pub(super) ended: Timestamp,
}

/// When the last workload left a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastExit {
    /// There was no workload.
    NoWorkload,
    /// One is still there.
    NotYet,
    At(Timestamp),
}

impl LastExit {
    pub(super) fn at(self) -> Option<Timestamp> {
        match self {
            Self::At(at) => Some(at),
            Self::NoWorkload | Self::NotYet => None,
        }
    }
}

impl<'a> Seen<'a> {
    pub(super) fn of(aws: &'a [aws::Entry], cluster: &'a [cluster::Entry], facts: &'a Facts) -> Self {
        let lives = machines(aws);
        let scale_ins = scale_ins(cluster, &lives, facts);
        let moments = || {
            let worlds = aws.iter().map(|entry| entry.at).chain(cluster.iter().map(|entry| entry.at));
            worlds.chain(facts.scenes.iter().map(|scene| scene.at))
        };
        Self {
            aws,
            cluster,
            facts,
            runs: runs(cluster, facts),
            started: moments().min().unwrap_or(Timestamp::UNIX_EPOCH),
            ended: moments().max().unwrap_or(Timestamp::UNIX_EPOCH),
            lives,
            scale_ins,
        }
    }

    /// The scenes, from the start.
    pub(super) fn moments(&self) -> Vec<Moment> {
        let moment = |scene: &super::facts::Scene| Moment {
            at: Seconds::between(self.started, scene.at),
            title: scene.title.clone(),
        };
        self.facts.scenes.iter().map(moment).collect()
    }

    /// The runs that overlap a scale-in: not ended before it, started before the instance was gone.
    pub(super) fn runs_in<'s>(&'s self, scale_in: &'s ScaleIn) -> impl Iterator<Item = &'s Run> {
        self.runs
            .iter()
            .filter(|run| run.node == scale_in.node && run.end.is_none_or(|(end, _)| end >= scale_in.start))
    }

    /// When the last workload left the node.
    pub(super) fn last_exit(&self, scale_in: &ScaleIn) -> LastExit {
        let ends = self.runs_in(scale_in).filter(|run| run.is_workload()).map(|run| run.end);
        match ends.reduce(|a, b| Some(a?.max(b?))) {
            None => LastExit::NoWorkload,
            Some(None) => LastExit::NotYet,
            Some(Some((at, _))) => LastExit::At(at),
        }
    }

    /// The last exit, and the start of the flush after it. `None` without a workload or flush, or if the flush did not wait
    /// for the last workload because time was up.
    pub(super) fn exit_to_flush(&self, scale_in: &ScaleIn) -> Option<(Timestamp, Timestamp)> {
        let flush = scale_in.flushing()?;
        let workloads = self.runs_in(scale_in).filter(|run| run.is_workload());
        let ends = workloads.filter(|run| run.from.is_some_and(|from| from <= flush)).map(|run| run.end);
        let last = ends.reduce(|a, b| Some(a?.max(b?)))??.0;
        (last <= flush).then_some((last, flush))
    }
}
