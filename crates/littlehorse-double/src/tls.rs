//! Certificates of hosts and clients.

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The certificates of a host, as PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Its own, followed by those it was signed with.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Who signs the certificates of clients; without it clients need none.
    pub clients: Option<String>,
}

impl Tls {
    pub(crate) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(signers) => {
                let mut roots = RootCertStore::empty();
                for signer in certificates(signers)? {
                    roots.add(signer).map_err(io::Error::other)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(io::Error::other)?)
            }
        };
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(io::Error::other)?;
        let mut config =
            builder.with_single_cert(certificates(&self.certificate)?, key).map_err(io::Error::other)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(pem: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(io::Error::other)
}
