//! Lifecycle states of an instance in its group.

/// The lifecycle states of an instance in an Auto Scaling group, as far as they matter to a node.
///
/// Source: [Amazon EC2 Auto Scaling instance
/// lifecycle](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html), and the pages
/// named below. `docs/coming-from-in-tree.md` says what each means here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// `Pending`, `Pending:Wait`, `Pending:Proceed`: being launched.
    Pending,
    /// `InService`.
    InService,
    /// `ReplacingRootVolume`: the group replaces its root volume; it stays in the group.
    ///
    /// Source: [Replace root volumes](https://docs.aws.amazon.com/autoscaling/ec2/userguide/replace-root-volume.html).
    ReplacingVolume,
    /// `ReplacingRootVolume:Wait`: a terminating hook holds it before it restarts.
    ReplacingVolumeWait,
    /// `ReplacingRootVolume:Proceed`, `RootVolumeReplaced`: it restarts and returns to service.
    VolumeReplaced,
    /// `Terminating`: the group has begun to terminate it.
    Terminating,
    /// `Terminating:Wait`: a lifecycle hook holds it.
    TerminatingWait,
    /// `Terminating:Proceed` and `Terminated`: hooks are done.
    TerminatingProceed,
    /// `Terminating:Retained`: a hook was abandoned, and the group keeps such instances. No longer counted in the
    /// desired capacity; stays until terminated once more, without a decrement.
    ///
    /// Source: [Manage retained
    /// instances](https://docs.aws.amazon.com/autoscaling/ec2/userguide/manage-retained-instances.html).
    Retained,
    /// `EnteringStandby`, `Standby`: runs, but not counted in the desired capacity.
    Standby,
    /// `Detaching`, `Detached`: keeps running outside the group.
    Detaching,
    /// `Warmed:Pending`: entering the warm pool, newly launched or returned by the group.
    ///
    /// Source: [Use lifecycle hooks with a warm
    /// pool](https://docs.aws.amazon.com/autoscaling/ec2/userguide/warm-pool-instance-lifecycle.html).
    WarmPending,
    /// `Warmed:Pending:Wait`: the same, held by a hook; by a terminating one if the group returned it.
    WarmPendingWait,
    /// Any other `Warmed:…`: in the warm pool or leaving it; never a node.
    Warmed,
    /// An unknown state (`Quarantined`, or a newer one): treated as in service, so neither missing nor gone.
    #[default]
    Unknown,
}

impl Lifecycle {
    /// Parses AWS's spelling.
    pub fn parse(text: &str) -> Self {
        match text {
            "Pending" | "Pending:Wait" | "Pending:Proceed" => Self::Pending,
            "InService" => Self::InService,
            "ReplacingRootVolume" => Self::ReplacingVolume,
            "ReplacingRootVolume:Wait" => Self::ReplacingVolumeWait,
            "ReplacingRootVolume:Proceed" | "RootVolumeReplaced" => Self::VolumeReplaced,
            "Terminating" => Self::Terminating,
            "Terminating:Wait" => Self::TerminatingWait,
            "Terminating:Proceed" | "Terminated" => Self::TerminatingProceed,
            "Terminating:Retained" => Self::Retained,
            "EnteringStandby" | "Standby" => Self::Standby,
            "Detaching" | "Detached" => Self::Detaching,
            "Warmed:Pending" => Self::WarmPending,
            "Warmed:Pending:Wait" => Self::WarmPendingWait,
            warm if warm.starts_with("Warmed:") => Self::Warmed,
            _ => Self::Unknown,
        }
    }

    /// Whether it counts towards the desired capacity.
    pub fn is_live(self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::InService
                | Self::ReplacingVolume
                | Self::ReplacingVolumeWait
                | Self::VolumeReplaced
                | Self::Unknown
        )
    }

    /// Whether the group is terminating it already.
    pub fn is_terminating(self) -> bool {
        matches!(self, Self::Terminating | Self::TerminatingWait | Self::TerminatingProceed)
    }

    /// Whether it is terminating, or was retained: the desired capacity no longer counts it.
    pub fn is_leaving(self) -> bool {
        self.is_terminating() || self == Self::Retained
    }

    /// Whether a terminating hook may hold it: before termination, a root volume replacement or the warm pool.
    pub fn is_held(self) -> bool {
        matches!(self, Self::TerminatingWait | Self::ReplacingVolumeWait | Self::WarmPendingWait)
    }

    /// Whether it leaves this state soon or once a hook lets it, so that a poll is due. Instances being launched do not
    /// count: nobody needs to know sooner.
    pub fn is_in_transition(self) -> bool {
        self.is_terminating()
            || matches!(
                self,
                Self::ReplacingVolume
                    | Self::ReplacingVolumeWait
                    | Self::VolumeReplaced
                    | Self::WarmPending
                    | Self::WarmPendingWait
            )
    }

    /// Whether it is in the warm pool or entering it.
    pub fn is_warm(self) -> bool {
        matches!(self, Self::WarmPending | Self::WarmPendingWait | Self::Warmed)
    }

    /// Whether it is, was or will be a node. Standby and detached instances are not: cluster-autoscaler would see one
    /// node more than the group should have.
    pub fn is_node(self) -> bool {
        !self.is_warm() && !matches!(self, Self::Standby | Self::Detaching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The predicates that hold for a state: `live`, `terminating`, `leaving`, `held`, `warm`, `node`.
    fn traits(state: Lifecycle) -> String {
        let traits = [
            (state.is_live(), "live"),
            (state.is_terminating(), "terminating"),
            (state.is_leaving(), "leaving"),
            (state.is_held(), "held"),
            (state.is_warm(), "warm"),
            (state.is_node(), "node"),
        ];
        traits.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_state_that_aws_has_is_told_apart() {
        let table = [
            ("Pending", Lifecycle::Pending, "live node"),
            ("Pending:Wait", Lifecycle::Pending, "live node"),
            ("Pending:Proceed", Lifecycle::Pending, "live node"),
            ("InService", Lifecycle::InService, "live node"),
            ("ReplacingRootVolume", Lifecycle::ReplacingVolume, "live node"),
            ("ReplacingRootVolume:Wait", Lifecycle::ReplacingVolumeWait, "live held node"),
            ("ReplacingRootVolume:Proceed", Lifecycle::VolumeReplaced, "live node"),
            ("RootVolumeReplaced", Lifecycle::VolumeReplaced, "live node"),
            ("Terminating", Lifecycle::Terminating, "terminating leaving node"),
            ("Terminating:Wait", Lifecycle::TerminatingWait, "terminating leaving held node"),
            ("Terminating:Proceed", Lifecycle::TerminatingProceed, "terminating leaving node"),
            ("Terminated", Lifecycle::TerminatingProceed, "terminating leaving node"),
            ("Terminating:Retained", Lifecycle::Retained, "leaving node"),
            ("EnteringStandby", Lifecycle::Standby, ""),
            ("Standby", Lifecycle::Standby, ""),
            ("Detaching", Lifecycle::Detaching, ""),
            ("Detached", Lifecycle::Detaching, ""),
            ("Warmed:Pending", Lifecycle::WarmPending, "warm"),
            ("Warmed:Pending:Wait", Lifecycle::WarmPendingWait, "held warm"),
            ("Warmed:Pending:Proceed", Lifecycle::Warmed, "warm"),
            ("Warmed:Pending:Retained", Lifecycle::Warmed, "warm"),
            ("Warmed:Stopped", Lifecycle::Warmed, "warm"),
            ("Warmed:Running", Lifecycle::Warmed, "warm"),
            ("Warmed:Hibernated", Lifecycle::Warmed, "warm"),
            ("Warmed:Terminating", Lifecycle::Warmed, "warm"),
            ("Warmed:Terminating:Wait", Lifecycle::Warmed, "warm"),
            ("Warmed:Terminating:Proceed", Lifecycle::Warmed, "warm"),
            ("Warmed:Terminating:Retained", Lifecycle::Warmed, "warm"),
            ("Warmed:Terminated", Lifecycle::Warmed, "warm"),
            ("Quarantined", Lifecycle::Unknown, "live node"),
            ("SomethingNew", Lifecycle::Unknown, "live node"),
        ];
        for (text, state, expected) in table {
            assert_eq!(Lifecycle::parse(text), state, "{text}");
            assert_eq!(traits(state), expected, "{text}");
        }
        // All states the SDK knows.
        for known in aws_sdk_autoscaling::types::LifecycleState::values() {
            assert!(table.iter().any(|(text, ..)| text == known), "{known}");
        }
    }
}
