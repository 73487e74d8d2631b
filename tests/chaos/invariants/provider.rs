//! What cluster-autoscaler is told.

use ebbtide::sim::autoscaler::Event;
use ebbtide::sim::aws::{Entry as AwsEntry, Event as AwsEvent, Operation};
use jiff::{SignedDuration, Timestamp};

use super::Violation;
use crate::history::{History, Note};
use crate::scenario::{Upset, What};

/// From a start to the first answer: groups are read, the Lease is another matter.
const STARTS: SignedDuration = SignedDuration::from_secs(60);

/// Within this a replica may be stopped that is asked.
const ANSWERED: SignedDuration = SignedDuration::from_secs(1);

/// Within this what was asked for before a restart is carried out.
const CROSSED: SignedDuration = SignedDuration::from_secs(10);

/// How old what cluster-autoscaler is told of sizes may be.
const REFRESHED: SignedDuration = SignedDuration::from_secs(120);

/// How long the API server may be away, and a start after that.
const LONGEST_OUTAGE: SignedDuration = SignedDuration::from_mins(5);

/// For how long after trouble began AWS may refuse a size: the longest trouble, and a call.
const REFUSES: SignedDuration = SignedDuration::from_mins(3);

/// A loop ended with an error though somebody was there to answer.
pub(super) fn loops(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, event) in &history.autoscaler {
        let Event::LoopFailed(error) = event else { continue };
        // AWS in trouble may refuse a size, and cluster-autoscaler is told so.
        let is_of_a_size = error.starts_with("scale-up") || error.starts_with("fixing sizes");
        // A replica that starts while the API server is away knows no Node, and cluster-autoscaler needs that server itself.
        // The limits were read before the last node of it went in the same loop.
        let is_weighted = error.contains("gives its instances weights");
        let is_of_nodes = error.contains("the Nodes of the cluster are not known yet");
        // What it had asked for before it was restarted is carried out all the same, and is not in what it reckons from.
        let restarts = |what: &What| matches!(what, What::Cluster(Upset::AutoscalerRestarts));
        let is_crossed = is_of_a_size && history.did(*at - CROSSED, *at, restarts);
        // Somebody else raised the size since the last refresh, which is what cluster-autoscaler was told of.
        let is_raised = error.contains("its maximum is") && history.was_raised(*at - REFRESHED, *at);
        if is_of_a_size && history.aws_had_trouble(*at - REFUSES, *at)
            || is_raised
            || history.was_disturbed(*at - STARTS, *at)
            || history.goes_at(*at)
            || is_weighted
            || is_crossed
            || is_of_nodes && history.cluster_had_trouble(*at - LONGEST_OUTAGE, *at)
            || history.has_started_within(STARTS, *at)
        {
            continue;
        }
        found.push(Violation { at: *at, what: error.clone() });
    }
    found
}

/// A replica ended without having been told to, or a part of it panicked.
pub(super) fn ended(history: &History) -> Vec<Violation> {
    let ended = |(at, note): &_| match note {
        Note::EndedByItself(n) => Some(Violation { at: *at, what: format!("replica {n} ended") }),
        Note::Panicked(words) => Some(Violation { at: *at, what: words.clone() }),
        _ => None,
    };
    history.diary.iter().filter_map(ended).collect()
}

impl History {
    /// Whether somebody else raised a size in this time: we call AWS for it.
    fn was_raised(&self, from: Timestamp, to: Timestamp) -> bool {
        let first = self.aws.partition_point(|entry| entry.at < from);
        let raised = |pair: &[AwsEntry]| {
            let is_ours = matches!(&pair[0].what, AwsEvent::Called { operation, .. } if *operation == Operation::SetDesiredCapacity);
            let goes_up = matches!(&pair[1].what, AwsEvent::DesiredChanged { from, to, .. } if to > from);
            goes_up && !is_ours && pair[1].at <= to
        };
        self.aws[first.saturating_sub(1)..].windows(2).any(raised)
    }

    /// Whether a replica is killed or stopped just then.
    pub(super) fn goes_at(&self, at: Timestamp) -> bool {
        let goes = |(when, note): &_| matches!(note, Note::Gone(_)) && (at..=at + ANSWERED).contains(when);
        self.diary.iter().any(goes)
    }
}
