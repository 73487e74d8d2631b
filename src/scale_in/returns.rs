//! Pods that come back to a draining node: they tolerate the cordon, or their owner binds them to the node by its name, which asks no
//! scheduler. Pure.
//!
//! Each owner's pods are evicted (at the deadline: deleted) like all others. The first to come back is evicted too, as it may go elsewhere this time;
//! later ones would come back for ever, and are neither evicted nor waited for. The same once many have come in spite of the cordon, whoever
//! owns them: each run of a CronJob or of a CI system has another owner. Once all others have gone, those that are there then are evicted a
//! last time, whatever they ask for: else they would end with the machine, without a signal. What is refused then for too long is given up
//! again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::clock::later;
use crate::cluster::PodView;

/// A pod created this soon after the request counts as older: scheduling takes time, clocks differ, and creation times are whole seconds.
const IN_THE_SAME_MOMENT: SignedDuration = SignedDuration::from_secs(5);

/// A pod that does not tolerate the cordon, and was created this soon after it, was bound by a scheduler whose view of the Nodes lags.
const BOUND_LATE: SignedDuration = SignedDuration::from_mins(1);

/// Within that time, a pod that keeps coming back is evicted this long after creation: its owner may bind it.
const PACE: SignedDuration = SignedDuration::from_secs(5);

/// After this many pods that tolerate the cordon and came after the request, the next ones count as coming for ever.
const NEWCOMERS: usize = 10;

/// Creation times lie up to this much before the moment.
const WHOLE_SECONDS: SignedDuration = SignedDuration::from_secs(1);

/// In the last round, what is still refused this long after the last sign of another's going is not waited for.
const REFUSED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// What one run has seen of pods that come back.
#[derive(Clone, Debug, Default)]
pub struct Returns {
    /// Pods seen, by UID, and whether a pod of the same owner had been evicted before.
    seen: BTreeMap<String, bool>,
    /// Owners of an evicted pod.
    evicted: BTreeSet<String>,
    /// Owners of a returned pod that was evicted as well.
    given_up: BTreeSet<String>,
    /// How many pods have come after the request because they tolerate the cordon.
    newcomers: usize,
    /// UIDs of those that came when there had been [`NEWCOMERS`].
    too_many: BTreeSet<String>,
    /// The last round, once it has begun.
    last: Option<LastRound>,
    /// Since when this run has seen the Node cordoned, by the API server's clock.
    cordoned_since: Option<Timestamp>,
}

/// All that come back are evicted, whatever they have done before.
#[derive(Clone, Debug)]
struct LastRound {
    /// UIDs of the pods that were there when it began, and are there still.
    pods: BTreeSet<String>,
    /// How many of them are there, and how many of those are going: each is a sign once, as one that goes may stay for ever.
    progress: (usize, usize),
    /// When it ends, unless there is another sign of one that goes.
    until: Timestamp,
}

impl Returns {
    /// Notes whether the Node is cordoned at `now`, by the API server's clock.
    pub fn see_node(&mut self, is_cordoned: bool, now: Timestamp) {
        self.cordoned_since = is_cordoned.then(|| self.cordoned_since.unwrap_or(now));
    }

    /// Notes the pods on the node, whose scale-in was requested at `requested_at`, by the API server's clock, if there is one.
    pub fn see(&mut self, pods: &BTreeMap<String, PodView>, requested_at: Option<Timestamp>) {
        self.seen.retain(|uid, _| pods.contains_key(uid));
        self.too_many.retain(|uid| pods.contains_key(uid));
        for (uid, pod) in pods {
            if self.seen.contains_key(uid) {
                continue;
            }
            self.seen.insert(uid.clone(), self.evicted.contains(&pod.owner()));
            // What comes while nobody has asked the node to go is welcome, cordon or not.
            if pod.tolerates_cordon && pod.is_workload() && self.is_back(pod, requested_at) {
                self.newcomers += 1;
                if self.newcomers > NEWCOMERS {
                    self.too_many.insert(uid.clone());
                }
            }
        }
    }

    /// Notes that a pod of this owner was asked to go; `again`: it had come back.
    pub fn asked(&mut self, owner: String, again: bool) {
        if again {
            self.given_up.insert(owner.clone());
        }
        self.evicted.insert(owner);
    }

    /// Whether a pod has come back after the request at `requested_at`, by the API server's clock.
    pub fn is_back(&self, pod: &PodView, requested_at: Option<Timestamp>) -> bool {
        let after = match requested_at {
            Some(requested) if pod.tolerates_cordon => Some(later(requested, IN_THE_SAME_MOMENT)),
            _ if pod.tolerates_cordon => None,
            _ => self.is_closed_from(),
        };
        let is_new = pod.created.zip(after).is_some_and(|(created, after)| created > after);
        is_new || self.came_after_an_eviction(pod)
    }

    fn came_after_an_eviction(&self, pod: &PodView) -> bool {
        self.seen.get(&pod.uid).copied().unwrap_or_default()
    }

    /// When a last round ends in which nothing has gone since `last`.
    pub fn last_round_ends(last: Timestamp) -> Timestamp {
        later(last, REFUSED_WITHIN)
    }

    /// Begins the last round, unless it has begun, with all that are there now.
    pub fn ask_last(&mut self, until: Timestamp) {
        self.last.get_or_insert_with(|| {
            let pods: BTreeSet<String> = self.seen.keys().cloned().collect();
            LastRound { progress: (pods.len(), 0), pods, until }
        });
    }

    /// Notes which of the last round's pods are there. While they go, those that are to be asked after them have time.
    pub fn see_last_round(&mut self, pods: &BTreeMap<String, PodView>, now: Timestamp) {
        let Some(last) = &mut self.last else { return };
        last.pods.retain(|uid| pods.contains_key(uid));
        let is_going = |uid: &&String| pods.get(*uid).is_some_and(|pod| pod.deletion_timestamp.is_some());
        let progress = (last.pods.len(), last.pods.iter().filter(is_going).count());
        if std::mem::replace(&mut last.progress, progress) != progress {
            last.until = last.until.max(Self::last_round_ends(now));
        }
    }

    /// When the last round ends, or ended; `None`: it is still to come.
    pub fn asked_last_until(&self) -> Option<Timestamp> {
        self.last.as_ref().map(|last| last.until)
    }

    /// Whether a pod is of the last round, or would be if it began now.
    pub fn is_asked_last(&self, pod: &PodView) -> bool {
        self.last.as_ref().is_none_or(|last| last.pods.contains(&pod.uid))
    }

    /// Whether this pod is no longer evicted, but for the last round. A pod that was there at its owner's first eviction has never come
    /// back, whatever its creation time says: the API server's clock may be ahead.
    pub fn is_given_up(&self, pod: &PodView) -> bool {
        if self.too_many.contains(&pod.uid) {
            return true;
        }
        let closed_from = self.is_closed_from();
        let is_new = || pod.created.zip(closed_from).is_some_and(|(created, from)| created > from);
        // Others may have come before the cordon, or while somebody had the node open.
        let comes_in_any_case = pod.tolerates_cordon || is_new();
        comes_in_any_case && self.came_after_an_eviction(pod) && self.given_up.contains(&pod.owner())
    }

    /// When to ask a pod that has come back to go, by the API server's clock: before that, nobody could tell whether the next one ignores
    /// the cordon. `None`: at once.
    pub fn asked_from(&self, pod: &PodView) -> Option<Timestamp> {
        if pod.tolerates_cordon {
            return None;
        }
        let closed_from = self.is_closed_from()?;
        if pod.created.is_some_and(|created| created > closed_from) {
            return Some(later(closed_from, WHOLE_SECONDS));
        }
        let comes_again = self.came_after_an_eviction(pod) && self.given_up.contains(&pod.owner());
        pod.created.filter(|_| comes_again).map(|created| later(created, PACE))
    }

    /// A pod that was created after this moment has not been scheduled onto the Node.
    fn is_closed_from(&self) -> Option<Timestamp> {
        self.cordoned_since.map(|since| later(since, BOUND_LATE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn pod(uid: &str, created: i64) -> PodView {
        let (controller, uid) = (Some("operator".to_owned()), uid.to_owned());
        PodView { uid, controller, created: Some(at(created)), tolerates_cordon: true, ..PodView::default() }
    }

    fn on_the_node(pods: &[&PodView]) -> BTreeMap<String, PodView> {
        pods.iter().map(|&pod| (pod.uid.clone(), pod.clone())).collect()
    }

    #[test]
    fn the_first_that_comes_back_is_evicted_and_those_after_it_are_not() {
        let mut returns = Returns::default();
        let asked_at = Some(at(100));
        // Two were there; the clocks differ by a second.
        let (a, b) = (pod("a", 101), pod("b", 90));
        returns.see(&on_the_node(&[&a, &b]), None);
        assert!(!returns.is_back(&a, asked_at) && !returns.is_back(&b, asked_at));
        returns.asked(a.owner(), false);
        assert!(!returns.is_back(&b, asked_at), "it never went away");
        let c = pod("c", 102);
        returns.see(&on_the_node(&[&b, &c]), None);
        assert!(returns.is_back(&c, asked_at) && !returns.is_given_up(&c));
        returns.asked(c.owner(), true);
        let d = pod("d", 102);
        returns.see(&on_the_node(&[&b, &d]), None);
        assert!(returns.is_given_up(&d) && !returns.is_given_up(&b));
        assert!(returns.is_asked_last(&d) && returns.asked_last_until().is_none());
        returns.ask_last(Returns::last_round_ends(at(200)));
        returns.asked(d.owner(), true);
        let next = pod("e", 103);
        returns.see(&on_the_node(&[&b, &d, &next]), None);
        assert!(returns.is_given_up(&next) && returns.is_asked_last(&d) && !returns.is_asked_last(&next));
    }

    #[test]
    fn the_last_round_lasts_a_minute_from_the_last_sign_that_one_of_its_pods_goes() {
        let (a, b) = (pod("a", 90), pod("b", 90));
        let going = PodView { deletion_timestamp: Some(at(500)), ..b.clone() };
        let mut returns = Returns::default();
        returns.see(&on_the_node(&[&a, &b]), None);
        returns.ask_last(Returns::last_round_ends(at(200)));
        for (there, now, until) in [
            (vec![&a, &b], 210, 260),
            (vec![&a, &going], 220, 280),
            // Others come and go meanwhile, and this one may never have gone.
            (vec![&a, &going], 400, 280),
            (vec![&a], 490, 550),
            (vec![&a], 500, 550),
        ] {
            returns.see_last_round(&on_the_node(&there), at(now));
            assert_eq!(returns.asked_last_until(), Some(at(until)), "{now}");
        }
    }

    #[test]
    fn one_that_does_not_tolerate_the_cordon_is_given_up_only_if_it_was_made_under_it() {
        let bound = |uid: &str, created| PodView { tolerates_cordon: false, ..pod(uid, created) };
        let mut returns = Returns::default();
        let asked_at = Some(at(100));
        returns.see_node(true, at(100));
        let (a, b) = (bound("a", 50), bound("b", 101));
        returns.see(&on_the_node(&[&a]), None);
        returns.asked(a.owner(), false);
        returns.see(&on_the_node(&[&b]), None);
        assert!(returns.is_back(&b, asked_at) && !returns.is_given_up(&b));
        assert_eq!((returns.asked_from(&a), returns.asked_from(&b)), (None, None));
        returns.asked(b.owner(), true);
        // The scheduler's view of the Node may lag: it is asked again, at a pace.
        let (c, d) = (bound("c", 160), bound("d", 161));
        returns.see(&on_the_node(&[&c, &d]), None);
        assert!(!returns.is_given_up(&c) && returns.is_given_up(&d));
        assert_eq!((returns.asked_from(&c), returns.asked_from(&d)), (Some(at(165)), Some(at(161))));
        // Somebody has opened the Node for a moment meanwhile.
        returns.see_node(false, at(200));
        returns.see_node(true, at(201));
        returns.see_node(true, at(210));
        let (early, late) = (bound("e", 261), bound("f", 262));
        returns.see(&on_the_node(&[&early, &late]), None);
        assert!(!returns.is_given_up(&early) && returns.is_given_up(&late));
    }

    #[test]
    fn of_pods_that_come_under_the_cordon_with_another_owner_each_time_the_eleventh_is_given_up() {
        let new = |n: i64, tolerates_cordon| PodView {
            controller: Some(format!("job-{n}")),
            tolerates_cordon,
            ..pod(&format!("uid-{n}"), 100 + 10 * n)
        };
        for (tolerates_cordon, requested_at) in [(true, Some(at(100))), (false, Some(at(100))), (true, None)]
        {
            let mut returns = Returns::default();
            // A notice, or somebody, may have closed the node long before anybody asks it to go.
            returns.see_node(true, at(50));
            let given_up: Vec<i64> = (1..=12)
                .filter(|&n| {
                    let pod = new(n, tolerates_cordon);
                    returns.see(&on_the_node(&[&pod]), requested_at);
                    returns.is_given_up(&pod)
                })
                .collect();
            let expected: &[i64] = if tolerates_cordon && requested_at.is_some() { &[11, 12] } else { &[] };
            assert_eq!(given_up, expected, "{tolerates_cordon} {requested_at:?}");
        }
    }

    /// The API server's clock is ahead, or ours was set back.
    #[test]
    fn a_pod_there_before_its_owners_first_eviction_is_not_given_up_though_it_seems_newer_than_the_cordon() {
        for tolerates_cordon in [false, true] {
            let of = |uid: &str| PodView { tolerates_cordon, ..pod(uid, 161) };
            let mut returns = Returns::default();
            returns.see_node(true, at(100));
            let (a, b, c) = (of("a"), of("b"), of("c"));
            returns.see(&on_the_node(&[&a, &b]), None);
            returns.asked(a.owner(), returns.is_back(&a, Some(at(100))));
            assert!(!returns.is_given_up(&b));
            returns.see(&on_the_node(&[&b, &c]), None);
            assert!(returns.is_given_up(&c), "it has come after that");
        }
    }

    #[test]
    fn after_a_restart_one_is_told_by_its_age() {
        let returns = Returns::default();
        for (created, is_back) in [(100, false), (105, false), (106, true)] {
            assert_eq!(returns.is_back(&pod("a", created), Some(at(100))), is_back);
        }
        assert!(!returns.is_back(&pod("a", 1_000), None), "nobody has asked the node to go");
        let mut cordoned = Returns::default();
        cordoned.see_node(true, at(100));
        assert!(!cordoned.is_back(&pod("a", 1_000), None), "nor who has cordoned it");
        let stays_away = PodView { tolerates_cordon: false, ..pod("a", 1_000) };
        assert!(!returns.is_back(&stays_away, Some(at(100))));
    }
}
