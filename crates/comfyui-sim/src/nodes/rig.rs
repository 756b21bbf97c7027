//! Test nodes: they sleep, count, fail, expand and block on request. The recordings were made with such nodes.

use super::call::{Call, Expansion, Random, Returned};
use super::images::one;
use super::value::Value;
use crate::config::Profile;
use crate::engine::{Exception, Frame, Preview, Raised};
use crate::json::{Json, dict, list};
use crate::media::{Image, jpeg, png};
use std::time::Duration;
use tokio::time::Instant;

/// The picture most of them give: grey, chosen by the seed.
fn plain(seed: u64) -> Value {
    let shade = (seed % 256) as u8;
    one(Image::solid(16, 16, [shade; 3]))
}

fn image_or_plain(call: &Call<'_>) -> Result<Value, Raised> {
    match call.get("image") {
        Some(image) => Ok(image.clone()),
        None => Ok(plain(call.count("seed")?)),
    }
}

fn text_ui(text: String) -> Returned {
    Returned::ui(dict([("text", list([text]))]))
}

pub(super) async fn sleep(call: &Call<'_>) -> Result<Returned, Raised> {
    call.pause_secs(call.float("seconds")?).await?;
    Ok(Returned::values([image_or_plain(call)?]))
}

pub(super) async fn progress(call: &Call<'_>) -> Result<Returned, Raised> {
    let steps = call.count("steps")?;
    let pause = Duration::from_millis(call.count("step_ms")?);
    let kind = call.text("preview")?;
    // A number that comes by a link is not held to the declared limit.
    let size = call.size("preview_size")?.min(8192);
    let mut random = Random(call.count("seed")?);
    for step in 1..=steps {
        call.run.pause(pause).await;
        let preview = (kind != "none").then(|| noise(size, &mut random, kind == "JPEG"));
        call.run.step(call.node, step, steps, preview)?;
        tokio::task::yield_now().await;
    }
    Ok(Returned::values([plain(call.count("seed")?)]))
}

fn noise(size: u32, random: &mut Random, as_jpeg: bool) -> Preview {
    let count = size.max(1) as usize;
    let pixels = (0..count * count * 3).map(|_| random.next() as u8).collect();
    let image = Image::from_rgb(size.max(1), size.max(1), pixels)
        .unwrap_or_else(|| Image::solid(size.max(1), size.max(1), [128; 3]));
    let jpeg = as_jpeg.then(|| jpeg::encode(&image, 95).ok()).flatten();
    match jpeg {
        Some(image) => Preview { image, jpeg: true },
        None => Preview { image: png::encode(&image, &[]), jpeg: false },
    }
}

pub(super) fn raise(call: &Call<'_>) -> Result<Returned, Raised> {
    let message = call.text("message")?;
    let place = |line| [Frame::at("/srv/comfyui-data/custom_nodes/rig_nodes/__init__.py", line, "run")];
    Err(match call.text("kind")?.as_str() {
        "ValueError" => Exception::new("ValueError", message).raised_in(place(109)).into(),
        "OOM" => Exception::new("torch.OutOfMemoryError", message).raised_in(place(113)).into(),
        "Unicode" => {
            let message = format!("ошибка 画像 \u{2028} {message}");
            Exception::new("ValueError", message).raised_in(place(115)).into()
        }
        "SystemExit" | "KeyboardInterrupt" => Raised::WorkerEnds,
        _ => return Ok(Returned::values([image_or_plain(call)?])),
    })
}

pub(super) async fn text(call: &Call<'_>) -> Result<Returned, Raised> {
    if call.class.name == "RigSleepText" {
        call.pause_secs(call.float("seconds")?).await?;
    }
    let text = call.text("text")?;
    if call.class.name == "RigTextProgress" {
        call.run.show_text(call.node, &text);
    }
    Ok(text_ui(text))
}

/// Sleeps, inverts, and by mode saves, fails or bites its own tail.
pub(super) fn expand(call: &Call<'_>) -> Result<Returned, Raised> {
    let seed = Json::from(call.count("seed")?);
    let id = |number: u32| format!("{}.0.0.{number}", call.node);
    let link = |number: u32| Json::List(vec![Json::Str(id(number)), Json::Int(0)]);
    let node = |class: &str, inputs: Json| dict([("class_type", class.into()), ("inputs", inputs)]);
    let mode = call.text("mode")?;
    let mut first = vec![("seconds", Json::Float(0.05)), ("seed", seed.clone())];
    if mode == "cycle" {
        first.push(("image", link(2)));
    }
    let first = Json::Dict(first.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    let mut nodes =
        vec![(id(1), node("RigSleep", first)), (id(2), node("ImageInvert", dict([("image", link(1))])))];
    let mut result = link(2);
    match mode.as_str() {
        "save" => {
            let inputs = dict([("images", link(2)), ("filename_prefix", "rig/expanded".into())]);
            nodes.push((id(3), node("SaveImage", inputs)));
        }
        "raise" => {
            let inputs = dict([
                ("kind", "ValueError".into()),
                ("message", "inside the expansion".into()),
                ("seed", seed),
                ("image", link(2)),
            ]);
            nodes.push((id(3), node("RigRaise", inputs)));
            result = link(3);
        }
        _ => {}
    }
    let expansion = Expansion { nodes, results: vec![result] };
    Ok(Returned { expansion: Some(expansion), ..Returned::default() })
}

pub(super) fn block(call: &Call<'_>) -> Result<Returned, Raised> {
    let message = call.text("message")?;
    let shown = (!call.flag("silent")?).then(|| message.into());
    Ok(Returned::values([Value::Blocked(shown)]))
}

pub(super) fn asynchronous(call: &Call<'_>) -> Result<Returned, Raised> {
    if call.run.profile() < Profile::V0_3_64 {
        // That version does not know coroutines and takes the one it gets for a result.
        return Err(Exception::new("TypeError", "object of type 'coroutine' has no len()").into());
    }
    let pause = Duration::try_from_secs_f64(call.float("seconds")?).unwrap_or_default();
    let ready_at = Instant::now() + call.run.stretched(pause);
    let outputs = vec![plain(call.count("seed")?)];
    Ok(Returned { outputs, ready_at: Some(ready_at), ..Returned::default() })
}

pub(super) async fn exit(call: &Call<'_>) -> Result<Returned, Raised> {
    call.run.pause(Duration::from_millis(call.count("after_ms")?)).await;
    Err(Raised::ProcessEnds)
}

pub(super) fn unserializable(call: &Call<'_>) -> Result<Returned, Raised> {
    let ui = dict([("scores", list([call.count("seed")? as f64]))]);
    Ok(Returned { unserializable: true, ..Returned::ui(ui) })
}

pub(super) fn not_a_number() -> Returned {
    Returned::ui(dict([("scores", list([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5]))]))
}

pub(super) fn any_ui(call: &Call<'_>) -> Result<Returned, Raised> {
    let text = call.text("ui_json")?;
    let ui =
        text.parse().map_err(|error| Exception::new("json.decoder.JSONDecodeError", format!("{error}")))?;
    Ok(Returned::ui(ui))
}
