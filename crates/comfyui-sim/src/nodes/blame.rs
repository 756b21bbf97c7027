//! Where in ComfyUI's sources an exception of a node would come from.

use super::call::Call;
use super::registry::Class;
use crate::engine::{Exception, Frame};

/// The function that ComfyUI calls for a class.
fn function_of(class: &Class) -> &'static str {
    if class.newer {
        return "execute";
    }
    match class.name.as_str() {
        "KSampler" | "KSamplerAdvanced" => "sample",
        "CheckpointLoaderSimple" => "load_checkpoint",
        "CLIPTextEncode" | "VAEEncode" => "encode",
        "CLIPSetLastLayer" => "set_last_layer",
        "VAEDecode" => "decode",
        "VAELoader" => "load_vae",
        "EmptyLatentImage" | "EmptySD3LatentImage" | "EmptyImage" => "generate",
        "LatentUpscale" | "ImageScale" | "ImageScaleBy" | "ImageUpscaleWithModel" => "upscale",
        "SaveImage" | "PreviewImage" | "SaveImageWebsocket" | "MaskPreview" => "save_images",
        "LoadImage" | "LoadImageMask" => "load_image",
        "ImageInvert" => "invert",
        "ImageBatch" => "batch",
        "LoraLoader" => "load_lora",
        "CLIPLoader" | "DualCLIPLoader" => "load_clip",
        "UNETLoader" => "load_unet",
        "ControlNetApply" | "ControlNetApplyAdvanced" => "apply_controlnet",
        "ControlNetLoader" => "load_controlnet",
        "SaveLatent" => "save",
        "PreviewAny" => "main",
        "VHS_LoadVideo" => "load_video",
        "VHS_VideoCombine" => "combine_video",
        name if name.starts_with("Rig") => "run",
        _ => "execute",
    }
}

/// What stands between the executor and a class of the newer interface.
fn wrappers(class: &Class) -> Vec<Frame> {
    if !class.newer {
        return Vec::new();
    }
    vec![
        Frame::comfy("comfy_api/internal/__init__.py", 149, "wrapped_func"),
        Frame::comfy("comfy_api/latest/_io.py", 1570, "EXECUTE_NORMALIZED"),
    ]
}

/// Puts the frames of the node in front of those that the exception brings along.
pub(super) fn located(class: &Class, mut exception: Exception) -> Exception {
    let mut frames = wrappers(class);
    let function = function_of(class);
    if exception.frames.first().is_none_or(|first| !first.is_in(function)) {
        frames.push(match class.module.as_str() {
            "nodes" => Frame::comfy("nodes.py", 1, function),
            module => match module.strip_prefix("custom_nodes.") {
                Some(module) => {
                    Frame::at(format!("/srv/comfyui-data/custom_nodes/{module}/__init__.py"), 1, function)
                }
                None => Frame::comfy(&format!("{}.py", module.replace('.', "/")), 1, function),
            },
        });
    }
    frames.append(&mut exception.frames);
    exception.frames = frames;
    exception
}

/// A link at an input that the class does not know reaches its function all the same, which refuses it.
/// (Values at such inputs are dropped before.)
pub(super) fn unexpected_input(call: &Call<'_>) -> Option<Exception> {
    let class = call.class;
    if class.name.starts_with("VHS_") {
        return None;
    }
    let known =
        |name: &String| class.input(name).is_some() || class.hidden.iter().any(|(hidden, _)| hidden == name);
    let name = call.inputs.keys().find(|name| !known(name))?;
    let owner = if class.name == "PreviewImage" { "SaveImage" } else { &class.name };
    let message = format!("{owner}.{}() got an unexpected keyword argument '{name}'", function_of(class));
    Some(Exception::new("TypeError", message).raised_in(wrappers(class)))
}
