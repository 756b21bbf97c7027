//! `/models`, `/experiment/models`, `/embeddings`, `/view_metadata`: the model files of all workers.
//!
//! Two sources are united: what the loaders of every worker offer, from the store, and what the workers that this process
//! drives say when asked. Paths on workers are not told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::merge::Merged;
use super::pass::pass_on;
use crate::access::{Caller, ReadCaller};
use crate::error::{ApiError, ApiResult};
use crate::extract::{ApiPath, ApiQuery};
use crate::state::AppState;
use remuda_runner::ask::{Answers, Driven};

/// The folders of every ComfyUI, in its order.
const USUAL: [&str; 21] = [
    "checkpoints",
    "configs",
    "loras",
    "vae",
    "text_encoders",
    "diffusion_models",
    "clip_vision",
    "style_models",
    "embeddings",
    "diffusers",
    "vae_approx",
    "controlnet",
    "gligen",
    "upscale_models",
    "latent_upscale_models",
    "custom_nodes",
    "hypernetworks",
    "photomaker",
    "classifiers",
    "model_patches",
    "audio_encoders",
];

/// What folders were called in older versions.
const OLD_NAMES: [(&str, &str); 2] = [("clip", "text_encoders"), ("unet", "diffusion_models")];

/// The folders of all workers, and whether somebody could not be asked.
pub(super) struct Folders {
    pub(super) names: Vec<String>,
    driven: Vec<Driven>,
    complete: bool,
}

/// The folders of all workers.
pub(super) async fn folders(state: &AppState) -> ApiResult<Folders> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let asked = state.catalogue.ask.all(&driven, &["models"]).await;
    let (complete, weight) = (asked.silent.is_empty(), asked.weight);
    let list = move || {
        let mut names: Vec<String> = USUAL.iter().map(|&name| name.to_owned()).collect();
        let mut known: BTreeSet<String> = names.iter().cloned().collect();
        for name in texts(&asked) {
            if known.insert(name.to_owned()) {
                names.push(name.to_owned());
            }
        }
        names
    };
    let names = state.catalogue.ask.digest(weight, list).await;
    let names = names.map_err(|_| ApiError::busy("answers of workers"))?;
    Ok(Folders { names, driven, complete })
}

/// All texts in lists of texts.
fn texts(answers: &Answers) -> impl Iterator<Item = &str> {
    let lists = answers.given.iter().filter_map(|(_, answer)| answer.as_array());
    lists.flatten().filter_map(Value::as_str)
}

/// A folder that there is, in its present name. None: there is no such folder.
async fn folder(state: &AppState, name: &str) -> ApiResult<Option<(String, Vec<Driven>)>> {
    let name = OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, now)| now);
    let folders = folders(state).await?;
    if folders.names.iter().any(|known| known == name) {
        return Ok(Some((name.to_owned(), folders.driven)));
    }
    if folders.complete {
        return Ok(None);
    }
    let error = "a worker that may have this folder does not answer: try again in a moment";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "worker_silent", error).retry_after(5))
}

/// What all workers together have. Nothing while no worker is known.
async fn known(state: &AppState) -> ApiResult<Option<Arc<Merged>>> {
    match state.catalogue.known.merged(&state.store, &state.pool).await {
        Ok(merged) => Ok(Some(merged)),
        Err(error) if error.body.code == super::known::NOBODY => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the loaders of all workers offer from a folder.
fn offered<'a>(merged: Option<&'a Merged>, folder: &str) -> Option<&'a BTreeSet<String>> {
    merged?.models.get(folder)
}

/// Makes a list of files and writes it, beside the runtime: workers tell of any number.
async fn listed<T: Serialize>(
    state: &AppState,
    caller: &Caller,
    size: usize,
    list: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<Response> {
    let write = move || serde_json::to_vec(&list());
    let written = state.compute("listing models", &caller.tenant, size, write).await?;
    let written = written.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], written).into_response())
}

/// About how many bytes a name takes.
const NAME: usize = 64;

/// `GET /models`
pub(super) async fn list(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Vec<String>>> {
    Ok(Json(folders(&state).await?.names))
}

/// `GET /models/{folder}`
pub(super) async fn of_folder(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(name): ApiPath<String>,
) -> ApiResult<Response> {
    let Some((folder, driven)) = folder(&state, &name).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let merged = known(&state).await?;
    let asked = state.catalogue.ask.all(&driven, &["models", &folder]).await;
    let size = asked.weight + NAME * offered(merged.as_deref(), &folder).map_or(0, BTreeSet::len);
    let list = move || {
        let mut files = offered(merged.as_deref(), &folder).cloned().unwrap_or_default();
        files.extend(texts(&asked).map(str::to_owned));
        files
    };
    listed(&state, &caller, size, list).await
}

/// `GET /embeddings`
pub(super) async fn embeddings(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let asked = state.catalogue.ask.all(&driven, &["embeddings"]).await;
    let size = asked.weight;
    let list = move || texts(&asked).map(str::to_owned).collect::<BTreeSet<String>>();
    listed(&state, &caller, size, list).await
}

/// `GET /experiment/models`. Where the folders are is nobody's business.
pub(super) async fn folder_list(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Value>> {
    let folders = folders(&state).await?;
    let shown = folders.names.iter().filter(|name| !matches!(name.as_str(), "configs" | "custom_nodes"));
    Ok(Json(shown.map(|name| json!({"name": name, "folders": [place(name)]})).collect()))
}

/// What stands for the place of a folder.
pub(super) fn place(folder: &str) -> String {
    format!("models/{folder}")
}

/// `GET /experiment/models/{folder}`
pub(super) async fn files(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(name): ApiPath<String>,
) -> ApiResult<Response> {
    let Some((folder, driven)) = folder(&state, &name).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let asked = state.catalogue.ask.all(&driven, &["experiment", "models", &folder]).await;
    let merged = known(&state).await?;
    let size = asked.weight + NAME * offered(merged.as_deref(), &folder).map_or(0, BTreeSet::len);
    let list = move || {
        let mut files: BTreeMap<String, Value> = BTreeMap::new();
        for file in asked.given.iter().filter_map(|(_, answer)| answer.as_array()).flatten() {
            if let Some(name) = file.get("name").and_then(Value::as_str) {
                files.entry(name.to_owned()).or_insert_with(|| file.clone());
            }
        }
        for name in offered(merged.as_deref(), &folder).into_iter().flatten() {
            // Of workers that cannot be asked only the names are known.
            files.entry(name.clone()).or_insert_with(
                || json!({"name": name, "pathIndex": 0, "modified": 0, "created": 0, "size": 0}),
            );
        }
        files.into_values().collect::<Vec<_>>()
    };
    listed(&state, &caller, size, list).await
}

/// `GET /experiment/models/preview/{folder}/{index}/{file}`: from the first worker that has one.
pub(super) async fn preview(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath((folder, index, file)): ApiPath<(String, String, String)>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let mut segments = vec!["experiment", "models", "preview", &folder, &index];
    segments.extend(file.split('/'));
    pass_on(&state, &driven, &method, &segments, None, &headers).await
}

#[derive(Debug, Deserialize)]
pub(super) struct MetadataQuery {
    #[serde(default)]
    filename: String,
}

/// `GET /view_metadata/{folder}`: from the first worker that has the file.
pub(super) async fn metadata(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath(folder): ApiPath<String>,
    ApiQuery(query): ApiQuery<MetadataQuery>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let query: String =
        form_urlencoded::Serializer::new(String::new()).append_pair("filename", &query.filename).finish();
    pass_on(&state, &driven, &method, &["view_metadata", &folder], Some(&query), &headers).await
}
