//! Clients that did not get past the handshake, and certificates that end: counted, and told at a bounded rate.

use std::error::Error as _;
use std::io;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustls::CertificateError;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::Tls;
use super::tls::{TlsFile, WrongName};
use crate::clock::Clock;
use crate::slots::Peer;
use crate::telemetry::Sparingly;

/// The least time between two warnings about clients that were refused: anybody can cause them.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// How often files are looked at even though nobody connects.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// How long before its end a certificate is warned about: two weeks are enough for people ...
const WARN_BEFORE: Duration = Duration::from_hours(14 * 24);
/// ... who are reminded every day.
const REMIND_EVERY: Duration = Duration::from_hours(24);

/// Why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
pub(super) enum Reason {
    /// It showed no certificate.
    no_certificate,
    /// Its certificate is of another authority.
    unknown_authority,
    /// Its certificate is revoked, or no list tells whether it is.
    revoked,
    /// Its certificate is not good any more, or not yet.
    expired,
    /// Its certificate has another name.
    wrong_name,
    /// Something else is wrong with its certificate.
    bad_certificate,
    /// It did not finish in time.
    too_slow,
    /// Others needed its place.
    crowded_out,
    /// It went away without a word: the port was probed.
    went_away,
    /// It does not speak TLS as we do, or does not like our certificate.
    protocol,
}

impl Reason {
    /// Why the handshake failed.
    pub(super) fn of(error: &io::Error) -> Self {
        use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(NoCertificatesPresented) => Self::no_certificate,
            Some(InvalidCertificate(why)) => Self::of_certificate(why),
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
}

impl FileLabel {
    fn of(file: TlsFile) -> Self {
        match file {
            TlsFile::Cert | TlsFile::Key => Self::certificate,
            TlsFile::ClientCa => Self::client_authority,
            TlsFile::ClientCrl => Self::client_revocation_list,
        }
    }
}

/// Clients that were refused, and when certificates end. Clones count together.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals {
    counts: Family<Labels, Counter>,
    ends: Family<OfFile, Gauge<i64, AtomicI64>>,
    warnings: Arc<Mutex<Sparingly>>,
}

impl Refusals {
    /// Registers `ebbtide_tls_clients_refused_total` and `ebbtide_tls_not_after_timestamp_seconds`.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_tls_clients_refused",
            "Clients that did not get past the TLS handshake, by reason",
            self.counts.clone(),
        );
        registry.register_with_unit(
            "ebbtide_tls_not_after_timestamp",
            "Unix time of the first end of what each TLS file has: a certificate, an authority, a revocation list",
            Unit::Seconds,
            self.ends.clone(),
        );
    }

    /// A client was refused.
    pub(super) fn note(&self, peer: Peer, reason: Reason, why: &str) {
        self.counts.get_or_create(&Labels { reason }).inc();
        // Every probe of the port ends like that.
        if reason == Reason::went_away {
            debug!(%peer, why, "a client went away during its handshake");
            return;
        }
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(untold) = warnings.tell(WARN_EVERY) {
            warn!(%peer, ?reason, why, untold, "a client was refused");
        }
    }

    /// Keeps certificates up to date with their files and says in good time that one ends. Never completes.
    pub(super) async fn watch_certificates(&self, tls: Option<&Tls>, clock: &Clock) {
        let Some(tls) = tls else { return std::future::pending().await };
        let mut warned = Sparingly::default();
        loop {
            let now = clock.wall();
            let mut ending = Vec::new();
            for (file, end) in tls.ends() {
                self.ends.get_or_create(&OfFile { file: FileLabel::of(file) }).set(end.as_second());
                if ends_soon(end, now) {
                    ending.push((file, end));
                }
            }
            if ending.is_empty() {
                warned = Sparingly::default();
            } else if warned.tell(REMIND_EVERY).is_some() {
                for (file, end) in ending {
                    warn!(%file, %end, "what is used for TLS ends soon, or has ended");
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

fn ends_soon(end: Timestamp, now: Timestamp) -> bool {
    crate::clock::elapsed(now, end) < WARN_BEFORE
}
