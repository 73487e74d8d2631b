//! What the tests run on: a world with one group and a log shipper on every node, the program on it, and what its
//! neighbours do: cluster-autoscaler over gRPC, people through the Kubernetes API.
//!
//! Everything that is asserted on is what the worlds wrote down, in [`crate::journal_queries`].

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{
    ExternalGrpcNode, NodeGroupDeleteNodesRequest, NodeGroupIncreaseSizeRequest, NodeGroupNodesRequest,
    NodeGroupTargetSizeRequest, NodeGroupsRequest, RefreshRequest,
};
use ebbtide::scale_in::Settings;
use ebbtide::sim::aws::{GroupSpec, HookSpec, LifecycleState, TerminationCause};
use ebbtide::sim::cluster::{Cluster, Event, Fixture, Name, daemon_set, pod};
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;

use crate::journal_queries::is_released;

/// Longer than anything here takes: what has not come by then never comes.
pub(crate) const EVER: Duration = Duration::from_hours(50);

pub(crate) const RECORD: &str = "ebbtide/scale-in";
pub(crate) const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
pub(crate) const DS_EVICTION: &str = "cluster-autoscaler.kubernetes.io/enable-ds-eviction";

pub(crate) const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The program's configuration with these settings of scale-ins changed.
pub(crate) fn config_with(change: impl FnOnce(&mut Settings)) -> Config {
    let mut config = config();
    change(&mut config.scale_in);
    config
}

/// A group of `m5.large`, tagged for the program, with this many instances in service.
pub(crate) fn group(size: u32) -> GroupSpec {
    GroupSpec::named("web")
        .size(0, 1_000, size)
        .zones(["us-east-1a"])
        .template("m5.large")
        .tag(TAG, "true")
        .already_running()
}

/// Such a group whose instances are held by our hook on their way out.
pub(crate) fn held_group(size: u32, heartbeat_seconds: u64) -> GroupSpec {
    group(size).hook(HookSpec::terminating("ebbtide").heartbeat(heartbeat_seconds))
}

/// A node of the group, which can be talked of when it has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) instance: String,
    provider_id: String,
}

impl Machine {
    /// What the cluster calls its instance.
    pub(crate) fn provider_id(&self) -> &str {
        &self.provider_id
    }

    /// An instance that was asked for and never came, by the provider id that stands for it.
    pub(crate) fn that_never_came(provider_id: &str) -> Self {
        let id = provider_id.to_owned();
        Self { name: id.clone(), instance: id.clone(), provider_id: id }
    }
}

/// The state of its instance; `None`: there is none.
pub(crate) fn state(world: &World, machine: &Machine) -> Option<LifecycleState> {
    world.aws.instance(&machine.instance).map(|instance| instance.state)
}

/// On whose account a node goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Autoscaler,
    Group,
    Operator,
}

/// A world, and the program on it.
pub(crate) struct Scene {
    pub(crate) world: World,
    program: Option<Program>,
    config: Config,
    kube: kube::Client,
    way: Box<dyn Fn(Cluster) -> kube::Client>,
}

impl Scene {
    /// One group, its nodes joined, the log shippers running, the program ready.
    pub(crate) async fn with(group: GroupSpec) -> Self {
        Self::configured(group, config()).await
    }

    pub(crate) async fn configured(group: GroupSpec, config: Config) -> Self {
        Self::on(World::new(1), group, config).await
    }

    /// The same on a world in which something is wrong from the start on.
    pub(crate) async fn on(world: World, group: GroupSpec, config: Config) -> Self {
        Self::made(world, group, config, |cluster| cluster.client()).await
    }

    /// The same, the program's way to the API server being another one.
    pub(crate) async fn behind(group: GroupSpec, way: impl Fn(Cluster) -> kube::Client + 'static) -> Self {
        Self::made(World::new(1), group, config(), way).await
    }

    /// The same on this world.
    pub(crate) async fn made(
        world: World,
        group: GroupSpec,
        config: Config,
        way: impl Fn(Cluster) -> kube::Client + 'static,
    ) -> Self {
        world.aws.add_group(group);
        world.cluster.add(daemon_set("shipper").log_shipper());
        let kube = world.cluster.client();
        let mut scene = Self { world, program: None, config, kube, way: Box::new(way) };
        scene.start();
        let nodes = scene.world.aws.group("web").expect("the group").desired as usize;
        scene.until(|w| running(w, "shipper-") == nodes).await;
        scene.ready().await;
        scene
    }

    /// Its nodes, in order of their names.
    pub(crate) fn machines(&self) -> Vec<Machine> {
        self.world.cluster.node_names().iter().map(|name| self.machine(name)).collect()
    }

    /// The first of its nodes.
    pub(crate) fn first(&self) -> Machine {
        self.machines().remove(0)
    }

    fn machine(&self, name: &str) -> Machine {
        let node = self.node(name).expect("a Node");
        let provider_id = node.spec.and_then(|spec| spec.provider_id).expect("a provider id");
        let instance = provider_id.rsplit('/').next().expect("an instance").to_owned();
        Machine { name: name.to_owned(), instance, provider_id }
    }

    pub(crate) fn node(&self, name: &str) -> Option<Node> {
        self.world.cluster.node(name)
    }

    /// Adds pods (or anything else), and waits until the pods run.
    pub(crate) async fn run<F: Into<Fixture>>(&self, fixtures: impl IntoIterator<Item = F>) {
        for fixture in fixtures {
            self.world.cluster.add(fixture);
        }
        let waits = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Pending");
        self.until(|w| !w.cluster.list::<Pod>().iter().any(waits)).await;
    }

    /// Waits until something holds.
    pub(crate) async fn until(&self, holds: impl FnMut(&World) -> bool) {
        assert!(self.world.until(EVER, holds).await, "it never came to that");
    }

    /// Lets time pass in which something would have happened if it ever did.
    pub(crate) async fn pass_some(&self, time: Duration) {
        assert!(!self.world.until(time, |_| false).await);
    }

    /// Waits until the instance has been let go.
    pub(crate) async fn until_released(&self, machine: &Machine) {
        self.until(|w| is_released(w, machine)).await;
    }

    /// Waits until all of them have been let go. Returns how many were under way at once at the most.
    pub(crate) async fn most_at_once(
        &self,
        machines: &[Machine],
        under_way: impl Fn(&World, &[Machine]) -> usize,
    ) -> usize {
        let mut most = 0;
        self.until(|w| {
            most = most.max(under_way(w, machines));
            machines.iter().all(|machine| is_released(w, machine))
        })
        .await;
        most
    }

    pub(crate) async fn until_gone(&self, machine: &Machine) {
        self.until(|w| !w.cluster.has_node(&machine.name)).await;
    }
}

/// Five workloads on each of these nodes, which exit 20 s after they are asked.
pub(crate) fn five_on_each(machines: &[Machine]) -> impl Iterator<Item = Fixture> + '_ {
    machines.iter().enumerate().flat_map(|(n, machine)| {
        let of_node = move |p| pod(format!("web-{n}-{p}").as_str()).on(&machine.name).exits_after(20).into();
        (0..5).map(of_node)
    })
}

/// How many pods with this beginning of a name have come to run.
pub(crate) fn running(world: &World, prefix: &str) -> usize {
    world
        .cluster
        .count(|entry| matches!(&entry.what, Event::PodRunning { pod, .. } if pod.name.starts_with(prefix)))
}

/// What cluster-autoscaler, the group and people do.
impl Scene {
    pub(crate) async fn scale_in(&self, machine: &Machine, cause: Cause) {
        match cause {
            Cause::Autoscaler => self.delete(std::slice::from_ref(machine)).await.expect("accepted"),
            Cause::Group => self.world.aws.terminate(&machine.instance, TerminationCause::Rebalance),
            Cause::Operator => self.annotate(machine, Some("now")).await,
        }
    }

    /// cluster-autoscaler's DeleteNodes.
    pub(crate) async fn delete(&self, machines: &[Machine]) -> Result<(), Status> {
        let node = |machine: &Machine| ExternalGrpcNode {
            provider_id: machine.provider_id.clone(),
            name: machine.name.clone(),
            ..ExternalGrpcNode::default()
        };
        let nodes = machines.iter().map(node).collect();
        let request = NodeGroupDeleteNodesRequest { id: "web".into(), nodes };
        self.program().client().node_group_delete_nodes(request).await.map(drop)
    }

    /// The same as cluster-autoscaler does it, which asks again in each loop until it is done.
    pub(crate) async fn until_deleted(&self, machines: &[Machine]) {
        let deleted = async {
            loop {
                self.client().refresh(RefreshRequest {}).await.expect("is never refused");
                if self.delete(machines).await.is_ok() {
                    return;
                }
                tokio::time::sleep(seconds(10)).await;
            }
        };
        tokio::time::timeout(EVER, deleted).await.expect("accepted in the end");
    }

    /// cluster-autoscaler's TargetSize.
    pub(crate) async fn target(&self) -> Result<i32, Status> {
        let request = NodeGroupTargetSizeRequest { id: "web".into() };
        self.program()
            .client()
            .node_group_target_size(request)
            .await
            .map(|answer| answer.into_inner().target_size)
    }

    /// cluster-autoscaler's Nodes: the provider ids of all that it is told of.
    pub(crate) async fn listed(&self) -> Vec<String> {
        let request = NodeGroupNodesRequest { id: "web".into() };
        let answer = self.program().client().node_group_nodes(request).await.expect("answered");
        answer.into_inner().instances.into_iter().map(|instance| instance.id).collect()
    }

    /// cluster-autoscaler's IncreaseSize.
    pub(crate) async fn increase(&self, delta: i32) -> Result<(), Status> {
        let request = NodeGroupIncreaseSizeRequest { id: "web".into(), delta };
        self.program().client().node_group_increase_size(request).await.map(drop)
    }

    /// Waits until the target size is this: until the program has seen what has become of the group.
    pub(crate) async fn until_target(&self, size: i32) {
        self.until_told(|told| matches!(told, Ok(told) if *told == size)).await;
    }

    /// Waits until TargetSize is answered so.
    pub(crate) async fn until_told(&self, expected: impl Fn(&Result<i32, Status>) -> bool) {
        let told = async {
            while !expected(&self.target().await) {
                tokio::time::sleep(seconds(1)).await;
            }
        };
        tokio::time::timeout(EVER, told).await.expect("it comes to that");
    }

    /// Asks for the target size after everything that happens in either world until `over` holds: each answer is
    /// `expected`. Returns how often it was asked.
    pub(crate) async fn target_stays(&self, expected: i32, over: impl Fn(&World) -> bool) -> usize {
        let (mut aws, mut cluster) = (self.world.aws.changed(), self.world.cluster.changed());
        let mut asked = 0;
        while !over(&self.world) {
            if let Ok(size) = self.target().await {
                assert_eq!(size, expected, "at {}", self.world.clock.now());
                asked += 1;
            }
            tokio::select! {
                _ = aws.changed() => {}
                _ = cluster.changed() => {}
            }
        }
        asked
    }

    /// A person writes the annotation, or removes it.
    pub(crate) async fn annotate(&self, machine: &Machine, value: Option<&str>) {
        self.patch_node(machine, json!({ "metadata": { "annotations": { RECORD: value } } })).await;
    }

    /// Somebody replaces the taints of a Node.
    pub(crate) async fn taint(&self, machine: &Machine, key: &str) {
        let taints = json!([{ "key": key, "value": "1", "effect": "PreferNoSchedule" }]);
        self.patch_node(machine, json!({ "spec": { "taints": taints } })).await;
    }

    pub(crate) async fn patch_node(&self, machine: &Machine, patch: Value) {
        let nodes: Api<Node> = Api::all(self.kube.clone());
        nodes.patch(&machine.name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    }

    /// Somebody deletes an object of the namespace `default`.
    pub(crate) async fn remove<K>(&self, name: &str)
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let Name { namespace, name } = Name::from(name);
        let api: Api<K> = Api::namespaced(self.kube.clone(), &namespace);
        api.delete(&name, &DeleteParams::default()).await.expect("deleted");
    }
}

/// The program's own life.
impl Scene {
    pub(crate) fn program(&self) -> &Program {
        self.program.as_ref().expect("the program runs")
    }

    /// A gRPC client of it.
    pub(crate) fn client(&self) -> CloudProviderClient<Channel> {
        self.program().client()
    }

    /// Sets the wall clock of the machine it runs on forward or back.
    pub(crate) fn step_clock(&self, by: SignedDuration) {
        self.program().step_clock(by);
    }

    /// Waits until it answers.
    pub(crate) async fn ready(&self) {
        let answers = async {
            // Not by a question about sizes, for the first of which the groups are looked at.
            let groups = async || self.client().node_groups(NodeGroupsRequest {}).await;
            while groups().await.map_or(true, |told| told.into_inner().node_groups.is_empty()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(EVER, answers).await.expect("ready at some time");
    }

    /// Kills it, as `kill -9` does, and starts it again.
    pub(crate) async fn kill(&mut self) {
        self.program.take().expect("the program runs").kill().await;
        self.start();
    }

    /// Stops it as SIGTERM does and starts it with another configuration.
    pub(crate) async fn start_with(&mut self, change: impl FnOnce(Config) -> Config) {
        self.stop_for_good().await;
        self.config = change(self.config.clone());
        self.start();
    }

    /// Kills it, and leaves it so.
    pub(crate) async fn take_down(&mut self) {
        self.program.take().expect("the program runs").kill().await;
    }

    /// Starts it again.
    pub(crate) fn bring_back(&mut self) {
        self.start();
    }

    /// Stops it as SIGTERM does.
    pub(crate) async fn stop_for_good(&mut self) {
        self.stopping().await;
    }

    /// The same, beside what else goes on.
    pub(crate) fn stopping(&mut self) -> impl Future<Output = ()> + use<> {
        let program = self.program.take().expect("the program runs");
        async { program.stop().await.expect("in good order") }
    }

    /// Stops it as SIGTERM does and starts it again. Returns how long it took to stop.
    pub(crate) async fn stop(&mut self) -> Duration {
        let began = tokio::time::Instant::now();
        self.program.take().expect("the program runs").stop().await.expect("in good order");
        let took = began.elapsed();
        self.start();
        took
    }

    fn start(&mut self) {
        let client = (self.way)(self.world.cluster.clone());
        self.program = Some(Program::start_behind(&self.world, client, self.config.clone()));
    }
}
