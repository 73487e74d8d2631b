//! The calls to EC2 Auto Scaling, one function each.

use aws_sdk_autoscaling::types::Filter;
use futures::future::try_join_all;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;

use super::retry::{CHANGE_OF_SIZE, LOOK, LOOK_UP, Patience, READ_NOW, WRITE};
use super::{Activity, AutoScalingGroup, Aws, AwsError, Hook, Instance, LaunchSpec, Operation, TagSelector};
use crate::k8s::{GroupName, InstanceId};

/// Names or records a call of DescribeAutoScalingGroups takes.
///
/// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html):
/// 50 names by default, up to 100 with MaxRecords.
const GROUPS_A_CALL: i32 = 100;
/// Names a call of DescribeLaunchConfigurations takes.
///
/// Source: [DescribeLaunchConfigurations](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLaunchConfigurations.html).
pub(crate) const CONFIGURATIONS_A_CALL: usize = 50;
/// Instances a call of SetInstanceProtection takes.
///
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
const PROTECTIONS_A_CALL: usize = 50;
/// Such calls at once: those of 1,000 instances take a second, and AWS throttles a burst of twenty.
const PROTECTIONS_AT_ONCE: usize = 4;
/// Activities a call of DescribeScalingActivities gives.
///
/// Source: [DescribeScalingActivities](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeScalingActivities.html).
const ACTIVITIES_A_CALL: i32 = 100;
/// Pages of activities that are read at most: a group with more than 500 attempts since the moment of interest has
/// shown what is wrong with it long before.
const PAGES_OF_ACTIVITIES: usize = 5;
/// No more activities than this are read.
pub(crate) const ACTIVITIES_AT_MOST: usize = PAGES_OF_ACTIVITIES * ACTIVITIES_A_CALL as usize;

impl Aws {
    /// The groups of these names; those that do not exist are left out. 100 names a call.
    pub async fn describe_groups(&self, names: &[GroupName]) -> Result<Vec<AutoScalingGroup>, AwsError> {
        let batches = names.chunks(GROUPS_A_CALL as usize).map(|batch| self.groups(LOOK, batch, &[]));
        Ok(try_join_all(batches).await?.into_iter().flatten().collect())
    }

    /// The group of this name, if there is one, for a change that somebody waits for.
    pub async fn describe_group_now(&self, name: &GroupName) -> Result<Option<AutoScalingGroup>, AwsError> {
        let found = self.groups(READ_NOW, &[name.to_owned()], &[]).await?;
        Ok(found.into_iter().find(|found| found.name == *name))
    }

    /// The groups that have all tags of the selector. 100 groups a call.
    pub async fn describe_tagged_groups(
        &self,
        selector: &TagSelector,
    ) -> Result<Vec<AutoScalingGroup>, AwsError> {
        let filters: Vec<Filter> = selector
            .tags
            .iter()
            .map(|(key, value)| match value {
                Some(value) => Filter::builder().name(format!("tag:{key}")).values(value).build(),
                None => Filter::builder().name("tag-key").values(key).build(),
            })
            .collect();
        let mut found = self.groups(LOOK, &[], &filters).await?;
        // The filters say the same; this keeps somebody else's groups out of ours whatever an endpoint makes of them.
        found.retain(|described| selector.matches(&described.tags));
        Ok(found)
    }

    async fn groups(
        &self,
        patience: Patience,
        names: &[GroupName],
        filters: &[Filter],
    ) -> Result<Vec<AutoScalingGroup>, AwsError> {
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let call = self
                .autoscaling
                .describe_auto_scaling_groups()
                .set_auto_scaling_group_names(
                    (!names.is_empty()).then(|| names.iter().map(String::from).collect()),
                )
                .set_filters((!filters.is_empty()).then(|| filters.to_vec()))
                .max_records(GROUPS_A_CALL)
                .set_next_token(token);
            let page =
                self.call(Operation::DescribeAutoScalingGroups, patience, || call.clone().send()).await?;
            found.extend(
                page.auto_scaling_groups.unwrap_or_default().into_iter().map(AutoScalingGroup::from_sdk),
            );
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    /// The instances of a group's warm pool, those on their way into it and out of it too: the group does not tell of them
    /// itself.
    ///
    /// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html).
    pub async fn warm_pool(&self, group: &GroupName) -> Result<Vec<Instance>, AwsError> {
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let call = self.autoscaling.describe_warm_pool().auto_scaling_group_name(group);
            let call = call.set_next_token(token);
            let page = self.call(Operation::DescribeWarmPool, LOOK_UP, || call.clone().send()).await?;
            found.extend(page.instances.unwrap_or_default().into_iter().map(Instance::from_sdk));
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    /// The hooks that hold the group's instances on their way out, other people's too.
    pub async fn lifecycle_hooks(&self, group: &GroupName) -> Result<Vec<Hook>, AwsError> {
        let call = self.autoscaling.describe_lifecycle_hooks().auto_scaling_group_name(group);
        let found = self.call(Operation::DescribeLifecycleHooks, LOOK_UP, || call.clone().send()).await?;
        Ok(found.lifecycle_hooks.unwrap_or_default().into_iter().filter_map(Hook::from_sdk).collect())
    }

    /// Sets the group's desired capacity, cooldown or not. Tried again only while AWS refuses it, for 2 s.
    pub async fn set_desired(&self, group: &GroupName, desired: i32) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .set_desired_capacity()
            .auto_scaling_group_name(group)
            .desired_capacity(desired)
            .honor_cooldown(false);
        self.call(Operation::SetDesiredCapacity, CHANGE_OF_SIZE, || call.clone().send()).await?;
        Ok(())
    }

    /// Tells the instance's group to terminate it, with or without taking it off the desired capacity. Tried again only
    /// while AWS refuses it, for 2 s.
    pub async fn terminate(&self, instance: &InstanceId, decrement: bool) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .terminate_instance_in_auto_scaling_group()
            .instance_id(instance)
            .should_decrement_desired_capacity(decrement);
        self.call(Operation::TerminateInstanceInAutoScalingGroup, CHANGE_OF_SIZE, || call.clone().send())
            .await?;
        Ok(())
    }

    /// Protects instances of the group from its own scale-in, or no longer. 50 instances a call, four calls at once; an
    /// error leaves some of them as they were.
    pub async fn protect(
        &self,
        group: &GroupName,
        instances: &[InstanceId],
        protect: bool,
    ) -> Result<(), AwsError> {
        let batches: Vec<Vec<InstanceId>> =
            instances.chunks(PROTECTIONS_A_CALL).map(<[InstanceId]>::to_vec).collect();
        let calls = batches.into_iter().map(|batch| async move {
            let call = self
                .autoscaling
                .set_instance_protection()
                .auto_scaling_group_name(group)
                .set_instance_ids(Some(batch.iter().map(String::from).collect()))
                .protected_from_scale_in(protect);
            self.call(Operation::SetInstanceProtection, WRITE, || call.clone().send()).await
        });
        let outcomes: Vec<_> = stream::iter(calls).buffer_unordered(PROTECTIONS_AT_ONCE).collect().await;
        outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
    }

    /// Gives the hook another heartbeat time-out to hold the instance.
    pub async fn heartbeat(
        &self,
        group: &GroupName,
        hook: &str,
        instance: &InstanceId,
    ) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .record_lifecycle_action_heartbeat()
            .auto_scaling_group_name(group)
            .lifecycle_hook_name(hook)
            .instance_id(instance);
        self.call(Operation::RecordLifecycleActionHeartbeat, WRITE, || call.clone().send()).await?;
        Ok(())
    }

    /// Lets the instance go on from the hook. Always CONTINUE: for a terminating instance ABANDON only skips the
    /// hooks of others.
    pub async fn complete(
        &self,
        group: &GroupName,
        hook: &str,
        instance: &InstanceId,
    ) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .complete_lifecycle_action()
            .auto_scaling_group_name(group)
            .lifecycle_hook_name(hook)
            .instance_id(instance)
            .lifecycle_action_result("CONTINUE");
        self.call(Operation::CompleteLifecycleAction, WRITE, || call.clone().send()).await?;
        Ok(())
    }

    /// The group's scaling activities that began at or after `until`, newest first.
    pub async fn scaling_activities(
        &self,
        group: &GroupName,
        until: Timestamp,
    ) -> Result<Vec<Activity>, AwsError> {
        let mut found: Vec<Activity> = Vec::new();
        let mut token = None;
        for _ in 0..PAGES_OF_ACTIVITIES {
            let call = self
                .autoscaling
                .describe_scaling_activities()
                .auto_scaling_group_name(group)
                .max_records(ACTIVITIES_A_CALL)
                .set_next_token(token);
            let page =
                self.call(Operation::DescribeScalingActivities, LOOK_UP, || call.clone().send()).await?;
            found.extend(page.activities.unwrap_or_default().into_iter().filter_map(Activity::from_sdk));
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() || found.last().is_some_and(|oldest| oldest.started < until) {
                break;
            }
        }
        found.retain(|activity| activity.started >= until);
        // AWS lists them so; what reads them relies on it.
        found.sort_by_key(|activity| std::cmp::Reverse(activity.started));
        Ok(found)
    }

    /// The launch configurations of these names; those that do not exist are left out. 50 names a call.
    pub async fn launch_configurations(
        &self,
        names: &[String],
    ) -> Result<Vec<(String, LaunchSpec)>, AwsError> {
        let mut found = Vec::new();
        for batch in names.chunks(CONFIGURATIONS_A_CALL) {
            let call = self
                .autoscaling
                .describe_launch_configurations()
                .set_launch_configuration_names(Some(batch.to_vec()))
                .max_records(CONFIGURATIONS_A_CALL as i32);
            let page =
                self.call(Operation::DescribeLaunchConfigurations, LOOK_UP, || call.clone().send()).await?;
            found.extend(page.launch_configurations.unwrap_or_default().into_iter().filter_map(|from| {
                Some((from.launch_configuration_name.clone()?, LaunchSpec::of_configuration(&from)))
            }));
        }
        Ok(found)
    }
}
