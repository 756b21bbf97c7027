//! The handle to one ComfyUI, its settings, and what it knows of the server.

mod call;

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use tokio::sync::Mutex;
use url::Url;

use crate::error::{Error, Result};
use crate::limits::{Limits, Route, Turns};
use crate::tls;
use crate::version::Capabilities;

pub(crate) use call::{Call, excerpt, text_of};

/// Settings of a [`Client`].
///
/// ```
/// use comfyui::Client;
/// use std::time::Duration;
///
/// let client = Client::builder("http://127.0.0.1:8188")
///     .timeout(Duration::from_secs(10))
///     .bearer("secret of the proxy in front")
///     .build()?;
/// assert_eq!(client.url(), "http://127.0.0.1:8188");
/// # Ok::<(), comfyui::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    url: String,
    timeout: Duration,
    connect_timeout: Duration,
    retries: usize,
    headers: HeaderMap,
    bad_header: Option<String>,
    trusted: Vec<u8>,
    limits: Limits,
}

impl ClientBuilder {
    /// How long one request may take, and how long a transfer may stand still. Default 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long connecting may take. Default 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How often a call that is safe to repeat is repeated after a failed connection or a 5xx. Default 3.
    #[must_use]
    pub fn retries(mut self, retries: usize) -> Self {
        self.retries = retries;
        self
    }

    /// A header sent with every request and with the websocket handshake, for a proxy in front of ComfyUI.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true);
                self.headers.insert(name, value);
            }
            _ => self.bad_header = Some(name.to_owned()),
        }
        self
    }

    /// `Authorization: Bearer …`, as [`ClientBuilder::header`].
    #[must_use]
    pub fn bearer(self, token: &str) -> Self {
        let value = format!("Bearer {token}");
        self.header("authorization", &value)
    }

    /// Trusts the certificates of this PEM text, beside those that the machine trusts: for a proxy with its own authority.
    #[must_use]
    pub fn trust(mut self, pem: &[u8]) -> Self {
        self.trusted.extend_from_slice(pem);
        self.trusted.push(b'\n');
        self
    }

    /// How much the server may send. What is larger ends in [`Error::TooLarge`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The client. Opens no connection yet.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] when the address is not http or https, a header cannot be sent, or a certificate not read.
    pub fn build(self) -> Result<Client> {
        let invalid = |reason: String| Error::InvalidUrl { url: self.url.clone(), reason };
        if let Some(name) = &self.bad_header {
            return Err(invalid(format!("header {name:?} cannot be sent")));
        }
        // A bare `host:port` is how ComfyUI prints its address.
        let text = if self.url.contains("://") { self.url.clone() } else { format!("http://{}", self.url) };
        let mut base = Url::parse(&text).map_err(|error| invalid(error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(invalid("only http and https are spoken".into()));
        }
        if base.host_str().is_none() {
            return Err(invalid("no host".into()));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(Error::InvalidUrl {
                url: base.host_str().unwrap_or_default().to_owned(),
                reason: "credentials in the address would end up in logs: send them as a header".into(),
            });
        }
        base.set_query(None);
        base.set_fragment(None);
        let extra = match self.trusted.as_slice() {
            [] => Vec::new(),
            pem => tls::certificates(pem).map_err(&invalid)?,
        };
        let tls = tls::config(extra, base.scheme() == "https").map_err(|error| invalid(error.to_string()))?;
        let common = || {
            reqwest::Client::builder()
                .tls_backend_preconfigured(rustls::ClientConfig::clone(&tls))
                .connect_timeout(self.connect_timeout)
                .redirect(same_host_only())
                .default_headers(self.headers.clone())
                .user_agent(concat!("comfyui-rs/", env!("CARGO_PKG_VERSION")))
        };
        // A download may take hours, but it may not stand still.
        let http = common().read_timeout(self.timeout).build().map_err(|error| invalid(error.to_string()))?;
        let upload = common().build().map_err(|error| invalid(error.to_string()))?;
        Ok(Client {
            inner: Arc::new(Inner {
                shown_url: base.as_str().trim_end_matches('/').to_owned(),
                base,
                http,
                upload,
                tls,
                headers: self.headers,
                timeout: self.timeout,
                limits: self.limits,
                known: StdMutex::default(),
                detecting: Mutex::default(),
            }),
            retries: self.retries,
            turns: Turns::default(),
        })
    }
}

struct Inner {
    base: Url,
    shown_url: String,
    http: reqwest::Client,
    /// Without the read timeout, which in reqwest also runs while a body is being sent.
    upload: reqwest::Client,
    tls: Arc<rustls::ClientConfig>,
    headers: HeaderMap,
    timeout: Duration,
    limits: Limits,
    known: StdMutex<Known>,
    /// Held while the server is asked what it can do.
    detecting: Mutex<()>,
}

/// What is remembered about the server.
#[derive(Default)]
struct Known {
    capabilities: Option<Capabilities>,
    /// Counts how often it was forgotten.
    generation: u64,
}

/// One ComfyUI, over HTTP. Cheap to clone; clones share connections.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = comfyui_sim::Simulator::start(Default::default()).await?;
/// let client = comfyui::Client::new(&sim.url())?;
/// let stats = client.system_stats().await?;
/// assert_eq!(stats.system.comfyui_version.as_deref(), Some("0.7.0"));
/// # sim.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    retries: usize,
    /// Shared by all clones.
    turns: Turns,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.inner.shown_url).finish_non_exhaustive()
    }
}

impl Client {
    /// A client with default settings.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub fn new(url: &str) -> Result<Client> {
        Client::builder(url).build()
    }

    /// A client with settings.
    #[must_use]
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            retries: 3,
            headers: HeaderMap::new(),
            bad_header: None,
            trusted: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// The server's address, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.shown_url
    }

    /// The same client for callers that have a schedule of their own: one try per call.
    pub(crate) fn without_retries(&self) -> Client {
        Client { retries: 0, ..self.clone() }
    }

    /// The same client, which counts from now on how long it waits for its turn to read large answers.
    pub(crate) fn counting_waits(&self) -> Client {
        Client { turns: self.turns.counted_anew(), ..self.clone() }
    }

    /// How long it has waited for its turn.
    pub(crate) fn waited(&self) -> Duration {
        self.turns.waited()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.inner.tls)
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.inner.headers
    }

    /// The address of a route: percent-encodes each segment, so an id with a slash stays one segment.
    pub(crate) fn endpoint(&self, segments: &[&str]) -> Url {
        let mut url = self.inner.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// What this server can do. Asked once, then remembered until [`Client::forget_capabilities`].
    ///
    /// # Errors
    /// When `/system_stats` cannot be had.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        if let Some(capabilities) = self.known().capabilities {
            return Ok(capabilities);
        }
        // Concurrent callers share one detection.
        let _turn = self.inner.detecting.lock().await;
        let generation = {
            let known = self.known();
            if let Some(capabilities) = known.capabilities {
                return Ok(capabilities);
            }
            known.generation
        };
        let stats = self.system_stats().await?;
        let version = stats.system.comfyui_version.as_deref().and_then(|text| text.parse().ok());
        let features = self.features().await?;
        let has_jobs = self.has_jobs_route().await?;
        let max_upload = features.as_ref().and_then(|features| features.max_upload_size);
        let capabilities = Capabilities::derive(version, features.is_some(), has_jobs, max_upload);
        tracing::debug!(url = self.url(), ?capabilities, "capabilities found out");
        let mut known = self.known();
        // What was found out before it was forgotten may be another server's.
        if known.generation == generation {
            known.capabilities = Some(capabilities);
        }
        Ok(capabilities)
    }

    /// Forgets what was found out, because another process may answer now. A [`crate::Session`] does it after each reconnect.
    pub fn forget_capabilities(&self) {
        let mut known = self.known();
        known.capabilities = None;
        known.generation += 1;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, segments: &[&str]) -> Call {
        self.call(Method::GET, segments)
    }

    pub(crate) fn post(&self, segments: &[&str]) -> Call {
        self.call(Method::POST, segments)
    }

    pub(crate) fn call(&self, method: Method, segments: &[&str]) -> Call {
        Call {
            client: self.clone(),
            method,
            url: self.endpoint(segments),
            body: None,
            range: None,
            retry: false,
            route: Route::Plain,
        }
    }

    pub(crate) fn upload_client(&self) -> &reqwest::Client {
        &self.inner.upload
    }
}

/// Headers that the caller set for this server are nobody else's business.
fn same_host_only() -> Policy {
    Policy::custom(|attempt| {
        let same = attempt.previous().first().is_some_and(|first| {
            first.host() == attempt.url().host()
                && first.port_or_known_default() == attempt.url().port_or_known_default()
        });
        if same && attempt.previous().len() <= 5 { attempt.follow() } else { attempt.stop() }
    })
}
