//! How the simulated AWS behaves where AWS's documents leave room: harsh as the worst that is documented or was seen, or
//! plain, so that people can follow what happens.

use std::time::Duration;

use super::bucket::Bucket;
use super::timing::Timing;
use crate::sim::span::Span;

/// What AWS does where its documents leave room. Whatever has no switch here is always as harsh as it is documented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Behaviour {
    /// How long groups take for what they do, unless a group has times of its own.
    pub timing: Timing,
    /// Whether a smaller desired capacity recalls launches that are under way. Harsh: it does not; the instances come, and
    /// the group then looks for as many victims.
    ///
    /// <https://github.com/kubernetes/autoscaler/issues/10147>
    pub recalls_launches: bool,
    /// Whether terminating an instance in `Standby`, which the desired capacity does not count, lowers that all the same
    /// if asked to. Harsh: it does, and a healthy instance goes. AWS does not say.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html>
    pub standby_decrements: bool,
    /// Whether groups bring their zones into balance by themselves: first the new instance, over the maximum if need be,
    /// then the old one goes. Harsh: they do.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html>, rebalancing activities
    pub rebalances: bool,
    /// From a caller to AWS, and from there back. Guessed: AWS says nothing of it; a page of a hundred groups takes seconds.
    pub way: Span,
    /// How old the state may be that a description shows. AWS promises no more than that it is the present one in the end,
    /// and tells callers to begin with a wait of seconds. What was read once may be older the next time.
    ///
    /// <https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html>,
    /// <https://github.com/hashicorp/terraform-provider-aws/issues/7819>
    pub stale: Span,
    /// The share of descriptions that leave out one group or instance: pages are not of one moment. Inferred.
    pub gaps: f64,
    /// What all callers of Auto Scaling together may use; none if that is no matter. AWS does not publish it. Harsh: what EC2
    /// has for its own read-only calls.
    ///
    /// <https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html>
    pub bucket: Option<Bucket>,
}

impl Behaviour {
    /// Quick, always the same, and nothing that a reader of the documents would not expect.
    pub const PLAIN: Self = Self {
        timing: Timing::QUICK,
        recalls_launches: true,
        standby_decrements: false,
        rebalances: false,
        way: Span::NONE,
        stale: Span::NONE,
        gaps: 0.0,
        bucket: None,
    };

    /// As harsh as the real thing can be.
    pub const HARSH: Self = Self {
        timing: Timing::PUBLISHED,
        recalls_launches: false,
        standby_decrements: true,
        rebalances: true,
        way: Span::millis(10, 150).rarely(Duration::from_secs(2)),
        stale: Span::millis(0, 1_000).rarely(Duration::from_secs(20)),
        gaps: 0.005,
        bucket: Some(Bucket { size: 100, per_second: 20.0 }),
    };
}
