//! `POST /upload/image` and `POST /upload/mask`.

use super::call::{Call, body_refusal, pairs};
use super::mask;
use super::multipart::{self, Form, FormError, Upload, Value};
use super::paths;
use super::reply::Reply;
use crate::json::{Json, dict};
use http::StatusCode;
use http::header;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// `POST /upload/image`
pub(crate) async fn image(call: &mut Call) -> Reply {
    upload(call, false).await
}

/// `POST /upload/mask`
pub(crate) async fn mask(call: &mut Call) -> Reply {
    upload(call, true).await
}

async fn upload(call: &mut Call, is_mask: bool) -> Reply {
    let mut form = match form(call).await {
        Ok(form) => form,
        Err(refusal) => return refusal,
    };
    let kind = match form.get("type") {
        None => "input".to_owned(),
        Some(Value::Text(kind)) => kind.clone(),
        Some(_) => return Reply::trouble(),
    };
    let Some(dir) = call.dir_of_type(&kind).map(Path::to_owned) else {
        return Reply::trouble();
    };
    let image = match form.take("image") {
        Some(Value::File(upload)) => upload,
        Some(Value::Text(text)) if text.is_empty() => return Reply::empty(StatusCode::BAD_REQUEST),
        Some(Value::Bytes(bytes)) if bytes.is_empty() => return Reply::empty(StatusCode::BAD_REQUEST),
        Some(_) => return Reply::trouble(),
        None => return Reply::empty(StatusCode::BAD_REQUEST),
    };
    let subfolder = match form.get("subfolder") {
        None => String::new(),
        Some(Value::Text(subfolder)) => subfolder.clone(),
        Some(_) => return Reply::trouble(),
    };
    let folder = paths::resolve(&dir, &subfolder);
    if !paths::within(&dir, &paths::resolve(&folder, &image.filename)) {
        return Reply::empty(StatusCode::BAD_REQUEST);
    }
    if call.host.faults.disk_full() {
        return Reply::trouble();
    }
    let overwrite = matches!(form.get("overwrite"), Some(Value::Text(text)) if text == "true" || text == "1");
    let original = match form.get("original_ref") {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let dirs = call.dirs().clone();
    let store = move || -> io::Result<String> {
        let place = Place::find(&folder, &image, overwrite)?;
        if !place.same {
            if is_mask {
                mask::save(&dirs, original.as_deref(), image.file.path(), &place.path)?;
            } else {
                image.file.persist(&place.path).map_err(|error| error.error)?;
            }
        }
        Ok(place.name)
    };
    match tokio::task::spawn_blocking(store).await {
        Ok(Ok(name)) => {
            let answer =
                dict([("name", Json::from(name)), ("subfolder", subfolder.into()), ("type", kind.into())]);
            Reply::json(StatusCode::OK, &answer)
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "upload failed");
            Reply::trouble()
        }
        Err(_) => Reply::trouble(),
    }
}

/// Reads the form as aiohttp's `post()` does: other content types are a form without fields.
async fn form(call: &mut Call) -> Result<Form, Reply> {
    let content_type = call.header(header::CONTENT_TYPE).unwrap_or("application/octet-stream").to_owned();
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "multipart/form-data" => {
            let boundary = multipart::boundary(&content_type).ok_or_else(Reply::trouble)?;
            let limit = call.life.config.max_upload_bytes;
            let dir = call.host.base_dir.clone();
            multipart::read(&mut call.body, &boundary, &dir).await.map_err(|error| match error {
                FormError::Body(error) => body_refusal(&error, limit),
                FormError::Malformed | FormError::Io(_) => Reply::trouble(),
            })
        }
        "application/x-www-form-urlencoded" => {
            let bytes = call.bytes().await?;
            Ok(Form::from_pairs(pairs(&String::from_utf8_lossy(&bytes))))
        }
        _ => Ok(Form::default()),
    }
}

/// Where an upload goes.
struct Place {
    name: String,
    path: PathBuf,
    /// The same bytes lie there already.
    same: bool,
}

impl Place {
    fn find(folder: &Path, upload: &Upload, overwrite: bool) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut place = Self {
            name: upload.filename.clone(),
            path: paths::resolve(folder, &upload.filename),
            same: false,
        };
        if overwrite {
            return Ok(place);
        }
        let (stem, ending) = paths::split_ending(&upload.filename);
        for number in 1.. {
            if !place.path.exists() {
                break;
            }
            if same_bytes(&place.path, upload.file.path())? {
                place.same = true;
                break;
            }
            place.name = format!("{stem} ({number}){ending}");
            place.path = folder.join(&place.name);
        }
        Ok(place)
    }
}

fn same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (std::fs::File::open(one)?, std::fs::File::open(other)?);
    // Reading a folder is an error that has to come out even if the sizes differ.
    let mut first = vec![0; 128 * 1024];
    let mut second = vec![0; 128 * 1024];
    loop {
        let read = one.read(&mut first)?;
        let mut compared = 0;
        while compared < read {
            let more = other.read(&mut second[..read - compared])?;
            if more == 0 || first[compared..compared + more] != second[..more] {
                return Ok(false);
            }
            compared += more;
        }
        if read == 0 {
            return Ok(other.read(&mut second)? == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::same_bytes;

    #[test]
    fn files_are_compared_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (name, content) in [("a", "same"), ("b", "same"), ("c", "same but longer"), ("d", "")] {
            std::fs::write(path(name), content).unwrap();
        }
        let same = |one, other| same_bytes(&path(one), &path(other)).unwrap();
        assert!(same("a", "b") && same("d", "d"));
        assert!(!same("a", "c") && !same("c", "a") && !same("a", "d") && !same("d", "a"));
        assert!(same_bytes(dir.path(), &path("a")).is_err());
    }
}
