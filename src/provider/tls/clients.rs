//! Lets in only clients with certain names, of those that the authorities have signed.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

use super::certificate;

/// How many names of a refused certificate are logged.
const NAMES_TOLD: usize = 8;

/// The certificate is the authority's, but has none of the allowed names.
#[derive(Debug, thiserror::Error)]
#[error("none of the certificate's names is one of --allowed-client: {}", .0.join(", "))]
pub struct WrongName(Vec<String>);

/// Accepts what another verifier accepts, if the certificate has one of these names.
#[derive(Debug)]
pub(super) struct NamedClients {
    signed: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl NamedClients {
    /// Those of `signed` that have one of the names; all of them if there is none.
    pub(super) fn among(
        signed: Arc<dyn ClientCertVerifier>,
        names: &[String],
    ) -> Arc<dyn ClientCertVerifier> {
        if names.is_empty() { signed } else { Arc::new(Self { signed, names: names.to_vec() }) }
    }
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        let mut names = certificate::names(end_entity);
        if names.iter().any(|name| self.names.contains(name)) {
            return Ok(verified);
        }
        names.truncate(NAMES_TOLD);
        let other = OtherError(Arc::new(WrongName(names)));
        Err(Error::InvalidCertificate(CertificateError::Other(other)))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
