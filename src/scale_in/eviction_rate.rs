//! How many evictions go out a second over all nodes (`--eviction-qps`), and how many are under way at once, shared out fairly between
//! them.
//!
//! Nodes that wait take turns, one eviction each: a node with hundreds of pods keeps none with a single pod waiting. A
//! node asks when it plans; nothing waits inside a call, so that a deadline finds no eviction in its way. Deletions at
//! deadlines, and pods whose last call has come, do not ask.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::clock::{later, signed};
use crate::k8s::NodeName;

/// How far behind its schedule the rate may be and still catch up: a worker wakes up to 20 ms after its moment.
const CATCH_UP: SignedDuration = SignedDuration::from_millis(100);

/// The first in the queue loses its place after this long without an eviction: its worker may have panicked.
const PLACE_LOST_AFTER: SignedDuration = SignedDuration::from_secs(1);

/// Upper limit of paced evictions under way. Each takes a connection of its own (`kube` speaks HTTP/1.1), and one of the 200 requests that
/// change something which an API server does at once for all its clients by default (`--max-mutating-requests-inflight`).
pub(super) const AT_ONCE: usize = 50;

/// Evictions per time and at once.
#[derive(Debug)]
pub struct EvictionRate {
    /// Between two evictions; `None`: no limit.
    pause: Option<SignedDuration>,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// When the next eviction may go.
    next: Timestamp,
    /// Since when the first of `waiting` has been the first.
    first_since: Timestamp,
    /// Nodes that wait. Who has evicted a pod goes to the end.
    waiting: VecDeque<(NodeName, Arc<Notify>)>,
    /// Evictions without an answer.
    under_way: usize,
}

/// An eviction under way, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Mutex<Queue>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.under_way -= 1;
        if queue.under_way < AT_ONCE {
            queue.tell_first();
        }
    }
}

/// Whether an eviction may go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Yes; it has been counted.
    Granted,
    /// Not before this moment; the node is told when it is the first sooner.
    Wait(Timestamp),
}

impl EvictionRate {
    /// One eviction every `pause`; `None`: as many as there are.
    pub fn new(pause: Option<Duration>) -> Self {
        Self { pause: pause.map(signed), queue: Arc::default() }
    }

    /// Begins an eviction, permitted or not.
    pub(super) fn begin(&self) -> UnderWay {
        self.queue().under_way += 1;
        UnderWay(Arc::clone(&self.queue))
    }

    /// Asks for one eviction on a node. `told` wakes its worker; `granted`: permits that it has not used yet.
    pub(super) fn ask(&self, node: &NodeName, told: &Arc<Notify>, granted: usize, now: Timestamp) -> Permit {
        let mut queue = self.queue();
        let is_full = queue.under_way + granted >= AT_ONCE;
        if self.pause.is_none() && !is_full && queue.waiting.is_empty() {
            return Permit::Granted;
        }
        let unused_since = queue.first_since.max(queue.next);
        if later(unused_since, PLACE_LOST_AFTER) < now
            && queue.waiting.front().is_some_and(|(first, _)| first != node)
        {
            queue.waiting.pop_front();
            queue.first_since = now;
        }
        if !queue.waiting.iter().any(|(waiting, _)| waiting == node) {
            if queue.waiting.is_empty() {
                queue.first_since = now;
            }
            queue.waiting.push_back((node.clone(), Arc::clone(told)));
        }
        let is_first = queue.waiting.front().is_some_and(|(first, _)| first == node);
        if !is_first || is_full {
            return Permit::Wait(later(queue.next.max(now), PLACE_LOST_AFTER));
        }
        if queue.next > now {
            return Permit::Wait(queue.next);
        }
        if let Some(pause) = self.pause {
            queue.next = later(queue.next.max(later(now, -CATCH_UP)), pause);
        }
        queue.first_since = now;
        queue.waiting.rotate_left(1);
        // Else the next call to end wakes the first.
        if self.pause.is_some() || queue.under_way + granted + 1 < AT_ONCE {
            queue.tell_first();
        }
        Permit::Granted
    }

    /// Takes a node out of the queue: it wants no eviction now.
    pub(super) fn leave(&self, node: &NodeName) {
        let mut queue = self.queue();
        let Some(place) = queue.waiting.iter().position(|(waiting, _)| waiting == node) else { return };
        queue.waiting.remove(place);
        if place == 0 {
            queue.tell_first();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Queue {
    fn tell_first(&self) {
        if let Some((_, told)) = self.waiting.front() {
            told.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::FutureExt as _;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).expect("in range")
    }

    /// Has nodes with so many pods ask every 10 ms, in the order of their names. Returns when each was evicted, and where.
    fn evicted(rate: &EvictionRate, pods: &[(&str, usize)], silent: &str) -> Vec<(i64, NodeName)> {
        let mut left: BTreeMap<NodeName, usize> = pods.iter().map(|&(node, n)| (node.into(), n)).collect();
        let told = Arc::new(Notify::new());
        let mut all = Vec::new();
        for millis in (0..60_000).step_by(10) {
            for (node, left) in &mut left {
                while *left > 0 && rate.ask(node, &told, 0, at(millis)) == Permit::Granted {
                    *left -= 1;
                    all.push((millis, node.clone()));
                }
                if *left == 0 {
                    rate.leave(node);
                }
            }
            left.retain(|node, left| *left > 0 && *node != silent);
        }
        all
    }

    #[test]
    fn nodes_take_turns_however_many_pods_each_has() {
        let rate = EvictionRate::new(Some(Duration::from_millis(500)));
        let all = evicted(&rate, &[("a", 30), ("b", 1), ("c", 5)], "");
        // Nobody else had asked when a's second turn came up.
        let first: Vec<_> = all.iter().take(7).map(|(_, node)| node.as_str()).collect();
        assert_eq!(first, ["a", "a", "b", "c", "a", "c", "a"]);
        assert_eq!(all.len(), 36);
        let took = all[35].0 - all[0].0;
        assert!((17_300..=17_600).contains(&took), "{took} ms for 35 pauses of 500 ms");
    }

    #[test]
    fn a_node_that_does_not_use_its_turn_keeps_nobody_waiting_for_long() {
        let rate = EvictionRate::new(Some(Duration::from_millis(100)));
        let all = evicted(&rate, &[("a", 30), ("b", 5)], "a");
        assert_eq!(all.iter().filter(|(_, node)| *node == "b").count(), 5, "{all:?}");
        assert!(all.last().expect("some").0 < 3_000, "{all:?}");
    }

    #[test]
    fn a_high_rate_makes_up_for_late_timers_and_none_is_no_limit() {
        let rate = EvictionRate::new(Some(Duration::from_millis(1)));
        let all = evicted(&rate, &[("a", 1_000)], "");
        let took = all[999].0;
        assert!((880..=1_000).contains(&took), "{took} ms");
        let all = evicted(&EvictionRate::new(None), &[("a", 1_000)], "");
        assert_eq!(all[999].0, 0);
    }

    #[test]
    fn fifty_are_under_way_at_once_and_nodes_take_turns_with_what_gets_free() {
        let rate = EvictionRate::new(None);
        let (big, small) = (NodeName::from("big"), NodeName::from("small"));
        let [to_big, to_small] = [(); 2].map(|()| Arc::new(Notify::new()));
        let is_told = |told: &Notify| told.notified().now_or_never().is_some();
        let mut granted = 0;
        while rate.ask(&big, &to_big, granted, at(0)) == Permit::Granted {
            granted += 1;
        }
        assert_eq!(granted, AT_ONCE);
        let mut under_way: Vec<_> = (0..granted).map(|_| rate.begin()).collect();
        assert_eq!(rate.ask(&small, &to_small, 0, at(0)), Permit::Wait(at(1_000)));
        // A pod whose last call has come does not ask.
        under_way.push(rate.begin());
        under_way.pop();
        assert!(!is_told(&to_big), "no place is free yet");
        under_way.pop();
        assert!(is_told(&to_big));
        assert_eq!(rate.ask(&big, &to_big, 0, at(10)), Permit::Granted);
        under_way.push(rate.begin());
        assert!(matches!(rate.ask(&big, &to_big, 0, at(10)), Permit::Wait(_)));
        under_way.pop();
        assert!(is_told(&to_small), "the next place is another node's");
        assert_eq!(rate.ask(&small, &to_small, 0, at(20)), Permit::Granted);
        under_way.push(rate.begin());
        // It wants no more.
        rate.leave(&small);
        under_way.clear();
        assert!(is_told(&to_big));
        assert_eq!(rate.ask(&big, &to_big, 0, at(30)), Permit::Granted);
    }
}
