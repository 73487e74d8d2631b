//! How long things take in the simulated AWS; the seed draws each between two bounds.

use crate::sim::span::Span;

/// How long each step of a group's activities takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the decision to launch to the instance in `Pending`.
    pub launch: Span,
    /// From the start of a failing launch to its failure; its activity is in progress meanwhile.
    pub failure: Span,
    /// From `Pending` to the first launching hook, or to `InService` without one.
    pub boot: Span,
    /// From `Terminating` to `Terminating:Wait`, without load balancers.
    pub deregister: Span,
    /// From a hook's wait state to when the lifecycle action can be completed.
    pub action: Span,
    /// From the machine's shutdown to `terminated`, when its group stops listing it.
    pub terminating: Span,
    /// From a failed launch to the next attempt, at least 1 s.
    pub retry: Span,
    /// From a lower desired capacity to the choice of a victim, and from an imbalance to a rebalance.
    pub scale_in: Span,
    /// From the last hook to an instance being stopped in the warm pool.
    pub stop: Span,
    /// From the last hook to a root volume being replaced, and as long again to `InService`.
    pub volume: Span,
}

impl Timing {
    /// Right order of magnitude, quick, always the same: for scenarios that people follow.
    pub const QUICK: Self = Self {
        launch: Span::seconds(2, 2),
        failure: Span::NONE,
        boot: Span::seconds(20, 20),
        deregister: Span::NONE,
        action: Span::NONE,
        terminating: Span::seconds(15, 15),
        retry: Span::seconds(30, 30),
        // https://github.com/kubernetes/autoscaler/issues/10147: 20:16:05 to 20:16:25.
        scale_in: Span::seconds(20, 20),
        stop: Span::seconds(10, 10),
        volume: Span::seconds(20, 20),
    };

    /// Between published bounds; the rest is marked as guessed.
    pub const PUBLISHED: Self = Self {
        // Observed: 2 to 3 s from the decision to the instance, 5 s from there to InService, for the smallest types
        // (<https://github.com/radkawar/stackd>, testdata/aws/autoscaling); guessed: ten times that.
        launch: Span::seconds(2, 20),
        failure: Span::NONE,
        boot: Span::seconds(5, 50),
        // Observed: within 8 s without a load balancer (same source, retention_decrement_native.json).
        deregister: Span::seconds(0, 8),
        // Observed: "No active Lifecycle Action found" right after Terminating:Wait, and success on a later try, every 5 s
        // (<https://github.com/PrairieLearn/PrairieLearn/pull/15586>). Guessed: two such tries.
        action: Span::seconds(0, 10),
        // <https://github.com/aws/karpenter-provider-aws/issues/7019>
        terminating: Span::seconds(30, 600),
        retry: Span::seconds(30, 120),
        // 15 s: <https://github.com/kubernetes/autoscaler/issues/9182>; 20 s:
        // <https://github.com/kubernetes/autoscaler/issues/10147>; 91 s:
        // <https://github.com/hjacobs/kube-aws-autoscaler/issues/7>.
        scale_in: Span::seconds(15, 91),
        stop: Span::seconds(10, 60),
        volume: Span::seconds(20, 300),
    };
}

impl Default for Timing {
    fn default() -> Self {
        Self::QUICK
    }
}
