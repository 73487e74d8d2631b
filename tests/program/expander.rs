//! The expander at an address of its own: TLS without a certificate of the client's, and no other RPC.

use std::fs;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ebbtide::app::Outside;
use ebbtide::provider::expander::proto::expander_client::ExpanderClient;
use ebbtide::provider::expander::proto::{BestOptionsRequest, Option as Offered};
use ebbtide::provider::proto::NodeGroupsRequest;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::{Io, Tls, TlsOptions};
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use ebbtide::slots::Peer;
use ebbtide::telemetry::captured;
use futures::stream::{self, FuturesUnordered, StreamExt as _};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::Service as _;
use tracing::Level;

/// Connections to the program, each with where it comes from.
type Dial = mpsc::UnboundedSender<(DuplexStream, Peer)>;

/// A certificate for this host in its files, and the certificate. The tests share it.
static CERTIFICATE: LazyLock<(TlsOptions, String)> = LazyLock::new(|| certificate("expander", (4000, 1, 1)));

/// A certificate that ends then, in a directory of this name.
fn certificate(name: &str, (year, month, day): (i32, u8, u8)) -> (TlsOptions, String) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).expect("a directory");
    let (cert, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let pair = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.not_after = date_time_ymd(year, month, day);
    let pem = params.self_signed(&pair).expect("signed").pem();
    fs::write(&cert, &pem).expect("written");
    fs::write(&key, pair.serialize_pem()).expect("written");
    (TlsOptions { cert, key, client_ca: None, client_crl: None, allowed_clients: Vec::new() }, pem)
}

/// As cluster-autoscaler connects: it trusts this certificate, and shows none.
async fn connect(dial: &Dial, peer: Peer, pem: &str) -> Channel {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("an authority");
    let mut client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    dial.send((theirs, peer)).expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(client)).connect(name, ours).await.expect("shaken");
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        std::future::ready(stream.take().ok_or(std::io::Error::other("once")))
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.expect("connected")
}

/// The program, of which only the expander is asked.
struct Advised {
    dial: Dial,
    pem: String,
    program: Program,
}

impl Advised {
    fn start() -> Self {
        Self::start_with(CERTIFICATE.clone())
    }

    fn start_with((options, pem): (TlsOptions, String)) -> Self {
        let world = World::plain(1);
        let (dial, connections) = mpsc::unbounded_channel();
        let incoming = UnboundedReceiverStream::new(connections)
            .map(|(stream, peer): (DuplexStream, Peer)| Ok((Box::new(stream) as Box<dyn Io>, peer)));
        let tls = Tls::load(options, world.clock.of_its_own()).expect("good files");
        let expander = Some((incoming.boxed(), tls));
        let program = Program::start_in(&world, config(), |outside| Outside { expander, ..outside });
        Self { dial, pem, program }
    }

    async fn connect(&self, peer: Peer) -> Channel {
        connect(&self.dial, peer, &self.pem).await
    }

    async fn stop(self) {
        self.program.stop().await.expect("in good order");
    }
}

/// A pod of this address.
fn at(last: u8) -> Peer {
    Peer::of([10, 0, 0, last].into())
}

async fn best(channel: Channel) -> Result<usize, Status> {
    let options = vec![Offered { node_group_id: "any".to_owned(), ..Offered::default() }];
    let answer = ExpanderClient::new(channel).best_options(BestOptionsRequest { options }).await?;
    Ok(answer.into_inner().options.len())
}

/// A question whose first byte comes, and nothing after it. Gives what is answered in the end.
async fn dribble(mut channel: Channel) -> Status {
    let first = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from_static(&[0])))]);
    let question = http::Request::post("http://localhost/grpcplugin.Expander/BestOptions")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(first.chain(stream::pending()))))
        .expect("a request");
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.expect("connected");
    let answer = channel.call(question).await.expect("answered");
    Status::from_header_map(answer.headers()).expect("refused")
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_certificate_is_advised_and_can_do_nothing_else() {
    let program = Advised::start();
    let channel = program.connect(Peer::Local).await;
    assert_eq!(best(channel.clone()).await.expect("advised"), 1);
    let refused = CloudProviderClient::new(channel).node_groups(NodeGroupsRequest {}).await;
    assert_eq!(refused.expect_err("not here").code(), Code::Unimplemented);
    program.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_that_does_not_come_keeps_nobody_waiting() {
    let program = Advised::start();
    let slow = program.connect(at(1)).await;
    let begun = Instant::now();
    let mut first = pin!(dribble(slow));
    assert!(timeout(Duration::from_secs(1), &mut first).await.is_err(), "there is time");
    let asked = Instant::now();
    assert_eq!(best(program.connect(at(2)).await).await.expect("advised"), 1);
    assert!(asked.elapsed() < Duration::from_millis(100), "{:?}", asked.elapsed());
    assert_eq!(first.await.code(), Code::DeadlineExceeded);
    assert_eq!(begun.elapsed().as_secs(), 4);
    program.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_questions_of_one_address_cost_others_nothing() {
    let program = Advised::start();
    let others = program.connect(at(1)).await;
    let mut other = pin!(dribble(others));
    assert!(timeout(Duration::from_millis(10), &mut other).await.is_err());
    let mut flood = FuturesUnordered::new();
    for _ in 0..10 {
        let channel = program.connect(at(2)).await;
        flood.push(async move { (Instant::now(), dribble(channel).await) });
    }
    let mut refused = 0;
    while let Ok(Some((_, status))) = timeout(Duration::from_millis(10), flood.next()).await {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        refused += 1;
    }
    assert_eq!(refused, 9, "one is left");
    assert!(
        timeout(Duration::from_millis(10), &mut other).await.is_err(),
        "nor has the other lost its place"
    );
    // A third address gets the place that was taken first.
    assert_eq!(best(program.connect(at(3)).await).await.expect("advised"), 1);
    assert_eq!(other.await.code(), Code::ResourceExhausted);
    program.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_ends_within_two_weeks_is_warned_about() {
    let warned = async |name, end| {
        let (log, _guard) = captured::log(Level::WARN);
        // The world begins on the first of January 2026.
        let program = Advised::start_with(certificate(name, end));
        tokio::time::sleep(Duration::from_secs(1)).await;
        program.stop().await;
        log.text().lines().filter(|line| line.contains("expires soon") && line.contains(name)).count()
    };
    assert_eq!(warned("expander-soon", (2026, 1, 14)).await, 1);
    assert_eq!(warned("expander-later", (2026, 1, 17)).await, 0);
}
