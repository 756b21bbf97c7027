//! `/history`: what ended, and how.

use std::io;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{StatusCode, header};
use remuda_core::{Dialect, Status, Task, TaskInput};
use remuda_store::{Hide, OriginOrder, OriginQuery};
use serde_json::{Value, json};

use super::entry::Entry;
use super::list::{fixed, json as streamed, of, separated, text, written};
use super::lookup::{Whole, find_whole};
use super::queue::Removal;
use super::{NativeError, find};
use crate::access::{ReadCaller, SubmitCaller};
use crate::error::ApiError;
use crate::extract::SmallBody;
use crate::native::names;
use crate::service;
use crate::share::Visit;
use crate::state::AppState;

/// How many entries come without `max_items`: the newest.
const USUAL: i64 = 1000;

/// How many come at most, as a ComfyUI keeps no more.
const MOST: i64 = 10_000;

/// How many tasks are read together.
const PAGE: u32 = 256;

const ENDED: [Status; 3] = [Status::Completed, Status::Failed, Status::Cancelled];

/// `GET /history?max_items=&offset=`: oldest first.
pub(super) async fn list(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    RawQuery(query): RawQuery,
) -> Result<Response, NativeError> {
    let (permit, guest) = (state.permits.download()?, Visit::guest());
    let number = |name: &str| whole(query.as_deref(), name);
    let (max_items, offset) = (number("max_items")?, number("offset")?.filter(|offset| *offset >= 0));
    let count = max_items.unwrap_or(USUAL).min(MOST);
    if count <= 0 {
        return Ok(Json(json!({})).into_response());
    }
    let mut query = of(&caller.tenant, &ENDED, OriginOrder::FirstEnded, 0);
    let begin = match offset {
        Some(offset) => offset,
        None if count <= i64::from(PAGE) => {
            // One look, from the end.
            query.order = OriginOrder::LastEnded;
            query.limit = u32::try_from(count).unwrap_or(PAGE);
            let mut tasks = service::list_origin(&state, &query).await?.tasks;
            tasks.reverse();
            let pieces = written(&state, guest, tasks, entry);
            return Ok(streamed(fixed("{").chain(separated(pieces)).chain(fixed("}")).inspect(move |_| {
                let _ = &permit;
            })));
        }
        None => (service::list_origin(&state, &query).await?.total - count).max(0),
    };
    let pieces = pages(state.clone(), query, begin, count)
        .map_ok(move |tasks| written(&state, guest.clone(), tasks, entry))
        .try_flatten();
    Ok(streamed(fixed("{").chain(separated(pieces)).chain(fixed("}")).inspect(move |_| {
        let _ = &permit;
    })))
}

/// Pages from `begin` on. What ends meanwhile comes at the end of the list, so that no entry moves.
fn pages(
    state: AppState,
    query: OriginQuery,
    begin: i64,
    count: i64,
) -> impl stream::Stream<Item = io::Result<Vec<Task>>> {
    stream::try_unfold((begin, count), move |(offset, left)| {
        let (state, mut query) = (state.clone(), query.clone());
        async move {
            let wanted = left.min(i64::from(PAGE));
            let Ok(offset_now) = u32::try_from(offset) else { return Ok(None) };
            if wanted <= 0 {
                return Ok(None);
            }
            query.offset = offset_now;
            query.limit = u32::try_from(wanted).unwrap_or(PAGE);
            let tasks = service::list_origin(&state, &query).await.map_err(io::Error::other)?.tasks;
            let found = i64::try_from(tasks.len()).unwrap_or(0);
            // A short page is the last one.
            let left = if found < wanted { 0 } else { left - found };
            Ok((found > 0).then_some((tasks, (offset + found, left))))
        }
    })
}

/// A number in the query.
fn whole(query: Option<&str>, name: &str) -> Result<Option<i64>, NativeError> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let Some((_, text)) = pairs.into_iter().find(|(key, _)| key == name) else { return Ok(None) };
    let read = text.trim().parse().map(Some);
    read.map_err(|_| {
        NativeError::refused("invalid_request", format!("{name} must be an integer"), text.into_owned())
    })
}

/// `"id": entry`.
fn entry(task: &Task, input: TaskInput) -> Option<serde_json::Result<String>> {
    let entry = Entry::new(task, input)?;
    let id = Value::from(names::prompt_id(task));
    Some(serde_json::to_string(&entry).map(|entry| format!("{id}:{entry}")))
}

/// `GET /history/{id}`. What is not there, or not yet, is an empty object.
pub(super) async fn one(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    Path(id): Path<String>,
) -> Result<Response, NativeError> {
    let found = find_whole(&state, &caller.tenant, &id).await?;
    let shown = found.filter(|Whole { task, .. }| task.status.is_terminal() && task.hidden_at.is_none());
    let entry = match shown {
        Some(Whole { task, input, _room }) => text(&state, task, input, entry).await?.transpose(),
        None => Ok(None),
    };
    let entry = entry.map_err(|error| ApiError::internal(error.to_string()))?.unwrap_or_default();
    let json = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    Ok((json, format!("{{{entry}}}")).into_response())
}

/// `POST /history`: takes entries out. Their records stay.
pub(super) async fn remove(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    SmallBody(body): SmallBody,
) -> Result<StatusCode, NativeError> {
    let removal = Removal::read(&state, &caller, body).await?;
    if removal.clears {
        service::hide(&state, &caller.tenant, Dialect::COMFYUI, Hide::Ended).await?;
    }
    let mut gone = Vec::new();
    for id in &removal.ids {
        gone.extend(find(&state, &caller.tenant, id).await?.map(|task| task.id));
    }
    if !gone.is_empty() {
        service::hide(&state, &caller.tenant, Dialect::COMFYUI, Hide::Tasks(gone)).await?;
    }
    Ok(StatusCode::OK)
}
