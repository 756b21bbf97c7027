//! Films and animated pictures.

use super::call::{Call, Returned, borrowed, listed};
use super::files;
use super::value::{Value, Video, size_of};
use crate::engine::{Exception, Raised};
use crate::json::{Dict, Json, dict, list};
use crate::media::{Audio, EncodeError, Image, apng, mp4, probe, webm, webp};
use std::sync::Arc;

pub(super) type Batch = Arc<Vec<Arc<Image>>>;

/// The pictures themselves, for encoders.
pub(super) fn owned(images: &[Arc<Image>]) -> Vec<Image> {
    images.iter().map(|image| (**image).clone()).collect()
}

/// Writes one file made from a batch and returns its listing.
async fn write_film(
    call: &Call<'_>,
    images: Batch,
    ending: &str,
    encode: impl FnOnce(&[Image], &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> + Send + 'static,
) -> Result<Json, Raised> {
    let (width, height) = size_of(&images);
    let place =
        files::place(&call.text("filename_prefix")?, &call.run.dirs.output, width as u32, height as u32)?;
    let metadata = call.metadata()?;
    let file = place.only_file(ending);
    call.write(place.folder.join(&file), move || encode(&owned(&images), &borrowed(&metadata))).await?;
    Ok(list([listed(&file, &place.subfolder, "output")]))
}

/// The listing of animated pictures. Newer versions do not mention that a single picture does not move.
fn animated(call: &Call<'_>, listing: Json, count: usize) -> Returned {
    let mut ui = Dict::new();
    ui.insert("images".into(), listing);
    if count > 1 || !call.class.newer {
        ui.insert("animated".into(), list([count > 1]));
    }
    Returned::ui(Json::Dict(ui))
}

pub(super) async fn save_webp(call: &Call<'_>) -> Result<Returned, Raised> {
    let (images, fps) = (call.images("images")?, call.float("fps")?);
    let count = images.len();
    let encode =
        move |frames: &[Image], metadata: &[(&str, &str)]| webp::encode_animated(frames, fps, metadata);
    let listing = write_film(call, images, "webp", encode).await?;
    Ok(animated(call, listing, count))
}

pub(super) async fn save_apng(call: &Call<'_>) -> Result<Returned, Raised> {
    let (images, fps) = (call.images("images")?, call.float("fps")?);
    // Older versions call every animated PNG animated, even one of a single picture.
    let count = if call.class.newer { images.len() } else { 2 };
    let encode = move |frames: &[Image], metadata: &[(&str, &str)]| apng::encode(frames, fps, metadata);
    let listing = write_film(call, images, "png", encode).await?;
    Ok(animated(call, listing, count))
}

pub(super) async fn save_webm(call: &Call<'_>) -> Result<Returned, Raised> {
    let (images, fps) = (call.images("images")?, call.float("fps")?);
    let encode = move |frames: &[Image], metadata: &[(&str, &str)]| webm::encode(frames, fps, None, metadata);
    let listing = write_film(call, images, "webm", encode).await?;
    Ok(Returned::ui(dict([("images", listing), ("animated", list([true]))])))
}

pub(super) fn create(call: &Call<'_>) -> Result<Returned, Raised> {
    let audio = match call.get("audio") {
        Some(_) => Some(call.audio("audio")?),
        None => None,
    };
    let video = Video { frames: call.images("images")?, fps: call.float("fps")?, audio, source: None };
    Ok(Returned::values([Value::Video(Arc::new(video))]))
}

fn video(call: &Call<'_>) -> Result<Arc<Video>, Raised> {
    match call.get("video") {
        Some(Value::Video(video)) => Ok(video.clone()),
        _ => Err(Exception::new("TypeError", "'video' is no video").into()),
    }
}

pub(super) async fn save(call: &Call<'_>) -> Result<Returned, Raised> {
    let video = video(call)?;
    let format = call.text("format")?;
    if !["auto", "mp4"].contains(&format.as_str()) {
        let message = format!("{} is not a valid VideoContainer", crate::json::repr_str(&format));
        return Err(Exception::new("ValueError", message).into());
    }
    let frames = video.frames.clone();
    let encode = move |frames: &[Image], metadata: &[(&str, &str)]| match &video.source {
        Some(bytes) => Ok((**bytes).clone()),
        None => mp4::encode(frames, video.fps, video.audio.as_deref(), metadata),
    };
    let listing = write_film(call, frames, "mp4", encode).await?;
    Ok(Returned::ui(dict([("images", listing), ("animated", list([true]))])))
}

pub(super) fn components(call: &Call<'_>) -> Result<Returned, Raised> {
    let video = video(call)?;
    let audio = video.audio.clone().map_or(Value::Plain(Json::Null), Value::Audio);
    Ok(Returned::values([Value::Images(video.frames.clone()), audio, Value::Plain(video.fps.into())]))
}

/// What a film file says about itself, or what PyAV says about it.
pub(super) fn probed(call: &Call<'_>, name: &str) -> Result<(probe::VideoInfo, Vec<u8>), Raised> {
    let (path, bytes) = call.read(name)?;
    match probe::video(&bytes) {
        Ok(info) => Ok((info, bytes)),
        Err(_) => Err(invalid_data(&path).into()),
    }
}

/// PyAV's complaint about a file it cannot read.
pub(super) fn invalid_data(path: &std::path::Path) -> Exception {
    let message =
        format!("[Errno 1094995529] Invalid data found when processing input: {}", super::call::quoted(path));
    Exception::new("av.error.InvalidDataError", message)
}

/// Stand-ins for the frames of a film: grey, getting lighter.
pub(super) fn stand_ins(count: usize, width: u32, height: u32) -> Batch {
    let frame = |index: usize| {
        let shade = (40 + index * 180 / count.max(1)).min(255) as u8;
        Arc::new(Image::solid(width, height, [shade; 3]))
    };
    Arc::new((0..count.max(1)).map(frame).collect())
}

/// A quiet tone as long as the film.
pub(super) fn stand_in_sound(seconds: f64) -> Audio {
    Audio::sine(44_100, 2, seconds.clamp(0.0, 3600.0), 220.0)
}

pub(super) fn load(call: &Call<'_>) -> Result<Returned, Raised> {
    let (info, bytes) = probed(call, &call.text("file")?)?;
    let seconds = f64::from(info.frames) / info.fps.max(0.01);
    let video = Video {
        frames: stand_ins(info.frames as usize, info.width, info.height),
        fps: info.fps,
        audio: info.has_audio.then(|| Arc::new(stand_in_sound(seconds))),
        source: Some(Arc::new(bytes)),
    };
    Ok(Returned::values([Value::Video(Arc::new(video))]))
}
