//! What can be set before a simulator starts.

use indexmap::IndexMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Which ComfyUI is simulated. The differences are those of the recordings.
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

impl Profile {
    /// All profiles, oldest first.
    pub const ALL: [Profile; 3] = [Profile::V0_3_30, Profile::V0_3_64, Profile::V0_7_0];

    /// The version number it answers with.
    pub fn version(self) -> &'static str {
        match self {
            Profile::V0_3_30 => "0.3.30",
            Profile::V0_3_64 => "0.3.64",
            Profile::V0_7_0 => "0.7.0",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.version())
    }
}

/// A version that is not simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no profile for ComfyUI {0:?}, there are 0.3.30, 0.3.64 and 0.7.0")]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.version() == text.trim_start_matches('v'))
            .ok_or_else(|| UnknownProfile(text.to_owned()))
    }
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
    /// How long after `execution_success` the history entry appears. A real ComfyUI takes up to some
    /// milliseconds, and clients that ask too early find nothing.
    pub history_gap: Duration,
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
    pub models: IndexMap<String, Vec<String>>,
    /// Folder of a `comfyui-frontend-package` to serve at `/`; without it `/` is a small page that says what this is.
    pub frontend: Option<PathBuf>,
}

/// The model files every simulator has unless told otherwise, by folder. `custom_nodes` is left out.
const DEFAULT_MODELS: [(&str, &[&str]); 19] = [
    (
        "checkpoints",
        &[
            "flux1-dev-fp8.safetensors",
            "flux1-schnell-fp8.safetensors",
            "sd_xl_base_1.0.safetensors",
            "sd_xl_refiner_1.0.safetensors",
            "svd_xt.safetensors",
            "v1-5-pruned-emaonly-fp16.safetensors",
            "v1-5-pruned-emaonly.safetensors",
        ],
    ),
    ("loras", &["detail.safetensors", "pixel-art.safetensors"]),
    ("vae", &["ae.safetensors", "vae-ft-mse-840000-ema-pruned.safetensors", "wan_2.1_vae.safetensors"]),
    (
        "text_encoders",
        &[
            "clip_g.safetensors",
            "clip_l.safetensors",
            "t5xxl_fp16.safetensors",
            "t5xxl_fp8_e4m3fn.safetensors",
            "umt5_xxl_fp8_e4m3fn_scaled.safetensors",
        ],
    ),
    (
        "diffusion_models",
        &[
            "flux1-dev-fp8.safetensors",
            "flux1-dev.safetensors",
            "flux1-schnell.safetensors",
            "wan2.1_t2v_1.3B_fp16.safetensors",
        ],
    ),
    ("clip_vision", &["clip_vision_h.safetensors"]),
    ("style_models", &[]),
    ("embeddings", &["easynegative.safetensors"]),
    ("diffusers", &[]),
    ("vae_approx", &["taesd_decoder.pth", "taesd_encoder.pth", "taesdxl_decoder.pth", "taesdxl_encoder.pth"]),
    ("controlnet", &["control_v11p_sd15_canny.pth", "control_v11p_sd15_openpose.pth"]),
    ("gligen", &[]),
    ("upscale_models", &["4x-UltraSharp.pth", "RealESRGAN_x4plus.pth"]),
    ("latent_upscale_models", &[]),
    ("hypernetworks", &[]),
    ("photomaker", &[]),
    ("classifiers", &[]),
    ("model_patches", &[]),
    ("audio_encoders", &[]),
];

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            profile: Profile::default(),
            base_dir: None,
            step: Duration::from_millis(20),
            model_load: Duration::from_millis(300),
            node: Duration::ZERO,
            history_gap: Duration::from_millis(1),
            previews: true,
            seed: 0,
            cors: None,
            compress: false,
            max_upload_bytes: 100 * 1024 * 1024,
            models: DEFAULT_MODELS
                .into_iter()
                .map(|(folder, names)| {
                    (folder.to_owned(), names.iter().map(|&name| name.to_owned()).collect())
                })
                .collect(),
            frontend: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_read_back_from_their_version() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("0.3.31".parse::<Profile>().is_err());
    }
}
