//! Both dialects byte for byte: requests as old and new clients encode them, answers as they read them.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use ebbtide::aws::Lifecycle;
use ebbtide::groups::{Group, LaunchFailure};
use ebbtide::template::Template;
use http::uri::PathAndQuery;
use k8s_pb::api::core::v1::Node;
use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message as _;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

use crate::world::{GROUP, With as _, World, web};

/// Takes and gives the bytes of messages.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}

async fn call(world: &World, rpc: &str, request: Vec<u8>) -> Result<Bytes, Status> {
    let mut grpc = Grpc::new(world.channel().await);
    grpc.ready().await.expect("connected");
    let path = format!("/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/{rpc}");
    let path = PathAndQuery::try_from(path).expect("a path");
    grpc.unary(Request::new(request), path, Raw).await.map(tonic::Response::into_inner)
}

/// A field with a varint: numbers below 16, values below 128.
fn small(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field with a varint of any size.
fn number(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3], varint(value)].concat()
}

/// A length-delimited field: a string, bytes, a message.
fn delimited(field: u8, content: &[u8]) -> Vec<u8> {
    [vec![(field << 3) | 2], varint(content.len() as u64), content.to_vec()].concat()
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [vec![(field << 3) | 1], value.to_le_bytes().to_vec()].concat()
}

#[tokio::test(start_paused = true)]
async fn one_node_fills_the_old_and_the_new_field_of_a_template() {
    let node = Node {
        metadata: Some(ObjectMeta { name: Some("template-web".into()), ..ObjectMeta::default() }),
        ..Node::default()
    };
    let encoded = Bytes::from(node.encode_to_vec());
    let template = Some(Ok(Arc::new(Template { encoded: encoded.clone(), ..Template::default() })));
    let world = World::with(Group { template, ..web(0) });
    let answer =
        call(&world, "NodeGroupTemplateNodeInfo", delimited(1, GROUP.as_bytes())).await.expect("answered");
    assert_eq!(answer, [delimited(1, &encoded), delimited(2, &encoded)].concat());
    // The field of the old dialect is a Node message where it stands.
    let length = encoded.len();
    assert_eq!(Node::decode(&answer[2..2 + length]), Ok(node));
}

#[tokio::test(start_paused = true)]
async fn the_defaults_of_either_client_are_read_and_a_group_without_options_answers_with_no_message() {
    let world = World::with(web(0));
    let thresholds = [double(1, 0.5), double(2, 0.5)].concat();
    let old = [
        thresholds.clone(),
        // meta.v1.Duration of 10 min, 20 min and, written out as Kubernetes does, 0.
        delimited(3, &number(1, 600_000_000_000)),
        delimited(4, &number(1, 1_200_000_000_000)),
        delimited(5, &small(1, 0)),
    ];
    let new = [
        thresholds,
        delimited(8, &number(1, 600)),
        delimited(9, &number(1, 1200)),
        delimited(10, &[]),
        small(12, 1),
    ];
    for defaults in [old.concat(), new.concat()] {
        let request = [delimited(1, GROUP.as_bytes()), delimited(2, &defaults)].concat();
        assert_eq!(call(&world, "NodeGroupGetOptions", request).await.expect("answered"), Bytes::new());
    }
}

#[tokio::test(start_paused = true)]
async fn prices_are_asked_for_in_either_dialect_and_not_implemented() {
    let world = World::with(web(0));
    let time = [number(1, 1_700_000_000), number(2, 0)].concat();
    let pod = delimited(1, &delimited(1, b"pod"));
    let node = delimited(1, b"aws:///z1/i-1");
    let old_pod = [delimited(1, &pod), delimited(2, &time), delimited(3, &time)].concat();
    let new_pod = [delimited(4, &pod), delimited(5, &time), delimited(6, &time)].concat();
    let old_node = [delimited(1, &node), delimited(2, &time), delimited(3, &time)].concat();
    let new_node = [delimited(1, &node), delimited(4, &time), delimited(5, &time)].concat();
    for (rpc, request) in [
        ("PricingPodPrice", old_pod),
        ("PricingPodPrice", new_pod),
        ("PricingNodePrice", old_node),
        ("PricingNodePrice", new_node),
    ] {
        let refused = call(&world, rpc, request).await.expect_err("no prices");
        assert_eq!(refused.code(), Code::Unimplemented);
    }
}

#[tokio::test(start_paused = true)]
async fn groups_and_sizes_have_their_field_numbers() {
    let world = World::with(web(2).in_service(&["i-1", "i-2"]));
    let debug = b"web: 2 live of 2 desired (1..10), 0 leaving";
    let group = [delimited(1, GROUP.as_bytes()), small(2, 1), small(3, 10), delimited(4, debug)].concat();
    assert_eq!(call(&world, "NodeGroups", vec![]).await.expect("answered"), delimited(1, &group));
    let node = |id: &[u8]| {
        let label = [delimited(1, b"k"), delimited(2, b"v")].concat();
        let node =
            [delimited(1, id), delimited(2, b"n-1"), delimited(3, &label), delimited(4, &label)].concat();
        delimited(1, &node)
    };
    let ours = call(&world, "NodeGroupForNode", node(b"aws:///z1/i-1")).await.expect("answered");
    assert_eq!(ours, delimited(1, &group));
    let foreign = call(&world, "NodeGroupForNode", node(b"aws:///z1/i-9")).await.expect("answered");
    assert_eq!(foreign, delimited(1, &[]));
    let size = call(&world, "NodeGroupTargetSize", delimited(1, GROUP.as_bytes())).await.expect("answered");
    assert_eq!(size, small(1, 2));
    let grow = [small(1, 3), delimited(2, GROUP.as_bytes())].concat();
    assert_eq!(call(&world, "NodeGroupIncreaseSize", grow).await.expect("grown"), Bytes::new());
    // A negative int32 takes ten bytes.
    let shrink = [number(1, -2_i64 as u64), delimited(2, GROUP.as_bytes())].concat();
    assert_eq!(call(&world, "NodeGroupDecreaseTargetSize", shrink).await.expect("lowered"), Bytes::new());
    assert_eq!(world.target_size().await, 3);
    let placeholder = delimited(1, &delimited(1, b"aws:///z1/i-placeholder-web-4"));
    let delete = [placeholder, delimited(2, GROUP.as_bytes())].concat();
    assert_eq!(call(&world, "NodeGroupDeleteNodes", delete).await.expect("given up"), Bytes::new());
    assert_eq!(world.target_size().await, 2);
}

#[tokio::test(start_paused = true)]
async fn instances_have_their_field_numbers_and_states() {
    let mut group = web(2).in_service(&["i-1"]).with("i-2", Lifecycle::Terminating);
    group.failure = Some(LaunchFailure {
        code: "VcpuLimitExceeded".into(),
        message: "quota".into(),
        out_of_resources: true,
        launches: 9,
    });
    let world = World::with(group);
    let answer = call(&world, "NodeGroupNodes", delimited(1, GROUP.as_bytes())).await.expect("answered");
    let instance =
        |id: &[u8], status: &[u8]| delimited(1, &[delimited(1, id), delimited(2, status)].concat());
    let error = [delimited(1, b"VcpuLimitExceeded"), delimited(2, b"quota"), small(3, 1)].concat();
    let expected = [
        instance(b"aws:///z1/i-1", &small(1, 1)),
        instance(b"aws:///z1/i-2", &small(1, 3)),
        instance(b"aws:///z1/i-placeholder-web-1", &[small(1, 2), delimited(2, &error)].concat()),
    ];
    assert_eq!(answer, expected.concat());
}

#[tokio::test(start_paused = true)]
async fn accelerators_are_a_map_with_empty_values() {
    let world = World::with(web(0));
    let label = call(&world, "GPULabel", vec![]).await.expect("answered");
    assert_eq!(label, delimited(1, b"k8s.amazonaws.com/accelerator"));
    let types = call(&world, "GetAvailableGPUTypes", vec![]).await.expect("answered");
    let first = delimited(1, b"nvidia-a10g");
    assert!(types.starts_with(&delimited(1, &first)), "{types:?}");
}
