//! Elastic Load Balancing, version 2015-12-01: target groups of load balancers, and who is registered with them.
//!
//! A group registers its instances with the target groups attached to it, and deregisters them when they are to go. Others are
//! served by a controller in the cluster, in `sim::world`.
//!
//! <https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_Operations.html>

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::error::ApiError;
use super::group::{Instance, after};
use super::handle::Aws;
use super::lifecycle::LifecycleState;
use super::operation::Operation;
use super::power::Power;
use super::query::{Form, page, page_size};
use super::state::{ACCOUNT, REGION, State};
use super::xml::Xml;

/// A target group to be.
#[derive(Clone, Debug)]
pub struct TargetGroupSpec {
    name: String,
    target_type: &'static str,
    delay: Duration,
    /// The group that it is attached to.
    attached: Option<String>,
    is_by_hand: bool,
}

impl TargetGroupSpec {
    /// One of instances, which a controller in the cluster registers, with AWS's deregistration delay of 300 s.
    ///
    /// <https://docs.aws.amazon.com/elasticloadbalancing/latest/application/edit-target-group-attributes.html>
    pub fn named(name: impl Into<String>) -> Self {
        let (name, delay) = (name.into(), Duration::from_mins(5));
        Self { name, target_type: "instance", delay, attached: None, is_by_hand: false }
    }

    /// Connections through a deregistered target live this long.
    #[must_use]
    pub fn delay(mut self, seconds: u64) -> Self {
        self.delay = Duration::from_secs(seconds);
        self
    }

    /// Attached to a group.
    #[must_use]
    pub fn attached_to(mut self, group: &str) -> Self {
        self.attached = Some(group.to_owned());
        self
    }

    /// Served by a person, not by the controller.
    #[must_use]
    pub fn by_hand(mut self) -> Self {
        self.is_by_hand = true;
        self
    }

    /// Of addresses of pods: no instance is registered.
    #[must_use]
    pub fn of_pods(mut self) -> Self {
        self.target_type = "ip";
        self
    }
}

/// A target group, and its targets.
#[derive(Debug)]
pub(super) struct TargetGroup {
    spec: TargetGroupSpec,
    /// Instances that the controller has registered; when the last connection of one that is deregistered ends.
    targets: BTreeMap<String, Option<Timestamp>>,
}

impl TargetGroup {
    /// Whether the controller serves it.
    fn is_controllers(&self) -> bool {
        self.spec.attached.is_none() && self.spec.target_type == "instance" && !self.spec.is_by_hand
    }
}

/// What a test does with target groups.
impl Aws {
    /// Adds a target group and returns its ARN.
    pub fn add_target_group(&self, spec: TargetGroupSpec) -> String {
        let arn = format!(
            "arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:targetgroup/{}/0123456789abcdef",
            spec.name
        );
        let group = TargetGroup { spec, targets: BTreeMap::new() };
        self.script(|state, _| state.target_groups.insert(arn.clone(), group));
        arn
    }

    /// A person registers an instance.
    pub fn register_target(&self, arn: &str, instance: &str) {
        self.script(|state, _| {
            let group = state.target_groups.get_mut(arn)?;
            group.targets.insert(instance.to_owned(), None)
        });
    }

    /// Whether a controller has something to do.
    pub(in crate::sim) fn has_target_groups(&self) -> bool {
        self.look(|state| state.target_groups.values().any(TargetGroup::is_controllers))
    }

    /// The controller registers an instance with its target groups, or deregisters it.
    pub(in crate::sim) fn balance(&self, instance: &str, is_target: bool) {
        self.script(|state, now| {
            for group in state.target_groups.values_mut().filter(|group| group.is_controllers()) {
                let ends = after(now, group.spec.delay);
                match group.targets.get_mut(instance) {
                    _ if is_target => drop(group.targets.insert(instance.to_owned(), None)),
                    Some(ends_at @ None) => *ends_at = Some(ends),
                    _ => {}
                }
            }
        });
    }

    /// When a target group lets go of an instance that is deregistered.
    pub fn drained_at(&self, arn: &str, instance: &str) -> Option<Timestamp> {
        self.look(|state| state.target_groups.get(arn)?.targets.get(instance).copied().flatten())
    }
}

pub(super) fn dispatch(
    state: &State,
    operation: Operation,
    form: &Form,
    now: Timestamp,
) -> Result<Xml, ApiError> {
    match operation {
        Operation::DescribeTargetGroups => describe(state, form),
        Operation::DescribeTargetHealth => health(state, form, now),
        Operation::DescribeTargetGroupAttributes => attributes(state, form),
        _ => {
            let (action, version) = (form.get("Action"), form.get("Version"));
            Err(ApiError::invalid_action(action.unwrap_or_default(), version.unwrap_or_default()))
        }
    }
}

/// <https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetGroups.html>
fn describe(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "PageSize", 400, 400)?;
    let all = state.target_groups.iter().map(|(arn, group)| (arn.clone(), (arn, &group.spec)));
    let (groups, next) = page(all, form.get("Marker"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("TargetGroups", "member", groups, |xml, (arn, spec)| {
            let balancer = format!(
                "arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:loadbalancer/app/{}/50dc",
                spec.name
            );
            xml.text("TargetGroupArn", arn)
                .text("TargetGroupName", &spec.name)
                .text("Protocol", "HTTP")
                .text("Port", 31_380)
                .text("VpcId", "vpc-0123456789abcdef0")
                .values("LoadBalancerArns", "member", [balancer])
                .text("TargetType", spec.target_type);
        })
        .optional("NextMarker", next);
    }))
}

/// <https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetHealth.html>: all targets. One whose
/// connections have ended is not among them.
fn health(state: &State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let group = found(state, form)?;
    let targets: Vec<(&str, Health)> = match &group.spec.attached {
        Some(attached) => {
            let of_group = state.groups.get(attached).into_iter().flat_map(|group| group.instances.values());
            of_group.filter_map(|instance| Some((instance.id.as_str(), of_the_group(instance)?))).collect()
        }
        None => group
            .targets
            .iter()
            .filter(|(_, ends_at)| ends_at.is_none_or(|at| at > now))
            .filter(|(id, _)| !state.shared.past.contains_key(*id))
            .map(|(id, ends_at)| {
                // One that a description of its group leaves out is registered all the same.
                let is_on = state.instance(id).is_none_or(|instance| instance.power == Power::Running);
                let drains = ends_at.map(|_| DRAINING);
                (id.as_str(), if is_on { drains.unwrap_or(HEALTHY) } else { OFF })
            })
            .collect(),
    };
    Ok(Xml::build(|xml| {
        xml.list("TargetHealthDescriptions", "member", targets, |xml, (id, (state, reason))| {
            xml.inside("Target", |xml| {
                xml.text("Id", id).text("Port", 31_380);
            })
            .text("HealthCheckPort", "traffic-port")
            .inside("TargetHealth", |xml| {
                xml.text("State", state).optional("Reason", reason);
            });
        });
    }))
}

/// A state, and its reason.
///
/// <https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html>
type Health = (&'static str, Option<&'static str>);
const HEALTHY: Health = ("healthy", None);
const DRAINING: Health = ("draining", Some("Target.DeregistrationInProgress"));
const OFF: Health = ("unused", Some("Target.InvalidState"));

/// The group registers what is in service, and deregisters it before hooks hold it.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks-overview.html>
fn of_the_group(instance: &Instance) -> Option<Health> {
    match instance.state {
        LifecycleState::InService => Some(HEALTHY),
        LifecycleState::Terminating => Some(DRAINING),
        _ => None,
    }
}

/// <https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetGroupAttributes.html>
fn attributes(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let delay = found(state, form)?.spec.delay.as_secs();
    let attributes = [
        ("stickiness.enabled", "false".to_owned()),
        ("deregistration_delay.timeout_seconds", delay.to_string()),
    ];
    Ok(Xml::build(|xml| {
        xml.list("Attributes", "member", attributes, |xml, (key, value)| {
            xml.text("Key", key).text("Value", value);
        });
    }))
}

fn found<'a>(state: &'a State, form: &Form) -> Result<&'a TargetGroup, ApiError> {
    let arn = form.required("TargetGroupArn")?;
    let not_found = || ApiError::client("TargetGroupNotFound", "One or more target groups not found");
    state.target_groups.get(arn).ok_or_else(not_found)
}

/// The ARNs of the target groups that are attached to a group.
pub(super) fn attached<'a>(state: &'a State, group: &'a str) -> impl Iterator<Item = &'a String> + Clone {
    let is_attached = move |found: &TargetGroup| found.spec.attached.as_deref() == Some(group);
    state.target_groups.iter().filter(move |(_, found)| is_attached(found)).map(|(arn, _)| arn)
}
