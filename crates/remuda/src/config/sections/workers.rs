//! `[workers]`: the ComfyUIs that this process drives.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{ComfyUi, Size, Span, comfyuis};

static COMFYUI: Setting = Setting {
    name: "workers.comfyui",
    env: &["REMUDA_COMFYUI", "COMFYUI_BASE_URL", "COMFYUI_SERVER_ADDRESS"],
    flags: &[flag("comfyui", "URL", Program::RUNNING)],
    shape: Shape::ComfyUis,
    help: "A ComfyUI to use, followed by its labels if it has any: \"http://10.0.0.5:8188 gpu=4090 fast\"",
    ..Setting::BASE
};

static SIM: Setting = Setting {
    name: "workers.sim",
    env: &["REMUDA_SIM"],
    flags: &[flag("sim", "N", Program::RUNNING)],
    default: "0",
    shape: Shape::Number,
    range: (0, 64),
    help: "How many simulated ComfyUIs to run inside, for trying things out",
    ..Setting::BASE
};

static MAX_PER_KEY: Setting = Setting {
    name: "workers.max_per_key",
    env: &["REMUDA_MAX_WORKERS_PER_KEY"],
    default: "256",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many workers one API key may register",
    ..Setting::BASE
};

static MAX_OBJECT_INFO: Setting = Setting {
    name: "workers.max_object_info",
    env: &["REMUDA_MAX_OBJECT_INFO"],
    default: "1024",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many descriptions of nodes the workers of one API key may keep with the server",
    ..Setting::BASE
};

static MAX_OBJECT_INFO_SIZE: Setting = Setting {
    name: "workers.max_object_info_size",
    env: &["REMUDA_MAX_OBJECT_INFO_SIZE"],
    default: "2GiB",
    shape: Shape::Size,
    range: (1, 1 << 50),
    help: "How large those descriptions may be together",
    ..Setting::BASE
};

static OBJECT_INFO_RETENTION: Setting = Setting {
    name: "workers.object_info_retention",
    env: &["REMUDA_OBJECT_INFO_RETENTION"],
    default: "30d",
    shape: Shape::Duration,
    range: (60, 10 * 365 * 86_400),
    help: "How long a description of nodes stays that no worker uses",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] =
    &[&COMFYUI, &SIM, &MAX_PER_KEY, &MAX_OBJECT_INFO, &MAX_OBJECT_INFO_SIZE, &OBJECT_INFO_RETENTION];

/// The ComfyUIs that this process drives.
#[derive(Debug, Clone)]
pub(crate) struct Workers {
    /// Addresses with labels: `REMUDA_COMFYUI`, none. No address is in it twice.
    pub(crate) comfyui: Vec<ComfyUi>,
    /// Simulated ones to start: `REMUDA_SIM`, 0.
    pub(crate) sim: usize,
    /// Workers of one key: `REMUDA_MAX_WORKERS_PER_KEY`, 256.
    pub(crate) max_per_key: u32,
    /// Descriptions of nodes of one key: `REMUDA_MAX_OBJECT_INFO`, 1,024.
    pub(crate) max_object_info: u32,
    /// Their size together: `REMUDA_MAX_OBJECT_INFO_SIZE`, 2 GiB.
    pub(crate) max_object_info_size: u64,
    /// How long unused ones stay: `REMUDA_OBJECT_INFO_RETENTION`, 30 days.
    pub(crate) object_info_retention: Duration,
}

impl Workers {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let comfyui = comfyuis(from.text(&COMFYUI)).map_err(|reason| from.blame(&COMFYUI, reason))?;
        Ok(Self {
            comfyui,
            sim: from.get(&SIM)?,
            max_per_key: from.get(&MAX_PER_KEY)?,
            max_object_info: from.get(&MAX_OBJECT_INFO)?,
            max_object_info_size: from.get::<Size, _>(&MAX_OBJECT_INFO_SIZE)?.0,
            object_info_retention: from.get::<Span, _>(&OBJECT_INFO_RETENTION)?.0,
        })
    }
}
