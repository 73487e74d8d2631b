//! Auto Scaling groups as plain data: optional fields resolved, no SDK types.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_autoscaling::types as asg;
use jiff::Timestamp;

use super::activity::moment;
use super::launch_template::Revision;
use super::lifecycle::Lifecycle;
use super::requirements::Requirements;
use crate::k8s::{GroupName, InstanceId};

/// An Auto Scaling group, from DescribeAutoScalingGroups.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct AutoScalingGroup {
    /// Its name.
    pub name: GroupName,
    /// Its ARN.
    pub arn: String,
    /// When it was made, by AWS's clock; `None`: AWS does not say.
    pub created: Option<Timestamp>,
    /// Smallest size. Discovery tightens `min` and `max` to the bounds of `--nodes`.
    pub min: i32,
    /// Largest size.
    pub max: i32,
    /// Desired capacity.
    pub desired: i32,
    /// What the description says of it, where that is not the size that ebbtide has set since and another description has shown: this one is
    /// from before, or somebody has set the earlier size again.
    pub described_desired: Option<i32>,
    /// Instances in every state. The warm pool's are included only if the group returns instances to it.
    pub instances: Vec<Instance>,
    /// Availability zones, in AWS's order.
    pub zones: Vec<String>,
    /// Zone ids by zone name, where they can be matched.
    pub zone_ids: BTreeMap<String, String>,
    /// Names of suspended scaling processes.
    pub suspended: BTreeSet<String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// What it launches.
    pub launch: Launch,
    /// Instance weights, if any: sizes are then units of capacity, not instances.
    pub weights: Option<Weights>,
    /// Why AWS refuses to change it, if so.
    pub frozen: Option<Frozen>,
    /// Its warm pool, if it has one.
    pub warm_pool: Option<WarmPool>,
    /// Whether it replaces spot instances itself on a rebalance recommendation (Capacity Rebalancing).
    pub rebalances_capacity: bool,
    /// Whether it keeps instances whose terminating hook is abandoned.
    pub retains: bool,
    /// Whether it may be deleted together with its instances, which then end without their lifecycle hooks.
    ///
    /// Source: [DeleteAutoScalingGroup](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DeleteAutoScalingGroup.html), `ForceDelete`.
    pub force_deletable: bool,
    /// ARNs of the target groups that it registers its instances with, and deregisters them from, by itself.
    pub target_groups: BTreeSet<String>,
    /// Whether it ends instances that one of its load balancers finds unhealthy.
    pub ends_unhealthy_targets: bool,
}

/// A group's warm pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmPool {
    /// Whether the group returns instances to it when it scales in.
    pub reuses: bool,
}

/// Why AWS refuses to change a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// An AWS service manages it; only this service principal may change it.
    ///
    /// Source: [Operator](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operator.html).
    OperatedBy(String),
    /// It is being deleted.
    Deleting,
}

/// An instance of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// EC2 instance id.
    pub id: InstanceId,
    /// Availability zone.
    pub zone: String,
    /// Lifecycle state.
    pub lifecycle: Lifecycle,
    /// Whether it is protected from the group's own scale-in.
    pub protected: bool,
    /// Whether the group is to replace it, by its health checks.
    pub unhealthy: bool,
    /// What it was launched from; `None` if AWS does not say, or says `$Latest` or `$Default`.
    pub launched_from: Option<Revision>,
}

/// Weights of a group's instances, 1 to 999 units; 1 if not given.
///
/// Source:
/// [LaunchTemplateOverrides](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LaunchTemplateOverrides.html).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// By instance id.
    pub of_instances: BTreeMap<InstanceId, i32>,
}

/// What a group launches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    /// Launch template or launch configuration.
    pub source: Option<Source>,
    /// Overrides of the mixed instances policy, in order of preference; empty without a policy.
    pub overrides: Vec<Override>,
    /// Spot and On-Demand shares of the mixed instances policy, if it has one.
    pub mix: Option<Mix>,
}

/// What describes the instances a group launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A version of a launch template.
    Template(TemplateRef),
    /// A launch configuration, by name.
    Configuration(String),
}

/// A version of a launch template, as a group refers to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TemplateRef {
    /// Its id, or its name if AWS gives no id.
    pub template: TemplateId,
    /// A number, `$Latest` or `$Default`.
    pub version: String,
}

/// Identifies a launch template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateId {
    /// `lt-…`.
    Id(String),
    /// Its name.
    Name(String),
}

/// An override of a mixed instances policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Override {
    /// The instance type, if it names one.
    pub instance_type: Option<String>,
    /// Attributes to select types by, if it gives any.
    pub requirements: Option<Requirements>,
    /// Its own launch template, if any.
    pub template: Option<TemplateRef>,
    /// Its own image, in place of the launch template's, if any.
    pub image: Option<String>,
}

/// On-Demand and Spot shares of a mixed instances policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Number of On-Demand instances before any Spot.
    pub on_demand_base: i32,
    /// Percentage of On-Demand instances after that.
    pub on_demand_percentage: i32,
}

impl AutoScalingGroup {
    pub(super) fn from_sdk(from: asg::AutoScalingGroup) -> Self {
        let launch = Launch::of(&from);
        let (weights, frozen) = (weights(&from), frozen(&from));
        let (warm_pool, retains) = (warm_pool(&from), retains(&from));
        let zone_ids = zone_ids(&from);
        let target_groups = target_groups(&from);
        let ends_unhealthy_targets = ends_unhealthy_targets(&from);
        let force_deletable = from.deletion_protection.as_ref().is_none_or(|it| it.as_str() == "none");
        let instances = from.instances.unwrap_or_default().into_iter().map(Instance::from_sdk);
        let is_node = |instance: &Instance| !instance.lifecycle.is_warm() && !instance.id.is_empty();
        let mut instances: Vec<_> = instances.filter(is_node).collect();
        // Collected in place: it has the room that AWS's longer form needs.
        instances.shrink_to_fit();
        let suspended = from.suspended_processes.unwrap_or_default();
        let tags = from.tags.unwrap_or_default();
        // Ids of nodes to come are made of the first one, and AWS promises no order.
        let mut zones = from.availability_zones.unwrap_or_default();
        zones.sort();
        Self {
            name: from.auto_scaling_group_name.unwrap_or_default().into(),
            arn: from.auto_scaling_group_arn.unwrap_or_default(),
            created: from.created_time.and_then(moment),
            min: from.min_size.unwrap_or(0).max(0),
            max: from.max_size.unwrap_or(0).max(0),
            desired: from.desired_capacity.unwrap_or(0).max(0),
            described_desired: None,
            instances,
            zones,
            zone_ids,
            suspended: suspended.into_iter().filter_map(|process| process.process_name).collect(),
            tags: tags
                .into_iter()
                .filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default())))
                .collect(),
            launch,
            weights,
            frozen,
            warm_pool,
            rebalances_capacity: from.capacity_rebalance.unwrap_or(false),
            retains,
            force_deletable,
            target_groups,
            ends_unhealthy_targets,
        }
    }

    /// Instances that count towards the desired capacity.
    pub fn live(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|i| i.lifecycle.is_live())
    }

    /// Instances missing from the desired capacity; 0 in a weighted group.
    pub fn missing(&self) -> usize {
        if self.is_weighted() {
            return 0;
        }
        usize::try_from(self.desired).unwrap_or(0).saturating_sub(self.live().count())
    }

    /// Whether it is not the group that had its name before, but one made anew. An answer without an ARN says nothing of that.
    pub fn is_another(&self, before: &Self) -> bool {
        self.arn != before.arn && !self.arn.is_empty() && !before.arn.is_empty()
    }

    /// Whether its sizes are units of capacity, not instances.
    pub fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// Units that an instance counts towards the desired capacity.
    pub fn weight(&self, instance: &str) -> i32 {
        let of_instances = self.weights.as_ref().map(|weights| &weights.of_instances);
        of_instances.and_then(|weights| weights.get(instance)).map_or(1, |&weight| weight)
    }
}

/// Why AWS refuses to change the group. `Status` is set only while it is being deleted, to `Delete in progress`.
///
/// Source: [AutoScalingGroup](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_AutoScalingGroup.html).
fn frozen(from: &asg::AutoScalingGroup) -> Option<Frozen> {
    // An empty element says nothing.
    let says = |text: &&str| !text.is_empty();
    let operator = from.operator.as_ref().and_then(|operator| operator.principal()).filter(says);
    let is_of_deletion = |text: &&str| text.to_ascii_lowercase().contains("delet");
    let deleting = from.status().filter(is_of_deletion).map(|_| Frozen::Deleting);
    operator.map(|operator| Frozen::OperatedBy(operator.to_owned())).or(deleting)
}

/// Zone ids by name. Names differ between accounts, and AWS does not list the two in the same order.
///
/// Source: [Availability Zone IDs](https://docs.aws.amazon.com/ram/latest/userguide/working-with-az-ids.html).
fn zone_ids(from: &asg::AutoScalingGroup) -> BTreeMap<String, String> {
    let pair = |(zone, id): (Option<&str>, Option<&str>)| Some((zone?.to_owned(), id?.to_owned()));
    let of_instances = from.instances().iter().map(|i| (i.availability_zone(), i.availability_zone_id()));
    let only = match (from.availability_zones(), from.availability_zone_ids()) {
        ([zone], [id]) => Some((Some(zone.as_str()), Some(id.as_str()))),
        _ => None,
    };
    of_instances.chain(only).filter_map(pair).collect()
}

/// The group's warm pool.
///
/// Source: [InstanceReusePolicy](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstanceReusePolicy.html).
fn warm_pool(from: &asg::AutoScalingGroup) -> Option<WarmPool> {
    let pool = from.warm_pool_configuration.as_ref()?;
    let policy = pool.instance_reuse_policy.as_ref();
    Some(WarmPool { reuses: policy.and_then(|policy| policy.reuse_on_scale_in).unwrap_or(false) })
}

/// Whether the group keeps instances whose terminating hook is abandoned.
///
/// Source: [RetentionTriggers](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RetentionTriggers.html).
fn retains(from: &asg::AutoScalingGroup) -> bool {
    let policy = from.instance_lifecycle_policy.as_ref();
    let triggers = policy.and_then(|policy| policy.retention_triggers.as_ref());
    triggers.and_then(|triggers| triggers.terminate_hook_abandon.as_ref())
        == Some(&asg::RetentionAction::Retain)
}

/// The target groups attached to the group. AWS tells of them in both ways.
///
/// Source: [`TrafficSourceIdentifier`](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TrafficSourceIdentifier.html).
fn target_groups(from: &asg::AutoScalingGroup) -> BTreeSet<String> {
    let sources = from.traffic_sources().iter().filter_map(asg::TrafficSourceIdentifier::identifier);
    let arns = from.target_group_arns().iter().map(String::as_str);
    arns.chain(sources).filter(|arn| arn.contains(":targetgroup/")).map(str::to_owned).collect()
}

/// Whether a load balancer's health checks count: the group has one, and its type, a list of up to four, names them.
///
/// Source: [AutoScalingGroup](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_AutoScalingGroup.html),
/// `HealthCheckType`.
fn ends_unhealthy_targets(from: &asg::AutoScalingGroup) -> bool {
    let has_some = !from.load_balancer_names().is_empty()
        || !from.target_group_arns().is_empty()
        || !from.traffic_sources().is_empty();
    let mut kinds = from.health_check_type().unwrap_or_default().split(',').map(str::trim);
    has_some && kinds.any(|kind| matches!(kind, "ELB" | "VPC_LATTICE"))
}

/// Weights, if the group is weighted: an override or an instance has a weight other than 1, or capacity is not counted
/// in instances.
///
/// AWS gives weights as text: [Instance](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Instance.html),
/// [DesiredCapacityType](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CreateAutoScalingGroup.html).
fn weights(from: &asg::AutoScalingGroup) -> Option<Weights> {
    let read = |text: &str| Some(text.parse::<i32>().ok()?.clamp(1, 999));
    let policy = from.mixed_instances_policy.as_ref().and_then(|policy| policy.launch_template.as_ref());
    let mut of_lines = policy.map(asg::LaunchTemplate::overrides).unwrap_or_default().iter();
    let of_instances: BTreeMap<InstanceId, i32> = from
        .instances()
        .iter()
        .filter_map(|i| Some((i.instance_id()?.into(), read(i.weighted_capacity()?)?)))
        .collect();
    let is_weighted = of_lines.any(|line| line.weighted_capacity().and_then(read).is_some_and(|w| w != 1))
        || of_instances.values().any(|weight| *weight != 1)
        || from.desired_capacity_type().is_some_and(|kind| !["", "units"].contains(&kind));
    is_weighted.then_some(Weights { of_instances })
}

impl Instance {
    pub(super) fn from_sdk(from: asg::Instance) -> Self {
        Self {
            launched_from: launched_from(&from),
            id: from.instance_id.unwrap_or_default().into(),
            zone: from.availability_zone.unwrap_or_default(),
            lifecycle: Lifecycle::parse(from.lifecycle_state.as_ref().map_or("", |state| state.as_str())),
            protected: from.protected_from_scale_in.unwrap_or(false),
            unhealthy: from.health_status.is_some_and(|status| status.eq_ignore_ascii_case("unhealthy")),
        }
    }
}

/// A text that says something: an empty element, as some endpoints write for what is not there, says nothing.
fn said(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn launched_from(from: &asg::Instance) -> Option<Revision> {
    let names_one = |of: &&asg::LaunchTemplateSpecification| {
        said(of.launch_template_id()).or(said(of.launch_template_name())).is_some()
    };
    let Some(template) = from.launch_template().filter(names_one) else {
        return said(from.launch_configuration_name()).map(|name| Revision(name.to_owned()));
    };
    let (id, version) = (said(template.launch_template_id())?, template.version()?);
    version.parse::<u64>().ok()?;
    Some(Revision::of_template(id, version))
}

impl Launch {
    fn of(from: &asg::AutoScalingGroup) -> Self {
        let mixed = from.mixed_instances_policy.as_ref();
        let base = mixed.and_then(|policy| policy.launch_template.as_ref());
        let of_policy = base.and_then(|base| base.launch_template_specification());
        let template = [from.launch_template(), of_policy].into_iter().flatten().find_map(TemplateRef::of);
        let configuration = || said(from.launch_configuration_name()).map(str::to_owned);
        let source = template.map(Source::Template).or_else(|| configuration().map(Source::Configuration));
        let overrides = base
            .map(asg::LaunchTemplate::overrides)
            .unwrap_or_default()
            .iter()
            .map(|line| Override {
                instance_type: said(line.instance_type()).map(str::to_owned),
                requirements: line.instance_requirements.as_ref().map(Requirements::of_group),
                template: line.launch_template_specification.as_ref().and_then(TemplateRef::of),
                image: said(line.image_id()).map(str::to_owned),
            })
            .collect();
        // A policy without a distribution means On-Demand only:
        // https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstancesDistribution.html
        let mix = mixed.map(|policy| {
            let split = policy.instances_distribution.as_ref();
            Mix {
                on_demand_base: split.and_then(|s| s.on_demand_base_capacity).unwrap_or(0),
                on_demand_percentage: split
                    .and_then(|s| s.on_demand_percentage_above_base_capacity)
                    .unwrap_or(100),
            }
        });
        Self { source, overrides, mix }
    }

    /// All launch template versions it refers to.
    pub fn templates(&self) -> impl Iterator<Item = &TemplateRef> {
        let own = match &self.source {
            Some(Source::Template(template)) => Some(template),
            _ => None,
        };
        own.into_iter().chain(self.overrides.iter().filter_map(|line| line.template.as_ref()))
    }
}

impl TemplateRef {
    fn of(from: &asg::LaunchTemplateSpecification) -> Option<Self> {
        let id = said(from.launch_template_id()).map(|id| TemplateId::Id(id.to_owned()));
        let name = || said(from.launch_template_name()).map(|name| TemplateId::Name(name.to_owned()));
        let template = id.or_else(name)?;
        // Without a version, the default one is used:
        // https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LaunchTemplateSpecification.html
        Some(Self { template, version: said(from.version()).unwrap_or("$Default").to_owned() })
    }

    /// Whether the version is a number, whose content never changes.
    pub fn is_pinned(&self) -> bool {
        !self.version.starts_with('$')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_element_says_nothing_and_hides_nothing() {
        let template = |id: &str, name: &str, version: &str| {
            let from = asg::LaunchTemplateSpecification::builder();
            from.launch_template_id(id).launch_template_name(name).version(version).build()
        };
        let policy = |of: asg::LaunchTemplateSpecification| {
            let base = asg::LaunchTemplate::builder().launch_template_specification(of).build();
            asg::MixedInstancesPolicy::builder().launch_template(base).build()
        };
        let named = |name: &str, version: &str| {
            Some(Source::Template(TemplateRef {
                template: TemplateId::Name(name.into()),
                version: version.into(),
            }))
        };
        let group = || asg::AutoScalingGroup::builder().launch_template(template("", "", ""));
        let table = [
            (group(), None),
            (group().launch_configuration_name(""), None),
            (group().launch_configuration_name("lc"), Some(Source::Configuration("lc".into()))),
            (group().mixed_instances_policy(policy(template("", "lt", "2"))), named("lt", "2")),
            (group().launch_template(template("", "lt", "")), named("lt", "$Default")),
        ];
        for (described, source) in table {
            let empty =
                asg::Instance::builder().instance_id("").lifecycle_state(asg::LifecycleState::Pending);
            let group = AutoScalingGroup::from_sdk(described.instances(empty.build()).build());
            assert_eq!(group.launch.source, source);
            assert_eq!(group.instances, []);
        }
    }

    #[test]
    fn sizes_and_weights_that_aws_never_has_are_brought_within_its_bounds() {
        let instance = |(id, weight): (&str, &str)| {
            asg::Instance::builder().instance_id(id).weighted_capacity(weight).build()
        };
        let all = [("a", "-2147483648"), ("b", "0"), ("c", "999"), ("d", "2147483647"), ("e", "many")];
        let group = asg::AutoScalingGroup::builder().min_size(-1).max_size(-7).desired_capacity(i32::MIN);
        let group = group.set_instances(Some(all.map(instance).to_vec())).build();
        let group = AutoScalingGroup::from_sdk(group);
        assert_eq!((group.min, group.max, group.desired), (0, 0, 0));
        assert_eq!(all.map(|(id, _)| group.weight(id)), [1, 1, 999, 999, 1]);
    }

    #[test]
    fn zones_are_in_order_whatever_order_they_come_in() {
        let zones = Some(["c", "a", "b"].map(str::to_owned).to_vec());
        let group = asg::AutoScalingGroup::builder().set_availability_zones(zones).build();
        assert_eq!(AutoScalingGroup::from_sdk(group).zones, ["a", "b", "c"]);
    }

    #[test]
    fn the_id_of_a_zone_is_known_from_an_instance_or_a_group_of_one_zone() {
        let group = |zones: &[&str], ids: &[&str]| {
            let owned = |all: &[&str]| Some(all.iter().map(|&one| one.to_owned()).collect());
            let group = asg::AutoScalingGroup::builder();
            group.set_availability_zones(owned(zones)).set_availability_zone_ids(owned(ids))
        };
        let read = |group: &asg::AutoScalingGroup| zone_ids(group).into_iter().collect::<Vec<_>>();
        let pair = |zone: &str, id: &str| (zone.to_owned(), id.to_owned());
        assert_eq!(read(&group(&["a"], &["az6"]).build()), [pair("a", "az6")]);
        let several = group(&["a", "b"], &["az2", "az6"]);
        assert_eq!(read(&several.clone().build()), [], "which is which is not told");
        let instance = asg::Instance::builder().availability_zone("b").availability_zone_id("az2");
        let nameless = asg::Instance::builder().availability_zone("a");
        let group = several.instances(instance.build()).instances(nameless.build()).build();
        assert_eq!(read(&group), [pair("b", "az2")]);
    }

    #[test]
    fn a_group_is_weighted_by_a_line_an_instance_or_the_kind_of_its_capacity() {
        let line = |weight: &str| {
            let line = asg::LaunchTemplateOverrides::builder().weighted_capacity(weight).build();
            let template = asg::LaunchTemplate::builder().overrides(line).build();
            let policy = asg::MixedInstancesPolicy::builder().launch_template(template).build();
            asg::AutoScalingGroup::builder().mixed_instances_policy(policy)
        };
        let instance = |weight: &str| {
            let instance = asg::Instance::builder().instance_id("i-1").weighted_capacity(weight).build();
            asg::AutoScalingGroup::builder().instances(instance)
        };
        let kind = |kind: &str| asg::AutoScalingGroup::builder().desired_capacity_type(kind);
        let table = [
            (line("1"), false),
            (line("2"), true),
            (instance("1"), false),
            (instance("4"), true),
            (kind("units"), false),
            (kind("vcpu"), true),
        ];
        for (group, expected) in table {
            let group = group.build();
            assert_eq!(weights(&group).is_some(), expected, "{group:?}");
        }
        let weights = weights(&instance("4").build()).expect("weighted").of_instances;
        assert_eq!(weights, [("i-1".into(), 4)].into());
    }

    #[test]
    fn the_health_checks_of_a_load_balancer_count_where_the_group_has_one_and_heeds_them() {
        let of = |kinds: &str| asg::AutoScalingGroup::builder().health_check_type(kinds);
        let source = asg::TrafficSourceIdentifier::builder().identifier("arn").build();
        let table = [
            (of("EC2").target_group_arns("arn"), false),
            (of("ELB"), false),
            (of("ELB").target_group_arns("arn"), true),
            (of("ELB").load_balancer_names("classic"), true),
            (of("EC2, ELB,EBS").target_group_arns("arn"), true),
            (of("VPC_LATTICE").traffic_sources(source), true),
            (of("").target_group_arns("arn"), false),
        ];
        for (group, expected) in table {
            let group = group.build();
            assert_eq!(ends_unhealthy_targets(&group), expected, "{group:?}");
        }
    }

    #[test]
    fn an_instance_of_the_warm_pool_is_no_instance_of_the_group() {
        let of = |id: &str, state: &str| {
            asg::Instance::builder()
                .instance_id(id)
                .availability_zone("us-east-1a")
                .lifecycle_state(state.into())
                .health_status("Healthy")
                .protected_from_scale_in(false)
                .build()
        };
        let group = asg::AutoScalingGroup::builder()
            .auto_scaling_group_name("web")
            .instances(of("i-1", "Warmed:Stopped"))
            .instances(of("i-2", "InService"))
            .build();
        let ids: Vec<_> = AutoScalingGroup::from_sdk(group).instances.into_iter().map(|i| i.id).collect();
        assert_eq!(ids, ["i-2"]);
    }
}
