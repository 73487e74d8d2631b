//! Thin adapter to EC2 Auto Scaling and EC2: the calls this program makes, each one request (or one paged read), each
//! with a time-out, each counted.
//!
//! Invariant: a call that changes a size ([`Aws::set_desired`], [`Aws::terminate`]) is sent at most once. Repeating one
//! whose answer was lost could take a second instance; whoever asked looks at the group again first.

mod calls;
mod compute;
mod error;
mod scaling;

use std::time::Duration;

use aws_config::retry::{RetryConfig, RetryMode};
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_sdk_autoscaling::config::retry::RetryPartition;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use tracing::Instrument;

pub use calls::{Calls, Operation};
pub use compute::{InstanceRequirements, InstanceType, LaunchTemplateVersion};
pub use error::{AwsError, classify};
pub use scaling::{Activity, GroupSelector, LaunchConfiguration};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest wait for the answer to one attempt; a page of 100 groups takes about a second.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Longest wait for an answer, attempts and pauses between them together.
const OPERATION: Duration = Duration::from_secs(30);

/// AWS, in one region. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Aws {
    /// Reads slow down when AWS throttles them ...
    reads: aws_sdk_autoscaling::Client,
    compute: aws_sdk_ec2::Client,
    /// ... and must not slow down heartbeats with them.
    writes: aws_sdk_autoscaling::Client,
    region: String,
    calls: Calls,
}

/// AWS cannot be reached as configured.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No region is configured.
    #[error("no AWS region: set --region, AWS_REGION, or a region in the AWS profile")]
    NoRegion,
}

impl Aws {
    /// Connects as the SDK's own chain of configuration says, save for what is given here.
    pub async fn connect(region: Option<&str>, endpoint_url: Option<&str>) -> Result<Self, ConnectError> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = region {
            loader = loader.region(Region::new(region.to_owned()));
        }
        if let Some(url) = endpoint_url {
            loader = loader.endpoint_url(url);
        }
        Self::new(&loader.load().instrument(tracing::info_span!("aws_config")).await)
    }

    /// AWS behind this HTTP client, whatever the host: for simulated worlds. Credentials are made up.
    pub fn behind(client: SharedHttpClient) -> Result<Self, ConnectError> {
        let credentials = Credentials::new("simulated", "simulated", None, None, "simulated");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(aws_credential_types::provider::SharedCredentialsProvider::new(credentials))
            .sleep_impl(aws_smithy_async::rt::sleep::SharedAsyncSleep::new(
                aws_smithy_async::rt::sleep::TokioSleep::new(),
            ))
            .http_client(client)
            .build();
        Self::new(&config)
    }

    fn new(config: &SdkConfig) -> Result<Self, ConnectError> {
        let region = config.region().ok_or(ConnectError::NoRegion)?.to_string();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT)
            .operation_attempt_timeout(ATTEMPT)
            .operation_timeout(OPERATION)
            .build();
        let reads = RetryConfig::standard().with_retry_mode(RetryMode::Adaptive).with_max_attempts(3);
        let writes = RetryConfig::standard().with_max_attempts(3);
        let scaling = |retries: RetryConfig, partition: &'static str| {
            aws_sdk_autoscaling::config::Builder::from(config)
                .timeout_config(timeouts.clone())
                .retry_config(retries)
                .retry_partition(RetryPartition::new(partition))
                .build()
        };
        let compute = aws_sdk_ec2::config::Builder::from(config)
            .timeout_config(timeouts.clone())
            .retry_config(reads.clone())
            .build();
        Ok(Self {
            reads: aws_sdk_autoscaling::Client::from_conf(scaling(reads, "ebbtide-reads")),
            writes: aws_sdk_autoscaling::Client::from_conf(scaling(writes, "ebbtide-writes")),
            compute: aws_sdk_ec2::Client::from_conf(compute),
            region,
            calls: Calls::default(),
        })
    }

    /// The region it talks to.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Counts of calls by operation and outcome.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }
}
