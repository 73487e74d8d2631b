//! A Node as it is read off the wire: only what [`NodeView`] keeps is decoded.
//!
//! Most of a Node (some 20 kB on EKS) are images and managed fields, which are skipped. A heartbeat of each kubelet comes every five minutes, and
//! a start reads all Nodes: decoded whole they would cost several times as much time, and as much memory again as all views.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::core::{ClusterResourceScope, ObjectMeta};
use serde::{Deserialize, Deserializer};

use super::node_view::NodeView;

/// A Node with nothing but what [`NodeView`] is made of, which is in the same places as in a whole one.
#[derive(Clone, Debug, Default)]
pub struct SeenNode(Node);

impl From<&SeenNode> for NodeView {
    fn from(SeenNode(node): &SeenNode) -> Self {
        Self::from(node)
    }
}

impl From<Node> for SeenNode {
    fn from(node: Node) -> Self {
        Self(node)
    }
}

impl Resource for SeenNode {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

/// The fields that are decoded.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Status {
    conditions: Option<Vec<NodeCondition>>,
    capacity: Option<BTreeMap<String, Quantity>>,
    allocatable: Option<BTreeMap<String, Quantity>>,
}

impl<'de> Deserialize<'de> for SeenNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { metadata, spec, status } = Wire::deserialize(deserializer)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            creation_timestamp: metadata.creation_timestamp,
            labels: metadata.labels,
            annotations: metadata.annotations,
            ..ObjectMeta::default()
        };
        let spec = spec.map(|Spec { provider_id, unschedulable, taints }| NodeSpec {
            provider_id,
            unschedulable,
            taints,
            ..NodeSpec::default()
        });
        let status = status.map(|Status { conditions, capacity, allocatable }| NodeStatus {
            conditions,
            capacity,
            allocatable,
            ..NodeStatus::default()
        });
        Ok(Self(Node { metadata, spec, status }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::names;

    #[test]
    fn a_view_is_the_same_whether_its_node_was_decoded_whole_or_not() {
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": "n1",
                "uid": "u1",
                "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "pool": "web", "zone": "a" },
                "annotations": {
                    names::RECORD: "now",
                    names::MARKS: "cordon",
                    names::CORDON: "[]",
                    "others": "not kept",
                },
                "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }],
            },
            "spec": {
                "providerID": "aws:///us-east-1a/i-1",
                "unschedulable": true,
                "podCIDR": "10.0.0.0/24",
                "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" }],
            },
            "status": {
                "capacity": { "cpu": "4", "memory": "16Gi" },
                "allocatable": { "cpu": "3900m", "memory": "15Gi" },
                "conditions": [
                    { "type": "DrainInProgress", "status": "True", "reason": "ScaleInDraining" },
                    { "type": "Drained", "status": "False", "reason": "ScaleInDraining" },
                    { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" },
                ],
                "images": [{ "names": ["a", "b"], "sizeBytes": 1 }],
                "nodeInfo": { "kubeletVersion": "v1.36.2" },
            },
        })
        .to_string();
        let whole: Node = serde_json::from_str(&node).expect("a Node");
        let seen: SeenNode = serde_json::from_str(&node).expect("a Node");
        assert_eq!(NodeView::from(&seen), NodeView::from(&whole));
        assert!(seen.0.metadata.managed_fields.is_none() && seen.meta().annotations.is_some());
        let bare = r#"{"metadata":{"name":"n2"},"spec":null,"status":{"conditions":null}}"#;
        let (whole, seen): (Node, SeenNode) =
            (serde_json::from_str(bare).expect("a Node"), serde_json::from_str(bare).expect("a Node"));
        assert_eq!(NodeView::from(&seen), NodeView::from(&whole));
    }
}
