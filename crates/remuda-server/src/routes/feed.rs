//! `GET /api/v1/events`: what happens to all tasks, as it happens.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use remuda_core::{EventKind, Status, TaskId, Tenant, Timestamp, Version};
use remuda_store::{FeedItem, FeedPlace};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::events::answer;
use crate::access::{Caller, ReadCaller};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::ApiQuery;
use crate::feed::Told;
use crate::service::{Begin, FeedReader, FeedWish, follow_feed};
use crate::share::{Guest, Refusal, Room, Visit, keeping};
use crate::state::AppState;

/// How many pieces wait for a slow reader.
const QUEUED: usize = 1;

/// When there is no room for several events, one goes out, and the next after this.
const NO_ROOM: Duration = Duration::from_millis(500);

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Begin after this event, as `Last-Event-ID` would say it; `first`: with the first event that is kept; `last`, or nothing:
    /// with the next one that happens.
    after: Option<String>,
    /// Only of this tenant. For keys with the scope admin, which see all of them.
    tenant: Option<String>,
    /// Only of this task.
    task: Option<String>,
    /// Only of these kinds, separated by commas: `completed,failed,cancelled`.
    kind: Option<String>,
}

/// One thing that happened to one task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedEvent {
    /// To which task.
    #[schema(value_type = String, format = Uuid)]
    task: TaskId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant: Tenant,
    /// The number of the event among those of the task; the first is 1.
    n: Version,
    /// What: submitted, claimed, adopted, returned, retry_scheduled, lost, cancel_requested, completed, failed or cancelled.
    #[schema(value_type = String, example = "completed")]
    kind: EventKind,
    /// The state of the task after it.
    #[schema(value_type = String, example = "completed")]
    status: Status,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

/// Follow all tasks.
///
/// Server-sent events of your tenant's tasks, in the order in which they were committed; with the scope admin of all tenants'.
/// Each is a `state` with `{"task", "tenant", "n", "kind", "status", "at"}` as data. Its `id` is its place in the feed of the
/// installation: after a broken connection `Last-Event-ID` resumes exactly, at any of its servers. Places rise, but are not
/// consecutive, and say no more than how much happens in it. A block with an `id` and no data only moves the place on. What happened is kept as long as
/// the records of ended tasks; who comes from before that gets 410, with the place to begin from as `first`.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "tasks",
    params(
        Which,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that you know. It goes before `after`."),
    ),
    responses(
        (status = 200, description = "The events, without end", body = FeedEvent, content_type = "text/event-stream"),
        (status = 400, description = "The id of the event is malformed", body = ErrorBody),
        (status = 403, description = "The tenant is not yours", body = ErrorBody),
        (status = 410, description = "What followed that event is not kept any more: begin after `first`", body = ErrorBody),
        (status = 422, description = "A parameter is wrong", body = ErrorBody),
    ),
)]
pub(crate) async fn feed(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiQuery(which): ApiQuery<Which>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let begin = begin(&headers, which.after.as_deref())?;
    let wish = wish(which)?;
    let permit = (state.permits.feed_reader()?, state.permits.waiting()?);
    let guest = Visit::guest();
    let reader = follow_feed(&state, &caller, Arc::clone(&guest), wish, begin).await?;
    let (out, body) = mpsc::channel::<Bytes>(QUEUED);
    let streams = state.metrics.streams.clone();
    let told = reader.place();
    let streamer =
        Streamer { state: state.clone(), caller, guest, reader, told, out, heartbeat_at: Instant::now() };
    state.tasks.spawn(async move {
        let _held_to_the_end = permit;
        streams.inc();
        streamer.run().await;
        streams.dec();
    });
    Ok(answer(body))
}

/// Where to begin. What a browser says when it comes back goes before what the address says.
fn begin(headers: &HeaderMap, after: Option<&str>) -> ApiResult<Begin> {
    let bad = |text: &str, field| {
        let text: String = text.chars().take(60).collect();
        let error = format!("{text:?} is not the id of an event, as it came with one");
        ApiError::bad_request("bad_event_id", error).field(field)
    };
    let (text, field) = match headers.get("last-event-id") {
        Some(value) => (value.to_str().map_err(|_| bad("…", "Last-Event-ID"))?, "Last-Event-ID"),
        None => (after.unwrap_or_default(), "after"),
    };
    match text.trim() {
        "" | "last" => Ok(Begin::Last),
        "first" => Ok(Begin::First),
        place => place.parse::<FeedPlace>().map(Begin::After).map_err(|_| bad(place, field)),
    }
}

fn wish(which: Which) -> ApiResult<FeedWish> {
    let tenant = which.tenant.map(Tenant::new).transpose();
    let tenant = tenant.map_err(|error| ApiError::invalid("tenant", error.to_string()))?;
    let task = which.task.map(|task| task.parse::<TaskId>()).transpose();
    let task = task.map_err(|error| ApiError::invalid("task", error.to_string()))?;
    let kinds = which.kind.as_deref().unwrap_or_default().split(',').map(str::trim);
    let kinds = kinds.filter(|kind| !kind.is_empty()).map(str::parse).collect::<Result<Vec<EventKind>, _>>();
    let mut kinds = kinds.map_err(|error: String| ApiError::invalid("kind", error))?;
    kinds.sort_unstable_by_key(|kind| kind.code());
    kinds.dedup();
    Ok(FeedWish { tenant, task, kinds })
}

/// One stream. Ends when its reader is gone or far behind, when its key is revoked, or when the server stops.
struct Streamer {
    state: AppState,
    caller: Caller,
    /// Who pieces on their way are charged to.
    guest: Arc<Guest>,
    reader: FeedReader,
    /// The place that its reader knows.
    told: FeedPlace,
    out: mpsc::Sender<Bytes>,
    /// When a sign of life is due.
    heartbeat_at: Instant,
}

/// Nothing more is to be sent.
struct Over;

impl Streamer {
    async fn run(mut self) {
        // The first bytes go out at once, so that the reader knows that it is connected, and from where on it misses nothing.
        let begin = format!("retry: 2000\nid: {}\n: following\n\n", self.told);
        let _over: Result<(), Over> = async {
            self.send(Bytes::from(begin)).await?;
            loop {
                let items = tokio::select! {
                    () = self.state.stop.cancelled() => return Err(Over),
                    () = self.out.closed() => return Err(Over),
                    () = self.caller.admission().over() => return Err(Over),
                    () = tokio::time::sleep_until(self.heartbeat_at) => {
                        self.live().await?;
                        continue;
                    }
                    items = self.reader.next() => items.map_err(|_| Over)?,
                };
                self.tell(items).await?;
            }
        }
        .await;
    }

    /// Sends what happened.
    async fn tell(&mut self, items: Vec<Arc<Told>>) -> Result<(), Over> {
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return Ok(()) };
        let piece = piece(&items, &self.state.memory, &self.guest);
        let (text, place) = match &piece {
            Ok(text) => (text.clone(), last.item.place),
            Err(_) => (first.text(written).clone(), first.item.place),
        };
        // A slow reader has nothing but what is counted, or what all have.
        drop(items);
        self.told = place;
        if piece.is_err() {
            self.reader.back_to(place);
        }
        let counted = piece.map(drop);
        self.send(text).await?;
        if counted.is_err() {
            tokio::select! {
                () = self.state.stop.cancelled() => return Err(Over),
                () = self.out.closed() => return Err(Over),
                () = self.caller.admission().over() => return Err(Over),
                () = tokio::time::sleep(NO_ROOM) => {}
            }
        }
        Ok(())
    }

    /// A sign of life. Who waits long for few events keeps up with the feed all the same.
    async fn live(&mut self) -> Result<(), Over> {
        let place = self.reader.place();
        let text = match place == self.told {
            true => ": still here\n\n".to_owned(),
            false => format!("id: {place}\n: still here\n\n"),
        };
        self.told = place;
        self.send(Bytes::from(text)).await
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

/// Several events as one piece, counted until it is written. One alone is the text that all its readers share.
fn piece(items: &[Arc<Told>], memory: &Room, guest: &Arc<Guest>) -> Result<Bytes, Refusal> {
    if let [one] = items {
        return Ok(one.text(written).clone());
    }
    let size = items.iter().map(|told| told.text(written).len()).sum();
    let pass = memory.take(guest, size as u64)?;
    let mut text = Vec::with_capacity(size);
    items.iter().for_each(|told| text.extend_from_slice(told.text(written)));
    Ok(keeping(Bytes::from(text), Arc::new(pass)))
}

/// An event as it is sent.
fn written(FeedItem { place, tenant, entry }: &FeedItem) -> Bytes {
    let event = FeedEvent {
        task: entry.task,
        tenant: tenant.clone(),
        n: entry.n,
        kind: entry.kind,
        status: entry.kind.status(),
        at: entry.at,
    };
    // Plain values are always written; JSON has no line breaks of its own, so one line of data is enough.
    let data = serde_json::to_string(&event).unwrap_or_default();
    Bytes::from(format!("id: {place}\nevent: state\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use remuda_core::FeedEntry;

    use super::*;

    fn told(n: i64) -> Arc<Told> {
        let entry = FeedEntry { task: TaskId::new(), n, kind: EventKind::Claimed, at: Timestamp::UNIX_EPOCH };
        let place = format!("1-0-{n}-1").parse().unwrap();
        Arc::new(Told::from(FeedItem { place, tenant: Tenant::default_tenant(), entry }))
    }

    #[test]
    fn what_a_reader_has_not_taken_is_counted_and_one_event_is_always_to_be_had() {
        let items: Vec<Arc<Told>> = (1..=64).map(told).collect();
        let size: usize = items.iter().map(|told| told.text(written).len()).sum();
        let (memory, guest) = (Room::new(size as u64 + 1), Arc::new(Guest::default()));
        let first = piece(&items, &memory, &guest).unwrap();
        assert_eq!(first.len(), size);
        assert!(piece(&items, &memory, &guest).is_err(), "the first is not read yet");
        let one = piece(&items[..1], &memory, &guest).unwrap();
        assert_eq!(one.as_ptr(), items[0].text(written).as_ptr(), "one text for all readers");
        drop(first);
        assert!(piece(&items, &memory, &guest).is_ok());
    }
}
