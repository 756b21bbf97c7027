//! Access tokens by OAuth 2's client credentials.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};

use super::channels::pem;
use crate::config::{Config, Oauth};
use crate::error::{Error, Result, with_causes};

/// A token and what is said about it are far below this.
const LARGEST_ANSWER: usize = 1 << 20;
/// How long the token service may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long a token is kept that does not say how long it lives.
const UNSAID: Duration = Duration::from_secs(60);
/// A token is renewed this long before it ends, or at three quarters of its life.
const EARLY: Duration = Duration::from_secs(30);

/// Where tokens come from; keeps the last one.
pub(super) struct Tokens {
    oauth: Oauth,
    http: reqwest::Client,
    kept: Mutex<Option<Token>>,
    /// Held while a token is fetched: everybody else waits for that one, and shares its failure.
    fetching: tokio::sync::Mutex<Option<Failure>>,
}

/// A request that brought no token.
#[derive(Clone)]
struct Failure {
    at: Instant,
    reason: String,
    transient: bool,
}

#[derive(Clone)]
struct Token {
    header: MetadataValue<Ascii>,
    fetched: Instant,
    until: Instant,
}

/// An answer of the token service.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    /// Some services write the number as a text.
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("oauth", &self.oauth).finish_non_exhaustive()
    }
}

impl Tokens {
    pub(super) fn new(config: &Config) -> Result<Option<Self>> {
        let Some(oauth) = config.oauth.clone() else { return Ok(None) };
        let wrong = |error: reqwest::Error| Error::config("LHC_OAUTH_ACCESS_TOKEN_URL", with_causes(&error));
        let mut http = reqwest::Client::builder().timeout(DEADLINE);
        if let Some(path) = &config.ca_cert {
            // The token service often stands beside the server, with a certificate of the same authority.
            let certificates = reqwest::Certificate::from_pem_bundle(&pem("LHC_CA_CERT", path)?);
            for certificate in certificates.map_err(wrong)? {
                http = http.add_root_certificate(certificate);
            }
        }
        let http = http.build().map_err(wrong)?;
        let url = reqwest::Url::parse(&oauth.token_url)
            .map_err(|error| Error::config("LHC_OAUTH_ACCESS_TOKEN_URL", error.to_string()))?;
        if is_in_clear(&url) {
            tracing::warn!(
                host = url.host_str().unwrap_or_default(),
                "the client secret goes over the network in clear: LHC_OAUTH_ACCESS_TOKEN_URL is not https"
            );
        }
        Ok(Some(Self { oauth, http, kept: Mutex::default(), fetching: tokio::sync::Mutex::new(None) }))
    }

    /// The header of a token that is good now.
    pub(super) async fn header(&self) -> Result<MetadataValue<Ascii>> {
        if let Some(header) = self.current() {
            return Ok(header);
        }
        let came = Instant::now();
        let mut last = self.fetching.lock().await;
        if let Some(header) = self.current() {
            return Ok(header);
        }
        let failure = match last.take() {
            Some(failure) if failure.at > came => failure,
            _ => match self.fetch().await {
                Ok(token) => {
                    let header = token.header.clone();
                    *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
                    return Ok(header);
                }
                Err((reason, transient)) => Failure { at: Instant::now(), reason, transient },
            },
        };
        *last = Some(failure.clone());
        let Failure { reason, transient, .. } = failure;
        Err(Error::Token { url: self.oauth.token_url.clone(), reason, transient })
    }

    /// The server refused a token that a call used: it is not used again. One that came later stays.
    pub(super) fn refused(&self, asked: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|token| token.fetched <= asked) {
            *kept = None;
        }
    }

    fn current(&self) -> Option<MetadataValue<Ascii>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|token| Instant::now() < token.until).map(|token| token.header.clone())
    }

    /// A new token, or why there is none and whether there may be one later.
    async fn fetch(&self) -> Result<Token, (String, bool)> {
        let asked = Instant::now();
        let (id, secret) = (form_text(&self.oauth.client_id), form_text(self.oauth.client_secret.reveal()));
        let answer = self
            .http
            .post(&self.oauth.token_url)
            .basic_auth(id, Some(secret))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body("grant_type=client_credentials")
            .send()
            .await
            .map_err(|error| (with_causes(&error.without_url()), true))?;
        let status = answer.status();
        let mut answer = answer;
        let mut body = Vec::new();
        let broke = |error: reqwest::Error| (with_causes(&error.without_url()), true);
        while let Some(chunk) = answer.chunk().await.map_err(broke)? {
            if body.len() + chunk.len() > LARGEST_ANSWER {
                return Err((format!("{status}: the answer is longer than {LARGEST_ANSWER} bytes"), true));
            }
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            let words: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            let transient = status.is_server_error() || status.as_u16() == 429 || status.as_u16() == 408;
            return Err((format!("{status}: {words}"), transient));
        }
        // The body is not shown: it may hold the token.
        let granted: Granted =
            serde_json::from_slice(&body).map_err(|_| ("the answer has no access_token".into(), false))?;
        let mut header = MetadataValue::try_from(format!("Bearer {}", granted.access_token))
            .map_err(|_| ("the token cannot be sent in a header".into(), false))?;
        header.set_sensitive(true);
        let life = granted.expires_in.as_ref().and_then(seconds).unwrap_or(UNSAID);
        Ok(Token { header, fetched: asked, until: asked + kept_for(life) })
    }
}

/// Whether what is sent there can be read on its way. To this machine itself there is no way.
fn is_in_clear(url: &reqwest::Url) -> bool {
    let name = url.host_str().unwrap_or_default();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    let here = address.map_or_else(|_| is_localhost(name), |address| address.is_loopback());
    url.scheme() != "https" && !here
}

fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

fn seconds(value: &serde_json::Value) -> Option<Duration> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(number.min(86_400.0 * 365.0)).ok()
}

/// How long a token of this life is used.
fn kept_for(life: Duration) -> Duration {
    life.saturating_sub(EARLY.min(life / 4))
}

/// A text as form bodies have it: OAuth wants id and secret so, inside the Basic header.
fn form_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => out.push(byte.into()),
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_end() {
        let kept = |life: f64| kept_for(Duration::from_secs_f64(life)).as_secs_f64();
        assert_eq!((kept(300.0), kept(120.0), kept(4.0), kept(0.0)), (270.0, 90.0, 3.0, 0.0));
    }

    #[test]
    fn a_secret_is_in_clear_on_the_network_and_not_within_the_machine() {
        let clear = |url: &str| is_in_clear(&reqwest::Url::parse(url).unwrap());
        for url in ["http://id.example/token", "http://10.0.0.7:8080/token", "http://localhost.example/token"]
        {
            assert!(clear(url), "{url}");
        }
        for url in [
            "https://id.example/token",
            "http://localhost:8888/token",
            "http://127.0.0.1/token",
            "http://127.8.0.1/token",
            "http://[::1]:1/token",
            "http://id.localhost/token",
        ] {
            assert!(!clear(url), "{url}");
        }
    }

    #[test]
    fn lives_are_read_as_numbers_and_texts() {
        let life = |json: &str| seconds(&serde_json::from_str(json).unwrap());
        assert_eq!(life("300"), Some(Duration::from_secs(300)));
        assert_eq!(life("\" 300 \""), Some(Duration::from_secs(300)));
        assert_eq!((life("-1"), life("\"soon\""), life("null")), (None, None, None));
        assert!(life("1e300").is_some());
    }

    #[test]
    fn ids_and_secrets_are_written_as_oauth_wants_them() {
        assert_eq!(form_text("comfy-worker.1_x*"), "comfy-worker.1_x*");
        assert_eq!(form_text("a b:c%ä"), "a+b%3Ac%25%C3%A4");
    }
}
