//! Long answers, written piece by piece: graphs are read from the store as the client takes them.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use http::header;
use remuda_core::{Dialect, Status, Task, TaskInput, Tenant};
use remuda_store::{Lookup, OriginOrder, OriginQuery};

use crate::error::ApiResult;
use crate::service;
use crate::share::{Charged, Guest, paced};
use crate::state::AppState;

/// How a task is written. None: it is left out.
pub(super) type Write = fn(&Task, TaskInput) -> Option<serde_json::Result<String>>;

/// All native tasks of a tenant in these states.
pub(super) fn of(tenant: &Tenant, statuses: &[Status], order: OriginOrder, limit: u32) -> OriginQuery {
    OriginQuery {
        tenant: tenant.clone(),
        dialect: Dialect::COMFYUI,
        client: None,
        statuses: statuses.to_vec(),
        workflow_id: None,
        order,
        offset: 0,
        limit,
    }
}

/// Tasks as text, in their order, for this guest.
pub(super) fn written(
    state: &AppState,
    guest: Arc<Guest>,
    tasks: Vec<Task>,
    write: Write,
) -> impl Stream<Item = io::Result<Charged>> + use<> {
    let shared = state.clone();
    let read = move |task: Task| {
        let state = shared.clone();
        async move {
            // Lists have no results: those are read one by one.
            let whole = Lookup { tenant: task.tenant, key: None, id: Some(task.id), input: true };
            let found = service::look_up(&state, whole).await.map_err(io::Error::other)?;
            // Without an input it was forgotten since.
            let Some((task, Some(input))) = found else { return Ok(None) };
            let text = text(&state, task, input, move |task, input| write(task, input).transpose()).await;
            text.map_err(|error| io::Error::other(error.body.error))?.map_err(io::Error::other)
        }
    };
    paced(state.permits.lists(), state.memory.clone(), guest, tasks, read)
}

/// Writes a task and its graph: beside the runtime, if they are large.
pub(super) async fn text<T: Send + 'static>(
    state: &AppState,
    task: Task,
    input: TaskInput,
    write: impl FnOnce(&Task, TaskInput) -> T + Send + 'static,
) -> ApiResult<T> {
    let extra = input.extra.as_ref().and_then(|extra| extra.extra_data.as_ref());
    let size = input.workflow.get().len() + extra.map_or(0, |extra| extra.get().len());
    let left = task.text_bytes();
    let (tenant, id) = (task.tenant.clone(), task.id);
    let write = move || write(&task, input);
    state.compute_of("writing a prompt", &tenant, id, size + left, write).await
}

/// Pieces with commas between them.
pub(crate) fn separated(
    pieces: impl Stream<Item = io::Result<Charged>>,
) -> impl Stream<Item = io::Result<Bytes>> {
    pieces.enumerate().map(move |(n, piece)| {
        piece.map(|mut piece| {
            if n > 0 {
                piece.text.insert(0, ',');
            }
            piece.into_bytes()
        })
    })
}

/// A piece that is always the same.
pub(crate) fn fixed(text: impl Into<String>) -> impl Stream<Item = io::Result<Bytes>> {
    stream::iter([Ok(Bytes::from(text.into()))])
}

/// JSON that comes in pieces.
pub(crate) fn json(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    let pieces = pieces.inspect_err(|error| tracing::warn!(%error, "an answer was broken off"));
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], Body::from_stream(pieces)).into_response()
}
