//! Users and settings, kept in `user/default`.

use super::call::Call;
use super::reply::Reply;
use crate::json::{Dict, Json, dict};
use http::StatusCode;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "comfy.settings.json";

/// The folder of the only user.
pub(crate) fn user_dir(call: &Call) -> PathBuf {
    call.dirs().user.join("default")
}

/// `GET /users`
pub(crate) fn users(call: &Call) -> Reply {
    let answer = dict([("storage", Json::from("server")), ("migrated", user_dir(call).exists().into())]);
    Reply::json(StatusCode::OK, &answer)
}

/// `POST /users`: gives out an id, which nothing uses without `--multi-user`.
pub(crate) async fn add_user(call: &mut Call) -> Reply {
    let refuse = |text: &str| Reply::json(StatusCode::BAD_REQUEST, &dict([("error", Json::from(text))]));
    let body = match call.json().await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let Some(name) = body.get("username").and_then(Json::as_str) else {
        return Reply::trouble();
    };
    let name = name.trim();
    if name == "default" {
        return refuse("Duplicate username.");
    }
    if name.is_empty() {
        return refuse("username not provided");
    }
    if name.starts_with("__") {
        return refuse("System User prefix not allowed");
    }
    let mut id = String::new();
    for character in name.chars() {
        match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => id.push(character),
            _ if id.ends_with('-') => {}
            _ => id.push('-'),
        }
    }
    let id = format!("{id}_{}", uuid::Uuid::new_v4());
    Reply::json(StatusCode::OK, &id.into())
}

/// `GET /settings`
pub(crate) async fn all(call: &mut Call) -> Reply {
    match with_settings(call, |settings| (Json::Dict(settings.clone()), false)).await {
        Ok(settings) => Reply::json(StatusCode::OK, &settings),
        Err(_) => Reply::trouble(),
    }
}

/// `GET /settings/{id}`
pub(crate) async fn one(call: &mut Call) -> Reply {
    let id = call.param(0).to_owned();
    let look = move |settings: &mut Dict| (settings.get(&id).cloned().unwrap_or(Json::Null), false);
    match with_settings(call, look).await {
        Ok(value) => Reply::json(StatusCode::OK, &value),
        Err(_) => Reply::trouble(),
    }
}

/// `POST /settings`
pub(crate) async fn change_all(call: &mut Call) -> Reply {
    match call.json().await {
        Ok(Json::Dict(new)) => change(call, move |settings| settings.extend(new)).await,
        Ok(_) => Reply::trouble(),
        Err(refusal) => refusal,
    }
}

/// `POST /settings/{id}`
pub(crate) async fn change_one(call: &mut Call) -> Reply {
    let id = call.param(0).to_owned();
    match call.json().await {
        Ok(value) => {
            change(call, move |settings| {
                settings.insert(id, value);
            })
            .await
        }
        Err(refusal) => refusal,
    }
}

async fn change(call: &Call, change: impl FnOnce(&mut Dict) + Send + 'static) -> Reply {
    let changed = with_settings(call, |settings| {
        change(settings);
        ((), true)
    });
    match changed.await {
        Ok(()) => Reply::empty(StatusCode::OK),
        Err(_) => Reply::trouble(),
    }
}

/// Reads the settings, lets somebody look at them or change them, and writes them if he says so.
async fn with_settings<T: Send + 'static>(
    call: &Call,
    act: impl FnOnce(&mut Dict) -> (T, bool) + Send + 'static,
) -> io::Result<T> {
    let dir = user_dir(call);
    let host = call.host.clone();
    let work = move || {
        // One at a time, or one change would undo another.
        let _turn = host.settings_turn();
        std::fs::create_dir_all(&dir)?;
        let file = dir.join(FILE);
        let mut settings = read(&file);
        let (value, write) = act(&mut settings);
        if write {
            std::fs::write(&file, Json::Dict(settings).dump())?;
        }
        Ok(value)
    };
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Settings that cannot be read are no settings.
fn read(file: &Path) -> Dict {
    match std::fs::read(file).ok().and_then(|bytes| Json::parse(&bytes).ok()) {
        Some(Json::Dict(settings)) => settings,
        _ => Dict::new(),
    }
}
