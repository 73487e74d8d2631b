//! DaemonSet pods that are away for a while around a node's last exit: replaced (a rolling update, an eviction by the kubelet, somebody who
//! deletes one), not started yet, or with a container that has crashed and is started again.
//!
//! A successor needs some seconds to start and to read on where its predecessor stopped; the predecessor's flush time counts until then.
//! Successors of pods that we delete are left alone, and not waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::class::{Flush, flush_time, may_hold_the_flush};
use crate::clock::{later, signed};
use crate::cluster::{Containers, DaemonOwner, PodView};

/// How long a pod may take until it runs, where its image is on the node.
const STARTS_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// How long a pod that has not started may take from its creation on: a new version's image has to be pulled.
const PULLS_WITHIN: SignedDuration = SignedDuration::from_secs(120);

/// What the node's DaemonSet pods have done, as far as nobody here has asked them to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absences {
    /// What each was seen to do last, by UID.
    seen: BTreeMap<String, Stage>,
    /// UIDs of the DaemonSets of pods that we have asked to go: their successors are not waited for.
    asked: BTreeSet<String>,
    /// By when all of those that were away run, or their successors.
    back_by: Option<Timestamp>,
    /// By when those that have not started run.
    started_by: Option<Timestamp>,
    /// The longest flush that any of them has asked for.
    flush: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    There(Containers),
    /// It is being deleted.
    Going,
}

impl Absences {
    /// Looks at the pods of the node; `is_asked`: we have asked the one with this UID to go. The API server's clock is `cluster_ahead`.
    pub fn see(
        &mut self,
        pods: &BTreeMap<String, PodView>,
        is_asked: impl Fn(&str) -> bool,
        flush: &Flush,
        (now, cluster_ahead): (Timestamp, SignedDuration),
    ) {
        self.flush = self.flush.max(flush_time(pods.values().filter(|pod| !pod.finished), flush));
        let stage = |pod: &PodView| match pod.deletion_timestamp {
            Some(_) => Stage::Going,
            None => Stage::There(pod.containers),
        };
        let of_daemon_sets = pods.iter().filter_map(|(uid, pod)| match &pod.daemon {
            Some(DaemonOwner::DaemonSet { uid: set, .. })
                if !pod.finished && may_hold_the_flush(pod, flush) =>
            {
                Some((uid, pod, set))
            }
            _ => None,
        });
        let (asked, left): (Vec<_>, Vec<_>) = of_daemon_sets.partition(|(uid, ..)| is_asked(uid));
        self.asked.extend(asked.into_iter().map(|(_, _, set)| set.clone()));
        let left = left.into_iter().filter(|(_, _, set)| !self.asked.contains(*set));
        let left: Vec<_> = left.map(|(uid, pod, _)| (uid, pod, stage(pod))).collect();
        let starting = left.iter().filter(|(.., stage)| *stage == Stage::There(Containers::Starting));
        let created = |pod: &PodView| pod.created.map_or(now, |it| later(it, -cluster_ahead).min(now));
        self.started_by = starting.map(|(_, pod, _)| later(created(pod), PULLS_WITHIN)).max();
        let seen: BTreeMap<_, _> = left.into_iter().map(|(uid, _, stage)| (uid.clone(), stage)).collect();
        let uids = self.seen.keys().chain(seen.keys()).filter(|uid| !is_asked(uid));
        let back_by = uids.filter_map(|uid| match (self.seen.get(uid), seen.get(uid)) {
            (before, stage) if before == stage => None,
            (None, Some(Stage::There(Containers::Running { .. }))) => None,
            (_, Some(Stage::There(Containers::Running { .. }))) => Some(now),
            _ => Some(later(now, STARTS_WITHIN)),
        });
        self.back_by = self.back_by.max(back_by.max());
        self.seen = seen;
    }

    /// Forgets which we have asked to go.
    pub fn forget_asked(&mut self) {
        self.asked.clear();
    }

    /// The longest flush that DaemonSet pods have asked for while the node drained.
    pub fn flush(&self) -> Duration {
        self.flush
    }

    /// Until when one is waited for that was away and needs `flush` to read on; `None` if none was.
    pub fn until(&self, flush: Duration) -> Option<Timestamp> {
        Some(later(self.back_by.max(self.started_by)?, signed(flush)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::names;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn shipper(uid: &str, flush: &str) -> (String, PodView) {
        let daemon = DaemonOwner::DaemonSet { uid: "d".into(), name: "shipper".into() };
        let annotations = [(names::FLUSH_SECONDS.to_owned(), flush.to_owned())].into();
        (uid.to_owned(), PodView { uid: uid.into(), daemon: Some(daemon), annotations, ..PodView::default() })
    }

    #[test]
    fn one_that_is_down_at_the_first_look_or_was_since_the_last_one_is_waited_for_where_it_may_hold_the_flush()
     {
        let run = |restarts| Containers::Running { restarts };
        for (stages, namespaces, expected) in [
            (vec![run(7)], vec![], None),
            (vec![Containers::Down], vec![], Some(at(20))),
            (vec![run(7), run(7)], vec![], None),
            (vec![run(7), run(8)], vec![], Some(at(6))),
            (vec![run(7), run(8)], vec!["logging"], Some(at(6))),
            (vec![run(7), Containers::Down], vec!["others"], None),
        ] {
            let flush = Flush {
                default: Duration::from_secs(5),
                longest: Duration::from_mins(2),
                namespaces: namespaces.iter().map(|&namespace| namespace.to_owned()).collect(),
            };
            let mut absences = Absences::default();
            for (second, &containers) in (0..).zip(&stages) {
                let (uid, mut pod) = shipper("a", "");
                pod.containers = containers;
                pod.name.namespace = "logging".into();
                absences.see(&[(uid, pod)].into(), |_| false, &flush, (at(second), SignedDuration::ZERO));
            }
            assert_eq!(absences.until(flush.default), expected, "{stages:?} {namespaces:?}");
        }
    }

    #[test]
    fn a_replaced_daemon_set_pod_is_waited_for_and_its_flush_time_counts() {
        let flush = Flush {
            default: Duration::from_secs(5),
            longest: Duration::from_mins(2),
            namespaces: BTreeSet::new(),
        };
        let mut absences = Absences::default();
        let mut see = |pods: &[(String, PodView)], asked: &[&str], second| {
            let pods = pods.iter().cloned().collect();
            absences.see(&pods, |uid| asked.contains(&uid), &flush, (at(second), SignedDuration::ZERO));
            (absences.flush().as_secs(), absences.until(Duration::from_secs(5)))
        };
        let (uid, pod) = shipper("a", "60");
        let going = (uid.clone(), PodView { deletion_timestamp: Some(at(40)), ..pod.clone() });
        let mirror = ("m".to_owned(), PodView { daemon: Some(DaemonOwner::Other), ..pod.clone() });
        let (old, failed) = shipper("f", "90");
        let failed = (old, PodView { finished: true, ..failed });
        assert_eq!(see(&[failed], &[], 0), (5, None), "what has failed long ago asks for nothing");
        assert_eq!(see(&[(uid.clone(), pod.clone()), mirror], &[], 1), (60, None));
        assert_eq!(see(&[(uid.clone(), pod.clone())], &[], 2), (60, None), "what only says so is none");
        assert_eq!(see(std::slice::from_ref(&going), &[], 10), (60, Some(at(30))), "it goes");
        assert_eq!(see(&[going], &[], 12), (60, Some(at(30))));
        assert_eq!(see(&[], &[], 20), (60, Some(at(40))), "it has gone");
        let next = shipper("b", "");
        assert_eq!(
            see(std::slice::from_ref(&next), &[], 21),
            (60, Some(at(40))),
            "and what it asked for counts"
        );
        let finished = (next.0.clone(), PodView { finished: true, ..next.1.clone() });
        assert_eq!(see(&[finished], &[], 50), (60, Some(at(70))), "evicted by its kubelet");
        let (uid, pod) = shipper("d", "");
        let down = (uid.clone(), PodView { containers: Containers::Down, ..pod.clone() });
        let starting = PodView { containers: Containers::Starting, created: Some(at(61)), ..pod.clone() };
        let starting = (uid.clone(), starting);
        assert_eq!(see(std::slice::from_ref(&starting), &[], 62), (60, Some(at(186))), "it has not started");
        assert_eq!(see(&[starting], &[], 79), (60, Some(at(186))));
        assert_eq!(see(&[(uid.clone(), pod.clone())], &[], 80), (60, Some(at(85))), "it has");
        assert_eq!(see(std::slice::from_ref(&down), &[], 90), (60, Some(at(110))), "it has crashed");
        assert_eq!(see(&[down], &[], 95), (60, Some(at(110))));
        assert_eq!(see(&[(uid.clone(), pod.clone())], &[], 120), (60, Some(at(125))), "it runs again");
        assert_eq!(see(&[(uid, pod)], &["d"], 130), (60, Some(at(125))));
        assert_eq!(see(&[], &[], 131), (60, Some(at(125))), "we asked it");
        let (uid, pod) = shipper("e", "");
        let down = (uid.clone(), PodView { containers: Containers::Down, ..pod.clone() });
        assert_eq!(see(&[down], &[], 132), (60, Some(at(125))));
        assert_eq!(
            see(&[(uid.clone(), pod.clone())], &[], 134),
            (60, Some(at(125))),
            "nobody waits for its successor"
        );
    }

    #[test]
    fn what_the_api_servers_clock_dates_is_as_old_as_that_clock_says() {
        let flush = Flush { default: Duration::ZERO, longest: Duration::from_mins(2), namespaces: [].into() };
        for ahead in [0, 3_600, -3_600].map(SignedDuration::from_secs) {
            let mut absences = Absences::default();
            let (uid, pod) = shipper("a", "5");
            let created = Some(later(at(100), ahead));
            let pod = PodView { containers: Containers::Starting, created, ..pod };
            absences.see(&[(uid, pod)].into(), |_| false, &flush, (at(110), ahead));
            assert_eq!(absences.until(Duration::ZERO), Some(at(220)), "{ahead}");
        }
    }
}
