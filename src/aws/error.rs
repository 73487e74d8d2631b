//! AWS errors, classified by what a caller would do about them.
//!
//! Auto Scaling uses one code, `ValidationError`, for nearly every refusal, so the text decides. Known texts are from
//! the API documentation and public logs; unknown ones become [`AwsError::Other`].

use std::error::Error as StdError;
use std::sync::Arc;

use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use hyper_util::client::legacy::Error as HttpError;

use super::Operation;
use super::whole::EndsEarly;
use crate::dry_run;
use crate::telemetry::chain;

/// Why a call to AWS failed.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "`operation` is the call, `code` and `message` are AWS's")]
pub enum AwsError {
    /// Too many calls.
    #[error("{operation} was throttled: {message}")]
    Throttled { operation: Operation, message: String },
    /// The instance is not, or no longer, in a group: nothing is left to do.
    #[error("{operation}: no such instance in the group: {message}")]
    NoSuchInstance { operation: Operation, message: String },
    /// The group does not exist.
    #[error("{operation}: no such group: {message}")]
    NoSuchGroup { operation: Operation, message: String },
    /// The queue does not exist.
    #[error("{operation}: no such queue: {message}")]
    NoSuchQueue { operation: Operation, message: String },
    /// No lifecycle hook holds the instance: the action was completed or timed out.
    #[error("{operation}: no lifecycle action is under way: {message}")]
    NoActiveHook { operation: Operation, message: String },
    /// The group would fall below its minimum.
    #[error("{operation}: the group is at its minimum size: {message}")]
    AtMinimum { operation: Operation, message: String },
    /// The group would exceed its maximum.
    #[error("{operation}: the group is at its maximum size: {message}")]
    AtMaximum { operation: Operation, message: String },
    /// The group is busy with another change; the call works a little later.
    #[error("{operation}: the group is busy: {message}")]
    ScalingActivityInProgress { operation: Operation, message: String },
    /// Credentials or signature have expired, or a clock is wrong. Passes by itself.
    #[error("{operation}: the credentials or the signature have expired: {message}")]
    Expired { operation: Operation, message: String },
    /// Wrong credentials, or an action missing from the IAM policy.
    #[error("not allowed to call {action}: {message}")]
    Denied {
        /// The IAM action, `service:Operation`.
        action: &'static str,
        message: String,
    },
    /// No credentials, so the call was not sent. May pass by itself: a token gets mounted, the metadata service
    /// recovers.
    #[error("{operation} was not sent: there are no usable AWS credentials; tried in this order: {CHAIN}")]
    NoCredentials {
        operation: Operation,
        /// What was wrong with those found.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// Nothing was sent: there was no connection.
    #[error("{operation} was not sent: no connection")]
    Unconnected { operation: Operation, source: Arc<dyn StdError + Send + Sync> },
    /// A server in trouble has answered: AWS's own, or one in front of it, whose answer has no code. The call may have taken effect. By AWS's
    /// own answer it is over; behind another's it may take effect later.
    #[error("{operation} failed in a server, and may have taken effect: {code}: {message}")]
    ServerError { operation: Operation, code: String, message: String },
    /// A time-out or a broken connection, here or behind a gateway. The call may have taken effect, or take it later.
    #[error("{operation} got no answer")]
    Unreachable { operation: Operation, source: Arc<dyn StdError + Send + Sync> },
    /// An answer that cannot be read, to a call that AWS has taken.
    #[error("{operation} was answered, and the answer cannot be read")]
    Unreadable {
        operation: Operation,
        /// What was wrong with it.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// Not sent: a dry run changes nothing.
    #[error("{operation} was not sent: {}", dry_run::WHY)]
    DryRun { operation: Operation },
    /// Any other AWS error.
    #[error("{operation} failed: {code}: {message}")]
    Other { operation: Operation, code: String, message: String },
}

/// Where the SDK looks for credentials.
///
/// Source: [Default credentials
/// provider](https://docs.aws.amazon.com/sdk-for-rust/latest/dg/credproviders.html#credproviders-default-credentials-provider-chain).
const CHAIN: &str =
    "environment, profile, web identity token (IRSA), container (EKS Pod Identity, ECS), instance metadata";

/// Throttling codes of all services.
///
/// Sources: [Auto Scaling](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html),
/// [EC2](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html),
/// [EKS](https://docs.aws.amazon.com/eks/latest/APIReference/CommonErrors.html),
/// [SQS](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html) (`KMS.…`: the
/// key of an encrypted queue), and the SDK's own list.
const THROTTLED: &[&str] = &[
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "SlowDown",
    "TransactionInProgressException",
    "KMS.ThrottlingException",
];

/// Codes for missing permission or wrong credentials (same sources).
const DENIED: &[&str] = &[
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "Blocked",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "KMS.AccessDeniedException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
];

/// Codes for expired credentials and signatures (same sources). Transient: new credentials are on their way, and the
/// SDK corrects a wrong clock by AWS's at the next attempt.
const EXPIRED: &[&str] = &[
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidSignatureException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// HTTP's status for an operation unknown to the server that answers: no server in trouble.
const NOT_IMPLEMENTED: u16 = 501;

/// HTTP's statuses for a server whose backend did not answer, or not in time.
const BEHIND_A_GATEWAY: [u16; 2] = [502, 504];

/// HTTP's statuses for a server in trouble that answers for itself.
const IN_TROUBLE: [u16; 2] = [500, 503];

/// The code for a request with something wrong in it, or one that does not fit the state of the group or the instance.
const INVALID: &str = "ValidationError";

/// Stands for the code of an answer that has none.
pub(super) const NO_CODE: &str = "NoCode";

/// HTTP's status for throttling.
const TOO_MANY_REQUESTS: u16 = 429;

/// Server error codes (same sources). None says whether the call took effect. `ResourceContention`, with status 500, is
/// "You already have a pending update to an Amazon EC2 Auto Scaling resource", from
/// [SetDesiredCapacity](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetDesiredCapacity.html) and
/// others.
const UNWELL: &[&str] = &[
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "InternalServiceError",
    "RequestTimeout",
    "RequestTimeoutException",
    "ResourceContention",
    "ServerException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "Unavailable",
];

impl AwsError {
    /// No answer came, for this reason.
    pub fn unreachable(operation: Operation, why: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Unreachable { operation, source: why.into().into() }
    }

    /// Classifies a service error by code or, if that says nothing, by HTTP status or text.
    pub fn of_service(operation: Operation, status: u16, code: &str, message: &str) -> Self {
        let text = message.to_ascii_lowercase();
        let says = |part: &str| text.contains(part);
        let says_one_of = |parts: &[&str]| parts.iter().any(|part| says(part));
        let message = message.to_owned();
        // By its two names.
        let code = if code == "ValidationException" { INVALID } else { code };
        match code {
            _ if THROTTLED.contains(&code) || status == TOO_MANY_REQUESTS || says("rate exceeded") => {
                return Self::Throttled { operation, message };
            }
            _ if DENIED.contains(&code) => return Self::Denied { action: operation.action(), message },
            _ if EXPIRED.contains(&code) => return Self::Expired { operation, message },
            _ if status == NOT_IMPLEMENTED => {
                return Self::Other { operation, code: code.to_owned(), message };
            }
            _ if BEHIND_A_GATEWAY.contains(&status)
                || status >= 500 && code == NO_CODE && !IN_TROUBLE.contains(&status) =>
            {
                return Self::unreachable(operation, format!("status {status}: {code}: {message}"));
            }
            _ if UNWELL.contains(&code) || status >= 500 => {
                return Self::ServerError { operation, code: code.to_owned(), message };
            }
            // https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetDesiredCapacity.html and others
            "ScalingActivityInProgress" | "ScalingActivityInProgressFault" => {
                return Self::ScalingActivityInProgress { operation, message };
            }
            "InvalidInstanceID.NotFound" => return Self::NoSuchInstance { operation, message },
            // By two names, of which the SDK takes that of the old protocol:
            // https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
            "AWS.SimpleQueueService.NonExistentQueue" | "QueueDoesNotExist" => {
                return Self::NoSuchQueue { operation, message };
            }
            INVALID => {}
            _ => return Self::Other { operation, code: code.to_owned(), message },
        }
        let is_about_an_action = operation == Operation::CompleteLifecycleAction
            || operation == Operation::RecordLifecycleActionHeartbeat;
        if says("no active lifecycle action")
            || says("lifecycle hook") && says("not found")
            // An endpoint in AWS's place, in its own words.
            || is_about_an_action
                && says("lifecycle action")
                && says_one_of(&["no ", "not ", "already", "ended", "expired", "complete"])
        {
            Self::NoActiveHook { operation, message }
        } else if says("autoscalinggroup name not found") {
            Self::NoSuchGroup { operation, message }
        } else if says("instance id not found")
            || says("no managed instance found")
            || says("is not part of auto scaling group")
            || says("is not in auto scaling group")
        {
            Self::NoSuchInstance { operation, message }
        } else if (says_one_of(&["minsize", "min size", "minimum size", "below min value"])
            // Other values have a minimum, too.
            || says("capacity") && says_one_of(&["below min", "below the min", "below its min"]))
            && !says("max size")
        {
            Self::AtMinimum { operation, message }
        } else if says("above max value") {
            Self::AtMaximum { operation, message }
        } else {
            Self::Other { operation, code: code.to_owned(), message }
        }
    }

    /// Classifies an SDK error.
    pub(super) fn of_sdk<E>(operation: Operation, error: SdkError<E, HttpResponse>) -> Self
    where
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        match error {
            // The SDK counts an answer that it cannot read as one of the service's errors.
            SdkError::ServiceError(answer) if answer.raw().status().is_success() => {
                Self::Unreadable { operation, source: Arc::new(answer.into_err()) }
            }
            SdkError::ServiceError(refusal) => {
                let status = refusal.raw().status().as_u16();
                let refusal = refusal.err();
                let (code, message) = (refusal.code(), refusal.message());
                let unreadable = || format!("status {status}: {}", chain(refusal));
                let message = message.map_or_else(unreadable, str::to_owned);
                Self::of_service(operation, status, code.unwrap_or(NO_CODE), &message)
            }
            unsigned if cause::<CredentialsError>(&unsigned).is_some() => {
                Self::NoCredentials { operation, source: Arc::new(unsigned) }
            }
            cut_off if cause::<EndsEarly>(&cut_off).is_some() => {
                Self::Unreadable { operation, source: Arc::new(cut_off) }
            }
            unsent if cause::<HttpError>(&unsent).is_some_and(HttpError::is_connect) => {
                Self::Unconnected { operation, source: Arc::new(unsent) }
            }
            lost => Self::Unreachable { operation, source: Arc::new(lost) },
        }
    }

    /// Whether the same call may succeed later without intervention.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Throttled { .. }
                | Self::Expired { .. }
                | Self::NoCredentials { .. }
                | Self::ServerError { .. }
                | Self::Unconnected { .. }
                | Self::Unreachable { .. }
                | Self::Unreadable { .. }
                | Self::ScalingActivityInProgress { .. }
        )
    }

    /// Whether AWS found something wrong with the request itself, perhaps with its instance.
    pub fn is_refused_request(&self) -> bool {
        match self {
            Self::NoSuchInstance { .. } => true,
            Self::Other { code, .. } => code == INVALID,
            _ => false,
        }
    }

    /// The operation and AWS's words, if [it is so](Self::is_refused_request); otherwise the error.
    pub fn as_refused_request(self) -> Result<(Operation, String), Self> {
        match self {
            Self::NoSuchInstance { operation, message } => Ok((operation, message)),
            Self::Other { operation, code, message } if code == INVALID => Ok((operation, message)),
            other => Err(other),
        }
    }

    /// Whether the call certainly had no effect: AWS has refused it, or it was never sent.
    pub fn is_refusal(&self) -> bool {
        self.is_answered() && !matches!(self, Self::ServerError { .. })
    }

    /// Whether the call is over: it has had an answer that says so, be it of a server in trouble, or was never sent.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::Unreachable { .. } | Self::Unreadable { .. })
    }

    /// Whether the call may still take effect: it had no answer, or none that says whether AWS is done with it. One without a code is none
    /// of AWS's own.
    pub fn may_come(&self) -> bool {
        !self.is_answered() || matches!(self, Self::ServerError { code, .. } if code == NO_CODE)
    }
}

/// The error of this type among the causes of another.
fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(|error| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use aws_sdk_autoscaling::operation::terminate_instance_in_auto_scaling_group::TerminateInstanceInAutoScalingGroupError;
    use aws_smithy_http_client::Builder;
    use aws_smithy_types::body::SdkBody;

    use super::*;
    use crate::aws::answers::at_endpoint;

    fn variant(code: &str, message: &str) -> String {
        let error = AwsError::of_service(Operation::TerminateInstanceInAutoScalingGroup, 400, code, message);
        let debug = format!("{error:?}");
        debug.split([' ', '(']).next().unwrap_or_default().to_owned()
    }

    #[test]
    fn an_answer_that_cannot_be_read_may_have_been_one_to_a_call_that_took_effect() {
        let of_sdk = |status: u16| {
            let raw = HttpResponse::new(status.try_into().expect("a status"), SdkBody::empty());
            let error = TerminateInstanceInAutoScalingGroupError::unhandled("no EndTime");
            AwsError::of_sdk(
                Operation::TerminateInstanceInAutoScalingGroup,
                SdkError::service_error(error, raw),
            )
        };
        let (done, refused) = (of_sdk(200), of_sdk(404));
        assert!(matches!(done, AwsError::Unreadable { .. }) && !done.is_refusal(), "{done:?}");
        assert!(chain(&done).contains("no EndTime"), "{}", chain(&done));
        assert!(refused.is_refusal(), "{refused:?}");
        let text = chain(&refused);
        assert!(text.contains("404") && text.contains("no EndTime"), "{text}");
    }

    /// It is tried again, and no later size waits for it.
    #[tokio::test]
    async fn what_was_never_sent_for_want_of_a_connection_had_no_effect() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let aws = at_endpoint(&format!("http://{address}"), Builder::new().build_http());
        let error = aws.complete(&"g".into(), "ebbtide", &"i-1".into()).await.expect_err("nobody is there");
        assert!(matches!(error, AwsError::Unconnected { .. }), "{error:?}");
        assert!(error.is_refusal() && error.is_transient() && !error.may_come());
    }

    #[test]
    fn an_answer_is_told_apart_by_code_and_text() {
        let table = [
            ("Throttling", "Rate exceeded", "Throttled"),
            ("RequestLimitExceeded", "Request limit exceeded.", "Throttled"),
            ("ScalingActivityInProgress", "Activity 1 is in progress.", "ScalingActivityInProgress"),
            ("ScalingActivityInProgressFault", "Activity 1 is in progress.", "ScalingActivityInProgress"),
            ("ResourceContention", "You already have a pending update", "ServerError"),
            ("ThrottlingException", "Rate exceeded", "Throttled"),
            ("TooManyRequestsException", "Too Many Requests", "Throttled"),
            ("LimitExceededException", "", "Throttled"),
            ("TransactionInProgressException", "", "Throttled"),
            ("ProvisionedThroughputExceededException", "", "Throttled"),
            ("ValidationError", "Rate exceeded", "Throttled"),
            ("AccessDeniedException", "User: x is not authorized to perform: y", "Denied"),
            ("AccessDenied", "User: arn:aws:iam::1:user/u is not authorized to perform: x", "Denied"),
            ("UnauthorizedOperation", "You are not authorized to perform this operation.", "Denied"),
            ("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.", "NoSuchQueue"),
            ("ExpiredToken", "The security token included in the request is expired", "Expired"),
            ("RequestExpired", "Request has expired.", "Expired"),
            ("SignatureDoesNotMatch", "Signature expired: 20260101T000000Z is now earlier", "Expired"),
            ("ServiceUnavailable", "", "ServerError"),
            ("ServerException", "Internal server error", "ServerError"),
            ("ServiceUnavailableException", "Service is unavailable", "ServerError"),
            ("InternalFailure", "An internal error has occurred.", "ServerError"),
            ("InvalidInstanceType", "The following supplied instance types do not exist: [x1.y]", "Other"),
            ("AlreadyExists", "AutoScalingGroup name not found", "Other"),
        ];
        for (code, message, expected) in table {
            assert_eq!(variant(code, message), expected, "{code}: {message}");
        }
    }

    #[test]
    fn a_validation_error_is_told_apart_by_its_text() {
        let table = [
            ("AutoScalingGroup name not found - AutoScalingGroup web not found", "NoSuchGroup"),
            ("AutoScalingGroup name not found - null", "NoSuchGroup"),
            (
                "Instance Id not found - No managed instance found for instance ID: i-0123456789abcdef0",
                "NoSuchInstance",
            ),
            ("The instance i-0123456789abcdef0 is not part of Auto Scaling group web.", "NoSuchInstance"),
            ("No active Lifecycle Action found with instance ID i-0123456789abcdef0", "NoActiveHook"),
            ("No active Lifecycle Action found with token 0fa-1", "NoActiveHook"),
            (
                "Currently, desiredSize equals minSize (1). Terminating instance without replacement will \
                 violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false \
                 or lower group's min size.",
                "AtMinimum",
            ),
            ("New SetDesiredCapacity value 0 is below min value 1 for the AutoScalingGroup.", "AtMinimum"),
            ("The desired capacity would be less than the minimum size of the group.", "AtMinimum"),
            ("Desired capacity 0 is below the minimum of 1", "AtMinimum"),
            ("The group's capacity would fall below its minimum", "AtMinimum"),
            ("Capacity 0 below min 1", "AtMinimum"),
            ("The parameter HeartbeatTimeout is below the minimum of 30", "Other"),
            ("Capacity 3 and max size 2 are below minimum 4", "Other"),
            ("New SetDesiredCapacity value 12 is above max value 10 for the AutoScalingGroup.", "AtMaximum"),
            ("2 validation errors detected", "Other"),
        ];
        for (message, expected) in table {
            for code in ["ValidationError", "ValidationException"] {
                assert_eq!(variant(code, message), expected, "{message}");
            }
        }
    }

    #[test]
    fn a_lifecycle_action_that_is_over_is_so_in_whatever_words() {
        let is_over = |operation, message| {
            let error = AwsError::of_service(operation, 400, "ValidationError", message);
            matches!(error, AwsError::NoActiveHook { .. })
        };
        for words in [
            "Lifecycle action already completed",
            "Lifecycle Action not found",
            "There is no lifecycle action for i-1",
            "The lifecycle action has ended",
        ] {
            assert!(is_over(Operation::CompleteLifecycleAction, words), "{words}");
            assert!(is_over(Operation::RecordLifecycleActionHeartbeat, words), "{words}");
            assert!(!is_over(Operation::SetDesiredCapacity, words), "{words}");
        }
        assert!(!is_over(Operation::CompleteLifecycleAction, "2 validation errors detected"));
    }

    #[test]
    fn only_an_answer_that_is_no_server_error_is_a_refusal() {
        let table = [
            ("Throttling", 400, true, false),
            ("RequestLimitExceeded", 503, true, false),
            ("ScalingActivityInProgress", 400, true, false),
            ("ExpiredToken", 403, true, false),
            ("ValidationError", 400, true, false),
            ("SomethingNew", 400, true, false),
            ("SomethingNew", 500, false, false),
            ("ValidationError", 502, false, true),
            ("NoCode", 504, false, true),
            ("NoCode", 500, false, true),
            ("NoCode", 503, false, true),
            ("NoCode", 524, false, true),
            ("ResourceContention", 500, false, false),
            ("InternalFailure", 500, false, false),
        ];
        for (code, status, is_refusal, may_come) in table {
            let error = AwsError::of_service(Operation::SetDesiredCapacity, status, code, "");
            assert_eq!((error.is_refusal(), error.may_come()), (is_refusal, may_come), "{code} {status}");
            assert!(is_refusal || error.is_transient(), "{code} {status}");
            let answered = ![502, 504, 524].contains(&status);
            assert_eq!(error.is_answered(), answered, "{code} {status}");
        }
    }

    #[test]
    fn a_status_says_what_a_code_does_not() {
        let of = |status, code| {
            AwsError::of_service(Operation::SetInstanceProtection, status, code, "no such operation")
        };
        assert!(matches!(of(429, "NoCode"), AwsError::Throttled { .. }));
        // The second is LocalStack's for what it does not have.
        for code in ["NotImplemented", "InternalFailure"] {
            let unknown = of(501, code);
            assert!(unknown.is_refusal() && !unknown.is_transient(), "{code}");
        }
    }

    #[test]
    fn a_denial_names_the_action() {
        let error =
            AwsError::of_service(Operation::DescribeInstanceTypes, 403, "UnauthorizedOperation", "no");
        assert_eq!(error.to_string(), "not allowed to call ec2:DescribeInstanceTypes: no");
    }
}
