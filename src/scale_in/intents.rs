//! Accepts scale-ins for cluster-autoscaler, and knows those accepted.
//!
//! The record on the Node is the truth, read from the Node watch. Our own writes go into that at once, so sizes are right
//! from the moment a scale-in is accepted.

use std::sync::Arc;

use super::context::{our_limit, speaker};
use super::record::{Cause, Record, Release};
use super::settings::Settings;
use super::{deadline, node_patch};
use crate::clock::Clock;
use crate::cluster::{ApiError, Cluster, NodeView, Nodes};
use crate::groups::Groups;
use crate::k8s::{GroupName, InstanceId, NodeName, names};

/// Accepts scale-ins and knows those accepted.
#[derive(Clone, Debug)]
pub struct Intents {
    cluster: Cluster,
    nodes: Arc<Nodes>,
    clock: Clock,
    groups: Arc<Groups>,
    settings: Settings,
}

/// Result of accepting a scale-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Recorded now.
    New,
    /// Under way already.
    Already,
}

/// Why a scale-in was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum IntentError {
    /// The API server did not take it; nothing has changed.
    #[error("the scale-in of node {node} could not be recorded")]
    NotRecorded {
        /// Name of the Node.
        node: NodeName,
        /// The error of the API server, or of the way to it.
        source: ApiError,
    },
}

/// Tries to write a record while others write the Node, which happens a few times a minute.
const TRIES: u32 = 4;

impl Intents {
    /// Accepts scale-ins on the Nodes of this cluster.
    pub fn new(
        cluster: Cluster,
        nodes: Arc<Nodes>,
        clock: Clock,
        groups: Arc<Groups>,
        settings: Settings,
    ) -> Self {
        Self { cluster, nodes, clock, groups, settings }
    }

    /// Name of the Node that speaks for this instance, if one has registered.
    pub fn node_of(&self, instance: &InstanceId) -> Option<NodeName> {
        speaker(&self.nodes, instance).map(|node| node.name.clone())
    }

    /// Whether this Node names the instance but is not the machine's own.
    pub fn is_beside(&self, node: &NodeName, instance: &InstanceId) -> bool {
        self.nodes.of_instance(instance).iter().skip(1).any(|other| other.name == *node)
    }

    /// Whether the Nodes have been listed, so that a missing one is missing.
    pub fn is_ready(&self) -> bool {
        self.nodes.is_synced()
    }

    /// The scale-in under way of this instance.
    pub fn record_of(&self, instance: &InstanceId) -> Option<Record> {
        speaker(&self.nodes, instance)?.scale_in().cloned()
    }

    /// Whether a scale-in of this instance from this group is under way.
    pub fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool {
        self.record_of(instance).is_some_and(|record| record.group == *group)
    }

    /// Whether this instance's Node has the taint by which cluster-autoscaler counts it as deleted, its own or ours.
    pub fn is_to_be_deleted(&self, instance: &InstanceId) -> bool {
        speaker(&self.nodes, instance).is_some_and(|node| node.taint(names::TO_BE_DELETED).is_some())
    }

    /// Whether a scale-in of this instance is under way that will lower the desired capacity.
    pub fn will_decrement(&self, instance: &InstanceId) -> bool {
        self.record_of(instance).is_some_and(|record| record.release == Release::TerminateAndDecrement)
    }

    /// Records durably that cluster-autoscaler wants this node gone. Once this returns, every reader sees it.
    pub async fn accept(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> Result<Accepted, IntentError> {
        let gone = || IntentError::NotRecorded { node: node.to_owned(), source: ApiError::NotFound };
        let mut view = self.nodes.get(node).map(|view| NodeView::clone(&view)).ok_or_else(gone)?;
        let mut tries = 0;
        loop {
            // A scale-in with a replacement does not do: cluster-autoscaler wants the node gone for good.
            if view.scale_in().is_some_and(|record| record.release != Release::Terminate) {
                return Ok(Accepted::Already);
            }
            let now = self.clock.wall();
            let ours = our_limit(&self.groups, &self.settings, group);
            let mut record =
                Record::new(Cause::Autoscaler, group, instance, Release::TerminateAndDecrement, now);
            record.ends_at = view.scale_in().and_then(|record| record.ends_at);
            record.release_by = deadline::limit(ours, &record, None, now);
            let source =
                match self.cluster.patch_node(node, &node_patch::with_record(&view, &record, now)).await {
                    Ok(written) => {
                        self.nodes.update(written);
                        return Ok(Accepted::New);
                    }
                    Err(source) => source,
                };
            tries += 1;
            let overtaken = matches!(source, ApiError::Conflict);
            if !overtaken || tries >= TRIES {
                return Err(IntentError::NotRecorded { node: node.to_owned(), source });
            }
            view = self
                .cluster
                .get_node(node)
                .await
                .map_err(|source| IntentError::NotRecorded { node: node.to_owned(), source })?;
            self.nodes.update(view.clone());
        }
    }
}
