//! The calls to EC2 Auto Scaling, one function each.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_autoscaling::types::{Filter, InstanceLifecyclePolicy, RetentionAction, RetentionTriggers};
use futures::future::try_join_all;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::sleep;

use super::error::NO_CODE;
use super::lifecycle_hook::TERMINATING;
use super::retry::{LOOK_UP, ONCE, Patience, READ_NOW, REFRESH, SET_SIZE, TERMINATE, WRITE};
use super::{
    Activity, AutoScalingGroup, Aws, AwsError, Hook, Instance, LaunchSpec, Operation, PagesRead, TagSelector,
};
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::chain;

/// Names or records in a call of DescribeAutoScalingGroups.
///
/// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html):
/// 50 names by default, up to 100 with MaxRecords.
const GROUPS_A_CALL: i32 = 100;
/// Names in a call of DescribeLaunchConfigurations.
///
/// Source: [DescribeLaunchConfigurations](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLaunchConfigurations.html).
pub(crate) const CONFIGURATIONS_A_CALL: usize = 50;
/// Pauses before the descriptions of a group that a caller waits for: three fit into the few seconds of an RPC.
const DESCRIBED_AFTER: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(250), Duration::from_millis(500)];
/// Instances in a call of SetInstanceProtection.
///
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
const PROTECTIONS_A_CALL: usize = 50;
/// Concurrent calls of SetInstanceProtection: 1,000 instances take a second, and AWS throttles a burst of twenty.
const PROTECTIONS_AT_ONCE: usize = 4;
/// Activities in an answer of DescribeScalingActivities.
///
/// Source: [DescribeScalingActivities](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeScalingActivities.html).
const ACTIVITIES_A_CALL: i32 = 100;

/// Whether an error about groups that were asked for by name says that one is missing.
type IsMissing = fn(&AwsError) -> bool;

fn is_unknown(error: &AwsError) -> bool {
    matches!(error, AwsError::NoSuchGroup { .. })
}

/// The same of an endpoint in AWS's place, which may refuse the name of a deleted group in words of its own. What has no code is no word of
/// such an endpoint, but of something on the way to it.
fn is_unknown_in_any_words(error: &AwsError) -> bool {
    is_unknown(error) || matches!(error, AwsError::Other { code, .. } if code != NO_CODE)
}

/// The groups, which nobody else has yet.
fn owned(groups: Vec<Arc<AutoScalingGroup>>) -> Vec<AutoScalingGroup> {
    groups.into_iter().map(Arc::unwrap_or_clone).collect()
}

impl Aws {
    /// The groups of these names; missing ones are left out. 100 names a call.
    pub async fn describe_groups(&self, names: &[GroupName]) -> Result<Vec<AutoScalingGroup>, AwsError> {
        self.named_groups(REFRESH, names, is_unknown, None).await.map(owned)
    }

    /// The groups of these names, for what cannot wait; missing ones are left out. 100 names a call.
    pub async fn describe_groups_now(&self, names: &[GroupName]) -> Result<Vec<AutoScalingGroup>, AwsError> {
        self.named_groups(READ_NOW, names, is_unknown, None).await.map(owned)
    }

    /// The groups of these names, of which some were deleted; those are left out. An endpoint in AWS's place may refuse their names in words of
    /// its own. What is on one of `pages` is not read again.
    pub async fn describe_groups_left(
        &self,
        names: &[GroupName],
        pages: &PagesRead,
    ) -> Result<Vec<Arc<AutoScalingGroup>>, AwsError> {
        self.named_groups(REFRESH, names, is_unknown_in_any_words, Some(pages)).await
    }

    /// The same for what cannot wait.
    pub async fn describe_groups_left_now(
        &self,
        names: &[GroupName],
    ) -> Result<Vec<Arc<AutoScalingGroup>>, AwsError> {
        self.named_groups(READ_NOW, names, is_unknown_in_any_words, None).await
    }

    async fn named_groups(
        &self,
        patience: Patience,
        names: &[GroupName],
        is_missing: IsMissing,
        pages: Option<&PagesRead>,
    ) -> Result<Vec<Arc<AutoScalingGroup>>, AwsError> {
        let batches = names.chunks(GROUPS_A_CALL as usize);
        let batches = batches.map(|batch| self.batch(patience, batch, is_missing, pages));
        Ok(try_join_all(batches).await?.into_iter().flatten().collect())
    }

    /// AWS leaves out groups that are missing. Whoever refuses the whole call for one is asked for each.
    async fn batch(
        &self,
        patience: Patience,
        names: &[GroupName],
        is_missing: IsMissing,
        pages: Option<&PagesRead>,
    ) -> Result<Vec<Arc<AutoScalingGroup>>, AwsError> {
        let refusal = match self.groups(patience, names, &[], pages).await {
            Err(refusal) if is_missing(&refusal) => refusal,
            outcome => return outcome,
        };
        let mut found = Vec::new();
        if let [name] = names {
            if !is_unknown(&refusal) {
                // Each refresh asks again; what that comes to, the discovery tells once.
                tracing::debug!(group = name.as_str(), error = %chain(&refusal), "a group is refused by name: it counts as missing");
            }
            return Ok(found);
        }
        for name in names.chunks(1) {
            found.extend(Box::pin(self.batch(patience, name, is_missing, pages)).await?);
        }
        Ok(found)
    }

    /// The group of this name, for a change that a caller waits for. `None` if three descriptions in a row leave it out: one
    /// alone may leave out a group that is there.
    ///
    /// Source: [Eventual consistency in the Amazon EC2
    /// API](https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
    pub async fn describe_group_now(&self, name: &GroupName) -> Result<Option<AutoScalingGroup>, AwsError> {
        for pause in DESCRIBED_AFTER {
            sleep(pause).await;
            let found = self.batch(READ_NOW, std::slice::from_ref(name), is_unknown, None).await?;
            if let Some(group) = owned(found).into_iter().find(|found| found.name == *name) {
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    /// The groups that have all tags of the selector, 100 a call. What is on one of `pages` is not read again.
    pub async fn describe_tagged_groups(
        &self,
        selector: &TagSelector,
        pages: &PagesRead,
    ) -> Result<Vec<Arc<AutoScalingGroup>>, AwsError> {
        let filters: Vec<Filter> = selector
            .tags
            .iter()
            .map(|(key, value)| match value {
                Some(value) => Filter::builder().name(format!("tag:{key}")).values(value).build(),
                None => Filter::builder().name("tag-key").values(key).build(),
            })
            .collect();
        let mut found = self.groups(REFRESH, &[], &filters, Some(pages)).await?;
        // The filters ask for the same; this keeps out foreign groups even if an endpoint ignores filters.
        found.retain(|described| selector.matches(&described.tags));
        Ok(found)
    }

    async fn groups(
        &self,
        patience: Patience,
        names: &[GroupName],
        filters: &[Filter],
        pages: Option<&PagesRead>,
    ) -> Result<Vec<Arc<AutoScalingGroup>>, AwsError> {
        let call = self
            .autoscaling
            .describe_auto_scaling_groups()
            .set_auto_scaling_group_names(
                (!names.is_empty()).then(|| names.iter().map(String::from).collect()),
            )
            .set_filters((!filters.is_empty()).then(|| filters.to_vec()))
            .max_records(GROUPS_A_CALL);
        let send = |token| {
            let page = pages.map(PagesRead::page);
            let call = call.clone().set_next_token(token).customize();
            let call = match &page {
                Some(page) => call.interceptor(page.clone()),
                None => call,
            };
            async move { Ok((call.send().await?, page)) }
        };
        let mut found = Vec::new();
        self.pages(Operation::DescribeAutoScalingGroups, patience, send, |(answer, page)| {
            let read = answer.auto_scaling_groups.unwrap_or_default();
            match page {
                Some(page) => found.extend(page.groups(read)),
                None => found.extend(read.into_iter().map(AutoScalingGroup::from_sdk).map(Arc::new)),
            }
            answer.next_token
        })
        .await?;
        Ok(found)
    }

    /// The instances of a group's warm pool, also those entering or leaving it: DescribeAutoScalingGroups does not list
    /// them.
    ///
    /// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html).
    pub async fn warm_pool(&self, group: &GroupName) -> Result<Vec<Instance>, AwsError> {
        let call = self.autoscaling.describe_warm_pool().auto_scaling_group_name(group);
        let send = |token| call.clone().set_next_token(token).send();
        let mut found = Vec::new();
        self.pages(Operation::DescribeWarmPool, LOOK_UP, send, |page| {
            found.extend(page.instances.unwrap_or_default().into_iter().map(Instance::from_sdk));
            page.next_token
        })
        .await?;
        Ok(found)
    }

    /// All hooks of the group that hold terminating instances, ours or not.
    pub async fn lifecycle_hooks(&self, group: &GroupName) -> Result<Vec<Hook>, AwsError> {
        let call = self.autoscaling.describe_lifecycle_hooks().auto_scaling_group_name(group);
        let found = self.call(Operation::DescribeLifecycleHooks, LOOK_UP, || call.clone().send()).await?;
        let hooks = found.lifecycle_hooks.unwrap_or_default().into_iter();
        Ok(hooks.filter_map(|hook| Hook::from_sdk(group, hook)).collect())
    }

    /// Puts the hook on its group, in place of one of its name. Of that one, what a [`Hook`] does not have stays: metadata,
    /// notifications. Instances that it holds already are held on its old terms.
    pub async fn put_hook(&self, hook: &Hook) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .put_lifecycle_hook()
            .auto_scaling_group_name(&hook.group)
            .lifecycle_hook_name(&hook.name)
            .lifecycle_transition(TERMINATING)
            .heartbeat_timeout(i32::try_from(hook.heartbeat_timeout.as_secs()).unwrap_or(i32::MAX))
            .default_result(hook.default_result());
        let about = format!("{} of {}", hook.name, hook.group);
        self.call_about(Operation::PutLifecycleHook, &about, WRITE, || call.clone().send()).await?;
        Ok(())
    }

    /// Has the group keep instances whose terminating hook is abandoned. Nothing else of the group changes.
    ///
    /// Source: [Control instance retention with instance lifecycle
    /// policies](https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html).
    pub async fn retain_abandoned(&self, group: &GroupName) -> Result<(), AwsError> {
        let triggers = RetentionTriggers::builder().terminate_hook_abandon(RetentionAction::Retain).build();
        let policy = InstanceLifecyclePolicy::builder().retention_triggers(triggers).build();
        let call = self
            .autoscaling
            .update_auto_scaling_group()
            .auto_scaling_group_name(group)
            .instance_lifecycle_policy(policy);
        self.call_about(Operation::UpdateAutoScalingGroup, group, WRITE, || call.clone().send()).await?;
        Ok(())
    }

    /// Sets the group's desired capacity, ignoring cooldown. Retried for 2 s, only if it is answered.
    pub async fn set_desired(&self, group: &GroupName, desired: i32) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .set_desired_capacity()
            .auto_scaling_group_name(group)
            .desired_capacity(desired)
            .honor_cooldown(false);
        let about = format!("{group} to {desired}");
        self.call_about(Operation::SetDesiredCapacity, &about, SET_SIZE, || call.clone().send()).await?;
        Ok(())
    }

    /// Has the instance's group terminate it, with or without lowering the desired capacity. Retried only if AWS
    /// refuses, for 2 s.
    pub async fn terminate(&self, instance: &InstanceId, decrement: bool) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .terminate_instance_in_auto_scaling_group()
            .instance_id(instance)
            .should_decrement_desired_capacity(decrement);
        let how = if decrement { "with decrement" } else { "without decrement" };
        let about = format!("{instance} {how}");
        let sent = self.call_about(Operation::TerminateInstanceInAutoScalingGroup, &about, TERMINATE, || {
            call.clone().send()
        });
        match sent.await {
            // Only what it says of the activity is lost.
            Err(error @ AwsError::Unreadable { .. }) => {
                tracing::warn!(instance = instance.as_str(), error = %chain(&error), "AWS's answer to a termination cannot be read: it counts as accepted");
                Ok(())
            }
            sent => sent.map(drop),
        }
    }

    /// Sets or clears the scale-in protection of instances. 50 instances a call, four calls at once; after an error
    /// some may be unchanged.
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
            self.call_about(Operation::SetInstanceProtection, group, WRITE, || call.clone().send()).await
        });
        let outcomes: Vec<_> = stream::iter(calls).buffer_unordered(PROTECTIONS_AT_ONCE).collect().await;
        outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
    }

    /// Extends the hook's hold on the instance by its heartbeat time-out. Tried once.
    pub async fn heartbeat(
        &self,
        group: &GroupName,
        hook: &str,
        instance: &InstanceId,
    ) -> Result<(), AwsError> {
        self.beat(group, hook, instance, ONCE).await
    }

    /// The same, tried for some seconds: to learn whether AWS takes any.
    pub async fn try_heartbeat(
        &self,
        group: &GroupName,
        hook: &str,
        instance: &InstanceId,
    ) -> Result<(), AwsError> {
        self.beat(group, hook, instance, WRITE).await
    }

    async fn beat(
        &self,
        group: &GroupName,
        hook: &str,
        instance: &InstanceId,
        patience: Patience,
    ) -> Result<(), AwsError> {
        let call = self
            .autoscaling
            .record_lifecycle_action_heartbeat()
            .auto_scaling_group_name(group)
            .lifecycle_hook_name(hook)
            .instance_id(instance);
        let operation = Operation::RecordLifecycleActionHeartbeat;
        self.call_about(operation, instance, patience, || call.clone().send()).await?;
        Ok(())
    }

    /// Releases the instance from the hook. Always CONTINUE: for a terminating instance ABANDON only skips other
    /// people's hooks.
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
        self.call_about(Operation::CompleteLifecycleAction, instance, ONCE, || call.clone().send()).await?;
        Ok(())
    }

    /// The group's scaling activities that began at or after `until`, newest first: up to `at_most`, rounded up to
    /// hundreds, or fewer as soon as they are `enough`.
    pub async fn scaling_activities(
        &self,
        group: &GroupName,
        until: Timestamp,
        at_most: usize,
        enough: impl Fn(&[Activity]) -> bool,
    ) -> Result<Vec<Activity>, AwsError> {
        let call = self
            .autoscaling
            .describe_scaling_activities()
            .auto_scaling_group_name(group)
            .max_records(ACTIVITIES_A_CALL);
        let send = |token| call.clone().set_next_token(token).send();
        let (mut found, mut pages_left) = (Vec::new(), at_most.div_ceil(ACTIVITIES_A_CALL as usize));
        self.pages(Operation::DescribeScalingActivities, LOOK_UP, send, |page| {
            let activities = page.activities.unwrap_or_default().into_iter();
            found.extend(activities.filter_map(|activity| Activity::from_sdk(group, activity)));
            pages_left = pages_left.saturating_sub(1);
            // Those under way come first, whenever they began. In another order the next pages may have younger ones.
            let over = found.iter().filter(|activity: &&Activity| activity.is_over());
            let is_newest_first =
                over.clone().nth(1).is_some() && over.is_sorted_by(|a, b| a.started >= b.started);
            let is_past =
                is_newest_first && found.last().is_some_and(|last| last.started < until && last.is_over());
            page.next_token.filter(|_| pages_left > 0 && !is_past && !enough(&found))
        })
        .await?;
        found.retain(|activity| activity.started >= until);
        // Callers rely on this order. Of those of one second it is always the same, so that a group is told the same failure.
        found.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| a.id.cmp(&b.id)));
        Ok(found)
    }

    /// The launch configurations of these names; missing ones are left out. 50 names a call.
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
            let send = |token| call.clone().set_next_token(token).send();
            self.pages(Operation::DescribeLaunchConfigurations, LOOK_UP, send, |page| {
                let listed = page.launch_configurations.unwrap_or_default().into_iter().filter_map(|from| {
                    Some((from.launch_configuration_name.clone()?, LaunchSpec::of_configuration(&from)))
                });
                found.extend(listed.filter(|(name, _)| batch.contains(name)));
                page.next_token
            })
            .await?;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::aws::answers::answering;

    fn response(operation: &str, result: &str) -> String {
        format!("<{operation}Response><{operation}Result>{result}</{operation}Result></{operation}Response>")
    }

    #[tokio::test(start_paused = true)]
    async fn activities_are_the_same_in_whatever_order_and_pages_they_come() {
        let first: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a moment");
        let activity = |n: i64| {
            let started = first + jiff::SignedDuration::from_mins(n / 2);
            let status = if n == 0 { "InProgress" } else { "Successful" };
            format!(
                "<member><ActivityId>{n}</ActivityId><StartTime>{started}</StartTime><StatusCode>{status}</StatusCode></member>"
            )
        };
        // As AWS lists them, and in other orders.
        for (order, pages_read) in [
            ([0, 5, 4, 3, 2, 1], 2),
            ([1, 2, 3, 4, 5, 0], 3),
            ([0, 1, 2, 3, 4, 5], 3),
            ([1, 3, 5, 0, 2, 4], 3),
        ] {
            let pages: Vec<String> =
                order.chunks(2).map(|page| page.iter().map(|&n| activity(n)).collect()).collect();
            let read = Arc::new(AtomicUsize::default());
            let counted = Arc::clone(&read);
            let aws = answering(move |_| {
                let page = counted.fetch_add(1, Ordering::Relaxed);
                let token = if page + 1 < pages.len() {
                    format!("<NextToken>{page}</NextToken>")
                } else {
                    String::new()
                };
                (
                    200,
                    response(
                        "DescribeScalingActivities",
                        &format!("<Activities>{}</Activities>{token}", pages[page]),
                    ),
                )
            });
            let until = first + jiff::SignedDuration::from_mins(2);
            let found = aws.scaling_activities(&"g".into(), until, 300, |_| false).await.expect("read");
            let found: Vec<_> = found.into_iter().map(|activity| activity.id).collect();
            assert_eq!(
                (found.join(" "), read.load(Ordering::Relaxed)),
                ("4 5".into(), pages_read),
                "{order:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_was_deleted_is_left_out_though_its_name_is_refused() {
        let aws = answering(|request| {
            if request.contains("old") {
                let error = "<Error><Code>ValidationError</Code><Message>There is no old</Message></Error>";
                return (400, format!("<ErrorResponse>{error}</ErrorResponse>"));
            }
            let group = "<member><AutoScalingGroupName>web</AutoScalingGroupName></member>";
            (
                200,
                response(
                    "DescribeAutoScalingGroups",
                    &format!("<AutoScalingGroups>{group}</AutoScalingGroups>"),
                ),
            )
        });
        let names = ["old".into(), "web".into()];
        let pages = PagesRead::default();
        let found = aws.describe_groups_left(&names, &pages).await.expect("the other one");
        assert_eq!(found.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["web"]);
        assert!(aws.describe_groups(&names).await.is_err(), "whoever names groups is told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_of_something_on_the_way_to_aws_tells_of_no_group() {
        let aws = answering(|_| (403, "<html><body>Forbidden</body></html>".to_owned()));
        assert!(aws.describe_groups_left(&["web".into()], &PagesRead::default()).await.is_err());
    }
}
