//! The RPCs that only read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebbtide::aws::Lifecycle;
use ebbtide::groups::{Group, LaunchFailure};
use ebbtide::provider::proto::instance_status::InstanceState;
use ebbtide::provider::proto::{
    CleanupRequest, ExternalGrpcNode, GetAvailableGpuTypesRequest, GpuLabelRequest, Instance,
    InstanceErrorInfo, NodeGroupAutoscalingOptionsRequest, NodeGroupDeleteNodesRequest,
    NodeGroupForNodeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest,
    NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest, PricingNodePriceRequest, PricingPodPriceRequest,
    RefreshRequest,
};
use ebbtide::sim::aws::Operation;
use ebbtide::telemetry::LogFormat;
use ebbtide::telemetry::captured::{self, Log};
use ebbtide::template::{Template, TemplateError};
use futures::FutureExt as _;
use k8s_pb::api::core::v1::Node;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;
use tracing::Level;

use crate::world::{GROUP, With as _, World, code, failure, node, unregistered, web};

#[tokio::test(start_paused = true)]
async fn groups_are_listed_with_the_limits_in_force_and_a_line_for_people() {
    let world = World::with(web(3).in_service(&["i-1", "i-2"]).limits(2, 5));
    let mut suspended = web(4);
    let asg = Arc::make_mut(&mut suspended.asg);
    asg.name = "frozen".into();
    asg.suspended = ["Launch".into(), "Terminate".into()].into();
    world.publish([web(3).in_service(&["i-1", "i-2"]).limits(2, 5), suspended]);
    let answer = world.client().await.node_groups(NodeGroupsRequest {}).await.expect("answered").into_inner();
    let shown: Vec<_> = answer
        .node_groups
        .iter()
        .map(|g| (g.id.as_str(), g.min_size, g.max_size, g.debug.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("frozen", 1, 4, "frozen: 0 live of 4 desired (1..10), 0 leaving, suspended: Launch Terminate"),
            ("web", 2, 5, "web: 2 live of 3 desired (2..5), 0 leaving"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_group_of_each_of_its_nodes_takes_one_look_at_its_instances_until_something_changes() {
    let ids: Vec<_> = (0..500).map(|n| format!("i-{n}")).collect();
    let instances: Vec<_> = ids.iter().map(String::as_str).collect();
    let group = || web(500).in_service(&instances).limits(0, 600);
    let world = World::with(group()).registered(&instances);
    let mut client = world.client().await;
    let mut asked_for = async |ids: &[&str]| {
        let before = world.leaving.asked();
        for id in ids {
            let request = NodeGroupForNodeRequest { node: Some(node(id).into()) };
            let answer = client.node_group_for_node(request).await.expect("answered").into_inner();
            assert_eq!(answer.node_group.expect("a group").id, GROUP);
        }
        world.leaving.asked() - before
    };
    let first = asked_for(&["i-0"]).await;
    assert!(first >= 500, "{first}");
    // Each node is looked at for itself.
    assert_eq!(asked_for(&instances).await, 500);
    drop(world.leaving.now());
    assert_eq!(asked_for(&["i-1", "i-2"]).await, first + 1);
    world.publish([group()]);
    assert_eq!(asked_for(&["i-3", "i-4"]).await, first + 1);
}

#[tokio::test(start_paused = true)]
async fn the_instances_of_a_group_take_one_look_until_something_changes_and_that_shows_at_once() {
    let group = |instances: &[&str]| web(instances.len() as i32).in_service(instances);
    let world = World::with(group(&["i-1", "i-2"])).registered(&["i-1", "i-2"]);
    let leaving = async || {
        let listed = world.instances().await;
        let is_leaving = |one: &Instance| {
            one.status.as_ref().is_some_and(|s| s.instance_state() == InstanceState::InstanceDeleting)
        };
        (listed.len(), listed.iter().filter(|one| is_leaving(one)).count())
    };
    assert_eq!(leaving().await, (2, 0));
    let asked = world.leaving.asked();
    assert_eq!((leaving().await, world.leaving.asked()), ((2, 0), asked));
    world.leaving.now().under_way.insert((GROUP.into(), "i-2".into()), true);
    assert_eq!(leaving().await, (2, 1));
    world.publish([group(&["i-1", "i-2", "i-3"])]);
    assert_eq!(leaving().await, (3, 1));
    world.leaving.now().spelled.insert("i-3".into(), "aws://i-3".into());
    assert_eq!(world.instances().await[2].id, "aws://i-3");
}

#[tokio::test(start_paused = true)]
async fn without_a_recent_look_at_aws_nothing_is_answered_from_it() {
    let world = World::empty(None);
    let whose = || NodeGroupForNodeRequest { node: Some(node("i-1").into()) };
    assert_eq!(code(&world.client().await.node_groups(NodeGroupsRequest {}).await), Code::Unavailable);
    assert_eq!(code(&world.client().await.node_group_for_node(whose()).await), Code::Unavailable);
    world.publish([web(1).in_service(&["i-1"])]);
    assert_eq!(code(&world.client().await.node_groups(NodeGroupsRequest {}).await), Code::Ok);
    tokio::time::advance(Duration::from_secs(601)).await;
    let mut client = world.client().await;
    assert_eq!(code(&client.node_groups(NodeGroupsRequest {}).await), Code::Unavailable);
    let size = NodeGroupTargetSizeRequest { id: GROUP.into() };
    assert_eq!(code(&client.node_group_target_size(size).await), Code::Unavailable);
    let group = client.node_group_for_node(whose()).await.expect("that does not change").into_inner();
    assert_eq!(group.node_group.map(|group| group.id).as_deref(), Some(GROUP));
    assert_eq!(code(&world.increase(1).await), Code::Unavailable);
    assert_eq!(code(&world.delete(vec![node("i-1")]).await), Code::Unavailable);
    assert!(world.metrics().contains(r#"rpc="NodeGroups",code="UNAVAILABLE"} 2"#), "{}", world.metrics());
}

#[tokio::test(start_paused = true)]
async fn a_node_belongs_to_the_group_of_its_instance_and_to_none_otherwise() {
    let world = World::with(
        web(5)
            .in_service(&["i-1", "i-4", "i-5"])
            .with("i-2", Lifecycle::TerminatingWait)
            .with("i-3", Lifecycle::Detaching)
            .with("i-6", Lifecycle::Standby)
            .with("i-7", Lifecycle::Warmed),
    )
    .registered(&["i-1", "i-4", "i-5", "i-6"])
    .under_way("i-4", true);
    // cluster-autoscaler is about to delete it: without a group that would fail.
    world.leaving.now().tainted = ["i-4".into(), "i-5".into()].into();
    let mut client = world.client().await;
    let id = |provider_id: &str| ExternalGrpcNode { provider_id: provider_id.into(), ..Default::default() };
    let table = [
        (node("i-1"), GROUP),
        (node("i-5"), GROUP),
        (node("i-2"), ""),
        (node("i-4"), ""),
        (unregistered("i-placeholder-web-0"), GROUP),
        (unregistered("i-placeholder-other-0"), ""),
        (node("i-3"), ""),
        (node("i-6"), ""),
        (node("i-7"), ""),
        (node("i-unknown"), ""),
        (id("gce:///z/i-1"), ""),
        (id("no provider id"), ""),
        (ExternalGrpcNode { name: "n-1".into(), ..Default::default() }, ""),
        (ExternalGrpcNode::default(), ""),
    ];
    for (node, group) in table {
        let request = NodeGroupForNodeRequest { node: Some(node.clone().into()) };
        let answer = client.node_group_for_node(request).await.expect("answered").into_inner();
        assert_eq!(answer.node_group.map(|g| g.id).as_deref(), Some(group), "{node:?}");
    }
    // cluster-autoscaler looks for the GPUs of these in their group's template, and does nothing at all where it has none.
    world.leaving.now().without_gpu = ["i-2", "i-3", "i-4", "i-6", "i-7"].map(String::from).into();
    // What is no node at present is not drained: cluster-autoscaler drains none of a group at its minimum.
    let told = [("i-2", (0, 8)), ("i-4", (0, 8)), ("i-3", (8, 8)), ("i-6", (8, 8)), ("i-7", (8, 8))];
    for (id, limits) in told {
        let request = NodeGroupForNodeRequest { node: Some(node(id).into()) };
        let answer = client.node_group_for_node(request).await.expect("answered").into_inner();
        let told = answer.node_group.map(|told| (told.id, (told.min_size, told.max_size)));
        assert_eq!(told, Some((GROUP.into(), limits)), "{id} without its GPU");
    }
    let none = client.node_group_for_node(NodeGroupForNodeRequest { node: None }).await;
    assert_eq!(none.expect("answered").into_inner().node_group.map(|g| g.id).as_deref(), Some(""));
}

/// cluster-autoscaler gives up what never came by the limits of NodeGroups, and drains nodes by those told with each Node.
#[tokio::test(start_paused = true)]
async fn a_group_that_may_not_terminate_is_told_at_its_smallest_with_each_node_and_not_for_what_never_came() {
    let mut group = web(7).in_service(&["i-1", "i-2", "i-3", "i-4"]).limits(5, 10);
    Arc::make_mut(&mut group.asg).suspended.insert("Terminate".into());
    let world = World::with(group).registered(&["i-1", "i-2", "i-3", "i-4"]);
    let mut client = world.client().await;
    let groups = client.node_groups(NodeGroupsRequest {}).await.expect("told").into_inner().node_groups;
    assert_eq!((groups[0].min_size, groups[0].max_size), (5, 10));
    let request = NodeGroupForNodeRequest { node: Some(node("i-1").into()) };
    let told = client.node_group_for_node(request).await.expect("told").into_inner().node_group;
    let told = told.expect("a group");
    // However far the size may rise meanwhile.
    assert_eq!((told.min_size, told.max_size), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn as_many_placeholders_bear_an_error_as_have_failed_and_the_minimum_lets_go() {
    let failed = async |min, launches| {
        let mut group = web(6).in_service(&["i-1", "i-2", "i-3"]).limits(min, 10);
        group.failure = Some(failure(launches));
        World::with(group).under_way("i-1", true).with_errors().await
    };
    let placeholder = |n| format!("i-placeholder-web-{n}");
    assert_eq!(failed(0, 3).await, [3, 4, 5].map(placeholder));
    assert_eq!(failed(0, 1).await, [placeholder(5)], "the last that was asked for");
    assert_eq!(failed(3, 3).await, [4, 5].map(placeholder), "one leaves, and the minimum is kept without it");
    assert_eq!(failed(5, 3).await, [""; 0]);
}

/// The client refuses what is larger than 4 MiB, as cluster-autoscaler's does.
#[tokio::test(start_paused = true)]
async fn all_placeholders_of_a_size_that_was_mistyped_fit_into_an_answer_whatever_aws_says_of_their_launches()
{
    let name = "g".repeat(255);
    for letter in ["x", "\u{1f4a5}"] {
        let mut group = web(6_000).limits(0, 10_000);
        Arc::make_mut(&mut group.asg).name = name.as_str().into();
        group.failure = Some(LaunchFailure {
            code: format!("C{}", "c".repeat(99)),
            message: letter.repeat(10_000),
            ..failure(6_000)
        });
        let world = World::empty(None);
        world.publish([group]);
        let request = NodeGroupNodesRequest { id: name.clone() };
        let answer = world.client().await.node_group_nodes(request).await.map(tonic::Response::into_inner);
        let listed = answer.expect("answered").instances;
        let failed = listed.iter().filter(|i| i.status.as_ref().is_some_and(|s| s.error_info.is_some()));
        assert_eq!((listed.len(), failed.count()), (5_000, 5_000), "{letter}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_scaled_in_is_listed_as_deleting_and_a_failure_without_a_code_has_one() {
    let mut group = web(3).in_service(&["i-run", "i-leaves"]);
    group.failure = Some(LaunchFailure { code: String::new(), out_of_resources: false, ..failure(1) });
    let world = World::with(group).under_way("i-leaves", true);
    let shown = |instance: Instance| {
        let status = instance.status.expect("a status");
        (instance.id, status.instance_state(), status.error_info)
    };
    let listed: Vec<_> = world.instances().await.into_iter().map(shown).collect();
    // An empty code would mean that there is no error.
    let error = InstanceErrorInfo {
        error_code: "LaunchFailed".into(),
        error_message: "none left in z1".into(),
        instance_error_class: 99,
    };
    let expected = [
        ("aws:///z1/i-run", InstanceState::InstanceRunning, None),
        ("aws:///z1/i-leaves", InstanceState::InstanceDeleting, None),
        ("aws:///z1/i-placeholder-web-2", InstanceState::InstanceCreating, Some(error)),
    ];
    assert_eq!(listed, expected.map(|(id, state, error)| (id.to_owned(), state, error)));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_group_is_not_found_whatever_is_asked_of_it() {
    let world = World::with(web(1));
    let mut client = world.client().await;
    let id = String::from("other");
    let codes = [
        code(&client.node_group_target_size(NodeGroupTargetSizeRequest { id: id.clone() }).await),
        code(&client.node_group_nodes(NodeGroupNodesRequest { id: id.clone() }).await),
        code(
            &client.node_group_template_node_info(NodeGroupTemplateNodeInfoRequest { id: id.clone() }).await,
        ),
        code(&client.node_group_get_options(NodeGroupAutoscalingOptionsRequest { id, defaults: None }).await),
    ];
    assert_eq!(codes, [Code::NotFound; 4]);
}

/// What an encoded Node gives to pods.
fn allocatable(encoded: &[u8]) -> Vec<String> {
    let node = Node::decode(encoded).expect("a Node");
    node.status.expect("a status").allocatable.into_values().filter_map(|quantity| quantity.string).collect()
}

#[tokio::test(start_paused = true)]
async fn an_empty_group_has_a_template_whatever_is_not_known_and_no_pod_fits_on_that() {
    let world = World::with(web(0));
    let ask = async || {
        let request = NodeGroupTemplateNodeInfoRequest { id: GROUP.into() };
        world.client().await.node_group_template_node_info(request).await
    };
    let of_a_group_to_grow = Some(Arc::new(Template::default()));
    for nothing in [
        web(0),
        Group { template: Some(Err(TemplateError("no launch template".into()))), ..web(0) },
        Group { stand_in: of_a_group_to_grow, ..web(0) },
    ] {
        world.publish([nothing]);
        let told = ask().await.expect("one without room").into_inner();
        assert_eq!(allocatable(&told.node_bytes), ["0"; 3]);
    }
    let encoded = Bytes::from_static(b"\x0a\x00");
    world.publish([Group {
        template: Some(Ok(Arc::new(Template { encoded: encoded.clone(), ..Template::default() }))),
        ..web(0)
    }]);
    let answer = ask().await.expect("a template").into_inner();
    assert_eq!((answer.node_info, answer.node_bytes), (encoded.clone(), encoded));
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_nodes_are_on_their_way_has_a_template_whatever_is_not_known() {
    let world = World::with(web(1));
    let ask = async || {
        let request = NodeGroupTemplateNodeInfoRequest { id: GROUP.into() };
        let answer = world.client().await.node_group_template_node_info(request).await;
        answer.map(|answer| answer.into_inner().node_bytes)
    };
    assert_eq!(code(&ask().await), Code::Unimplemented, "it is to come within seconds");
    let failed = Group { template: Some(Err(TemplateError("no launch template".into()))), ..web(1) };
    world.publish([failed.clone()]);
    assert_eq!(allocatable(&ask().await.expect("one without room")), ["0"; 3]);
    let encoded = Bytes::from_static(b"\x0a\x00");
    let stand_in = Some(Arc::new(Template { encoded: encoded.clone(), ..Template::default() }));
    world.publish([Group { stand_in, ..failed }]);
    assert_eq!(ask().await.expect("the last one"), encoded);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_has_just_vanished_has_no_nodes_and_does_not_grow() {
    let world = World::with(web(2).in_service(&["i-1"]));
    world.publish([]);
    let whose = NodeGroupForNodeRequest { node: Some(node("i-1").into()) };
    let whose = world.client().await.node_group_for_node(whose).await.expect("answered").into_inner();
    let whose = whose.node_group.map(|group| group.id);
    assert_eq!(whose.as_deref(), Some(""), "of a group that is listed or of none");
    assert_eq!(code(&world.increase(1).await), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn accelerators_are_named_as_in_the_in_tree_provider() {
    let world = World::empty(None);
    let mut client = world.client().await;
    let label = client.gpu_label(GpuLabelRequest {}).await.expect("answered").into_inner().label;
    assert_eq!(label, "k8s.amazonaws.com/accelerator");
    let types = client.get_available_gpu_types(GetAvailableGpuTypesRequest {}).await.expect("answered");
    let names: Vec<_> = types.into_inner().gpu_types.into_keys().collect();
    let expected = [
        "nvidia-a10g",
        "nvidia-l4",
        "nvidia-l40s",
        "nvidia-tesla-a100",
        "nvidia-tesla-k80",
        "nvidia-tesla-p100",
        "nvidia-tesla-t4",
        "nvidia-tesla-v100",
    ];
    assert_eq!(names, expected);
}

#[tokio::test(start_paused = true)]
async fn refresh_asks_for_a_look_at_once_if_cluster_autoscaler_was_away_and_does_not_wait_for_long() {
    let world = World::with(web(0));
    let mut client = world.client().await;
    // Seconds from one Refresh to the next, whether it comes over another connection, whether the groups are looked at meanwhile, and
    // whether it asks for a look.
    let table = [
        (1, false, false, true),
        // Nobody has looked since it came.
        (10, true, false, true),
        (10, true, true, false),
        (29, true, false, false),
        (30, false, false, false),
        (30, true, false, true),
        (120, true, true, true),
        (600, false, true, false),
    ];
    for (passed, is_over_another, is_looked_at, asks) in table {
        if is_over_another {
            client = world.client().await;
        }
        if is_looked_at {
            tokio::time::advance(Duration::from_secs(1)).await;
            world.publish([web(0)]);
        }
        tokio::time::advance(Duration::from_secs(passed)).await;
        let began = Instant::now();
        client.refresh(RefreshRequest {}).await.expect("answered");
        assert_eq!(world.groups.refresh_wanted_at_once().now_or_never().is_some(), asks, "{passed} s");
        let waited = if asks { 3 } else { 0 };
        assert_eq!(began.elapsed().as_secs(), waited, "{passed} s");
    }
    assert!(world.groups.refresh_wanted().now_or_never().is_none());
}

/// Its Refresh went to a replica that has died since.
#[tokio::test(start_paused = true)]
async fn a_question_about_sizes_that_is_the_first_call_ever_waits_for_a_look_and_the_next_one_does_not() {
    for first in ["size", "nodes"] {
        let world = World::with(web(1));
        tokio::time::advance(Duration::from_secs(50)).await;
        let ask = async || match first {
            "size" => world.target_size().await,
            _ => world.listed().await.len() as i32,
        };
        let look = async {
            let wanted = world.groups.refresh_wanted_at_once();
            tokio::time::timeout(Duration::from_secs(1), wanted).await.expect("a look is asked for");
            world.publish([web(3)]);
        };
        let (told, ()) = tokio::join!(ask(), look);
        assert_eq!(told, 3, "{first}");
        let began = Instant::now();
        assert_eq!((world.target_size().await, world.listed().await.len()), (3, 3));
        assert_eq!(began.elapsed(), Duration::ZERO, "{first}");
        // Where AWS does not answer, a loop waits no longer than a Refresh.
        tokio::time::advance(Duration::from_mins(5)).await;
        let began = Instant::now();
        for _ in 0..5 {
            assert_eq!(ask().await, 3);
        }
        assert_eq!(began.elapsed(), Duration::from_secs(3), "{first}");
    }
}

/// Where it runs beside another replica, that one may have terminated the instance, or set a size.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_the_first_call_ever_is_not_decided_by_what_this_process_has_seen() {
    let group = || web(3).in_service(&["i-1", "i-2", "i-3"]);
    let world = World::with(group()).registered(&["i-1", "i-3"]);
    assert_eq!(code(&world.delete(vec![unregistered("i-2")]).await), Code::Unavailable);
    assert!(world.is_untouched());
    assert!(world.groups.refresh_wanted_at_once().now_or_never().is_some(), "for what is asked next");
    world.delete(vec![node("i-1")]).await.expect("what has a Node is drained");
    let world = World::with(group());
    world.aws.hang(&[Operation::DescribeAutoScalingGroups], true);
    assert_eq!(code(&world.increase(1).await), Code::Unavailable);
    assert!(world.is_untouched());
    let world = world.visited().await;
    world.increase(1).await.expect("from the last refresh");
}

#[tokio::test(start_paused = true)]
async fn cleanup_does_nothing_and_prices_are_not_implemented() {
    let world = World::empty(None);
    let mut client = world.client().await;
    assert_eq!(code(&client.cleanup(CleanupRequest {}).await), Code::Ok);
    let node = client.pricing_node_price(PricingNodePriceRequest::default()).await;
    let pod = client.pricing_pod_price(PricingPodPriceRequest::default()).await;
    assert_eq!((code(&node), code(&pod)), (Code::Unimplemented, Code::Unimplemented));
}

/// What the log has of calls that failed, at WARN.
fn told(log: &Log) -> Vec<Value> {
    let lines: Vec<Value> =
        log.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    lines.into_iter().filter(|line| line["message"] == "RPC failed" && line["level"] == "WARN").collect()
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_told_with_its_group_and_of_each_call_and_code_once_a_minute() {
    let (log, _guard) = captured::log_as(LogFormat::Json, Level::DEBUG);
    let world = World::empty(None);
    let mut client = world.client().await;
    let mut fail = async || {
        let size = NodeGroupTargetSizeRequest { id: GROUP.into() };
        assert_eq!(code(&client.node_group_target_size(size).await), Code::Unavailable);
        assert_eq!(code(&client.refresh(RefreshRequest {}).await), Code::Unavailable);
    };
    for _ in 0..3 {
        fail().await;
    }
    let first: Vec<_> = told(&log).iter().map(|line| (line["rpc"].clone(), line["group"].clone())).collect();
    assert_eq!(first, [(json!("NodeGroupTargetSize"), json!(GROUP)), (json!("Refresh"), Value::Null)]);
    tokio::time::advance(Duration::from_mins(1)).await;
    fail().await;
    let lines = told(&log);
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert_eq!((&lines[2]["suppressed"], &lines[2]["code"]), (&json!(2), &json!("UNAVAILABLE")));
    // Another code has a line of its own.
    world.publish([web(1)]);
    let unknown = NodeGroupTargetSizeRequest { id: "another".into() };
    assert_eq!(code(&client.node_group_target_size(unknown).await), Code::NotFound);
    assert_eq!(told(&log).last().expect("a line")["group"], "another");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_to_come_within_seconds_is_no_failure_to_the_log() {
    let (log, _guard) = captured::log_as(LogFormat::Json, Level::DEBUG);
    let world = World::with(web(1));
    let template = NodeGroupTemplateNodeInfoRequest { id: GROUP.into() };
    assert_eq!(
        code(&world.client().await.node_group_template_node_info(template).await),
        Code::Unimplemented
    );
    assert_eq!(told(&log), [Value::Null; 0]);
    assert!(log.text().contains("RPC failed"), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_is_told_with_the_group_and_the_nodes_that_it_is_about() {
    let (log, _guard) = captured::log_as(LogFormat::Json, Level::INFO);
    let world = World::with(web(3).in_service(&["i-1", "i-2", "i-3"])).registered(&["i-1", "i-2", "i-3"]);
    let world = world.visited().await;
    world.aws.throttle_any(u32::MAX);
    // From the last refresh: AWS throttles what sets the size as well.
    assert_eq!(code(&world.increase(1).await), Code::DeadlineExceeded);
    world.leaving.now().refuses = ["n-1".into()].into();
    assert_eq!(code(&world.delete(vec![node("i-1")]).await), Code::Unavailable);
    let batch: Vec<_> = (1..=12).map(|n| node(&format!("i-{n}"))).collect();
    assert_eq!(code(&world.delete(batch).await), Code::InvalidArgument);
    let lines = told(&log);
    let groups: Vec<_> = lines.iter().map(|line| line["group"].as_str().expect("a group")).collect();
    assert_eq!(groups, [GROUP; 3]);
    assert_eq!((&lines[1]["node"], &lines[1]["instance"]), (&json!("n-1"), &json!("i-1")));
    let instances = lines[2]["instance"].as_str().expect("instances");
    assert!(instances.starts_with("i-1, i-2, ") && instances.ends_with("i-10 and 2 more"), "{instances}");
}

/// cluster-autoscaler asks again in every loop for what is refused for good.
#[tokio::test(start_paused = true)]
async fn a_change_that_fails_again_is_told_once_a_minute_and_another_code_or_group_at_once() {
    let (log, _guard) = captured::log_as(LogFormat::Json, Level::INFO);
    let world = World::with(web(1).in_service(&["i-1"])).registered(&["i-1"]);
    let mut other = web(1);
    Arc::make_mut(&mut other.asg).name = "db".into();
    world.publish([web(1).in_service(&["i-1"]), other]);
    let fail = async |group: &str, instance| {
        let request = NodeGroupDeleteNodesRequest { id: group.into(), nodes: vec![node(instance)] };
        world.client().await.node_group_delete_nodes(request).await.expect_err("refused").code()
    };
    for _ in 0..12 {
        assert_eq!(fail(GROUP, "i-1").await, Code::FailedPrecondition, "at its minimum");
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    let suppressed: Vec<_> = told(&log).iter().map(|line| line["suppressed"].clone()).collect();
    assert_eq!(suppressed, [Value::Null, json!(5)]);
    assert_eq!(fail(GROUP, "i-9").await, Code::NotFound);
    assert_eq!(fail("db", "i-9").await, Code::NotFound);
    let last: Vec<_> =
        told(&log)[2..].iter().map(|line| (line["group"].clone(), line["code"].clone())).collect();
    assert_eq!(last, [(json!(GROUP), json!("NOT_FOUND")), (json!("db"), json!("NOT_FOUND"))]);
}
