//! What does not depend on the machine: bytes kept, and allocations made. Seconds and resident memory are measured by
//! `cargo bench --bench performance`, calls to AWS are counted in `tests/discovery/budget.rs`.
#![expect(clippy::print_stdout, reason = "what is found is told with --nocapture")]

mod fixture;
mod looks;
mod questions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use ebbtide::cluster::{NodeView, Nodes, Sink};
use ebbtide::provider::proto::cloud_provider_server::CloudProvider as _;
use ebbtide::provider::proto::{
    NodeGroupForNodeRequest, NodeGroupNodesRequest, NodeGroupNodesResponse, NodeGroupTargetSizeRequest,
};
use ebbtide::template::LearnedStore;
use fixture::{NODES, for_node_request, group, instance, listed, provider, seen, text};
use futures::FutureExt as _;
use jiff::Timestamp;
use prost::Message as _;
use tonic::Request;

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
    let group = Arc::new(group());
    let now = Timestamp::UNIX_EPOCH + Duration::from_hours(1);
    let look = || store.learn(&group, &BTreeSet::new(), &[], None, now).expect("the nodes teach");
    report("1");
    let first = [look(), look()];
    let replaced = measure(|| report("2"));
    let found = measure(|| drop(look()));
    assert!(Arc::ptr_eq(&first[0], &look()));
    assert!(replaced.bytes_current < 200 * NODES as i64, "replaced Nodes are not held: {replaced:?}");
    assert_eq!(found.count_total, 0, "not even listed: {found:?}");
}

#[tokio::test]
async fn an_rpc_allocates_what_its_answer_holds_and_little_else() {
    let texts: Vec<String> = (0..NODES).map(text).collect();
    let provider = provider(Arc::new(listed(&texts)));
    let request = for_node_request();
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
    let mut listed = NodeGroupNodesResponse::default();
    let nodes = cost(|| {
        let request = NodeGroupNodesRequest { id: "web".into() };
        let answer = provider.node_group_nodes(Request::new(request)).now_or_never();
        listed = answer.expect("at once").expect("answered").into_inner();
    });
    let listed = NodeGroupNodesResponse::decode(&listed.encode_to_vec()[..]).expect("an answer");
    assert_eq!(listed.instances.len(), NODES);
    let counts = [for_node, target, nodes].map(|info| info.count_total);
    println!(
        "NodeGroupForNode {}, NodeGroupTargetSize {}, NodeGroupNodes {}",
        counts[0], counts[1], counts[2]
    );
    // The futures are boxed, and of a group each text is one. What is listed of it is encoded once.
    assert!(counts[0] <= 14, "NodeGroupForNode: {}", counts[0]);
    assert!(counts[1] <= 5, "NodeGroupTargetSize: {}", counts[1]);
    assert!(counts[2] <= 6, "NodeGroupNodes: {}", counts[2]);
}

#[test]
fn the_views_are_of_what_was_read() {
    let nodes = listed(&[text(7)]);
    let [view] = &nodes.of_instance(&instance(7))[..] else { panic!("one") };
    let NodeView { labels, capacity, .. } = &**view;
    assert_eq!((labels.get("team"), capacity.get("hugepages-2Mi")), (Some("platform"), Some("0")));
}
