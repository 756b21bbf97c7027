//! `[sync]`: the synchronous handler, `POST /prompt_sync`.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::Span;

const SERVE: &[Program] = &[Program::Serve];

static TIMEOUT: Setting = Setting {
    name: "sync.timeout",
    env: &["REMUDA_SYNC_TIMEOUT", "DEFAULT_TIMEOUT"],
    flags: &[flag("sync-timeout", "DURATION", SERVE)],
    default: "5m",
    shape: Shape::Duration,
    range: (1, 86_400),
    help: "How long a synchronous request waits for its render, unless it sets its own limit",
    ..Setting::BASE
};

static LIMIT: Setting = Setting {
    name: "sync.limit",
    env: &["REMUDA_SYNC_LIMIT"],
    flags: &[flag("sync-limit", "N", SERVE)],
    default: "1024",
    shape: Shape::Number,
    range: (1, 65_536),
    help: "How many synchronous requests may be under way; further ones get 503",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&TIMEOUT, &LIMIT];

/// The synchronous handler.
#[derive(Debug, Clone)]
pub(crate) struct Sync {
    /// How long a request waits: `REMUDA_SYNC_TIMEOUT`, `DEFAULT_TIMEOUT`, 5 minutes.
    pub(crate) timeout: Duration,
    /// Requests at once: `REMUDA_SYNC_LIMIT`, 1024.
    pub(crate) limit: usize,
}

impl Sync {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self { timeout: from.get::<Span, _>(&TIMEOUT)?.0, limit: from.get(&LIMIT)? })
    }
}
