//! What can be set before a simulator starts.

use std::path::PathBuf;
use std::time::Duration;

/// Which ComfyUI is simulated. The differences are those of the recordings (contract, section 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Profile {
    /// 0.3.30: ignores `prompt_id`, bare interrupt only, no jobs, no `progress_state`, no feature flags.
    V0_3_30,
    /// 0.3.64: takes `prompt_id`, interrupts by id, has `progress_state`; no jobs.
    V0_3_64,
    /// 0.7.0: what the recordings show.
    #[default]
    V0_7_0,
}

/// Everything about one simulated ComfyUI.
///
/// ```
/// use comfyui_sim::SimConfig;
/// use std::time::Duration;
///
/// let config = SimConfig { step: Duration::ZERO, ..SimConfig::default() };
/// assert_eq!(config.max_upload_bytes, 100 * 1024 * 1024);
/// ```
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Version to behave as.
    pub profile: Profile,
    /// `input`, `output`, `temp`, `user` live below it; `None` makes a temporary one that goes with the simulator.
    pub base_dir: Option<PathBuf>,
    /// How long one sampler step takes.
    pub step: Duration,
    /// How long it takes to load a checkpoint that is not the one loaded last.
    pub model_load: Duration,
    /// How long any other node takes.
    pub node: Duration,
    /// Whether samplers send preview images.
    pub previews: bool,
    /// Seed of everything random (faults, temp prefixes).
    pub seed: u64,
    /// `--enable-cors-header`.
    pub cors: Option<String>,
    /// `--enable-compress-response-body`.
    pub compress: bool,
    /// `--max-upload-size`, in bytes.
    pub max_upload_bytes: u64,
    /// Model files by folder (`checkpoints` → names).
    pub models: indexmap::IndexMap<String, Vec<String>>,
    /// Folder of a `comfyui-frontend-package` to serve at `/`; without it `/` is a small page that says what this is.
    pub frontend: Option<PathBuf>,
}
