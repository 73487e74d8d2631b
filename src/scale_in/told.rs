//! What the log was told of a node's scale-in, where the same fails again and again. Nothing is decided by it.

use std::collections::{BTreeMap, HashSet};
use std::mem::{Discriminant, discriminant};

use crate::cluster::{Answer, PodView};
use crate::telemetry::Outage;

/// What was told of a node.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// How pods were answered when they were asked to go, by UID: each is tried up to twice a minute.
    answers: HashSet<(String, Discriminant<Answer>)>,
    pub(super) node_writes: Outage,
    pub(super) daemon_sets: Outage,
    /// Of the hook, before a termination.
    pub(super) look_ups: Outage,
    /// Tried before a termination.
    pub(super) heartbeats: Outage,
    pub(super) terminations: Outage,
    pub(super) completions: Outage,
    /// Whether it was told that the hook, which AWS does not let be completed, is left to its time-out.
    pub(super) of_timeout: bool,
}

impl Told {
    /// Whether a pod's answer is the first of its kind, or the pod goes.
    pub(super) fn is_news(&mut self, uid: &str, answer: &Answer) -> bool {
        let is_first = self.answers.insert((uid.to_owned(), discriminant(answer)));
        is_first || matches!(answer, Answer::Going | Answer::Gone)
    }

    /// Forgets pods that are gone.
    pub(super) fn note_pods(&mut self, pods: &BTreeMap<String, PodView>) {
        self.answers.retain(|(uid, _)| pods.contains_key(uid));
    }
}
