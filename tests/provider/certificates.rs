//! Authorities, certificates and their files, and clients that use them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ebbtide::provider::proto::NodeGroupsRequest;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::{Tls, TlsOptions};
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::DuplexStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use crate::world::{World, clock, web};

/// An authority, in whose name certificates are signed.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, PEM.
pub(crate) struct Signed {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    /// One with something else about its certificate.
    pub(crate) fn with(change: impl Fn(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for this name.
    pub(crate) fn sign(&self, name: &str) -> Signed {
        self.sign_with(&CertificateParams::new(vec![name.to_owned()]).expect("a name"))
    }

    /// A certificate that has the name where names were before there were alternative ones.
    pub(crate) fn sign_common_name(&self, name: &str) -> Signed {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign_with(&params)
    }

    /// A certificate that ends then.
    pub(crate) fn sign_until(&self, name: &str, (year, month, day): (i32, u8, u8)) -> Signed {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_after = date_time_ymd(year, month, day);
        self.sign_with(&params)
    }

    /// A certificate of this number.
    pub(crate) fn sign_number(&self, name: &str, number: u64) -> Signed {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.serial_number = Some(SerialNumber::from(number));
        self.sign_with(&params)
    }

    /// Its list of what it has revoked.
    pub(crate) fn revocations(&self, numbers: &[u64]) -> String {
        self.revocations_until(numbers, (4000, 1, 1))
    }

    /// The same, with the next list due then.
    pub(crate) fn revocations_until(&self, numbers: &[u64], (year, month, day): (i32, u8, u8)) -> String {
        let revoked = |number: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*number),
            revocation_time: date_time_ymd(2023, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2023, 1, 1),
            next_update: date_time_ymd(year, month, day),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: numbers.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("signed").pem().expect("PEM")
    }

    pub(crate) fn sign_with(&self, params: &CertificateParams) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Signed { cert, key: key.serialize_pem() }
    }
}

/// Certificate files of a server, and their authorities.
pub(crate) struct Files {
    pub(crate) options: TlsOptions,
    pub(crate) servers: Authority,
    pub(crate) clients: Authority,
    pub(crate) changes: u64,
}

impl Files {
    pub(crate) fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&directory).expect("a directory for the test");
        let path = |name: &str| -> PathBuf { directory.join(name) };
        let options = TlsOptions {
            cert: path("tls.crt"),
            key: path("tls.key"),
            client_ca: Some(path("client-ca.crt")),
            client_crl: None,
            allowed_clients: Vec::new(),
        };
        let mut files = Self { options, servers: Authority::new(), clients: Authority::new(), changes: 0 };
        files.new_certificate();
        let pem = files.clients.pem.clone();
        files.write(&files.client_ca(), &pem);
        files
    }

    /// The file of the clients' authority.
    pub(crate) fn client_ca(&self) -> PathBuf {
        self.options.client_ca.clone().expect("there is one")
    }

    pub(crate) fn new_certificate(&mut self) {
        let server = self.servers.sign("provider");
        self.write(&self.options.cert.clone(), &server.cert);
        self.write(&self.options.key.clone(), &server.key);
    }

    /// Writes a file, each time a second later than the last, whatever the file system's clock does.
    pub(crate) fn write(&mut self, path: &Path, content: &str) {
        fs::write(path, content).expect("written");
        self.changes += 1;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + self.changes);
        File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("dated");
    }

    pub(crate) fn serve(&self) -> World {
        let world = World::empty(Some(Tls::load(self.options.clone(), clock()).expect("good files")));
        world.publish([web(1)]);
        world
    }
}

/// A client that trusts `servers`, with a certificate or none.
pub(crate) fn client(servers: &Authority, own: Option<&Signed>) -> TlsConnector {
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

pub(crate) async fn handshake(world: &World, client: &TlsConnector) -> io::Result<TlsStream<DuplexStream>> {
    client.connect(ServerName::try_from("provider").expect("a name"), world.connect()).await
}

/// A connection through TLS; what went wrong, if it did.
pub(crate) async fn connect(
    world: &World,
    client: &TlsConnector,
) -> Result<CloudProviderClient<Channel>, String> {
    let stream = handshake(world, client).await.map_err(|e| e.to_string())?;
    let mut stream = Some(TokioIo::new(stream));
    let connector =
        tower::service_fn(move |_| std::future::ready(stream.take().ok_or(io::Error::other("once"))));
    let channel = Endpoint::from_static("http://provider")
        .connect_with_connector(connector)
        .await
        .map_err(|e| e.to_string())?;
    Ok(CloudProviderClient::new(channel))
}

/// A call through TLS; what went wrong, if it did.
pub(crate) async fn call(world: &World, client: &TlsConnector) -> Result<usize, String> {
    let answer = connect(world, client).await?.node_groups(NodeGroupsRequest {}).await;
    answer.map(|answer| answer.into_inner().node_groups.len()).map_err(|e| e.to_string())
}

/// What the server's certificate is, as a client sees it.
pub(crate) async fn shown(world: &World, client: &TlsConnector) -> CertificateDer<'static> {
    let stream = handshake(world, client).await.expect("let in");
    let certificates = stream.get_ref().1.peer_certificates().expect("the server has one");
    certificates[0].clone().into_owned()
}
