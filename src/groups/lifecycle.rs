//! Where an instance is in its life in the group.

/// The lifecycle states of an instance in an Auto Scaling group, as far as they matter to a node.
///
/// Source: [Amazon EC2 Auto Scaling instance
/// lifecycle](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// `Pending`, `Pending:Wait`, `Pending:Proceed`: on its way in.
    Pending,
    /// `InService`.
    InService,
    /// `Terminating`: the group has begun to take it out.
    Terminating,
    /// `Terminating:Wait`: a lifecycle hook holds it.
    TerminatingWait,
    /// `Terminating:Proceed` and `Terminated`: the hooks are done with it.
    TerminatingProceed,
    /// `EnteringStandby`, `Standby`: still running, not counted in the desired capacity.
    Standby,
    /// `Detaching`, `Detached`: runs on, outside the group.
    Detaching,
    /// `Warmed:*`: part of a warm pool, never a node.
    Warmed,
    /// A state this program does not know (`Quarantined`, or one AWS added later): treated as in service, so that
    /// it is neither counted as missing nor taken for gone.
    Unknown,
}

impl Lifecycle {
    /// Reads AWS's spelling.
    pub fn parse(text: &str) -> Self {
        match text {
            "Pending" | "Pending:Wait" | "Pending:Proceed" => Self::Pending,
            "InService" => Self::InService,
            "Terminating" => Self::Terminating,
            "Terminating:Wait" => Self::TerminatingWait,
            "Terminating:Proceed" | "Terminated" => Self::TerminatingProceed,
            "EnteringStandby" | "Standby" => Self::Standby,
            "Detaching" | "Detached" => Self::Detaching,
            warm if warm.starts_with("Warmed:") => Self::Warmed,
            _ => Self::Unknown,
        }
    }

    /// Whether the group's desired capacity counts the instance.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::InService | Self::Unknown)
    }

    /// Whether the group is taking the instance out.
    pub fn is_terminating(self) -> bool {
        matches!(self, Self::Terminating | Self::TerminatingWait | Self::TerminatingProceed)
    }

    /// Whether the instance is, was or will be a node while in this state.
    pub fn is_node(self) -> bool {
        !matches!(self, Self::Warmed | Self::Detaching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_state_is_told_apart() {
        let table = [
            ("Pending:Wait", Lifecycle::Pending, true, false, true),
            ("InService", Lifecycle::InService, true, false, true),
            ("Terminating", Lifecycle::Terminating, false, true, true),
            ("Terminating:Wait", Lifecycle::TerminatingWait, false, true, true),
            ("Terminating:Proceed", Lifecycle::TerminatingProceed, false, true, true),
            ("Standby", Lifecycle::Standby, false, false, true),
            ("Detached", Lifecycle::Detaching, false, false, false),
            ("Warmed:Stopped", Lifecycle::Warmed, false, false, false),
            ("Warmed:Pending:Wait", Lifecycle::Warmed, false, false, false),
            ("Quarantined", Lifecycle::Unknown, true, false, true),
        ];
        for (text, state, live, terminating, node) in table {
            let read = Lifecycle::parse(text);
            assert_eq!(
                (read, read.is_live(), read.is_terminating(), read.is_node()),
                (state, live, terminating, node),
                "{text}"
            );
        }
    }
}
