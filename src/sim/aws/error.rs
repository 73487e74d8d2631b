//! Refusals of the simulated AWS: code, HTTP status and AWS's text.
//!
//! Callers match on code and text (`ValidationError` covers a dozen situations), so both are AWS's own where documented or
//! seen in public logs.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html>,
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html>,
//! <https://docs.aws.amazon.com/eks/latest/APIReference/CommonErrors.html> and
//! <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html>

use super::faults::Refusal;
use super::operation::{Operation, Service};
use super::state::ACCOUNT;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) code: &'static str,
    /// The HTTP status it is sent with.
    pub(super) status: u16,
    /// The text for people.
    pub(super) message: String,
}

impl From<Refusal> for ApiError {
    fn from(Refusal { code, status, message }: Refusal) -> Self {
        Self { code, status, message: message.to_owned() }
    }
}

impl ApiError {
    /// A refusal by the caller's fault.
    pub(super) fn client(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, status: 400, message: message.into() }
    }

    /// EC2's answer to a dry run of what is allowed.
    ///
    /// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html>
    pub(super) fn dry_run() -> Self {
        let message = "Request would have succeeded, but DryRun flag is set.".to_owned();
        Self { code: "DryRunOperation", status: 412, message }
    }

    /// Auto Scaling's code for almost everything.
    pub(super) fn validation(message: impl Into<String>) -> Self {
        Self::client("ValidationError", message)
    }

    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::client("MalformedInput", message)
    }

    pub(super) fn invalid_token() -> Self {
        Self::client("InvalidNextToken", "The token is not valid.")
    }

    pub(super) fn no_such_group(name: &str) -> Self {
        Self::validation(format!("AutoScalingGroup name not found - AutoScalingGroup {name} not found"))
    }

    pub(super) fn no_such_instance(id: &str) -> Self {
        Self::validation(format!("Instance Id not found - No managed instance found for instance ID: {id}"))
    }

    pub(super) fn invalid_action(action: &str, version: &str) -> Self {
        Self::client("InvalidAction", format!("Could not find operation {action} for version {version}"))
    }

    /// <https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeNodegroup.html>
    pub(super) fn no_such_node_group(name: &str) -> Self {
        let message = format!("No node group found for name: {name}.");
        Self { code: "ResourceNotFoundException", status: 404, message }
    }

    pub(super) fn unknown_path(path: &str) -> Self {
        Self { code: "UnknownOperationException", status: 404, message: format!("There is no {path}") }
    }

    /// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html>
    pub(super) fn no_such_queue() -> Self {
        Self::client("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
    }

    pub(super) fn throttled(service: Service) -> Self {
        match service {
            Service::AutoScaling | Service::LoadBalancing => Self::client("Throttling", "Rate exceeded"),
            Service::Ec2 => Self {
                code: "RequestLimitExceeded",
                status: 503,
                message: "Request limit exceeded.".to_owned(),
            },
            Service::Eks | Service::Pricing => Self::client("ThrottlingException", "Rate exceeded"),
            Service::Sqs => {
                Self { code: "RequestThrottled", status: 403, message: "Request is throttled.".to_owned() }
            }
        }
    }

    /// The caller has no permission for `operation`.
    pub(super) fn denied(service: Service, operation: Operation) -> Self {
        let code = match service {
            Service::AutoScaling | Service::LoadBalancing | Service::Sqs => "AccessDenied",
            Service::Ec2 => "UnauthorizedOperation",
            Service::Eks | Service::Pricing => "AccessDeniedException",
        };
        let action = operation.action(service);
        let message = format!(
            "User: arn:aws:iam::{ACCOUNT}:user/ebbtide is not authorized to perform: {action} because no \
             identity-based policy allows the {action} action"
        );
        Self { code, status: 403, message }
    }

    pub(super) fn internal(service: Service) -> Self {
        Self {
            code: match service {
                Service::AutoScaling | Service::LoadBalancing | Service::Sqs => "InternalFailure",
                Service::Ec2 => "InternalError",
                Service::Eks => "ServerException",
                Service::Pricing => "InternalErrorException",
            },
            status: 500,
            message:
                "An internal error has occurred. Retry your query, but if the problem persists, contact us."
                    .to_owned(),
        }
    }
}
