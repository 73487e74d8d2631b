//! The place that a pod has asked for among those that a drain asks to go. Pure.
//!
//! The next priority is asked once the API server has answered for the one below; a later order only when every pod of earlier orders has
//! gone: a proxy after its users. A limit is shared out so that a later order finds its whole grace, at the cost of time for budgets,
//! never of anybody's grace:
//! - Earlier orders lose their budgets' protection sooner by what later ones need, at most half of the drain's time.
//! - A later order is asked [`CHANCE`] before its own last call, whoever is still there.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::class::order_number;
use super::deadline::last_call;
use crate::clock::later;
use crate::cluster::PodView;
use crate::k8s::names;

/// A pod that its order holds back is asked this long before its last call: for two tries under its budget.
const CHANCE: SignedDuration = SignedDuration::from_secs(10);

/// What a later order needs beside its grace: its chance, the 3 s that a last call is early, and 2 s to see the last exit.
const HANDOVER: SignedDuration = SignedDuration::from_secs(15);

/// The order of workloads that say nothing.
const DEFAULT: i32 = 0;

/// The order of our own pod, and of pods that only serve others on the node and say nothing.
pub(super) const LAST: i32 = i32::MAX;

/// A pod's order: what it asks for, if its namespace may (`namespaces` empty: all may).
pub(super) fn of(pod: &PodView, namespaces: &BTreeSet<String>) -> i32 {
    let by_itself = if pod.serves_node { LAST } else { DEFAULT };
    let may = namespaces.is_empty() || namespaces.contains(&*pod.name.namespace);
    pod.annotation(names::DRAIN_ORDER).filter(|_| may).and_then(order_number).unwrap_or(by_itself)
}

/// When an order must have gone, so that later ones with these longest graces, in seconds, find theirs before `limit`, known
/// `since` then.
pub(super) fn gone_by(
    limit: Timestamp,
    since: Timestamp,
    later_graces: impl IntoIterator<Item = i64>,
) -> Timestamp {
    let needed = later_graces.into_iter().fold(SignedDuration::ZERO, |sum, grace| {
        sum.saturating_add(SignedDuration::from_secs(grace)).saturating_add(HANDOVER)
    });
    let half = limit.duration_since(since) / 2;
    later(limit, -needed.min(half.max(SignedDuration::ZERO)))
}

/// When a pod is asked at the latest, whatever earlier orders do.
pub(super) fn first_call(gone_by: Timestamp, grace_seconds: i64) -> Timestamp {
    later(last_call(gone_by, grace_seconds), -CHANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn asking(namespace: &str, order: Option<&str>) -> PodView {
        let mut pod = PodView::default();
        pod.name.namespace = namespace.into();
        pod.annotations.extend(order.map(|order| (names::DRAIN_ORDER.to_owned(), order.to_owned())));
        pod
    }

    #[test]
    fn an_order_is_a_whole_number_of_a_namespace_that_may_say_so() {
        let (all, infra) = (BTreeSet::new(), BTreeSet::from(["infra".to_owned()]));
        let table = [
            (None, 0),
            (Some("7"), 7),
            (Some(" -3 "), -3),
            (Some("+2"), 2),
            (Some("2147483647"), i32::MAX),
            (Some("2147483648"), 0),
            (Some("1.5"), 0),
            (Some("last"), 0),
            (Some(""), 0),
        ];
        for (text, order) in table {
            let pod = asking("shop", text);
            assert_eq!((of(&pod, &all), of(&pod, &infra)), (order, 0), "{text:?}");
        }
        assert_eq!(of(&asking("infra", Some("7")), &infra), 7);
        let mount = |order| PodView { serves_node: true, ..asking("mount-s3", order) };
        for (text, order) in [(None, LAST), (Some("7"), 7), (Some("last"), LAST)] {
            assert_eq!(of(&mount(text), &all), order, "{text:?}");
        }
        assert_eq!(of(&mount(Some("7")), &infra), LAST, "not in this namespace");
    }

    #[test]
    fn later_orders_take_what_they_need_and_no_more_than_half() {
        let gone_by = |graces: &[i64]| gone_by(at(1_000), at(0), graces.iter().copied());
        assert_eq!(gone_by(&[]), at(1_000));
        assert_eq!(gone_by(&[30]), at(955));
        assert_eq!(gone_by(&[30, 100]), at(840));
        assert_eq!(gone_by(&[600]), at(500));
        assert_eq!(gone_by(&[i64::MAX, i64::MAX]), at(500));
        assert_eq!(super::gone_by(at(0), at(1_000), [30]), at(0), "the limit has passed");
    }
}
