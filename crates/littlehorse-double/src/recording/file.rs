//! A recording, as it is in its file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// What an SDK and a server said to each other.
#[derive(Debug, Clone, Deserialize)]
pub struct Recording {
    /// What it shows.
    pub about: String,
    /// What was said.
    pub events: Vec<Recorded>,
}

/// One thing that happened.
#[derive(Debug, Clone, Deserialize)]
pub struct Recorded {
    /// Seconds since the beginning.
    pub t: f64,
    /// Which server; nothing for notes.
    pub server: Option<String>,
    /// `client->server` or `server->client`.
    pub dir: Option<String>,
    /// What kind of thing.
    pub kind: String,
    /// The path of the method.
    pub method: Option<String>,
    /// The number of the stream at its server.
    pub stream: Option<u32>,
    /// What was sent with a call.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// How long the client meant to wait.
    pub deadline_s: Option<f64>,
    /// The message as JSON.
    pub message: Option<Value>,
    /// The message as it went over the wire, in base64.
    pub raw_b64: Option<String>,
    /// The code of a refusal.
    pub code: Option<String>,
    /// The text of a refusal.
    pub details: Option<String>,
}

impl Recording {
    /// Reads one.
    pub fn read(path: &Path) -> io::Result<Self> {
        serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::other)
    }
}

impl Recorded {
    /// The name of the method.
    pub fn method(&self) -> &str {
        let path = self.method.as_deref().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }

    /// The message as it went over the wire.
    pub fn raw(&self) -> Option<Vec<u8>> {
        STANDARD.decode(self.raw_b64.as_deref()?).ok()
    }

    /// Whether the client said it.
    pub fn is_from_client(&self) -> bool {
        self.dir.as_deref() == Some("client->server")
    }
}
