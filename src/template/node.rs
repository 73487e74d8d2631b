//! Building the template Node. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_pb::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint};
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message;

use super::capacity::{self, Amounts};
use super::{Template, TemplateError};
use crate::aws::InstanceType;
use crate::groups::tags::NodeTags;

/// What is known of a group's next node.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Name of the group.
    pub group: &'a str,
    /// Region.
    pub region: &'a str,
    /// Availability zone it is likely in: the group's first.
    pub zone: &'a str,
    /// The instance types it can be.
    pub types: &'a [InstanceType],
    /// Size of its root volume in GiB.
    pub volume_gib: i64,
    /// Whether it is a spot instance, where that is known.
    pub spot: bool,
    /// What the group's tags say.
    pub tags: &'a NodeTags,
}

/// Accelerator label of cluster-autoscaler's AWS provider.
pub const ACCELERATOR_LABEL: &str = "k8s.amazonaws.com/accelerator";

/// Conditions of a healthy node; cluster-autoscaler takes a node without them for an unready one.
const CONDITIONS: [(&str, &str); 4] =
    [("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False")];

/// Builds the template of a group: the least of what its instance types have.
pub fn build(facts: &Facts<'_>) -> Result<Template, TemplateError> {
    let Some(first) = facts.types.first() else {
        return Err(TemplateError(Arc::from("none of the group's instance types is known to EC2")));
    };
    let of = |amount: fn(&InstanceType) -> i64| facts.types.iter().map(amount).min().unwrap_or_default();
    let capacity = Amounts {
        cpu_millis: of(|t| t.vcpus * 1_000),
        memory_mib: of(|t| capacity::memory_seen(t.memory_mib, t.bare_metal)),
        storage_mib: facts.volume_gib * 1_024,
        pods: of(|t| capacity::pods(t.interfaces, t.addresses_per_interface)),
    };
    let accelerators: BTreeMap<&str, i64> = first
        .accelerators
        .keys()
        .map(|name| {
            let least =
                facts.types.iter().map(|t| t.accelerators.get(name).copied().unwrap_or_default()).min();
            (name.as_str(), least.unwrap_or_default())
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    let resources = |amounts: Amounts| {
        let mut resources = BTreeMap::from([
            ("cpu".to_owned(), quantity(format!("{}m", amounts.cpu_millis))),
            ("memory".to_owned(), quantity(format!("{}Mi", amounts.memory_mib))),
            ("ephemeral-storage".to_owned(), quantity(format!("{}Mi", amounts.storage_mib))),
            ("pods".to_owned(), quantity(amounts.pods.to_string())),
        ]);
        resources.extend(
            accelerators.iter().map(|(name, count)| ((*name).to_owned(), quantity(count.to_string()))),
        );
        // What the group's owner says is there is there, for pods to use.
        resources
            .extend(facts.tags.resources.iter().map(|(name, text)| (name.clone(), quantity(text.clone()))));
        resources
    };
    let name = format!("{}-template", facts.group);
    let node = Node {
        metadata: Some(ObjectMeta {
            name: Some(name.clone()),
            labels: labels(facts, first, &name),
            ..ObjectMeta::default()
        }),
        spec: Some(NodeSpec {
            taints: facts
                .tags
                .taints
                .iter()
                .map(|taint| Taint {
                    key: Some(taint.key.clone()),
                    value: Some(taint.value.clone()),
                    effect: Some(taint.effect.clone()),
                    time_added: None,
                })
                .collect(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: resources(capacity),
            allocatable: resources(capacity::allocatable(capacity)),
            conditions: CONDITIONS
                .into_iter()
                .map(|(kind, status)| NodeCondition {
                    r#type: Some(kind.to_owned()),
                    status: Some(status.to_owned()),
                    ..NodeCondition::default()
                })
                .collect(),
            ..NodeStatus::default()
        }),
    };
    Ok(Template { encoded: node.encode_to_vec().into() })
}

fn labels(facts: &Facts<'_>, instance_type: &InstanceType, name: &str) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/arch", instance_type.architecture.as_str()),
        ("beta.kubernetes.io/arch", &instance_type.architecture),
        ("kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", name),
        ("node.kubernetes.io/instance-type", &instance_type.name),
        ("beta.kubernetes.io/instance-type", &instance_type.name),
        ("topology.kubernetes.io/region", facts.region),
        ("failure-domain.beta.kubernetes.io/region", facts.region),
        ("topology.kubernetes.io/zone", facts.zone),
        ("failure-domain.beta.kubernetes.io/zone", facts.zone),
        ("topology.ebs.csi.aws.com/zone", facts.zone),
        ("eks.amazonaws.com/capacityType", if facts.spot { "SPOT" } else { "ON_DEMAND" }),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect();
    if let Some(accelerator) = &instance_type.accelerator_name {
        labels.insert(ACCELERATOR_LABEL.to_owned(), accelerator.clone());
    }
    labels.extend(facts.tags.labels.clone());
    labels
}

fn quantity(text: String) -> Quantity {
    Quantity { string: Some(text) }
}
