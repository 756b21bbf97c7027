//! Long answers, written piece by piece: graphs are read from the store as the client takes them.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use http::header;
use remuda_core::{Dialect, Status, Task, TaskInput, Tenant};
use remuda_store::{OriginOrder, OriginQuery};

use crate::share::{Charged, Guest, paced};
use crate::state::AppState;

/// How a task is written. None: it is left out.
pub(super) type Write = fn(&Task, TaskInput) -> Option<serde_json::Result<String>>;

/// All native tasks of a tenant in these states.
pub(super) fn of(tenant: &Tenant, statuses: &[Status], order: OriginOrder, limit: u32) -> OriginQuery {
    OriginQuery {
        tenant: tenant.clone(),
        dialect: Dialect::Comfyui,
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
    let store = Arc::clone(&state.store);
    let read = move |task: Task| {
        let store = Arc::clone(&store);
        async move {
            let input = store.input(task.id).await.map_err(io::Error::other)?;
            // Without an input it was forgotten since.
            input.and_then(|input| write(&task, input)).transpose().map_err(io::Error::other)
        }
    };
    paced(state.permits.reads(), state.memory.clone(), guest, tasks, read)
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
