//! What is served beside the protocol, and how serving ends.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupForNodeRequest, NodeGroupsRequest};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

use crate::world::{With as _, World, code, web};

const SERVICE: &str = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider";

#[tokio::test(start_paused = true)]
async fn the_health_service_says_whether_there_is_a_view_to_answer_from() {
    let world = World::empty(None);
    let mut health = HealthClient::new(world.channel().await);
    let mut status = async || {
        // A call after another one: the provider has looked at its groups by then.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let request = HealthCheckRequest { service: SERVICE.into() };
        health.check(request).await.expect("answered").into_inner().status()
    };
    assert_eq!(status().await, ServingStatus::NotServing);
    world.publish([web(1)]);
    assert_eq!(status().await, ServingStatus::Serving);
    tokio::time::sleep(Duration::from_secs(610)).await;
    assert_eq!(status().await, ServingStatus::NotServing);
}

#[tokio::test(start_paused = true)]
async fn reflection_names_the_service_in_both_versions() {
    let world = World::empty(None);
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(world.channel().await);
    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut answers =
        client.server_reflection_info(tokio_stream::once(request)).await.expect("answered").into_inner();
    let answer = format!("{:?}", answers.message().await.expect("answered"));
    assert!(answer.contains(SERVICE) && answer.contains("grpc.health.v1.Health"), "{answer}");

    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(world.channel().await);
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            SERVICE.into(),
        )),
    };
    let mut answers =
        client.server_reflection_info(tokio_stream::once(request)).await.expect("answered").into_inner();
    let answer = format!("{:?}", answers.message().await.expect("answered"));
    assert!(answer.contains("FileDescriptorResponse"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_request_of_more_than_4_mib_is_refused() {
    let world = World::with(web(1));
    let request = |bytes: usize| NodeGroupForNodeRequest {
        node: Some(ExternalGrpcNode {
            annotations: BTreeMap::from([("a".into(), "x".repeat(bytes))]),
            ..ExternalGrpcNode::default()
        }),
    };
    let mut client = world.client().await;
    assert_eq!(code(&client.node_group_for_node(request(3 << 20)).await), Code::Ok);
    assert_eq!(code(&client.node_group_for_node(request(5 << 20)).await), Code::OutOfRange);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_call_under_way_and_not_for_clients() {
    let mut world = World::with(web(1).in_service(&["i-1"]));
    world.aws.now().takes = Duration::from_secs(1);
    let mut idle = world.client().await;
    idle.node_groups(NodeGroupsRequest {}).await.expect("answered");
    let before = tokio::time::Instant::now();
    let stop = world.stop.take();
    let (grown, ()) = tokio::join!(world.increase(1), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(stop);
    });
    grown.expect("done although the program stops");
    let ended = world.tasks.join_next().await.expect("served").expect("no panic");
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(before.elapsed().as_secs(), 2);
    assert!(idle.node_groups(NodeGroupsRequest {}).await.is_err());
}
