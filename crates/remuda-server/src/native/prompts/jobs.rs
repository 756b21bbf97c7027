//! `/api/jobs`: one shape for what waits, runs and has ended.

use std::cmp::Reverse;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use http::{StatusCode, header};
use remuda_core::{Status, Task, TaskInput};
use remuda_store::{OriginOrder, OriginPage};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::entry::{Item, outputs};
use super::list::{fixed, json as streamed, of, separated, text, written};
use super::lookup::{Whole, find_whole};
use super::queue::{cancel, listed};
use super::{NativeError, find, messages};
use crate::access::{Caller, ReadCaller, SubmitCaller};
use crate::error::ApiError;
use crate::extract::SmallBody;
use crate::native::names;
use crate::service;
use crate::share::Visit;
use crate::state::AppState;

/// How many jobs come in one answer at most.
const MOST: u32 = 1000;

/// How many ids can be asked for at once.
const MOST_ASKED: usize = 100;

/// Names of states, as jobs have them.
const STATES: [(&str, Status); 5] = [
    ("pending", Status::Pending),
    ("in_progress", Status::Running),
    ("completed", Status::Completed),
    ("failed", Status::Failed),
    ("cancelled", Status::Cancelled),
];

/// Kinds of output that a page can show.
const VISIBLE: [&str; 5] = ["images", "video", "audio", "3d", "text"];

/// … and endings of files that it can show, whatever their kind.
const VISIBLE_ENDINGS: [&str; 8] = [".obj", ".fbx", ".gltf", ".glb", ".usdz", ".txt", ".md", ".json"];

/// How much of a text is shown as a preview.
const TEXT: usize = 1024;

fn state_of(task: &Task) -> &'static str {
    STATES.iter().find(|(_, status)| *status == task.status).map_or("pending", |(name, _)| name)
}

/// What is asked for.
#[derive(Debug)]
struct Wish {
    states: Vec<Status>,
    workflow: Option<String>,
    ids: Option<Vec<String>>,
    by_duration: bool,
    ascending: bool,
    limit: Option<u32>,
    offset: u32,
}

impl Wish {
    fn read(query: Option<&str>) -> Result<Self, String> {
        let pairs: Vec<(String, String)> =
            url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
        let get = |name: &str| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let list = |text: &str| -> Vec<String> {
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let mut states = Vec::new();
        let mut unknown = Vec::new();
        for name in list(get("status").unwrap_or_default()) {
            let name = name.to_lowercase();
            match STATES.iter().find(|(known, _)| *known == name) {
                Some((_, status)) => states.push(*status),
                None => unknown.push(name),
            }
        }
        if !unknown.is_empty() {
            let known: Vec<&str> = STATES.iter().map(|(name, _)| *name).collect();
            let (unknown, known) = (unknown.join(", "), known.join(", "));
            return Err(format!("Invalid status value(s): {unknown}. Valid values: {known}"));
        }
        if states.is_empty() {
            states = STATES.iter().map(|(_, status)| *status).collect();
        }
        let by_duration = match get("sort_by").unwrap_or("created_at").to_lowercase().as_str() {
            "created_at" => false,
            "execution_duration" => true,
            _ => return Err("sort_by must be 'created_at' or 'execution_duration'".to_owned()),
        };
        let ascending = match get("sort_order").unwrap_or("desc").to_lowercase().as_str() {
            "asc" => true,
            "desc" => false,
            _ => return Err("sort_order must be 'asc' or 'desc'".to_owned()),
        };
        let whole = |name: &str| match get(name).map(|text| text.trim().parse::<i64>()) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(format!("{name} must be an integer")),
        };
        let limit = match whole("limit")? {
            Some(limit) if limit <= 0 => return Err("limit must be a positive integer".to_owned()),
            limit => limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
        };
        let offset = u32::try_from(whole("offset")?.unwrap_or(0).max(0)).unwrap_or(u32::MAX);
        let ids = get("ids").map(list);
        if ids.as_ref().is_some_and(|ids| ids.len() > MOST_ASKED) {
            return Err(format!("ids must contain at most {MOST_ASKED} values"));
        }
        let workflow = get("workflow_id").filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(Self { states, workflow, ids, by_duration, ascending, limit, offset })
    }

    /// How many jobs come at most.
    fn count(&self) -> u32 {
        self.limit.unwrap_or(MOST).min(MOST)
    }
}

fn wrong(status: StatusCode, error: impl Into<String>) -> Response {
    (status, Json(json!({"error": error.into()}))).into_response()
}

/// `GET /api/jobs`.
pub(super) async fn list(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    RawQuery(query): RawQuery,
) -> Result<Response, NativeError> {
    let wish = match Wish::read(query.as_deref()) {
        Ok(wish) => wish,
        Err(error) => return Ok(wrong(StatusCode::BAD_REQUEST, error)),
    };
    let permit = state.permits.download()?;
    let page = look(&state, &caller, &wish).await?;
    let shown = i64::try_from(page.tasks.len()).unwrap_or(i64::MAX);
    let pagination = json!({
        "offset": wish.offset,
        "limit": wish.limit,
        "total": page.total,
        "has_more": i64::from(wish.offset).saturating_add(shown) < page.total,
    });
    let pieces = fixed("{\"jobs\":[")
        .chain(separated(written(&state, Visit::guest(), page.tasks, |task, input| Some(brief(task, input)))))
        .chain(fixed(format!("],\"pagination\":{pagination}}}")))
        .inspect(move |_| {
            let _ = &permit;
        });
    Ok(streamed(pieces))
}

/// The tasks that are asked for, and how many there are.
async fn look(state: &AppState, caller: &Caller, wish: &Wish) -> Result<OriginPage, NativeError> {
    if let Some(ids) = &wish.ids {
        return named(state, caller, wish, ids).await;
    }
    let order = if wish.ascending { OriginOrder::OldestFirst } else { OriginOrder::NewestFirst };
    let mut query = of(&caller.tenant, &wish.states, order, wish.count());
    query.workflow_id.clone_from(&wish.workflow);
    if !wish.by_duration {
        query.offset = wish.offset;
        return Ok(service::list_origin(state, &query).await?);
    }
    // No index has durations: of a long history the newest are sorted. How long one took is in its result.
    query.order = OriginOrder::NewestFirst;
    query.limit = MOST;
    let page = service::list_origin(state, &query).await?;
    let _turn = state.permits.list().await?;
    let mut tasks = Vec::with_capacity(page.tasks.len());
    for task in page.tasks {
        let whole = if task.status.is_terminal() { service::recall(state, task.id).await? } else { None };
        tasks.push(Keyed::new(wish, whole.unwrap_or(task)));
        tokio::task::yield_now().await;
    }
    Ok(OriginPage { tasks: sorted(tasks, wish), total: page.total })
}

/// Those with these ids.
async fn named(
    state: &AppState,
    caller: &Caller,
    wish: &Wish,
    ids: &[String],
) -> Result<OriginPage, NativeError> {
    let mut tasks: Vec<Keyed> = Vec::new();
    for id in ids {
        let task = find(state, &caller.tenant, id).await?.filter(is_shown);
        let wanted = |task: &Task| {
            wish.states.contains(&task.status)
                && wish.workflow.as_ref().is_none_or(|id| task.workflow_id.as_ref() == Some(id))
        };
        let task = task.filter(|task| wanted(task) && tasks.iter().all(|known| known.task.id != task.id));
        tasks.extend(task.map(|task| Keyed::new(wish, task)));
    }
    let total = i64::try_from(tasks.len()).unwrap_or(i64::MAX);
    Ok(OriginPage { tasks: sorted(tasks, wish), total })
}

/// A task as lists have it, and what it is sorted by.
struct Keyed {
    key: i64,
    task: Task,
}

impl Keyed {
    fn new(wish: &Wish, task: Task) -> Self {
        let key = match (wish.by_duration, messages::times(&task)) {
            (true, Some((begun, ended))) => ended - begun,
            (true, None) => 0,
            (false, _) => messages::millis(task.created_at),
        };
        Self { key, task: Task { error: None, result: None, metadata: None, ..task } }
    }
}

/// The part of the list that is asked for.
fn sorted(mut tasks: Vec<Keyed>, wish: &Wish) -> Vec<Task> {
    match wish.ascending {
        true => tasks.sort_by_key(|task| task.key),
        false => tasks.sort_by_key(|task| Reverse(task.key)),
    }
    let tasks = tasks.into_iter().map(|keyed| keyed.task);
    tasks.skip(wish.offset as usize).take(wish.count() as usize).collect()
}

/// Whether its client still wants to see it.
fn is_shown(task: &Task) -> bool {
    task.hidden_at.is_none()
}

/// A job as lists show it.
fn brief(task: &Task, input: TaskInput) -> serde_json::Result<String> {
    let item = Item::new(task, input);
    serde_json::to_string(&job(task, &item))
}

/// What all jobs have. Nothing is null: what is not known is left out.
fn job(task: &Task, item: &Item) -> Map<String, Value> {
    let mut job = Map::new();
    let mut put = |name: &str, value: Value| {
        job.insert(name.to_owned(), value);
    };
    put("id", names::prompt_id(task).into());
    put("status", state_of(task).into());
    put("priority", item.number().clone());
    put("create_time", messages::millis(task.created_at).into());
    if task.status.is_terminal() {
        if let Some((begun, ended)) = messages::times(task) {
            put("execution_start_time", begun.into());
            put("execution_end_time", ended.into());
        }
        if let Some(("execution_error", error)) = messages::end(task) {
            put("execution_error", error);
        }
    } else if let Some(started) = task.started_at.filter(|_| task.status == Status::Running) {
        put("execution_start_time", messages::millis(started).into());
    }
    let summary = Summary::of(&outputs(task));
    put("outputs_count", summary.count.into());
    put("previewable_outputs_count", summary.visible.into());
    if let Some(preview) = summary.preview() {
        put("preview_output", preview);
    }
    if let Some(workflow) = &task.workflow_id {
        put("workflow_id", workflow.clone().into());
    }
    job
}

/// What the outputs of a job are, in short.
#[derive(Debug, Default)]
struct Summary {
    count: usize,
    visible: usize,
    /// The best to show first: a saved picture, another one, a saved text, a text.
    previews: [Option<Value>; 4],
}

impl Summary {
    fn of(outputs: &Value) -> Self {
        let mut summary = Self::default();
        for (node, kinds) in outputs.as_object().into_iter().flatten() {
            for (kind, items) in
                kinds.as_object().into_iter().flatten().filter(|(kind, _)| *kind != "animated")
            {
                for item in items.as_array().into_iter().flatten() {
                    summary.add(node, kind, item);
                }
            }
        }
        summary
    }

    fn add(&mut self, node: &str, kind: &str, item: &Value) {
        let file = match item {
            Value::Object(file) => file,
            Value::String(text) if kind == "text" => {
                let short: String = text.chars().take(TEXT).collect();
                let mut shown = json!({"content": short, "nodeId": node, "mediaType": kind});
                if short.len() < text.len() {
                    shown["truncated"] = true.into();
                }
                self.previews[3].get_or_insert(shown);
                return;
            }
            _ => return,
        };
        self.count += 1;
        let text = |name: &str| file.get(name).and_then(Value::as_str).unwrap_or_default();
        let (format, name) = (text("format"), text("filename").to_lowercase());
        let ending = VISIBLE_ENDINGS.iter().position(|ending| name.ends_with(ending));
        let medium = format.starts_with("video/") || format.starts_with("audio/");
        if !VISIBLE.contains(&kind) && !medium && ending.is_none() {
            return;
        }
        self.visible += 1;
        let place = match text("type") {
            // The last three endings are texts.
            _ if kind == "text" || ending.is_some_and(|at| at >= 5) => 2,
            "output" => 0,
            _ => 1,
        };
        self.previews[place].get_or_insert_with(|| {
            let mut shown = file.clone();
            shown.insert("nodeId".to_owned(), node.into());
            shown.entry("mediaType").or_insert_with(|| kind.into());
            Value::Object(shown)
        });
    }

    fn preview(self) -> Option<Value> {
        self.previews.into_iter().flatten().next()
    }
}

/// `GET /api/jobs/{id}`: with all that is known about it.
pub(super) async fn one(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    Path(id): Path<String>,
) -> Result<Response, NativeError> {
    let missing = || wrong(StatusCode::NOT_FOUND, "Job not found");
    let unseen = |task: &Task| task.status == Status::Cancelled && !messages::has_begun(task);
    let found = find_whole(&state, &caller.tenant, &id).await?;
    let Some(Whole { task, input, _room }) =
        found.filter(|Whole { task, .. }| is_shown(task) && !unseen(task))
    else {
        return Ok(missing());
    };
    let text = text(&state, task, input, whole).await?;
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    // Of a known length, so that it is counted until it was read: it may have a graph of many megabytes.
    let json = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    Ok((json, text).into_response())
}

fn whole(task: &Task, input: TaskInput) -> serde_json::Result<String> {
    let item = Item::new(task, input);
    let mut job = job(task, &item);
    if task.status.is_terminal() {
        job.insert("outputs".to_owned(), outputs(task));
        job.insert("execution_status".to_owned(), messages::status(task).unwrap_or_default());
    }
    // The graph stays as it came, so it is not made a value.
    let mut text = serde_json::to_string(&job)?;
    text.pop();
    let workflow = serde_json::to_string(&item.workflow())?;
    Ok(format!("{text},\"workflow\":{workflow}}}"))
}

/// `POST /api/jobs/{id}/cancel`.
pub(super) async fn cancel_one(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, NativeError> {
    let cancelled = match find(&state, &caller.tenant, &id).await? {
        Some(task) => cancel(&state, &caller, task).await?,
        None => false,
    };
    Ok(Json(json!({"cancelled": cancelled})))
}

/// `POST /api/jobs/cancel {"job_ids": []}`: whether any of them was cancelled.
pub(super) async fn cancel_many(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    SmallBody(body): SmallBody,
) -> Result<Response, NativeError> {
    let size = body.len();
    let ids = state.compute("reading ids", &caller.tenant, size, move || job_ids(&body)).await?;
    let Some(ids) = ids else {
        return Ok(wrong(StatusCode::BAD_REQUEST, "job_ids must be a list of job ids"));
    };
    let mut any = false;
    for id in ids {
        if let Some(task) = find(&state, &caller.tenant, &id).await? {
            any |= cancel(&state, &caller, task).await?;
        }
    }
    Ok(Json(json!({"cancelled": any})).into_response())
}

/// The ids in a body, if that is what it has.
fn job_ids(body: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Wish<'a> {
        #[serde(borrow)]
        job_ids: &'a RawValue,
    }
    let wish: Wish<'_> = serde_json::from_slice(body).ok()?;
    listed(wish.job_ids)?.into_iter().map(|id| serde_json::from_str(id.get()).ok()).collect()
}
