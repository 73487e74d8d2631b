//! A simulated group and its instances, as plain state. `launching`, `terminating`, `waiting`, `balance`, `warm`, `volumes`
//! and `deleting` change it.
//!
//! Invariants: an instance is in exactly one group; it has waits exactly while in a `…:Wait` state; `due` is set exactly
//! while time alone moves it on. Launches decided but without an instance count as capacity; instances on their way out do
//! not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::activity::Activity;
use super::balance::Refresh;
use super::journal::{Event, TerminationCause};
use super::launching::Failing;
use super::lifecycle::{HookResult, HookSpec, LifecycleState, Transition};
use super::power::Power;
use super::spec::{MixedSpec, Policies};
use super::state::Shared;
use super::timing::Timing;

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    /// The part of its ARN that no other group has.
    pub(super) uuid: String,
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) desired: u32,
    pub(super) zones: Vec<String>,
    pub(super) source: Source,
    pub(super) mixed: Option<MixedSpec>,
    /// Value, and whether instances get the tag too.
    pub(super) tags: BTreeMap<String, (String, bool)>,
    pub(super) hooks: BTreeMap<String, HookSpec>,
    pub(super) suspended: BTreeSet<String>,
    pub(super) protect_new: bool,
    pub(super) cooldown: Duration,
    pub(super) timing: Timing,
    pub(super) created: Timestamp,
    pub(super) instances: BTreeMap<String, Instance>,
    pub(super) launches: BTreeMap<u64, Launch>,
    pub(super) activities: BTreeMap<u64, Activity>,
    /// Launches made to fail.
    pub(super) failing: Option<Failing>,
    /// Launches still to fail after `Pending`.
    pub(super) failing_boots: u32,
    /// Instances that leave once their replacement is in service, and why.
    pub(super) replacing: BTreeMap<String, TerminationCause>,
    pub(super) refresh: Option<Refresh>,
    /// Who changed the desired capacity last, as worded in an activity's cause.
    pub(super) last_change: Option<String>,
    pub(super) last_activity_end: Option<Timestamp>,
    /// Whether the activity "all instances are protected" has been noted.
    pub(super) blocked: bool,
    /// When it chooses a victim after its desired capacity was lowered.
    pub(super) looks_at: Option<Timestamp>,
    /// When it rebalances its zones.
    pub(super) balances_at: Option<Timestamp>,
    pub(super) policies: Policies,
    /// Set while it is being deleted.
    pub(super) deleting: Option<Deleting>,
}

/// A group that is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deleting {
    /// It still has instances.
    Draining,
    /// It has none, and is gone at this moment.
    Until(Timestamp),
}

/// What instances are launched from; the named thing may be gone.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Template { id: String, name: String, version: String },
    Configuration(String),
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_field_names, reason = "an instance type is called that, and `type` is a keyword")]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) zone: String,
    pub(super) instance_type: String,
    /// Units of capacity, if the group has weights.
    pub(super) weight: Option<u32>,
    pub(super) image: String,
    pub(super) spot: bool,
    pub(super) origin: Origin,
    pub(super) address: [u8; 4],
    pub(super) tags: BTreeMap<String, String>,
    pub(super) launched: Timestamp,
    pub(super) state: LifecycleState,
    pub(super) healthy: bool,
    pub(super) protected: bool,
    pub(super) waits: Vec<Wait>,
    pub(super) due: Option<Timestamp>,
    pub(super) activity: u64,
    pub(super) replaces: Option<String>,
    /// The machine under it.
    pub(super) power: Power,
}

/// What an instance was launched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Template { id: String, name: String, version: usize },
    Configuration(String),
}

/// A launch that was decided but has no instance yet.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) zone: String,
    /// The type that a policy with weights chose, and its units.
    pub(super) weighed: Option<(String, u32)>,
    pub(super) due: Timestamp,
    pub(super) replaces: Option<String>,
    pub(super) cause: String,
    /// Whether it failed before, and waits for another try.
    pub(super) failed: bool,
    /// The try under way that will fail.
    pub(super) trying: Option<Try>,
    /// Whether it is for the warm pool.
    pub(super) warm: bool,
}

/// A try that fails, of one launch or of several.
#[derive(Clone, Debug)]
pub(super) struct Try {
    pub(super) activity: u64,
    pub(super) code: String,
    pub(super) message: String,
}

/// A hook that holds an instance.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) hook: String,
    pub(super) transition: Transition,
    pub(super) token: String,
    /// From when its action can be completed.
    pub(super) opens: Timestamp,
    pub(super) heartbeat: Duration,
    pub(super) expires: Timestamp,
    /// The latest time-out that heartbeats can reach.
    pub(super) limit: Timestamp,
    pub(super) default: HookResult,
}

impl Group {
    /// Whether `process` is suspended.
    pub(super) fn suspends(&self, process: &str) -> bool {
        self.suspended.contains(process)
    }

    /// Instances that count.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values().filter(|instance| instance.state.counts())
    }

    /// Units that the group has or is launching: instances, unless they have weights.
    pub(super) fn capacity(&self) -> usize {
        let launches: usize = self.launches.values().filter(|launch| !launch.warm).map(Launch::units).sum();
        self.counted().map(Instance::units).sum::<usize>() + launches
    }

    /// The units that it has, and with one more.
    pub(super) fn one_more(&self) -> (usize, usize) {
        (self.capacity(), self.capacity() + 1)
    }

    /// When time next changes something.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let launches = self.launches.values().map(|launch| launch.due);
        let instances = self.instances.values().filter_map(|instance| instance.due);
        let waits = self.instances.values().flat_map(|i| &i.waits).map(|wait| wait.expires);
        let gone = match self.deleting {
            Some(Deleting::Until(gone)) => Some(gone),
            _ => None,
        };
        let own = [self.looks_at, self.balances_at, gone].into_iter().flatten();
        launches.chain(instances).chain(waits).chain(own).min()
    }

    /// Does everything that is due at `at`.
    pub(super) fn advance(&mut self, shared: &mut Shared, at: Timestamp) {
        let launches = self.launches.iter().filter(|(_, launch)| launch.due <= at);
        for number in launches.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.attempt(shared, number, at);
        }
        let due = |instance: &&Instance| instance.due.is_some_and(|due| due <= at);
        let ids = self.instances.values().filter(due).map(|i| i.id.clone()).collect::<Vec<_>>();
        for id in ids {
            self.move_on(shared, &id, at);
        }
        self.expire_waits(shared, at);
        self.looks_at = self.looks_at.filter(|looks_at| *looks_at > at);
        if self.balances_at.is_some_and(|balances_at| balances_at <= at) {
            self.balances_at = None;
            self.balance_zones();
        }
        self.settle(shared, at);
    }

    fn move_on(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        instance.due = None;
        match instance.state {
            LifecycleState::Pending => self.boot(shared, id, at),
            LifecycleState::Terminating | LifecycleState::WarmedTerminating
                if instance.power != Power::ShuttingDown =>
            {
                self.leave(shared, id, at);
            }
            LifecycleState::Terminating
            | LifecycleState::TerminatingProceed
            | LifecycleState::WarmedTerminating
            | LifecycleState::WarmedTerminatingProceed => self.remove(shared, id, at),
            LifecycleState::WarmedPending => self.warm_up(shared, id, at),
            LifecycleState::WarmedPendingProceed => self.rest(shared, id, at),
            LifecycleState::ReplacingRootVolume => self.take_volume(shared, id, at),
            LifecycleState::ReplacingRootVolumeProceed => self.give_volume(shared, id, at),
            LifecycleState::RootVolumeReplaced => self.enter(shared, id, LifecycleState::InService, at),
            _ => {}
        }
    }

    /// Puts an instance into a state and records it.
    pub(super) fn enter(&mut self, shared: &mut Shared, id: &str, state: LifecycleState, at: Timestamp) {
        let Some(found) = self.instances.get_mut(id) else { return };
        found.state = state;
        let (group, instance) = (self.name.clone(), id.to_owned());
        shared.journal.record(at, Event::Entered { group, instance, state });
    }
}

/// `at` plus `duration`, or the end of time.
pub(super) fn after(at: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|d| at.checked_add(d).ok()).unwrap_or(Timestamp::MAX)
}

/// `at` minus `duration`, or the beginning of time.
pub(super) fn before(at: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|d| at.checked_sub(d).ok()).unwrap_or(Timestamp::MIN)
}

/// A group at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// Its name.
    pub name: String,
    /// Minimum size.
    pub min: u32,
    /// Maximum size.
    pub max: u32,
    /// Desired capacity.
    pub desired: u32,
    /// Launches decided but without an instance yet, including failing ones.
    pub launches: usize,
    /// All instances by id, including those on their way out.
    pub instances: Vec<InstanceSnapshot>,
}

impl GroupSnapshot {
    /// The ids of instances in `state`.
    pub fn in_state(&self, state: LifecycleState) -> Vec<&str> {
        self.instances.iter().filter(|i| i.state == state).map(|i| i.id.as_str()).collect()
    }
}

/// An instance at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceSnapshot {
    /// Its id.
    pub id: String,
    /// Its group.
    pub group: String,
    /// Its zone.
    pub zone: String,
    /// Its type.
    pub instance_type: String,
    /// Its lifecycle state.
    pub state: LifecycleState,
    /// Whether health checks pass.
    pub healthy: bool,
    /// Whether it is protected from scale-in.
    pub protected: bool,
    /// Whether it is a Spot instance.
    pub spot: bool,
    /// Its private IPv4 address; the private DNS name follows from it.
    pub address: [u8; 4],
    /// When it was launched.
    pub launched: Timestamp,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// The hooks that hold it, and when each times out.
    pub waits: BTreeMap<String, Timestamp>,
    /// EC2's state of its machine.
    pub power: Power,
}

impl InstanceSnapshot {
    /// Its private DNS name, `ip-10-0-1-2.ec2.internal`.
    pub fn private_dns_name(&self) -> String {
        private_dns_name(self.address)
    }
}

pub(super) fn private_dns_name([a, b, c, d]: [u8; 4]) -> String {
    format!("ip-{a}-{b}-{c}-{d}.ec2.internal")
}

impl Launch {
    /// Whether it is tried on its own, and not with others that the group misses.
    pub(super) fn is_alone(&self) -> bool {
        self.warm || self.replaces.is_some() || self.trying.is_some()
    }

    /// Units of the desired capacity that it will fill.
    pub(super) fn units(&self) -> usize {
        self.weighed.as_ref().map_or(1, |(_, weight)| *weight as usize)
    }
}

impl Instance {
    /// Units of the desired capacity that it fills.
    pub(super) fn units(&self) -> usize {
        self.weight.unwrap_or(1) as usize
    }

    /// Whether a scale-in of the group spares it. Protection takes effect with `InService`, whenever it was requested.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-protection.html>
    pub(super) fn is_protected(&self) -> bool {
        let is_new = matches!(
            self.state,
            LifecycleState::Pending | LifecycleState::PendingWait | LifecycleState::PendingProceed
        );
        self.protected && !is_new
    }

    pub(super) fn snapshot(&self) -> InstanceSnapshot {
        InstanceSnapshot {
            id: self.id.clone(),
            group: self.group.clone(),
            zone: self.zone.clone(),
            instance_type: self.instance_type.clone(),
            state: self.state,
            healthy: self.healthy,
            protected: self.protected,
            spot: self.spot,
            address: self.address,
            launched: self.launched,
            tags: self.tags.clone(),
            waits: self.waits.iter().map(|wait| (wait.hook.clone(), wait.expires)).collect(),
            power: self.power,
        }
    }
}

impl Group {
    pub(super) fn snapshot(&self) -> GroupSnapshot {
        GroupSnapshot {
            name: self.name.clone(),
            min: self.min,
            max: self.max,
            desired: self.desired,
            launches: self.launches.len(),
            instances: self.instances.values().map(Instance::snapshot).collect(),
        }
    }
}
