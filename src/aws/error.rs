//! What AWS says when it does not do a thing, told apart by what a caller does about it.

use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

/// A call to AWS that did not work.
#[derive(Debug, thiserror::Error)]
pub enum AwsError {
    /// Too many requests in this account and region.
    #[error("AWS throttles {operation}")]
    Throttled {
        /// The operation.
        operation: &'static str,
    },
    /// The group is in the middle of another change.
    #[error("the group is busy: {0}")]
    Busy(String),
    /// The group has no such instance.
    #[error("the instance is not in the group any more")]
    NoSuchInstance,
    /// There is no such group.
    #[error("there is no such group")]
    NoSuchGroup,
    /// No lifecycle hook of that name holds the instance.
    #[error("the lifecycle hook does not hold the instance")]
    NoActiveHook,
    /// A decrement would take the group below its minimum.
    #[error("the group is at its minimum size")]
    AtMinimum,
    /// The size is outside the group's limits.
    #[error("AWS refuses the size: {0}")]
    SizeRefused(String),
    /// The credentials do not allow it.
    #[error("AWS denies {operation} to these credentials: {message}")]
    Denied {
        /// The operation.
        operation: &'static str,
        /// AWS's text, which names the policy action.
        message: String,
    },
    /// No answer came, or none that could be read. It may have been done.
    #[error("{operation} was not answered")]
    Unreachable {
        /// The operation.
        operation: &'static str,
        /// What happened on the way.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Anything else.
    #[error("{operation} failed: {code}: {message}")]
    Other {
        /// The operation.
        operation: &'static str,
        /// AWS's code.
        code: String,
        /// AWS's text.
        message: String,
    },
}

/// Tells an error of the service by its code and, where Auto Scaling uses `ValidationError` for everything, its text.
///
/// Source: [common errors](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html) and the errors
/// of each action; the texts are those AWS answers with.
pub fn classify(operation: &'static str, code: &str, message: &str) -> AwsError {
    let text = message.to_ascii_lowercase();
    let other = || AwsError::Other { operation, code: code.to_owned(), message: message.to_owned() };
    match code {
        "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "TooManyRequestsException" => {
            AwsError::Throttled { operation }
        }
        "ScalingActivityInProgress" | "ResourceContention" | "ResourceInUse" => {
            AwsError::Busy(message.to_owned())
        }
        "AccessDenied"
        | "AccessDeniedException"
        | "UnauthorizedOperation"
        | "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "AuthFailure" => AwsError::Denied { operation, message: message.to_owned() },
        "ValidationError" => {
            if text.contains("no active lifecycle action") {
                AwsError::NoActiveHook
            } else if text.contains("min size") || text.contains("minsize") {
                // "... will violate group's min size constraint", "New SetDesiredCapacity value 0 is below min value"
                AwsError::AtMinimum
            } else if text.contains("min value") || text.contains("max value") || text.contains("max size") {
                AwsError::SizeRefused(message.to_owned())
            } else if text.contains("instance id not found") || text.contains("no managed instance found") {
                AwsError::NoSuchInstance
            } else if text.contains("group name not found") || text.contains("group not found") {
                AwsError::NoSuchGroup
            } else {
                other()
            }
        }
        _ => other(),
    }
}

/// Tells an error of the SDK.
pub(super) fn from_sdk<E, R>(operation: &'static str, error: SdkError<E, R>) -> AwsError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    match error.code() {
        Some(code) => classify(operation, code, error.message().unwrap_or_default()),
        None => AwsError::Unreachable { operation, source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_errors_are_told_apart() {
        let name = |code, message| format!("{:?}", classify("Op", code, message));
        let table = [
            ("Throttling", "Rate exceeded", "Throttled"),
            ("RequestLimitExceeded", "Request limit exceeded.", "Throttled"),
            ("ScalingActivityInProgress", "Scaling activity in progress", "Busy"),
            ("ValidationError", "No active Lifecycle Action found with instance ID i-1", "NoActiveHook"),
            (
                "ValidationError",
                "Currently, desiredSize equals minSize (1). Terminating instance without replacement will violate \
                 group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's \
                 min size.",
                "AtMinimum",
            ),
            (
                "ValidationError",
                "New SetDesiredCapacity value 9 is above max value 5 for the AutoScalingGroup.",
                "SizeRefused",
            ),
            (
                "ValidationError",
                "Instance Id not found - No managed instance found for instance ID: i-1",
                "NoSuchInstance",
            ),
            ("ValidationError", "AutoScalingGroup name not found - null", "NoSuchGroup"),
            ("AccessDenied", "User is not authorized to perform: autoscaling:SetDesiredCapacity", "Denied"),
            ("InternalFailure", "oops", "Other"),
            ("ValidationError", "something else", "Other"),
        ];
        for (code, message, variant) in table {
            assert!(name(code, message).starts_with(variant), "{code} {message}: {}", name(code, message));
        }
    }
}
