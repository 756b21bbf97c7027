//! The two nodes of VideoHelperSuite that everybody uses.

use super::call::{Call, Returned, borrowed};
use super::files;
use super::films::{owned, probed, stand_in_sound, stand_ins};
use super::value::{Value, size_of};
use crate::engine::Raised;
use crate::json::{Json, dict, list};
use crate::media::{EncodeError, Image, gif, mp4, png, webm, webp};
use std::sync::Arc;

pub(super) async fn load(call: &Call<'_>) -> Result<Returned, Raised> {
    let (info, _) = probed(call, &call.text("video")?)?;
    let every = call.count("select_every_nth")?.max(1) as usize;
    let left = (info.frames as usize).saturating_sub(call.count("skip_first_frames")? as usize);
    let cap = call.count("frame_load_cap")? as usize;
    let count = left.div_ceil(every);
    let count = if cap > 0 { count.min(cap) } else { count }.max(1);
    let side = |wanted: u32, own: u32| if wanted > 0 { wanted } else { own };
    let width = side(call.size("custom_width")?, info.width);
    let height = side(call.size("custom_height")?, info.height);
    for frame in 1..=count as u64 {
        call.run.step(call.node, frame, count as u64, None)?;
        tokio::task::yield_now().await;
    }
    let force_rate = call.float("force_rate")?;
    let fps = if force_rate > 0.0 { force_rate } else { info.fps };
    let duration = |frames: f64, fps: f64| Json::Float(frames / fps.max(0.01));
    let about = dict([
        ("source_fps", info.fps.into()),
        ("source_frame_count", info.frames.into()),
        ("source_duration", duration(f64::from(info.frames), info.fps)),
        ("source_width", info.width.into()),
        ("source_height", info.height.into()),
        ("loaded_fps", (fps / every as f64).into()),
        ("loaded_frame_count", count.into()),
        ("loaded_duration", duration(count as f64, fps / every as f64)),
        ("loaded_width", width.into()),
        ("loaded_height", height.into()),
    ]);
    let audio = if info.has_audio {
        Value::Audio(Arc::new(stand_in_sound(f64::from(info.frames) / info.fps.max(0.01))))
    } else {
        Value::Plain(Json::Null)
    };
    Ok(Returned::values([
        Value::Images(stand_ins(count, width, height)),
        Value::Plain(count.into()),
        audio,
        Value::Info(Arc::new(about)),
    ]))
}

/// The ending of a format's files.
fn ending_of(format: &str) -> &'static str {
    let name = format.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    for ending in ["gif", "webp", "webm", "png", "mkv", "mov"] {
        if name.contains(ending) {
            return ending;
        }
    }
    if name.contains("prores") { "mov" } else { "mp4" }
}

/// One more than the highest number behind `name_` in any file of the folder.
fn next_number(folder: &std::path::Path, name: &str) -> u64 {
    let start = format!("{}_", name.to_lowercase());
    let number = |file: String| -> Option<u64> {
        let rest = file.to_lowercase().strip_prefix(&start)?.to_owned();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = rest.split_at(digits);
        let (between, ending) = rest.split_once('.')?;
        let clean = !between.contains(|c: char| c.is_ascii_digit()) && !ending.is_empty();
        if clean { number.parse().ok() } else { None }
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| number(entry.file_name().into_string().ok()?)).max().unwrap_or(0) + 1
}

pub(super) async fn combine(call: &Call<'_>) -> Result<Returned, Raised> {
    let mut frames = (*call.images("images")?).clone();
    if call.flag("pingpong")? && frames.len() > 2 {
        let back: Vec<_> = frames[1..frames.len() - 1].iter().rev().cloned().collect();
        frames.extend(back);
    }
    let fps = call.float("frame_rate")?;
    let format = call.text("format")?;
    let audio = match call.get("audio") {
        Some(_) => Some(call.audio("audio")?),
        None => None,
    };
    let kept = call.flag("save_output")?;
    let (root, kind) = if kept { (&call.run.dirs.output, "output") } else { (&call.run.dirs.temp, "temp") };
    let (width, height) = size_of(&frames);
    let place = files::place(&call.text("filename_prefix")?, root, width as u32, height as u32)?;
    let metadata = Arc::new(call.metadata()?);
    let base = format!("{}_{:05}", place.name, next_number(&place.folder, &place.name));
    let first = frames[0].clone();
    let texts = metadata.clone();
    let picture = format!("{base}.png");
    call.write(place.folder.join(&picture), move || Ok(png::encode(&first, &borrowed(&texts)))).await?;
    for step in 1..=frames.len() as u64 {
        call.run.step(call.node, step, frames.len() as u64, None)?;
        tokio::task::yield_now().await;
    }
    let ending = ending_of(&format);
    let frames = Arc::new(owned(&frames));
    let silent = format!("{base}.{ending}");
    let encode = {
        let (frames, metadata) = (frames.clone(), metadata.clone());
        move || encode_film(ending, &frames, fps, None, &borrowed(&metadata))
    };
    call.write(place.folder.join(&silent), encode).await?;
    let mut file = silent;
    if let Some(audio) = audio.filter(|_| matches!(ending, "mp4" | "webm" | "mkv" | "mov")) {
        file = format!("{base}-audio.{ending}");
        let encode = move || encode_film(ending, &frames, fps, Some(&audio), &borrowed(&metadata));
        call.write(place.folder.join(&file), encode).await?;
    }
    let listing = dict([
        ("filename", Json::from(&file)),
        ("subfolder", Json::from(&place.subfolder)),
        ("type", kind.into()),
        ("format", format.into()),
        ("frame_rate", fps.into()),
        ("workflow", picture.into()),
        ("fullpath", place.folder.join(&file).display().to_string().into()),
    ]);
    let names = Value::Info(Arc::new(Json::List(vec![Json::Bool(kept), list([file])])));
    Ok(Returned { outputs: vec![names], ..Returned::ui(dict([("gifs", list([listing]))])) })
}

fn encode_film(
    ending: &str,
    frames: &[Image],
    fps: f64,
    audio: Option<&crate::media::Audio>,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>, EncodeError> {
    match ending {
        "gif" => gif::encode(frames, fps),
        "webp" => webp::encode_animated(frames, fps, metadata),
        "webm" | "mkv" => webm::encode(frames, fps, audio, metadata),
        _ => mp4::encode(frames, fps, audio, metadata),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_over_all_endings() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(next_number(folder.path(), "out"), 1);
        for name in ["out_00002-audio.mp4", "out_00003.png", "out_9x9.mp4", "other_00050.mp4", "out_00007"] {
            std::fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(next_number(folder.path(), "out"), 4);
    }

    #[test]
    fn formats_have_their_endings() {
        for (format, ending) in [
            ("video/h264-mp4", "mp4"),
            ("video/webm", "webm"),
            ("video/av1-webm", "webm"),
            ("image/gif", "gif"),
            ("image/webp", "webp"),
            ("video/ProRes", "mov"),
        ] {
            assert_eq!(ending_of(format), ending);
        }
    }
}
