//! A good end, as the client sees it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use remuda_core::{JsonText, OutputFile, Task, TaskId, TaskResult};
use remuda_files::{FileKey, Files};
use remuda_store::Glance;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use url::Url;
use utoipa::ToSchema;

use super::accept::{Accept, Choice};
use super::error::{PROMPT_ID, SyncError};
use super::stream::{self as pieces, Piece};
use crate::error::{ApiError, ApiResult};
use crate::native::names;
use crate::routes::{Sendable, send};
use crate::service;
use crate::share::{PATIENCE, Pass, TurnedAway, Visit};
use crate::state::AppState;
use crate::wire::absolute;

/// How many files are looked for at once.
const LOOKS: usize = 8;

/// About how many bytes a line about a file takes.
const FILE: usize = 512;

/// How many media types are named to a client that wants none of them.
const MOST_TYPES: usize = 10;

/// What a prompt left.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PromptResult {
    /// The prompt, also in `/history`.
    prompt_id: String,
    /// `success`.
    #[schema(value_type = String, example = "success")]
    status: &'static str,
    /// In seconds, from the receipt of the request.
    execution_time: f64,
    /// `outputs` of ComfyUI's history entry.
    #[schema(value_type = Object)]
    outputs: Value,
    /// Parts of the graph that ComfyUI refused while it ran the others, by node.
    #[schema(value_type = Object)]
    node_errors: JsonText,
    /// Every file, of whatever kind, by the node that made it.
    images: BTreeMap<String, Vec<FileLine>>,
}

/// What a prompt left that failed on the way.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Left {
    /// `outputs` of ComfyUI's history entry.
    outputs: JsonText,
    /// The files, by the node that made them.
    images: JsonText,
}

/// One file.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FileLine {
    filename: String,
    subfolder: String,
    /// `output` or `temp`.
    #[serde(rename = "type")]
    file_type: String,
    /// Media type.
    mime: String,
    /// In bytes.
    size: i64,
    /// Where to fetch it.
    url: String,
    /// The file as base64, when that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

/// How the client wants the answer.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) accept: Accept,
    pub(super) base64: bool,
}

/// About how many bytes are read and written to show a result.
fn size_of(result: &TaskResult) -> usize {
    let errors = result.node_errors.as_ref().map_or(0, |errors| errors.get().len());
    result.outputs.get().len() + errors + FILE * result.files.len()
}

/// Answers with what a completed task left. `foreseen`: which of its nodes were known not to run.
pub(super) async fn success(
    state: &AppState,
    seen: Glance,
    foreseen: Map<String, Value>,
    took: Duration,
    form: &Form,
    permit: Pass,
) -> Result<Response, SyncError> {
    let prompt_id = names::prompt_id(&seen.task);
    let (task, counted) = service::whole(state, &Visit::guest(), seen).await?;
    let mut result = task.result.unwrap_or_default();
    // What ComfyUI said counts; what was said for it before holds where it said nothing.
    result.node_errors.get_or_insert_with(|| Value::Object(foreseen).into());
    let answered = match form.accept.choose(&result.files) {
        Choice::File(file) => {
            drop(counted);
            one_file(state, file).await
        }
        Choice::Nothing => {
            let there: BTreeSet<&str> = result.files.iter().map(|file| file.mime.as_str()).collect();
            let there: Vec<&str> = there.into_iter().take(MOST_TYPES).collect();
            let there = if there.is_empty() { "no files".to_owned() } else { there.join(", ") };
            let detail = format!(
                "the prompt left {there}, and as application/json everything; Accept wants none of it"
            );
            return Err(SyncError::not_acceptable(detail).prompt_id(prompt_id));
        }
        Choice::Json => {
            let size = size_of(&result);
            let (id, head_id, base64) = (task.id, prompt_id.clone(), form.base64);
            let base = state.public_url.clone();
            let plan = move || {
                let head = PromptResult::new(id, &head_id, &result, took);
                let pieces = plan(&head, id, &result.files, base64, base.as_ref())?;
                Ok((pieces, if base64 { result.files } else { Vec::new() }))
            };
            let planned = state.compute_of("writing an answer", &task.tenant, id, size, plan).await;
            match planned.and_then(|planned| planned) {
                Ok((pieces, sent)) => everything(state, pieces, &sent, permit, counted).await,
                Err(error) => Err(error),
            }
        }
    };
    let mut response = answered.map_err(|error| SyncError::from(error).prompt_id(prompt_id.as_str()))?;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(id) = HeaderValue::from_str(&prompt_id) {
        headers.insert(PROMPT_ID, id);
    }
    Ok(response)
}

/// What a failed task had done before, if it was something. Files are named, never sent.
pub(super) async fn left(state: &AppState, task: &Task) -> ApiResult<Option<Left>> {
    let Some(result) = &task.result else { return Ok(None) };
    let (id, size, result, base) = (task.id, size_of(result), result.clone(), state.public_url.clone());
    let write = move || {
        let mut images: BTreeMap<&str, Vec<FileLine>> = BTreeMap::new();
        for file in &result.files {
            images.entry(&file.node_id).or_default().push(FileLine::new(id, file, base.as_ref()));
        }
        let text = |text: serde_json::Result<Box<RawValue>>| {
            text.map(JsonText::from).map_err(|error| ApiError::internal(error.to_string()))
        };
        Ok(Left {
            outputs: text(to_raw_value(&names::shown_outputs(id, &result.outputs)))?,
            images: text(to_raw_value(&images))?,
        })
    };
    let _reading = state.permits.read().await?;
    state.compute_of("writing an answer", &task.tenant, id, size, write).await?.map(Some)
}

/// The prompt goes on, and nobody waits for it now.
pub(super) fn later(task: &Task, detail: &str) -> Response {
    let prompt_id = names::prompt_id(task);
    let body = json!({
        "prompt_id": prompt_id,
        "status": task.status.as_str(),
        "detail": detail,
        "url": format!("/history/{}", escaped(&prompt_id)),
    });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(id) = HeaderValue::from_str(&prompt_id) {
        headers.insert(PROMPT_ID, id);
    }
    response
}

impl PromptResult {
    /// Everything but the files.
    fn new(task: TaskId, prompt_id: &str, result: &TaskResult, took: Duration) -> Self {
        Self {
            prompt_id: prompt_id.to_owned(),
            status: "success",
            execution_time: (took.as_secs_f64() * 1000.0).round() / 1000.0,
            outputs: match names::shown_outputs(task, &result.outputs) {
                Value::Null => json!({}),
                outputs => outputs,
            },
            node_errors: result.node_errors.clone().unwrap_or_else(|| json!({}).into()),
            images: BTreeMap::new(),
        }
    }
}

impl FileLine {
    fn new(task: TaskId, file: &OutputFile, base: Option<&Url>) -> Self {
        let subfolder = names::shown_subfolder(task, &file.subfolder);
        Self {
            url: view_url(base, &file.filename, &subfolder, &file.file_type),
            filename: file.filename.clone(),
            subfolder,
            file_type: file.file_type.clone(),
            mime: file.mime.clone(),
            size: file.size,
            data: None,
        }
    }
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Where a file is in the native dialect.
fn view_url(base: Option<&Url>, filename: &str, subfolder: &str, file_type: &str) -> String {
    let query = format!(
        "/view?filename={}&subfolder={}&type={}",
        escaped(filename),
        escaped(subfolder),
        escaped(file_type)
    );
    absolute(base, &query)
}

/// The bytes of one file, as they are.
async fn one_file(state: &AppState, file: &OutputFile) -> ApiResult<Response> {
    let file = Sendable::from(file);
    // Ranges and conditions are for asking again; this file was just made.
    let mut response = send(state, &Method::POST, &HeaderMap::new(), file).await.map_err(gone)?;
    response.headers_mut().remove(header::ACCEPT_RANGES);
    Ok(response)
}

/// Everything as JSON.
async fn everything(
    state: &AppState,
    pieces: Vec<Piece>,
    files: &[OutputFile],
    permit: Pass,
    counted: Option<Pass>,
) -> ApiResult<Response> {
    let held = pieces::held(&pieces);
    let memory = match counted {
        // Never waited for by who has some: those who have some could wait for each other.
        Some(mut counted) => counted.cover(held).map(|()| counted),
        None => state.memory.wait(&Visit::guest(), held, PATIENCE).await,
    };
    let memory = memory.map_err(|_| TurnedAway::Memory)?;
    // Once the first byte is sent there is no way to say that a file is missing.
    let looks: Vec<_> =
        files.iter().map(|file| is_there(state.files.clone(), file.key.clone(), file.size)).collect();
    stream::iter(looks).buffered(LOOKS).try_collect::<()>().await?;
    let length = pieces::length(&pieces);
    let mut response = Response::new(pieces::body(pieces, state.files.clone(), permit, memory));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

async fn is_there(files: Files, key: String, size: i64) -> ApiResult<()> {
    let key = FileKey::parse(&key)?;
    match files.size(&key).await.map_err(|error| gone(error.into()))? {
        Some(found) if i64::try_from(found) == Ok(size) => Ok(()),
        found => {
            let log = format!("{key} should have {size} bytes in the file store and has {found:?}");
            Err(ApiError::internal(log))
        }
    }
}

/// A file that was stored a moment ago and is not there: nothing that the client could have done otherwise.
fn gone(error: ApiError) -> ApiError {
    match error.status {
        StatusCode::NOT_FOUND => ApiError::internal("a file of a result is not in the file store"),
        _ => error,
    }
}

/// The JSON as pieces. With `base64` every file has its place in it.
fn plan(
    head: &PromptResult,
    task: TaskId,
    files: &[OutputFile],
    base64: bool,
    base: Option<&Url>,
) -> ApiResult<Vec<Piece>> {
    let mut text = text_of(head)?;
    // The files come last, and are not in it yet.
    if !text.ends_with("{}}") {
        return Err(ApiError::internal("an answer does not end with its files"));
    }
    text.truncate(text.len() - 2);
    let mut pieces = Vec::new();
    let mut nodes: Vec<(&str, Vec<&OutputFile>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for file in files {
        let place = *places.entry(&file.node_id).or_insert_with(|| {
            nodes.push((&file.node_id, Vec::new()));
            nodes.len() - 1
        });
        nodes[place].1.push(file);
    }
    for (n, (node, files)) in nodes.into_iter().enumerate() {
        text.push_str(if n == 0 { "" } else { "," });
        text.push_str(&text_of(&node)?);
        text.push_str(":[");
        for (n, file) in files.into_iter().enumerate() {
            text.push_str(if n == 0 { "" } else { "," });
            text.push_str(&text_of(&FileLine::new(task, file, base))?);
            if base64 {
                text.truncate(text.len() - 1);
                text.push_str(",\"data\":\"");
                pieces.push(Piece::Text(std::mem::take(&mut text)));
                let size = u64::try_from(file.size).unwrap_or(0);
                pieces.push(Piece::File { key: FileKey::parse(&file.key)?, size });
                text.push_str("\"}");
            }
        }
        text.push(']');
    }
    text.push_str("}}");
    pieces.push(Piece::Text(text));
    Ok(pieces)
}

/// For the table of growth.
#[cfg(test)]
pub(super) fn planned(task: TaskId, result: &TaskResult, took: Duration) -> usize {
    let head = PromptResult::new(task, "x", result, took);
    plan(&head, task, &result.files, true, None).map_or(0, |pieces| pieces.len())
}

fn text_of(value: &impl Serialize) -> ApiResult<String> {
    serde_json::to_string(value).map_err(|error| ApiError::internal(error.to_string()))
}
