//! The other read-only operations: instances, warm pools, activities, launch configurations.

use crate::sim::aws::autoscaling::groups::{arn, write_instance, write_pool};
use crate::sim::aws::error::ApiError;
use crate::sim::aws::query::{Form, page, page_size};
use crate::sim::aws::state::{ACCOUNT, REGION, State};
use crate::sim::aws::xml::Xml;

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingInstances.html>. Unknown ids are left
/// out, not refused.
pub(super) fn instances(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxRecords", 50, 50)?;
    let ids = form.list("InstanceIds.member");
    let mut instances: Vec<_> = state
        .groups
        .values()
        .flat_map(|group| group.instances.values())
        .filter(|instance| ids.is_empty() || ids.contains(&instance.id.as_str()))
        .map(|instance| (instance.id.clone(), instance))
        .collect();
    instances.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (instances, next) = page(instances, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("AutoScalingInstances", "member", instances, |xml, instance| {
            xml.text("AutoScalingGroupName", &instance.group);
            write_instance(xml, instance, &["HEALTHY", "UNHEALTHY"]);
        })
        .optional("NextToken", next);
    }))
}

/// The instances of a group's warm pool, including those entering and leaving it; empty without a pool.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeWarmPool.html>
pub(super) fn warm_pool(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxRecords", 50, 50)?;
    let name = form.required("AutoScalingGroupName")?;
    let group = state.groups.get(name).ok_or_else(|| ApiError::no_such_group(name))?;
    let warm = group.instances.iter().filter(|(_, instance)| instance.state.is_warm());
    let warm = warm.map(|(id, instance)| (id.clone(), instance));
    let (instances, next) = page(warm, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        if let Some(pool) = &group.policies.warm_pool {
            write_pool(xml, pool);
        }
        xml.list("Instances", "member", instances, |xml, instance| {
            write_instance(xml, instance, &["Healthy", "Unhealthy"]);
        })
        .optional("NextToken", next);
    }))
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeScalingActivities.html>: those
/// under way first, and newest first.
pub(super) fn activities(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxRecords", 100, 100)?;
    let group = form.get("AutoScalingGroupName");
    if let Some(name) = group.filter(|name| !state.groups.contains_key(*name)) {
        return Err(ApiError::no_such_group(name));
    }
    let ids = form.list("ActivityIds.member");
    let mut activities: Vec<_> = state
        .groups
        .values()
        .filter(|candidate| group.is_none_or(|name| candidate.name == name))
        .flat_map(|group| group.activities.iter().map(move |(number, activity)| (number, (group, activity))))
        .filter(|(_, (_, activity))| ids.is_empty() || ids.contains(&activity.id.as_str()))
        // `page` goes by keys that ascend.
        .map(|(number, (group, activity))| {
            let key = format!("{}{:020}", u8::from(activity.ended.is_some()), u64::MAX - number);
            (key, (group, activity))
        })
        .collect();
    activities.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (activities, next) = page(activities, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("Activities", "member", activities, |xml, (group, activity)| {
            activity.write(xml, &arn(group), state.shared.ahead);
        })
        .optional("NextToken", next);
    }))
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLaunchConfigurations.html>
pub(super) fn launch_configurations(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxRecords", 50, 100)?;
    let names = form.list("LaunchConfigurationNames.member");
    let configurations = state
        .shared
        .configurations
        .iter()
        .filter(|(name, _)| names.is_empty() || names.contains(&name.as_str()))
        .map(|(name, configuration)| (name.clone(), configuration));
    let (configurations, next) = page(configurations, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("LaunchConfigurations", "member", configurations, |xml, configuration| {
            let spec = &configuration.spec;
            let arn = format!(
                "arn:aws:autoscaling:{REGION}:{ACCOUNT}:launchConfiguration:\
                 00000000-0000-0000-0000-000000000000:launchConfigurationName/{}",
                spec.name
            );
            xml.text("LaunchConfigurationName", &spec.name)
                .text("LaunchConfigurationARN", arn)
                .text("ImageId", &spec.image)
                .text("KeyName", "")
                .inside("SecurityGroups", |_| {})
                .text("UserData", "")
                .text("InstanceType", &spec.instance_type)
                .list("BlockDeviceMappings", "member", &spec.volumes, |xml, (device, gib)| {
                    xml.text("DeviceName", device).inside("Ebs", |xml| {
                        xml.text("VolumeSize", gib).text("VolumeType", "gp3");
                    });
                })
                .optional("SpotPrice", spec.spot_price.as_ref())
                .time("CreatedTime", configuration.created)
                .text("EbsOptimized", false);
        })
        .optional("NextToken", next);
    }))
}
