//! `/internal/v1/frames/{task}`: live frames of a task that runs here, for another gateway.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header;
use remuda_core::{AttemptNo, TaskId};
use remuda_frames::{LiveFrames, Messages};
use remuda_sidecar::frames::{encode_one, heartbeat};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::access::ClusterCaller;
use crate::error::ApiResult;
use crate::extract::TaskPath;
use crate::state::AppState;

/// How often there is a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How many frames wait for a slow server. Pictures may have megabytes.
const QUEUED: usize = 4;

#[derive(Debug, Deserialize)]
pub(crate) struct Wanted {
    /// What ComfyUI says of this attempt and later ones; otherwise progress and previews.
    messages: Option<AttemptNo>,
}

/// Frames of one kind, as they are sent.
enum Frames {
    Shown { first: Option<Bytes>, rest: LiveFrames },
    Said(Messages),
}

impl Frames {
    fn of(state: &AppState, task: TaskId, wanted: &Wanted) -> Self {
        match wanted.messages {
            Some(attempt) => Self::Said(state.hub.follow_messages(task, attempt)),
            None => {
                let (last, rest) = state.hub.subscribe(task);
                Self::Shown { first: last.and_then(|last| encode_one(&last)), rest }
            }
        }
    }

    /// The next one; `None` after the last. Can be left and called again.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = match self {
                Self::Shown { first, rest } => match first.take() {
                    Some(first) => return Some(first),
                    None => encode_one(&*rest.recv().await?),
                },
                Self::Said(messages) => encode_one(&*messages.recv().await?),
            };
            if let Some(frame) = frame {
                return Some(frame);
            }
        }
    }
}

pub(crate) async fn frames(
    State(state): State<AppState>,
    _caller: ClusterCaller,
    TaskPath(task): TaskPath,
    Query(wanted): Query<Wanted>,
) -> ApiResult<Response> {
    let permit = state.permits.waiting()?;
    let (out, body) = mpsc::channel::<Bytes>(QUEUED);
    let mut frames = Frames::of(&state, task, &wanted);
    let stop = state.stop.clone();
    state.tasks.spawn(async move {
        let _held_to_the_end = permit;
        if out.send(heartbeat()).await.is_err() {
            return;
        }
        loop {
            let piece = tokio::select! {
                () = stop.cancelled() => return,
                () = out.closed() => return,
                () = tokio::time::sleep(HEARTBEAT) => heartbeat(),
                frame = frames.next() => match frame {
                    Some(frame) => frame,
                    None => return,
                },
            };
            if out.send(piece).await.is_err() {
                return;
            }
        }
    });
    let stream = ReceiverStream::new(body).map(Ok::<_, std::convert::Infallible>);
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(stream)).into_response())
}
