//! The input of a template.

use std::sync::Arc;

use super::learned::Learned;
use super::os::Os;
use super::tags::NodeTags;
use crate::aws::{Launch, LaunchSpec, ManagedNodeGroup, TypeInfo};
use crate::k8s::names;

/// The input of a template.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Name of the group.
    pub group: &'a str,
    /// Region of the group.
    pub region: &'a str,
    /// Zones of the group, in AWS's order.
    pub zones: &'a [String],
    /// Id of the first zone, if known; the same in all accounts.
    pub zone_id: Option<&'a str>,
    /// Types it may launch, in its order of preference.
    pub types: &'a [Candidate<'a>],
    /// How it pays, if one way only.
    pub market: Option<Market>,
    /// Its EKS managed node group, if any.
    pub eks: Option<Managed<'a>>,
    /// What its real nodes have shown.
    pub learned: Option<&'a Learned>,
    /// What its tags say.
    pub tags: &'a NodeTags,
}

/// An instance type that a group may launch.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The type.
    pub info: &'a TypeInfo,
    /// What it is launched from: more than one where a policy lists the type with several launch templates.
    pub specs: &'a [Arc<LaunchSpec>],
}

/// An EKS managed node group.
#[derive(Clone, Copy, Debug)]
pub struct Managed<'a> {
    /// Its name.
    pub name: &'a str,
    /// EKS's description, if known.
    pub described: Option<&'a ManagedNodeGroup>,
}

impl<'a> Facts<'a> {
    /// EKS's description of the group's nodes, if known.
    pub(super) fn described(&self) -> Option<&'a ManagedNodeGroup> {
        self.eks.and_then(|managed| managed.described)
    }

    /// Names of the types it may launch.
    pub(super) fn type_names(&self) -> impl Iterator<Item = &'a str> {
        self.types.iter().map(|candidate| candidate.info.name.as_str())
    }

    /// Whether its nodes run Windows.
    pub(super) fn is_windows(&self) -> bool {
        let of_eks = self.described().is_some_and(ManagedNodeGroup::is_windows).then_some(Os::Windows.name());
        let shown = || self.learned.and_then(|learned| learned.labels.get(names::OS)).map(String::as_str);
        let told = self.tags.labels.get(names::OS).map(String::as_str);
        told.or(of_eks).or_else(shown) == Some(Os::Windows.name())
    }

    /// Operating system of its nodes that are launched from `spec`.
    pub(super) fn os(&self, spec: &LaunchSpec) -> Os {
        let of_eks = || self.described().is_some_and(ManagedNodeGroup::is_bottlerocket);
        if self.is_windows() {
            Os::Windows
        } else if spec.user_data.bottlerocket || of_eks() {
            Os::Bottlerocket
        } else {
            Os::Linux
        }
    }
}

/// How a group pays for its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Market {
    /// On-Demand only.
    OnDemand,
    /// Spot only.
    Spot,
}

impl Market {
    /// The market of a group's instances, if they share one. With a mixed instances policy the policy decides, and the
    /// launch template may not set it.
    ///
    /// Source: [Auto Scaling groups with multiple instance types and purchase
    /// options](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-mixed-instances-groups.html).
    pub fn of(launch: &Launch, spec: &LaunchSpec) -> Option<Self> {
        match launch.mix {
            Some(mix) if mix.on_demand_percentage >= 100 => Some(Self::OnDemand),
            Some(mix) if mix.on_demand_percentage == 0 && mix.on_demand_base == 0 => Some(Self::Spot),
            Some(_) => None,
            None if spec.spot => Some(Self::Spot),
            None => Some(Self::OnDemand),
        }
    }
}
