//! EC2 Auto Scaling.

use aws_config::retry::RetryConfig;
use aws_sdk_autoscaling::types::{AutoScalingGroup, Filter};

use super::error::from_sdk;
use super::{Aws, AwsError, Operation};

/// Groups and names a page, the most AWS allows.
/// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html).
const PAGE: i32 = 100;

/// Launch configurations asked for at a time.
const LAUNCH_CONFIGURATIONS: usize = 50;

/// Instances whose protection one call sets, the most AWS allows.
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
const PROTECTED_AT_ONCE: usize = 50;

/// Which groups to describe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSelector {
    /// Those that have all of these tags; a tag without a value matches whatever value it has.
    Tags(Vec<(String, Option<String>)>),
    /// Those of these names.
    Names(Vec<String>),
}

/// One attempt of a group to change its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Status code, `Failed`, `Successful`, ...
    pub status: String,
    /// AWS's text, which holds EC2's code.
    pub message: String,
    /// What it was for.
    pub description: String,
    /// When it began, in seconds of the Unix epoch.
    pub started: i64,
}

/// What a launch configuration says of its instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchConfiguration {
    /// Its name.
    pub name: String,
    /// Instance type.
    pub instance_type: String,
    /// Size of the root volume in GiB, if it says.
    pub volume_gib: Option<i64>,
    /// Whether its instances are spot instances.
    pub spot: bool,
}

impl Aws {
    /// Describes groups, page by page.
    pub async fn describe_groups(&self, selector: &GroupSelector) -> Result<Vec<AutoScalingGroup>, AwsError> {
        match selector {
            GroupSelector::Tags(tags) => {
                let filters = tags
                    .iter()
                    .map(|(key, value)| match value {
                        Some(value) => Filter::builder().name(format!("tag:{key}")).values(value).build(),
                        None => Filter::builder().name("tag-key").values(key).build(),
                    })
                    .collect();
                self.describe_page_by_page(None, Some(filters)).await
            }
            GroupSelector::Names(names) => {
                let mut groups = Vec::new();
                for names in names.chunks(PAGE as usize) {
                    groups.extend(self.describe_page_by_page(Some(names.to_vec()), None).await?);
                }
                Ok(groups)
            }
        }
    }

    async fn describe_page_by_page(
        &self,
        names: Option<Vec<String>>,
        filters: Option<Vec<Filter>>,
    ) -> Result<Vec<AutoScalingGroup>, AwsError> {
        let operation = Operation::DescribeAutoScalingGroups;
        let mut groups = Vec::new();
        let mut next = None;
        loop {
            let page = self
                .reads
                .describe_auto_scaling_groups()
                .set_auto_scaling_group_names(names.clone())
                .set_filters(filters.clone())
                .max_records(PAGE)
                .set_next_token(next.take())
                .send()
                .await
                .map_err(|error| from_sdk(operation.as_str(), error));
            let page = self.calls.counted(operation, page)?;
            groups.extend(page.auto_scaling_groups.unwrap_or_default());
            next = page.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(groups);
            }
        }
    }

    /// The lifecycle hooks of a group.
    pub async fn lifecycle_hooks(
        &self,
        group: &str,
    ) -> Result<Vec<aws_sdk_autoscaling::types::LifecycleHook>, AwsError> {
        let operation = Operation::DescribeLifecycleHooks;
        let result = self.reads.describe_lifecycle_hooks().auto_scaling_group_name(group).send().await;
        let result = result.map_err(|error| from_sdk(operation.as_str(), error));
        Ok(self.calls.counted(operation, result)?.lifecycle_hooks.unwrap_or_default())
    }

    /// The last `most` activities of a group, newest first.
    pub async fn activities(&self, group: &str, most: i32) -> Result<Vec<Activity>, AwsError> {
        let operation = Operation::DescribeScalingActivities;
        let result = self
            .reads
            .describe_scaling_activities()
            .auto_scaling_group_name(group)
            .max_records(most)
            .send()
            .await;
        let result = result.map_err(|error| from_sdk(operation.as_str(), error));
        let activities = self.calls.counted(operation, result)?.activities.unwrap_or_default();
        Ok(activities
            .iter()
            .map(|activity| Activity {
                status: activity.status_code().map(|code| code.as_str().to_owned()).unwrap_or_default(),
                message: activity.status_message().unwrap_or_default().to_owned(),
                description: activity.description().unwrap_or_default().to_owned(),
                started: activity.start_time().map(aws_smithy_types::DateTime::secs).unwrap_or_default(),
            })
            .collect())
    }

    /// What launch configurations say.
    pub async fn launch_configurations(
        &self,
        names: &[String],
    ) -> Result<Vec<LaunchConfiguration>, AwsError> {
        let operation = Operation::DescribeLaunchConfigurations;
        let mut found = Vec::new();
        for names in names.chunks(LAUNCH_CONFIGURATIONS) {
            let result = self
                .reads
                .describe_launch_configurations()
                .set_launch_configuration_names(Some(names.to_vec()))
                .send()
                .await
                .map_err(|error| from_sdk(operation.as_str(), error));
            let page = self.calls.counted(operation, result)?;
            found.extend(page.launch_configurations.unwrap_or_default().iter().map(|configuration| {
                let mut volumes = configuration.block_device_mappings().iter();
                LaunchConfiguration {
                    name: configuration.launch_configuration_name().unwrap_or_default().to_owned(),
                    instance_type: configuration.instance_type().unwrap_or_default().to_owned(),
                    volume_gib: volumes.find_map(|v| v.ebs()?.volume_size()).map(i64::from),
                    spot: configuration.spot_price().is_some(),
                }
            }));
        }
        Ok(found)
    }

    /// Sets the desired capacity of a group. Sent once.
    pub async fn set_desired(&self, group: &str, desired: i32) -> Result<(), AwsError> {
        let operation = Operation::SetDesiredCapacity;
        let result = self
            .writes
            .set_desired_capacity()
            .auto_scaling_group_name(group)
            .desired_capacity(desired)
            .honor_cooldown(false)
            .customize()
            .config_override(once())
            .send()
            .await;
        let result = result.map_err(|error| from_sdk(operation.as_str(), error));
        self.calls.counted(operation, result).map(drop)
    }

    /// Terminates an instance, and lowers the desired capacity of its group with it if `decrement`. Sent once.
    pub async fn terminate(&self, instance: &str, decrement: bool) -> Result<(), AwsError> {
        let operation = Operation::TerminateInstanceInAutoScalingGroup;
        let result = self
            .writes
            .terminate_instance_in_auto_scaling_group()
            .instance_id(instance)
            .should_decrement_desired_capacity(decrement)
            .customize()
            .config_override(once())
            .send()
            .await;
        let result = result.map_err(|error| from_sdk(operation.as_str(), error));
        self.calls.counted(operation, result).map(drop)
    }

    /// Protects instances from scale-in, or takes the protection off.
    pub async fn protect(&self, group: &str, instances: &[String], on: bool) -> Result<(), AwsError> {
        let operation = Operation::SetInstanceProtection;
        for instances in instances.chunks(PROTECTED_AT_ONCE) {
            let result = self
                .writes
                .set_instance_protection()
                .auto_scaling_group_name(group)
                .set_instance_ids(Some(instances.to_vec()))
                .protected_from_scale_in(on)
                .send()
                .await
                .map_err(|error| from_sdk(operation.as_str(), error));
            self.calls.counted(operation, result)?;
        }
        Ok(())
    }

    /// Keeps a lifecycle hook waiting for another heartbeat time-out.
    pub async fn heartbeat(&self, group: &str, hook: &str, instance: &str) -> Result<(), AwsError> {
        let operation = Operation::RecordLifecycleActionHeartbeat;
        let result = self
            .writes
            .record_lifecycle_action_heartbeat()
            .auto_scaling_group_name(group)
            .lifecycle_hook_name(hook)
            .instance_id(instance)
            .send()
            .await
            .map_err(|error| from_sdk(operation.as_str(), error));
        self.calls.counted(operation, result).map(drop)
    }

    /// Completes a lifecycle hook: the group may go on with the instance.
    pub async fn complete(&self, group: &str, hook: &str, instance: &str) -> Result<(), AwsError> {
        let operation = Operation::CompleteLifecycleAction;
        let result = self
            .writes
            .complete_lifecycle_action()
            .auto_scaling_group_name(group)
            .lifecycle_hook_name(hook)
            .instance_id(instance)
            .lifecycle_action_result("CONTINUE")
            .send()
            .await
            .map_err(|error| from_sdk(operation.as_str(), error));
        self.calls.counted(operation, result).map(drop)
    }
}

/// No second attempt.
fn once() -> aws_sdk_autoscaling::config::Builder {
    aws_sdk_autoscaling::config::Builder::new().retry_config(RetryConfig::disabled())
}
