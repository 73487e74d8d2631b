//! The gRPC service without a connection: bytes go through the decoders and into the handlers, each case on a provider of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ebbtide::aws::{AutoScalingGroup, Instance, Lifecycle};
use ebbtide::clock::Clock;
use ebbtide::groups::protection::Protection;
use ebbtide::groups::selector::Selectors;
use ebbtide::groups::sizes::Leaves;
use ebbtide::groups::{Group, Groups, LaunchFailure, Snapshot};
use ebbtide::k8s::{GroupName, InstanceId, NodeName};
use ebbtide::provider::proto::cloud_provider_server::CloudProviderServer;
use ebbtide::provider::{Provider, RpcMetrics, Running, Sizing};
use ebbtide::scale_in::{Accepted, IntentError, ScaleIns};
use ebbtide::sim::aws::{
    Aws, Event, GroupSpec, LifecycleState, Lose, Operation, Refusal, Timing, Trouble, Which,
};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::span::Span;
use ebbtide::template::Template;
use ebbtide::template::tags::OptionOverrides;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tonic::Status;
use tower::ServiceExt as _;

use crate::run::Told;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
});

/// The instance of each Node has its number: `n-1` is `i-1`.
#[derive(Debug, Default)]
struct Leaving(Mutex<BTreeSet<InstanceId>>);

impl ScaleIns for Leaving {
    fn is_ready(&self) -> bool {
        true
    }

    fn changes(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn node_of(&self, instance: &InstanceId) -> Option<NodeName> {
        let number = instance.as_str().strip_prefix("i-")?;
        matches!(number, "1" | "2" | "3").then(|| format!("n-{number}").as_str().into())
    }

    fn is_leaving(&self, _: &GroupName, instance: &InstanceId) -> bool {
        self.will_decrement(instance)
    }

    fn is_up_to_date(&self) -> bool {
        true
    }

    fn unidentified_node(&self, _: &AutoScalingGroup) -> Option<NodeName> {
        None
    }

    fn outlives_its_node(&self, _: &GroupName, _: &InstanceId) -> bool {
        false
    }

    fn is_secondary(&self, _: &NodeName, _: &InstanceId) -> bool {
        false
    }

    fn provider_id(&self, _: &InstanceId, _: &str) -> Option<String> {
        None
    }

    fn lacks_its_gpu(&self, _: &InstanceId) -> bool {
        false
    }

    fn leaves(&self, _: &GroupName, instance: &Instance) -> Leaves {
        if self.will_decrement(&instance.id) { Leaves::WithDecrement } else { Leaves::No }
    }

    fn will_decrement(&self, instance: &InstanceId) -> bool {
        self.0.lock().contains(instance)
    }

    fn accept(
        &self,
        _: &NodeName,
        _: &GroupName,
        instance: &InstanceId,
    ) -> BoxFuture<'static, Result<Accepted, IntentError>> {
        let is_new = self.0.lock().insert(instance.clone());
        ready(Ok(if is_new { Accepted::New } else { Accepted::Already })).boxed()
    }
}

/// `web` has four instances and two to come, `full` none of three, and may have as many as fit into a figure.
fn groups() -> [Group; 2] {
    let instance = |(id, lifecycle): (&str, Lifecycle)| Instance {
        id: id.into(),
        zone: "z1".into(),
        lifecycle,
        ..Instance::default()
    };
    let instances = [
        ("i-1", Lifecycle::InService),
        ("i-2", Lifecycle::InService),
        ("i-3", Lifecycle::TerminatingWait),
        ("i-4", Lifecycle::Pending),
    ];
    let asg = AutoScalingGroup {
        name: "web".into(),
        min: 1,
        max: 10,
        desired: 5,
        zones: vec!["z1".into()],
        instances: instances.map(instance).into(),
        ..AutoScalingGroup::default()
    };
    let failure = LaunchFailure {
        code: "InsufficientInstanceCapacity".into(),
        message: "none".into(),
        out_of_resources: true,
        launches: 1,
    };
    let options =
        OptionOverrides { ignore_daemon_sets_utilization: Some(true), ..OptionOverrides::default() };
    let template = Some(Ok(Arc::new(Template::default())));
    let full = AutoScalingGroup { name: "full".into(), max: i32::MAX, desired: 3, ..asg.clone() };
    [
        Group { asg: Arc::new(asg), template, options, failure: Some(failure), ..Group::default() },
        Group { asg: Arc::new(AutoScalingGroup { instances: Vec::new(), ..full }), ..Group::default() },
    ]
}

/// AWS with the same groups. `full` keeps its size: it might grow by more instances than there is memory for.
fn account(clock: &Clock) -> Aws {
    const REFUSED: Refusal = Refusal { code: "AccessDenied", status: 403, message: "it may not" };
    let aws = Aws::new(clock.clone(), 1);
    let never = Timing { launch: Span::exactly(Duration::from_hours(1_000)), ..Timing::QUICK };
    aws.add_group(GroupSpec::named("web").zones(["z1"]).timing(never).size(1, 10, 5));
    aws.add_group(GroupSpec::named("full").zones(["z1"]).timing(never).size(1, i32::MAX as u32, 3));
    for (id, state) in [
        ("i-1", LifecycleState::InService),
        ("i-2", LifecycleState::InService),
        ("i-3", LifecycleState::TerminatingWait),
        ("i-4", LifecycleState::Pending),
    ] {
        aws.add_instance_as("web", id, state);
    }
    let size = Which::of(&[Operation::SetDesiredCapacity]).about("full").times(u32::MAX);
    aws.trouble(size, Trouble::Refused(REFUSED, Lose::BeforeEffect));
    aws
}

fn provider(clock: Clock, aws: &Aws) -> Provider {
    let known = Arc::new(Groups::new(Duration::from_mins(10)));
    known.publish(Snapshot::new(clock.now(), groups().map(Arc::new)));
    let metrics = RpcMetrics::register(&mut Registry::default());
    let (aws, running) = (ebbtide::aws::Aws::at(aws_client(Arc::new(aws.clone()))), Running::default());
    let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&known), clock.clone()));
    let selectors = Selectors::parse(["0:10:web".to_owned(), format!("0:{}:full", i32::MAX)], [""; 0]);
    let selectors = selectors.expect("well-formed");
    let sizing = Sizing::new(aws, selectors, Arc::clone(&known), protection, running.clone());
    Provider::new(known, Arc::new(Leaving::default()), sizing, running, clock, metrics)
        .with_zero_startup_time(true)
}

/// What is wrong with the sizes that AWS was told to set.
fn wrong_sizes(aws: &Aws, rpc: &str) -> Option<String> {
    aws.journal().into_iter().find_map(|entry| {
        let Event::Called { operation: Operation::SetDesiredCapacity, arguments, .. } = entry.what else {
            return None;
        };
        let before = if arguments["AutoScalingGroupName"] == "web" { 5 } else { 3 };
        let size: i32 = arguments["DesiredCapacity"].parse().unwrap_or_default();
        let is_right = size >= 1 && size != before && (size > before) == (rpc == "NodeGroupIncreaseSize");
        (!is_right).then(|| format!("{rpc}: {arguments:?}"))
    })
}

/// The input is an RPC's name, a line feed, and the request's bytes.
pub(crate) fn feed(input: &[u8]) -> Result<Told, String> {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (name, message) = (&input[..at], input.get(at + 1..).unwrap_or_default());
    let name: String = name
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .map(|byte| char::from(*byte))
        .take(60)
        .collect();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let framed = [&[0][..], &length, message].concat();
    let request =
        http::Request::post(format!("/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/{name}"))
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(Full::new(bytes::Bytes::from(framed))))
            .map_err(|error| error.to_string())?;
    RUNTIME.block_on(async {
        let clock = Clock::starting_at(Timestamp::from_second(1_700_000_000).expect("in range"));
        let aws = account(&clock);
        let service = CloudProviderServer::new(provider(clock, &aws));
        let answer = service.oneshot(request).await.map_err(|never| format!("{never:?}"))?;
        let early = Status::from_header_map(answer.headers());
        let trailers = answer.into_body().collect().await.map_err(|error| error.to_string())?;
        let status = early.or_else(|| trailers.trailers().and_then(Status::from_header_map));
        let status = status.ok_or("an answer without a status")?;
        let known = [
            tonic::Code::Ok,
            tonic::Code::NotFound,
            tonic::Code::InvalidArgument,
            tonic::Code::FailedPrecondition,
            tonic::Code::Unimplemented,
        ];
        // tonic itself calls a message that cannot be decoded INTERNAL.
        let is_undecodable = status.code() == tonic::Code::Internal && status.message().contains("decode");
        if !(known.contains(&status.code()) || is_undecodable) {
            return Err(format!("{status:?}"));
        }
        if let Some(wrong) = wrong_sizes(&aws, &name) {
            return Err(wrong);
        }
        let accepted = status.code() == tonic::Code::Ok;
        Ok(Told { accepted, lines: vec![status.message().to_owned()] })
    })
}
