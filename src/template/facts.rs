//! What a template is made from.

use super::learned::Learned;
use super::os::{self, Os};
use super::tags::NodeTags;
use crate::aws::{Launch, LaunchSpec, ManagedNodeGroup, TypeInfo};

/// What a template is made from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Name of the group.
    pub group: &'a str,
    /// Region of the group.
    pub region: &'a str,
    /// Zones of the group, in AWS's order.
    pub zones: &'a [String],
    /// The id of the first, if known: the same zone's in all accounts.
    pub zone_id: Option<&'a str>,
    /// Types it may launch, in its order of preference.
    pub types: &'a [&'a TypeInfo],
    /// What they are launched from.
    pub spec: &'a LaunchSpec,
    /// How it pays, if that is one way.
    pub market: Option<Market>,
    /// The EKS managed node group it is of, if any.
    pub eks: Option<Managed<'a>>,
    /// What its real nodes have shown.
    pub learned: Option<&'a Learned>,
    /// What its tags say.
    pub tags: &'a NodeTags,
}

/// An EKS managed node group.
#[derive(Clone, Copy, Debug)]
pub struct Managed<'a> {
    /// Its name, as the tag `eks:nodegroup-name` has it.
    pub name: &'a str,
    /// What EKS says of it, if that is known.
    pub described: Option<&'a ManagedNodeGroup>,
}

impl<'a> Facts<'a> {
    /// What EKS says of the group's nodes.
    pub(super) fn described(&self) -> Option<&'a ManagedNodeGroup> {
        self.eks.and_then(|managed| managed.described)
    }

    /// The operating system of its nodes.
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
    /// On-Demand, all of them.
    OnDemand,
    /// Spot, all of them.
    Spot,
}

impl Market {
    /// The market of a group's instances, if they all have the same. A mixed instances policy has its own say, and
    /// its launch template must then have none.
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
