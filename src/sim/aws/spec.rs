//! Builders of simulated groups: `GroupSpec::named("web").size(0, 10, 2).zones(["us-east-1a"]).template("m5.large")`.
//!
//! A spec is plain data and is not checked: a test can build what AWS would refuse. Sizes are minimum, maximum, desired.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::lifecycle::HookSpec;
use super::requirements::Requirements;
use super::templates::TemplateData;
use super::timing::Timing;
use super::warm::WarmPoolSpec;

/// Why launches fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchFailure {
    /// The zone is out of the instance type.
    InsufficientCapacity,
    /// The account's limit of vCPUs is reached.
    VcpuLimit,
    /// No Spot capacity.
    NoSpotCapacity,
    /// Anything else.
    Other {
        /// EC2's code.
        code: String,
        /// EC2's text.
        message: String,
    },
}

impl LaunchFailure {
    pub(super) fn code(&self) -> &str {
        match self {
            Self::InsufficientCapacity => "InsufficientInstanceCapacity",
            Self::VcpuLimit => "VcpuLimitExceeded",
            Self::NoSpotCapacity => "UnfulfillableCapacity",
            Self::Other { code, .. } => code,
        }
    }

    /// EC2's text, as it appears in scaling activities.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-capacity.html>
    pub(super) fn message(&self, instance_type: &str, zone: &str) -> String {
        match self {
            Self::InsufficientCapacity => format!(
                "We currently do not have sufficient {instance_type} capacity in the Availability Zone you \
                 requested ({zone}). Our system will be working on provisioning additional capacity. You can \
                 currently get {instance_type} capacity by not specifying an Availability Zone in your request."
            ),
            Self::VcpuLimit => "You have requested more vCPU capacity than your current vCPU limit of 32 allows \
                                for the instance bucket that the specified instance type belongs to. Please visit \
                                http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
                .to_owned(),
            Self::NoSpotCapacity => {
                "There is no Spot capacity available that matches your request.".to_owned()
            }
            Self::Other { message, .. } => message.clone(),
        }
    }
}

/// A mixed instances policy.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_MixedInstancesPolicy.html>
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MixedSpec {
    pub(super) overrides: Vec<Override>,
    pub(super) on_demand_base: u32,
    pub(super) on_demand_percentage: u32,
}

/// One override of a mixed instances policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Override {
    Type {
        name: String,
        /// Units of an instance, if the group counts in units.
        weight: Option<u32>,
        /// Name and version of its own launch template, if it has one.
        template: Option<(String, String)>,
    },
    Requirements {
        wanted: Requirements,
        /// Its own image, if it has one.
        image: Option<String>,
    },
}

impl MixedSpec {
    /// On-Demand instances of any of these types; the group launches the first.
    pub fn of<T: Into<String>>(types: impl IntoIterator<Item = T>) -> Self {
        let of_type = |name: T| Override::Type { name: name.into(), weight: None, template: None };
        Self {
            overrides: types.into_iter().map(of_type).collect(),
            on_demand_base: 0,
            on_demand_percentage: 100,
        }
    }

    /// On-Demand instances of these types with these weights. The group launches the first type that fits the missing
    /// capacity, or else the first.
    pub fn weighing<T: Into<String>>(types: impl IntoIterator<Item = (T, u32)>) -> Self {
        let of_type = |(name, weight): (T, u32)| Override::Type {
            name: name.into(),
            weight: Some(weight),
            template: None,
        };
        Self {
            overrides: types.into_iter().map(of_type).collect(),
            on_demand_base: 0,
            on_demand_percentage: 100,
        }
    }

    /// Instances of any type that meets `requirements`; the group launches the first.
    pub fn meeting(requirements: Requirements) -> Self {
        let overrides = vec![Override::Requirements { wanted: requirements, image: None }];
        Self { overrides, on_demand_base: 0, on_demand_percentage: 100 }
    }

    /// With this image for its attributes, in place of the launch template's.
    #[must_use]
    pub fn image(mut self, id: &str) -> Self {
        for one in &mut self.overrides {
            if let Override::Requirements { image, .. } = one {
                *image = Some(id.to_owned());
            }
        }
        self
    }

    /// With one more type, which has a launch template of its own.
    #[must_use]
    pub fn with_template(mut self, instance_type: &str, template: &str, version: &str) -> Self {
        let template = Some((template.to_owned(), version.to_owned()));
        self.overrides.push(Override::Type { name: instance_type.to_owned(), weight: None, template });
        self
    }

    /// After `base` On-Demand instances, `percentage` of the rest are On-Demand, the others Spot.
    #[must_use]
    pub fn on_demand(mut self, base: u32, percentage: u32) -> Self {
        (self.on_demand_base, self.on_demand_percentage) = (base, percentage);
        self
    }
}

/// What a group's instances are launched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaunchSource {
    /// A template of its own, made with the group.
    Own(Box<TemplateData>),
    /// A version of a shared template, by name: a number, `$Latest` or `$Default`.
    Template { name: String, version: String },
    /// A launch configuration, by name.
    Configuration(String),
}

/// A launch configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfigurationSpec {
    pub(super) name: String,
    pub(super) instance_type: String,
    pub(super) image: String,
    pub(super) spot_price: Option<String>,
    pub(super) volumes: Vec<(String, u32)>,
}

impl LaunchConfigurationSpec {
    /// A launch configuration for `instance_type`.
    pub fn named(name: impl Into<String>, instance_type: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            instance_type: instance_type.into(),
            image: super::templates::DEFAULT_IMAGE.to_owned(),
            spot_price: None,
            volumes: Vec::new(),
        }
    }

    /// With an EBS volume.
    #[must_use]
    pub fn volume(mut self, device: impl Into<String>, gib: u32) -> Self {
        self.volumes.push((device.into(), gib));
        self
    }

    /// For Spot instances at no more than this price.
    #[must_use]
    pub fn spot(mut self, price: impl Into<String>) -> Self {
        self.spot_price = Some(price.into());
        self
    }
}

/// A group to add.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    pub(super) name: String,
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) desired: u32,
    pub(super) zones: Vec<String>,
    pub(super) source: LaunchSource,
    pub(super) mixed: Option<MixedSpec>,
    pub(super) tags: BTreeMap<String, (String, bool)>,
    pub(super) hooks: Vec<HookSpec>,
    pub(super) suspended: BTreeSet<String>,
    pub(super) protect_new: bool,
    pub(super) cooldown: Duration,
    pub(super) timing: Option<Box<Timing>>,
    pub(super) running: bool,
    pub(super) policies: Box<Policies>,
}

/// How a group terminates instances, and who may change it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct Policies {
    /// Whether it retains an instance whose terminating hook is abandoned.
    pub(super) retains: bool,
    /// Whether it takes an instance lifecycle policy and does not have it.
    pub(super) ignores_retention: bool,
    /// Whether it refuses to be deleted together with its instances.
    pub(super) prevents_force_deletion: bool,
    /// Whether it launches a replacement before it terminates.
    pub(super) launches_first: bool,
    /// Whether it replaces Spot instances on a rebalance recommendation.
    pub(super) rebalances_capacity: bool,
    pub(super) warm_pool: Option<WarmPoolSpec>,
    /// How long its load balancers take to deregister an instance.
    pub(super) deregistration: Duration,
    /// The only AWS service that may change it.
    pub(super) operator: Option<String>,
}

impl GroupSpec {
    /// An empty group of `m5.large` in `us-east-1a`.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            min: 0,
            max: 0,
            desired: 0,
            zones: vec!["us-east-1a".to_owned()],
            source: LaunchSource::Own(Box::new(TemplateData::of("m5.large"))),
            mixed: None,
            tags: BTreeMap::new(),
            hooks: Vec::new(),
            suspended: BTreeSet::new(),
            protect_new: false,
            // AWS's default: <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CreateAutoScalingGroup.html>
            cooldown: Duration::from_mins(5),
            timing: None,
            running: false,
            policies: Box::default(),
        }
    }

    /// Minimum, maximum and desired size.
    #[must_use]
    pub fn size(mut self, min: u32, max: u32, desired: u32) -> Self {
        (self.min, self.max, self.desired) = (min, max, desired);
        self
    }

    /// In these zones.
    #[must_use]
    pub fn zones<T: Into<String>>(mut self, zones: impl IntoIterator<Item = T>) -> Self {
        self.zones = zones.into_iter().map(Into::into).collect();
        self
    }

    /// With its own launch template, named like the group, that sets only an instance type.
    #[must_use]
    pub fn template(self, instance_type: impl Into<String>) -> Self {
        self.template_data(TemplateData::of(instance_type))
    }

    /// With its own launch template, named like the group.
    #[must_use]
    pub fn template_data(mut self, data: TemplateData) -> Self {
        self.source = LaunchSource::Own(Box::new(data));
        self
    }

    /// With a version (a number, `$Latest`, `$Default`) of a template added before.
    #[must_use]
    pub fn launch_template(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.source = LaunchSource::Template { name: name.into(), version: version.into() };
        self
    }

    /// With a launch configuration added before.
    #[must_use]
    pub fn launch_configuration(mut self, name: impl Into<String>) -> Self {
        self.source = LaunchSource::Configuration(name.into());
        self
    }

    /// With a mixed instances policy over its launch template.
    #[must_use]
    pub fn mixed(mut self, policy: MixedSpec) -> Self {
        self.mixed = Some(policy);
        self
    }

    /// With a tag, which its instances get too.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), (value.into(), true));
        self
    }

    /// With a lifecycle hook.
    #[must_use]
    pub fn hook(mut self, hook: HookSpec) -> Self {
        self.hooks.push(hook);
        self
    }

    /// With a process (`Launch`, `Terminate`, `AZRebalance`, …) suspended.
    #[must_use]
    pub fn suspended(mut self, process: impl Into<String>) -> Self {
        self.suspended.insert(process.into());
        self
    }

    /// New instances are protected from scale-in.
    #[must_use]
    pub fn protecting_new_instances(mut self) -> Self {
        self.protect_new = true;
        self
    }

    /// The cooldown in seconds, 300 by default.
    #[must_use]
    pub fn cooldown(mut self, seconds: u64) -> Self {
        self.cooldown = Duration::from_secs(seconds);
        self
    }

    /// With its own timing instead of the world's.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = Some(Box::new(timing));
        self
    }

    /// With an instance lifecycle policy that retains an instance whose terminating hook is abandoned
    /// (`TerminateHookAbandon`: `retain`).
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html>
    #[must_use]
    pub fn retaining(mut self) -> Self {
        self.policies.retains = true;
        self
    }

    /// At an endpoint that does not know instance lifecycle policies: it takes one, as any parameter that it does not know, and nothing
    /// comes of it.
    #[must_use]
    pub fn ignoring_retention(mut self) -> Self {
        self.policies.ignores_retention = true;
        self
    }

    /// Protected from being deleted together with its instances (`DeletionProtection`: `prevent-force-deletion`).
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_AutoScalingGroup.html>
    #[must_use]
    pub fn preventing_force_deletion(mut self) -> Self {
        self.policies.prevents_force_deletion = true;
        self
    }

    /// With a warm pool.
    #[must_use]
    pub fn warm_pool(mut self, pool: WarmPoolSpec) -> Self {
        self.policies.warm_pool = Some(pool);
        self
    }

    /// Operated by an AWS service: nobody else may change it.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operator.html>
    #[must_use]
    pub fn operated_by(mut self, principal: impl Into<String>) -> Self {
        self.policies.operator = Some(principal.into());
        self
    }

    /// Launches a replacement and waits until it is in service before terminating an instance: an instance maintenance
    /// policy, or the account's `launchBeforeTerminate`.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-launch-before-terminate-account-setting.html>
    #[must_use]
    pub fn launching_first(mut self) -> Self {
        self.policies.launches_first = true;
        self
    }

    /// With Capacity Rebalancing: on a rebalance recommendation it launches a replacement, and then terminates the
    /// instance.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-capacity-rebalancing.html>
    #[must_use]
    pub fn rebalancing_capacity(mut self) -> Self {
        self.policies.rebalances_capacity = true;
        self
    }

    /// Behind a load balancer that takes this long to deregister an instance; hooks hold it only after that. AWS's default:
    /// 300 s.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks-overview.html> and
    /// <https://docs.aws.amazon.com/elasticloadbalancing/latest/application/edit-target-group-attributes.html>
    #[must_use]
    pub fn deregistering_for(mut self, seconds: u64) -> Self {
        self.policies.deregistration = Duration::from_secs(seconds);
        self
    }

    /// Its instances are in service from the start, hooks or not.
    #[must_use]
    pub fn already_running(mut self) -> Self {
        self.running = true;
        self
    }
}
