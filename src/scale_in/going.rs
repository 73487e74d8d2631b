//! When the grace of pods ends that were seen to be asked, by our clock. Pure.
//!
//! The API server dates that by its own wall clock, which may be minutes behind the one of this machine. Of a pod that was being deleted when
//! it was first seen, that date is all there is.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::clock::later;
use crate::cluster::PodView;

/// How late a deletion may be seen, or by how much the API server's clock and ours may differ, without harm.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// The pods of a node, by UID.
#[derive(Clone, Debug, Default)]
pub struct Going(BTreeMap<String, Option<Seen>>);

/// A deletion that was seen to begin.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// What the API server says of it.
    told: Timestamp,
    /// When its grace ends by our clock.
    ends: Timestamp,
}

impl Going {
    /// Takes in the pods as they are now.
    pub(super) fn see(&mut self, pods: &BTreeMap<String, PodView>, now: Timestamp) {
        self.0.retain(|uid, _| pods.contains_key(uid));
        for (uid, pod) in pods {
            match (self.0.get_mut(uid), pod.deletion_timestamp) {
                (None, None) => drop(self.0.insert(uid.clone(), None)),
                // A second request gives it less time.
                (Some(Some(seen)), Some(told)) if told != seen.told => {
                    (seen.ends, seen.told) = (later(seen.ends, told.duration_since(seen.told)), told);
                }
                (Some(seen @ None), Some(told)) => {
                    let grace = pod.deletion_grace_seconds.unwrap_or(pod.grace_seconds);
                    *seen = Some(Seen { told, ends: later(now, SignedDuration::from_secs(grace)) });
                }
                _ => {}
            }
        }
    }

    /// When the grace of a pod ends by our clock, of which the API server says that it ends at `told`.
    pub(super) fn ends(&self, uid: &str, told: Timestamp) -> Timestamp {
        let seen = self.0.get(uid).copied().flatten().map(|seen| seen.ends);
        seen.filter(|seen| *seen > later(told, CLOCK_SKEW)).unwrap_or(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn pods(until: Option<i64>) -> BTreeMap<String, PodView> {
        let pod = PodView {
            uid: "u".into(),
            grace_seconds: 300,
            deletion_timestamp: until.map(at),
            deletion_grace_seconds: until.map(|_| 100),
            ..PodView::default()
        };
        BTreeMap::from([("u".to_owned(), pod)])
    }

    #[test]
    fn a_grace_ends_later_than_an_api_server_says_whose_clock_is_behind() {
        // What it says, by our clock, of a deletion that we see at 10 and that gives a hundred seconds; and when it ends.
        for (told, ends) in [(-200, 110), (79, 110), (80, 80), (110, 110), (500, 500)] {
            let mut going = Going::default();
            going.see(&pods(None), at(0));
            going.see(&pods(Some(told)), at(10));
            going.see(&pods(Some(told)), at(50));
            assert_eq!(going.ends("u", at(told)), at(ends), "{told}");
        }
    }

    #[test]
    fn a_second_request_brings_it_closer() {
        let mut going = Going::default();
        going.see(&pods(None), at(0));
        going.see(&pods(Some(-200)), at(10));
        going.see(&pods(Some(-250)), at(20));
        assert_eq!(going.ends("u", at(-250)), at(60));
    }

    #[test]
    fn what_was_going_already_is_dated_by_the_api_server() {
        let mut going = Going::default();
        going.see(&pods(Some(-200)), at(10));
        assert_eq!(going.ends("u", at(-200)), at(-200));
        // It is gone.
        going.see(&BTreeMap::new(), at(20));
        assert_eq!(going.ends("u", at(5)), at(5));
    }
}
