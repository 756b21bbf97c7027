//! `[littlehorse]`: `remuda worker --source littlehorse`, which serves a task of a LittleHorse server.
//!
//! What begins with `LHC_` and `LHW_` has the names of LittleHorse's own clients, and may also stand in a properties file
//! as they read it; what begins with `COMFYUI_` has the names of the worker that this one replaces.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{ConfigError, Origin, Program, Resolved, Setting, Shape, Span, flag};

const WORKER: &[Program] = &[Program::Worker];

static HOST: Setting = Setting {
    name: "littlehorse.host",
    env: &["REMUDA_LITTLEHORSE_HOST", "LHC_API_HOST", "LH_HOST"],
    flags: &[flag("littlehorse", "HOST", WORKER)],
    default: "localhost",
    help: "The LittleHorse server: HOST, or HOST:PORT",
    ..Setting::BASE
};

static CONFIG: Setting = Setting {
    name: "littlehorse.config",
    env: &["REMUDA_LITTLEHORSE_CONFIG"],
    flags: &[flag("littlehorse-config", "FILE", WORKER)],
    shape: Shape::Path,
    help: "A properties file with LHC_ and LHW_ settings, as LittleHorse's own clients read it; flags, variables and \
           remuda.toml are stronger",
    ..Setting::BASE
};

static TASK_NAME: Setting = Setting {
    name: "littlehorse.task_name",
    env: &["REMUDA_LITTLEHORSE_TASK_NAME", "LHW_TASK_NAME"],
    flags: &[flag("task-name", "NAME", WORKER)],
    default: "execute-comfyui-workflow",
    shape: Shape::Name,
    help: "The TaskDef to serve",
    ..Setting::BASE
};

static OPTIONS_TASK: Setting = Setting {
    name: "littlehorse.options_task",
    env: &["REMUDA_LITTLEHORSE_OPTIONS_TASK", "LHW_OPTIONS_TASK_NAME"],
    flags: &[flag("options-task", "NAME", WORKER)],
    shape: Shape::Name,
    help: "A second TaskDef to serve, whose input `options` sets a time limit, files and a folder; not set: none",
    ..Setting::BASE
};

static SLOTS: Setting = Setting {
    name: "littlehorse.slots",
    env: &["REMUDA_LITTLEHORSE_SLOTS", "LHW_NUM_WORKER_THREADS"],
    flags: &[flag("slots", "N", WORKER)],
    shape: Shape::Number,
    range: (1, 4096),
    help: "How many tasks may run at once on all ComfyUIs of this process; not set: one for each ComfyUI",
    ..Setting::BASE
};

static OUTPUT_DIR: Setting = Setting {
    name: "littlehorse.output_dir",
    env: &["REMUDA_LITTLEHORSE_OUTPUT_DIR", "COMFYUI_OUTPUT_DIR"],
    flags: &[flag("comfyui-output-dir", "DIR", WORKER)],
    shape: Shape::Path,
    help: "ComfyUI's output folder as readers of results see it: output paths begin with it, unless --files says where outputs are delivered to",
    ..Setting::BASE
};

static POLL_INTERVAL: Setting = Setting {
    name: "littlehorse.poll_interval",
    env: &["REMUDA_LITTLEHORSE_POLL_INTERVAL", "COMFYUI_POLL_INTERVAL_SEC"],
    default: "2s",
    shape: Shape::Duration,
    range: (0, 3600),
    help: "Pause between two looks at ComfyUI's queue; ends of prompts are heard over its websocket in any case",
    ..Setting::BASE
};

static HISTORY_TIMEOUT: Setting = Setting {
    name: "littlehorse.history_timeout",
    env: &["REMUDA_LITTLEHORSE_HISTORY_TIMEOUT", "COMFYUI_HISTORY_TIMEOUT_SEC"],
    default: "10m",
    shape: Shape::Duration,
    range: (1, 86_400),
    help: "How long a ComfyUI that does not answer is asked how a prompt ended, before the prompt counts as lost; the render itself is bounded by the task's timeout",
    ..Setting::BASE
};

static HTTP_TIMEOUT: Setting = Setting {
    name: "littlehorse.http_timeout",
    env: &["REMUDA_LITTLEHORSE_HTTP_TIMEOUT", "COMFYUI_HTTP_TIMEOUT_SEC"],
    default: "30s",
    shape: Shape::Duration,
    range: (1, 3600),
    help: "How long one request to ComfyUI may take",
    ..Setting::BASE
};

static HTTP_RETRIES: Setting = Setting {
    name: "littlehorse.http_retries",
    env: &["REMUDA_LITTLEHORSE_HTTP_RETRIES", "COMFYUI_HTTP_RETRIES"],
    default: "3",
    shape: Shape::Number,
    range: (0, 100),
    help: "How often a failed request to ComfyUI is repeated, if it may be",
    ..Setting::BASE
};

static HEALTH_INTERVAL: Setting = Setting {
    name: "littlehorse.health_check_interval",
    env: &["REMUDA_LITTLEHORSE_HEALTH_CHECK_INTERVAL", "COMFYUI_HEALTH_CHECK_INTERVAL_SEC"],
    default: "2s",
    shape: Shape::Duration,
    range: (0, 3600),
    help: "Pause between two health checks of ComfyUI",
    ..Setting::BASE
};

static HEALTH_TIMEOUT: Setting = Setting {
    name: "littlehorse.health_check_timeout",
    env: &["REMUDA_LITTLEHORSE_HEALTH_CHECK_TIMEOUT", "COMFYUI_HEALTH_CHECK_TIMEOUT_SEC"],
    default: "2m",
    shape: Shape::Duration,
    range: (0, 86_400),
    help: "How long a start waits for a ComfyUI to answer before the worker registers",
    ..Setting::BASE
};

/// A setting that is passed on to the client as it is.
macro_rules! passed {
    ($($id:ident $key:literal $own:literal $env:literal, $default:literal, $shape:expr, $secret:literal, $help:literal;)*) => {
        $(static $id: Setting = Setting {
            name: concat!("littlehorse.", $key), env: &[$own, $env], default: $default, shape: $shape, secret: $secret,
            help: $help, ..Setting::BASE
        };)*
        const PASSED: &[(&str, &Setting)] = &[
            ("LHW_TASK_NAME", &TASK_NAME), ("LHW_OPTIONS_TASK_NAME", &OPTIONS_TASK),
            ("LHW_NUM_WORKER_THREADS", &SLOTS), $(($env, &$id),)*
        ];
        pub(super) const SETTINGS: &[&Setting] = &[
            &HOST, $(&$id,)* &CONFIG, &TASK_NAME, &OPTIONS_TASK, &SLOTS, &OUTPUT_DIR, &POLL_INTERVAL,
            &HISTORY_TIMEOUT, &HTTP_TIMEOUT, &HTTP_RETRIES, &HEALTH_INTERVAL, &HEALTH_TIMEOUT,
        ];
    };
}

passed! {
    PORT "port" "REMUDA_LITTLEHORSE_PORT" "LHC_API_PORT", "2023", Shape::Number, false, "Its port";
    PROTOCOL "protocol" "REMUDA_LITTLEHORSE_PROTOCOL" "LHC_API_PROTOCOL", "plaintext",
        Shape::Choice(&["plaintext", "tls"]), false, "plaintext or tls";
    TENANT "tenant" "REMUDA_LITTLEHORSE_TENANT" "LHC_TENANT_ID", "", Shape::Text, false, "The tenant";
    CA_CERT "ca_cert" "REMUDA_LITTLEHORSE_CA_CERT" "LHC_CA_CERT", "", Shape::Path, false,
        "Certificates to trust, as a PEM file, instead of the machine's";
    CLIENT_CERT "client_cert" "REMUDA_LITTLEHORSE_CLIENT_CERT" "LHC_CLIENT_CERT", "", Shape::Path, false,
        "This worker's own certificate, as a PEM file";
    CLIENT_KEY "client_key" "REMUDA_LITTLEHORSE_CLIENT_KEY" "LHC_CLIENT_KEY", "", Shape::Path, false,
        "The key of that certificate, as a PEM file";
    OAUTH_ID "oauth_client_id" "REMUDA_LITTLEHORSE_OAUTH_CLIENT_ID" "LHC_OAUTH_CLIENT_ID", "", Shape::Text, false,
        "Client id for OAuth";
    OAUTH_SECRET "oauth_client_secret" "REMUDA_LITTLEHORSE_OAUTH_CLIENT_SECRET" "LHC_OAUTH_CLIENT_SECRET", "",
        Shape::Text, true, "Client secret for OAuth";
    OAUTH_URL "oauth_access_token_url" "REMUDA_LITTLEHORSE_OAUTH_ACCESS_TOKEN_URL" "LHC_OAUTH_ACCESS_TOKEN_URL", "",
        Shape::Url, false, "Where OAuth access tokens come from";
    KEEPALIVE "keepalive_time_ms" "REMUDA_LITTLEHORSE_KEEPALIVE_TIME_MS" "LHC_GRPC_KEEPALIVE_TIME_MS", "45000",
        Shape::Number, false, "Pause between two pings, in milliseconds; servers hang up below 15000";
    KEEPALIVE_TIMEOUT "keepalive_timeout_ms" "REMUDA_LITTLEHORSE_KEEPALIVE_TIMEOUT_MS"
        "LHC_GRPC_KEEPALIVE_TIMEOUT_MS", "5000", Shape::Number, false, "How long the answer to a ping may take";
    QUOTA "wait_for_quota" "REMUDA_LITTLEHORSE_WAIT_FOR_QUOTA" "LHC_GRPC_RESOURCE_EXHAUSTED_RETRY", "true",
        Shape::Switch, false, "Repeat calls that were refused because of a quota, when the server says so";
    WORKER_ID "worker_id" "REMUDA_LITTLEHORSE_WORKER_ID" "LHW_TASK_WORKER_ID", "", Shape::Text, false,
        "Name of this process at the server; not set: made from the id in the data directory";
    WORKER_VERSION "worker_version" "REMUDA_LITTLEHORSE_WORKER_VERSION" "LHW_TASK_WORKER_VERSION", "", Shape::Text,
        false, "Free text that the server keeps with every attempt";
}

/// What a worker for a LittleHorse server is told.
#[derive(Clone)]
pub(super) struct LittleHorseSettings {
    /// Server: `LHC_API_HOST`, `LH_HOST`, `localhost`. With its port, if that stands there.
    pub(super) host: (String, Option<u16>),
    /// Whether somebody named the server.
    pub(super) host_given: bool,
    /// Everything that somebody set, by the names that LittleHorse's own clients use.
    pub(super) given: Vec<(&'static str, String)>,
    /// A properties file: `REMUDA_LITTLEHORSE_CONFIG`, none.
    pub(super) config: Option<PathBuf>,
    /// What paths of outputs begin with: `COMFYUI_OUTPUT_DIR`, not set.
    pub(super) output_dir: Option<String>,
    /// Between two looks at the queue: `COMFYUI_POLL_INTERVAL_SEC`, 2 seconds.
    pub(super) poll_interval: Duration,
    /// Patience with a ComfyUI that does not answer: `COMFYUI_HISTORY_TIMEOUT_SEC`, 10 minutes.
    pub(super) history_timeout: Duration,
    /// For one request: `COMFYUI_HTTP_TIMEOUT_SEC`, 30 seconds.
    pub(super) http_timeout: Duration,
    /// Repetitions: `COMFYUI_HTTP_RETRIES`, 3.
    pub(super) http_retries: usize,
    /// Between two probes: `COMFYUI_HEALTH_CHECK_INTERVAL_SEC`, 2 seconds.
    pub(super) health_interval: Duration,
    /// Patience at the start: `COMFYUI_HEALTH_CHECK_TIMEOUT_SEC`, 2 minutes.
    pub(super) health_timeout: Duration,
}

impl fmt::Debug for LittleHorseSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values: a secret is among them.
        let given: Vec<_> = self.given.iter().map(|(name, _)| name).collect();
        f.debug_struct("LittleHorseSettings")
            .field("host", &self.host)
            .field("given", &given)
            .finish_non_exhaustive()
    }
}

impl LittleHorseSettings {
    pub(super) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let host = host(from.text(&HOST)).map_err(|reason| from.blame(&HOST, reason))?;
        let given = PASSED.iter().filter(|(_, setting)| from.origin(setting) != Origin::Default);
        let given = given.map(|(name, setting)| match setting.shape {
            // They know no other words for it.
            Shape::Switch => Ok((*name, from.switch(setting)?.to_string())),
            _ => Ok((*name, from.text(setting).to_owned())),
        });
        let span = |setting: &Setting| from.get::<Span, _>(setting).map(|span| span.0);
        Ok(Self {
            host,
            host_given: from.origin(&HOST) != Origin::Default,
            given: given.collect::<Result<_, ConfigError>>()?,
            config: from.optional(&CONFIG)?,
            output_dir: from.optional(&OUTPUT_DIR)?,
            poll_interval: span(&POLL_INTERVAL)?,
            history_timeout: span(&HISTORY_TIMEOUT)?,
            http_timeout: span(&HTTP_TIMEOUT)?,
            http_retries: from.get(&HTTP_RETRIES)?,
            health_interval: span(&HEALTH_INTERVAL)?,
            health_timeout: span(&HEALTH_TIMEOUT)?,
        })
    }
}

/// `HOST` or `HOST:PORT`; an address of version 6 with a port is in brackets.
fn host(text: &str) -> Result<(String, Option<u16>), String> {
    let wanted = || format!("`{text}` is not a server; write HOST or HOST:PORT, without http://");
    let text = text.trim();
    if text.is_empty() || text.contains(['/', ' ', '@']) {
        return Err(wanted());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || (host.starts_with('[') && host.ends_with(']')) => {
            let port: u16 = port.parse().map_err(|_| wanted())?;
            if host.is_empty() || port == 0 { Err(wanted()) } else { Ok((host.to_owned(), Some(port))) }
        }
        _ => Ok((text.to_owned(), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn a_server_is_a_host_with_or_without_a_port() {
        let ok = |text: &str| host(text).map(|(host, port)| (host, port.unwrap_or_default()));
        assert_eq!(ok("lh"), Ok(("lh".into(), 0)));
        assert_eq!(ok("lh.example.org:2024"), Ok(("lh.example.org".into(), 2024)));
        assert_eq!(ok("[::1]:2023"), Ok(("[::1]".into(), 2023)));
        assert_eq!(ok("::1"), Ok(("::1".into(), 0)));
        for wrong in ["", "http://lh:2023", "lh:port", "lh:0", ":2023", "lh:99999"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }
}
