//! Settings, by the names that all LittleHorse clients use.

mod properties;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};

pub use properties::parse as parse_properties;

/// How to reach a server, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `LHC_API_HOST`, `localhost`.
    pub host: String,
    /// `LHC_API_PORT`, 2023.
    pub port: u16,
    /// `LHC_API_PROTOCOL`, `PLAINTEXT`.
    pub protocol: Protocol,
    /// `LHC_TENANT_ID`. Without it the server takes the tenant `default`.
    pub tenant: Option<String>,
    /// `LHC_CA_CERT`: a PEM file with the certificates to trust instead of the machine's.
    pub ca_cert: Option<PathBuf>,
    /// `LHC_CLIENT_CERT` and `LHC_CLIENT_KEY`: the certificate that says who we are.
    pub identity: Option<Identity>,
    /// `LHC_OAUTH_CLIENT_ID`, `LHC_OAUTH_CLIENT_SECRET` and `LHC_OAUTH_ACCESS_TOKEN_URL`.
    pub oauth: Option<Oauth>,
    /// `LHC_GRPC_KEEPALIVE_TIME_MS`, 45 s. Servers hang up on clients that ping more often than every 15 s.
    pub keepalive: Duration,
    /// `LHC_GRPC_KEEPALIVE_TIMEOUT_MS`, 5 s.
    pub keepalive_timeout: Duration,
    /// `LHC_GRPC_RESOURCE_EXHAUSTED_RETRY`, true: calls that a quota refuses are repeated when the server says.
    pub wait_for_quota: bool,
    /// How long a call may take, 30 s. The wait for a task has no limit.
    pub deadline: Duration,
    /// `LHW_TASK_WORKER_ID`, by default `worker-` and 32 random hex digits. No two processes may share one.
    pub worker_id: String,
    /// `LHW_TASK_WORKER_VERSION`, empty: free text that is kept with every attempt.
    pub worker_version: String,
    /// `LHW_NUM_WORKER_THREADS`, 8: how many tasks may run at once, in the whole process.
    pub slots: usize,
}

/// How connections are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Without encryption.
    Plaintext,
    /// With it.
    Tls,
}

/// A client certificate with its key, both as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `LHC_CLIENT_CERT`.
    pub cert: PathBuf,
    /// `LHC_CLIENT_KEY`.
    pub key: PathBuf,
}

/// The client credentials of OAuth 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oauth {
    /// `LHC_OAUTH_CLIENT_ID`.
    pub client_id: String,
    /// `LHC_OAUTH_CLIENT_SECRET`.
    pub client_secret: Secret,
    /// `LHC_OAUTH_ACCESS_TOKEN_URL`.
    pub token_url: String,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "localhost".into(),
            port: 2023,
            protocol: Protocol::Plaintext,
            tenant: None,
            ca_cert: None,
            identity: None,
            oauth: None,
            keepalive: Duration::from_secs(45),
            keepalive_timeout: Duration::from_secs(5),
            wait_for_quota: true,
            deadline: Duration::from_secs(30),
            worker_id: format!("worker-{}", uuid::Uuid::new_v4().simple()),
            worker_version: String::new(),
            slots: 8,
        }
    }
}

impl Config {
    /// From the environment of the process.
    pub fn from_env() -> Result<Self> {
        Self::read(&environment)
    }

    /// From a Java properties file; the environment wins.
    pub fn from_file(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| Error::config(&shown, error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| Error::config(&shown, "is not UTF-8"))?;
        let pairs = parse_properties(&text).map_err(|reason| Error::config(&shown, reason))?;
        Self::read(&|name| {
            // The last one counts, as in Java.
            let written = || pairs.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            Ok(environment(name)?.or_else(written))
        })
    }

    /// From anything that knows names. An empty text counts as absent.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        Self::read(&|name| Ok(lookup(name)))
    }

    fn read(lookup: &dyn Fn(&str) -> Result<Option<String>>) -> Result<Self> {
        let text = |name: &str| lookup(name).map(|value| value.filter(|value| !value.is_empty()));
        let defaults = Self::default();
        Ok(Self {
            host: text("LHC_API_HOST")?.unwrap_or(defaults.host),
            port: number(&text, "LHC_API_PORT", defaults.port, 1)?,
            protocol: protocol(text("LHC_API_PROTOCOL")?)?,
            tenant: text("LHC_TENANT_ID")?,
            ca_cert: text("LHC_CA_CERT")?.map(PathBuf::from),
            identity: identity(&text)?,
            oauth: oauth(&text)?,
            keepalive: millis(&text, "LHC_GRPC_KEEPALIVE_TIME_MS", defaults.keepalive)?,
            keepalive_timeout: millis(&text, "LHC_GRPC_KEEPALIVE_TIMEOUT_MS", defaults.keepalive_timeout)?,
            wait_for_quota: switch(&text, "LHC_GRPC_RESOURCE_EXHAUSTED_RETRY", defaults.wait_for_quota)?,
            deadline: defaults.deadline,
            worker_id: text("LHW_TASK_WORKER_ID")?.unwrap_or(defaults.worker_id),
            worker_version: text("LHW_TASK_WORKER_VERSION")?.unwrap_or(defaults.worker_version),
            slots: number(&text, "LHW_NUM_WORKER_THREADS", defaults.slots, 1)?,
        })
    }
}

type Text<'a> = dyn Fn(&str) -> Result<Option<String>> + 'a;

fn environment(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::config(name, "is not UTF-8")),
    }
}

fn protocol(value: Option<String>) -> Result<Protocol> {
    match value.as_deref().map(str::trim) {
        None => Ok(Protocol::Plaintext),
        Some(word) if word.eq_ignore_ascii_case("PLAINTEXT") => Ok(Protocol::Plaintext),
        Some(word) if word.eq_ignore_ascii_case("TLS") => Ok(Protocol::Tls),
        Some(word) => Err(Error::config(
            "LHC_API_PROTOCOL",
            format!("{word:?} is not a protocol: it is PLAINTEXT or TLS"),
        )),
    }
}

fn identity(text: &Text<'_>) -> Result<Option<Identity>> {
    match (text("LHC_CLIENT_CERT")?, text("LHC_CLIENT_KEY")?) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(Identity { cert: cert.into(), key: key.into() })),
        (Some(_), None) => Err(Error::config("LHC_CLIENT_KEY", "is missing: LHC_CLIENT_CERT is set")),
        (None, Some(_)) => Err(Error::config("LHC_CLIENT_CERT", "is missing: LHC_CLIENT_KEY is set")),
    }
}

fn oauth(text: &Text<'_>) -> Result<Option<Oauth>> {
    const NAMES: [&str; 3] = ["LHC_OAUTH_CLIENT_ID", "LHC_OAUTH_CLIENT_SECRET", "LHC_OAUTH_ACCESS_TOKEN_URL"];
    match [text(NAMES[0])?, text(NAMES[1])?, text(NAMES[2])?] {
        [None, None, None] => Ok(None),
        [Some(client_id), Some(secret), Some(token_url)] => {
            Ok(Some(Oauth { client_id, client_secret: Secret::new(secret), token_url }))
        }
        values => {
            let named = |present: bool| {
                let names = NAMES.iter().zip(&values).filter(|(_, value)| value.is_some() == present);
                names.map(|(name, _)| *name).collect::<Vec<_>>().join(" and ")
            };
            let reason = format!("missing: {} set, and OAuth needs all three", named(true));
            Err(Error::config(named(false), reason))
        }
    }
}

fn millis(text: &Text<'_>, name: &str, default: Duration) -> Result<Duration> {
    let default = u64::try_from(default.as_millis()).unwrap_or(u64::MAX);
    number(text, name, default, 1).map(Duration::from_millis)
}

fn switch(text: &Text<'_>, name: &str, default: bool) -> Result<bool> {
    match text(name)?.as_deref().map(str::trim) {
        None => Ok(default),
        Some(word) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(word) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(word) => Err(Error::config(name, format!("{word:?} is neither true nor false"))),
    }
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    text: &Text<'_>,
    name: &str,
    default: T,
    least: T,
) -> Result<T> {
    let Some(value) = text(name)? else { return Ok(default) };
    match value.trim().parse::<T>() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(Error::config(name, format!("{value:?} is not a number from {least} on, or is too large"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Config> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::from_lookup(|name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
    }

    fn refused(pairs: &[(&str, &str)]) -> String {
        from(pairs).unwrap_err().to_string()
    }

    #[test]
    fn nothing_set_means_the_defaults() {
        let config = from(&[]).unwrap();
        assert_eq!((config.host.as_str(), config.port), ("localhost", 2023));
        assert_eq!((config.protocol, config.tenant.as_deref()), (Protocol::Plaintext, None));
        assert_eq!((config.keepalive.as_millis(), config.keepalive_timeout.as_millis()), (45_000, 5_000));
        assert_eq!((config.slots, config.wait_for_quota, config.worker_version.as_str()), (8, true, ""));
        let (word, id) = config.worker_id.split_once('-').unwrap();
        assert_eq!((word, id.len()), ("worker", 32));
        assert_ne!(config.worker_id, from(&[]).unwrap().worker_id);
    }

    #[test]
    fn every_name_is_read() {
        let config = from(&[
            ("LHC_API_HOST", "lh.example"),
            ("LHC_API_PORT", "443"),
            ("LHC_API_PROTOCOL", "tls"),
            ("LHC_TENANT_ID", "acme"),
            ("LHC_CA_CERT", "/ca.pem"),
            ("LHC_CLIENT_CERT", "/me.pem"),
            ("LHC_CLIENT_KEY", "/me.key"),
            ("LHC_OAUTH_CLIENT_ID", "me"),
            ("LHC_OAUTH_CLIENT_SECRET", "s3cr3t"),
            ("LHC_OAUTH_ACCESS_TOKEN_URL", "https://id.example/token"),
            ("LHC_GRPC_KEEPALIVE_TIME_MS", "20000"),
            ("LHC_GRPC_KEEPALIVE_TIMEOUT_MS", "1000"),
            ("LHC_GRPC_RESOURCE_EXHAUSTED_RETRY", "FALSE"),
            ("LHW_TASK_WORKER_ID", "w1"),
            ("LHW_TASK_WORKER_VERSION", "1.2"),
            ("LHW_NUM_WORKER_THREADS", "3"),
        ])
        .unwrap();
        let expected = Config {
            host: "lh.example".into(),
            port: 443,
            protocol: Protocol::Tls,
            tenant: Some("acme".into()),
            ca_cert: Some("/ca.pem".into()),
            identity: Some(Identity { cert: "/me.pem".into(), key: "/me.key".into() }),
            oauth: Some(Oauth {
                client_id: "me".into(),
                client_secret: Secret::new("s3cr3t"),
                token_url: "https://id.example/token".into(),
            }),
            keepalive: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(1),
            wait_for_quota: false,
            deadline: Duration::from_secs(30),
            worker_id: "w1".into(),
            worker_version: "1.2".into(),
            slots: 3,
        };
        assert_eq!(config, expected);
        assert!(!format!("{config:?}").contains("s3cr3t"), "{config:?}");
    }

    #[test]
    fn an_empty_text_counts_as_absent() {
        let config =
            from(&[("LHC_API_HOST", ""), ("LHC_TENANT_ID", ""), ("LHC_OAUTH_CLIENT_ID", "")]).unwrap();
        assert_eq!((config.host.as_str(), config.tenant, config.oauth), ("localhost", None, None));
    }

    #[test]
    fn what_is_wrong_is_told_by_its_name() {
        assert_eq!(
            refused(&[("LHC_API_PROTOCOL", "PLAIN")]),
            "LHC_API_PROTOCOL: \"PLAIN\" is not a protocol: it is PLAINTEXT or TLS"
        );
        assert_eq!(
            refused(&[("LHC_OAUTH_CLIENT_ID", "me")]),
            "LHC_OAUTH_CLIENT_SECRET and LHC_OAUTH_ACCESS_TOKEN_URL: missing: LHC_OAUTH_CLIENT_ID set, and OAuth \
             needs all three"
        );
        assert_eq!(refused(&[("LHC_CLIENT_KEY", "k")]), "LHC_CLIENT_CERT: is missing: LHC_CLIENT_KEY is set");
        for (name, value) in [
            ("LHC_API_PORT", "0"),
            ("LHC_API_PORT", "65536"),
            ("LHW_NUM_WORKER_THREADS", "0"),
            ("LHC_GRPC_KEEPALIVE_TIME_MS", "-1"),
            ("LHC_GRPC_RESOURCE_EXHAUSTED_RETRY", "yes"),
        ] {
            let told = refused(&[(name, value)]);
            assert!(told.starts_with(&format!("{name}: {value:?} is ")), "{told}");
        }
    }

    #[test]
    fn a_file_is_read_and_its_faults_have_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.config");
        std::fs::write(&path, "# ours\nLHC_TENANT_ID: acme\nLHW_TASK_WORKER_ID=a\nLHW_TASK_WORKER_ID=b\n")
            .unwrap();
        let config = Config::from_file(&path).unwrap();
        // The last of two counts.
        assert_eq!((config.tenant.as_deref(), config.worker_id.as_str()), (Some("acme"), "b"));
        let missing = Config::from_file(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none: "), "{missing}");
    }
}
