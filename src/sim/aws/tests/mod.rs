//! The simulated AWS as the real SDK sees it: every test uses its two clients, on virtual time.

#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the SDK's paths to its methods are longer than the closures"
)]

mod capacity;
mod chance;
mod describing;
mod ec2;
mod eks;
mod events;
mod examples;
mod faults;
mod group_activities;
mod hooks;
mod load_balancing;
mod queues;
mod requests;
mod states;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_autoscaling::config::{
    BehaviorVersion, Credentials, Region, SharedCredentialsProvider, retry::RetryConfig,
};
use aws_sdk_autoscaling::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_async::rt::sleep::TokioSleep;
use jiff::Timestamp;
use tokio::task::JoinSet;

use super::*;
use crate::clock::Clock;
use crate::sim::http::aws_client;

/// A running world and its two clients. Retries are off unless a test says otherwise.
struct Bench {
    aws: Aws,
    asg: aws_sdk_autoscaling::Client,
    ec2: aws_sdk_ec2::Client,
    clock: Clock,
    _tasks: JoinSet<()>,
}

fn bench() -> Bench {
    bench_with(RetryConfig::disabled())
}

fn bench_with(retry: RetryConfig) -> Bench {
    build(7, retry)
}

fn seeded(seed: u64) -> Bench {
    build(seed, RetryConfig::disabled())
}

fn build(seed: u64, retry: RetryConfig) -> Bench {
    let clock = Clock::starting_at(Timestamp::new(1_800_000_000, 0).expect("a moment"));
    let aws = Aws::new(clock.clone(), seed);
    let http = aws_client(Arc::new(aws.clone()));
    let credentials =
        SharedCredentialsProvider::new(Credentials::new("AKIDTEST", "secret", None, None, "test"));
    let asg = aws_sdk_autoscaling::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials.clone())
        .http_client(http.clone())
        .retry_config(retry.clone())
        .sleep_impl(TokioSleep::new())
        .build();
    let ec2 = aws_sdk_ec2::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials)
        .http_client(http)
        .retry_config(retry)
        .sleep_impl(TokioSleep::new())
        .build();
    let mut tasks = JoinSet::new();
    let running = aws.clone();
    tasks.spawn(async move { running.run().await });
    Bench {
        aws,
        asg: aws_sdk_autoscaling::Client::from_conf(asg),
        ec2: aws_sdk_ec2::Client::from_conf(ec2),
        clock,
        _tasks: tasks,
    }
}

impl Bench {
    /// The ids of the group's instances in service, oldest name first.
    fn in_service(&self, group: &str) -> Vec<String> {
        self.ids(group, LifecycleState::InService)
    }

    fn ids(&self, group: &str, state: LifecycleState) -> Vec<String> {
        let group = self.aws.group(group).expect("the group");
        group.in_state(state).into_iter().map(str::to_owned).collect()
    }

    fn state(&self, instance: &str) -> LifecycleState {
        self.aws.instance(instance).expect("the instance").state
    }

    fn desired(&self, group: &str) -> u32 {
        self.aws.group(group).expect("the group").desired
    }

    /// Waits until the group has exactly this many in service and nothing else is under way.
    async fn settled(&self, group: &str, count: usize) {
        let quiet = |aws: &Aws| {
            let group = aws.group(group).expect("the group");
            group.launches == 0
                && group.instances.len() == count
                && group.in_state(LifecycleState::InService).len() == count
        };
        self.until("a settled group", quiet).await;
    }

    /// Waits for a condition, which must come to hold.
    async fn until(&self, what: &str, condition: impl FnMut(&Aws) -> bool) {
        tokio::time::timeout(Duration::from_hours(100), self.aws.until(condition)).await.expect(what);
    }

    async fn until_state(&self, instance: &str, state: LifecycleState) {
        let reached = |aws: &Aws| aws.instance(instance).is_some_and(|i| i.state == state);
        self.until("that state", reached).await;
    }

    async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn happened(&self, mut accept: impl FnMut(&Event) -> bool) -> usize {
        self.aws.journal().iter().filter(|entry| accept(&entry.what)).count()
    }
}

/// Code and text of a refusal.
fn refusal<E, R>(error: &SdkError<E, R>) -> (String, String)
where
    SdkError<E, R>: ProvideErrorMetadata,
{
    (error.code().unwrap_or_default().to_owned(), error.message().unwrap_or_default().to_owned())
}

fn web() -> GroupSpec {
    GroupSpec::named("web").size(0, 10, 2).template("m5.large").already_running()
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_ids_and_they_look_like_instance_ids() {
    let (one, other) = (bench(), bench());
    for bench in [&one, &other] {
        bench.aws.add_group(web());
    }
    assert_eq!(one.in_service("web"), other.in_service("web"));
    let id = one.in_service("web").remove(0);
    assert_eq!(id.len(), 19);
    assert!(id.strip_prefix("i-").is_some_and(|hex| hex.chars().all(|c| c.is_ascii_hexdigit())));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_not_modelled_is_refused_as_unknown() {
    let bench = bench();
    let error = bench.asg.describe_account_limits().send().await.expect_err("not modelled");
    assert_eq!(refusal(&error).0, "InvalidAction");
    assert_eq!(error.raw_response().map(|raw| raw.status().as_u16()), Some(400));
    let error = bench.ec2.describe_regions().send().await.expect_err("not modelled");
    assert_eq!(refusal(&error).0, "InvalidAction");
    assert_eq!(bench.aws.calls(Operation::Unknown), 2);
}

#[tokio::test(start_paused = true)]
async fn the_journal_has_a_call_before_its_effects_and_subscribers_see_the_same() {
    let bench = bench();
    bench.aws.add_group(web());
    let mut entries = bench.aws.subscribe();
    bench
        .asg
        .set_desired_capacity()
        .auto_scaling_group_name("web")
        .desired_capacity(1)
        .send()
        .await
        .expect("done");
    let call = entries.recv().await.expect("an entry");
    let Event::Called { operation, arguments, outcome } = call.what else { panic!("a call comes first") };
    assert_eq!((operation, outcome), (Operation::SetDesiredCapacity, Outcome::Answered));
    assert_eq!(arguments["AutoScalingGroupName"], "web");
    assert_eq!(arguments["DesiredCapacity"], "1");
    assert_eq!(
        entries.recv().await.expect("an entry").what,
        Event::DesiredChanged { group: "web".to_owned(), from: 2, to: 1, by: Operation::SetDesiredCapacity }
    );
    let next = entries.recv().await.expect("an entry").what;
    assert!(matches!(next, Event::TerminationStarted { cause: TerminationCause::ScaleIn, .. }), "{next:?}");
    let off = entries.recv().await.expect("an entry").what;
    assert!(matches!(off, Event::Powered { power: Power::ShuttingDown, .. }), "{off:?}");
    let gone = entries.recv().await.expect("an entry");
    assert!(matches!(gone.what, Event::Terminated { .. }));
    assert_eq!(gone.at, bench.clock.now());
}
