//! An instance's lifecycle: states, transitions, hooks, results.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html>

use std::fmt;
use std::time::Duration;

macro_rules! states {
    ($($state:ident = $name:literal,)*) => {
        /// An instance's lifecycle state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "AWS documents them under these names")]
        pub enum LifecycleState { $($state,)* }

        impl LifecycleState {
            /// AWS's name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$state => $name,)* }
            }
        }
    };
}

states! {
    Pending = "Pending",
    PendingWait = "Pending:Wait",
    PendingProceed = "Pending:Proceed",
    InService = "InService",
    Terminating = "Terminating",
    TerminatingWait = "Terminating:Wait",
    TerminatingProceed = "Terminating:Proceed",
    TerminatingRetained = "Terminating:Retained",
    Terminated = "Terminated",
    EnteringStandby = "EnteringStandby",
    Standby = "Standby",
    Detaching = "Detaching",
    Detached = "Detached",
    Quarantined = "Quarantined",
    ReplacingRootVolume = "ReplacingRootVolume",
    ReplacingRootVolumeWait = "ReplacingRootVolume:Wait",
    ReplacingRootVolumeProceed = "ReplacingRootVolume:Proceed",
    RootVolumeReplaced = "RootVolumeReplaced",
    WarmedPending = "Warmed:Pending",
    WarmedPendingWait = "Warmed:Pending:Wait",
    WarmedPendingProceed = "Warmed:Pending:Proceed",
    WarmedPendingRetained = "Warmed:Pending:Retained",
    WarmedRunning = "Warmed:Running",
    WarmedStopped = "Warmed:Stopped",
    WarmedHibernated = "Warmed:Hibernated",
    WarmedTerminating = "Warmed:Terminating",
    WarmedTerminatingWait = "Warmed:Terminating:Wait",
    WarmedTerminatingProceed = "Warmed:Terminating:Proceed",
    WarmedTerminatingRetained = "Warmed:Terminating:Retained",
    WarmedTerminated = "Warmed:Terminated",
}

impl LifecycleState {
    /// Whether an instance in this state counts towards the desired capacity. One whose root volume is being replaced does:
    /// nothing is launched in its place.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/replace-root-volume.html>
    pub fn counts(self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::PendingWait
                | Self::PendingProceed
                | Self::InService
                | Self::ReplacingRootVolume
                | Self::ReplacingRootVolumeWait
                | Self::ReplacingRootVolumeProceed
                | Self::RootVolumeReplaced
        )
    }

    /// Whether the instance is on its way out: only time and hooks decide when it is gone.
    pub fn is_terminating(self) -> bool {
        matches!(
            self,
            Self::Terminating
                | Self::TerminatingWait
                | Self::TerminatingProceed
                | Self::Terminated
                | Self::WarmedTerminating
                | Self::WarmedTerminatingWait
                | Self::WarmedTerminatingProceed
                | Self::WarmedTerminated
        )
    }

    /// Whether the instance is retained for inspection because its terminating hook was abandoned.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/manage-retained-instances.html>
    pub fn is_retained(self) -> bool {
        matches!(
            self,
            Self::TerminatingRetained | Self::WarmedPendingRetained | Self::WarmedTerminatingRetained
        )
    }

    /// Whether the instance is in the warm pool, entering it, or leaving it for anywhere but the group.
    pub fn is_warm(self) -> bool {
        self.name().starts_with("Warmed:")
    }

    /// Whether a hook holds the instance.
    pub fn is_waiting(self) -> bool {
        self.name().ends_with(":Wait")
    }

    /// The state in which hooks hold an instance that comes from this state.
    pub(super) fn waiting(self) -> Option<Self> {
        match self {
            Self::Pending => Some(Self::PendingWait),
            Self::Terminating => Some(Self::TerminatingWait),
            Self::ReplacingRootVolume => Some(Self::ReplacingRootVolumeWait),
            Self::WarmedPending => Some(Self::WarmedPendingWait),
            Self::WarmedTerminating => Some(Self::WarmedTerminatingWait),
            _ => None,
        }
    }

    /// The state after this one if its terminating hook is abandoned and the group retains such instances.
    pub(super) fn retained(self) -> Option<Self> {
        match self {
            Self::TerminatingWait => Some(Self::TerminatingRetained),
            Self::WarmedPendingWait => Some(Self::WarmedPendingRetained),
            Self::WarmedTerminatingWait => Some(Self::WarmedTerminatingRetained),
            _ => None,
        }
    }
}

impl fmt::Display for LifecycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The transition that a hook holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// `autoscaling:EC2_INSTANCE_LAUNCHING`.
    Launching,
    /// `autoscaling:EC2_INSTANCE_TERMINATING`.
    Terminating,
}

impl Transition {
    /// AWS's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launching => "autoscaling:EC2_INSTANCE_LAUNCHING",
            Self::Terminating => "autoscaling:EC2_INSTANCE_TERMINATING",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Launching, Self::Terminating].into_iter().find(|transition| transition.name() == name)
    }
}

/// What a hook is completed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookResult {
    /// `CONTINUE`.
    Continue,
    /// `ABANDON`.
    Abandon,
}

impl HookResult {
    /// AWS's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continue => "CONTINUE",
            Self::Abandon => "ABANDON",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Continue, Self::Abandon].into_iter().find(|result| result.name() == name)
    }
}

/// Heartbeat time-out: allowed range, and the default.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html>
pub(super) const HEARTBEAT_SECONDS: std::ops::RangeInclusive<u64> = 30..=7200;
const DEFAULT_HEARTBEAT: Duration = Duration::from_hours(1);

/// Global limit of a wait; 100 heartbeat time-outs if that is less.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html>, GlobalTimeout
const LONGEST_WAIT: Duration = Duration::from_hours(48);
const MOST_HEARTBEATS: u32 = 100;

/// A lifecycle hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookSpec {
    pub(super) name: String,
    pub(super) transition: Transition,
    pub(super) heartbeat: Duration,
    pub(super) longest: Duration,
    pub(super) default: HookResult,
    pub(super) metadata: Option<String>,
}

impl HookSpec {
    /// A hook that holds instances on their way out.
    pub fn terminating(name: impl Into<String>) -> Self {
        Self::new(name, Transition::Terminating)
    }

    /// A hook that holds instances on their way in.
    pub fn launching(name: impl Into<String>) -> Self {
        Self::new(name, Transition::Launching)
    }

    pub(super) fn new(name: impl Into<String>, transition: Transition) -> Self {
        Self {
            name: name.into(),
            transition,
            heartbeat: DEFAULT_HEARTBEAT,
            longest: LONGEST_WAIT,
            default: HookResult::Abandon,
            metadata: None,
        }
    }

    /// The heartbeat time-out in seconds, 3600 by default, at least 1. AWS's limits are not enforced, so that tests can be
    /// short.
    #[must_use]
    pub fn heartbeat(mut self, seconds: u64) -> Self {
        self.heartbeat = Duration::from_secs(seconds);
        self
    }

    /// Holds nothing for longer than this many seconds, which AWS's rule would allow.
    #[must_use]
    pub fn at_most(mut self, seconds: u64) -> Self {
        self.longest = Duration::from_secs(seconds);
        self
    }

    /// What counts when it times out; `ABANDON` by default.
    #[must_use]
    pub fn by_default(mut self, result: HookResult) -> Self {
        self.default = result;
        self
    }

    pub(super) fn global_timeout(&self) -> Duration {
        self.longest.min(self.heartbeat * MOST_HEARTBEATS)
    }
}
