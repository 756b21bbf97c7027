//! `GET /api/v1/tasks/{id}/events`: what happens to a task, as it happens.
//!
//! ```text
//!   store: events after N ──▶ state   (numbered, never missed)
//!   frames, here or at the gateway where the task runs ──▶ progress, preview   (best effort)
//! ```

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use remuda_core::{EventKind, JsonText, Status, TaskEvent, TaskId, Version};
use remuda_frames::{Frame, FrameKind, LiveFrame, LiveFrames};
use remuda_store::EVENTS_TEXT;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use crate::access::{Caller, ReadCaller};
use crate::changes::Follow;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{ApiQuery, TaskPath};
use crate::service;
use crate::share::{Charged, Guest, Pass, Visit};
use crate::state::AppState;

/// How long after frames ended it is looked where the task runs now.
const LOOK: Duration = Duration::from_secs(5);

/// The pause before a store that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// How many events are read at once.
const BATCH: u32 = 100;

/// How many events wait for a slow reader. Pictures may have megabytes.
const QUEUED: usize = 1;

/// When there is no room for what happened, it is read again after this.
const NO_ROOM: Duration = Duration::from_millis(500);

/// Events never count for more: those from before there was a bound may be longer, and can be read.
const MOST_COUNTED: usize = 4 << 20;

/// Frames and events below this are written at once and are not counted: the number of streams bounds them.
const SMALL: usize = 16 << 10;

/// What to send.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct What {
    /// The number of the last event that you know, as `Last-Event-ID` would say it.
    after: Option<String>,
    /// Send pictures of the work in progress too.
    #[serde(default)]
    preview: bool,
}

/// Follow a task.
///
/// Server-sent events. `state` for every change of the task, with its number as `id`: `{"n", "at", "kind", "status",
/// "data"}`; `progress` while it renders: `{"attempt", "fraction", "node", "value", "max", "nodes_done", "nodes"}`; with
/// `preview=true` also `preview`: `{"attempt", "mime", "data"}`, the picture in base64. After a broken connection
/// `Last-Event-ID` resumes exactly; only states are numbered. The stream ends after `completed`, `failed` or
/// `cancelled`; asked again after that it answers 204.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/events", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        What,
        ("Last-Event-ID" = Option<i64>, Header, description = "The number of the last event that you know."),
    ),
    responses(
        (status = 200, description = "The events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The task has ended, and you know it"),
        (status = 400, description = "The id or the number is malformed", body = ErrorBody),
        (status = 404, description = "No such task, or not yours", body = ErrorBody),
    ),
)]
pub(crate) async fn events(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    TaskPath(id): TaskPath,
    ApiQuery(what): ApiQuery<What>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    // Before the first look: nothing that happens in between may be missed.
    let follow = state.changes.follow(id);
    let task = service::glance(&state, &caller, id).await?.task;
    let resume = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let after = match resume.or(what.after).as_deref().map(str::trim) {
        None | Some("") => 0,
        Some(text) => {
            text.parse::<Version>().ok().filter(|after| (0..=task.version).contains(after)).ok_or_else(
                || {
                    let text: String = text.chars().take(40).collect();
                    let error = format!(
                        "{text:?} is not the number of an event of this task; the last one is {}",
                        task.version
                    );
                    ApiError::bad_request("bad_event_id", error).field("Last-Event-ID")
                },
            )?
        }
    };
    if task.status.is_terminal() && after >= task.version {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let permit = state.permits.waiting()?;
    let (out, body) = mpsc::channel::<Bytes>(QUEUED);
    let streams = state.metrics.streams.clone();
    let streamer = Streamer {
        heartbeat_at: Instant::now() + state.limits.heartbeat,
        unread: true,
        look_at: Some(Instant::now()),
        state: state.clone(),
        id,
        after,
        follow,
        out,
        previews: what.preview,
        caller,
        guest: Visit::guest(),
    };
    state.tasks.spawn(async move {
        let _held_to_the_end = permit;
        streams.inc();
        streamer.run().await;
        streams.dec();
    });
    Ok(answer(body))
}

/// An answer that is a stream of events.
pub(super) fn answer(body: mpsc::Receiver<Bytes>) -> Response {
    let stream = ReceiverStream::new(body).map(Ok::<_, std::convert::Infallible>);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies must not collect events into larger pieces.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(stream)).into_response()
}

/// One stream of events. Ends when the task has, when its reader is gone, or when the server stops.
struct Streamer {
    state: AppState,
    id: TaskId,
    after: Version,
    follow: Follow,
    out: mpsc::Sender<Bytes>,
    previews: bool,
    caller: Caller,
    /// Who pictures on their way are charged to.
    guest: Arc<Guest>,
    /// There may be events that were not sent.
    unread: bool,
    /// When it is to be looked where the task runs, if no frames come. `None`: it does not run.
    look_at: Option<Instant>,
    /// When a sign of life is due, for proxies that end silent connections: a while after the last thing sent.
    heartbeat_at: Instant,
}

/// Nothing more is to be sent.
struct Over;

/// Too much is on its way to slow readers already.
struct NoRoom;

impl Streamer {
    async fn run(mut self) {
        // The first bytes go out at once, so that the reader knows that it is connected.
        let _over: Result<(), Over> = async {
            self.send(Bytes::from_static(b"retry: 2000\n: following\n\n")).await?;
            let mut frames = None;
            loop {
                if self.unread && self.send_events().await? {
                    self.look_at = Some(Instant::now());
                }
                if frames.is_none() && self.look_at.is_some_and(|at| at <= Instant::now()) {
                    frames = self.find_frames().await?;
                }
                self.wait(&mut frames).await?;
            }
        }
        .await;
    }

    /// Sends what happened; whether the task may run elsewhere now.
    async fn send_events(&mut self) -> Result<bool, Over> {
        let mut moved = false;
        loop {
            let events = match self.state.store.events(self.id, self.after, BATCH).await {
                Ok(events) => events,
                // It will come back, and then nothing is missed.
                Err(error) if error.is_temporary() => return Ok(moved),
                Err(_) => return Err(Over),
            };
            let text: usize = events.iter().map(|event| event.data.get().len()).sum();
            let full = events.len() >= BATCH as usize || text >= EVENTS_TEXT;
            // The events and one of them as text. Another reader may have taken something until this one tries again: what is not
            // counted is not kept meanwhile.
            let counted = if text <= SMALL { None } else { self.take((2 * text).min(MOST_COUNTED)).await? };
            if text > SMALL && counted.is_none() {
                continue;
            }
            for event in events {
                self.after = event.n;
                moved |= matches!(event.kind, EventKind::Claimed | EventKind::Adopted);
                let last = event.kind.is_terminal();
                let text = state_event(&event);
                let text = match &counted {
                    Some(pass) => Counted { text, _pass: Arc::clone(pass) }.into_bytes(),
                    None => Bytes::from(text),
                };
                self.send(text).await?;
                if last {
                    return Err(Over);
                }
            }
            if !full {
                self.unread = false;
                return Ok(moved);
            }
        }
    }

    /// Takes room for this many bytes. `None`: there was none for a moment.
    async fn take(&mut self, bytes: usize) -> Result<Option<Arc<Pass>>, Over> {
        if let Ok(pass) = self.state.memory.take(&self.guest, bytes as u64) {
            return Ok(Some(Arc::new(pass)));
        }
        tokio::select! {
            () = self.state.stop.cancelled() => return Err(Over),
            () = self.out.closed() => return Err(Over),
            () = self.caller.admission().over() => return Err(Over),
            () = tokio::time::sleep(NO_ROOM) => {}
        }
        if Instant::now() >= self.heartbeat_at {
            self.send(Bytes::from_static(b": still here\n\n")).await?;
        }
        Ok(None)
    }

    /// Where frames of the task can be had, if it runs.
    async fn find_frames(&mut self) -> Result<Option<LiveFrames>, Over> {
        self.look_at = Some(Instant::now() + LOOK);
        let lease = match self.state.store.lease(self.id).await {
            Ok(Some(lease)) => lease,
            Ok(None) => {
                // When it is claimed, that is an event.
                self.look_at = None;
                return Ok(None);
            }
            Err(_) => return Ok(None),
        };
        match lease.gateway {
            // Frames of a task whose gateway is gone stay at the one that got them.
            Some(gateway) if !self.state.is_here(Some(&gateway)) && !self.state.hub.has(self.id) => {
                Ok(Some(self.state.relays.follow(&self.state, self.id, &gateway)))
            }
            _ => {
                let (last, frames) = self.state.hub.subscribe(self.id);
                if let Some(last) = last.filter(|frame| frame.attempt == lease.attempt) {
                    self.send(progress_event(&last).await).await?;
                }
                Ok(Some(frames))
            }
        }
    }

    /// Passes frames on until there may be news.
    async fn wait(&mut self, frames: &mut Option<LiveFrames>) -> Result<(), Over> {
        let unread = self.unread.then(|| Instant::now() + PAUSE);
        let again = unread.into_iter().chain(self.look_at.filter(|_| frames.is_none())).min();
        loop {
            let more = tokio::select! {
                () = self.state.stop.cancelled() => return Err(Over),
                () = self.out.closed() => return Err(Over),
                () = self.follow.news() => {
                    self.unread |= !self.follow.known().is_known(self.after);
                    return Ok(());
                }
                () = at(again) => return Ok(()),
                () = self.caller.admission().over() => return Err(Over),
                () = tokio::time::sleep_until(self.heartbeat_at) => {
                    self.send(Bytes::from_static(b": still here\n\n")).await?;
                    return Ok(());
                }
                more = ready(frames) => more,
            };
            match frames {
                Some(live) if more => {
                    // Only when the reader takes it: until then there may be a newer one.
                    tokio::select! {
                        room = self.out.reserve() => drop(room.map_err(|_| Over)?),
                        () = self.state.stop.cancelled() => return Err(Over),
                        () = self.caller.admission().over() => return Err(Over),
                    }
                    if let Some(frame) = live.try_recv() {
                        self.send_frame(&frame).await?;
                    }
                }
                _ => {
                    *frames = None;
                    return Ok(());
                }
            }
        }
    }

    async fn send_frame(&mut self, frame: &LiveFrame) -> Result<(), Over> {
        let event = match &frame.what {
            FrameKind::Progress { .. } => progress_event(frame).await,
            FrameKind::Preview { mime, bytes } if self.previews => {
                let size = bytes.len().saturating_mul(4) / 3 + mime.len() + SMALL / 4;
                match frame.written(async |frame: &Frame| self.preview_event(frame.clone(), size).await).await
                {
                    Ok(event) => event,
                    // There will be another.
                    Err(NoRoom) => return Ok(()),
                }
            }
            FrameKind::Preview { .. } | FrameKind::Message { .. } | FrameKind::Binary { .. } => return Ok(()),
        };
        self.send(event).await
    }

    /// A preview as all its readers send it. While any of them has it, it is charged to the first.
    async fn preview_event(&self, frame: Frame, size: usize) -> Result<Bytes, NoRoom> {
        if size <= SMALL {
            return Ok(Bytes::from(preview_event(&frame)));
        }
        let pass = self.state.memory.take(&self.guest, size as u64).map_err(|_| NoRoom)?;
        let write = move || preview_event(&frame);
        let written = self.state.compute_of("writing a preview", &self.caller.tenant, self.id, size, write);
        let text = written.await.map_err(|_| NoRoom)?;
        Ok(Charged::new(text, pass).into_bytes())
    }

    async fn send(&mut self, bytes: Bytes) -> Result<(), Over> {
        let sent = tokio::select! {
            sent = self.out.send(bytes) => sent.map_err(|_| Over),
            // A reader that does not read must not hold up the end.
            () = self.state.stop.cancelled() => Err(Over),
            () = self.caller.admission().over() => Err(Over),
        };
        self.heartbeat_at = Instant::now() + self.state.limits.heartbeat;
        sent
    }
}

/// Waits for a moment, or for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Waits for a frame; `false` when there will be none.
async fn ready(frames: &mut Option<LiveFrames>) -> bool {
    match frames {
        Some(frames) => frames.ready().await,
        None => std::future::pending().await,
    }
}

/// What happened, on its way to a slow reader: counted until it is written.
struct Counted {
    text: String,
    _pass: Arc<Pass>,
}

impl Counted {
    fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn state_event(event: &TaskEvent) -> String {
    #[derive(Serialize)]
    struct State<'a> {
        task: TaskId,
        n: Version,
        at: Timestamp,
        kind: EventKind,
        status: Status,
        data: &'a JsonText,
    }
    let TaskEvent { task, n, at, kind, data } = event;
    let status = kind.status();
    let state = JsonText::of(&State { task: *task, n: *n, at: *at, kind: *kind, status, data });
    // What others wrote as JSON may have line breaks between its values; then each line is one of data.
    let lines = state.get().replace('\r', "").replace('\n', "\ndata: ");
    format!("id: {n}\nevent: state\ndata: {lines}\n\n")
}

async fn progress_event(frame: &LiveFrame) -> Bytes {
    let write = |frame: &Frame| {
        let FrameKind::Progress { fraction, node, value, max, nodes_done, nodes } = &frame.what else {
            return Bytes::new();
        };
        let data = json!({
            "attempt": frame.attempt, "fraction": fraction, "node": node, "value": value, "max": max,
            "nodes_done": nodes_done, "nodes": nodes,
        });
        Bytes::from(format!("event: progress\ndata: {data}\n\n"))
    };
    frame.written_here(write).await
}

fn preview_event(frame: &Frame) -> String {
    let FrameKind::Preview { mime, bytes } = &frame.what else { return String::new() };
    let (attempt, mime) = (frame.attempt, json!(mime));
    let mut text = String::with_capacity(bytes.len().saturating_mul(4) / 3 + SMALL / 4);
    text.push_str(&format!("event: preview\ndata: {{\"attempt\":{attempt},\"data\":\""));
    BASE64_STANDARD.encode_string(bytes, &mut text);
    text.push_str(&format!("\",\"mime\":{mime}}}\n\n"));
    text
}
