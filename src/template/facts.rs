//! The input of a template.

use super::learned::Learned;
use super::os::{self, Os};
use super::tags::NodeTags;
use crate::aws::{Launch, LaunchSpec, ManagedNodeGroup, TypeInfo};

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
    pub types: &'a [&'a TypeInfo],
    /// What they are launched from.
    pub spec: &'a LaunchSpec,
    /// How it pays, if one way only.
    pub market: Option<Market>,
    /// Its EKS managed node group, if any.
    pub eks: Option<Managed<'a>>,
    /// What its real nodes have shown.
    pub learned: Option<&'a Learned>,
    /// What its tags say.
    pub tags: &'a NodeTags,
}

/// An EKS managed node group.
#[derive(Clone, Copy, Debug)]
pub struct Managed<'a> {
    /// Its name, from the tag `eks:nodegroup-name`.
    pub name: &'a str,
    /// EKS's description, if known.
    pub described: Option<&'a ManagedNodeGroup>,
}

impl<'a> Facts<'a> {
    /// EKS's description of the group's nodes, if known.
    pub(super) fn described(&self) -> Option<&'a ManagedNodeGroup> {
        self.eks.and_then(|managed| managed.described)
    }

    /// Operating system of its nodes.
    pub(super) fn os(&self) -> Os {
        let of_eks = self.described().is_some_and(ManagedNodeGroup::is_windows).then_some(Os::Windows.name());
        let shown = || self.learned.and_then(|learned| learned.labels.get(os::LABEL)).map(String::as_str);
        let told = self.tags.labels.get(os::LABEL).map(String::as_str);
        match told.or(of_eks).or_else(shown) {
            Some("windows") => Os::Windows,
            _ if self.is_bottlerocket() => Os::Bottlerocket,
            _ => Os::Linux,
        }
    }

    fn is_bottlerocket(&self) -> bool {
        self.spec.user_data.bottlerocket || self.described().is_some_and(ManagedNodeGroup::is_bottlerocket)
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
