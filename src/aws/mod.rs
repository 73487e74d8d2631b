//! Thin adapters to EC2 Auto Scaling, EC2 and EKS: a function a call, plain data back, one error type.
//!
//! - Nothing here decides or remembers; loops and caches are in `groups`.
//! - Every call has a time-out and is counted ([`Calls`]); what may be repeated without harm is tried three times.
//! - A call that changes a size ([`Aws::set_desired`], [`Aws::terminate`]) is sent once: its answer may be lost after it
//!   had its effect, so whoever asked looks at the group before asking again.
//! - Pages are read to the end unless a function says otherwise.
//! - The real service, an endpoint given by flag, and the simulated AWS differ in the HTTP client only.

mod autoscaling;
mod calls;
mod ec2;
mod eks;
mod error;
mod facts;
mod machines;
mod requirements;
mod tags;
pub mod type_table;

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_sdk_autoscaling::config::SharedCredentialsProvider;
use aws_sdk_autoscaling::config::retry::{RetryConfig, RetryPartition};
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use aws_smithy_async::time::{SharedTimeSource, TimeSource};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use tokio::time::Instant;

pub(crate) use autoscaling::CONFIGURATIONS_A_CALL;
pub use calls::{Calls, Operation};
pub(crate) use ec2::{IMAGES_A_CALL, TYPES_A_CALL};
pub use ec2::{TemplateAliases, TemplatePage};
pub use eks::NodeGroup;
pub use error::AwsError;
pub use facts::{Activity, Described, Hook, Launch, Mix, Override, Source, TemplateId, TemplateRef};
pub use machines::{Accelerator, LaunchSpec, Revision, TemplateVersion, TypeInfo};
pub use requirements::Requirements;

/// A connection that is not there after this long will not come.
const CONNECT: Duration = Duration::from_secs(3);
/// The slowest answers of these services take a few seconds; a lost request must leave time for the others.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Three attempts, with the waits between them.
const OPERATION: Duration = Duration::from_secs(30);
/// The same for EKS, which tells of templates only: a look at the groups waits for it, and must not wait long where a
/// private network has no way to it.
///
/// Source: [Deploy private clusters](https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html): the EKS
/// API has an endpoint of its own.
const OPERATION_OF_EKS: Duration = Duration::from_secs(5);
/// One retry for bad luck, one for a second; beyond that the caller's own pace decides.
const ATTEMPTS: u32 = 3;

/// Where simulated worlds are.
const WORLDS_REGION: &str = "us-east-1";

/// No region is configured anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no AWS region: set --region, AWS_REGION or a region in the AWS profile")]
pub struct NoRegion;

/// EC2 Auto Scaling, EC2 and EKS. Clones share everything.
#[derive(Clone, Debug)]
pub struct Aws {
    /// Slows down when AWS throttles it ...
    reads: aws_sdk_autoscaling::Client,
    /// ... and must not slow down with it what cannot wait: heartbeats, sizes.
    writes: aws_sdk_autoscaling::Client,
    ec2: aws_sdk_ec2::Client,
    eks: aws_sdk_eks::Client,
    region: String,
    calls: Calls,
}

impl Aws {
    /// The services as `config` says; time-outs and retries are ours.
    pub fn new(config: &SdkConfig) -> Result<Self, NoRegion> {
        let region = config.region().ok_or(NoRegion)?.to_string();
        let partition = |name: &str| RetryPartition::new(format!("{name}-{region}"));
        Ok(Self::with(config, &region, RetryConfig::adaptive(), partition))
    }

    /// The services of this region at this endpoint; what is not given, the SDK's own chain of environment, profiles
    /// and instance metadata tells.
    pub async fn connect(region: Option<&str>, endpoint_url: Option<&str>) -> Result<Self, NoRegion> {
        let mut loader = aws_config::defaults(behaviour());
        if let Some(region) = region {
            loader = loader.region(Region::new(region.to_owned()));
        }
        if let Some(url) = endpoint_url {
            loader = loader.endpoint_url(url);
        }
        Self::new(&loader.load().await)
    }

    /// Services that `http_client` stands for, in `us-east-1`, with made-up credentials, on tokio's time.
    ///
    /// Retries are the SDK's standard ones with a budget of this client's own: adaptive ones share their pace between
    /// all clients of a process, which would make one simulated world wait for another. Their jitter is `fastrand`'s:
    /// whoever wants the same waits every time seeds that.
    pub fn at(http_client: SharedHttpClient) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let world = WORLDS.fetch_add(1, Ordering::Relaxed);
        let config = SdkConfig::builder()
            .behavior_version(behaviour())
            .region(Region::from_static(WORLDS_REGION))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::from_keys(
                "simulated",
                "simulated",
                None,
            )))
            .http_client(http_client)
            .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
            .time_source(SharedTimeSource::new(TokioTime { since: Instant::now() }))
            .build();
        let partition = |name: &str| RetryPartition::custom(format!("{name}-world-{world}")).build();
        Self::with(&config, WORLDS_REGION, RetryConfig::standard(), partition)
    }

    fn with(
        config: &SdkConfig,
        region: &str,
        retries_of_reads: RetryConfig,
        partition: impl Fn(&str) -> RetryPartition,
    ) -> Self {
        let autoscaling = |name, retries: RetryConfig| {
            let config = aws_sdk_autoscaling::config::Builder::from(config)
                .timeout_config(timeouts(OPERATION))
                .retry_config(retries.with_max_attempts(ATTEMPTS))
                .retry_partition(partition(name));
            aws_sdk_autoscaling::Client::from_conf(config.build())
        };
        let ec2 = aws_sdk_ec2::config::Builder::from(config)
            .timeout_config(timeouts(OPERATION))
            .retry_config(retries_of_reads.clone().with_max_attempts(ATTEMPTS))
            .retry_partition(partition("ec2"));
        let eks = aws_sdk_eks::config::Builder::from(config)
            .timeout_config(timeouts(OPERATION_OF_EKS))
            .retry_config(retries_of_reads.clone().with_max_attempts(ATTEMPTS))
            .retry_partition(partition("eks"));
        Self {
            reads: autoscaling("autoscaling-reads", retries_of_reads),
            writes: autoscaling("autoscaling-writes", RetryConfig::standard()),
            ec2: aws_sdk_ec2::Client::from_conf(ec2.build()),
            eks: aws_sdk_eks::Client::from_conf(eks.build()),
            region: region.to_owned(),
            calls: Calls::default(),
        }
    }

    /// The region the services are of.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The counter of calls, to be registered.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Waits for a call, tells its error apart and counts it.
    async fn counted<T, E, R>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, SdkError<E, R>>>,
    ) -> Result<T, AwsError>
    where
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
        R: std::fmt::Debug + Send + Sync + 'static,
    {
        let result = call.await.map_err(|error| AwsError::of_sdk(operation, error));
        self.calls.count(operation, &result);
        result
    }
}

/// The SDK's defaults as of a date: newer ones come with a decision, not with an update.
fn behaviour() -> BehaviorVersion {
    BehaviorVersion::v2026_01_12()
}

fn timeouts(operation: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .operation_attempt_timeout(ATTEMPT)
        .operation_timeout(operation)
        .build()
}

/// The SDK's idea of wall time in a simulated world: signatures need one, and nobody checks them there.
#[derive(Debug)]
struct TokioTime {
    since: Instant,
}

impl TimeSource for TokioTime {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000) + self.since.elapsed()
    }
}
