//! `[client]`: the server that the commands, and a worker beside a ComfyUI, talk to.

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Secret, server_url};
use url::Url;

const TALKING: &[Program] = &[Program::Worker, Program::Client];

pub(super) static SERVER: Setting = Setting {
    name: "client.server",
    env: &["REMUDA_SERVER"],
    flags: &[flag("server", "URL", TALKING)],
    default: "http://127.0.0.1:8080",
    shape: Shape::Url,
    help: "The server that commands and workers talk to",
    ..Setting::BASE
};

static KEY: Setting = Setting {
    name: "client.key",
    env: &["REMUDA_API_KEY"],
    flags: &[flag("key", "KEY", TALKING)],
    help: "API key for that server; the variable is safer than the flag, which other users of the machine can see",
    secret: true,
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&SERVER, &KEY];

/// The server to talk to.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// Its address: `REMUDA_SERVER`, `http://127.0.0.1:8080`.
    pub(crate) server: Url,
    /// The key: `REMUDA_API_KEY`, none.
    pub(crate) key: Option<Secret>,
}

impl Client {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let server = server_url(from.text(&SERVER)).map_err(|reason| from.blame(&SERVER, reason))?;
        Ok(Self { server, key: from.optional(&KEY)? })
    }
}
