//! The `core/v1` Node of a template.
//!
//! Its labels are those of a real node of the group. Real nodes beat computed values; EKS's description of the managed
//! node group, from which the next node is made, beats both; the group's tags beat all, but for labels that EKS gives: a node gets those
//! from EKS, and none from a tag. So does cluster-autoscaler's own provider (`joinNodeLabelsChoosingUserValuesOverAPIValues` in
//! [aws_manager.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_manager.go)).

use std::collections::BTreeMap;

use k8s_pb::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message as _;

use super::capacity::{Figures, Resources};
use super::devices;
use super::facts::{Facts, Market};
use super::learned::Learned;
use super::os::Os;
use crate::aws::{ManagedNodeGroup, TypeInfo};
use crate::k8s::names;

/// Builds the Node. `first` is the type for labels; `figures` cover all types the group may launch.
pub(super) fn build(facts: &Facts<'_>, zone: &str, first: &TypeInfo, figures: &Figures) -> Node {
    // Needs a name that no real node has; cluster-autoscaler names its copies itself.
    let name = format!("{}-template-{}", facts.group, first.name);
    let types: Vec<_> = facts.type_names().collect();
    let mut labels = computed_labels(facts, zone, first, &name);
    let allocatable = quantities(&figures.allocatable, &facts.tags.resources);
    let model = model(facts, &types, first, &allocatable);
    labels.extend(model.map(|model| (devices::LABEL.to_owned(), model.to_owned())));
    let learned = facts.learned.into_iter().flat_map(|learned| learned.labels_among(&types));
    labels.extend(learned.map(|(key, value)| (key.clone(), value.clone())));
    labels.extend(facts.tags.labels.clone());
    let of_eks = facts.described().map(|described| described.labels.clone());
    labels.extend(of_eks.or_else(|| Some(facts.learned?.answer_of_eks().labels)).unwrap_or_default());
    Node {
        metadata: Some(ObjectMeta { name: Some(name), labels, ..ObjectMeta::default() }),
        // No providerID: there is no instance yet. cluster-autoscaler's own AWS provider leaves it empty too.
        spec: Some(NodeSpec { taints: taints(facts), ..NodeSpec::default() }),
        status: Some(NodeStatus {
            capacity: quantities(&figures.capacity, &facts.tags.resources),
            allocatable,
            conditions: conditions(),
            node_info: facts.described().and_then(node_info),
            ..NodeStatus::default()
        }),
    }
}

/// A Node that nothing fits on, for a group without a template: cluster-autoscaler neither grows the group for a pod nor
/// expects a pod to fit on its nodes to come.
pub(super) fn without_room(group: &str) -> Node {
    let name = format!("{group}-template-unknown");
    let nothing = |resource: &str| (resource.to_owned(), Quantity { string: Some("0".to_owned()) });
    let resources: BTreeMap<_, _> = ["cpu", "memory", "pods"].map(nothing).into();
    Node {
        metadata: Some(ObjectMeta {
            labels: [(names::HOSTNAME.to_owned(), name.clone())].into(),
            name: Some(name),
            ..ObjectMeta::default()
        }),
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            capacity: resources.clone(),
            allocatable: resources,
            conditions: conditions(),
            ..NodeStatus::default()
        }),
    }
}

/// The instance type that an encoded Node's labels name, and what it gives to pods.
pub(super) fn figures(encoded: &[u8]) -> (Option<String>, BTreeMap<String, String>) {
    let node = Node::decode(encoded).unwrap_or_default();
    let labels = node.metadata.map(|meta| meta.labels).unwrap_or_default();
    let allocatable = node.status.map(|status| status.allocatable).unwrap_or_default();
    let told = allocatable.into_iter().filter_map(|(name, quantity)| Some((name, quantity.string?)));
    (labels.get(names::INSTANCE_TYPE).cloned(), told.collect())
}

/// The kubelet's version: EKS gives the Kubernetes version without the patch.
fn node_info(node_group: &ManagedNodeGroup) -> Option<NodeSystemInfo> {
    let kubelet_version = Some(format!("v{}.0", node_group.version.as_ref()?));
    Some(NodeSystemInfo { kubelet_version, ..NodeSystemInfo::default() })
}

/// The GPU model label, unless real nodes have shown whether they have it. A node without a GPU has none, whatever its type: cluster-autoscaler
/// from 1.35 on looks for the GPUs of one that has, and grows no group while such a node is to come.
fn model(
    facts: &Facts<'_>,
    types: &[&str],
    first: &TypeInfo,
    allocatable: &BTreeMap<String, Quantity>,
) -> Option<&'static str> {
    let gpus = allocatable.get(names::NVIDIA_GPU).and_then(|quantity| quantity.string.as_deref());
    let has_gpu = gpus.is_some_and(devices::is_some);
    let has_shown = |learned: &Learned| learned.has_seen_nodes() && !learned.is_of_other_types(types);
    let was_seen = facts.learned.is_some_and(has_shown);
    devices::model(first).filter(|_| has_gpu && !was_seen)
}

/// Taints of real nodes, the managed node group and the tags. For the same key and effect the last wins.
fn taints(facts: &Facts<'_>) -> Vec<Taint> {
    let mut all: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let learned = facts.learned.map(|learned| learned.taints.as_slice()).unwrap_or_default();
    let of_eks = facts.described().map(|described| described.taints.as_slice()).unwrap_or_default();
    for taint in learned.iter().chain(of_eks).chain(&facts.tags.taints) {
        all.insert((&taint.key, &taint.effect), &taint.value);
    }
    let encoded = all.into_iter().map(|((key, effect), value)| Taint {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
        effect: Some(effect.to_owned()),
        time_added: None,
    });
    encoded.collect()
}

/// The labels that kubelet, cloud provider, EBS driver and EKS put on a node.
///
/// Sources: [Well-known labels](https://kubernetes.io/docs/reference/labels-annotations-taints/) (the old spellings
/// are still put on real nodes, and selectors still use them),
/// [aws-ebs-csi-driver](https://github.com/kubernetes-sigs/aws-ebs-csi-driver) for `topology.ebs.csi.aws.com/zone`,
/// [cloud-provider-aws](https://github.com/kubernetes/cloud-provider-aws/pull/855) for `topology.k8s.aws/zone-id`,
/// [EKS managed node groups](https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html) for
/// `eks.amazonaws.com/…`.
fn computed_labels(facts: &Facts<'_>, zone: &str, first: &TypeInfo, name: &str) -> BTreeMap<String, String> {
    let described = facts.described();
    let is_arm = described.and_then(ManagedNodeGroup::is_arm).unwrap_or(first.arm);
    let arch = if is_arm { "arm64" } else { "amd64" };
    let os = if facts.is_windows() { Os::Windows } else { Os::Linux }.name();
    let mut labels: BTreeMap<String, String> = [
        (names::ARCH, arch),
        ("beta.kubernetes.io/arch", arch),
        (names::OS, os),
        (names::BETA_OS, os),
        (names::HOSTNAME, name),
        (names::INSTANCE_TYPE, &first.name),
        (names::BETA_INSTANCE_TYPE, &first.name),
        (names::REGION, facts.region),
        (names::BETA_REGION, facts.region),
        (names::ZONE, zone),
        (names::BETA_ZONE, zone),
        (names::EBS_ZONE, zone),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    if let Some(id) = facts.zone_id {
        labels.insert(names::ZONE_ID.to_owned(), id.to_owned());
    }
    if let Some(managed) = facts.eks {
        labels.insert("eks.amazonaws.com/nodegroup".to_owned(), managed.name.to_owned());
        let of_market = facts.market.map(|market| match market {
            Market::OnDemand => "ON_DEMAND",
            Market::Spot => "SPOT",
        });
        let of_eks = described.and_then(|described| described.capacity_type.as_deref());
        if let Some(word) = of_eks.or(of_market) {
            labels.insert("eks.amazonaws.com/capacityType".to_owned(), word.to_owned());
        }
    }
    labels
}

fn quantities(computed: &Resources, tagged: &BTreeMap<String, String>) -> BTreeMap<String, Quantity> {
    let mut all: BTreeMap<String, String> = BTreeMap::from([
        ("cpu".to_owned(), cpu(computed.cpu_millis)),
        ("memory".to_owned(), format!("{}Ki", computed.memory_kib)),
        ("ephemeral-storage".to_owned(), format!("{}Ki", computed.storage_kib)),
        ("pods".to_owned(), computed.pods.to_string()),
    ]);
    all.extend(computed.devices.iter().map(|(name, count)| (name.clone(), count.to_string())));
    all.extend(tagged.clone());
    all.into_iter().map(|(name, text)| (name, Quantity { string: Some(text) })).collect()
}

/// In Kubernetes' spelling: whole cores without a suffix.
fn cpu(millis: i64) -> String {
    if millis % 1000 == 0 { (millis / 1000).to_string() } else { format!("{millis}m") }
}

/// Conditions of a node that takes pods.
///
/// Source: cluster-autoscaler's
/// [BuildReadyConditions](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/utils.go).
fn conditions() -> Vec<NodeCondition> {
    [
        ("Ready", "True"),
        ("NetworkUnavailable", "False"),
        ("DiskPressure", "False"),
        ("MemoryPressure", "False"),
        ("PIDPressure", "False"),
    ]
    .map(|(kind, status)| NodeCondition {
        r#type: Some(kind.to_owned()),
        status: Some(status.to_owned()),
        ..NodeCondition::default()
    })
    .into()
}
