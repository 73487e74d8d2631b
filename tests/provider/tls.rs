//! mTLS: who is let in, and certificates that change.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ebbtide::provider::proto::NodeGroupsRequest;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::tls::TlsFile;
use ebbtide::provider::{Tls, TlsFiles};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;

use crate::world::{World, web};

/// An authority, in whose name certificates are signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, PEM.
struct Signed {
    cert: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, name: &str) -> Signed {
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Signed { cert, key: key.serialize_pem() }
    }
}

/// Certificate files of a server, and their authorities.
struct Files {
    paths: TlsFiles,
    servers: Authority,
    clients: Authority,
    changes: u64,
}

impl Files {
    fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&directory).expect("a directory for the test");
        let path = |name: &str| -> PathBuf { directory.join(name) };
        let paths =
            TlsFiles { cert: path("tls.crt"), key: path("tls.key"), client_ca: path("client-ca.crt") };
        let mut files = Self { paths, servers: Authority::new(), clients: Authority::new(), changes: 0 };
        files.new_certificate();
        let pem = files.clients.pem.clone();
        files.write(&files.paths.client_ca.clone(), &pem);
        files
    }

    fn new_certificate(&mut self) {
        let server = self.servers.sign("provider");
        self.write(&self.paths.cert.clone(), &server.cert);
        self.write(&self.paths.key.clone(), &server.key);
    }

    /// Writes a file, each time a second later than the last, whatever the file system's clock does.
    fn write(&mut self, path: &Path, content: &str) {
        fs::write(path, content).expect("written");
        self.changes += 1;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + self.changes);
        File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("dated");
    }

    fn serve(&self) -> World {
        let world = World::empty(Some(Tls::load(self.paths.clone()).expect("good files")));
        world.publish([web(1)]);
        world
    }
}

/// A client that trusts `servers`, with a certificate or none.
fn client(servers: &Authority, own: Option<&Signed>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(servers.pem.as_bytes()).expect("PEM")).expect("an authority");
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let mut config = match own {
        Some(own) => {
            let cert = CertificateDer::from_pem_slice(own.cert.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(vec![cert], key).expect("a key pair")
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn handshake(world: &World, client: &TlsConnector) -> io::Result<TlsStream<DuplexStream>> {
    client.connect(ServerName::try_from("provider").expect("a name"), world.connect()).await
}

/// A call through TLS; what went wrong, if it did.
async fn call(world: &World, client: &TlsConnector) -> Result<usize, String> {
    let stream = handshake(world, client).await.map_err(|e| e.to_string())?;
    let mut stream = Some(TokioIo::new(stream));
    let connector =
        tower::service_fn(move |_| std::future::ready(stream.take().ok_or(io::Error::other("once"))));
    let channel = Endpoint::from_static("http://provider")
        .connect_with_connector(connector)
        .await
        .map_err(|e| e.to_string())?;
    let answer = CloudProviderClient::new(channel).node_groups(NodeGroupsRequest {}).await;
    answer.map(|answer| answer.into_inner().node_groups.len()).map_err(|e| e.to_string())
}

/// What the server's certificate is, as a client sees it.
async fn shown(world: &World, client: &TlsConnector) -> CertificateDer<'static> {
    let stream = handshake(world, client).await.expect("let in");
    let certificates = stream.get_ref().1.peer_certificates().expect("the server has one");
    certificates[0].clone().into_owned()
}

#[tokio::test]
async fn a_client_of_the_authority_is_let_in_and_nobody_else() {
    let files = Files::new("admission");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    assert_eq!(call(&world, &known).await, Ok(1));

    let stranger = client(&files.servers, Some(&Authority::new().sign("cluster-autoscaler")));
    assert!(call(&world, &stranger).await.is_err());
    let nameless = client(&files.servers, None);
    assert!(call(&world, &nameless).await.is_err());
    assert!(world.client().await.node_groups(NodeGroupsRequest {}).await.is_err());
    // And the client does not take any server.
    let misled = client(&Authority::new(), Some(&files.clients.sign("cluster-autoscaler")));
    assert!(call(&world, &misled).await.is_err());

    assert_eq!(call(&world, &known).await, Ok(1));
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_keeps_nobody_waiting() {
    let files = Files::new("silence");
    let world = files.serve();
    let silent: Vec<_> = (0..8).map(|_| world.connect()).collect();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    assert_eq!(call(&world, &known).await, Ok(1));
    tokio::time::pause();
    for mut connection in silent {
        let mut byte = [0];
        assert_eq!(connection.read(&mut byte).await.expect("closed"), 0);
    }
}

#[tokio::test]
async fn changed_certificates_are_used_for_new_connections_and_broken_ones_never() {
    let mut files = Files::new("reload");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    let first = shown(&world, &known).await;

    files.new_certificate();
    let second = shown(&world, &known).await;
    assert_ne!(first, second);

    let (cert, key) = (files.paths.cert.clone(), files.paths.key.clone());
    files.write(&cert, "half a cert");
    assert_eq!(shown(&world, &known).await, second);
    // A certificate whose key has not been written yet.
    let next = files.servers.sign("provider");
    files.write(&cert, &next.cert);
    assert_eq!(shown(&world, &known).await, second);
    files.write(&key, &next.key);
    let third = shown(&world, &known).await;
    assert_eq!(third, CertificateDer::from_pem_slice(next.cert.as_bytes()).expect("PEM"));
    fs::remove_file(&key).expect("removed");
    assert_eq!(shown(&world, &known).await, third);
    files.write(&key, &next.key);

    // Another client authority: old clients are out.
    let clients = Authority::new();
    let authority = files.paths.client_ca.clone();
    files.write(&authority, &clients.pem);
    assert!(call(&world, &known).await.is_err());
    let new = client(&files.servers, Some(&clients.sign("cluster-autoscaler")));
    assert_eq!(call(&world, &new).await, Ok(1));
}

#[test]
fn all_that_is_wrong_with_the_files_is_said_at_once() {
    let mut files = Files::new("problems");
    let paths = files.paths.clone();
    files.write(&paths.cert, "no certificate");
    files.write(&paths.client_ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    fs::remove_file(&paths.key).expect("removed");
    let problems = Tls::load(paths.clone()).expect_err("nothing is right");
    let about: Vec<_> = problems.iter().map(ebbtide::provider::tls::TlsProblem::file).collect();
    assert_eq!(about, [TlsFile::Cert, TlsFile::Key, TlsFile::ClientCa]);

    files.new_certificate();
    let clients = files.clients.pem.clone();
    files.write(&paths.client_ca, &clients);
    let other = files.servers.sign("provider");
    files.write(&paths.key, &other.key);
    let problems = Tls::load(paths).expect_err("the key of another certificate");
    let about: Vec<_> = problems.iter().map(ebbtide::provider::tls::TlsProblem::file).collect();
    assert_eq!(about, [TlsFile::Key]);
}
