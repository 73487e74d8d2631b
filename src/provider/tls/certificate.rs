//! What certificates and revocation lists say: names, expiry, and what a certificate is for.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

/// The names a certificate is for: its alternative names (DNS, e-mail, URI, IP address) and the common names of its subject.
pub(super) fn names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative =
        alternative.iter().flat_map(|names| &names.value.general_names).filter_map(alternative_name);
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    alternative.chain(common.map(str::to_owned)).collect()
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some((*name).to_owned())
        }
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let v6 = <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
            v4.or(v6).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

/// The last moment a certificate is good for.
pub(super) fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// When the next revocation list is due, if this one says so.
pub(super) fn next_update(der: &[u8]) -> Option<Timestamp> {
    let (_, list) = CertificateRevocationList::from_der(der).ok()?;
    Timestamp::from_second(list.next_update()?.timestamp()).ok()
}

/// Why a certificate cannot do its work.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It is not X.509.
    #[error("{0} is damaged")]
    Damaged(String),
    /// Its time is over.
    #[error("{0} expired at {1}")]
    Expired(String, Timestamp),
    /// Its time has not come, or a clock is wrong.
    #[error("{0} is not valid before {1}")]
    TooEarly(String, Timestamp),
    /// Its extended key usage leaves servers out.
    #[error("{0} is not for servers: its extended key usage lacks serverAuth")]
    NotForServers(String),
    /// It may not sign others.
    #[error("{0} is not an authority's: {1}")]
    NoAuthority(String, &'static str),
}

/// Whether clients can take a server that shows this. Its intermediates are not held to that: an expired cross-signed one may stand
/// in a chain that works without it.
pub(super) fn serves(der: &CertificateDer<'_>, now: Timestamp) -> Result<(), Unfit> {
    let certificate = parse(der)?;
    // RFC 5280, section 4.2.1.12: without the extension a key is for everything.
    let usage = certificate.extended_key_usage().ok().flatten();
    if usage.is_some_and(|usage| !usage.value.server_auth && !usage.value.any) {
        return Err(Unfit::NotForServers(name(&certificate)));
    }
    is_valid(&certificate, now)
}

/// Whether these can vouch for clients: all are authorities, and one at least is valid. Beside a new authority the old one may stay
/// until its last client is gone.
pub(super) fn are_authorities(certificates: &[CertificateDer<'_>], now: Timestamp) -> Result<(), Unfit> {
    let mut valid = Vec::new();
    for der in certificates {
        let certificate = parse(der)?;
        if !certificate.is_ca() {
            return Err(Unfit::NoAuthority(name(&certificate), "its basic constraints do not say CA"));
        }
        let usage = certificate.key_usage().ok().flatten();
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(Unfit::NoAuthority(name(&certificate), "its key usage lacks keyCertSign"));
        }
        valid.push(is_valid(&certificate, now));
    }
    let is_one_valid = valid.iter().any(Result::is_ok);
    if is_one_valid { Ok(()) } else { valid.into_iter().collect() }
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Unfit> {
    let parsed = X509Certificate::from_der(der);
    parsed.map(|(_, certificate)| certificate).map_err(|e| Unfit::Damaged(format!("a certificate ({e})")))
}

fn is_valid(certificate: &X509Certificate<'_>, now: Timestamp) -> Result<(), Unfit> {
    let validity = certificate.validity();
    let moment = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    match (moment(validity.not_before), moment(validity.not_after)) {
        (_, Some(end)) if end < now => Err(Unfit::Expired(name(certificate), end)),
        (Some(begin), _) if begin > now => Err(Unfit::TooEarly(name(certificate), begin)),
        _ => Ok(()),
    }
}

/// The certificate by its subject, of which a chain or a bundle has one each.
fn name(certificate: &X509Certificate<'_>) -> String {
    let subject = certificate.subject().to_string();
    if subject.is_empty() { "the certificate".to_owned() } else { format!("the certificate of {subject:?}") }
}
