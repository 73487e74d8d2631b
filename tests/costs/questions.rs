//! What a question to the expander takes, however it is made: anybody who reaches its address may ask.

use std::time::Duration;

use allocation_counter::measure;
use ebbtide::config::{Config, PriceSource};
use ebbtide::provider::proto::NodeGroupTemplateNodeInfoRequest;
use ebbtide::sim::aws::GroupSpec;
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::World;
use http_body_util::Full;
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::encode_varint;
use tokio::runtime::Builder;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

/// A group of the world.
const GROUP: &str = "web";

/// The largest question.
const LARGEST: usize = 32 << 20;

/// A field of a message: a tag of less than 16, and bytes.
fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![tag << 3 | 2];
    encode_varint(value.len() as u64, &mut field);
    field.extend(value);
    field
}

/// As many of these as a question has room for.
fn flood(entry: &[u8]) -> Vec<u8> {
    entry.repeat((LARGEST - 8) / entry.len())
}

/// Questions of 32 MiB: what of, and what becomes of them.
fn floods() -> [(&'static str, Vec<u8>, Code); 6] {
    let pods = flood(&field(4, &[]));
    let mut keys = Vec::with_capacity(LARGEST);
    for n in 0..(LARGEST / 8 - 1) as u32 {
        // A node of the first map, with a key of its own and no bytes.
        keys.extend([2 << 3 | 2, 6, 1 << 3 | 2, 4]);
        keys.extend((n | 1 << 31).to_le_bytes());
    }
    [
        ("options", flood(&field(1, &[])), Code::ResourceExhausted),
        ("pods of one option", field(1, &pods[..LARGEST - 16]), Code::Ok),
        ("keys", keys, Code::ResourceExhausted),
        ("a name", field(1, &field(1, &vec![b'n'; LARGEST - 16])), Code::ResourceExhausted),
        ("a text that is not read", field(1, &field(3, &vec![b't'; LARGEST - 16])), Code::Ok),
        ("more than it may have", vec![0; LARGEST + 1], Code::OutOfRange),
    ]
}

#[test]
fn a_question_takes_little_more_than_twice_its_bytes() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let program = runtime.block_on(async { Program::start(&World::plain(1), config()) });
    for (what, message, expected) in floods() {
        let (question, mut code) = (framed(&message), None);
        let info = measure(|| code = Some(runtime.block_on(ask(&program, question))));
        println!("{what}: {} bytes of {}", info.bytes_max, message.len());
        assert_eq!(code, Some(expected), "{what}");
        assert!(info.bytes_max < 70 << 20, "{what}: {info:?}");
        assert!(info.bytes_current < 1 << 20, "{what}: {info:?}");
    }
}

#[test]
fn a_group_that_all_options_name_is_reckoned_once() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let config = Config { prices: Some(PriceSource::Table), ..config() };
    let (_world, program) = runtime.block_on(async {
        let world = World::plain(1);
        world.aws.add_group(GroupSpec::named(GROUP).zones(["us-east-1a"]).tag(TAG, "true"));
        let program = Program::start(&world, config);
        let mut client = program.client();
        let known = NodeGroupTemplateNodeInfoRequest { id: GROUP.into() };
        while client.node_group_template_node_info(known.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        (world, program)
    });
    let option = field(1, &field(1, GROUP.as_bytes()));
    let allocations = |options: usize| {
        let question = framed(&option.repeat(options));
        measure(|| assert_eq!(runtime.block_on(ask(&program, question)), Code::Ok)).count_total
    };
    allocations(1);
    let (one, most) = (allocations(1), allocations(4_096));
    println!("{one} allocations for an option, {most} for 4,096 of one group");
    // Of each its name, in the question and in what is known of it, and what the lists of all of them take.
    assert!(most < one + 3 * 4_096, "{one} {most}");
}

/// A message as gRPC has it, uncompressed.
fn framed(message: &[u8]) -> Bytes {
    let mut question = BytesMut::with_capacity(message.len() + 5);
    question.put_u8(0);
    question.put_u32(message.len() as u32);
    question.put(message);
    question.freeze()
}

async fn ask(program: &Program, question: Bytes) -> Code {
    let request = http::Request::post("http://localhost/grpcplugin.Expander/BestOptions")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(question)))
        .expect("a request");
    let mut channel = program.channel();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.expect("connected");
    let answer = channel.call(request).await.expect("answered");
    // An answer with a message has its status after it.
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}
