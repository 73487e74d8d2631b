//! What a question to the expander takes, however it is made: anybody who reaches its address may ask.

use allocation_counter::measure;
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use http_body_util::Full;
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::encode_varint;
use tokio::runtime::Builder;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

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
        let mut question = BytesMut::with_capacity(message.len() + 5);
        question.put_u8(0);
        question.put_u32(message.len() as u32);
        question.put(&message[..]);
        let mut code = None;
        let info = measure(|| code = Some(runtime.block_on(ask(&program, question.split().freeze()))));
        println!("{what}: {} bytes of {}", info.bytes_max, message.len());
        assert_eq!(code, Some(expected), "{what}");
        assert!(info.bytes_max < 70 << 20, "{what}: {info:?}");
        assert!(info.bytes_current < 1 << 20, "{what}: {info:?}");
    }
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
