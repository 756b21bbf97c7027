//! `[store]`: where the tasks are kept.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Secret, Span, StoreUrl};

pub(super) static URL: Setting = Setting {
    name: "store.url",
    env: &["REMUDA_STORE"],
    flags: &[flag("store", "STORE", Program::RUNNING)],
    default: "sqlite:{data}/remuda.db",
    shape: Shape::Store,
    help: "Store of the tasks: sqlite:PATH, or postgres://USER:PASSWORD@HOST/DATABASE for several servers",
    ..Setting::BASE
};

static RETENTION: Setting = Setting {
    name: "store.retention",
    env: &["REMUDA_RETENTION"],
    flags: &[flag("retention", "DURATION", &[Program::Serve])],
    default: "7d",
    shape: Shape::Duration,
    range: (60, 3650 * 86_400),
    help: "How long an ended task and its files are kept",
    ..Setting::BASE
};

static SECRET_KEY_FILE: Setting = Setting {
    name: "store.secret_key_file",
    env: &["REMUDA_SECRET_KEY_FILE"],
    flags: &[flag("secret-key-file", "FILE", Program::RUNNING)],
    shape: Shape::Path,
    help: "File with the keys that seal secrets, one per line; the first one seals, all of them open; the same for all servers",
    ..Setting::BASE
};

static SECRET_KEY: Setting = Setting {
    name: "store.secret_key",
    env: &["REMUDA_SECRET_KEY"],
    help: "The keys themselves, separated by commas, instead of the file",
    secret: true,
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&URL, &RETENTION, &SECRET_KEY_FILE, &SECRET_KEY];

/// Where the tasks are kept.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    /// Which store: `REMUDA_STORE`, `sqlite:DATA/remuda.db`.
    pub(crate) url: StoreUrl,
    /// How long finished tasks stay: `REMUDA_RETENTION`, 7 days.
    pub(crate) retention: Duration,
    /// The keys that secrets are sealed with: `REMUDA_SECRET_KEY_FILE`; with SQLite a file in the data directory.
    pub(crate) secret_key_file: Option<PathBuf>,
    /// The same keys themselves: `REMUDA_SECRET_KEY`, none.
    pub(crate) secret_key: Option<Secret>,
}

impl Store {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self {
            url: from.get(&URL)?,
            retention: from.get::<Span, _>(&RETENTION)?.0,
            secret_key_file: from.optional(&SECRET_KEY_FILE)?,
            secret_key: from.optional(&SECRET_KEY)?,
        })
    }
}
