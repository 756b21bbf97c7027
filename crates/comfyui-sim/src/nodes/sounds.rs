//! Sound.

use super::call::{Call, Returned, borrowed, listed};
use super::files;
use super::films::invalid_data;
use super::value::Value;
use crate::engine::{Exception, Raised};
use crate::json::{Json, dict, list};
use crate::media::{Audio, flac, mp3, opus, probe};
use std::sync::Arc;

/// Longer sound is refused as a lack of memory.
const MOST_SAMPLES: f64 = 64e6;

pub(super) fn empty(call: &Call<'_>) -> Result<Returned, Raised> {
    let (rate, seconds) = (call.size("sample_rate")?, call.float("duration")?);
    let channels = call.size("channels")?;
    if seconds * f64::from(rate) * f64::from(channels.max(1)) > MOST_SAMPLES || channels > 64 {
        return Err(Exception::new("MemoryError", "").into());
    }
    let audio = Audio::silence(rate, channels as usize, seconds);
    Ok(Returned::values([Value::Audio(Arc::new(audio))]))
}

pub(super) fn load(call: &Call<'_>) -> Result<Returned, Raised> {
    let (path, bytes) = call.read(&call.text("audio")?)?;
    let info = probe::audio(&bytes).map_err(|_| invalid_data(&path))?;
    let seconds = info.seconds.clamp(0.0, MOST_SAMPLES / f64::from(info.sample_rate.max(1)));
    let audio = Audio::sine(info.sample_rate.max(1), info.channels.max(1) as usize, seconds, 440.0);
    Ok(Returned::values([Value::Audio(Arc::new(audio))]))
}

async fn write(call: &Call<'_>, prefix: &str, kind: &str, ending: &'static str) -> Result<Returned, Raised> {
    let audio = call.audio("audio")?;
    let root = if kind == "temp" { &call.run.dirs.temp } else { &call.run.dirs.output };
    let place = files::place(prefix, root, 0, 0)?;
    let metadata = call.metadata()?;
    let file = place.file(0, ending);
    call.write(place.folder.join(&file), move || {
        let metadata = borrowed(&metadata);
        match ending {
            "mp3" => mp3::encode(&audio, &metadata),
            "opus" => opus::encode(&audio, &metadata),
            _ => flac::encode(&audio, &metadata),
        }
    })
    .await?;
    let listing: Json = list([listed(&file, &place.subfolder, kind)]);
    Ok(Returned::ui(dict([("audio", listing)])))
}

pub(super) async fn save(call: &Call<'_>, ending: &'static str) -> Result<Returned, Raised> {
    let prefix = call.text("filename_prefix")?;
    write(call, &prefix, "output", ending).await
}

pub(super) async fn preview(call: &Call<'_>) -> Result<Returned, Raised> {
    let prefix = if call.class.newer { call.temp_prefix() } else { call.kept_temp_prefix() };
    write(call, &prefix, "temp", "flac").await
}
