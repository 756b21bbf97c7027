//! `[workers]`: the ComfyUIs that this process drives.

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{ComfyUi, comfyuis};

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

pub(super) const SETTINGS: &[&Setting] = &[&COMFYUI, &SIM];

/// The ComfyUIs that this process drives.
#[derive(Debug, Clone)]
pub(crate) struct Workers {
    /// Addresses with labels: `REMUDA_COMFYUI`, none. No address is in it twice.
    pub(crate) comfyui: Vec<ComfyUi>,
    /// Simulated ones to start: `REMUDA_SIM`, 0.
    pub(crate) sim: usize,
}

impl Workers {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let comfyui = comfyuis(from.text(&COMFYUI)).map_err(|reason| from.blame(&COMFYUI, reason))?;
        Ok(Self { comfyui, sim: from.get(&SIM)? })
    }
}
