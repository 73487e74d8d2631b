//! Scaling activities, oldest first: one per launch and per termination, and one per try that fails (see
//! [`Behaviour::fails_at_once`](super::Behaviour)).
//!
//! The wording is AWS's: callers and people match on it.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Activity.html> and
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-scaling-activities.html>

use jiff::fmt::temporal::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};

use super::journal::TerminationCause;
use super::xml::Xml;
use crate::clock::later;

/// How far an activity has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    PreInService,
    InProgress,
    MidLifecycleAction,
    MidTerminatingLifecycleAction,
    Successful,
    Failed,
    Cancelled,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::PreInService => "PreInService",
            Self::InProgress => "InProgress",
            Self::MidLifecycleAction => "MidLifecycleAction",
            Self::MidTerminatingLifecycleAction => "MidTerminatingLifecycleAction",
            Self::Successful => "Successful",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }

    fn progress(self) -> u32 {
        match self {
            Self::PreInService | Self::InProgress => 30,
            Self::MidLifecycleAction => 40,
            Self::MidTerminatingLifecycleAction => 60,
            Self::Successful | Self::Failed | Self::Cancelled => 100,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Activity {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) description: String,
    pub(super) cause: String,
    pub(super) started: Timestamp,
    pub(super) ended: Option<Timestamp>,
    pub(super) status: Status,
    pub(super) message: Option<String>,
    pub(super) zone: Option<String>,
}

impl Activity {
    pub(super) fn end(&mut self, status: Status, at: Timestamp) {
        (self.status, self.ended) = (status, Some(at));
    }

    /// Ends it as cancelled, with the reason.
    pub(super) fn cancel(&mut self, why: &str, at: Timestamp) {
        self.come_to_nothing(Status::Cancelled, why, at);
    }

    /// Ends it as failed, with the reason.
    pub(super) fn fail(&mut self, why: &str, at: Timestamp) {
        self.come_to_nothing(Status::Failed, why, at);
    }

    /// Puts the reason into the message and after the description, as AWS does.
    fn come_to_nothing(&mut self, status: Status, why: &str, at: Timestamp) {
        self.end(status, at);
        self.description = format!("{}.  Status Reason: {why}", self.description);
        self.message = Some(why.to_owned());
    }

    /// Writes it with the ARN of its group, and with AWS's clock, which is `ahead`.
    pub(super) fn write(&self, xml: &mut Xml, arn: &str, ahead: SignedDuration) {
        xml.text("ActivityId", &self.id)
            .text("AutoScalingGroupName", &self.group)
            .text("AutoScalingGroupARN", arn)
            .text("Description", &self.description)
            .text("Cause", &self.cause)
            .time("StartTime", later(self.started, ahead));
        if let Some(ended) = self.ended {
            xml.time("EndTime", later(ended, ahead));
        }
        let details = self.zone.as_ref().map_or_else(
            || "{}".to_owned(),
            |zone| format!("{{\"Subnet ID\":\"subnet-{zone}\",\"Availability Zone\":\"{zone}\"}}"),
        );
        xml.text("StatusCode", self.status.name())
            .optional("StatusMessage", self.message.as_ref())
            .text("Progress", self.status.progress())
            .text("Details", details);
    }
}

/// A moment, as it is spelled in causes.
pub(super) fn moment(at: Timestamp) -> String {
    DateTimePrinter::new().precision(Some(0)).timestamp_to_string(&at)
}

/// Why an instance is launched: the group has `from` units and wants `to`; `change` says why it wants another number.
pub(super) fn launch_cause(
    at: Timestamp,
    change: Option<&str>,
    rebalancing: bool,
    (from, to): (usize, usize),
) -> String {
    let at = moment(at);
    if rebalancing {
        return format!(
            "At {at} instances were launched to balance instances in zones with other zones resulting in more than \
             desired number of instances in the group."
        );
    }
    let change = change.map(|change| format!("{change}  ")).unwrap_or_default();
    format!(
        "{change}At {at} an instance was started in response to a difference between desired and actual capacity, \
         increasing the capacity from {from} to {to}."
    )
}

/// Why an instance is terminated. `from` is the number of instances before.
pub(super) fn termination_cause(
    at: Timestamp,
    cause: TerminationCause,
    instance: &str,
    change: Option<&str>,
    decrement: bool,
    from: usize,
) -> String {
    let (at, to) = (moment(at), from.saturating_sub(1));
    let shrinking =
        if decrement { format!(", shrinking the capacity from {from} to {to}") } else { String::new() };
    let selected = format!("At {at} instance {instance} was selected for termination.");
    match cause {
        TerminationCause::Request => format!(
            "At {at} instance {instance} was taken out of service in response to a user request{shrinking}."
        ),
        TerminationCause::ScaleIn => {
            let change = change.map(|change| format!("{change}  ")).unwrap_or_default();
            format!(
                "{change}At {at} an instance was taken out of service in response to a difference between desired \
                 and actual capacity, shrinking the capacity from {from} to {to}.  {selected}"
            )
        }
        TerminationCause::Rebalance => format!(
            "At {at} an instance was taken out of service in response to a difference between desired and actual \
             capacity, shrinking the capacity from {from} to {to}.  {selected}"
        ),
        TerminationCause::Refresh => format!(
            "At {at} an instance was taken out of service in response to an instance refresh.  {selected}"
        ),
        TerminationCause::HealthCheck => format!(
            "At {at} an instance was taken out of service in response to an EC2 health check indicating it has been \
             terminated or stopped."
        ),
        TerminationCause::LaunchAbandoned => {
            format!(
                "At {at} an instance was taken out of service because its lifecycle action was abandoned."
            )
        }
        TerminationCause::LaunchFailed => {
            format!("At {at} an instance was taken out of service in response to a launch failure.")
        }
        TerminationCause::GroupDeletion => {
            format!(
                "At {at} an instance was taken out of service in response to a request to delete the group."
            )
        }
    }
}
