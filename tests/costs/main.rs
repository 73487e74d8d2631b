//! What does not depend on the machine: bytes kept, and allocations made. Seconds and resident memory are measured by
//! `cargo bench --bench performance`, calls to AWS are counted in `tests/discovery/budget.rs`.
#![expect(clippy::print_stdout, reason = "what is found is told with --nocapture")]

mod questions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use ebbtide::aws::{AutoScalingGroup, Aws, Instance, Lifecycle};
use ebbtide::clock::Clock;
use ebbtide::cluster::{Cluster, NodeView, Nodes, Seen, Sink};
use ebbtide::groups::protection::Protection;
use ebbtide::groups::{Group, Groups, Snapshot};
use ebbtide::provider::proto::cloud_provider_server::CloudProvider as _;
use ebbtide::provider::proto::{
    ExternalGrpcNode, NodeGroupDeleteNodesRequest, NodeGroupForNodeRequest, NodeGroupNodesRequest,
    NodeGroupTargetSizeRequest,
};
use ebbtide::provider::{AwsSizing, Provider, RpcMetrics, Running};
use ebbtide::scale_in::Intents;
use ebbtide::sim::cluster::node;
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::config;
use ebbtide::sim::{aws, cluster};
use ebbtide::template::LearnedStore;
use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tonic::Request;

/// Nodes of one group, as many as a loop of cluster-autoscaler often sees in one.
const NODES: usize = 25;

fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

/// A Node of EKS as the API server writes it.
fn text(n: usize) -> String {
    let world = cluster::Cluster::new(Clock::starting_at(Timestamp::UNIX_EPOCH), 1);
    let name = format!("ip-10-0-{}-{}.ec2.internal", n / 256, n % 256);
    world.add(node(&name).provider_id(&format!("aws:///us-east-1a/{}", instance(n))).like_eks());
    let mut object = world.node(&name).expect("registered");
    object.metadata.uid = Some(format!("00000000-0000-4000-8000-{n:012x}"));
    serde_json::to_string(&object).expect("JSON")
}

fn seen(text: &str) -> Seen<Node> {
    serde_json::from_str(text).expect("a Node")
}

/// The views of these Nodes, as a list fills them.
fn listed(texts: &[String]) -> Nodes {
    let nodes = Nodes::default();
    nodes.listing();
    let views = texts.iter().map(|text| nodes.reduce(seen(text))).collect();
    nodes.reset(views);
    nodes
}

#[test]
fn a_node_of_eks_is_kept_in_some_fourteen_hundred_bytes() {
    let texts: Vec<String> = (0..1_000).map(text).collect();
    assert!(texts[0].len() > 18_000, "as large as those of EKS: {}", texts[0].len());
    let mut nodes = None;
    let info = measure(|| nodes = Some(listed(&texts)));
    let each = info.bytes_current / 1_000;
    println!("{each} bytes a Node; at most {} while they were read", info.bytes_max / 1_000);
    assert!(each < 1_550, "{each}");
    // No more is held of what is read than what is kept of it.
    assert!(info.bytes_max < 2 * info.bytes_current.unsigned_abs(), "{info:?}");
}

#[test]
fn a_heartbeat_is_read_without_what_nobody_needs_of_it() {
    let texts: Vec<String> = (0..NODES).map(text).collect();
    let nodes = listed(&texts);
    let _ = nodes.changed().now_or_never();
    let later = texts[0].replace("\"resourceVersion\":\"", "\"resourceVersion\":\"1");
    let info = measure(|| nodes.apply(nodes.reduce(seen(&later))));
    println!("{} allocations of {} bytes for {} bytes", info.count_total, info.bytes_total, later.len());
    assert!(info.bytes_total < 25_000, "{info:?}");
    assert!(nodes.changed().now_or_never().is_none(), "nobody looks again because of a heartbeat");
}

/// The group that all Nodes belong to.
fn group() -> AutoScalingGroup {
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
fn provider(nodes: Arc<Nodes>) -> Provider {
    let clock = Clock::starting_at(Timestamp::from_second(1_700_000_000).expect("in range"));
    let group = Group { asg: Arc::new(group()), ..Group::default() };
    let groups = Arc::new(Groups::new(Duration::from_mins(10)));
    groups.publish(Snapshot::new(clock.now(), [Arc::new(group)]));
    let config = config();
    let aws = Aws::at(aws_client(Arc::new(aws::Aws::new(clock.clone(), 1))));
    let cluster = Cluster::new(cluster::Cluster::new(clock.clone(), 1).client());
    let settings = config.scale_in_settings();
    let intents = Intents::new(cluster, nodes, clock.clone(), Arc::clone(&groups), settings);
    let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone()));
    let sizing = AwsSizing::new(aws, config.selectors, Arc::clone(&groups), protection, Running::default());
    let metrics = RpcMetrics::register(&mut Registry::default());
    Provider::new(groups, Arc::new(intents), Arc::new(sizing), clock, metrics)
}

/// What a call costs whose answer is ready at once, after one that warms up.
fn cost<T>(mut call: impl FnMut() -> T) -> AllocationInfo {
    drop(call());
    measure(|| drop(call()))
}

/// Most refreshes see what the one before saw.
#[test]
fn nodes_that_have_not_changed_are_not_compared_again() {
    let texts: Vec<String> = (0..NODES).map(text).collect();
    let nodes = Arc::new(Nodes::default());
    let report = |version: &str| {
        for text in &texts {
            let view = nodes.reduce(seen(text));
            let ready_since = Some(Timestamp::UNIX_EPOCH);
            nodes.apply(NodeView { resource_version: version.into(), ready_since, ..view });
        }
    };
    let store = LearnedStore::new(Arc::clone(&nodes));
    let group = group();
    let now = Timestamp::UNIX_EPOCH + Duration::from_hours(1);
    let look = || store.learn(&group, &BTreeSet::new(), None, now).expect("the nodes teach");
    report("1");
    let first = [look(), look()];
    report("2");
    let found = measure(|| drop(look()));
    println!("a look at {NODES} Nodes that have not changed: {} allocations", found.count_total);
    assert!(Arc::ptr_eq(&first[0], &look()));
    assert!(found.count_current <= -(NODES as i64), "replaced Nodes are not held: {found:?}");
    assert!(found.count_total <= 4, "{found:?}");
}

#[tokio::test]
async fn an_rpc_allocates_what_its_answer_holds_and_little_else() {
    let texts: Vec<String> = (0..NODES).map(text).collect();
    let provider = provider(Arc::new(listed(&texts)));
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
    let request = NodeGroupDeleteNodesRequest { nodes: vec![node], id: String::new() }.encode_to_vec();
    let for_node = cost(|| {
        let request = NodeGroupForNodeRequest::decode(&request[..]).expect("a request");
        let answer = provider.node_group_for_node(Request::new(request)).now_or_never().expect("at once");
        assert_eq!(answer.expect("answered").into_inner().node_group.expect("a group").id, "web");
    });
    let target = cost(|| {
        let request = NodeGroupTargetSizeRequest { id: "web".into() };
        let answer = provider.node_group_target_size(Request::new(request)).now_or_never();
        assert_eq!(answer.expect("at once").expect("answered").into_inner().target_size, NODES as i32);
    });
    let nodes = cost(|| {
        let request = NodeGroupNodesRequest { id: "web".into() };
        let answer = provider.node_group_nodes(Request::new(request)).now_or_never();
        assert_eq!(answer.expect("at once").expect("answered").into_inner().instances.len(), NODES);
    });
    let counts = [for_node, target, nodes].map(|info| info.count_total);
    println!(
        "NodeGroupForNode {}, NodeGroupTargetSize {}, NodeGroupNodes {}",
        counts[0], counts[1], counts[2]
    );
    // The futures are boxed, and of an answer each text is one.
    assert!(counts[0] <= 14, "NodeGroupForNode: {}", counts[0]);
    assert!(counts[1] <= 5, "NodeGroupTargetSize: {}", counts[1]);
    assert!(counts[2] <= NODES as u64 + 15, "NodeGroupNodes: {}", counts[2]);
}

#[test]
fn the_views_are_of_what_was_read() {
    let nodes = listed(&[text(7)]);
    let [view] = &nodes.of_instance(&instance(7))[..] else { panic!("one") };
    let NodeView { labels, capacity, .. } = &**view;
    assert_eq!((labels.get("team"), capacity.get("hugepages-2Mi")), (Some("platform"), Some("0")));
}
