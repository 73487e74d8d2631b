//! What a template node says.

use ebbtide::provider::proto::NodeGroupTemplateNodeInfoRequest;
use k8s_pb::api::core::v1::Node;
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use prost::Message;
use tonic::Status;

use crate::scene::Scene;

/// What the tags begin with that tell of nodes.
pub(crate) const NODE_TEMPLATE: &str = "k8s.io/cluster-autoscaler/node-template";

/// The template node of a group, if it has one. A stand-in on which nothing fits is none.
pub(crate) async fn try_template(scene: &Scene, group: &str) -> Result<Node, Status> {
    let request = NodeGroupTemplateNodeInfoRequest { id: group.into() };
    let answer = scene.program.client().node_group_template_node_info(request).await?.into_inner();
    assert_eq!(answer.node_info, answer.node_bytes, "clients of either dialect read the same Node");
    let node = Node::decode(answer.node_bytes).expect("a Node");
    if allocatable(&node, "pods") == "0" {
        Err(Status::unimplemented("nothing fits on it"))
    } else {
        Ok(node)
    }
}

pub(crate) async fn template(scene: &Scene, group: &str) -> Node {
    try_template(scene, group).await.expect("a template")
}

/// What the node has of a resource; empty if it has none.
pub(crate) fn capacity(node: &Node, resource: &str) -> String {
    text(node.status.as_ref().and_then(|status| status.capacity.get(resource)))
}

/// What pods can have of it.
pub(crate) fn allocatable(node: &Node, resource: &str) -> String {
    text(node.status.as_ref().and_then(|status| status.allocatable.get(resource)))
}

fn text(quantity: Option<&Quantity>) -> String {
    quantity.and_then(|quantity| quantity.string.clone()).unwrap_or_default()
}

pub(crate) fn label(node: &Node, key: &str) -> String {
    node.metadata.as_ref().and_then(|metadata| metadata.labels.get(key).cloned()).unwrap_or_default()
}
