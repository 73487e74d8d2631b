//! The calls to Elastic Load Balancing (v2), one function each.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_elasticloadbalancingv2::types::{TargetHealth, TargetHealthReasonEnum, TargetTypeEnum};

use super::retry::LOOK_UP;
use super::{Aws, AwsError, Operation};
use crate::k8s::InstanceId;

/// Target groups in an answer of DescribeTargetGroups.
///
/// Source: [DescribeTargetGroups](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetGroups.html).
const TARGET_GROUPS_A_CALL: i32 = 400;

/// The attribute with the deregistration delay.
///
/// Source: [TargetGroupAttribute](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetGroupAttribute.html).
const DELAY: &str = "deregistration_delay.timeout_seconds";

/// The longest deregistration delay.
///
/// Source: the same.
const LONGEST_DELAY: Duration = Duration::from_hours(1);

/// A target group whose targets are instances.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetGroup {
    /// Its ARN.
    pub arn: String,
    /// Its name.
    pub name: String,
}

impl Aws {
    /// The target groups of the region whose targets are instances and that a load balancer uses.
    pub async fn instance_target_groups(&self) -> Result<Vec<TargetGroup>, AwsError> {
        let call = self.load_balancing.describe_target_groups().page_size(TARGET_GROUPS_A_CALL);
        let send = |marker| call.clone().set_marker(marker).send();
        let mut found = Vec::new();
        self.pages(Operation::DescribeTargetGroups, LOOK_UP, send, |page| {
            let groups = page.target_groups.unwrap_or_default().into_iter();
            found.extend(groups.filter_map(|group| {
                let is_used = !group.load_balancer_arns().is_empty();
                let is_of_instances = group.target_type == Some(TargetTypeEnum::Instance);
                let (arn, name) = (group.target_group_arn?, group.target_group_name.unwrap_or_default());
                (is_used && is_of_instances).then_some(TargetGroup { arn, name })
            }));
            page.next_marker
        })
        .await?;
        Ok(found)
    }

    /// The instances that get connections through a target group: those registered, and those that are deregistered and still
    /// drain. None if it does not exist.
    ///
    /// All of them in one call: a target is known by its port as well, so that a question about one instance finds only what is
    /// registered with the group's own port.
    ///
    /// Sources: [DescribeTargetHealth](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetHealth.html),
    /// [`TargetDescription`](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetDescription.html).
    pub async fn targets(&self, group: &TargetGroup) -> Result<BTreeSet<InstanceId>, AwsError> {
        let call = self.load_balancing.describe_target_health().target_group_arn(&group.arn);
        let answer = match self.call(Operation::DescribeTargetHealth, LOOK_UP, || call.clone().send()).await {
            Err(AwsError::Other { code, .. }) if code == "TargetGroupNotFound" => return Ok(BTreeSet::new()),
            answer => answer?,
        };
        let targets = answer.target_health_descriptions.unwrap_or_default().into_iter();
        let in_use = targets.filter(|target| target.target_health.as_ref().is_none_or(gets_connections));
        Ok(in_use.filter_map(|target| Some(target.target?.id?.into())).collect())
    }

    /// How long connections through a deregistered target live; `None` if AWS does not say.
    pub async fn deregistration_delay(&self, group: &TargetGroup) -> Result<Option<Duration>, AwsError> {
        let call = self.load_balancing.describe_target_group_attributes().target_group_arn(&group.arn);
        let answer =
            self.call(Operation::DescribeTargetGroupAttributes, LOOK_UP, || call.clone().send()).await?;
        let delay = answer.attributes().iter().find(|attribute| attribute.key() == Some(DELAY));
        Ok(delay
            .and_then(|delay| delay.value()?.parse().ok())
            .map(|s| Duration::from_secs(s).min(LONGEST_DELAY)))
    }
}

/// Whether connections come, or still go on. A target in a zone that the load balancer does not serve, or one that has stopped,
/// gets none; neither does one that is not registered.
///
/// Source: [`TargetHealth`](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html).
fn gets_connections(health: &TargetHealth) -> bool {
    use TargetHealthReasonEnum::{InvalidState, NotInUse, NotRegistered};
    !matches!(&health.reason, Some(NotRegistered | NotInUse | InvalidState))
}
