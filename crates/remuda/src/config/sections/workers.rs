//! `[workers]`: the ComfyUIs that this process drives.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{ComfyUi, Size, Span, comfyuis};
use comfyui::Limits;

use super::server::BODY_LIMIT;

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

static MAX_OBJECT_INFOS: Setting = Setting {
    name: "workers.max_object_infos",
    env: &["REMUDA_MAX_OBJECT_INFOS"],
    default: "1024",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many node descriptions (/object_info) the workers of one API key may keep at the server",
    ..Setting::BASE
};

static MAX_OBJECT_INFOS_SIZE: Setting = Setting {
    name: "workers.max_object_infos_size",
    env: &["REMUDA_MAX_OBJECT_INFOS_SIZE"],
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
    help: "How long a node description that no worker uses is kept",
    ..Setting::BASE
};

static MAX_ANSWER: Setting = Setting {
    name: "workers.max_answer",
    env: &["REMUDA_COMFYUI_MAX_ANSWER"],
    default: "16MiB",
    shape: Shape::Size,
    range: (1 << 16, 1 << 40),
    help: "Longest answer of a ComfyUI, unpacked, where no other limit applies; a worker that sends more is put aside",
    ..Setting::BASE
};

static MAX_OBJECT_INFO: Setting = Setting {
    name: "workers.max_object_info",
    env: &["REMUDA_COMFYUI_MAX_OBJECT_INFO"],
    default: "32MiB",
    shape: Shape::Size,
    range: (1 << 16, 1 << 40),
    help: "Longest /object_info of a ComfyUI, unpacked",
    ..Setting::BASE
};

static MAX_HISTORY: Setting = Setting {
    name: "workers.max_history",
    env: &["REMUDA_COMFYUI_MAX_HISTORY"],
    shape: Shape::Size,
    range: (1 << 16, 1 << 40),
    help: "Longest /history or /queue of a ComfyUI, unpacked; not set: three times server.body_limit, at least 96MiB",
    ..Setting::BASE
};

static MAX_MESSAGE: Setting = Setting {
    name: "workers.max_message",
    env: &["REMUDA_COMFYUI_MAX_MESSAGE"],
    default: "64MiB",
    shape: Shape::Size,
    range: (1 << 16, 1 << 40),
    help: "Longest message on the websocket of a ComfyUI",
    ..Setting::BASE
};

static MESSAGES_PER_SECOND: Setting = Setting {
    name: "workers.messages_per_second",
    env: &["REMUDA_COMFYUI_MESSAGES_PER_SECOND"],
    default: "2000",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "Messages per second on the websocket of a ComfyUI; one that sends more is read more slowly",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[
    &COMFYUI,
    &SIM,
    &MAX_PER_KEY,
    &MAX_OBJECT_INFOS,
    &MAX_OBJECT_INFOS_SIZE,
    &OBJECT_INFO_RETENTION,
    &MAX_ANSWER,
    &MAX_OBJECT_INFO,
    &MAX_HISTORY,
    &MAX_MESSAGE,
    &MESSAGES_PER_SECOND,
];

/// The ComfyUIs that this process drives.
#[derive(Debug, Clone)]
pub(crate) struct Workers {
    /// Addresses with labels: `REMUDA_COMFYUI`, none. No address is in it twice.
    pub(crate) comfyui: Vec<ComfyUi>,
    /// Simulated ones to start: `REMUDA_SIM`, 0.
    pub(crate) sim: usize,
    /// Workers of one key: `REMUDA_MAX_WORKERS_PER_KEY`, 256.
    pub(crate) max_per_key: u32,
    /// Descriptions of nodes of one key: `REMUDA_MAX_OBJECT_INFOS`, 1,024.
    pub(crate) max_object_infos: u32,
    /// Their size together: `REMUDA_MAX_OBJECT_INFOS_SIZE`, 2 GiB.
    pub(crate) max_object_infos_size: u64,
    /// How long unused ones stay: `REMUDA_OBJECT_INFO_RETENTION`, 30 days.
    pub(crate) object_info_retention: Duration,
    /// How much a ComfyUI may send: `REMUDA_COMFYUI_MAX_…`. The size of a file is `tasks.max_output_size`.
    pub(crate) limits: Limits,
}

impl Workers {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let comfyui = comfyuis(from.text(&COMFYUI)).map_err(|reason| from.blame(&COMFYUI, reason))?;
        let bytes = |setting| Ok::<_, ConfigError>(from.get::<Size, _>(setting)?.0);
        let limits = Limits {
            answer: bytes(&MAX_ANSWER)?,
            object_info: bytes(&MAX_OBJECT_INFO)?,
            history: match from.optional::<Size, _>(&MAX_HISTORY)? {
                Some(Size(bytes)) => bytes,
                // The queue repeats a graph that runs and the next one, and each is as long as a body may be.
                None => bytes(&BODY_LIMIT)?.saturating_mul(3).max(Limits::default().history),
            },
            frame: usize::try_from(bytes(&MAX_MESSAGE)?).unwrap_or(usize::MAX),
            frames_per_second: from.get(&MESSAGES_PER_SECOND)?,
            ..Limits::default()
        };
        Ok(Self {
            comfyui,
            sim: from.get(&SIM)?,
            max_per_key: from.get(&MAX_PER_KEY)?,
            max_object_infos: from.get(&MAX_OBJECT_INFOS)?,
            max_object_infos_size: bytes(&MAX_OBJECT_INFOS_SIZE)?,
            object_info_retention: from.get::<Span, _>(&OBJECT_INFO_RETENTION)?.0,
            limits,
        })
    }
}
