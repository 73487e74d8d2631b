//! `DescribeAutoScalingGroups`. Instances of a warm pool are not among those of the group.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html>

use crate::sim::aws::error::ApiError;
use crate::sim::aws::group::{Group, Instance, Origin, Source};
use crate::sim::aws::load_balancing;
use crate::sim::aws::query::{Filter, Form, page, page_size};
use crate::sim::aws::requirements::Spelling;
use crate::sim::aws::spec::{MixedSpec, Override};
use crate::sim::aws::state::{ACCOUNT, REGION, State};
use crate::sim::aws::warm::WarmPoolSpec;
use crate::sim::aws::xml::Xml;

pub(super) fn describe(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxRecords", 50, 100)?;
    let names = form.list("AutoScalingGroupNames.member");
    if names.len() > size {
        return Err(ApiError::validation(format!(
            "The number of group names that may be passed in is limited to {size}"
        )));
    }
    let filters = Filter::all(form, "Filters.member", "Values.member");
    if let Some(unknown) = filters.iter().find(|filter| !is_known(filter)) {
        return Err(ApiError::validation(format!("Filter type {} is not correct.", unknown.name)));
    }
    let groups = state
        .groups
        .values()
        .filter(|group| names.is_empty() || names.contains(&group.name.as_str()))
        .filter(|group| filters.iter().all(|filter| passes(group, filter)))
        .map(|group| (group.name.clone(), group));
    let (groups, next) = page(groups, form.get("NextToken"), size)?;
    let with_instances = form.parsed::<bool>("IncludeInstances")?.unwrap_or(true);
    let answer = Xml::build(|xml| {
        xml.list("AutoScalingGroups", "member", groups, |xml, group| {
            write(xml, group, load_balancing::attached(state, &group.name), with_instances);
        })
        .optional("NextToken", next);
    });
    Ok(match state.shared.left_out {
        Some(element) => answer.without(element),
        None => answer,
    })
}

fn is_known(filter: &Filter) -> bool {
    matches!(filter.name.as_str(), "tag-key" | "tag-value") || filter.name.starts_with("tag:")
}

/// A filter passes on any of its values; a group must pass all filters.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Filter.html>
fn passes(group: &Group, filter: &Filter) -> bool {
    group.tags.iter().any(|(key, (value, _))| match filter.name.as_str() {
        "tag-key" => filter.accepts(key),
        "tag-value" => filter.accepts(value),
        name => name.strip_prefix("tag:") == Some(key) && filter.accepts(value),
    })
}

/// Each group that is made has another one, also under the name of an earlier one.
pub(super) fn arn(group: &Group) -> String {
    let Group { name, uuid, .. } = group;
    format!("arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:{uuid}:autoScalingGroupName/{name}")
}

fn write<'a>(
    xml: &mut Xml,
    group: &Group,
    target_groups: impl Iterator<Item = &'a String> + Clone,
    with_instances: bool,
) {
    xml.text("AutoScalingGroupName", &group.name).text("AutoScalingGroupARN", arn(group));
    match &group.mixed {
        Some(mixed) => write_mixed(xml, mixed, &group.source),
        None => write_source(xml, "LaunchTemplate", &group.source),
    }
    xml.text("MinSize", group.min)
        .text("MaxSize", group.max)
        .text("DesiredCapacity", group.desired)
        .text("DefaultCooldown", group.cooldown.as_secs())
        .values("AvailabilityZones", "member", &group.zones)
        .values("AvailabilityZoneIds", "member", zone_ids(&group.zones))
        .inside("LoadBalancerNames", |_| {})
        .values("TargetGroupARNs", "member", target_groups.clone())
        .list("TrafficSources", "member", target_groups, |xml, arn| {
            xml.text("Identifier", arn).text("Type", "elbv2");
        })
        .text("HealthCheckType", "EC2")
        .text("HealthCheckGracePeriod", 300);
    if with_instances {
        let own = group.instances.values().filter(|instance| !instance.state.is_warm());
        xml.list("Instances", "member", own, |xml, instance| {
            write_instance(xml, instance, &["Healthy", "Unhealthy"]);
        });
    }
    xml.time("CreatedTime", group.created)
        .list("SuspendedProcesses", "member", &group.suspended, |xml, process| {
            xml.text("ProcessName", process).text("SuspensionReason", "User suspended");
        })
        .text(
            "VPCZoneIdentifier",
            group.zones.iter().map(|z| format!("subnet-{z}")).collect::<Vec<_>>().join(","),
        )
        .inside("EnabledMetrics", |_| {})
        .list("Tags", "member", &group.tags, |xml, (key, (value, propagate))| {
            write_tag(xml, &group.name, key, value, *propagate);
        })
        .values("TerminationPolicies", "member", ["Default"])
        .text("NewInstancesProtectedFromScaleIn", group.protect_new);
    write_policies(xml, group);
}

/// Writes a `WarmPoolConfiguration`.
pub(super) fn write_pool(xml: &mut Xml, pool: &WarmPoolSpec) {
    xml.inside("WarmPoolConfiguration", |xml| {
        xml.text("MinSize", pool.min)
            .optional("MaxGroupPreparedCapacity", pool.prepared)
            .text("PoolState", pool.state())
            .inside("InstanceReusePolicy", |xml| {
                xml.text("ReuseOnScaleIn", pool.reuses);
            });
    });
}

/// The id of a zone in this account: ids are ordered differently from names.
///
/// <https://docs.aws.amazon.com/ram/latest/userguide/working-with-az-ids.html>
fn zone_id(zone: &str) -> String {
    let letter = zone.bytes().last().unwrap_or_default();
    format!("use1-az{}", (letter.wrapping_sub(b'a') % 6 + 3) % 6 + 1)
}

/// The ids of zones, sorted.
fn zone_ids(zones: &[String]) -> Vec<String> {
    let mut ids: Vec<_> = zones.iter().map(|zone| zone_id(zone)).collect();
    ids.sort();
    ids
}

/// Writes a group's policies and status, if it has any.
fn write_policies(xml: &mut Xml, group: &Group) {
    if group.policies.prevents_force_deletion {
        xml.text("DeletionProtection", "prevent-force-deletion");
    }
    if group.policies.retains {
        xml.inside("InstanceLifecyclePolicy", |xml| {
            xml.inside("RetentionTriggers", |xml| {
                xml.text("TerminateHookAbandon", "retain");
            });
        });
    }
    if let Some(pool) = &group.policies.warm_pool {
        write_pool(xml, pool);
        xml.text("WarmPoolSize", group.instances.values().filter(|i| i.state.is_warm()).count());
    }
    if group.policies.launches_first {
        // <https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-maintenance-policy-overview-and-considerations.html>
        xml.inside("InstanceMaintenancePolicy", |xml| {
            xml.text("MinHealthyPercentage", 100).text("MaxHealthyPercentage", 110);
        });
    }
    if group.policies.rebalances_capacity {
        xml.text("CapacityRebalance", true);
    }
    if let Some(principal) = &group.policies.operator {
        xml.inside("Operator", |xml| {
            xml.text("Principal", principal);
        });
    }
    if group.deleting.is_some() {
        xml.text("Status", "Delete in progress");
    }
}

/// Writes a `TagDescription`.
fn write_tag(xml: &mut Xml, group: &str, key: &str, value: &str, propagate: bool) {
    xml.text("ResourceId", group)
        .text("ResourceType", "auto-scaling-group")
        .text("Key", key)
        .text("Value", value)
        .text("PropagateAtLaunch", propagate);
}

/// Writes the fields that `Instance` and `AutoScalingInstanceDetails` share; the two spell health differently.
pub(super) fn write_instance(xml: &mut Xml, instance: &Instance, [healthy, unhealthy]: &[&str; 2]) {
    xml.text("InstanceId", &instance.id)
        .text("InstanceType", &instance.instance_type)
        .text("AvailabilityZone", &instance.zone)
        .text("AvailabilityZoneId", zone_id(&instance.zone))
        .text("LifecycleState", instance.state)
        .text("HealthStatus", if instance.healthy { healthy } else { unhealthy });
    match &instance.origin {
        Origin::Configuration(name) => {
            xml.text("LaunchConfigurationName", name);
        }
        Origin::Template { id, name, version } => {
            xml.inside("LaunchTemplate", |xml| {
                xml.text("LaunchTemplateId", id).text("LaunchTemplateName", name).text("Version", version);
            });
        }
    }
    xml.text("ProtectedFromScaleIn", instance.protected).optional("WeightedCapacity", instance.weight);
}

/// Writes a `LaunchTemplateSpecification` called `name`, or the name of a launch configuration.
fn write_source(xml: &mut Xml, name: &str, source: &Source) {
    match source {
        Source::Configuration(configuration) => {
            xml.text("LaunchConfigurationName", configuration);
        }
        Source::Template { id, name: template, version } => {
            xml.inside(name, |xml| {
                xml.text("LaunchTemplateId", id)
                    .text("LaunchTemplateName", template)
                    .text("Version", version);
            });
        }
    }
}

fn write_mixed(xml: &mut Xml, mixed: &MixedSpec, source: &Source) {
    xml.inside("MixedInstancesPolicy", |xml| {
        xml.inside("LaunchTemplate", |xml| {
            write_source(xml, "LaunchTemplateSpecification", source);
            xml.list("Overrides", "member", &mixed.overrides, |xml, one| match one {
                Override::Type { name, weight, template } => {
                    xml.text("InstanceType", name).optional("WeightedCapacity", *weight);
                    if let Some((template, version)) = template {
                        xml.inside("LaunchTemplateSpecification", |xml| {
                            xml.text("LaunchTemplateName", template).text("Version", version);
                        });
                    }
                }
                Override::Requirements { wanted, image } => {
                    xml.optional("ImageId", image.as_ref())
                        .inside("InstanceRequirements", |xml| wanted.write(xml, Spelling::AutoScaling));
                }
            });
        })
        .inside("InstancesDistribution", |xml| {
            xml.text("OnDemandAllocationStrategy", "prioritized")
                .text("OnDemandBaseCapacity", mixed.on_demand_base)
                .text("OnDemandPercentageAboveBaseCapacity", mixed.on_demand_percentage)
                .text("SpotAllocationStrategy", "price-capacity-optimized");
        });
    });
}
