//! How long things take in a cluster, each drawn from the seed between what has been published.
//!
//! [`Timing::real`] is what whole programs are tested in. [`Timing::brisk`] is for scenes that want to get on and for
//! tests of one rule: what takes no time of interest takes none, and what must take some takes the same in every run.

use std::time::Duration;

/// A span of time to draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    least: Duration,
    most: Duration,
    rarely: Duration,
}

/// One draw in this many is from the tail of a [`Span`].
const RARELY: u32 = 100;

impl Span {
    /// No time at all.
    pub const NONE: Self = Self::exactly(Duration::ZERO);

    /// Always the same.
    pub const fn exactly(time: Duration) -> Self {
        Self::between(time, time)
    }

    /// Anything between these two.
    pub const fn between(least: Duration, most: Duration) -> Self {
        Self { least, most, rarely: most }
    }

    /// Anything between so many milliseconds and so many.
    pub const fn millis(least: u64, most: u64) -> Self {
        Self::between(Duration::from_millis(least), Duration::from_millis(most))
    }

    /// Anything between so many seconds and so many.
    pub const fn seconds(least: u64, most: u64) -> Self {
        Self::between(Duration::from_secs(least), Duration::from_secs(most))
    }

    /// The same, and once in a hundred times up to `most`.
    #[must_use]
    pub const fn rarely(self, most: Duration) -> Self {
        Self { rarely: most, ..self }
    }

    /// A time, to the millisecond. What is always the same moves no dice.
    pub(super) fn draw(self, dice: &mut fastrand::Rng) -> Duration {
        if self.least == self.rarely {
            return self.least;
        }
        let tail = self.most < self.rarely && dice.u32(0..RARELY) == 0;
        let (from, to) = if tail { (self.most, self.rarely) } else { (self.least, self.most) };
        let millis = |time: Duration| time.as_millis() as u64;
        Duration::from_millis(dice.u64(millis(from)..=millis(to)))
    }
}

/// How long things take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// From a client to the effect of its request, and back. Kubernetes promises an answer within a second to 99 of 100
    /// requests for single objects; most take milliseconds.
    /// <https://github.com/kubernetes/community/blob/master/sig-scalability/slos/api_call_latency.md>
    pub request: Span,
    /// From the effect of a request to its answer.
    pub answer: Span,
    /// From a write to its line in a watch; each watch has its own, so that they are not ordered among each other.
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#the-resourceversion-parameter>
    pub watch_lag: Span,
    /// From a container's exit to the kubelet's noticing: it looks at its containers once a second.
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/pleg/generic.go>
    pub exit_noticed: Span,
    /// From there to the end of the pod object: volumes are unmounted, the sandbox is torn down, the status is sent.
    pub unmount: Span,
    /// From the last that was heard of a kubelet to the condition Ready being Unknown: `--node-monitor-grace-period` is
    /// 50 s, a lease is renewed every 10 s and looked at every 5 s.
    /// <https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/>
    pub unheard: Span,
    /// Whether the cloud controller looks only at instances whose Node is not Ready, as the real one does. Otherwise a
    /// Node goes soon after its instance.
    /// <https://github.com/kubernetes/cloud-provider/blob/master/controllers/nodelifecycle/node_lifecycle_controller.go>
    pub cloud_waits_for_not_ready: bool,
    /// From the moment that the cloud controller could know to its deleting the Node: it looks every 5 s.
    pub cloud_controller: Span,
    /// From the end of a Node object to that of its pods: the collector looks every 20 s, and keeps Nodes that it misses in
    /// quarantine for 40 s.
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/podgc/gc_controller.go>
    pub pod_collection: Span,
}

impl Timing {
    /// As real clusters have it.
    pub const fn real() -> Self {
        Self {
            request: Span::millis(1, 10).rarely(Duration::from_millis(500)),
            answer: Span::millis(1, 10).rarely(Duration::from_millis(500)),
            watch_lag: Span::millis(1, 50).rarely(Duration::from_secs(1)),
            exit_noticed: Span::seconds(0, 1),
            unmount: Span::millis(100, 2_000),
            unheard: Span::seconds(40, 60),
            cloud_waits_for_not_ready: true,
            cloud_controller: Span::seconds(0, 5),
            pod_collection: Span::seconds(40, 60),
        }
    }

    /// Quick, and the same in every run.
    pub const fn brisk() -> Self {
        Self {
            request: Span::NONE,
            answer: Span::NONE,
            watch_lag: Span::NONE,
            exit_noticed: Span::NONE,
            unmount: Span::millis(100, 100),
            unheard: Span::seconds(50, 50),
            cloud_waits_for_not_ready: false,
            cloud_controller: Span::seconds(5, 5),
            pod_collection: Span::seconds(2, 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn draws_stay_in_their_span_and_once_in_a_while_in_its_tail() {
        let span = Span::between(seconds(1), seconds(2)).rarely(seconds(9));
        let mut dice = fastrand::Rng::with_seed(1);
        let draws: Vec<Duration> = (0..2_000).map(|_| span.draw(&mut dice)).collect();
        assert!(draws.iter().all(|draw| (seconds(1)..=seconds(9)).contains(draw)));
        let rare = draws.iter().filter(|draw| **draw > seconds(2)).count();
        assert!((5..60).contains(&rare), "{rare}");
    }

    #[test]
    fn what_is_always_the_same_moves_no_dice() {
        let mut dice = fastrand::Rng::with_seed(1);
        assert_eq!(Span::exactly(seconds(3)).draw(&mut dice), seconds(3));
        assert_eq!(dice, fastrand::Rng::with_seed(1));
    }
}
