//! The web page: ComfyUI's own frontend if its folder was given, else a page that says what this is.

use super::call::Call;
use super::file;
use super::paths;
use super::reply::Reply;
use crate::json::{Json, list};
use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use std::path::Path;

/// `GET /`
pub(crate) async fn root(call: &mut Call) -> Reply {
    let headers = HeaderMap::from_iter([
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::PRAGMA, HeaderValue::from_static("no-cache")),
        (header::EXPIRES, HeaderValue::from_static("0")),
    ]);
    match &call.life.config.frontend {
        Some(dir) => file::send(&dir.join("index.html"), call.headers(), headers).await,
        None => {
            let html = HeaderValue::from_static("text/html");
            let mut reply = Reply::bytes(StatusCode::OK, html, Bytes::from(page(call)));
            reply.headers.extend(headers);
            reply
        }
    }
}

fn page(call: &Call) -> String {
    let version = call.life.config.profile.version();
    let remaining = call.life.engine.queue_remaining();
    let executed = call.host.executions.snapshot().executions_total;
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>ComfyUI simulator</title>\
         <style>body{{font:16px/1.5 system-ui;max-width:40em;margin:4em auto;padding:0 1em}}</style></head><body>\
         <h1>A simulated ComfyUI {version}</h1>\
         <p>It answers as the real one does, needs no GPU and loads no model: the pictures it makes only say what they \
         were asked to show. {remaining} prompts wait or run, {executed} were executed.</p>\
         <ul><li><a href=\"/queue\">queue</a></li><li><a href=\"/history\">history</a></li>\
         <li><a href=\"/object_info\">nodes</a></li><li><a href=\"/system_stats\">system</a></li>\
         <li><a href=\"/sim/stats\">what was executed</a></li><li><a href=\"/sim/faults\">faults</a></li></ul>\
         <p>For ComfyUI's own page, start the simulator with the folder of its frontend package.</p></body></html>\n"
    )
}

/// Any GET that is no route: a file of the frontend.
pub(crate) async fn static_file(call: &Call) -> Reply {
    let path = call.path();
    if path.starts_with("//") {
        return Reply::raise(StatusCode::NOT_FOUND);
    }
    let Some(dir) = &call.life.config.frontend else {
        return Reply::no_such_file();
    };
    let name = percent_decode_str(path.trim_start_matches('/')).decode_utf8_lossy().into_owned();
    let file = paths::resolve(dir, &name);
    if !paths::within(dir, &file) {
        return Reply::raise(StatusCode::NOT_FOUND);
    }
    if file.is_dir() {
        return Reply::raise(StatusCode::FORBIDDEN);
    }
    file::send(&file, call.headers(), HeaderMap::new()).await
}

/// `GET /extensions`: the scripts of the frontend's own extensions.
pub(crate) async fn extensions(call: &mut Call) -> Reply {
    let Some(root) = call.life.config.frontend.clone() else {
        return Reply::json(StatusCode::OK, &Json::List(Vec::new()));
    };
    let found = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        scripts(&root, &root.join("extensions"), &mut found);
        found.sort();
        found
    });
    match found.await {
        Ok(found) => Reply::json(StatusCode::OK, &list(found)),
        Err(_) => Reply::trouble(),
    }
}

fn scripts(root: &Path, dir: &Path, found: &mut Vec<String>) {
    // A folder that cannot be read has no scripts.
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            scripts(root, &path, found);
        } else if path.extension().is_some_and(|ending| ending == "js")
            && let Ok(relative) = path.strip_prefix(root)
        {
            found.push(format!("/{}", relative.to_string_lossy().replace('\\', "/")));
        }
    }
}

/// `GET /i18n`, `/workflow_templates`, `/global_subgraphs`: nothing without custom nodes.
pub(crate) fn nothing() -> Reply {
    Reply::json(StatusCode::OK, &Json::empty_dict())
}

/// `GET /global_subgraphs/{id}`
pub(crate) fn no_subgraph() -> Reply {
    Reply::json(StatusCode::OK, &Json::Null)
}
