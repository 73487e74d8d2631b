//! What the RPCs need of scale-in: which nodes leave, and a way to request more.

use async_trait::async_trait;

use crate::k8s::{GroupName, InstanceId, NodeName};
use crate::scale_in::{Accepted, IntentError, Intents};

/// Knows the scale-ins under way and records new ones. [`Intents`] in the program, a script in tests.
#[async_trait]
pub trait ScaleIns: Send + Sync + 'static {
    /// Whether Nodes have been listed, so that an instance without a known Node has none.
    fn is_ready(&self) -> bool;

    /// Name of the Node of this instance, if one has registered.
    fn node_of(&self, instance: &InstanceId) -> Option<NodeName>;

    /// Whether this Node names an instance that belongs to another Node: a kubelet came back under another name, or
    /// somebody made the Node up. Such a Node is in no group, or cluster-autoscaler would delete the machine because
    /// this Node is empty or not Ready.
    fn is_beside(&self, _node: &NodeName, _instance: &InstanceId) -> bool {
        false
    }

    /// Whether a scale-in of this instance of the group is under way.
    fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool;

    /// Whether cluster-autoscaler is about to delete the Node of this instance: it carries its ToBeDeleted taint.
    fn is_to_be_deleted(&self, instance: &InstanceId) -> bool;

    /// Whether cluster-autoscaler counts the instance's node as deleted, because its scale-in is under way or about to
    /// be requested. No size we report may include it.
    fn leaves(&self, group: &GroupName, instance: &InstanceId) -> bool {
        self.is_leaving(group, instance) || self.is_to_be_deleted(instance)
    }

    /// Whether a scale-in of this instance is under way that lowers the desired capacity when it is released.
    fn will_decrement(&self, instance: &InstanceId) -> bool;

    /// Records durably that cluster-autoscaler wants this node gone. Afterwards [`ScaleIns::will_decrement`] says so.
    async fn accept(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> Result<Accepted, IntentError>;
}

#[async_trait]
impl ScaleIns for Intents {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn node_of(&self, instance: &InstanceId) -> Option<NodeName> {
        Self::node_of(self, instance)
    }

    fn is_beside(&self, node: &NodeName, instance: &InstanceId) -> bool {
        Self::is_beside(self, node, instance)
    }

    fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool {
        Self::is_leaving(self, group, instance)
    }

    fn is_to_be_deleted(&self, instance: &InstanceId) -> bool {
        Self::is_to_be_deleted(self, instance)
    }

    fn will_decrement(&self, instance: &InstanceId) -> bool {
        Self::will_decrement(self, instance)
    }

    async fn accept(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> Result<Accepted, IntentError> {
        Self::accept(self, node, group, instance).await
    }
}
