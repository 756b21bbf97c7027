//! The nodes: what they are called, what they take, and what they do instead of rendering.
//!
//! [`Registry`] describes every class, [`run`] is what they do. A class that is described but missing below
//! fails like a broken custom node; a test keeps that from happening.

mod blame;
mod call;
pub(crate) mod files;
mod films;
mod helper_suite;
mod images;
mod misc;
mod registry;
mod rig;
mod sampling;
mod sounds;
mod tensor;
mod value;

pub(crate) use call::{Call, Memory, Returned};
pub(crate) use registry::{Class, FilledInput, Registry};
pub(crate) use value::Value;

use crate::engine::{Exception, Raised};

/// Classes whose function is a coroutine: they start early and hold nobody up.
pub(crate) fn is_async(class: &str) -> bool {
    class == "RigAsync"
}

/// Runs one node.
pub(crate) async fn run(call: &Call<'_>) -> Result<Returned, Raised> {
    if let Some(exception) = blame::unexpected_input(call) {
        return Err(exception.into());
    }
    dispatch(call).await.map_err(|raised| match raised {
        Raised::Exception(exception) => blame::located(call.class, exception).into(),
        other => other,
    })
}

async fn dispatch(call: &Call<'_>) -> Result<Returned, Raised> {
    if call.run.faults.out_of_memory && call.class.output_node {
        return Err(sampling::out_of_memory());
    }
    if !call.class.name.starts_with("Rig") {
        call.run.pause(call.run.config.node).await;
    }
    match call.class.name.as_str() {
        "CheckpointLoaderSimple" => sampling::checkpoint(call).await,
        "UNETLoader" => sampling::unet(call).await,
        "CLIPLoader" | "DualCLIPLoader" => sampling::clip(call),
        "VAELoader" => Ok(Returned::values([Value::Vae])),
        "ControlNetLoader" => Ok(Returned::values([Value::ControlNet])),
        "UpscaleModelLoader" => sampling::upscale_model(call),
        "LoraLoader" => sampling::lora(call),
        "CLIPSetLastLayer" => sampling::pass(call, &["clip"]),
        "FluxGuidance" | "ControlNetApply" => sampling::pass(call, &["conditioning"]),
        "ControlNetApplyAdvanced" => sampling::pass(call, &["positive", "negative"]),
        "CLIPTextEncode" => sampling::encode_text(call),
        "EmptyLatentImage" | "EmptySD3LatentImage" => sampling::empty_latent(call),
        "VAEEncode" => sampling::encode(call),
        "LatentUpscale" => sampling::scale_latent(call),
        "KSampler" | "KSamplerAdvanced" => sampling::sample(call).await,
        "VAEDecode" => sampling::decode(call).await,
        "SaveLatent" => sampling::save_latent(call).await,

        "EmptyImage" => images::empty(call),
        "ImageScale" => images::scale(call),
        "ImageScaleBy" => images::scale_by(call),
        "ImageUpscaleWithModel" => images::upscale(call).await,
        "ImageInvert" => images::invert(call),
        "ImageBatch" => images::join(call),
        "LoadImage" => images::load(call),
        "LoadImageMask" => images::load_mask(call),
        "ImageToMask" => images::to_mask(call),
        "MaskToImage" => images::from_mask(call),
        "SolidMask" => images::solid_mask(call),
        "SaveImage" => images::save(call).await,
        "PreviewImage" => images::preview(call).await,
        "MaskPreview" => images::preview_mask(call).await,
        "SaveImageWebsocket" => images::save_to_socket(call).await,

        "SaveAnimatedWEBP" => films::save_webp(call).await,
        "SaveAnimatedPNG" => films::save_apng(call).await,
        "SaveWEBM" => films::save_webm(call).await,
        "CreateVideo" => films::create(call),
        "SaveVideo" => films::save(call).await,
        "LoadVideo" => films::load(call),
        "GetVideoComponents" => films::components(call),
        "VHS_LoadVideo" => helper_suite::load(call).await,
        "VHS_VideoCombine" => helper_suite::combine(call).await,

        "EmptyAudio" => sounds::empty(call),
        "LoadAudio" => sounds::load(call),
        "SaveAudio" => sounds::save(call, "flac").await,
        "SaveAudioMP3" => sounds::save(call, "mp3").await,
        "SaveAudioOpus" => sounds::save(call, "opus").await,
        "PreviewAudio" => sounds::preview(call).await,

        "PrimitiveString"
        | "PrimitiveStringMultiline"
        | "PrimitiveInt"
        | "PrimitiveFloat"
        | "PrimitiveBoolean" => misc::primitive(call),
        "PreviewAny" => Ok(misc::preview_any(call)),
        "SaveSVGNode" => misc::save_svg(call).await,
        "SaveGLB" => misc::save_glb(call).await,

        "RigSleep" => rig::sleep(call).await,
        "RigProgress" => rig::progress(call).await,
        "RigRaise" => rig::raise(call),
        "RigText" | "RigSleepText" | "RigTextProgress" => rig::text(call).await,
        "RigExpand" => rig::expand(call),
        "RigBlock" => rig::block(call),
        "RigAsync" => rig::asynchronous(call),
        "RigExit" => rig::exit(call).await,
        "RigUnserializable" => rig::unserializable(call),
        "RigNan" => Ok(rig::not_a_number()),
        "RigUi" => rig::any_ui(call),
        "RigSink" => Ok(Returned::default()),
        "RigSvg" => Ok(Returned::values([Value::Svg(call.count("seed")?)])),
        "RigMesh" => Ok(Returned::values([Value::Mesh])),

        unknown => Err(Exception::new("NotImplementedError", format!("{unknown} is not simulated")).into()),
    }
}
