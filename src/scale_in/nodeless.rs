//! When an instance that a hook holds and that has no Node is let go. Pure.
//!
//! One that never had a Node has nothing to drain. One whose Node object was deleted may run workloads still: their pods are
//! collected within a minute or so, and the kubelet, which lives on, gives their containers the whole of their grace.

use jiff::{SignedDuration, Timestamp};

use crate::clock::later;

/// How long a Node may take to register before its instance counts as one without: an instance that is taken out
/// while it boots may still join. An EKS node joins within about a minute.
const NEVER_REGISTERED: SignedDuration = SignedDuration::from_secs(60);

/// How long it takes until the pods of a Node that is gone are collected: 40 s of quarantine, a look every 20 s, and
/// the pause while another controller manager takes over.
///
/// Source: [pod garbage
/// collector](https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/podgc/gc_controller.go).
const COLLECTED: SignedDuration = SignedDuration::from_mins(2);

/// Grace that pods are granted of which nothing is known: after a restart nobody can tell. It is what cluster-autoscaler
/// grants by default at most (`--max-graceful-termination-sec`).
const UNKNOWN_GRACE: SignedDuration = SignedDuration::from_mins(10);

/// What is known of the Node of an instance that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// This run has seen the instance come into its group, and never a Node of it.
    NeverJoined,
    /// Its Node was deleted then.
    Gone(Timestamp),
    /// It was there before this run, and may have had a Node.
    Unknown,
}

/// When it is let go. `seen` held since then; the watch of Nodes is whole since `whole_since`; `needed` until then by what was
/// known of its pods; the hook lets go at `limit` at the latest.
pub(super) fn let_go_at(
    past: Past,
    seen: Timestamp,
    whole_since: Timestamp,
    needed: Option<Timestamp>,
    limit: Option<Timestamp>,
) -> Timestamp {
    let nothing_known = |since| later(since, COLLECTED + UNKNOWN_GRACE);
    let free = match past {
        Past::NeverJoined => seen,
        Past::Gone(since) => needed.unwrap_or_else(|| nothing_known(since)),
        Past::Unknown => needed.unwrap_or_else(|| nothing_known(seen)),
    };
    let joins_no_more = later(seen.max(whole_since), NEVER_REGISTERED);
    let at = free.max(joins_no_more);
    limit.map_or(at, |limit| at.min(limit))
}

/// Until when the containers of a Node that is gone by `now` need their machine. `longest_grace` in seconds, of its pods;
/// none if they were not known.
pub(super) fn needed_until(
    now: Timestamp,
    longest_grace: Option<i64>,
    flush: std::time::Duration,
) -> Timestamp {
    let grace = longest_grace.map_or(UNKNOWN_GRACE, SignedDuration::from_secs);
    later(later(now, COLLECTED), grace.max(crate::clock::signed(flush)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn one_that_never_joined_has_a_minute_in_which_the_watch_is_whole() {
        let let_go = |whole_since| let_go_at(Past::NeverJoined, at(1_000), at(whole_since), None, None);
        assert_eq!(let_go(0), at(1_060));
        assert_eq!(let_go(1_050), at(1_110));
    }

    #[test]
    fn one_whose_node_went_is_let_go_when_its_pods_have_had_their_grace_and_no_later_than_its_hook() {
        let needed = needed_until(at(1_000), Some(400), std::time::Duration::from_secs(5));
        assert_eq!(needed, at(1_520));
        let let_go = |limit| let_go_at(Past::Gone(at(1_000)), at(900), at(0), Some(needed), limit);
        assert_eq!(let_go(None), needed);
        assert_eq!(let_go(Some(at(1_200))), at(1_200));
    }

    #[test]
    fn where_nothing_is_known_of_its_pods_they_are_granted_ten_minutes() {
        assert_eq!(let_go_at(Past::Gone(at(900)), at(1_000), at(0), None, None), at(900 + 720));
        assert_eq!(let_go_at(Past::Unknown, at(1_000), at(0), None, None), at(1_000 + 720));
        assert_eq!(needed_until(at(0), None, std::time::Duration::ZERO), at(720));
        assert_eq!(needed_until(at(0), Some(i64::MAX), std::time::Duration::ZERO), Timestamp::MAX);
    }
}
