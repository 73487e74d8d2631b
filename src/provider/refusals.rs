//! Clients that failed the handshake, and certificates that expire: counted, and logged at a bounded rate.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustls::{AlertDescription, CertificateError};
use tokio::time::sleep;

use super::Tls;
use super::tls::{TlsFile, WrongName, is_near};
use crate::clock::Clock;
use crate::slots::Peer;
use crate::telemetry::RateLimit;

/// Least time between two warnings about refused clients: anybody can cause them.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// How often certificate files are checked even if nobody connects.
const CHECK_EVERY: Duration = Duration::from_mins(1);
/// How often a certificate that expires soon is warned about.
const REMIND_EVERY: Duration = Duration::from_hours(24);

/// Why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
pub(super) enum Reason {
    /// It showed no certificate.
    no_certificate,
    /// Its certificate is of another authority.
    unknown_authority,
    /// Its certificate is revoked, or no revocation list covers it.
    revoked,
    /// Its certificate has expired or is not valid yet.
    expired,
    /// Its certificate has none of the names of `--allowed-client`.
    wrong_name,
    /// Something else is wrong with its certificate.
    bad_certificate,
    /// It did not finish the handshake in time.
    too_slow,
    /// Newer connections needed its place.
    crowded_out,
    /// It went away without a word: the port was probed.
    went_away,
    /// It does not take our certificate.
    refuses_ours,
    /// It speaks no TLS that we do.
    protocol,
}

impl Reason {
    /// Why the handshake failed.
    pub(super) fn of(error: &io::Error) -> Self {
        use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented};
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(NoCertificatesPresented) => Self::no_certificate,
            Some(InvalidCertificate(why)) => Self::of_certificate(why),
            Some(AlertReceived(alert)) if is_about_certificate(*alert) => Self::refuses_ours,
            Some(_) => Self::protocol,
            None => Self::went_away,
        }
    }

    fn of_certificate(why: &CertificateError) -> Self {
        match why {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::unknown_authority,
            CertificateError::Revoked | CertificateError::UnknownRevocationStatus => Self::revoked,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::expired,
            CertificateError::Other(other) if other.source().is_some_and(|e| e.is::<WrongName>()) => {
                Self::wrong_name
            }
            _ => Self::bad_certificate,
        }
    }
}

/// Whether the client says by this that it rejects our certificate. Go says bad_certificate for any defect; others say decrypt_error if
/// its authority has the name of one that they know, and another key.
fn is_about_certificate(alert: AlertDescription) -> bool {
    use AlertDescription::{
        BadCertificate, CertificateExpired, CertificateRevoked, CertificateUnknown, DecryptError, UnknownCA,
        UnsupportedCertificate,
    };
    matches!(
        alert,
        BadCertificate
            | UnsupportedCertificate
            | CertificateRevoked
            | CertificateExpired
            | CertificateUnknown
            | UnknownCA
            | DecryptError
    )
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFile {
    file: FileLabel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum FileLabel {
    certificate,
    client_authority,
    client_revocation_list,
    expander_certificate,
}

impl FileLabel {
    fn of(tls: &Tls, file: TlsFile) -> Self {
        match file {
            TlsFile::Cert | TlsFile::Key if tls.is_for_expander() => Self::expander_certificate,
            TlsFile::Cert | TlsFile::Key => Self::certificate,
            TlsFile::ClientCa => Self::client_authority,
            TlsFile::ClientCrl => Self::client_revocation_list,
        }
    }
}

/// Refused clients, and when certificates expire. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct RefusedClients {
    counts: Family<Labels, Counter>,
    ends: Family<OfFile, Gauge<i64, AtomicI64>>,
    warnings: Arc<Mutex<RateLimit>>,
    /// Files that end soon, and when that was told: both addresses may show one certificate.
    ending: Arc<Mutex<BTreeMap<PathBuf, RateLimit>>>,
}

impl RefusedClients {
    /// Registers `ebbtide_tls_clients_refused_total` and `ebbtide_tls_not_after_timestamp_seconds`.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_tls_clients_refused",
            "Clients that did not get past the TLS handshake, by reason",
            self.counts.clone(),
        );
        registry.register_with_unit(
            "ebbtide_tls_not_after_timestamp",
            "Unix time at which each TLS file expires: the server's own certificate, the last of the authorities, the first of the \
            revocation lists",
            Unit::Seconds,
            self.ends.clone(),
        );
    }

    /// A client was refused.
    pub(super) fn note(&self, peer: Peer, reason: Reason, why: &str) {
        self.counts.get_or_create(&Labels { reason }).inc();
        // Every TCP probe of the port ends like this.
        if reason == Reason::went_away {
            tracing::debug!(%peer, why, "a client went away during its handshake");
            return;
        }
        let mut warnings = self.warnings.lock();
        if let Some(suppressed) = warnings.allow(WARN_EVERY) {
            tracing::warn!(%peer, ?reason, why, suppressed, "a client was refused and disconnected; `suppressed` more since the last such line");
        }
    }

    /// Rereads changed certificate files, and warns before one expires. Never completes.
    pub(super) async fn watch_certificates(&self, tls: Option<&Tls>, clock: &Clock) -> Infallible {
        let Some(tls) = tls else { return std::future::pending().await };
        loop {
            let now = clock.wall();
            for (file, ends) in tls.ends() {
                let needed = ends.needed.as_second();
                self.ends.get_or_create(&OfFile { file: FileLabel::of(tls, file) }).set(needed);
                let end = ends.first;
                let Some(path) = tls.path(file) else { continue };
                let mut ending = self.ending.lock();
                if !is_near(file, end, now) {
                    ending.remove(path);
                } else if ending.entry(path.to_owned()).or_default().allow(REMIND_EVERY).is_some() {
                    let path = path.display().to_string();
                    tracing::warn!(%file, path, %end, "a TLS certificate or revocation list expires soon or has expired: replace the file, which is read again without a restart");
                }
            }
            sleep(CHECK_EVERY).await;
        }
    }
}
