//! What an attacker is told of the world that it attacks.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which installation is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setup {
    /// A server with keys and one good ComfyUI.
    Plain,
    /// The same, and a second ComfyUI (label `hostile`) that the attacker plays.
    Hostile,
    /// A server with keys, and an honest sidecar with the only ComfyUI.
    Sidecar,
    /// A server without keys.
    Open,
    /// A server without keys that was told `--insecure --cors-origin *`.
    Insecure,
    /// As `Plain`, with a web page from a folder.
    Page,
    /// As `Plain`, and the attacker's address is that of a trusted proxy. Permits and rates are small.
    Proxied,
    /// As `Plain`, with limits on what one guest may store that are reached in a moment.
    Narrow,
}

/// Keys of everybody; empty where the server has none.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Keys {
    /// The second tenant: submit, read.
    pub bob: String,
    /// The attacker: submit, read.
    pub mallory: String,
    /// The attacker's key of the scope worker.
    pub worker: String,
    /// The honest sidecar's key.
    pub sidecar: String,
    /// The operator's.
    pub admin: String,
}

/// What an attacker is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stage {
    /// `127.0.0.1:PORT` of the server.
    pub server: String,
    /// What was built.
    pub setup: Setup,
    /// Keys of everybody.
    pub keys: Keys,
    /// The server's data directory.
    pub data: PathBuf,
    /// The server's log.
    pub log: PathBuf,
    /// The program under test.
    pub remuda: PathBuf,
    /// The port at which the attacker plays a ComfyUI or anything else that is asked by the server.
    pub port: u16,
    /// `127.0.0.1:PORT` of the good ComfyUI.
    pub sim: String,
    /// `127.0.0.1:PORT` of the one that answers for the attacker what is not worth lying about.
    pub behind: String,
    /// The id of the honest sidecar's process, if there is one.
    pub sidecar_owner: Option<String>,
    /// The id of the gateway's process.
    pub gateway_owner: Option<String>,
    /// The folder of the page, if there is one.
    pub page: Option<PathBuf>,
    /// How long a load is kept up.
    pub seconds: f64,
    /// Whether this is the short form.
    pub quick: bool,
    /// Where chance begins.
    pub seed: u64,
}

/// The name of the honest sidecar's worker.
pub(crate) const SIDECAR: &str = "honest";

impl Stage {
    /// Where the server is.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server)
    }

    /// How long a load is kept up.
    pub fn while_it_lasts(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Writes it to a file.
    pub fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, serde_json::to_vec(self)?).context("cannot write the stage")
    }

    /// Reads it from a file.
    pub fn read(file: &Path) -> Result<Stage> {
        let text = std::fs::read(file).context("cannot read the stage")?;
        Ok(serde_json::from_slice(&text)?)
    }
}
