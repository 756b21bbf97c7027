//! The way of a render: loaders, prompts, latents, samplers, decoders.
//!
//! Nothing is rendered. A decoded picture is a card that shows which task made it.

use super::call::{Call, Returned, borrowed, listed};
use super::files;
use super::value::{Latent, Model, Sampled, Value, size_of};
use crate::engine::{Exception, Preview, Raised};
use crate::json::{dict, list};
use crate::media::{Card, Image, card, jpeg, safetensors};
use std::sync::Arc;

/// Previews are no larger than this.
const PREVIEW_SIDE: u32 = 256;

fn model(file: String) -> Arc<Model> {
    Arc::new(Model { file, loras: Vec::new() })
}

pub(super) async fn checkpoint(call: &Call<'_>) -> Result<Returned, Raised> {
    let file = call.text("ckpt_name")?;
    call.load_model(&file).await;
    let loaded = model(file);
    Ok(Returned::values([Value::Model(loaded.clone()), Value::Clip(loaded), Value::Vae]))
}

pub(super) async fn unet(call: &Call<'_>) -> Result<Returned, Raised> {
    let file = call.text("unet_name")?;
    call.load_model(&file).await;
    Ok(Returned::values([Value::Model(model(file))]))
}

pub(super) fn clip(call: &Call<'_>) -> Result<Returned, Raised> {
    let input = if call.class.name == "DualCLIPLoader" { "clip_name1" } else { "clip_name" };
    Ok(Returned::values([Value::Clip(model(call.text(input)?))]))
}

pub(super) fn upscale_model(call: &Call<'_>) -> Result<Returned, Raised> {
    let file = call.text("model_name")?;
    let factor = if file.to_ascii_lowercase().contains("2x") { 2 } else { 4 };
    Ok(Returned::values([Value::UpscaleModel(factor)]))
}

pub(super) fn lora(call: &Call<'_>) -> Result<Returned, Raised> {
    let file = call.text("lora_name")?;
    let altered = |model: Arc<Model>| {
        let mut model = (*model).clone();
        model.loras.push(file.clone());
        Arc::new(model)
    };
    let (model, clip) = (call.model("model")?, call.model("clip")?);
    Ok(Returned::values([Value::Model(altered(model)), Value::Clip(altered(clip))]))
}

/// Nodes that hand on their first input as it is, as far as a card can show.
pub(super) fn pass(call: &Call<'_>, inputs: &[&str]) -> Result<Returned, Raised> {
    let values: Option<Vec<Value>> = inputs.iter().map(|name| call.get(name).cloned()).collect();
    match values {
        Some(values) => Ok(Returned::values(values)),
        None => Err(Exception::new("TypeError", format!("{}() misses an input", call.class.name)).into()),
    }
}

pub(super) fn encode_text(call: &Call<'_>) -> Result<Returned, Raised> {
    call.model("clip")?;
    Ok(Returned::values([Value::Conditioning(call.text("text")?.into())]))
}

pub(super) fn empty_latent(call: &Call<'_>) -> Result<Returned, Raised> {
    let latent = Latent {
        width: call.size("width")?,
        height: call.size("height")?,
        batch: call.batch("batch_size")? as u32,
        channels: if call.class.name == "EmptySD3LatentImage" { 16 } else { 4 },
        source: None,
        sampled: None,
    };
    Ok(Returned::values([Value::Latent(Arc::new(latent))]))
}

pub(super) fn encode(call: &Call<'_>) -> Result<Returned, Raised> {
    let pixels = call.images("pixels")?;
    let (width, height) = size_of(&pixels);
    let latent = Latent {
        width: width as u32,
        height: height as u32,
        batch: pixels.len() as u32,
        channels: 4,
        source: Some(pixels),
        sampled: None,
    };
    Ok(Returned::values([Value::Latent(Arc::new(latent))]))
}

fn latent(call: &Call<'_>, name: &str) -> Result<Arc<Latent>, Raised> {
    match call.get(name) {
        Some(Value::Latent(latent)) => Ok(latent.clone()),
        _ => Err(Exception::new("TypeError", format!("'{name}' is no latent")).into()),
    }
}

pub(super) fn scale_latent(call: &Call<'_>) -> Result<Returned, Raised> {
    let mut scaled = (*latent(call, "samples")?).clone();
    match (call.size("width")?, call.size("height")?) {
        (0, 0) => {}
        (0, height) => {
            scaled.width =
                (u64::from(scaled.width) * u64::from(height) / u64::from(scaled.height.max(1))) as u32;
            scaled.height = height;
        }
        (width, 0) => {
            scaled.height =
                (u64::from(scaled.height) * u64::from(width) / u64::from(scaled.width.max(1))) as u32;
            scaled.width = width;
        }
        (width, height) => (scaled.width, scaled.height) = (width, height),
    }
    Ok(Returned::values([Value::Latent(Arc::new(scaled))]))
}

pub(super) async fn sample(call: &Call<'_>) -> Result<Returned, Raised> {
    let advanced = call.class.name == "KSamplerAdvanced";
    let steps = call.size("steps")?;
    let done = if advanced {
        let end = call.size("end_at_step")?.min(steps);
        end.saturating_sub(call.size("start_at_step")?)
    } else {
        steps
    };
    let before = latent(call, "latent_image")?;
    let sampled = Arc::new(Sampled {
        prompt: call.conditioning("positive")?.to_string(),
        seed: call.count(if advanced { "noise_seed" } else { "seed" })?,
        steps,
        cfg: call.float("cfg")?,
        sampler: call.text("sampler_name")?,
        scheduler: call.text("scheduler")?,
        model: (*call.model("model")?).clone(),
    });
    call.conditioning("negative")?;
    if call.run.faults.out_of_memory {
        return Err(out_of_memory());
    }
    // The loader may have been served from the cache while another model took the memory.
    call.load_model(&sampled.model.file).await;
    for step in 1..=done {
        call.run.pause(call.run.config.step).await;
        let preview = if call.run.previews {
            let (sampled, size) = (sampled.clone(), preview_size(before.width, before.height));
            // Drawing is short work, but not for the thread that serves everybody else.
            tokio::task::spawn_blocking(move || show_step(&sampled, size, step, done)).await.ok().flatten()
        } else {
            None
        };
        call.run.step(call.node, step.into(), done.into(), preview)?;
        tokio::task::yield_now().await;
    }
    let after = Latent { sampled: Some(sampled), ..(*before).clone() };
    Ok(Returned::values([Value::Latent(Arc::new(after))]))
}

/// The exception of a GPU that is too small.
pub(super) fn out_of_memory() -> Raised {
    Exception::new(
        "torch.OutOfMemoryError",
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 22.87 GiB\n\
         Requested               : 1.50 GiB\nDevice limit            : 23.64 GiB\nFree (according to CUDA): 21.81 MiB",
    )
    .into()
}

fn preview_size(width: u32, height: u32) -> (u32, u32) {
    let longer = width.max(height).max(1);
    let side =
        |side: u32| (u64::from(side) * u64::from(PREVIEW_SIDE.min(longer)) / u64::from(longer)).max(1) as u32;
    (side(width), side(height))
}

fn show_step(sampled: &Sampled, (width, height): (u32, u32), step: u32, steps: u32) -> Option<Preview> {
    let image = draw(sampled, width, height, sampled.seed, Some((step, steps)));
    jpeg::encode(&image, 95).ok().map(|image| Preview { image, jpeg: true })
}

fn draw(sampled: &Sampled, width: u32, height: u32, seed: u64, step: Option<(u32, u32)>) -> Image {
    let steps = sampled.steps.to_string();
    let cfg = crate::json::repr_float(sampled.cfg);
    let loras = sampled.model.loras.join(", ");
    let mut lines = vec![
        ("steps", steps.as_str()),
        ("cfg", cfg.as_str()),
        ("sampler", sampled.sampler.as_str()),
        ("scheduler", sampled.scheduler.as_str()),
    ];
    if !loras.is_empty() {
        lines.push(("lora", &loras));
    }
    card::draw(&Card {
        width,
        height,
        title: &sampled.model.file,
        lines: &lines,
        prompt: &sampled.prompt,
        seed,
        step,
    })
}

pub(super) async fn decode(call: &Call<'_>) -> Result<Returned, Raised> {
    let latent = latent(call, "samples")?;
    let images = tokio::task::spawn_blocking(move || decoded(&latent)).await;
    let images = images.map_err(|_| Exception::new("RuntimeError", "the decoder gave up"))?;
    Ok(Returned::values([Value::Images(Arc::new(images))]))
}

fn decoded(latent: &Latent) -> Vec<Arc<Image>> {
    let (width, height) = (latent.width.max(8), latent.height.max(8));
    match (&latent.sampled, &latent.source) {
        (Some(sampled), _) => (0..latent.batch)
            .map(|index| {
                let seed = sampled.seed.wrapping_add(u64::from(index));
                Arc::new(draw(sampled, width, height, seed, Some((sampled.steps, sampled.steps))))
            })
            .collect(),
        (None, Some(source)) => (**source).clone(),
        (None, None) => {
            let grey = Arc::new(Image::solid(width, height, [127; 3]));
            vec![grey; latent.batch as usize]
        }
    }
}

pub(super) async fn save_latent(call: &Call<'_>) -> Result<Returned, Raised> {
    let latent = latent(call, "samples")?;
    let place = files::place(&call.text("filename_prefix")?, &call.run.dirs.output, 0, 0)?;
    let metadata = call.metadata()?;
    let file = place.only_file("latent");
    let seed = latent.sampled.as_ref().map_or(0, |sampled| sampled.seed);
    let shape = latent.shape();
    call.write(place.folder.join(&file), move || Ok(safetensors::encode(shape, seed, &borrowed(&metadata))))
        .await?;
    Ok(Returned::ui(dict([("latents", list([listed(&file, &place.subfolder, "output")]))])))
}
