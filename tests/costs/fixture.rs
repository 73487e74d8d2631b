//! Nodes as large as those of EKS, their group, and the provider on both: for what is counted here, and what
//! `benches/rules.rs` times.

use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::{AutoScalingGroup, Aws, Instance, Lifecycle};
use ebbtide::clock::Clock;
use ebbtide::cluster::{Cluster, NodeView, Nodes, Partial, Sink};
use ebbtide::groups::hooks::Hooks;
use ebbtide::groups::protection::Protection;
use ebbtide::groups::{Group, Groups, Snapshot};
use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupDeleteNodesRequest};
use ebbtide::provider::{Provider, RpcMetrics, Running, Sizing};
use ebbtide::scale_in::Intents;
use ebbtide::sim::cluster::node;
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::config;
use ebbtide::sim::{aws, cluster};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use prometheus_client::registry::Registry;
use prost::Message as _;

/// Nodes of one group, as many as a loop of cluster-autoscaler often sees in one.
pub(crate) const NODES: usize = 25;

pub(crate) fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

/// A Node of EKS as the API server writes it.
pub(crate) fn text(n: usize) -> String {
    let world = cluster::Cluster::new(Clock::starting_at(Timestamp::UNIX_EPOCH), 1);
    let name = format!("ip-10-0-{}-{}.ec2.internal", n / 256, n % 256);
    world.add(node(&name).provider_id(&format!("aws:///us-east-1a/{}", instance(n))).like_eks());
    let mut object = world.node(&name).expect("registered");
    object.metadata.uid = Some(format!("00000000-0000-4000-8000-{n:012x}"));
    assert_eq!(NodeView::from(&object).odd_provider_id, None, "nothing is kept of it");
    serde_json::to_string(&object).expect("JSON")
}

pub(crate) fn seen(text: &str) -> Partial<Node> {
    serde_json::from_str(text).expect("a Node")
}

/// The views of these Nodes, as a list fills them.
pub(crate) fn listed(texts: &[String]) -> Nodes {
    let nodes = Nodes::default();
    nodes.listing();
    let views = texts.iter().map(|text| nodes.reduce(seen(text))).collect();
    nodes.reset(views);
    nodes
}

/// The group that all Nodes belong to.
pub(crate) fn group() -> AutoScalingGroup {
    let instances = (0..NODES).map(|n| Instance {
        id: instance(n).into(),
        zone: "us-east-1a".into(),
        lifecycle: Lifecycle::InService,
        ..Instance::default()
    });
    AutoScalingGroup {
        name: "web".into(),
        max: 100,
        desired: NODES as i32,
        instances: instances.collect(),
        ..AutoScalingGroup::default()
    }
}

/// The provider on one group of these Nodes.
pub(crate) fn provider(nodes: Arc<Nodes>) -> Provider {
    let clock = Clock::starting_at(Timestamp::from_second(1_700_000_000).expect("in range"));
    let group = Group { asg: Arc::new(group()), ..Group::default() };
    let groups = Arc::new(Groups::new(Duration::from_mins(10)));
    // Newer than all that is asked here: the first question about sizes waits for a look since it came.
    groups.publish(Snapshot::new(clock.now() + Duration::from_hours(1), [Arc::new(group)]));
    let config = config();
    let aws = Aws::at(aws_client(Arc::new(aws::Aws::new(clock.clone(), 1))));
    let cluster = Cluster::new(cluster::Cluster::new(clock.clone(), 1).client());
    let hooks = Arc::new(Hooks::new(aws.clone(), "ebbtide", clock.clone()));
    let intents = Intents::new(
        cluster,
        nodes,
        clock.clone(),
        Arc::clone(&groups),
        config.scale_in,
        hooks,
        Arc::default(),
    );
    let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone()));
    let running = Running::default();
    let sizing = Sizing::new(aws, config.selectors, Arc::clone(&groups), protection, running.clone());
    let metrics = RpcMetrics::register(&mut Registry::default());
    Provider::new(groups, Arc::new(intents), sizing, running, clock, metrics)
}

/// A NodeGroupForNode as it is sent, with all labels and annotations of the Node.
pub(crate) fn for_node_request() -> Vec<u8> {
    let pairs = |kind: &str, many: usize| {
        (0..many).map(|n| (format!("{kind}.example.com/{n}"), format!("value-{n}"))).collect()
    };
    let node = ExternalGrpcNode {
        provider_id: format!("aws:///us-east-1a/{}", instance(3)),
        name: "ip-10-0-0-3.ec2.internal".into(),
        labels: pairs("label", 25),
        annotations: pairs("annotation", 5),
    };
    // As it is sent, with labels and annotations: this message's first field is one node, of the same form.
    NodeGroupDeleteNodesRequest { nodes: vec![node], id: String::new() }.encode_to_vec()
}
