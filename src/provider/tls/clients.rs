//! Which of the clients that the authorities have signed are let in: those of certain names.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

use super::certificate;

/// How many of a stranger's names are told, so that a log line has an end.
const NAMES_TOLD: usize = 8;

/// A certificate of the authority that is not for a client of ours.
#[derive(Debug, thiserror::Error)]
#[error("none of the certificate's names is one of --tls-client-name: {}", .0.join(", "))]
pub struct WrongName(Vec<String>);

/// Lets in whom another verifier lets in, if the certificate has one of these names.
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
