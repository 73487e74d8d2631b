//! When to let go of a held instance that has no Node, and what becomes of its pods. Pure.
//!
//! If it never had a Node, there is nothing to drain. If its Node object was deleted, workloads may still run: their pods are
//! garbage-collected within a minute or so, and the kubelet keeps the whole grace only of pods already asked to go (up to 1.30, of all).
//! So the others are asked before that.

use jiff::{SignedDuration, Timestamp};

use super::memory::Memory;
use crate::clock::later;
use crate::cluster::PodView;

/// How long a Node may take to register: an instance taken out while booting may still join. An EKS node joins within
/// about a minute; a watch of Nodes that has fallen silent is noticed 20 s later.
const NEVER_REGISTERED: SignedDuration = SignedDuration::from_secs(90);

/// How long until the pods of a deleted Node are collected: 40 s of quarantine, a check every 20 s, and the change to
/// another controller manager.
///
/// Source: [pod garbage
/// collector](https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/podgc/gc_controller.go).
const COLLECTED: SignedDuration = SignedDuration::from_mins(2);

/// How long after the Node is gone we delete a pod that its budget or annotation has kept: within 40 s the garbage collector would
/// delete it with two seconds of grace. Until then a restarted kubelet may register the Node again, which keeps them.
const ASKED_AFTER: SignedDuration = SignedDuration::from_secs(20);

/// Grace assumed for pods of which nothing is known, as after a restart: the most that cluster-autoscaler grants by
/// default (`--max-graceful-termination-sec`).
const UNKNOWN_GRACE: SignedDuration = SignedDuration::from_mins(10);

/// What is known of an earlier Node of an instance that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierNode {
    /// This run saw the instance join its group, and never a Node of it.
    NeverJoined,
    /// Its Node was deleted then.
    Gone(Timestamp),
    /// It was there before this run and may have had a Node.
    Unknown,
}

/// When to let it go. `seen`: first seen held; `whole_since`: the Node watch is complete since then; `needed`: its pods need
/// it until then, if known; `limit`: the hook lets go by then.
pub(super) fn let_go_at(
    earlier: EarlierNode,
    seen: Timestamp,
    whole_since: Timestamp,
    needed: Option<Timestamp>,
    limit: Option<Timestamp>,
) -> Timestamp {
    let nothing_known = |since| later(since, COLLECTED + UNKNOWN_GRACE);
    let free = match earlier {
        EarlierNode::NeverJoined => seen,
        EarlierNode::Gone(since) => {
            needed.filter(|at| is_of(*at, since)).unwrap_or_else(|| nothing_known(since))
        }
        EarlierNode::Unknown => needed.unwrap_or_else(|| nothing_known(seen)),
    };
    let joins_no_more = later(seen.max(whole_since), NEVER_REGISTERED);
    let at = free.max(joins_no_more);
    limit.map_or(at, |limit| at.min(limit))
}

/// Whether it was noted until when pods need their machine for a Node that has gone at `since`, and not for an earlier one.
pub(super) fn is_of(needed: Timestamp, since: Timestamp) -> bool {
    needed >= later(since, COLLECTED)
}

/// Until when containers of a Node that is gone at `now` need their machine. `longest_grace`: of its pods, in seconds;
/// `None` if unknown.
pub(super) fn needed_until(
    now: Timestamp,
    longest_grace: Option<i64>,
    flush: std::time::Duration,
) -> Timestamp {
    let grace = longest_grace.map_or(UNKNOWN_GRACE, SignedDuration::from_secs);
    later(later(now, COLLECTED), grace.max(crate::clock::signed(flush)))
}

/// When workloads are asked to go whose Node is gone since then.
pub(super) fn asked_at(gone: Timestamp) -> Timestamp {
    later(gone, ASKED_AFTER)
}

/// When nothing is left of the pods of a Node that is gone since then.
pub(super) fn collected_by(gone: Timestamp) -> Timestamp {
    later(gone, COLLECTED)
}

/// Whether a pod is a workload that nobody has asked to go.
pub(super) fn is_unasked(pod: &PodView, memory: &Memory) -> bool {
    let is_asked = pod.deletion_timestamp.is_some() || memory.of(&pod.uid).to_go.is_some();
    pod.is_workload() && !pod.finished && !is_asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn one_that_never_joined_has_a_minute_and_a_half_in_which_the_watch_is_whole() {
        let let_go =
            |whole_since| let_go_at(EarlierNode::NeverJoined, at(1_000), at(whole_since), None, None);
        assert_eq!(let_go(0), at(1_090));
        assert_eq!(let_go(1_050), at(1_140));
    }

    #[test]
    fn one_whose_node_went_is_let_go_when_its_pods_have_had_their_grace_and_no_later_than_its_hook() {
        let needed = needed_until(at(1_000), Some(400), std::time::Duration::from_secs(5));
        assert_eq!(needed, at(1_520));
        let let_go = |limit| let_go_at(EarlierNode::Gone(at(1_000)), at(900), at(0), Some(needed), limit);
        assert_eq!(let_go(None), needed);
        assert_eq!(let_go(Some(at(1_200))), at(1_200));
        // What an earlier Node's pods needed says nothing of those of a later one.
        let later = let_go_at(EarlierNode::Gone(at(1_500)), at(1_600), at(0), Some(needed), None);
        assert_eq!(later, at(1_500 + 720));
    }

    #[test]
    fn where_nothing_is_known_of_its_pods_they_are_granted_ten_minutes() {
        assert_eq!(let_go_at(EarlierNode::Gone(at(900)), at(1_000), at(0), None, None), at(900 + 720));
        assert_eq!(let_go_at(EarlierNode::Unknown, at(1_000), at(0), None, None), at(1_000 + 720));
        assert_eq!(needed_until(at(0), None, std::time::Duration::ZERO), at(720));
        assert_eq!(needed_until(at(0), Some(i64::MAX), std::time::Duration::ZERO), Timestamp::MAX);
    }
}
