//! What the tests run on: worlds with groups, the program on them, and a client.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::provider::proto::instance_status::InstanceState;
use ebbtide::provider::proto::{
    ExternalGrpcNode, Instance, NodeGroup, NodeGroupDecreaseTargetSizeRequest, NodeGroupDeleteNodesRequest,
    NodeGroupIncreaseSizeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest, NodeGroupsRequest,
    RefreshRequest,
};
use ebbtide::sim::autoscaler::{self, Autoscaler, Options};
use ebbtide::sim::aws::{Event, GroupSpec, LaunchFailure, LifecycleState, Operation, State};
use ebbtide::sim::cluster::{ReplicaSetSpec, Verb, replica_set};
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::{POOL, World};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// The group that most tests are about.
pub(crate) const GROUP: &str = "web";

/// Zone of the groups.
pub(crate) const ZONE: &str = "us-east-1a";

/// Longer than anything takes that is not meant to take long: a refresh a minute, an instance two minutes to its Node.
pub(crate) const SOON: Duration = Duration::from_mins(4);

/// Longer than a released instance takes to be terminated, and its Node to go.
pub(crate) const GONE: Duration = Duration::from_mins(15);

/// Calls by which the program changes something at AWS.
const WRITES: [Operation; 4] = [
    Operation::SetDesiredCapacity,
    Operation::SetInstanceProtection,
    Operation::TerminateInstanceInAutoScalingGroup,
    Operation::UpdateAutoScalingGroup,
];

/// A group of 0 to 10 `m5.large`, tagged for the program, with this many instances in service.
pub(crate) fn group(name: &str, size: u32) -> GroupSpec {
    GroupSpec::named(name).size(0, 10, size).zones([ZONE]).tag(TAG, "true").already_running()
}

/// The worlds, and the program on them.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) program: Program,
}

impl Scene {
    /// These groups, every instance in service a Node, the program answering.
    pub(crate) async fn with(groups: impl IntoIterator<Item = GroupSpec>) -> Self {
        Self::on(World::new(1), groups).await
    }

    /// The same, on a world that has something already.
    pub(crate) async fn on(world: World, groups: impl IntoIterator<Item = GroupSpec>) -> Self {
        Self::configured(world, config(), groups).await
    }

    /// The same, with flags of its own.
    pub(crate) async fn configured(
        world: World,
        config: Config,
        groups: impl IntoIterator<Item = GroupSpec>,
    ) -> Self {
        let mut names = Vec::new();
        for group in groups {
            world.aws.add_group(group.clone());
            names.extend(world.aws.journal().into_iter().filter_map(|entry| match entry.what {
                Event::InService { instance, .. } => Some(instance),
                _ => None,
            }));
        }
        let joined = |world: &World| names.iter().all(|instance| world.node_of(instance).is_some());
        assert!(world.until(SOON, joined).await, "the instances join");
        // Long enough for every description to show them.
        tokio::time::sleep(Duration::from_secs(21)).await;
        let program = Program::start(&world, config);
        let scene = Self { world, program };
        scene.answers().await;
        scene
    }

    /// Waits until the program answers.
    pub(crate) async fn answers(&self) {
        assert!(eventually(SOON, || async { self.groups().await.is_ok() }).await, "the program answers");
    }

    /// cluster-autoscaler comes every ten seconds, and has for more than two minutes and a half: so it has not come from another replica.
    pub(crate) async fn is_visited(&self) {
        for _ in 0..16 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            self.program.client().refresh(RefreshRequest {}).await.expect("answered");
        }
    }

    pub(crate) async fn groups(&self) -> Result<Vec<NodeGroup>, Status> {
        let answer = self.program.client().node_groups(NodeGroupsRequest {}).await?;
        Ok(answer.into_inner().node_groups)
    }

    pub(crate) async fn try_target(&self) -> Result<i32, Status> {
        let request = NodeGroupTargetSizeRequest { id: GROUP.into() };
        Ok(self.program.client().node_group_target_size(request).await?.into_inner().target_size)
    }

    pub(crate) async fn target(&self) -> i32 {
        self.try_target().await.expect("a size")
    }

    pub(crate) async fn increase(&self, delta: i32) -> Result<(), Status> {
        let request = NodeGroupIncreaseSizeRequest { delta, id: GROUP.into() };
        self.program.client().node_group_increase_size(request).await.map(drop)
    }

    pub(crate) async fn decrease(&self, delta: i32) -> Result<(), Status> {
        let request = NodeGroupDecreaseTargetSizeRequest { delta, id: GROUP.into() };
        self.program.client().node_group_decrease_target_size(request).await.map(drop)
    }

    pub(crate) async fn delete(&self, group: &str, nodes: Vec<ExternalGrpcNode>) -> Result<(), Status> {
        let request = NodeGroupDeleteNodesRequest { id: group.into(), nodes };
        self.program.client().node_group_delete_nodes(request).await.map(drop)
    }

    /// The instances the program lists, by provider id.
    pub(crate) async fn listed(&self) -> BTreeMap<String, Instance> {
        listed_by(&self.program).await
    }

    /// The listed provider ids in a state.
    pub(crate) async fn listed_in(&self, state: InstanceState) -> Vec<String> {
        let in_state = |(id, instance): (String, Instance)| {
            (instance.status.expect("a status").instance_state() == state).then_some(id)
        };
        self.listed().await.into_iter().filter_map(in_state).collect()
    }

    /// As cluster-autoscaler knows the Node of an instance.
    pub(crate) fn node_of(&self, instance: &str) -> ExternalGrpcNode {
        let name = self.world.node_of(instance).expect("a Node");
        let node = self.world.cluster.node(&name).expect("a Node");
        ExternalGrpcNode {
            provider_id: node.spec.and_then(|spec| spec.provider_id).unwrap_or_default(),
            name,
            labels: node.metadata.labels.unwrap_or_default().into_iter().collect(),
            annotations: node.metadata.annotations.unwrap_or_default().into_iter().collect(),
        }
    }

    /// Instances of a group that are in service.
    pub(crate) fn in_service(&self, group: &str) -> Vec<String> {
        let group = self.world.aws.group(group).expect("a group");
        group.in_state(LifecycleState::InService).into_iter().map(str::to_owned).collect()
    }

    /// What AWS wants of the group.
    pub(crate) fn desired(&self) -> u32 {
        self.world.aws.group(GROUP).expect("a group").desired
    }

    /// Instances of the group that are protected from scale-in.
    pub(crate) fn protected(&self) -> usize {
        let group = self.world.aws.group(GROUP).expect("a group");
        group.instances.iter().filter(|instance| instance.protected).count()
    }

    /// Kills the program and starts it again.
    pub(crate) async fn restarted(self) -> Self {
        let Self { world, program } = self;
        program.kill().await;
        let program = Program::start(&world, config());
        Self { world, program }
    }

    /// How often something was changed so far: calls to AWS, and writes to Nodes.
    pub(crate) fn writes(&self) -> usize {
        let to_aws: usize = WRITES.into_iter().map(|operation| self.world.aws.calls(operation)).sum();
        to_aws + self.world.cluster.requests(Verb::Patch, "nodes")
    }

    /// How many pods of this ReplicaSet run, and are not on their way out.
    pub(crate) fn running(&self, set: &str) -> usize {
        let runs = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        let of_set = |pod: &Pod| pod.metadata.labels.as_ref().is_some_and(|labels| labels["app"] == set);
        let pods = self.world.cluster.list::<Pod>();
        pods.iter()
            .filter(|pod| of_set(pod) && runs(pod) && pod.metadata.deletion_timestamp.is_none())
            .count()
    }

    /// A person asks for a node's scale-in.
    pub(crate) async fn annotate(&self, node: &str, wish: &str) {
        let nodes: Api<Node> = Api::all(self.world.cluster.client());
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "ebbtide/scale-in": wish } } }));
        nodes.patch(node, &PatchParams::default(), &patch).await.expect("patched");
    }

    /// Waits until every node that has joined takes pods.
    async fn nodes_are_ready(&self) {
        let ready =
            |world: &World| world.cluster.node_names().iter().all(|node| world.cluster.is_ready(node));
        assert!(self.world.until(SOON, ready).await, "every node is ready");
    }

    /// Every node gets a workload that runs, and needs so many seconds to exit.
    pub(crate) async fn occupy(&self, exits_after: u32) {
        self.nodes_are_ready().await;
        self.world.cluster.add(replica_set("work", 8).grace(2 * exits_after).exits_after(exits_after));
        let occupied = |world: &World| {
            world.cluster.node_names().iter().all(|node| {
                let pods = world.cluster.pods_on(node);
                let runs =
                    |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
                !pods.is_empty() && pods.iter().all(runs)
            })
        };
        assert!(self.world.until(SOON, occupied).await, "every node is occupied");
    }

    /// Desired capacity goes up by `more` for which there is no capacity, and the program knows.
    pub(crate) async fn short_of(&self, more: i32) {
        self.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
        self.increase(more).await.expect("grown");
        let failed = |entry: &ebbtide::sim::aws::Entry| matches!(entry.what, Event::LaunchFailed { .. });
        assert!(self.world.until(SOON, |world| world.aws.journal().iter().any(failed)).await);
    }
}

/// An instance comes into service after all, before anything else happens.
pub(crate) fn late_launch(state: &mut State, now: Timestamp) {
    state.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 0);
    state.launch_now(GROUP, now);
}

/// As cluster-autoscaler names a placeholder of the group.
pub(crate) fn placeholder(index: usize) -> ExternalGrpcNode {
    let provider_id = format!("aws:///{ZONE}/i-placeholder-{GROUP}-{index}");
    ExternalGrpcNode { name: provider_id.clone(), provider_id, ..ExternalGrpcNode::default() }
}

/// The instances that a replica lists, by provider id.
pub(crate) async fn listed_by(program: &Program) -> BTreeMap<String, Instance> {
    let request = NodeGroupNodesRequest { id: GROUP.into() };
    let answer = program.client().node_group_nodes(request).await.expect("nodes").into_inner();
    answer.instances.into_iter().map(|instance| (instance.id.clone(), instance)).collect()
}

/// Asks again every second until something holds, at most for `limit`. Whether it did.
pub(crate) async fn eventually<F: Future<Output = bool>>(
    limit: Duration,
    mut holds: impl FnMut() -> F,
) -> bool {
    let met = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(limit, met).await.is_ok()
}

pub(crate) fn code<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().err().map_or(Code::Ok, Status::code)
}

/// cluster-autoscaler beside the program, looking every ten seconds until it is dropped.
pub(crate) struct Loop {
    pub(crate) autoscaler: Autoscaler,
    _task: JoinSet<()>,
}

impl Loop {
    pub(crate) fn start(scene: &Scene, options: Options) -> Self {
        let client = scene.program.client();
        Self::through(scene, options, move |_| client.clone())
    }

    /// The same; once it has grown a group, it comes to another replica.
    pub(crate) fn between(scene: &Scene, options: Options, other: &Program) -> Self {
        let clients = [scene.program.client(), other.client()];
        let has_grown = |(_, event): &(_, _)| matches!(event, autoscaler::Event::ScaledUp { .. });
        Self::through(scene, options, move |so_far| {
            clients[usize::from(so_far.journal().iter().any(has_grown))].clone()
        })
    }

    /// The same, through these clients.
    pub(crate) fn through(
        scene: &Scene,
        options: Options,
        connect: impl Fn(&Autoscaler) -> autoscaler::Client + Send + Sync + 'static,
    ) -> Self {
        let autoscaler = Autoscaler::new(&scene.world, options);
        let mut task = JoinSet::new();
        let looking = autoscaler.clone();
        task.spawn(async move { looking.run(|| connect(&looking)).await });
        Self { autoscaler, _task: task }
    }

    /// What it has done of a kind.
    pub(crate) fn did<T>(&self, what: impl Fn(&autoscaler::Event) -> Option<T>) -> Vec<T> {
        self.autoscaler.journal().iter().filter_map(|(_, event)| what(event)).collect()
    }

    /// Nodes bought so far, by group.
    pub(crate) fn bought(&self) -> BTreeMap<String, i32> {
        let mut bought = BTreeMap::new();
        for (group, by) in self.did(|event| match event {
            autoscaler::Event::ScaledUp { group, by } => Some((group.clone(), *by)),
            _ => None,
        }) {
            *bought.entry(group).or_default() += by;
        }
        bought
    }

    /// Names of all nodes whose deletion it has asked for.
    pub(crate) fn deleted(&self) -> Vec<String> {
        let deleted = self.did(|event| match event {
            autoscaler::Event::Deleted { nodes, .. } => Some(nodes.clone()),
            _ => None,
        });
        deleted.concat()
    }

    /// Why loops have ended with an error.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.did(|event| match event {
            autoscaler::Event::LoopFailed(error) | autoscaler::Event::ScaleUpFailed { error, .. } => {
                Some(error.clone())
            }
            _ => None,
        })
    }
}

/// A group whose nodes, and template, have the label by which pods choose it.
pub(crate) fn pool(name: &str, size: u32) -> GroupSpec {
    group(name, size).tag(format!("k8s.io/cluster-autoscaler/node-template/label/{POOL}"), name)
}

/// So many pods for a pool, one a node.
pub(crate) fn pods_for(pool: &str, name: &str, pods: u32) -> ReplicaSetSpec {
    replica_set(name, pods).node_selector(POOL, pool).cpu_millis(1_200)
}
