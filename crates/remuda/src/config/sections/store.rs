//! `[store]`: where the tasks are kept.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Span, StoreUrl};

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
    help: "How long a finished task and its files stay",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&URL, &RETENTION];

/// Where the tasks are kept.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    /// Which store: `REMUDA_STORE`, `sqlite:DATA/remuda.db`.
    pub(crate) url: StoreUrl,
    /// How long finished tasks stay: `REMUDA_RETENTION`, 7 days.
    pub(crate) retention: Duration,
}

impl Store {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self { url: from.get(&URL)?, retention: from.get::<Span, _>(&RETENTION)?.0 })
    }
}
