//! The expander at an address of its own: TLS without a certificate of the client's, and nothing but advice.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ebbtide::app::{Outside, run};
use ebbtide::aws::Aws;
use ebbtide::clock::Clock;
use ebbtide::cluster::Cluster;
use ebbtide::provider::expander::proto::expander_client::ExpanderClient;
use ebbtide::provider::expander::proto::{BestOptionsRequest, Option as Offered};
use ebbtide::provider::proto::NodeGroupsRequest;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::{Io, Tls, TlsOptions};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::slots::Peer;
use futures::StreamExt as _;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

/// A certificate for this host in its files, and the certificate.
fn certificate() -> (TlsOptions, String) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("expander");
    fs::create_dir_all(&directory).expect("a directory");
    let (cert, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let pair = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let pem = params.self_signed(&pair).expect("signed").pem();
    fs::write(&cert, &pem).expect("written");
    fs::write(&key, pair.serialize_pem()).expect("written");
    (TlsOptions { cert, key, client_ca: None, client_crl: None, allowed_clients: Vec::new() }, pem)
}

/// As cluster-autoscaler connects: it trusts this certificate, and shows none.
async fn connect(dial: &mpsc::UnboundedSender<DuplexStream>, pem: &str) -> Channel {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("an authority");
    let mut client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    dial.send(theirs).expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(client)).connect(name, ours).await.expect("shaken");
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        std::future::ready(stream.take().ok_or(std::io::Error::other("once")))
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.expect("connected")
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_certificate_is_advised_and_can_do_nothing_else() {
    let world = World::plain(1);
    let (options, pem) = certificate();
    let (dial, connections) = mpsc::unbounded_channel();
    let incoming = UnboundedReceiverStream::new(connections)
        .map(|stream: DuplexStream| Ok((Box::new(stream) as Box<dyn Io>, Peer::Local)));
    let tls = Tls::load(options, Clock::system()).expect("good files");
    let outside = Outside {
        aws: Aws::at(aws_client(Arc::new(world.aws.clone()))),
        cluster: Cluster::new(world.cluster.client()),
        clock: world.clock.of_its_own(),
        incoming: Box::pin(futures::stream::pending()),
        tls: None,
        expander: Some((incoming.boxed(), tls)),
        admin: None,
        collector: None,
    };
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let until = stop.clone();
    tasks.spawn(async move { run(&config(), outside, until).await });

    let channel = connect(&dial, &pem).await;
    let options = vec![Offered { node_group_id: "any".to_owned(), ..Offered::default() }];
    let request = BestOptionsRequest { options, ..BestOptionsRequest::default() };
    let answer = ExpanderClient::new(channel.clone()).best_options(request).await.expect("advised");
    assert_eq!(answer.into_inner().options.len(), 1);
    let refused = CloudProviderClient::new(channel).node_groups(NodeGroupsRequest {}).await;
    assert_eq!(refused.expect_err("not here").code(), Code::Unimplemented);

    stop.cancel();
    assert!(matches!(tasks.join_next().await, Some(Ok(Ok(())))));
}
