//! Accepts scale-ins for cluster-autoscaler, and knows those accepted.
//!
//! The record on the Node is the truth, read from the Node watch. Our own writes go into that at once, so sizes are right
//! from the moment a scale-in is accepted.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::context::{is_on_its_way_in, our_limit, primary, will_decrement};
use super::holds::Holds;
use super::record::{Cause, Record, Release};
use super::settings::Settings;
use super::{context, deadline, node_patch, nodeless};
use crate::aws::{AutoScalingGroup, Instance};
use crate::clock::{Clock, later, signed};
use crate::cluster::{ApiError, Cluster, NodeView, Nodes};
use crate::groups::Groups;
use crate::groups::hooks::Hooks;
use crate::groups::sizes::Leaves;
use crate::k8s::{GroupName, InstanceId, NodeName};
use crate::template::devices;

/// What the RPCs need of scale-ins: which are under way, and a way to request more. [`Intents`] in the program, a
/// script in tests.
pub trait ScaleIns: Send + Sync + 'static {
    /// Whether Nodes have been listed, so that an instance without a known Node has none.
    fn is_ready(&self) -> bool;

    /// Whether Nodes are known as they are now: an instance without a known Node may have one while their watch is broken.
    fn is_up_to_date(&self) -> bool;

    /// How many changes of Nodes there have been: while it stays the same, so does what becomes of each instance of a look at the groups.
    fn changes(&self) -> u64;

    /// Name of the Node of this instance, if one has registered.
    fn node_of(&self, instance: &InstanceId) -> Option<NodeName>;

    /// A Node that may be of any instance of the group: its provider id does not say of which machine it is, and no Node of the
    /// group's instances is known, as where kubelets are started without a provider id.
    fn unidentified_node(&self, group: &AutoScalingGroup) -> Option<NodeName>;

    /// Whether containers may run on this instance of the group though it has no Node: its Node was deleted, their grace is not over, and no
    /// hook of ours would hold it for that.
    fn outlives_its_node(&self, group: &GroupName, instance: &InstanceId) -> bool;

    /// Whether this Node names an instance that belongs to another Node: a kubelet came back under another name, or
    /// somebody made the Node up. Such a Node is in no group, or cluster-autoscaler would delete the machine because
    /// this Node is empty or not Ready.
    fn is_secondary(&self, node: &NodeName, instance: &InstanceId) -> bool;

    /// The provider id of this instance as its Node has it, where that is not written as the AWS cloud provider writes them, or no `zone` is
    /// known to write it with.
    fn provider_id(&self, instance: &InstanceId, zone: &str) -> Option<String>;

    /// Whether this instance's Node says by its label that it has a GPU, and offers none: it is broken, or not up yet.
    fn lacks_its_gpu(&self, instance: &InstanceId) -> bool;

    /// Whether a scale-in of this instance of the group is under way.
    fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool;

    /// Whether cluster-autoscaler counts the instance's node as deleted, because its scale-in is under way or, by the
    /// ToBeDeleted taint, about to be requested; and what becomes of the desired capacity then.
    fn leaves(&self, group: &GroupName, instance: &Instance) -> Leaves;

    /// Whether a scale-in of this instance is under way that lowers the desired capacity when it is released.
    fn will_decrement(&self, instance: &InstanceId) -> bool;

    /// Whether the desired capacity is to go down by this instance of the group: a scale-in is under way that lowers it, or
    /// cluster-autoscaler drains the node and will ask for one.
    fn is_to_decrement(&self, group: &GroupName, instance: &Instance) -> bool {
        self.will_decrement(&instance.id) || self.leaves(group, instance) == Leaves::BeingDrained
    }

    /// Records durably that cluster-autoscaler wants this node gone. [`ScaleIns::will_decrement`] says so from the call on, unless
    /// nothing comes of it.
    fn accept(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> BoxFuture<'static, Result<Accepted, IntentError>>;
}

/// Accepts scale-ins and knows those accepted.
#[derive(Clone, Debug)]
pub struct Intents {
    cluster: Cluster,
    nodes: Arc<Nodes>,
    clock: Clock,
    groups: Arc<Groups>,
    settings: Settings,
    hooks: Arc<Hooks>,
    holds: Arc<Holds>,
    accepting: Arc<Accepting>,
}

/// Instances whose scale-in is being recorded, and how often at once: the minimum is kept with them.
#[derive(Debug, Default)]
struct Accepting(Mutex<BTreeMap<InstanceId, usize>>);

/// One of them, until this is dropped.
#[derive(Debug)]
struct BeingAccepted(Arc<Accepting>, InstanceId);

impl Accepting {
    fn begin(self: &Arc<Self>, instance: &InstanceId) -> BeingAccepted {
        *self.0.lock().entry(instance.clone()).or_default() += 1;
        BeingAccepted(Arc::clone(self), instance.clone())
    }
}

impl Drop for BeingAccepted {
    fn drop(&mut self) {
        let mut all = self.0.0.lock();
        if let Entry::Occupied(mut one) = all.entry(self.1.clone()) {
            *one.get_mut() -= 1;
            if *one.get() == 0 {
                one.remove();
            }
        }
    }
}

/// Result of accepting a scale-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Recorded now.
    New,
    /// Under way already.
    Already,
}

/// A scale-in was not recorded; nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum IntentError {
    /// The API server did not take its record.
    #[error("the scale-in of node {node} could not be recorded")]
    NotRecorded {
        /// Name of the Node.
        node: NodeName,
        /// The error of the API server, or of the way to it.
        source: ApiError,
    },
    /// The instance is in its group again, and the record of an earlier scale-in is about to come off: what is written over it would be taken
    /// for that scale-in.
    #[error(
        "instance {instance} of node {node} is back in its group, and the record of its earlier scale-in is about to come off"
    )]
    ComesBack {
        /// Name of the Node.
        node: NodeName,
        /// Its instance.
        instance: InstanceId,
    },
    /// The task that wrote the record is gone. It may be written all the same.
    #[error("the record of the scale-in was cut off: the program is stopping, or its task panicked")]
    CutOff,
}

/// How long to retry writing a record while others write the Node, or the API server is in trouble: a little less than the RPC waits, so
/// that it can say why. If each try takes longer (a webhook hangs), there are a few tries all the same.
const TRIED_FOR: Duration = Duration::from_millis(2_500);

/// How long a watch must have worked after a failure to count as caught up. It catches up at once; and cluster-autoscaler, after a
/// quarter of an hour of waiting for the instance, asks again in ten seconds.
const CAUGHT_UP: Duration = Duration::from_secs(5);

/// Tries without a pause.
const AT_ONCE: u32 = 3;

/// Pause after a few tries in a row at which somebody else was quicker.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause that the API server may ask for. Flow control asks for one second.
const ASKED_FOR_AT_MOST: Duration = Duration::from_secs(1);

impl Intents {
    /// Accepts scale-ins on the Nodes of this cluster.
    pub fn new(
        cluster: Cluster,
        nodes: Arc<Nodes>,
        clock: Clock,
        groups: Arc<Groups>,
        settings: Settings,
        hooks: Arc<Hooks>,
        holds: Arc<Holds>,
    ) -> Self {
        Self { cluster, nodes, clock, groups, settings, hooks, holds, accepting: Arc::default() }
    }

    /// Whether the instance of a scale-in is in its group again.
    fn is_back(&self, record: &Record) -> bool {
        let view = self.groups.latest();
        let found = view.as_ref().and_then(|view| view.instance(&record.instance));
        found.is_some_and(|(_, found)| is_on_its_way_in(record, found.lifecycle, || self.described()))
    }

    /// When the last description was asked for, by the API server's clock.
    fn described(&self) -> Option<Timestamp> {
        Some(later(self.groups.latest()?.taken_at, self.clock.cluster_ahead()))
    }

    async fn record(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> Result<Accepted, IntentError> {
        let not_recorded = |source| IntentError::NotRecorded { node: node.to_owned(), source };
        let seen = self.nodes.get(node).map(|view| NodeView::clone(&view));
        let mut view = seen.ok_or_else(|| not_recorded(ApiError::NotFound))?;
        let (until, mut tries) = (Instant::now() + TRIED_FOR, 0);
        loop {
            // Another machine may have its name by now.
            if view.instance.as_ref() != Some(instance) {
                return Err(not_recorded(ApiError::NotFound));
            }
            if view.scale_in().is_some_and(|record| record.group == *group && self.is_back(record)) {
                return Err(IntentError::ComesBack { node: node.to_owned(), instance: instance.to_owned() });
            }
            // A scale-in with a replacement does not do: cluster-autoscaler wants the node gone for good.
            if view.scale_in().is_some_and(|record| record.release != Release::Terminate) {
                return Ok(Accepted::Already);
            }
            let now = self.clock.cluster();
            let ours = our_limit(self.groups.latest().as_deref(), &self.settings, group);
            let mut record =
                Record::new(Cause::Autoscaler, group, instance, Release::TerminateAndDecrement, now);
            record.installation.clone_from(&self.settings.installation);
            let before = view.scale_in();
            record = record.ending(before.and_then(Record::end));
            record.terminate_at = before.and_then(|before| before.terminate_at);
            record.void_termination = before.and_then(|before| before.void_termination);
            record.more = before.map(|before| before.more.clone()).unwrap_or_default();
            record.release_by = deadline::limit(ours, &record, None);
            let patch = node_patch::with_record(&view, &record, self.clock.latest());
            let source = match self.cluster.patch_node(node, &patch, || true).await {
                Ok(written) => {
                    self.nodes.update(written);
                    return Ok(Accepted::New);
                }
                Err(source) => source,
            };
            tries += 1;
            // cluster-autoscaler has emptied the node, and would open it again.
            let is_tried_again = matches!(source, ApiError::Conflict) || source.is_transient();
            if !is_tried_again || (tries >= AT_ONCE && Instant::now() >= until) {
                return Err(not_recorded(source));
            }
            if tries >= AT_ONCE || source.is_transient() {
                let asked_for = self.cluster.busy_for().min(ASKED_FOR_AT_MOST);
                tokio::time::sleep(asked_for.min(until.saturating_duration_since(Instant::now())).max(PAUSE))
                    .await;
            }
            // What failed may have taken effect.
            match self.cluster.get_node(node).await {
                Ok(read) => {
                    view = read;
                    self.nodes.update(view.clone());
                }
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(not_recorded(error)),
            }
        }
    }
}

impl ScaleIns for Intents {
    fn node_of(&self, instance: &InstanceId) -> Option<NodeName> {
        primary(&self.nodes, instance).map(|node| node.name.clone())
    }

    fn unidentified_node(&self, group: &AutoScalingGroup) -> Option<NodeName> {
        context::unidentified_node(&self.nodes, &group.instances)
    }

    fn outlives_its_node(&self, group: &GroupName, instance: &InstanceId) -> bool {
        if self.hooks.last_seen(group).is_some() {
            return false;
        }
        let now = self.clock.now();
        let since = self.nodes.gone_for(instance).map(|time| later(now, -signed(time)));
        let noted =
            self.holds.needed(instance).filter(|at| since.is_none_or(|since| nodeless::is_of(*at, since)));
        let unwatched = |since| nodeless::needed_until(since, None, Duration::ZERO);
        noted.or_else(|| since.map(unwatched)).is_some_and(|until| until > now)
    }

    fn is_secondary(&self, node: &NodeName, instance: &InstanceId) -> bool {
        self.nodes.has_twins(instance)
            && primary(&self.nodes, instance).is_some_and(|primary| primary.name != *node)
    }

    fn provider_id(&self, instance: &InstanceId, zone: &str) -> Option<String> {
        self.nodes.provider_id(instance, zone)
    }

    fn is_ready(&self) -> bool {
        self.nodes.is_synced()
    }

    fn is_up_to_date(&self) -> bool {
        self.nodes.whole_for().is_some_and(|time| time >= CAUGHT_UP)
    }

    fn lacks_its_gpu(&self, instance: &InstanceId) -> bool {
        primary(&self.nodes, instance).is_some_and(|node| devices::lacks_its_gpu(&node))
    }

    fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool {
        context::is_leaving(&self.nodes, group, instance)
    }

    fn changes(&self) -> u64 {
        self.nodes.changes()
    }

    fn leaves(&self, group: &GroupName, instance: &Instance) -> Leaves {
        context::leaves(&self.nodes, group, instance, || self.described())
    }

    fn will_decrement(&self, instance: &InstanceId) -> bool {
        will_decrement(&self.nodes, instance) || self.accepting.0.lock().contains_key(instance)
    }

    fn accept(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> BoxFuture<'static, Result<Accepted, IntentError>> {
        let begun = self.accepting.begin(instance);
        let (this, node, group, instance) = (self.clone(), node.clone(), group.clone(), instance.clone());
        async move {
            let _begun = begun;
            this.record(&node, &group, &instance).await
        }
        .boxed()
    }
}
