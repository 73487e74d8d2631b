//! Which instances load balancers still reach, asked of AWS while nodes flush, and only then (`--wait-for-load-balancers`).
//!
//! - Target groups are the cluster's by their targets, not by their maker or tags: all that a load balancer uses are asked once, then
//!   only those with Nodes as targets, until the list is read anew.
//! - One question tells of all targets of a target group, however many nodes flush. Questions go out one after the other: AWS
//!   [allows](https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-throttling.html) few, and the controller
//!   that deregisters the nodes needs them too.
//! - Without the permission, nothing waits.

mod look;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

pub(super) use self::look::run;
use crate::aws::TargetGroup;
use crate::k8s::{InstanceId, NodeName};

/// AWS's default of the deregistration delay.
///
/// Source: [Deregistration
/// delay](https://docs.aws.amazon.com/elasticloadbalancing/latest/application/edit-target-group-attributes.html#deregistration-delay).
pub(super) const DEFAULT_DELAY: Duration = Duration::from_mins(5);

/// What is known of the target groups that have an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Nobody is to wait: that is not wanted, or AWS denies to say.
    NotAsked,
    /// AWS has not said yet.
    Unknown,
    /// By the look that began at `seen`, the instance is registered with these, or drains.
    In {
        /// When the look began.
        seen: Timestamp,
        /// The target groups.
        groups: Vec<Reached>,
    },
}

/// A target group through which connections reach an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Its name.
    pub name: String,
    /// How long connections live once the instance is deregistered.
    pub delay: Duration,
}

/// What AWS has told last.
#[derive(Debug, Default)]
enum Seen {
    #[default]
    Nothing,
    Denied,
    Look(Timestamp, Vec<Known>),
}

/// A target group that a load balancer uses.
#[derive(Clone, Debug)]
struct Known {
    group: TargetGroup,
    targets: BTreeSet<InstanceId>,
    /// Whether Nodes are among its targets, as far as is known.
    has_nodes: bool,
    delay: Option<Duration>,
    /// Whether the delay was asked for since the list was read.
    has_said_delay: bool,
}

/// Nodes that want to know, and what is known.
#[derive(Debug, Default)]
pub struct LoadBalancers {
    seen: Mutex<Seen>,
    /// Nodes that flush.
    wanted: watch::Sender<BTreeSet<NodeName>>,
    /// Changes with each look.
    versions: watch::Sender<()>,
}

impl LoadBalancers {
    /// Has the targets looked at while the node flushes.
    pub(super) fn want(&self, node: &NodeName) {
        self.wanted.send_if_modified(|wanted| wanted.insert(node.clone()));
    }

    /// The node does not flush any more.
    pub(super) fn leave(&self, node: &NodeName) {
        self.wanted.send_if_modified(|wanted| wanted.remove(node));
    }

    /// Which target groups have the instance, but for those of its group: AWS deregisters it from these by itself, and
    /// waits, when the group ends it.
    pub(super) fn of(&self, instance: &InstanceId, of_its_group: &BTreeSet<String>) -> Targets {
        match &*self.seen() {
            Seen::Nothing => Targets::Unknown,
            Seen::Denied => Targets::NotAsked,
            Seen::Look(seen, known) => {
                let has = known.iter().filter(|known| known.targets.contains(instance));
                let others = has.filter(|known| !of_its_group.contains(&known.group.arn));
                let groups = others.map(|known| Reached {
                    name: known.group.name.clone(),
                    delay: known.delay.unwrap_or(DEFAULT_DELAY),
                });
                Targets::In { seen: *seen, groups: groups.collect() }
            }
        }
    }

    /// Changes with each look.
    pub(super) fn versions(&self) -> watch::Receiver<()> {
        self.versions.subscribe()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    fn publish(&self, seen: Seen) {
        *self.seen() = seen;
        self.versions.send_replace(());
    }
}
