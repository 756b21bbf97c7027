//! One TLS configuration for requests and for the websocket.
//!
//! Without it the two would trust different certificates, and the websocket library would depend on a default that
//! some other part of the process may or may not have set.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

/// Reads the certificates of a PEM text.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("no certificate in the PEM text".into()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("not a PEM text: {error}")),
    }
}

/// Trusts what the machine trusts, and `extra`.
///
/// A machine without certificates (a container made from nothing) is no obstacle to plain HTTP, so `required` says
/// whether that is an error.
pub(crate) fn config(
    extra: Vec<CertificateDer<'static>>,
    required: bool,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> =
        match Verifier::new_with_extra_roots(extra, Arc::clone(&provider)) {
            Ok(verifier) => Arc::new(verifier),
            Err(error) if required => return Err(error),
            Err(_) => return Ok(Arc::new(nothing_trusted(provider)?)),
        };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn nothing_trusted(provider: Arc<CryptoProvider>) -> Result<ClientConfig, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth())
}
