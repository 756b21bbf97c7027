//! The user's own files (saved workflows, templates, style sheets), kept in `user/default`.

use super::call::Call;
use super::file;
use super::paths;
use super::reply::{Content, Reply};
use super::settings::user_dir;
use crate::json::{Dict, Json, dict};
use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode_str;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// `GET /userdata?dir=`
pub(crate) async fn list(call: &mut Call) -> Reply {
    let Some(dir) = call.query("dir").filter(|dir| !dir.is_empty()) else {
        return Reply::text(StatusCode::BAD_REQUEST, "Directory not provided");
    };
    let Some(path) = locate(call, dir) else {
        return Reply::text(StatusCode::FORBIDDEN, "Invalid directory");
    };
    if !path.exists() {
        return Reply::text(StatusCode::NOT_FOUND, "Directory not found");
    }
    let (recurse, full, split) =
        (call.query_is_true("recurse"), call.query_is_true("full_info"), call.query_is_true("split"));
    blocking(move || {
        let mut found = Vec::new();
        // A file in the place of a folder holds nothing.
        if path.is_dir() {
            walk(&path, &path, recurse, &mut |entry| {
                if !entry.metadata.is_dir() && !entry.hidden {
                    found.push(listed(entry, full, split));
                }
                !entry.hidden
            })?;
        }
        Ok(Reply::json(StatusCode::OK, &Json::List(found)))
    })
    .await
}

fn listed(entry: &Entry, full: bool, split: bool) -> Json {
    if full {
        return file_info(&entry.relative, &entry.metadata);
    }
    if split {
        let whole = std::iter::once(entry.relative.as_str());
        return Json::List(whole.chain(entry.relative.split('/')).map(Json::from).collect());
    }
    Json::from(&entry.relative)
}

/// `GET /v2/userdata?path=`: everything below a folder, folders first.
pub(crate) async fn list_v2(call: &mut Call) -> Reply {
    let wanted = call.query("path").unwrap_or_default();
    let wanted = percent_decode_str(wanted).decode_utf8_lossy().into_owned();
    let root = user_dir(call);
    let path = paths::resolve(&root, &decoded(&wanted));
    if !paths::within(&root, &path) {
        return Reply::text(StatusCode::BAD_REQUEST, "Invalid path requested");
    }
    if !path.exists() {
        return if path == root {
            Reply::json(StatusCode::OK, &Json::List(Vec::new()))
        } else {
            Reply::text(StatusCode::NOT_FOUND, "Requested path not found")
        };
    }
    if !path.is_dir() {
        return Reply::text(StatusCode::BAD_REQUEST, "Requested path is not a directory");
    }
    blocking(move || {
        let mut found = Vec::new();
        walk(&root, &path, true, &mut |entry| {
            let kind = if entry.metadata.is_dir() { "directory" } else { "file" };
            let name = entry.relative.rsplit('/').next().unwrap_or_default();
            let mut info = Dict::new();
            info.insert("name".to_owned(), name.into());
            info.insert("path".to_owned(), Json::from(&entry.relative));
            info.insert("type".to_owned(), kind.into());
            if entry.metadata.is_file() {
                info.insert("size".to_owned(), entry.metadata.len().into());
                info.insert("modified".to_owned(), seconds(entry.metadata.modified()));
            }
            found.push((kind != "directory", name.to_lowercase(), Json::Dict(info)));
            true
        })?;
        found.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        Ok(Reply::json(StatusCode::OK, &Json::List(found.into_iter().map(|(.., info)| info).collect())))
    })
    .await
}

/// `GET /userdata/{file}`
pub(crate) async fn get(call: &mut Call) -> Reply {
    match existing(call, 0) {
        Ok(path) => file::send(&path, call.headers(), HeaderMap::new()).await,
        Err(status) => Reply::empty(status),
    }
}

/// `POST /userdata/{file}`
pub(crate) async fn put(call: &mut Call) -> Reply {
    let Some(path) = locate(call, call.param(0)) else {
        return Reply::empty(StatusCode::FORBIDDEN);
    };
    if call.query("overwrite") == Some("false") && path.exists() {
        return Reply::text(StatusCode::CONFLICT, "File already exists");
    }
    let bytes = match call.bytes().await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    let (root, full) = (user_dir(call), call.query_is_true("full_info"));
    blocking(move || match std::fs::write(&path, bytes) {
        Ok(()) => stored(&root, &path, full),
        Err(_) => Ok(Reply::empty(StatusCode::BAD_REQUEST)),
    })
    .await
}

/// `DELETE /userdata/{file}`
pub(crate) async fn delete(call: &mut Call) -> Reply {
    match existing(call, 0) {
        Ok(path) => match tokio::fs::remove_file(path).await {
            Ok(()) => Reply::new(StatusCode::NO_CONTENT, Content::Nothing),
            Err(_) => Reply::trouble(),
        },
        Err(status) => Reply::empty(status),
    }
}

/// `POST /userdata/{file}/move/{dest}`
pub(crate) async fn rename(call: &mut Call) -> Reply {
    let source = match existing(call, 0) {
        Ok(path) => path,
        Err(status) => return Reply::empty(status),
    };
    let Some(target) = locate(call, call.param(1)) else {
        return Reply::empty(StatusCode::FORBIDDEN);
    };
    if call.query("overwrite") == Some("false") && target.exists() {
        return Reply::text(StatusCode::CONFLICT, "File already exists");
    }
    let (root, full) = (user_dir(call), call.query_is_true("full_info"));
    blocking(move || {
        std::fs::rename(&source, &target)?;
        stored(&root, &target, full)
    })
    .await
}

fn stored(root: &Path, path: &Path, full: bool) -> io::Result<Reply> {
    let relative = relative(root, path);
    let answer = if full { file_info(&relative, &path.metadata()?) } else { relative.into() };
    Ok(Reply::json(StatusCode::OK, &answer))
}

/// The path of a file that the request names, if it stays in the user's folder. The folder around it is made.
fn locate(call: &Call, name: &str) -> Option<PathBuf> {
    let root = user_dir(call);
    let path = paths::resolve(&root, &decoded(name));
    if !paths::within(&root, &path) {
        return None;
    }
    if let Some(parent) = path.parent()
        && let Err(error) = std::fs::create_dir_all(parent)
    {
        tracing::debug!(%error, "cannot make a folder for user data");
    }
    Some(path)
}

/// Names are decoded a second time, as ComfyUI does.
fn decoded(name: &str) -> String {
    percent_decode_str(name).decode_utf8_lossy().into_owned()
}

fn existing(call: &Call, param: usize) -> Result<PathBuf, StatusCode> {
    match locate(call, call.param(param)) {
        None => Err(StatusCode::FORBIDDEN),
        Some(path) if !path.exists() => Err(StatusCode::NOT_FOUND),
        Some(path) => Ok(path),
    }
}

struct Entry {
    relative: String,
    metadata: Metadata,
    hidden: bool,
}

/// Visits everything in a folder by name; `visit` says whether to go into a folder.
fn walk(root: &Path, dir: &Path, recurse: bool, visit: &mut dyn FnMut(&Entry) -> bool) -> io::Result<()> {
    let mut paths = std::fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        // A file may be gone between the two looks.
        let Ok(metadata) = path.metadata() else { continue };
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let entry = Entry { relative: relative(root, &path), metadata, hidden };
        if visit(&entry) && recurse && entry.metadata.is_dir() {
            walk(root, &path, recurse, visit)?;
        }
    }
    Ok(())
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

fn file_info(relative: &str, metadata: &Metadata) -> Json {
    dict([
        ("path", Json::from(relative)),
        ("size", metadata.len().into()),
        ("modified", seconds(metadata.modified())),
        ("created", seconds(metadata.created().or_else(|_| metadata.modified()))),
    ])
}

fn seconds(time: io::Result<SystemTime>) -> Json {
    let since = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    since.as_secs_f64().into()
}

async fn blocking(work: impl FnOnce() -> io::Result<Reply> + Send + 'static) -> Reply {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(reply)) => reply,
        _ => Reply::trouble(),
    }
}
