//! What the server says about itself: versions, features, nodes, models, folders, logs.

use super::call::Call;
use super::reply::Reply;
use crate::config::{Profile, SimConfig};
use crate::json::{Dict, Json, dict, list};
use http::StatusCode;
use std::path::Path;
use std::time::SystemTime;

/// Model folders in ComfyUI's order, with their places below the base folder.
const FOLDERS: [(&str, &[&str]); 21] = [
    ("checkpoints", &["models/checkpoints", "output/checkpoints"]),
    ("configs", &["models/configs"]),
    ("loras", &["models/loras", "output/loras"]),
    ("vae", &["models/vae", "output/vae"]),
    ("text_encoders", &["models/text_encoders", "models/clip", "output/clip"]),
    ("diffusion_models", &["models/unet", "models/diffusion_models", "output/diffusion_models"]),
    ("clip_vision", &["models/clip_vision"]),
    ("style_models", &["models/style_models"]),
    ("embeddings", &["models/embeddings"]),
    ("diffusers", &["models/diffusers"]),
    ("vae_approx", &["models/vae_approx"]),
    ("controlnet", &["models/controlnet", "models/t2i_adapter"]),
    ("gligen", &["models/gligen"]),
    ("upscale_models", &["models/upscale_models"]),
    ("latent_upscale_models", &["models/latent_upscale_models"]),
    ("custom_nodes", &["custom_nodes"]),
    ("hypernetworks", &["models/hypernetworks"]),
    ("photomaker", &["models/photomaker"]),
    ("classifiers", &["models/classifiers"]),
    ("model_patches", &["models/model_patches"]),
    ("audio_encoders", &["models/audio_encoders"]),
];

/// The memory of the machine that the recordings come from.
const MEMORY: u64 = 25_274_793_984;
const FREE_MEMORY: u64 = 22_405_906_432;
/// Model files of the simulator have no place on any disk; they are all of this age.
const MODEL_DATE: f64 = 1_700_000_000.0;

/// `GET /system_stats`
pub(crate) fn system_stats(call: &Call) -> Reply {
    let profile = call.life.config.profile;
    let os = if profile >= Profile::V0_7_0 { "linux" } else { "posix" };
    let mut system = Dict::new();
    let mut put = |key: &str, value: Json| system.insert(key.to_owned(), value);
    put("os", os.into());
    put("ram_total", MEMORY.into());
    put("ram_free", FREE_MEMORY.into());
    put("comfyui_version", profile.version().into());
    let versions = match profile {
        Profile::V0_3_30 => None,
        Profile::V0_3_64 => Some(("1.27.10", "0.1.94")),
        Profile::V0_7_0 => Some(("1.35.9", "0.7.65")),
    };
    if let Some((frontend, templates)) = versions {
        put("required_frontend_version", frontend.into());
        put("installed_templates_version", "0.7.65".into());
        put("required_templates_version", templates.into());
    }
    put("python_version", "3.11.7 (main, May  9 2026, 07:35:25) [GCC 12.2.0]".into());
    put("pytorch_version", "2.9.1+cu128".into());
    put("embedded_python", false.into());
    put("argv", list(argv(call)));
    let device = dict([
        ("name", Json::from("cpu")),
        ("type", "cpu".into()),
        ("index", Json::Null),
        ("vram_total", MEMORY.into()),
        ("vram_free", FREE_MEMORY.into()),
        ("torch_vram_total", MEMORY.into()),
        ("torch_vram_free", FREE_MEMORY.into()),
    ]);
    ok(dict([("system", Json::Dict(system)), ("devices", list([device]))]))
}

fn argv(call: &Call) -> Vec<String> {
    let base = call.host.base_dir.display().to_string();
    let addr = call.host.addr;
    let mut argv = vec!["main.py".to_owned(), "--cpu".to_owned()];
    for (flag, value) in [
        ("--listen", addr.ip().to_string()),
        ("--port", addr.port().to_string()),
        ("--base-directory", base.clone()),
        ("--user-directory", format!("{base}/user")),
    ] {
        argv.extend([flag.to_owned(), value]);
    }
    argv.push("--disable-auto-launch".to_owned());
    argv
}

/// `GET /features`
pub(crate) fn features(call: &Call) -> Reply {
    ok(feature_flags(&call.life.config))
}

/// What the server can do, for the route and for the socket.
pub(crate) fn feature_flags(config: &SimConfig) -> Json {
    let mut flags = Dict::new();
    flags.insert("supports_preview_metadata".to_owned(), true.into());
    flags.insert("max_upload_size".to_owned(), config.max_upload_bytes.into());
    if config.profile >= Profile::V0_7_0 {
        let manager = dict([("supports_v4", Json::Bool(true))]);
        flags.insert("extension".to_owned(), dict([("manager", manager)]));
    }
    Json::Dict(flags)
}

/// `GET /object_info`
pub(crate) fn object_info(call: &Call) -> Reply {
    call.life.engine.object_info(None).into()
}

/// `GET /object_info/{class}`
pub(crate) fn object_info_of(call: &Call) -> Reply {
    call.life.engine.object_info(Some(call.param(0))).into()
}

/// `GET /models`
pub(crate) fn models(call: &Call) -> Reply {
    ok(list(folders(call).into_iter().map(|(name, _)| name)))
}

/// `GET /models/{folder}`
pub(crate) fn models_of(call: &Call) -> Reply {
    match names(call, call.param(0)) {
        Some(names) => ok(list(names)),
        None => Reply::empty(StatusCode::NOT_FOUND),
    }
}

/// `GET /embeddings`
pub(crate) fn embeddings(call: &Call) -> Reply {
    let names = names(call, "embeddings").unwrap_or_default();
    ok(list(names.iter().map(|name| super::paths::split_ending(name).0)))
}

/// `GET /experiment/models`
pub(crate) fn model_folders(call: &Call) -> Reply {
    let visible =
        folders(call).into_iter().filter(|(name, _)| !matches!(name.as_str(), "configs" | "custom_nodes"));
    ok(list(visible.map(|(name, paths)| dict([("name", Json::from(name)), ("folders", list(paths))]))))
}

/// `GET /experiment/models/{folder}`
pub(crate) fn model_files(call: &Call) -> Reply {
    let Some(names) = names(call, call.param(0)) else {
        return Reply::empty(StatusCode::NOT_FOUND);
    };
    let file = |name: String| {
        dict([
            ("name", Json::from(name)),
            ("pathIndex", 0.into()),
            ("modified", MODEL_DATE.into()),
            ("created", MODEL_DATE.into()),
            ("size", 0.into()),
        ])
    };
    ok(list(names.into_iter().map(file)))
}

/// `GET /experiment/models/preview/{folder}/{index}/{file}`: no model has a preview.
pub(crate) fn model_preview(call: &Call) -> Reply {
    let Ok(index) = call.param(1).parse::<usize>() else {
        return Reply::trouble();
    };
    match folders(call).into_iter().find(|(name, _)| name == call.param(0)) {
        Some((_, paths)) if index >= paths.len() => Reply::trouble(),
        _ => Reply::empty(StatusCode::NOT_FOUND),
    }
}

/// `GET /view_metadata/{folder}`: no model has metadata.
pub(crate) fn view_metadata(_call: &Call) -> Reply {
    Reply::empty(StatusCode::NOT_FOUND)
}

/// `GET /internal/folder_paths`
pub(crate) fn folder_paths(call: &Call) -> Reply {
    let members = folders(call).into_iter().map(|(name, paths)| (name, list(paths)));
    ok(Json::Dict(members.collect()))
}

/// `GET /internal/files/{type}`: the newest first, without subfolders.
pub(crate) async fn files(call: &mut Call) -> Reply {
    let Some(dir) = call.dir_of_type(call.param(0)).map(Path::to_owned) else {
        let error = dict([("error", Json::from("Invalid directory type"))]);
        return Reply::json(StatusCode::BAD_REQUEST, &error);
    };
    match tokio::task::spawn_blocking(move || newest_first(&dir)).await {
        Ok(Ok(names)) => ok(list(names)),
        _ => Reply::trouble(),
    }
}

fn newest_first(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A file may be gone between the two looks.
        if let Ok(metadata) = entry.path().metadata()
            && metadata.is_file()
            && !name.starts_with('.')
        {
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), name));
        }
    }
    files.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    Ok(files.into_iter().map(|(_, name)| name).collect())
}

/// `GET /internal/logs`
pub(crate) fn logs(call: &Call) -> Reply {
    ok(call.life.log.text().into())
}

/// `GET /internal/logs/raw`
pub(crate) fn raw_logs(call: &Call) -> Reply {
    let size = dict([("cols", Json::from(80)), ("rows", 24.into())]);
    ok(dict([("entries", call.life.log.entries()), ("size", size)]))
}

/// `PATCH /internal/logs/subscribe`
pub(crate) async fn subscribe_logs(call: &mut Call) -> Reply {
    let body = match call.json().await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    match (body.get("clientId").and_then(Json::as_str), body.get("enabled")) {
        (Some(client), Some(enabled)) => {
            call.life.log.follow(client, enabled.is_truthy());
            Reply::empty(StatusCode::OK)
        }
        _ => Reply::trouble(),
    }
}

/// All model folders with their places.
fn folders(call: &Call) -> Vec<(String, Vec<String>)> {
    let place = |below: &str| call.host.base_dir.join(below).display().to_string();
    let mut folders: Vec<_> = FOLDERS
        .iter()
        .map(|(name, paths)| ((*name).to_owned(), paths.iter().map(|path| place(path)).collect()))
        .collect();
    for name in call.life.config.models.keys() {
        if !folders.iter().any(|(known, _)| known == name) {
            folders.push((name.clone(), vec![place(&format!("models/{name}"))]));
        }
    }
    folders
}

/// The models of a folder; `None` if there is no such folder.
fn names(call: &Call, folder: &str) -> Option<Vec<String>> {
    let configured = call.life.config.models.get(folder);
    let known = configured.is_some() || FOLDERS.iter().any(|(name, _)| *name == folder);
    let mut names = configured.cloned().unwrap_or_default();
    names.sort();
    known.then_some(names)
}

fn ok(value: Json) -> Reply {
    Reply::json(StatusCode::OK, &value)
}
