//! Thin adapters to EC2 Auto Scaling, EC2, EKS, SQS, Elastic Load Balancing, STS and the Price List: one function a call, plain data, one error type.
//!
//! - Nothing here decides or remembers; loops and caches are in `groups`, which keeps [`PagesRead`], too.
//! - Every attempt has a time-out and is counted ([`Calls`]); idempotent calls are retried for some seconds
//!   ([`retry`]).
//! - Calls that change a size are retried only if they were answered ([`Aws::set_desired`]) or refused ([`Aws::terminate`]). A lost
//!   answer does not mean no effect: callers describe the group before asking again.
//! - All pages are read unless a function says otherwise.
//! - The real service, an endpoint given by flag, and the simulated AWS differ in endpoint, HTTP client, credentials
//!   and clock; the rest is set in one place, `Aws::with`.

mod activity;
#[cfg(test)]
mod answers;
mod auto_scaling_group;
mod autoscaling;
mod calls;
mod dates;
mod ec2;
mod eks;
mod error;
mod identity;
mod instance_types;
mod launch_template;
mod lifecycle;
mod lifecycle_hook;
mod load_balancers;
mod notice;
mod operation;
mod pages;
mod price_list;
mod pricing;
mod proxy;
mod queue;
mod requirements;
mod retry;
mod spot;
mod tag_selector;
mod tags;
pub mod type_table;
mod unchanged;
mod user_data;
mod whole;

use std::error::Error as StdError;
use std::time::{Duration, SystemTime};

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_sdk_autoscaling::config::SharedCredentialsProvider;
use aws_sdk_autoscaling::config::retry::RetryConfig;
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use aws_smithy_async::time::{SharedTimeSource, TimeSource};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use tokio::time::{Instant, timeout};

use self::dates::Dates;
pub use self::retry::DELIVERED_WITHIN;
use self::retry::Patience;
use self::whole::Whole;
pub use activity::Activity;
pub use auto_scaling_group::{
    AutoScalingGroup, Frozen, Instance, Launch, Mix, Override, Source, TemplateId, TemplateRef, WarmPool,
    Weights,
};
pub(crate) use autoscaling::CONFIGURATIONS_A_CALL;
pub use calls::Calls;
pub(crate) use ec2::{IMAGES_A_CALL, TYPES_A_CALL};
pub use ec2::{TemplateAliases, TemplatePage};
pub use eks::ManagedNodeGroup;
pub use error::AwsError;
pub use identity::Identity;
pub use instance_types::{Accelerator, TypeInfo};
pub use launch_template::{LaunchSpec, Revision, TemplateVersion, Volumes};
pub use lifecycle::Lifecycle;
pub use lifecycle_hook::Hook;
pub(crate) use lifecycle_hook::{LONGEST_HOLD, SHORTEST_HEARTBEAT, possible};
pub use load_balancers::TargetGroup;
pub use notice::{About, Content, News, Notice};
pub use operation::Operation;
pub use price_list::{ATTRIBUTES, Offer};
pub use proxy::{BadProxy, Proxy};
pub(crate) use queue::MESSAGES_A_CALL;
pub use queue::{Message, QueueAttributes};
pub use requirements::Requirements;
pub use spot::SpotPrice;
pub use tag_selector::TagSelector;
pub use unchanged::PagesRead;
pub use user_data::UserData;

use crate::clock::Clock;
use crate::dry_run::DryRun;

/// More pods than any type has addresses for: `x8i.96xlarge` has 1,514 in
/// [eni-max-pods.txt](https://github.com/aws/amazon-vpc-cni-k8s/blob/master/misc/eni-max-pods.txt).
pub const MOST_PODS: i64 = 2000;
/// Time-out for connecting.
const CONNECT: Duration = Duration::from_secs(3);
/// Region of simulated worlds.
const WORLDS_REGION: &str = "us-east-1";

/// No region is configured anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no AWS region: set --region, AWS_REGION or a region in the AWS profile")]
pub struct NoRegion;

/// Clients of EC2 Auto Scaling, EC2, EKS, SQS, Elastic Load Balancing and the Price List. Clones share everything.
#[derive(Clone, Debug)]
pub struct Aws {
    autoscaling: aws_sdk_autoscaling::Client,
    ec2: aws_sdk_ec2::Client,
    eks: aws_sdk_eks::Client,
    sqs: aws_sdk_sqs::Client,
    load_balancing: aws_sdk_elasticloadbalancingv2::Client,
    pricing: aws_sdk_pricing::Client,
    /// For our identity; `None` in simulated worlds.
    sts: Option<aws_sdk_sts::Client>,
    region: String,
    calls: Calls,
    /// If there, nothing is changed.
    dry_run: Option<DryRun>,
}

impl Aws {
    /// The same clients, which refuse to send whatever changes something, and note it.
    #[must_use]
    pub fn in_dry_run(self, dry_run: &DryRun) -> Self {
        Self { dry_run: Some(dry_run.clone()), ..self }
    }

    /// Whether they refuse to send whatever changes something.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// The same clients, which tell `clock` what AWS's reads.
    #[must_use]
    pub fn telling(self, clock: &Clock) -> Self {
        let config = self.autoscaling.config().to_builder().interceptor(Dates(clock.clone())).build();
        Self { autoscaling: aws_sdk_autoscaling::Client::from_conf(config), ..self }
    }

    /// Clients configured by `config`, except for time-outs and retries.
    pub fn new(config: &SdkConfig) -> Result<Self, NoRegion> {
        let region = config.region().ok_or(NoRegion)?.to_string();
        Ok(Self::with(config, region))
    }

    /// Clients for this region and endpoint, by `proxy` if given. The SDK's chain of environment, profiles and instance
    /// metadata supplies the rest.
    pub async fn connect(
        region: Option<&str>,
        endpoint_url: Option<&str>,
        proxy: Option<&Proxy>,
    ) -> Result<Self, NoRegion> {
        let mut loader = aws_config::defaults(behaviour());
        if let Some(region) = region {
            loader = loader.region(Region::new(region.to_owned()));
        }
        if let Some(url) = endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some(proxy) = proxy {
            loader = loader.http_client(proxy.http_client());
        }
        Self::new(&loader.load().await)
    }

    /// Clients of a simulated AWS: `http_client`, `us-east-1`, made-up credentials, tokio's clock.
    ///
    /// Retries jitter with `fastrand`: seed it for reproducible pauses.
    pub fn at(http_client: SharedHttpClient) -> Self {
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
        Self { sts: None, ..Self::with(&config, WORLDS_REGION.to_owned()) }
    }

    fn with(config: &SdkConfig, region: String) -> Self {
        let config = config
            .to_builder()
            .timeout_config(timeouts())
            // What may be tried again is, by `retry`.
            .retry_config(RetryConfig::disabled())
            .build();
        let autoscaling = aws_sdk_autoscaling::config::Builder::from(&config).interceptor(Whole).build();
        let ec2 = aws_sdk_ec2::config::Builder::from(&config).interceptor(Whole).build();
        let load_balancing =
            aws_sdk_elasticloadbalancingv2::config::Builder::from(&config).interceptor(Whole).build();
        let pricing = aws_sdk_pricing::config::Builder::from(&config)
            .region(Region::from_static(price_list::served_by(&region)))
            .build();
        Self {
            autoscaling: aws_sdk_autoscaling::Client::from_conf(autoscaling),
            ec2: aws_sdk_ec2::Client::from_conf(ec2),
            eks: aws_sdk_eks::Client::new(&config),
            sqs: aws_sdk_sqs::Client::new(&config),
            load_balancing: aws_sdk_elasticloadbalancingv2::Client::from_conf(load_balancing),
            pricing: aws_sdk_pricing::Client::from_conf(pricing),
            sts: Some(aws_sdk_sts::Client::new(&config)),
            region,
            calls: Calls::default(),
            dry_run: None,
        }
    }

    /// The region of the clients.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The call metrics, to be registered.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Sends a call, with retries as `patience` allows.
    async fn call<T, E, F>(
        &self,
        operation: Operation,
        patience: Patience,
        send: impl Fn() -> F,
    ) -> Result<T, AwsError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        self.call_about(operation, "", patience, send).await
    }

    /// The same about something, which a dry run names.
    async fn call_about<T, E, F>(
        &self,
        operation: Operation,
        about: &str,
        patience: Patience,
        send: impl Fn() -> F,
    ) -> Result<T, AwsError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        if let Some(dry_run) = self.dry_run.as_ref().filter(|_| operation.changes()) {
            dry_run.would(format!("{} {about}", operation.action()).trim_end());
            let result = Err(AwsError::DryRun { operation });
            self.calls.begin(operation).end(&result);
            return result;
        }
        retry::tried(patience, || async {
            let counted = self.calls.begin(operation);
            // Boxed: the SDK's futures are large.
            let answer = timeout(patience.attempt, Box::pin(send())).await;
            let result = match answer {
                Ok(answer) => answer.map_err(|error| AwsError::of_sdk(operation, error)),
                Err(late) => Err(AwsError::unreachable(operation, late)),
            };
            counted.end(&result);
            result
        })
        .await
    }
}

/// Attempts are timed by `call`, outside the SDK. Unset values may come from the environment.
fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .disable_read_timeout()
        .disable_operation_attempt_timeout()
        .disable_operation_timeout()
        .build()
}

/// The SDK's defaults as of a fixed date, so that an update does not change them.
fn behaviour() -> BehaviorVersion {
    BehaviorVersion::v2026_01_12()
}

/// The SDK's clock in a simulated world: signatures need one, and nobody checks them.
#[derive(Debug)]
struct TokioTime {
    since: Instant,
}

impl TimeSource for TokioTime {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000) + self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings that decide an SDK client's behaviour, without endpoint and credentials.
    fn settings(aws: &Aws) -> String {
        let autoscaling = aws.autoscaling.config();
        let (ec2, eks, sqs) = (aws.ec2.config(), aws.eks.config(), aws.sqs.config());
        let (balancing, pricing) = (aws.load_balancing.config(), aws.pricing.config());
        format!(
            "{:#?}",
            [
                (
                    autoscaling.retry_config(),
                    autoscaling.timeout_config(),
                    autoscaling.stalled_stream_protection()
                ),
                (ec2.retry_config(), ec2.timeout_config(), ec2.stalled_stream_protection()),
                (eks.retry_config(), eks.timeout_config(), eks.stalled_stream_protection()),
                (sqs.retry_config(), sqs.timeout_config(), sqs.stalled_stream_protection()),
                (balancing.retry_config(), balancing.timeout_config(), balancing.stalled_stream_protection()),
                (pricing.retry_config(), pricing.timeout_config(), pricing.stalled_stream_protection()),
            ]
        )
    }

    #[test]
    fn worlds_and_production_have_the_same_settings_whatever_the_environment_says() {
        let nobody =
            aws_smithy_runtime_api::client::http::http_client_fn(|_, _| unreachable!("nothing is sent"));
        let production = SdkConfig::builder()
            .behavior_version(behaviour())
            .region(Region::from_static("eu-central-1"))
            .retry_config(RetryConfig::adaptive().with_max_attempts(9))
            .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_hours(1)).build())
            .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
            .build();
        let production = Aws::new(&production).expect("a region");
        assert_eq!(settings(&production), settings(&Aws::at(nobody)));
        let retries = production.autoscaling.config().retry_config().map(RetryConfig::max_attempts);
        assert_eq!(retries, Some(1), "all retries are ours");
    }
}
