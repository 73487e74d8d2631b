//! When the grace of a pod that is being deleted ends, by our clock. Pure.
//!
//! The API server dates the end by its own clock, which we know only within some seconds. We note the first sight of the deletion by a
//! clock that is never set: the deletion came no later and, if the pod was seen without it before, hardly sooner.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::clock::later;
use crate::cluster::PodView;

/// How late a deletion may be seen, or by how much the API server's clock and ours may differ, without harm.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// The pods of a node that have not ended.
#[derive(Clone, Debug, Default)]
pub struct Going {
    /// By UID; `None`: not being deleted.
    pods: BTreeMap<String, Option<Seen>>,
    /// When the exit of one that was being deleted was confirmed last.
    confirmed_at: Option<Timestamp>,
}

/// A deletion.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When it was seen first.
    asked: Timestamp,
    /// Whether the pod had been seen before, unasked.
    has_begun_since: bool,
    grace: SignedDuration,
}

impl Going {
    /// Takes in the pods as they are now.
    pub(super) fn see(&mut self, pods: &BTreeMap<String, PodView>, now: Timestamp) {
        let ended = self.pods.extract_if(.., |uid, _| pods.get(uid).is_none_or(|pod| pod.finished));
        if ended.filter(|(_, seen)| seen.is_some()).count() > 0 {
            self.confirmed_at = Some(now);
        }
        for (uid, pod) in pods.iter().filter(|(_, pod)| !pod.finished) {
            let asked = pod.deletion_timestamp.is_some();
            let grace = SignedDuration::from_secs(pod.deletion_grace_seconds.unwrap_or(pod.grace_seconds));
            let seen_to_be_asked =
                |has_begun_since| asked.then_some(Seen { asked: now, has_begun_since, grace });
            match self.pods.get_mut(uid) {
                None => drop(self.pods.insert(uid.clone(), seen_to_be_asked(false))),
                // A second request gives it less time, from when the first one came.
                Some(Some(seen)) if asked => seen.grace = grace,
                Some(seen) => *seen = seen_to_be_asked(true),
            }
        }
    }

    /// When the exit of a pod that was being deleted was confirmed last.
    pub(super) fn confirmed_at(&self) -> Option<Timestamp> {
        self.confirmed_at
    }

    /// When a pod's grace ends by our clock, if the API server says `told`.
    pub(super) fn ends(&self, uid: &str, told: Timestamp) -> Timestamp {
        let Some(seen) = self.pods.get(uid).copied().flatten() else { return told };
        let ends = later(seen.asked, seen.grace);
        let is_later = seen.has_begun_since && ends > later(told, CLOCK_SKEW);
        if ends < told || is_later { ends } else { told }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn pods(until: Option<i64>) -> BTreeMap<String, PodView> {
        pods_with(until, 100)
    }

    fn pods_with(until: Option<i64>, grace: i64) -> BTreeMap<String, PodView> {
        let pod = PodView {
            uid: "u".into(),
            grace_seconds: 300,
            deletion_timestamp: until.map(at),
            deletion_grace_seconds: until.map(|_| grace),
            ..PodView::default()
        };
        BTreeMap::from([("u".to_owned(), pod)])
    }

    #[test]
    fn a_grace_ends_by_when_the_request_was_seen_whatever_clock_the_api_server_has() {
        // What it says, by our clock, of a deletion that we see at 10 and that gives a hundred seconds; and when it ends.
        for (told, ends) in [(-200, 110), (79, 110), (80, 80), (110, 110), (111, 110), (500, 110)] {
            let mut going = Going::default();
            going.see(&pods(None), at(0));
            going.see(&pods(Some(told)), at(10));
            going.see(&pods(Some(told)), at(50));
            assert_eq!(going.ends("u", at(told)), at(ends), "{told}");
        }
    }

    #[test]
    fn a_second_request_brings_it_closer_counted_from_the_first() {
        for first in [100, i64::MAX / 2_000_000_000] {
            let mut going = Going::default();
            going.see(&pods(None), at(0));
            going.see(&pods_with(Some(-200), first), at(10));
            going.see(&pods_with(Some(-250), 50), at(20));
            assert_eq!(going.ends("u", at(-250)), at(60), "{first}");
        }
    }

    #[test]
    fn what_was_going_already_is_dated_by_the_api_server_unless_that_is_later_than_can_be() {
        let mut going = Going::default();
        going.see(&pods(Some(-200)), at(10));
        assert_eq!(going.ends("u", at(-200)), at(-200));
        assert_eq!(going.ends("u", at(500)), at(110), "it was asked by then");
        assert_eq!(going.confirmed_at(), None);
        // It is gone.
        going.see(&BTreeMap::new(), at(20));
        assert_eq!((going.ends("u", at(5)), going.confirmed_at()), (at(5), Some(at(20))));
    }
}
