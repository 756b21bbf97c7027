//! `/internal/v1/frames/{task}`: live frames of a task that runs here, for another gateway.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::access::ClusterCaller;
use crate::error::ApiResult;
use crate::extract::TaskPath;
use crate::frame_wire::{encode, heartbeat};
use crate::state::AppState;

/// So often there is a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(crate) async fn frames(
    State(state): State<AppState>,
    _caller: ClusterCaller,
    TaskPath(task): TaskPath,
) -> ApiResult<Response> {
    let permit = state.permits.waiting()?;
    let (out, body) = mpsc::channel::<Bytes>(16);
    let (last, mut frames) = state.hub.subscribe(task);
    let stop = state.stop.clone();
    state.tasks.spawn(async move {
        let _held_to_the_end = permit;
        let first = last.as_ref().and_then(encode).unwrap_or_else(heartbeat);
        if out.send(first).await.is_err() {
            return;
        }
        loop {
            let piece = tokio::select! {
                () = stop.cancelled() => return,
                () = out.closed() => return,
                () = tokio::time::sleep(HEARTBEAT) => Some(heartbeat()),
                frame = frames.recv() => match frame {
                    Ok(frame) => encode(&frame),
                    Err(RecvError::Lagged(_)) => None,
                    Err(RecvError::Closed) => return,
                },
            };
            if let Some(piece) = piece
                && out.send(piece).await.is_err()
            {
                return;
            }
        }
    });
    let stream = ReceiverStream::new(body).map(Ok::<_, std::convert::Infallible>);
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(stream)).into_response())
}
