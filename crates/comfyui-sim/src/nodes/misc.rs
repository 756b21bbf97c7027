//! Plain values, and the kinds of files that are neither picture nor film nor sound.

use super::call::{Call, Returned, borrowed, listed};
use super::files;
use super::value::Value;
use crate::engine::{Exception, Raised};
use crate::json::{Dict, Json, dict, list};
use crate::media::{glb, svg};

pub(super) fn primitive(call: &Call<'_>) -> Result<Returned, Raised> {
    match call.get("value") {
        Some(value) => Ok(Returned::values([value.clone()])),
        None => {
            Err(Exception::new("TypeError", "execute() missing 1 required positional argument: 'value'")
                .into())
        }
    }
}

pub(super) fn preview_any(call: &Call<'_>) -> Returned {
    let text = match call.inputs.get("source") {
        None | Some(Value::Plain(Json::Null)) => "None".to_owned(),
        Some(Value::Plain(json)) => match json {
            Json::List(_) | Json::Dict(_) => json.dump(),
            plain => plain.str(),
        },
        Some(Value::Info(json)) => json.dump(),
        Some(other) => other.text(),
    };
    Returned::ui(dict([("text", list([text]))]))
}

pub(super) async fn save_svg(call: &Call<'_>) -> Result<Returned, Raised> {
    let Some(Value::Svg(seed)) = call.get("svg") else {
        return Err(Exception::new("TypeError", "'svg' is no drawing").into());
    };
    let seed = *seed;
    let place = files::place(&call.text("filename_prefix")?, &call.run.dirs.output, 0, 0)?;
    let mut metadata = Dict::new();
    metadata.insert("prompt".into(), call.prompt.clone());
    metadata.extend(call.png_info.as_dict().cloned().unwrap_or_default());
    let metadata = Json::Dict(metadata).dump();
    let file = place.file(0, "svg");
    let title = call.run.prompt_id.clone();
    call.write(place.folder.join(&file), move || {
        Ok(svg::encode(64, 64, &title, seed, &metadata).into_bytes())
    })
    .await?;
    Ok(Returned::ui(dict([("images", list([listed(&file, &place.subfolder, "output")]))])))
}

pub(super) async fn save_glb(call: &Call<'_>) -> Result<Returned, Raised> {
    let place = files::place(&call.text("filename_prefix")?, &call.run.dirs.output, 0, 0)?;
    let metadata = call.metadata()?;
    let file = place.only_file("glb");
    call.write(place.folder.join(&file), move || Ok(glb::encode(&borrowed(&metadata)))).await?;
    Ok(Returned::ui(dict([("3d", list([listed(&file, &place.subfolder, "output")]))])))
}
