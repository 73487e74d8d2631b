//! What the tests run on: the provider behind a connection in memory, on the simulated AWS and a script for scale-ins.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::{AutoScalingGroup, Instance, Lifecycle};
use ebbtide::clock::Clock;
use ebbtide::cluster::ApiError;
use ebbtide::groups::protection::Protection;
use ebbtide::groups::selector::Selectors;
use ebbtide::groups::sizes::Leaves;
use ebbtide::groups::{Group, Groups, LaunchFailure, Snapshot};
use ebbtide::k8s::{GroupName, InstanceId, NodeName};
use ebbtide::prices::Prices;
use ebbtide::provider::listen::Listener;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{
    self, ExternalGrpcNode, NodeGroupDecreaseTargetSizeRequest, NodeGroupDeleteNodesRequest,
    NodeGroupIncreaseSizeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest, RefreshRequest,
};
use ebbtide::provider::{Provider, RpcMetrics, Running, ServeError, Sizing, Tls, serve};
use ebbtide::scale_in::{Accepted, IntentError, ScaleIns};
use ebbtide::sim::aws::{Aws, Event, GroupSpec, LifecycleState, Operation, Outcome, Timing};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::span::Span;
use ebbtide::slots::Peer;
use futures::future::{BoxFuture, ready};
use futures::{FutureExt as _, StreamExt as _};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::registry::Registry;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The clock of these tests: 2023-11-14T22:13:20Z.
pub(crate) fn clock() -> Clock {
    Clock::starting_at(Timestamp::from_second(1_700_000_000).expect("in range"))
}

/// The group the tests are about.
pub(crate) const GROUP: &str = "web";

/// A group `web` of 1 to 10 in zone `z1`.
pub(crate) fn web(desired: i32) -> Group {
    Group {
        asg: Arc::new(AutoScalingGroup {
            name: GROUP.into(),
            min: 1,
            max: 10,
            desired,
            zones: vec!["z1".into()],
            ..AutoScalingGroup::default()
        }),
        template: None,
        ..Group::default()
    }
}

/// Sentences about a group.
pub(crate) trait With: Sized {
    fn with(self, id: &str, lifecycle: Lifecycle) -> Self;
    fn in_service(self, ids: &[&str]) -> Self;
    fn limits(self, min: i32, max: i32) -> Self;
}

impl With for Group {
    fn with(mut self, id: &str, lifecycle: Lifecycle) -> Self {
        Arc::make_mut(&mut self.asg).instances.push(Instance {
            id: id.into(),
            zone: "z1".into(),
            lifecycle,
            ..Instance::default()
        });
        self
    }

    fn in_service(self, ids: &[&str]) -> Self {
        ids.iter().fold(self, |group, id| group.with(id, Lifecycle::InService))
    }

    fn limits(mut self, min: i32, max: i32) -> Self {
        let asg = Arc::make_mut(&mut self.asg);
        (asg.min, asg.max) = (min, max);
        self
    }
}

/// What was asked of AWS, and done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Set { from: u32, to: u32, protect: Vec<String> },
    Terminate { instance: String },
}

/// Scale-ins, as far as the provider sees them.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// How often it may have changed.
    changes: u64,
    /// How often it was asked whether an instance leaves.
    asked: usize,
    /// Names of Nodes by instance.
    pub(crate) nodes: BTreeMap<String, String>,
    /// Whether it will lower the size, by group and instance.
    pub(crate) under_way: BTreeMap<(String, String), bool>,
    /// Provider ids as Nodes have them, by instance.
    pub(crate) spelled: BTreeMap<String, String>,
    /// Instances whose Nodes carry cluster-autoscaler's taint.
    pub(crate) tainted: BTreeSet<String>,
    /// Instances whose Nodes have the GPU label and no GPU.
    pub(crate) without_gpu: BTreeSet<String>,
    /// Nodes accepted, in order.
    pub(crate) accepted: Vec<String>,
    /// Nodes that cannot be recorded.
    pub(crate) refuses: BTreeSet<String>,
    /// Nodes about which the API server never answers.
    pub(crate) hangs: BTreeSet<String>,
}

/// Shared by the provider and the test.
#[derive(Debug, Default)]
pub(crate) struct Script(Mutex<Leaving>);

impl Script {
    /// To be changed, or read.
    pub(crate) fn now(&self) -> MutexGuard<'_, Leaving> {
        let mut now = self.0.lock();
        now.changes += 1;
        now
    }

    /// How often it was asked whether an instance leaves.
    pub(crate) fn asked(&self) -> usize {
        self.0.lock().asked
    }
}

impl ScaleIns for Script {
    fn is_ready(&self) -> bool {
        true
    }

    fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    fn node_of(&self, instance: &InstanceId) -> Option<NodeName> {
        self.0.lock().nodes.get(instance.as_str()).map(NodeName::from)
    }

    fn lacks_its_gpu(&self, instance: &InstanceId) -> bool {
        self.0.lock().without_gpu.contains(instance.as_str())
    }

    fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool {
        self.0.lock().under_way.contains_key(&(group.to_owned().to_string(), instance.to_owned().to_string()))
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

    fn provider_id(&self, instance: &InstanceId, _: &str) -> Option<String> {
        self.0.lock().spelled.get(instance.as_str()).cloned()
    }

    fn leaves(&self, group: &GroupName, Instance { id: instance, .. }: &Instance) -> Leaves {
        self.0.lock().asked += 1;
        if self.will_decrement(instance) {
            Leaves::WithDecrement
        } else if self.is_leaving(group, instance) {
            Leaves::Replaced
        } else if self.0.lock().tainted.contains(instance.as_str()) {
            Leaves::BeingDrained
        } else {
            Leaves::No
        }
    }

    fn will_decrement(&self, instance: &InstanceId) -> bool {
        self.0.lock().under_way.iter().any(|((_, id), decrements)| **id == **instance && *decrements)
    }

    fn accept(
        &self,
        node: &NodeName,
        group: &GroupName,
        instance: &InstanceId,
    ) -> BoxFuture<'static, Result<Accepted, IntentError>> {
        let mut script = self.0.lock();
        if script.hangs.contains(node.as_str()) {
            return std::future::pending().boxed();
        }
        if script.refuses.contains(node.as_str()) {
            let source = ApiError::TimedOut;
            return ready(Err(IntentError::NotRecorded { node: node.to_owned(), source })).boxed();
        }
        script.changes += 1;
        script.accepted.push(node.to_string());
        let before = script.under_way.insert((group.to_string(), instance.to_string()), true);
        ready(Ok(if before == Some(true) { Accepted::Already } else { Accepted::New })).boxed()
    }
}

/// The provider, served on pipes in memory.
pub(crate) struct World {
    pub(crate) groups: Arc<Groups>,
    pub(crate) aws: Aws,
    pub(crate) leaving: Arc<Script>,
    pub(crate) clock: Clock,
    pub(crate) registry: Registry,
    pub(crate) tasks: JoinSet<Result<(), ServeError>>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    dial: mpsc::UnboundedSender<io::Result<(DuplexStream, Peer)>>,
}

impl World {
    /// Discovery and AWS say the same: this group.
    pub(crate) fn with(group: Group) -> Self {
        let world = Self::empty(None);
        world.exists(&group);
        world.publish([group]);
        world
    }

    /// Discovery has seen `group`, AWS is at `fresh` now.
    pub(crate) fn seen(group: Group, fresh: &Group) -> Self {
        let world = Self::with(group);
        world.exists(fresh);
        world
    }

    /// Discovery has not looked yet.
    pub(crate) fn empty(tls: Option<Tls>) -> Self {
        Self::of(tls, None)
    }

    /// The same; it tells prices.
    pub(crate) fn priced(prices: Option<Arc<Prices>>) -> Self {
        Self::of(None, prices)
    }

    fn of(tls: Option<Tls>, prices: Option<Arc<Prices>>) -> Self {
        let groups = Arc::new(Groups::new(Duration::from_mins(10)));
        let leaving = Arc::new(Script::default());
        let clock = clock();
        let aws = Aws::new(clock.clone(), 1);
        let adapter = ebbtide::aws::Aws::at(aws_client(Arc::new(aws.clone())));
        let protection = Arc::new(Protection::new(adapter.clone(), Arc::clone(&groups), clock.clone()));
        let running = Running::default();
        let selectors = Selectors::parse([format!("0:1000:{GROUP}")], [""; 0]).expect("well-formed");
        let sizing = Sizing::new(adapter, selectors, Arc::clone(&groups), protection, running.clone());
        let mut registry = Registry::default();
        let metrics = RpcMetrics::register(&mut registry);
        if let Some(prices) = &prices {
            prices.register(&mut registry);
        }
        let provider = Provider::new(
            Arc::clone(&groups),
            Arc::<Script>::clone(&leaving),
            sizing,
            running,
            clock.clone(),
            metrics,
        )
        .with_prices(prices);
        let (dial, dialled) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(provider, None, UnboundedReceiverStream::new(dialled), tls, async {
            let _ = stopped.await;
        }));
        Self { groups, aws, leaving, clock, registry, tasks, stop: Some(stop), dial }
    }

    /// AWS has this group from now on. What it misses never comes.
    pub(crate) fn exists(&self, group: &Group) {
        let asg = &group.asg;
        let never = Timing { launch: Span::exactly(Duration::from_hours(1_000)), ..Timing::QUICK };
        let size = |size: i32| u32::try_from(size).expect("a size");
        let spec = GroupSpec::named(&*asg.name).zones(&asg.zones).timing(never);
        let spec = spec.size(size(asg.min), size(asg.max), size(asg.desired)).launching_first();
        self.aws.add_group(asg.suspended.iter().fold(spec, |spec, process| spec.suspended(process)));
        for instance in &asg.instances {
            let state = match instance.lifecycle {
                Lifecycle::Pending => LifecycleState::Pending,
                Lifecycle::InService => LifecycleState::InService,
                Lifecycle::Terminating => LifecycleState::Terminating,
                Lifecycle::TerminatingWait => LifecycleState::TerminatingWait,
                // Changes have nothing to do with these.
                _ => continue,
            };
            self.aws.add_instance_as(&asg.name, &instance.id, state);
            if instance.unhealthy {
                self.aws.fail_health_check(&instance.id);
            }
        }
    }

    pub(crate) fn publish(&self, groups: impl IntoIterator<Item = Group>) {
        self.groups.publish(Snapshot::new(self.clock.now(), groups.into_iter().map(Arc::new)));
    }

    /// These instances have Nodes: `i-1` has `n-1`.
    pub(crate) fn registered(self, instances: &[&str]) -> Self {
        self.leaving.now().nodes.extend(instances.iter().map(|i| ((*i).to_owned(), i.replace("i-", "n-"))));
        self
    }

    /// cluster-autoscaler has come every ten seconds for more than two minutes and a half, so it has not come from another replica.
    pub(crate) async fn visited(self) -> Self {
        for _ in 0..16 {
            tokio::time::advance(Duration::from_secs(10)).await;
            self.is_visited().await;
        }
        self
    }

    /// cluster-autoscaler begins a loop, and discovery has just looked.
    pub(crate) async fn is_visited(&self) {
        self.refresh_view();
        self.client().await.refresh(RefreshRequest {}).await.expect("answered");
    }

    /// A scale-in of this instance of `web` is under way.
    pub(crate) fn under_way(self, instance: &str, decrements: bool) -> Self {
        self.leaving.now().under_way.insert((GROUP.into(), instance.into()), decrements);
        self
    }

    /// One end of a new connection; the provider has the other.
    pub(crate) fn connect(&self) -> DuplexStream {
        self.connect_from(Peer::Local)
    }

    /// The same, of somebody at an address.
    pub(crate) fn connect_from(&self, peer: Peer) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        self.dial.send(Ok((theirs, peer))).expect("the provider is served");
        ours
    }

    /// Serves those too who connect there.
    pub(crate) fn relay(&mut self, mut listener: Listener) {
        let dial = self.dial.clone();
        self.tasks.spawn(async move {
            while let Some(accepted) = listener.next().await {
                let (mut client, peer) = accepted.expect("accepted");
                let (mut ours, theirs) = tokio::io::duplex(1 << 16);
                dial.send(Ok((theirs, peer))).expect("the provider is served");
                // One at a time is enough here.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut ours).await;
            }
            Ok(())
        });
    }

    pub(crate) async fn channel(&self) -> Channel {
        let mut connection = Some(TokioIo::new(self.connect()));
        Endpoint::from_static("http://provider")
            .connect_with_connector(tower::service_fn(move |_| {
                let connection = connection.take().ok_or_else(|| io::Error::other("it connects once"));
                std::future::ready(connection)
            }))
            .await
            .expect("a connection in memory")
    }

    pub(crate) async fn client(&self) -> CloudProviderClient<Channel> {
        CloudProviderClient::new(self.channel().await)
    }

    pub(crate) async fn target_size(&self) -> i32 {
        let request = NodeGroupTargetSizeRequest { id: GROUP.into() };
        let answer = self.client().await.node_group_target_size(request).await.expect("a size");
        answer.into_inner().target_size
    }

    /// What is listed, by the last part of its provider id.
    pub(crate) async fn listed(&self) -> Vec<String> {
        self.instances().await.iter().map(|listed| last_part(&listed.id)).collect()
    }

    /// The same, of what is listed with an error.
    pub(crate) async fn with_errors(&self) -> Vec<String> {
        let listed = self.instances().await;
        let failed = listed.iter().filter(|i| i.status.as_ref().is_some_and(|s| s.error_info.is_some()));
        failed.map(|listed| last_part(&listed.id)).collect()
    }

    pub(crate) async fn instances(&self) -> Vec<proto::Instance> {
        let request = NodeGroupNodesRequest { id: GROUP.into() };
        let answer = self.client().await.node_group_nodes(request).await.expect("answered");
        answer.into_inner().instances
    }

    /// Discovery refreshes again, and sees what it saw.
    pub(crate) fn refresh_view(&self) {
        let seen = self.groups.latest().expect("published");
        self.publish(seen.groups.values().map(|group| Group::clone(group)));
    }

    pub(crate) async fn increase(&self, delta: i32) -> Result<(), Status> {
        let request = NodeGroupIncreaseSizeRequest { delta, id: GROUP.into() };
        self.client().await.node_group_increase_size(request).await.map(drop)
    }

    pub(crate) async fn decrease(&self, delta: i32) -> Result<(), Status> {
        let request = NodeGroupDecreaseTargetSizeRequest { delta, id: GROUP.into() };
        self.client().await.node_group_decrease_target_size(request).await.map(drop)
    }

    pub(crate) async fn delete(&self, nodes: Vec<ExternalGrpcNode>) -> Result<(), Status> {
        let request = NodeGroupDeleteNodesRequest { id: GROUP.into(), nodes };
        self.client().await.node_group_delete_nodes(request).await.map(drop)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        let (mut asked, mut protect) = (Vec::new(), Vec::new());
        for entry in self.aws.journal() {
            match entry.what {
                Event::Called { operation: Operation::SetInstanceProtection, arguments, .. } => {
                    let named = arguments.into_iter().filter(|(name, _)| name.starts_with("InstanceIds"));
                    protect = named.map(|(_, instance)| instance).collect();
                }
                Event::DesiredChanged { from, to, by: Operation::SetDesiredCapacity, .. } => {
                    asked.push(Asked::Set { from, to, protect: std::mem::take(&mut protect) });
                }
                Event::Called {
                    operation: Operation::TerminateInstanceInAutoScalingGroup,
                    arguments,
                    outcome,
                } if !matches!(outcome, Outcome::Refused(_)) => {
                    asked.push(Asked::Terminate { instance: arguments["InstanceId"].clone() });
                }
                _ => {}
            }
        }
        asked
    }

    pub(crate) fn accepted(&self) -> Vec<String> {
        let mut accepted = self.leaving.now().accepted.clone();
        accepted.sort();
        accepted
    }

    /// Nothing was asked of AWS or the cluster.
    pub(crate) fn is_untouched(&self) -> bool {
        self.asked().is_empty() && self.accepted().is_empty()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("writes to a string");
        text
    }
}

/// A Node of a cluster: `i-1` is on `n-1`.
pub(crate) fn node(instance: &str) -> ExternalGrpcNode {
    ExternalGrpcNode {
        provider_id: format!("aws:///z1/{instance}"),
        name: instance.replace("i-", "n-"),
        labels: BTreeMap::from([("kubernetes.io/os".into(), "linux".into())]),
        ..ExternalGrpcNode::default()
    }
}

/// The Node cluster-autoscaler makes up for an instance that never registered, or for a placeholder.
pub(crate) fn unregistered(instance: &str) -> ExternalGrpcNode {
    let provider_id = format!("aws:///z1/{instance}");
    ExternalGrpcNode { name: provider_id.clone(), provider_id, ..ExternalGrpcNode::default() }
}

pub(crate) fn placeholders(indices: std::ops::Range<usize>) -> Vec<ExternalGrpcNode> {
    indices.map(|n| unregistered(&format!("i-placeholder-{GROUP}-{n}"))).collect()
}

/// So many launches have failed for want of capacity.
pub(crate) fn failure(launches: usize) -> LaunchFailure {
    LaunchFailure {
        code: "InsufficientInstanceCapacity".into(),
        message: "none left in z1".into(),
        out_of_resources: true,
        launches,
    }
}

fn last_part(id: &str) -> String {
    id.rsplit('/').next().unwrap_or_default().to_owned()
}

pub(crate) fn code<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().err().map_or(Code::Ok, Status::code)
}
