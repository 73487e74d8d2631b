//! Names and expiry of certificates and revocation lists.

use std::net::IpAddr;

use jiff::Timestamp;
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
