//! `[server]`: the API and the data directory.

use std::path::PathBuf;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Listen, Size, origin, parts, server_url};
use url::Url;

const SERVE: &[Program] = &[Program::Serve];

static LISTEN: Setting = Setting {
    name: "server.listen",
    env: &["REMUDA_LISTEN", "SERVER_HOST", "SERVER_PORT", "PORT"],
    flags: &[flag("listen", "ADDR", SERVE)],
    default: "127.0.0.1:8080",
    shape: Shape::Listen,
    help: "Address and port of the API",
    ..Setting::BASE
};

pub(in crate::config) static DATA: Setting = Setting {
    name: "server.data",
    env: &["REMUDA_DATA"],
    flags: &[flag("data", "DIR", Program::RUNNING)],
    default: "remuda-data",
    shape: Shape::Path,
    help: "Data directory: the store, files, the socket for keys, this process's identity",
    ..Setting::BASE
};

static INSECURE: Setting = Setting {
    name: "server.insecure",
    env: &["REMUDA_INSECURE"],
    flags: &[flag("insecure", "", SERVE)],
    default: "false",
    shape: Shape::Switch,
    help: "Allow listening beyond this machine while there is no API key",
    ..Setting::BASE
};

static CORS_ORIGINS: Setting = Setting {
    name: "server.cors_origins",
    env: &["REMUDA_CORS_ORIGINS"],
    flags: &[flag("cors-origin", "ORIGIN", SERVE)],
    shape: Shape::Origins,
    help: "Origins of web pages that may call the API, or `*`",
    ..Setting::BASE
};

static ALLOWED_HOSTS: Setting = Setting {
    name: "server.allowed_hosts",
    env: &["REMUDA_ALLOWED_HOSTS"],
    flags: &[flag("allowed-host", "HOST", SERVE)],
    shape: Shape::List,
    help: "Host names that requests may use besides the address listened on, while there is no API key",
    ..Setting::BASE
};

pub(super) static BODY_LIMIT: Setting = Setting {
    name: "server.body_limit",
    env: &["REMUDA_BODY_LIMIT"],
    flags: &[flag("body-limit", "SIZE", SERVE)],
    default: "32MiB",
    shape: Shape::Size,
    range: (1 << 10, 1 << 30),
    help: "Longest request body, except for file uploads; also the longest graph with its extra_data, as ComfyUI writes it",
    ..Setting::BASE
};

static ADVERTISE: Setting = Setting {
    name: "server.advertise",
    env: &["REMUDA_ADVERTISE"],
    flags: &[flag("advertise", "URL", SERVE)],
    shape: Shape::Url,
    help: "Address at which other servers of the same installation reach this one",
    ..Setting::BASE
};

static FRONTEND: Setting = Setting {
    name: "server.frontend",
    env: &["REMUDA_FRONTEND"],
    flags: &[flag("frontend", "DIR", SERVE)],
    shape: Shape::Path,
    help: "Folder of the Python package comfyui-frontend-package, to serve ComfyUI's own page at /",
    ..Setting::BASE
};

static LOGIN_FAILURES: Setting = Setting {
    name: "server.login_failures",
    env: &["REMUDA_LOGIN_FAILURES"],
    flags: &[flag("login-failures", "N", SERVE)],
    default: "20",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many wrong keys one address may send in a minute before each further answer is held back for 1 s",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[
    &LISTEN,
    &DATA,
    &INSECURE,
    &CORS_ORIGINS,
    &ALLOWED_HOSTS,
    &BODY_LIMIT,
    &ADVERTISE,
    &FRONTEND,
    &LOGIN_FAILURES,
];

/// The API and the data directory.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Where to listen: `REMUDA_LISTEN`, 127.0.0.1:8080.
    pub(crate) listen: Listen,
    /// The data directory: `REMUDA_DATA`, `remuda-data`.
    pub(crate) data: PathBuf,
    /// Whether to listen beyond this machine without a key: `REMUDA_INSECURE`, false.
    pub(crate) insecure: bool,
    /// Origins of web pages that may call the API: `REMUDA_CORS_ORIGINS`, none. Without a trailing slash.
    pub(crate) cors_origins: Vec<String>,
    /// Further names for this server: `REMUDA_ALLOWED_HOSTS`, none.
    pub(crate) allowed_hosts: Vec<String>,
    /// Longest request body in bytes: `REMUDA_BODY_LIMIT`, 32 MiB.
    pub(crate) body_limit: u64,
    /// Where other servers reach this one: `REMUDA_ADVERTISE`, not set.
    pub(crate) advertise: Option<Url>,
    /// The folder of ComfyUI's own page: `REMUDA_FRONTEND`, not set.
    pub(crate) frontend: Option<PathBuf>,
    /// Wrong keys of one address within a minute: `REMUDA_LOGIN_FAILURES`, 20.
    pub(crate) login_failures: u32,
}

impl Server {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let blame = |reason| from.blame(&ADVERTISE, reason);
        let advertise = match from.text(&ADVERTISE) {
            "" => None,
            text => Some(server_url(text).map_err(blame)?),
        };
        Ok(Self {
            listen: from.get(&LISTEN)?,
            data: from.get(&DATA)?,
            insecure: from.switch(&INSECURE)?,
            cors_origins: parts(from.text(&CORS_ORIGINS))
                .map(origin)
                .collect::<Result<_, _>>()
                .map_err(|reason| from.blame(&CORS_ORIGINS, reason))?,
            allowed_hosts: from.list(&ALLOWED_HOSTS)?,
            body_limit: from.get::<Size, _>(&BODY_LIMIT)?.0,
            advertise,
            login_failures: from.get(&LOGIN_FAILURES)?,
            frontend: Some(from.text(&FRONTEND)).filter(|text| !text.is_empty()).map(PathBuf::from),
        })
    }
}
