//! Scaling activities: a group's attempts to change its instances.

use aws_sdk_autoscaling::types as asg;
use jiff::Timestamp;

use crate::k8s::GroupName;

/// A group's attempt to change its instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Its id.
    pub id: String,
    /// When it began.
    pub started: Timestamp,
    /// `Failed`, `Successful`, `Cancelled`, or one of many of those under way.
    pub status: String,
    /// What was attempted: `Launching a new EC2 instance`.
    pub description: String,
    /// Why, in AWS's words: `At … an instance was started in response to …`.
    pub cause: String,
    /// AWS's text on the outcome.
    pub message: String,
}

impl Activity {
    /// Whether it is under way no more.
    ///
    /// Source: [Activity](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Activity.html), `StatusCode`.
    pub fn is_over(&self) -> bool {
        ["Failed", "Successful", "Cancelled"].contains(&self.status.as_str())
    }

    /// Whether its description names this instance, whatever AWS adds: `Terminating EC2 instance: i-1 - Waiting For ELB Connection
    /// Draining.`
    pub fn names(&self, instance: &str) -> bool {
        let words = self.description.split_whitespace();
        words.map(|word| word.trim_end_matches(['.', ',', ':'])).any(|word| word == instance)
    }

    /// `None` if it says too little, or is of another group, which AWS was not asked for.
    pub(super) fn from_sdk(group: &GroupName, from: asg::Activity) -> Option<Self> {
        let is_of_it = from.auto_scaling_group_name().is_none_or(|of| of.is_empty() || group == of);
        is_of_it.then_some(Self {
            id: from.activity_id?,
            started: moment(from.start_time?)?,
            status: from.status_code.map_or_else(String::new, |status| status.as_str().to_owned()),
            description: from.description.unwrap_or_default(),
            cause: from.cause.unwrap_or_default(),
            message: from.status_message.unwrap_or_default(),
        })
    }
}

pub(super) fn moment(from: aws_smithy_types::DateTime) -> Option<Timestamp> {
    Timestamp::new(from.secs(), i32::try_from(from.subsec_nanos()).ok()?).ok()
}
