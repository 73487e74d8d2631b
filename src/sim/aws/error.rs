//! What the simulated AWS answers when it refuses: code, HTTP status and the text AWS has for it.
//!
//! Callers match on code and text (`ValidationError` stands for a dozen situations), so both are AWS's own wherever
//! they are documented or have been seen in public logs.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html> and
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html>

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    /// The machine-readable code.
    pub(super) code: &'static str,
    /// The HTTP status it is sent with.
    pub(super) status: u16,
    /// The text for people.
    pub(super) message: String,
}

impl ApiError {
    /// A refusal that is the caller's fault.
    pub(super) fn client(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, status: 400, message: message.into() }
    }

    /// Auto Scaling's one code for almost everything.
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

    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html>
    pub(super) fn throttled_by_auto_scaling() -> Self {
        Self::client("Throttling", "Rate exceeded")
    }

    /// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html>
    pub(super) fn throttled_by_ec2() -> Self {
        Self { code: "RequestLimitExceeded", status: 503, message: "Request limit exceeded.".to_owned() }
    }

    pub(super) fn internal(code: &'static str) -> Self {
        Self {
            code,
            status: 500,
            message:
                "An internal error has occurred. Retry your query, but if the problem persists, contact us."
                    .to_owned(),
        }
    }
}
