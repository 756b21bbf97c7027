//! Which inputs name model files, and from which folder.
//!
//! ComfyUI does not say it: a list of models looks like any other list of choices. File endings give most of them
//! away, and the names that loaders use for their inputs tell the folder.

/// The endings of files that hold models.
const MODEL_ENDINGS: [&str; 8] = [".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".gguf", ".bin", ".onnx"];

/// Classes whose input names mean something else than [`BY_INPUT`] says, or nothing by themselves.
const BY_CLASS: [(&str, &str, &str); 10] = [
    ("AudioEncoderLoader", "audio_encoder_name", "audio_encoders"),
    ("CLIPVisionLoader", "clip_name", "clip_vision"),
    ("GLIGENLoader", "gligen_name", "gligen"),
    ("HypernetworkLoader", "hypernetwork_name", "hypernetworks"),
    ("LatentUpscaleModelLoader", "model_name", "latent_upscale_models"),
    ("ModelPatchLoader", "name", "model_patches"),
    ("PhotoMakerLoader", "photomaker_model_name", "photomaker"),
    ("StyleModelLoader", "style_model_name", "style_models"),
    ("TrainLoraNode", "existing_lora", "loras"),
    ("UpscaleModelLoader", "model_name", "upscale_models"),
];

/// Names of inputs that mean the same folder in every loader, ComfyUI's own and those that imitate them.
const BY_INPUT: [(&str, &str); 11] = [
    ("ckpt_name", "checkpoints"),
    ("clip_name", "text_encoders"),
    ("clip_name1", "text_encoders"),
    ("clip_name2", "text_encoders"),
    ("clip_name3", "text_encoders"),
    ("clip_name4", "text_encoders"),
    ("config_name", "configs"),
    ("control_net_name", "controlnet"),
    ("lora_name", "loras"),
    ("unet_name", "diffusion_models"),
    ("vae_name", "vae"),
];

/// The model folder from which an input of a class is chosen, where the names tell.
///
/// ```
/// use comfyui::object_info::model_folder;
///
/// assert_eq!(model_folder("CheckpointLoaderSimple", "ckpt_name"), Some("checkpoints"));
/// assert_eq!(model_folder("CLIPVisionLoader", "clip_name"), Some("clip_vision"));
/// assert_eq!(model_folder("KSampler", "sampler_name"), None);
/// ```
pub fn model_folder(class: &str, input: &str) -> Option<&'static str> {
    let by_class = BY_CLASS.iter().find(|(known, name, _)| *known == class && *name == input);
    let by_input = || BY_INPUT.iter().find(|(name, _)| *name == input);
    by_class.map(|(_, _, folder)| *folder).or_else(|| by_input().map(|(_, folder)| *folder))
}

/// Whether a file name has the ending of a model file.
///
/// ```
/// use comfyui::object_info::has_model_ending;
///
/// assert!(has_model_ending("SDXL/base.SafeTensors"));
/// assert!(!has_model_ending("fox.png"));
/// ```
pub fn has_model_ending(name: &str) -> bool {
    let ending = name.rfind('.').map_or("", |dot| &name[dot..]);
    MODEL_ENDINGS.iter().any(|known| known.eq_ignore_ascii_case(ending))
}
