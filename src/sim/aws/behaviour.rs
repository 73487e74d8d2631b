//! How the simulated AWS behaves where AWS's documents leave room: harsh as the worst that is documented or was seen, or
//! plain, so that people can follow what happens.

use super::timing::Timing;

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
}

impl Behaviour {
    /// Quick, always the same, and nothing that a reader of the documents would not expect.
    pub const PLAIN: Self =
        Self { timing: Timing::QUICK, recalls_launches: true, standby_decrements: false, rebalances: false };

    /// As harsh as the real thing can be.
    pub const HARSH: Self = Self {
        timing: Timing::PUBLISHED,
        recalls_launches: false,
        standby_decrements: true,
        rebalances: true,
    };
}
