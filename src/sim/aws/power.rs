//! The machines under the instances: EC2's state, which knows nothing of groups and lifecycle hooks.
//!
//! A machine that shuts down is dead from that moment for everything on it; its group learns of it later.

use std::fmt;

use jiff::Timestamp;

use super::group::{Group, Instance};
use super::journal::Event;
use super::lifecycle::LifecycleState;
use super::state::Shared;

/// EC2's state of an instance.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html>
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "AWS documents them under these names")]
pub enum Power {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    Stopped,
}

impl Power {
    /// AWS's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopped => "stopped",
        }
    }

    /// AWS's number.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Pending => 0,
            Self::Running => 16,
            Self::ShuttingDown => 32,
            Self::Terminated => 48,
            Self::Stopped => 80,
        }
    }

    /// The state of the machine for a lifecycle state that a script sets.
    pub(super) fn implied(state: LifecycleState) -> Self {
        match state {
            LifecycleState::Pending | LifecycleState::WarmedPending => Self::Pending,
            LifecycleState::TerminatingProceed | LifecycleState::WarmedTerminatingProceed => {
                Self::ShuttingDown
            }
            LifecycleState::Terminated | LifecycleState::WarmedTerminated => Self::Terminated,
            LifecycleState::WarmedStopped | LifecycleState::WarmedHibernated => Self::Stopped,
            _ => Self::Running,
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a machine dies under an instance that its group or a hook still holds.
///
/// <https://github.com/npalm/terraform-aws-gitlab-runner/issues/1117>: held in `Terminating:Wait` until the hook times
/// out, dead all the while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// EC2 interrupts the Spot instance.
    Interrupted,
    /// Somebody stops it in EC2.
    Stopped,
    /// Its status checks fail; EC2 still calls it running.
    Impaired,
}

impl Instance {
    /// Changes the machine's state.
    pub(super) fn switch(&mut self, shared: &mut Shared, power: Power, at: Timestamp) {
        if std::mem::replace(&mut self.power, power) != power {
            let (group, instance) = (self.group.clone(), self.id.clone());
            shared.journal.record(at, Event::Powered { group, instance, power });
        }
    }
}

impl Group {
    /// The machine dies. The group replaces the instance if it counts towards the desired capacity.
    pub(super) fn kill(&mut self, shared: &mut Shared, id: &str, death: Death, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        match death {
            Death::Interrupted => instance.switch(shared, Power::Terminated, at),
            Death::Stopped => instance.switch(shared, Power::Stopped, at),
            Death::Impaired => {
                let (group, instance) = (instance.group.clone(), id.to_owned());
                shared.journal.record(at, Event::Impaired { group, instance });
            }
        }
        instance.healthy = false;
        self.settle(shared, at);
    }
}
