//! The RPCs that read and set sizes: the real provider, discovery and sizing, with moto for AWS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_autoscaling::types::{
    InstancesDistribution, LaunchTemplate, LaunchTemplateOverrides, MixedInstancesPolicy,
};
use ebbtide::aws::{AutoScalingGroup, Instance};
use ebbtide::clock::Clock;
use ebbtide::groups::discovery::Discovery;
use ebbtide::groups::hooks::Hooks;
use ebbtide::groups::protection::Protection;
use ebbtide::groups::selector::Selectors;
use ebbtide::groups::sizes::Leaves;
use ebbtide::groups::{Groups, Snapshot};
use ebbtide::k8s::{GroupName, InstanceId, NodeName};
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::instance_status::InstanceState;
use ebbtide::provider::proto::{
    NodeGroupDecreaseTargetSizeRequest, NodeGroupIncreaseSizeRequest, NodeGroupNodesRequest,
    NodeGroupTargetSizeRequest, NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest,
};
use ebbtide::provider::{Provider, RpcMetrics, serve};
use ebbtide::provider::{Running, Sizing};
use ebbtide::scale_in::{Accepted, IntentError, ScaleIns};
use ebbtide::slots::Peer;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use k8s_pb::api::core::v1::Node;
use prometheus_client::registry::Registry;
use prost::Message;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::account::{Account, From, ZONE, version};

/// The longest wait for moto; a call takes milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// A cluster without Nodes.
struct Empty;

impl ScaleIns for Empty {
    fn is_ready(&self) -> bool {
        true
    }

    fn changes(&self) -> u64 {
        0
    }

    fn node_of(&self, _: &InstanceId) -> Option<NodeName> {
        None
    }

    fn is_leaving(&self, _: &GroupName, _: &InstanceId) -> bool {
        false
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

    fn leaves(&self, _: &GroupName, _: &Instance) -> Leaves {
        Leaves::No
    }

    fn will_decrement(&self, _: &InstanceId) -> bool {
        false
    }

    fn accept(
        &self,
        _: &NodeName,
        _: &GroupName,
        _: &InstanceId,
    ) -> BoxFuture<'static, Result<Accepted, IntentError>> {
        unreachable!("no Node is deleted here")
    }
}

/// Provider and discovery on an account, and a client. They end when it is dropped.
struct Program {
    groups: Arc<Groups>,
    client: CloudProviderClient<Channel>,
    _tasks: JoinSet<()>,
}

impl Program {
    async fn on(account: &Account) -> Self {
        let by_tag = [format!("asg:tag={}", account.mark)];
        let selectors = Selectors::parse([""; 0], by_tag).expect("well-formed");
        let groups = Arc::new(Groups::new(Duration::from_mins(10)));
        let aws = account.aws.clone();
        let clock = Clock::system();
        let hooks = Arc::new(Hooks::new(aws.clone(), "ebbtide", clock.clone()));
        let running = Running::default();
        let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone()));
        let sizing =
            Sizing::new(aws.clone(), selectors.clone(), Arc::clone(&groups), protection, running.clone());
        let discovery = Discovery::new(
            aws,
            selectors,
            Arc::clone(&groups),
            hooks,
            Arc::default(),
            clock.clone(),
            Duration::from_mins(1),
        );
        let metrics = RpcMetrics::register(&mut Registry::default());
        let provider = Provider::new(Arc::clone(&groups), Arc::new(Empty), sizing, running, clock, metrics);
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            discovery.run().await;
        });
        tasks.spawn(async move {
            let incoming = tokio_stream::iter([Ok::<_, io::Error>((theirs, Peer::Local))]);
            let incoming = tokio_stream::StreamExt::chain(incoming, tokio_stream::pending());
            serve(provider, None, incoming, None, std::future::pending()).await.expect("served");
        });
        let mut ours = Some(TokioIo::new(ours));
        let channel = Endpoint::from_static("http://provider")
            .connect_with_connector(tower::service_fn(move |_| {
                std::future::ready(ours.take().ok_or_else(|| io::Error::other("it connects once")))
            }))
            .await
            .expect("a connection in memory");
        let program = Self { groups, client: CloudProviderClient::new(channel), _tasks: tasks };
        // States come first, and what RPCs answer from after the templates.
        program.seen(|view| view.is_complete).await;
        program
    }

    /// Waits until discovery has seen it.
    async fn seen(&self, holds: impl Fn(&Snapshot) -> bool) {
        let mut versions = self.groups.versions();
        let met = async {
            while !self.groups.latest().is_some_and(|view| holds(&view)) {
                versions.changed().await.expect("the groups are there");
            }
        };
        tokio::time::timeout(LIMIT, met).await.expect("seen in time");
    }

    async fn target(&self, group: &str) -> i32 {
        let request = NodeGroupTargetSizeRequest { id: group.into() };
        let answer = self.client.clone().node_group_target_size(request).await.expect("a size");
        answer.into_inner().target_size
    }

    async fn increase(&self, group: &str, delta: i32) -> Result<(), Status> {
        let request = NodeGroupIncreaseSizeRequest { delta, id: group.into() };
        self.client.clone().node_group_increase_size(request).await.map(drop)
    }

    async fn decrease(&self, group: &str, delta: i32) -> Result<(), Status> {
        let request = NodeGroupDecreaseTargetSizeRequest { delta, id: group.into() };
        self.client.clone().node_group_decrease_target_size(request).await.map(drop)
    }

    /// Provider ids and states, in order.
    async fn nodes(&self, group: &str) -> Vec<(String, InstanceState)> {
        let request = NodeGroupNodesRequest { id: group.into() };
        let answer = self.client.clone().node_group_nodes(request).await.expect("nodes").into_inner();
        let mut nodes: Vec<_> = answer
            .instances
            .into_iter()
            .map(|instance| (instance.id, instance.status.expect("a status").instance_state()))
            .collect();
        nodes.sort();
        nodes
    }

    async fn template(&self, group: &str) -> Node {
        let request = NodeGroupTemplateNodeInfoRequest { id: group.into() };
        let answer = self.client.clone().node_group_template_node_info(request).await.expect("a template");
        Node::decode(&*answer.into_inner().node_bytes).expect("a Node")
    }
}

pub(crate) fn label<'a>(node: &'a Node, name: &str) -> &'a str {
    node.metadata.as_ref().and_then(|metadata| metadata.labels.get(name)).map_or("", String::as_str)
}

pub(crate) fn capacity<'a>(node: &'a Node, name: &str) -> &'a str {
    let status = node.status.as_ref().expect("a status");
    status.capacity.get(name).and_then(|quantity| quantity.string.as_deref()).unwrap_or_default()
}

fn mixed(template: &str, types: &[(&str, &str)]) -> From {
    let overrides = types.iter().map(|(instance_type, weight)| {
        LaunchTemplateOverrides::builder().instance_type(*instance_type).weighted_capacity(*weight).build()
    });
    let template = LaunchTemplate::builder()
        .launch_template_specification(version(template, "$Latest"))
        .set_overrides(Some(overrides.collect()))
        .build();
    let all_on_demand =
        InstancesDistribution::builder().on_demand_percentage_above_base_capacity(100).build();
    let policy = MixedInstancesPolicy::builder().launch_template(template);
    From::Mixed(policy.instances_distribution(all_on_demand).build())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs moto: run tests/moto.sh"]
async fn a_group_is_listed_and_grows() {
    let account = Account::open().await;
    let id = account.template("web", &[("m5.large", 20)]).await;
    let group = account.group("web", From::Template(version(&id, "$Default")), 2, &[]).await;
    let program = Program::on(&account).await;

    let listed = program.client.clone().node_groups(NodeGroupsRequest {}).await.expect("groups").into_inner();
    let listed: Vec<_> = listed.node_groups.iter().map(|g| (g.id.as_str(), g.min_size, g.max_size)).collect();
    assert_eq!(listed, [(group.as_str(), 0, 10)]);
    assert_eq!(program.target(&group).await, 2);

    // Somebody else makes it one larger, and nobody has looked yet.
    account.aws.set_desired(&group.as_str().into(), 3).await.expect("set");
    program.increase(&group, 2).await.expect("grown");
    assert_eq!(program.target(&group).await, 5);
    assert_eq!(account.truth(&group).await.0, 5);
    program.seen(|view| view.groups[group.as_str()].asg.instances.len() == 5).await;
    let mut expected: Vec<_> = account.truth(&group).await.1;
    expected.sort();
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(id, _)| (format!("aws:///{ZONE}/{id}"), InstanceState::InstanceRunning))
        .collect();
    assert_eq!(program.nodes(&group).await, expected);

    program.increase(&group, 6).await.expect("up to the maximum");
    let refused = program.increase(&group, 1).await.expect_err("above the maximum");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(account.truth(&group).await.0, 10);
}

/// moto reckons in units where a group gives weights, and so has fewer instances than the desired capacity says. With
/// half the capacity it would do with half the instances.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs moto: run tests/moto.sh"]
async fn a_group_that_gives_weights_is_seen_as_such_and_left_as_large_as_it_is() {
    let account = Account::open().await;
    let id = account.template("heavy", &[("m5.large", 20)]).await;
    let group = account.group("heavy", mixed(&id, &[("m5.large", "2")]), 4, &[]).await;
    let before = account.truth(&group).await;
    assert_eq!((before.0, before.1.len()), (4, 2));
    let program = Program::on(&account).await;
    assert!(program.groups.latest().expect("seen").groups[group.as_str()].asg.is_weighted());
    let nodes = program.nodes(&group).await;
    assert!(nodes.iter().all(|(_, state)| *state == InstanceState::InstanceRunning), "{nodes:?}");
    assert_eq!((nodes.len(), program.target(&group).await), (2, 2));

    for refused in [program.increase(&group, 1).await, program.decrease(&group, -2).await] {
        assert_eq!(refused.expect_err("units are not nodes").code(), Code::FailedPrecondition);
    }
    assert_eq!(account.truth(&group).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs moto: run tests/moto.sh"]
async fn empty_groups_have_templates() {
    let account = Account::open().await;
    let tag = |name: &str| format!("k8s.io/cluster-autoscaler/node-template/{name}");
    let (team, storage) = (tag("label/team"), tag("resources/ephemeral-storage"));
    let id = account.template("shapes", &[("m5.large", 30), ("m5.xlarge", 50), ("c5.large", 70)]).await;
    let tags = [(team.as_str(), "web"), (storage.as_str(), "7Gi")];
    let latest = account.group("latest", From::Template(version(&id, "$Latest")), 0, &tags).await;
    let default = account.group("default", From::Template(version(&id, "$Default")), 0, &[]).await;
    let pinned = account.group("pinned", From::Template(version(&id, "2")), 0, &[]).await;
    let several = mixed(&id, &[("m5.xlarge", "1"), ("c5.large", "1")]);
    let several = account.group("several", several, 0, &[]).await;
    let configuration = account.configuration("old", None).await;
    let old = account.group("old", From::Configuration(configuration), 0, &[]).await;
    let program = Program::on(&account).await;
    let table = [
        (&latest, "c5.large", "2", "7Gi"),
        (&default, "m5.large", "2", "31457280Ki"),
        (&pinned, "m5.xlarge", "4", "52428800Ki"),
        (&several, "m5.xlarge", "2", "73400320Ki"),
        (&old, "m5.large", "2", "20971520Ki"),
    ];
    for (group, instance_type, cpu, storage) in table {
        let node = program.template(group).await;
        assert_eq!(label(&node, "node.kubernetes.io/instance-type"), instance_type, "{group}");
        assert_eq!(label(&node, "topology.kubernetes.io/zone"), ZONE);
        assert_eq!((capacity(&node, "cpu"), capacity(&node, "ephemeral-storage")), (cpu, storage), "{group}");
    }
    assert_eq!(label(&program.template(&latest).await, "team"), "web");
}
