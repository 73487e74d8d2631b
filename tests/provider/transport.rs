//! What is served beside the protocol, and how serving ends.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebbtide::provider::Listen;
use ebbtide::provider::listen::{ListenError, Listener};
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{NamedNode, NodeGroupForNodeRequest, NodeGroupsRequest};
use tokio::io::AsyncReadExt as _;
use tonic::Code;
use tonic::transport::Endpoint;
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
    let mut until = async |status, limit| {
        let told = async {
            let request = || HealthCheckRequest { service: SERVICE.into() };
            while health.check(request()).await.expect("answered").into_inner().status() != status {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(limit, told).await.unwrap_or_else(|_| panic!("never {status:?}"));
    };
    let soon = Duration::from_secs(5);
    until(ServingStatus::NotServing, soon).await;
    world.publish([web(1)]);
    until(ServingStatus::Serving, soon).await;
    until(ServingStatus::NotServing, Duration::from_secs(610)).await;
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
    for name in [SERVICE, "grpc.health.v1.Health", "grpcplugin.Expander"] {
        assert!(answer.contains(name), "{name}: {answer}");
    }

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
        node: Some(NamedNode { name: "x".repeat(bytes), ..NamedNode::default() }),
    };
    let mut client = world.client().await;
    assert_eq!(code(&client.node_group_for_node(request(3 << 20)).await), Code::Ok);
    assert_eq!(code(&client.node_group_for_node(request(5 << 20)).await), Code::OutOfRange);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_call_under_way_and_not_for_clients() {
    let mut world = World::with(web(1).in_service(&["i-1"]));
    world.aws.delay(Duration::from_secs(1), Duration::ZERO);
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

/// A folder for a socket, whose path has to be short. It goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn of(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ebbtide-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("ebbtide.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn bind(path: &Path) -> Result<Listener, ListenError> {
    format!("unix://{}", path.display()).parse::<Listen>().expect("a socket").bind().await
}

#[tokio::test]
async fn a_unix_socket_is_for_its_owner_and_group_and_is_gone_after_a_stop() {
    let folder = Folder::of("stop");
    let path = folder.socket();
    let mut world = World::with(web(1));
    let listener = bind(&path).await.expect("nobody is there");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o660);
    let left: Vec<_> = fs::read_dir(path.parent().expect("a directory")).expect("read").collect();
    assert_eq!(left.len(), 1, "{left:?}");

    world.relay(listener);
    // As grpc-go writes it, which cluster-autoscaler dials with.
    let channel = Endpoint::from_shared(format!("unix://{}", path.display())).expect("a URI");
    let mut client = CloudProviderClient::new(channel.connect().await.expect("connected"));
    let answer = client.node_groups(NodeGroupsRequest {}).await.expect("answered");
    assert_eq!(answer.into_inner().node_groups.len(), 1);
    world.tasks.shutdown().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_that_nobody_listens_to_is_replaced_and_everything_else_is_left_alone() {
    let folder = Folder::of("stale");
    let path = folder.socket();
    // The file of a program that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    assert!(path.exists());
    let first = bind(&path).await.expect("nobody listens");
    assert!(matches!(bind(&path).await, Err(ListenError::InUse)));
    tokio::net::UnixStream::connect(&path).await.expect("the first one listens still");

    // Somebody has put another socket in its place: not ours to remove.
    fs::remove_file(&path).expect("removed");
    let other = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    drop(first);
    assert!(path.exists());
    drop(other);
    fs::remove_file(&path).expect("removed");

    fs::write(&path, "precious").expect("written");
    assert!(matches!(bind(&path).await, Err(ListenError::NotASocket)));
    assert_eq!(fs::read_to_string(&path).expect("read"), "precious");
}

#[tokio::test(start_paused = true)]
async fn in_plaintext_too_silent_connections_cost_no_client_its_place() {
    let world = World::with(web(1));
    let mut client = world.client().await;
    client.node_groups(NodeGroupsRequest {}).await.expect("answered");
    tokio::time::sleep(Duration::from_secs(9)).await;
    let mut silent: Vec<_> = (0..500).map(|_| world.connect()).collect();
    client.node_groups(NodeGroupsRequest {}).await.expect("on the same connection");
    world.client().await.node_groups(NodeGroupsRequest {}).await.expect("a new client");
    let mut byte = [0];
    assert_eq!(silent[0].read(&mut byte).await.expect("closed"), 0);
}
