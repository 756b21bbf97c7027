//! One connection per host, made when it is first needed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use super::Host;
use crate::config::{Config, Protocol};
use crate::error::{Error, Result, with_causes};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// The connections of a client. A connection that breaks is made again by the next call.
#[derive(Debug)]
pub(super) struct Channels {
    tls: Option<ClientTlsConfig>,
    keepalive: Duration,
    keepalive_timeout: Duration,
    open: Mutex<HashMap<Host, Channel>>,
}

impl Channels {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let channels = Self {
            tls: tls(config)?,
            keepalive: config.keepalive,
            keepalive_timeout: config.keepalive_timeout,
            open: Mutex::default(),
        };
        // Says now what is wrong with address and certificates.
        channels.endpoint(&Host { name: config.host.clone(), port: config.port })?;
        Ok(channels)
    }

    pub(super) fn to(&self, host: &Host) -> Result<Channel> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = open.get(host) {
            return Ok(channel.clone());
        }
        let channel = self.endpoint(host)?.connect_lazy();
        open.insert(host.clone(), channel.clone());
        Ok(channel)
    }

    /// The hosts that connections were made to.
    pub(super) fn known(&self) -> Vec<Host> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Lets go of a connection: the next call makes a new one.
    pub(super) fn forget(&self, host: &Host) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(host);
    }

    fn endpoint(&self, host: &Host) -> Result<Endpoint> {
        let wrong = |reason: String| Error::config("LHC_API_HOST", format!("{host}: {reason}"));
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        // An IPv6 address has colons of its own.
        let authority = match host.name.contains(':') && !host.name.starts_with('[') {
            true => format!("[{}]:{}", host.name, host.port),
            false => host.to_string(),
        };
        let uri: Uri =
            format!("{scheme}://{authority}").parse().map_err(|_| wrong("is not an address".into()))?;
        let endpoint = Endpoint::from(uri)
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.keepalive)
            .keep_alive_timeout(self.keepalive_timeout)
            .keep_alive_while_idle(true);
        match &self.tls {
            None => Ok(endpoint),
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| {
                Error::config("LHC_API_PROTOCOL", format!("TLS cannot be set up: {}", with_causes(&error)))
            }),
        }
    }
}

fn tls(config: &Config) -> Result<Option<ClientTlsConfig>> {
    if config.protocol == Protocol::Plaintext {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new().timeout(CONNECT);
    tls = match &config.ca_cert {
        Some(path) => tls.ca_certificate(Certificate::from_pem(pem("LHC_CA_CERT", path)?)),
        None => tls.with_native_roots(),
    };
    if let Some(identity) = &config.identity {
        let (cert, key) = (pem("LHC_CLIENT_CERT", &identity.cert)?, pem("LHC_CLIENT_KEY", &identity.key)?);
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    Ok(Some(tls))
}

/// Reads a PEM file. One without any PEM block would otherwise be taken for an empty list, and trust nothing.
pub(super) fn pem(name: &str, path: &Path) -> Result<Vec<u8>> {
    let wrong = |reason: String| Error::config(name, format!("{}: {reason}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let begins = b"-----BEGIN ";
    match bytes.windows(begins.len()).any(|window| window == begins) {
        true => Ok(bytes),
        false => Err(wrong("is not a PEM file".into())),
    }
}
