//! What a node costs an hour, by what is known of it: its labels, and its group. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_pb::api::core::v1::Node;
use prost::Message as _;

use super::book::{Book, GIB, Kind, Price, Size, System};
use crate::groups::{Group, Snapshot};
use crate::k8s::{ProviderId, names, quantity};
use crate::template::{Market, Template, tags};

/// How cluster-autoscaler names the nodes of which it asks what the next node of a group would be like: prefix, group, number.
///
/// Source: `SanitizeNode` in
/// [core/utils/utils.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.30.2/cluster-autoscaler/core/utils/utils.go).
const TEMPLATE: &str = "template-node-for-";

const TYPE: [&str; 2] = [names::INSTANCE_TYPE, names::BETA_INSTANCE_TYPE];
const ZONE: [&str; 2] = [names::ZONE, names::BETA_ZONE];
const REGION: [&str; 2] = [names::REGION, names::BETA_REGION];
const SYSTEM: [&str; 2] = [names::OS, names::BETA_OS];
/// Labels that tell how an instance is paid for: of EKS, Karpenter, and by habit.
const MARKET: [&str; 3] =
    ["eks.amazonaws.com/capacityType", "karpenter.sh/capacity-type", "node.kubernetes.io/lifecycle"];

/// Labels of a Node.
pub type Labels = BTreeMap<String, String>;

/// A node whose price is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PricedNode<'a> {
    /// Its instance type.
    pub instance_type: &'a str,
    /// Where it runs, or may be launched.
    pub zones: Vec<&'a str>,
    /// Its region, if it tells one.
    pub region: Option<&'a str>,
    /// Its operating system.
    pub system: System,
    /// What part of such nodes is paid for at spot prices, 0 to 1.
    pub spot_share: f64,
    /// What its group's tag says it costs an hour.
    pub tagged: Option<f64>,
    /// How big it is, as far as its group's template tells.
    pub size: Option<Size>,
}

/// The group of a node: that of its instance, or the one that cluster-autoscaler has named it for. Returns whether it stands for
/// the group's next node rather than for one that is there.
pub fn group_of<'a>(view: &'a Snapshot, provider_id: &str, name: &str) -> (Option<&'a Group>, bool) {
    let named = name.strip_prefix(TEMPLATE);
    let by_name = named.and_then(|rest| view.groups.get(rest.rsplit_once('-')?.0));
    let by_instance = || match provider_id.parse().ok()? {
        ProviderId::Instance { instance, .. } => view.instance(&instance).map(|(group, _)| group),
        ProviderId::Placeholder { group, .. } => view.groups.get(&group),
    };
    (by_name.or_else(by_instance).map(AsRef::as_ref), named.is_some())
}

impl<'a> PricedNode<'a> {
    /// A node with these labels, of this group. `is_next`: it stands for the group's next node.
    pub fn of(labels: &'a Labels, group: Option<&'a Group>, is_next: bool) -> Self {
        let label = |names: &[&str]| names.iter().find_map(|name| labels.get(*name)).map(String::as_str);
        let of_group =
            group.filter(|_| is_next).map(|group| group.asg.zones.iter().map(String::as_str).collect());
        let zones = of_group.filter(|zones: &Vec<&str>| !zones.is_empty());
        Self {
            instance_type: label(&TYPE).unwrap_or_default(),
            zones: zones.unwrap_or_else(|| label(&ZONE).into_iter().collect()),
            region: label(&REGION),
            system: if label(&SYSTEM) == Some("windows") { System::Windows } else { System::Linux },
            spot_share: label(&MARKET)
                .and_then(told_share)
                .or_else(|| group.map(spot_share))
                .unwrap_or_default(),
            tagged: group.and_then(|group| tags::price_per_hour(&group.asg.tags)),
            size: group.and_then(template).map(size),
        }
    }

    /// What it costs an hour; `None` if nothing is known of its type, not even its size. Without a spot price it costs what
    /// On-Demand does, which is the most that a spot instance is charged.
    ///
    /// Source: [Spot price](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-instances.html): the maximum is
    /// the On-Demand price unless one is given.
    pub fn price(&self, book: &Book, own_region: &str, now: Timestamp) -> Option<Price> {
        if let Some(per_hour) = self.tagged {
            return Some(Price { per_hour, source: super::Source::tag, told_at: None });
        }
        let kind = (self.instance_type.to_owned(), self.system);
        let on_demand = || book.on_demand(&kind, self.region.unwrap_or(own_region), self.size, now);
        let spot = || book.spot(&kind, &self.zones, now).or_else(on_demand);
        if self.spot_share >= 1.0 {
            spot()
        } else if self.spot_share <= 0.0 {
            on_demand()
        } else {
            Some(spot()?.mixed(self.spot_share, on_demand()?))
        }
    }
}

/// What a label's value says of the share of spot.
fn told_share(value: &str) -> Option<f64> {
    match value.to_ascii_lowercase().replace('_', "-").as_str() {
        "spot" => Some(1.0),
        "on-demand" | "normal" | "reserved" | "capacity-block" => Some(0.0),
        _ => None,
    }
}

/// What part of a group's next nodes is spot: none while it has fewer instances than are to be On-Demand in any case, then as
/// its mixed instances policy has it.
///
/// Source: [InstancesDistribution](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstancesDistribution.html).
pub fn spot_share(group: &Group) -> f64 {
    match template(group).and_then(|template| template.market) {
        Some(Market::Spot) => return 1.0,
        Some(Market::OnDemand) => return 0.0,
        None => {}
    }
    let Some(mix) = group.asg.launch.mix else { return 0.0 };
    let live = i32::try_from(group.asg.live().count()).unwrap_or(i32::MAX);
    if live < mix.on_demand_base {
        return 0.0;
    }
    1.0 - f64::from(mix.on_demand_percentage.clamp(0, 100)) / 100.0
}

/// The kinds of machine that a group launches, as far as its template and its mixed instances policy name them.
pub fn kinds(group: &Group) -> BTreeSet<Kind> {
    let labels = labels(group);
    let PricedNode { instance_type, system, .. } = PricedNode::of(&labels, None, false);
    let of_policy = group.asg.launch.overrides.iter().filter_map(|one| one.instance_type.as_deref());
    let named = of_policy.chain([instance_type]).filter(|name| !name.is_empty());
    named.map(|name| (name.to_owned(), system)).collect()
}

/// The labels of a group's next node.
pub fn labels(group: &Group) -> Labels {
    let node = template(group).and_then(|template| Node::decode(template.encoded.as_ref()).ok());
    node.and_then(|node| node.metadata).map(|metadata| metadata.labels).unwrap_or_default()
}

/// The group's template, or what stands in for it.
pub fn template(group: &Group) -> Option<&Template> {
    let made = group.template.as_ref().and_then(|template| template.as_ref().ok());
    made.or(group.stand_in.as_ref()).map(AsRef::as_ref)
}

/// What a template gives to pods: a little less than the machine.
fn size(template: &Template) -> Size {
    let (_, figures) = template.figures();
    let figure = |name: &str| figures.get(name).and_then(|text| quantity::parse(text)).unwrap_or_default();
    Size { vcpus: figure("cpu"), gib: figure("memory") / GIB, gpus: figure(names::NVIDIA_GPU) }
}
