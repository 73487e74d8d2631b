//! Managed node groups of EKS as plain data, no SDK types. Only what shows on a node is kept.

use std::collections::BTreeMap;

use aws_sdk_eks::types as eks;

use super::retry::LOOK_UP;
use super::{Aws, AwsError, Operation};
use crate::k8s::Taint;

/// An EKS managed node group.
///
/// Source: [Nodegroup](https://docs.aws.amazon.com/eks/latest/APIReference/API_Nodegroup.html).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedNodeGroup {
    /// Labels of its nodes.
    pub labels: BTreeMap<String, String>,
    /// Taints of its nodes, in Kubernetes' spelling.
    pub taints: Vec<Taint>,
    /// `ON_DEMAND`, `SPOT` or `CAPACITY_BLOCK`.
    pub capacity_type: Option<String>,
    /// Kubernetes version, `1.33`.
    pub version: Option<String>,
    /// Image type, such as `AL2023_ARM_64_STANDARD`; `CUSTOM` says nothing.
    pub ami_type: Option<String>,
    /// Root volume size in GiB; `None` if the user's launch template sets it.
    pub disk_gib: Option<i32>,
    /// Tags of the node group, which are not those of its Auto Scaling group.
    pub tags: BTreeMap<String, String>,
}

impl ManagedNodeGroup {
    /// Whether its images are arm64, if their type tells.
    pub fn is_arm(&self) -> Option<bool> {
        let ami_type = self.ami_type.as_deref()?;
        if ami_type.contains("ARM_64") { Some(true) } else { ami_type.contains("x86_64").then_some(false) }
    }

    /// Whether its images are known to be Windows.
    pub fn is_windows(&self) -> bool {
        self.ami_type.as_deref().is_some_and(|ami_type| ami_type.starts_with("WINDOWS_"))
    }

    /// Whether its images are known to be Bottlerocket.
    pub fn is_bottlerocket(&self) -> bool {
        self.ami_type.as_deref().is_some_and(|ami_type| ami_type.starts_with("BOTTLEROCKET_"))
    }

    /// Whether EKS chooses its images, and so configures its nodes.
    pub fn has_image_of_eks(&self) -> bool {
        self.ami_type.as_deref().is_some_and(|ami_type| ami_type != "CUSTOM")
    }

    fn from_sdk(from: eks::Nodegroup) -> Self {
        Self {
            labels: from.labels.unwrap_or_default().into_iter().collect(),
            taints: from.taints.unwrap_or_default().into_iter().filter_map(taint).collect(),
            capacity_type: from.capacity_type.map(|kind| kind.as_str().to_owned()),
            version: from.version,
            ami_type: from.ami_type.map(|kind| kind.as_str().to_owned()),
            disk_gib: from.disk_size,
            tags: from.tags.unwrap_or_default().into_iter().collect(),
        }
    }
}

/// A taint in Kubernetes' spelling; `None` if Kubernetes has no such effect.
///
/// Source: [Taint](https://docs.aws.amazon.com/eks/latest/APIReference/API_Taint.html).
fn taint(from: eks::Taint) -> Option<Taint> {
    let effect = match from.effect? {
        eks::TaintEffect::NoSchedule => "NoSchedule",
        eks::TaintEffect::NoExecute => "NoExecute",
        eks::TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        _ => return None,
    };
    Some(Taint { key: from.key?, value: from.value.unwrap_or_default(), effect: effect.to_owned() })
}

impl Aws {
    /// The cluster's managed node group of this name; `None` if it does not exist.
    pub async fn node_group(&self, cluster: &str, name: &str) -> Result<Option<ManagedNodeGroup>, AwsError> {
        let call = self.eks.describe_nodegroup().cluster_name(cluster).nodegroup_name(name);
        match self.call(Operation::DescribeNodegroup, LOOK_UP, || call.clone().send()).await {
            Ok(found) => Ok(found.nodegroup.map(ManagedNodeGroup::from_sdk)),
            Err(AwsError::Other { code, .. }) if code == "ResourceNotFoundException" => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_image_tells_architecture_and_operating_system() {
        for (ami_type, is_arm, is_windows, is_bottlerocket) in [
            ("AL2_x86_64", Some(false), false, false),
            ("AL2_ARM_64", Some(true), false, false),
            ("AL2023_ARM_64_STANDARD", Some(true), false, false),
            ("AL2023_x86_64_NVIDIA", Some(false), false, false),
            ("BOTTLEROCKET_ARM_64_FIPS", Some(true), false, true),
            ("WINDOWS_CORE_2022_x86_64", Some(false), true, false),
            ("CUSTOM", None, false, false),
        ] {
            let group =
                ManagedNodeGroup { ami_type: Some(ami_type.to_owned()), ..ManagedNodeGroup::default() };
            assert_eq!((group.is_arm(), group.is_windows()), (is_arm, is_windows), "{ami_type}");
            assert_eq!(group.is_bottlerocket(), is_bottlerocket, "{ami_type}");
            assert_eq!(group.has_image_of_eks(), ami_type != "CUSTOM", "{ami_type}");
        }
        let unknown = ManagedNodeGroup::default();
        assert_eq!((unknown.is_arm(), unknown.has_image_of_eks()), (None, false));
    }

    #[test]
    fn taints_are_read_in_kubernetes_spelling() {
        let read = |effect: eks::TaintEffect| {
            taint(eks::Taint::builder().key("dedicated").effect(effect).build()).map(|taint| taint.effect)
        };
        assert_eq!(read(eks::TaintEffect::NoSchedule).as_deref(), Some("NoSchedule"));
        assert_eq!(read(eks::TaintEffect::NoExecute).as_deref(), Some("NoExecute"));
        assert_eq!(read(eks::TaintEffect::PreferNoSchedule).as_deref(), Some("PreferNoSchedule"));
        assert_eq!(read(eks::TaintEffect::from("NEVER")), None);
    }
}
