//! Nodes, pods, volume attachments and Deployments as they are read off the wire: only what is kept of them is decoded.
//!
//! Most of a Node (some 20 kB on EKS) are images and managed fields, most of a pod (5 to 20 kB) containers, volumes and managed fields. They
//! are skipped: decoded whole, a start with all Nodes or a drain with all its pods would cost several times as much time, and as much
//! memory again as what is kept. What is not read cannot fail to be read, either.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, Node, NodeCondition, NodeSpec,
    NodeStatus, Pod, PodSpec, PodStatus, PodTemplateSpec, Taint, Toleration,
};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::node_view::NodeView;
use super::pods::PodView;

/// An object with nothing but what is kept of its kind, which is in the same places as in a whole one.
#[derive(Clone, Debug, Default)]
pub struct Partial<K>(pub(super) K);

impl From<&Partial<Node>> for NodeView {
    fn from(Partial(node): &Partial<Node>) -> Self {
        Self::from(node)
    }
}

impl From<&Partial<Pod>> for PodView {
    fn from(Partial(pod): &Partial<Pod>) -> Self {
        Self::from(pod)
    }
}

impl<K> From<K> for Partial<K> {
    fn from(object: K) -> Self {
        Self(object)
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Partial<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// The fields of an object that are decoded.
#[derive(Deserialize)]
#[serde(bound = "Spec: Deserialize<'de>, Status: Deserialize<'de>")]
struct Wire<Spec, Status> {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Metadata> for ObjectMeta {
    fn from(metadata: Metadata) -> Self {
        Self {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            creation_timestamp: metadata.creation_timestamp,
            deletion_timestamp: metadata.deletion_timestamp,
            deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: metadata.owner_references,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
struct WireNodeSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct WireNodeStatus {
    conditions: Option<Vec<NodeCondition>>,
    capacity: Option<BTreeMap<String, Quantity>>,
    allocatable: Option<BTreeMap<String, Quantity>>,
}

impl<'de> Deserialize<'de> for Partial<Node> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::<WireNodeSpec, WireNodeStatus>::deserialize(deserializer)?;
        let spec = wire.spec.map(|WireNodeSpec { provider_id, unschedulable, taints }| NodeSpec {
            provider_id,
            unschedulable,
            taints,
            ..NodeSpec::default()
        });
        let status = wire.status.map(|WireNodeStatus { conditions, capacity, allocatable }| NodeStatus {
            conditions,
            capacity,
            allocatable,
            ..NodeStatus::default()
        });
        Ok(Self(Node { metadata: wire.metadata.into(), spec, status }))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePodSpec {
    node_name: Option<String>,
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
    tolerations: Option<Vec<Toleration>>,
    init_containers: Option<Vec<WireInitContainer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireInitContainer {
    name: Option<String>,
    restart_policy: Option<String>,
}

impl From<WireInitContainer> for Container {
    fn from(WireInitContainer { name, restart_policy }: WireInitContainer) -> Self {
        Self { name: name.unwrap_or_default(), restart_policy, ..Self::default() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePodStatus {
    phase: Option<String>,
    start_time: Option<Time>,
    container_statuses: Option<Vec<WireContainerStatus>>,
    init_container_statuses: Option<Vec<WireContainerStatus>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainerStatus {
    name: Option<String>,
    restart_count: Option<i32>,
    state: Option<WireContainerState>,
}

#[derive(Deserialize)]
struct WireContainerState {
    running: Option<IgnoredAny>,
}

impl From<WireContainerStatus> for ContainerStatus {
    fn from(status: WireContainerStatus) -> Self {
        let state = status.state.map(|state| ContainerState {
            running: state.running.map(|_| ContainerStateRunning::default()),
            ..ContainerState::default()
        });
        Self {
            name: status.name.unwrap_or_default(),
            restart_count: status.restart_count.unwrap_or_default(),
            state,
            ..Self::default()
        }
    }
}

/// A list of k8s-openapi's, of one as it was read.
fn all<W, T: From<W>>(wire: Option<Vec<W>>) -> Option<Vec<T>> {
    wire.map(|items| items.into_iter().map(Into::into).collect())
}

impl<'de> Deserialize<'de> for Partial<Pod> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::<WirePodSpec, WirePodStatus>::deserialize(deserializer)?;
        let spec = wire.spec.map(|spec| PodSpec {
            node_name: spec.node_name,
            priority: spec.priority,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            tolerations: spec.tolerations,
            init_containers: all(spec.init_containers),
            ..PodSpec::default()
        });
        let status = wire.status.map(|status| PodStatus {
            phase: status.phase,
            start_time: status.start_time,
            container_statuses: all(status.container_statuses),
            init_container_statuses: all(status.init_container_statuses),
            ..PodStatus::default()
        });
        Ok(Self(Pod { metadata: wire.metadata.into(), spec, status }))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireAttachmentSpec {
    node_name: Option<String>,
}

impl<'de> Deserialize<'de> for Partial<VolumeAttachment> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::<WireAttachmentSpec, IgnoredAny>::deserialize(deserializer)?;
        let spec = wire.spec.map(|WireAttachmentSpec { node_name }| VolumeAttachmentSpec {
            node_name: node_name.unwrap_or_default(),
            ..VolumeAttachmentSpec::default()
        });
        Ok(Self(VolumeAttachment {
            metadata: wire.metadata.into(),
            spec: spec.unwrap_or_default(),
            status: None,
        }))
    }
}

#[derive(Deserialize)]
struct WireDeploymentSpec {
    replicas: Option<i32>,
    template: Option<WirePodTemplate>,
}

#[derive(Deserialize)]
struct WirePodTemplate {
    spec: Option<WireContainers>,
}

#[derive(Deserialize)]
struct WireContainers {
    containers: Option<Vec<WireContainer>>,
}

#[derive(Deserialize)]
struct WireContainer {
    image: Option<String>,
    command: Option<Vec<String>>,
    args: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for Partial<Deployment> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::<WireDeploymentSpec, IgnoredAny>::deserialize(deserializer)?;
        let container = |WireContainer { image, command, args }| Container {
            image,
            command,
            args,
            ..Container::default()
        };
        let (replicas, template) = wire.spec.map(|spec| (spec.replicas, spec.template)).unwrap_or_default();
        let pod = template.and_then(|template| template.spec).map(|WireContainers { containers }| PodSpec {
            containers: containers.into_iter().flatten().map(container).collect(),
            ..PodSpec::default()
        });
        let template = PodTemplateSpec { metadata: None, spec: pod };
        Ok(Self(Deployment {
            metadata: wire.metadata.into(),
            spec: DeploymentSpec { replicas, template, ..DeploymentSpec::default() },
            status: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::pods::Containers;
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
        let partial: Partial<Node> = serde_json::from_str(&node).expect("a Node");
        assert_eq!(NodeView::from(&partial), NodeView::from(&whole));
        assert!(partial.0.metadata.managed_fields.is_none() && partial.meta().annotations.is_some());
        let bare = r#"{"metadata":{"name":"n2"},"spec":null,"status":{"conditions":null}}"#;
        let (whole, partial): (Node, Partial<Node>) =
            (serde_json::from_str(bare).expect("a Node"), serde_json::from_str(bare).expect("a Node"));
        assert_eq!(NodeView::from(&partial), NodeView::from(&whole));
    }

    #[test]
    fn a_view_is_the_same_whether_its_pod_was_decoded_whole_or_not() {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p1",
                "namespace": "web",
                "uid": "u1",
                "resourceVersion": "7",
                "generateName": "p",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:01:00Z",
                "deletionGracePeriodSeconds": 40,
                "labels": { "app": "web" },
                "annotations": { names::MIRROR_POD: "x", names::DRAIN_ORDER: "1", "others": "not kept" },
                "ownerReferences": [
                    { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d1", "controller": true },
                ],
                "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }],
            },
            "spec": {
                "nodeName": "n1",
                "priority": 2_000_001_000,
                "terminationGracePeriodSeconds": 50,
                "tolerations": [{ "operator": "Exists" }, { "key": "k", "effect": "NoExecute", "tolerationSeconds": 300 }],
                "containers": [{ "name": "c", "env": [{ "name": "A", "value": "B" }] }],
                "initContainers": [{ "name": "first" }, { "name": "sidecar", "restartPolicy": "Always" }],
                "volumes": [{ "name": "v", "emptyDir": {} }],
            },
            "status": {
                "phase": "Running",
                "conditions": [],
                "podIP": "10.0.0.7",
                "containerStatuses": [{ "name": "c", "state": { "running": {} }, "restartCount": 7 }],
                "initContainerStatuses": [
                    { "name": "first", "state": { "terminated": { "exitCode": 0 } }, "restartCount": 1 },
                    { "name": "sidecar", "state": { "running": {} }, "restartCount": 2 },
                ],
            },
        });
        let decoded: Partial<Pod> = serde_json::from_value(pod.clone()).expect("a Pod");
        assert_eq!(PodView::from(&decoded).containers, Containers::Running { restarts: 9 });
        let mut crashed = pod.clone();
        crashed["status"]["initContainerStatuses"][1]["state"] = json!({ "waiting": {} });
        let (pod, crashed) = (pod.to_string(), crashed.to_string());
        let bare =
            r#"{"metadata":{"name":"p2","ownerReferences":null},"spec":{"tolerations":null},"status":null}"#;
        for pod in [pod.as_str(), crashed.as_str(), bare] {
            let whole: Pod = serde_json::from_str(pod).expect("a Pod");
            let partial: Partial<Pod> = serde_json::from_str(pod).expect("a Pod");
            assert_eq!(PodView::from(&partial), PodView::from(&whole));
            assert_eq!(partial.meta().resource_version, whole.metadata.resource_version);
            assert!(partial.0.spec.is_some_and(|spec| spec.containers.is_empty()));
        }
    }

    #[test]
    fn what_is_not_kept_cannot_fail_to_be_decoded() {
        let pod =
            r#"{"metadata":{"name":"p"},"spec":{"containers":7,"nodeName":"n"},"status":{"conditions":"?"}}"#;
        let pod: Partial<Pod> = serde_json::from_str(pod).expect("a Pod");
        assert_eq!(PodView::from(&pod).node, "n");
        let deployment = r#"{"metadata":{"name":"d"},"spec":{"template":{"spec":{"containers":[{"image":"i","args":["a"],"env":7}],"volumes":7}}}}"#;
        let deployment: Partial<Deployment> = serde_json::from_str(deployment).expect("a Deployment");
        let containers = deployment.0.spec.template.spec.expect("a pod").containers;
        assert_eq!((containers.len(), containers[0].image.as_deref()), (1, Some("i")));
        let attachment = r#"{"metadata":{"name":"a"},"spec":{"attacher":"ebs.csi.aws.com","nodeName":"n","source":{"inlineVolumeSpec":7}}}"#;
        let attachment: Partial<VolumeAttachment> =
            serde_json::from_str(attachment).expect("a VolumeAttachment");
        assert_eq!(
            (attachment.0.spec.node_name.as_str(), attachment.meta().name.as_deref()),
            ("n", Some("a"))
        );
    }
}
