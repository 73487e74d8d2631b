//! mTLS: the server's certificate and the authority that signs clients', kept up with their files.
//!
//! Invariants: nobody without a certificate of the client authority gets past the handshake; a file that has become
//! unusable changes nothing, the certificates read last stay in use.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use std::{fmt, fs, io};

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::telemetry::chain;

/// Where the certificates are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities whose client certificates are accepted.
    pub client_ca: PathBuf,
}

/// One of [`TlsFiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFile {
    /// The server's certificate.
    Cert,
    /// Its private key.
    Key,
    /// The client authorities.
    ClientCa,
}

impl fmt::Display for TlsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cert => "certificate",
            Self::Key => "private key",
            Self::ClientCa => "client authority",
        })
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsProblem {
    /// It cannot be read.
    #[error("the {file} in {} cannot be read", path.display())]
    Unreadable {
        /// Which.
        file: TlsFile,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has not what it should.
    #[error("there is no usable {file} in {}: {why}", path.display())]
    Unusable {
        /// Which.
        file: TlsFile,
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl TlsProblem {
    /// The file it is about.
    pub fn file(&self) -> TlsFile {
        match self {
            Self::Unreadable { file, .. } | Self::Unusable { file, .. } => *file,
        }
    }
}

/// When the files were written last. None for one that is not there.
type Stamps = [Option<SystemTime>; 3];

/// Certificates in use, and their files.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// Of the files that `config` was made from.
    stamps: Stamps,
    /// Of files that were of no use, so that each such change is logged once.
    refused: Option<Stamps>,
}

impl Tls {
    /// Reads the files; all that is wrong with them is reported at once.
    pub fn load(files: TlsFiles) -> Result<Self, Vec<TlsProblem>> {
        let stamps = stamps(&files);
        let config = Arc::new(read(&files)?);
        Ok(Self { files, loaded: Mutex::new(Loaded { config, stamps, refused: None }) })
    }

    /// For a new connection, with what the files have now. It looks at three files' times, and reads the files only
    /// if one has changed: connections are rare, cluster-autoscaler keeps its one.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.files);
        if now != loaded.stamps {
            match read(&self.files) {
                Ok(config) => {
                    info!("certificates read again");
                    *loaded = Loaded { config: Arc::new(config), stamps: now, refused: None };
                }
                Err(problems) if loaded.refused != Some(now) => {
                    for problem in problems {
                        warn!(error = %chain(&problem), "changed certificates are of no use, the old ones stay");
                    }
                    loaded.refused = Some(now);
                }
                Err(_) => {}
            }
        }
        TlsAcceptor::from(Arc::clone(&loaded.config))
    }
}

fn stamps(files: &TlsFiles) -> Stamps {
    [&files.cert, &files.key, &files.client_ca].map(|path| fs::metadata(path).and_then(|m| m.modified()).ok())
}

fn read(files: &TlsFiles) -> Result<ServerConfig, Vec<TlsProblem>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let cert = certificates(TlsFile::Cert, &files.cert);
    let key = content(TlsFile::Key, &files.key).and_then(|pem| {
        PrivateKeyDer::from_pem_slice(&pem).map_err(|e| unusable(TlsFile::Key, &files.key, &e))
    });
    let clients = roots(&files.client_ca);
    match (cert, key, clients) {
        (Ok(cert), Ok(key), Ok(clients)) => config(files, provider, cert, key, clients).map_err(|e| vec![e]),
        (cert, key, clients) => Err([cert.err(), key.err(), clients.err()].into_iter().flatten().collect()),
    }
}

fn config(
    files: &TlsFiles,
    provider: Arc<CryptoProvider>,
    cert: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: RootCertStore,
) -> Result<ServerConfig, TlsProblem> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), Arc::clone(&provider))
        .build()
        .map_err(|e| unusable(TlsFile::ClientCa, &files.client_ca, &e))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(TlsFile::Key, &files.key, &e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(cert, key)
        // Among others, a key that is not the certificate's.
        .map_err(|e| unusable(TlsFile::Key, &files.key, &e))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn roots(path: &Path) -> Result<RootCertStore, TlsProblem> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(TlsFile::ClientCa, path)? {
        roots.add(certificate).map_err(|e| unusable(TlsFile::ClientCa, path, &e))?;
    }
    Ok(roots)
}

fn certificates(file: TlsFile, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let pem = content(file, path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|e| unusable(file, path, &e))?;
    if certificates.is_empty() {
        return Err(unusable(file, path, &"it has no PEM certificate"));
    }
    Ok(certificates)
}

fn content(file: TlsFile, path: &Path) -> Result<Vec<u8>, TlsProblem> {
    fs::read(path).map_err(|source| TlsProblem::Unreadable { file, path: path.to_owned(), source })
}

fn unusable(file: TlsFile, path: &Path, why: &dyn fmt::Display) -> TlsProblem {
    TlsProblem::Unusable { file, path: path.to_owned(), why: why.to_string() }
}
