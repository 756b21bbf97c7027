//! Where the database is and how it is spoken to.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::silent;
use crate::{Error, Result};

/// How long it may take to reach the server.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// Address, credentials and TLS. The password is in `config` only, whose `Debug` hides it.
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
}

/// What `sslmode` asks for, beyond whether there is TLS at all.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trust {
    verify: bool,
    root: Option<String>,
}

impl Address {
    /// Understands `postgres://user:password@host:port/database?sslmode=…&sslrootcert=…`. As with PostgreSQL's own
    /// programs `prefer` (the default) and `require` encrypt without asking who the server is; `verify-ca` and
    /// `verify-full` check its certificate and name against the system's authorities or `sslrootcert`.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (url, trust) = trust(url);
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            silent(format!("the address of the database is not understood: {}", super::fault::words(&error)))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("remuda");
        }
        config
            .connect_timeout(CONNECT)
            .tcp_user_timeout(Duration::from_secs(10))
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3);
        Ok(Self { config, tls: MakeRustlsConnect::new(client(&trust)?) })
    }
}

/// Takes out what the driver does not know: the stricter modes and the file of authorities.
fn trust(url: &str) -> (String, Trust) {
    let mut trust = Trust::default();
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), trust) };
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", "verify-ca" | "verify-full")) => {
                trust.verify = true;
                kept.push("sslmode=require");
            }
            Some(("sslmode", "allow")) => kept.push("sslmode=prefer"),
            Some(("sslrootcert", path)) => {
                trust.verify = true;
                trust.root = (path != "system").then(|| path.replace("%2F", "/"));
            }
            // Known to other drivers; a pooler or the server itself is told nothing of them.
            Some(("pgbouncer" | "connection_limit" | "pool_timeout" | "schema", _)) => {}
            _ => kept.push(pair),
        }
    }
    let url = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    (url, trust)
}

fn client(trust: &Trust) -> Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let wrong = |error: rustls::Error| silent(format!("TLS cannot be set up: {error}"));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?;
    if !trust.verify {
        let anyone = Arc::new(Anyone { provider });
        return Ok(builder.dangerous().with_custom_certificate_verifier(anyone).with_no_client_auth());
    }
    let Some(path) = &trust.root else {
        return Ok(builder.with_platform_verifier().map_err(wrong)?.with_no_client_auth());
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(path)?), provider)
        .build()
        .map_err(|error| silent(format!("the certificates in {path} cannot be used: {error}")))?;
    Ok(builder.with_webpki_verifier(verifier).with_no_client_auth())
}

fn roots(path: &str) -> Result<RootCertStore> {
    let wrong = |why: String| -> Error { silent(format!("cannot read the certificates in {path}: {why}")) };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        store.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(store)
}

/// Encrypts with whoever answers, as `sslmode=prefer` and `require` promise no more.
#[derive(Debug)]
struct Anyone {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::config::SslMode;

    #[test]
    fn modes_of_other_programs_are_understood() {
        let (url, trust) = trust("postgres://u:p@h/d?sslmode=verify-full&connect_timeout=3&pgbouncer=true");
        assert_eq!(url, "postgres://u:p@h/d?sslmode=require&connect_timeout=3");
        assert_eq!(trust, Trust { verify: true, root: None });
        let address = Address::parse("postgres://u@h/d").unwrap();
        assert_eq!(address.config.get_ssl_mode(), SslMode::Prefer);
        assert_eq!(address.config.get_application_name(), Some("remuda"));
    }

    #[test]
    fn a_wrong_address_does_not_show_its_password() {
        for url in ["postgres://u:s3cret@h:port/d", "postgres://u:s3cret@h/d?sslmode=sometimes"] {
            let error = Address::parse(url).map(|_| ()).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        }
    }
}
