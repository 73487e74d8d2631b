//! TLS: the server's certificate and, except for the expander (its clients show none), the client authorities and their revocation
//! lists, reread when their files change.
//!
//! Invariants: with a client authority, only clients whose certificate it has signed, with an allowed name and not revoked, get past the
//! handshake; every handshake is complete (no session is resumed); a file that becomes unusable changes nothing: what was read last stays
//! in use. A certificate for another use is unusable too: every handshake would fail, and only clients would say why. What has
//! expired or is not valid yet is reported and used all the same: without cluster-autoscaler's calls nodes are still held and drained,
//! without a process they are not.

mod certificate;
mod clients;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use self::certificate::Unfit;
use self::clients::NamedClients;
pub use self::clients::WrongName;
use crate::clock::{Clock, elapsed};
use crate::telemetry::chain;

/// The certificate files (PEM), and who is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The server's certificate and its intermediates.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities whose client certificates are accepted; `None`: clients show none, which is for the expander alone.
    pub client_ca: Option<PathBuf>,
    /// Revocation lists: if given, one for each authority.
    pub client_crl: Option<PathBuf>,
    /// Names, one of which a client's certificate must have. Empty: every certificate of the authorities is accepted.
    pub allowed_clients: Vec<String>,
}

/// One of the files in [`TlsOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsFile {
    /// The server's certificate.
    Cert,
    /// Its private key.
    Key,
    /// The client authorities.
    ClientCa,
    /// The authorities' revocation lists.
    ClientCrl,
}

impl fmt::Display for TlsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cert => "certificate",
            Self::Key => "private key",
            Self::ClientCa => "client authority",
            Self::ClientCrl => "revocation list",
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
    /// It does not contain what it should.
    #[error("there is no usable {file} in {}: {why}", path.display())]
    Unusable {
        /// Which.
        file: TlsFile,
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It has expired, or is not valid yet. It is used all the same.
    #[error("the {file} in {} lets no connection succeed: {why}", path.display())]
    Untimely {
        /// Which.
        file: TlsFile,
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something in it ends soon, or has ended beside something that has not.
    #[error("the {file} in {} ends at {end}", path.display())]
    Ends {
        /// Which.
        file: TlsFile,
        /// Where.
        path: PathBuf,
        /// When the first thing in it does.
        end: Timestamp,
    },
}

impl TlsProblem {
    /// The file it is about.
    pub fn file(&self) -> TlsFile {
        match self {
            Self::Unreadable { file, .. }
            | Self::Unusable { file, .. }
            | Self::Untimely { file, .. }
            | Self::Ends { file, .. } => *file,
        }
    }
}

/// How long before its end a file is told of. Certificates of a year are renewed by hand, those of cert-manager 30 days before.
const WARN_BEFORE: Duration = Duration::from_hours(14 * 24);

/// When what is in a file ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The first thing in it: something to look at, though connections may go on without.
    pub(super) first: Timestamp,
    /// When connections fail: the end of the server's own certificate (its chain may do without an intermediate), or of the last
    /// authority. Of lists the first: connections go on, but clients revoked since are let in.
    pub(super) needed: Timestamp,
}

/// Whether to warn of this end now. A revocation list is valid for days and renewed shortly before: warned of only once it is over.
pub(super) fn is_near(file: TlsFile, end: Timestamp, now: Timestamp) -> bool {
    match file {
        TlsFile::ClientCrl => end <= now,
        TlsFile::Cert | TlsFile::Key | TlsFile::ClientCa => elapsed(now, end) < WARN_BEFORE,
    }
}

/// What shows that a file has changed. Kubernetes replaces mounted files by a symbolic link, whose new target may be of
/// the same second. `None` for a missing file.
type Stamp = Option<(u64, u64, (i64, i64), (i64, i64))>;
type Stamps = [Stamp; 4];

/// Certificates in use, and their files.
#[derive(Debug)]
pub struct Tls {
    options: TlsOptions,
    clock: Clock,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    inner: Read,
    /// Of the files that `inner` was made from.
    stamps: Stamps,
    /// Of unusable files, so that each change is logged once.
    refused: Option<Stamps>,
}

/// What the files have.
#[derive(Debug)]
struct Read {
    config: Arc<ServerConfig>,
    ends: BTreeMap<TlsFile, Ends>,
    /// What was out of its time when it was read, and how.
    untimely: Vec<(TlsFile, String)>,
}

impl Tls {
    /// Reads the files, and reports all problems at once.
    pub fn load(options: TlsOptions, clock: Clock) -> Result<Self, Vec<TlsProblem>> {
        let stamps = stamps(&options);
        let inner = read(&options, clock.wall())?;
        Ok(Self { options, clock, loaded: Mutex::new(Loaded { inner, stamps, refused: None }) })
    }

    /// Where a file is.
    pub(super) fn path(&self, file: TlsFile) -> Option<&Path> {
        match file {
            TlsFile::Cert => Some(&self.options.cert),
            TlsFile::Key => Some(&self.options.key),
            TlsFile::ClientCa => self.options.client_ca.as_deref(),
            TlsFile::ClientCrl => self.options.client_crl.as_deref(),
        }
    }

    /// Files that have expired or are not valid yet: no connection succeeds until they are replaced.
    pub fn untimely(&self) -> Vec<TlsProblem> {
        let loaded = self.loaded.lock();
        let told = loaded.inner.untimely.iter().filter_map(|(file, why)| {
            Some(TlsProblem::Untimely { file: *file, path: self.path(*file)?.to_owned(), why: why.clone() })
        });
        told.collect()
    }

    /// What ends within 14 days (a revocation list: what is over), and files that have expired or are not valid yet. A file is named once.
    pub fn ending(&self) -> Vec<TlsProblem> {
        let mut told = self.untimely();
        let now = self.clock.wall();
        for (file, ends) in self.ends().into_iter().filter(|(file, ends)| is_near(*file, ends.first, now)) {
            if let Some(path) = self.path(file).filter(|_| told.iter().all(|other| other.file() != file)) {
                told.push(TlsProblem::Ends { file, path: path.to_owned(), end: ends.first });
            }
        }
        told
    }

    /// Whether clients show no certificate: those of the expander.
    pub fn is_for_expander(&self) -> bool {
        self.options.client_ca.is_none()
    }

    /// Whether every client that the authorities have signed is let in.
    pub(super) fn is_for_all_names(&self) -> bool {
        !self.is_for_expander() && self.options.allowed_clients.is_empty()
    }

    /// The configuration for a new connection, from the files as they are now.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.refreshed().inner.config))
    }

    /// When what is in each file ends, from the files as they are now.
    pub(super) fn ends(&self) -> BTreeMap<TlsFile, Ends> {
        self.refreshed().inner.ends.clone()
    }

    /// What is loaded; read again if a file has changed.
    fn refreshed(&self) -> MutexGuard<'_, Loaded> {
        let mut loaded = self.loaded.lock();
        let now = stamps(&self.options);
        if now != loaded.stamps {
            match read(&self.options, self.clock.wall()) {
                Ok(inner) => {
                    tracing::info!("TLS files have changed: new connections use the new ones");
                    *loaded = Loaded { inner, stamps: now, refused: None };
                }
                Err(problems) if loaded.refused != Some(now) => {
                    for problem in problems {
                        tracing::warn!(error = %chain(&problem), "a changed TLS file cannot be used: connections go on with what was read before");
                    }
                    loaded.refused = Some(now);
                }
                Err(_) => {}
            }
        }
        loaded
    }
}

fn stamps(options: &TlsOptions) -> Stamps {
    let files =
        [Some(&options.cert), Some(&options.key), options.client_ca.as_ref(), options.client_crl.as_ref()];
    files.map(|path| {
        let found = fs::metadata(path?).ok()?;
        Some((
            found.ino(),
            found.size(),
            (found.mtime(), found.mtime_nsec()),
            (found.ctime(), found.ctime_nsec()),
        ))
    })
}

fn read(options: &TlsOptions, now: Timestamp) -> Result<Read, Vec<TlsProblem>> {
    let cert = items::<CertificateDer<'_>>(TlsFile::Cert, &options.cert).and_then(|cert| {
        // The first is the server's own; there is one.
        let late = untimely(TlsFile::Cert, &options.cert, certificate::serves(&cert[0], now))?;
        Ok((cert, late))
    });
    let key = content(TlsFile::Key, &options.key).and_then(|pem| {
        PrivateKeyDer::from_pem_slice(&pem).map_err(|e| unusable(TlsFile::Key, &options.key, &e))
    });
    let clients = options.client_ca.as_ref().map(|path| authorities(path, now)).transpose();
    let revoked = match &options.client_crl {
        Some(path) => items::<CertificateRevocationListDer<'_>>(TlsFile::ClientCrl, path),
        None => Ok(Vec::new()),
    };
    match (cert, key, clients, revoked) {
        (Ok((cert, late)), Ok(key), Ok(clients), Ok(revoked)) => {
            let (roots, in_ca, late_too) = match clients {
                Some(Authorities { roots, ends, late }) => (Some(roots), ends, late),
                None => (None, None, None),
            };
            let of_lists = revoked.iter().filter_map(|list| certificate::next_update(list)).min();
            let ends = [
                (TlsFile::Cert, ends(&cert, |moments| moments.first())),
                (TlsFile::ClientCa, in_ca),
                (TlsFile::ClientCrl, of_lists.map(|first| Ends { first, needed: first })),
            ];
            let ends = ends.into_iter().filter_map(|(file, end)| Some((file, end?))).collect();
            let provider = Arc::new(aws_lc_rs::default_provider());
            let config =
                config(options, provider, cert, key, roots, revoked).map_err(|problem| vec![problem])?;
            let untimely = [late, late_too].into_iter().flatten().collect();
            Ok(Read { config: Arc::new(config), ends, untimely })
        }
        (cert, key, clients, revoked) => {
            Err([cert.err(), key.err(), clients.err(), revoked.err()].into_iter().flatten().collect())
        }
    }
}

/// Who signs clients' certificates.
struct Authorities {
    roots: RootCertStore,
    ends: Option<Ends>,
    late: Option<(TlsFile, String)>,
}

fn authorities(path: &Path, now: Timestamp) -> Result<Authorities, TlsProblem> {
    let found = items::<CertificateDer<'_>>(TlsFile::ClientCa, path)?;
    let late = untimely(TlsFile::ClientCa, path, certificate::are_authorities(&found, now))?;
    let ends = ends(&found, |moments| moments.iter().max());
    Ok(Authorities { roots: roots(path, &found)?, ends, late })
}

/// What is out of its time, and how; an error for what cannot do its work at any.
fn untimely(
    file: TlsFile,
    path: &Path,
    judged: Result<(), Unfit>,
) -> Result<Option<(TlsFile, String)>, TlsProblem> {
    match judged {
        Ok(()) => Ok(None),
        Err(why @ (Unfit::Expired(..) | Unfit::TooEarly(..))) => Ok(Some((file, why.to_string()))),
        Err(why) => Err(unusable(file, path, &why)),
    }
}

/// When certificates end, of which connections need this one.
fn ends(certificates: &[CertificateDer<'_>], needed: fn(&[Timestamp]) -> Option<&Timestamp>) -> Option<Ends> {
    let moments: Vec<_> = certificates.iter().filter_map(|cert| certificate::not_after(cert)).collect();
    Some(Ends { first: *moments.iter().min()?, needed: *needed(&moments)? })
}

fn config(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
    cert: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<RootCertStore>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
) -> Result<ServerConfig, TlsProblem> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(TlsFile::Key, &options.key, &e))?;
    let builder = match (clients, &options.client_ca) {
        (Some(clients), Some(client_ca)) => {
            // With lists given, a certificate that no list covers is refused.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider)
                .with_crls(revoked)
                .build()
                .map_err(|error| match (&error, &options.client_crl) {
                    (VerifierBuilderError::InvalidCrl(_), Some(path)) => {
                        unusable(TlsFile::ClientCrl, path, &error)
                    }
                    _ => unusable(TlsFile::ClientCa, client_ca, &error),
                })?;
            builder.with_client_cert_verifier(NamedClients::among(verifier, &options.allowed_clients))
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(cert, key)
        // A key that does not fit the certificate, for example.
        .map_err(|e| unusable(TlsFile::Key, &options.key, &e))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A resumed session would not show its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn roots(path: &Path, certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsProblem> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(|e| unusable(TlsFile::ClientCa, path, &e))?;
    }
    Ok(roots)
}

/// All of a kind that a PEM file has: at least one.
fn items<T: PemObject>(file: TlsFile, path: &Path) -> Result<Vec<T>, TlsProblem> {
    let pem = content(file, path)?;
    let items: Vec<_> =
        T::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|e| unusable(file, path, &e))?;
    if items.is_empty() {
        return Err(unusable(file, path, &"it has none in PEM"));
    }
    Ok(items)
}

fn content(file: TlsFile, path: &Path) -> Result<Vec<u8>, TlsProblem> {
    fs::read(path).map_err(|source| TlsProblem::Unreadable { file, path: path.to_owned(), source })
}

fn unusable(file: TlsFile, path: &Path, why: &dyn fmt::Display) -> TlsProblem {
    TlsProblem::Unusable { file, path: path.to_owned(), why: why.to_string() }
}
