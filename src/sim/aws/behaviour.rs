//! How the simulated AWS behaves where AWS's documents leave room: harsh (the worst that is documented or was observed) or
//! plain (easy to follow).

use std::time::Duration;

use super::bucket::Bucket;
use super::events::Delivery;
use super::timing::Timing;
use crate::sim::span::Span;

/// The choices that AWS's documents leave open. Whatever has no switch here is always as harsh as documented.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Behaviour {
    /// How long groups' activities take, unless a group has its own timing.
    pub timing: Timing,
    /// Whether a lower desired capacity cancels launches under way. Harsh: no; the instances come, and the group then
    /// terminates as many.
    ///
    /// <https://github.com/kubernetes/autoscaler/issues/10147>
    pub recalls_launches: bool,
    /// Whether a try that fails is one activity, however many instances it was for; otherwise each has one, with the same cause. What
    /// comes has one each in either case. AWS documents neither; the first was seen.
    ///
    /// <https://github.com/aws/aws-parallelcluster/issues/1944>: one for "from 0 to 2"
    pub fails_at_once: bool,
    /// Whether terminating an instance in `Standby` with a decrement lowers the desired capacity, although it does not
    /// count. Harsh: yes, at the cost of a healthy instance. AWS does not say.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html>
    pub standby_decrements: bool,
    /// Whether groups rebalance their zones by themselves: the new instance comes first, above the maximum if need be.
    /// Harsh: yes.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html>, rebalancing activities
    pub rebalances: bool,
    /// Time from a caller to AWS, and back. Guessed, as AWS does not say; a page of a hundred groups takes seconds.
    pub way: Span,
    /// How old the state in a description may be. AWS promises eventual consistency only. A later read may show an older
    /// state.
    ///
    /// <https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html>,
    /// <https://github.com/hashicorp/terraform-provider-aws/issues/7819>
    pub stale: Span,
    /// Share of descriptions that leave out one group or instance, as pages are read at different moments. Inferred.
    pub gaps: f64,
    /// Rate limit for all callers of Auto Scaling together; `None`: no limit. AWS publishes none. Harsh: that of EC2's
    /// read-only calls.
    ///
    /// <https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html>
    pub bucket: Option<Bucket>,
    /// How events and messages come.
    pub delivery: Delivery,
}

impl Behaviour {
    /// Quick, always the same, without surprises for a reader of AWS's documents.
    pub const PLAIN: Self = Self {
        timing: Timing::QUICK,
        recalls_launches: true,
        fails_at_once: true,
        standby_decrements: false,
        rebalances: false,
        way: Span::NONE,
        stale: Span::NONE,
        gaps: 0.0,
        bucket: None,
        delivery: Delivery::PLAIN,
    };

    /// As harsh as AWS can be.
    pub const HARSH: Self = Self {
        timing: Timing::PUBLISHED,
        recalls_launches: false,
        fails_at_once: true,
        standby_decrements: true,
        rebalances: true,
        way: Span::millis(10, 150).rarely(Duration::from_secs(2)),
        stale: Span::millis(0, 1_000).rarely(Duration::from_secs(45)),
        gaps: 0.005,
        bucket: Some(Bucket { size: 100, per_second: 20.0 }),
        delivery: Delivery::HARSH,
    };
}
