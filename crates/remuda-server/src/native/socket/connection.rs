//! One websocket of one client.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::client::Client;
use super::desk::LONGEST_NAME;
use super::mailbox::{Place, ReaderId};
use super::words;
use crate::access::{Admission, Caller, ReadCaller};
use crate::error::{ApiError, ApiResult};
use crate::native::catalogue::feature_flags;
use crate::share::{self, Guest, Pass, Visit};
use crate::state::AppState;

/// Clients have little to say.
const LONGEST_MESSAGE: usize = 64 << 10;

/// The first one says what the client understands; a longer one says nothing.
const LONGEST_SENTENCE: usize = 4 << 10;

/// As long as no more than this is on its way to a socket, it is not worth counting: the number of sockets bounds it.
const SMALL: usize = 16 << 10;

/// How many messages are handed over before the client is listened to.
const BATCH: usize = 64;

/// How long after something was sent it is asked whether it arrived.
const ASK: Duration = Duration::from_secs(1);

/// How often a silent connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(20);

/// How often a client with prompts hears something. ComfyUI is never silent for long while it renders, and some clients
/// take ten seconds of silence for a broken connection; here the ComfyUI may be gone, and another has to begin anew.
const REMIND: Duration = Duration::from_secs(6);

/// Who neither reads nor answers for this long is gone. Scripts do other things for minutes before they read.
const PATIENCE: Duration = Duration::from_secs(600);

/// A farewell takes no longer.
const FAREWELL: Duration = Duration::from_secs(1);

/// For how long a client's messages are counted together.
const MINUTE: Duration = Duration::from_secs(60);

/// The server stops.
const GOING_AWAY: u16 = 1001;

/// The key was revoked, or the client says too much.
const NOT_ALLOWED: u16 = 1008;

/// Come back later.
const TRY_AGAIN: u16 = 1013;

/// What ComfyUI says to who comes without a websocket.
const NO_UPGRADE: &str = "No WebSocket UPGRADE hdr: None\n Can \"Upgrade\" only to \"WebSocket\".";

#[derive(Debug, Deserialize)]
pub(super) struct Who {
    #[serde(default, rename = "clientId")]
    client_id: String,
}

/// What a client says of itself.
#[derive(Debug, Deserialize)]
struct Sentence<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Flags<'a> {
    #[serde(borrow, default)]
    supports_preview_metadata: Option<&'a RawValue>,
}

impl Sentence<'_> {
    fn is_introduction(&self) -> bool {
        let kind = self.kind.and_then(|kind| serde_json::from_str::<String>(kind.get()).ok());
        kind.as_deref() == Some("feature_flags")
    }

    fn is_labelled(&self) -> bool {
        let flags = self.data.filter(|data| data.get().starts_with('{'));
        let flags = flags.and_then(|data| serde_json::from_str::<Flags<'_>>(data.get()).ok());
        let flag = flags.and_then(|flags| flags.supports_preview_metadata);
        flag.is_some_and(|flag| flag.get() == "true")
    }
}

/// `GET /ws?clientId=`.
pub(super) async fn open(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    Query(who): Query<Who>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let Ok(upgrade) = upgrade else {
        return Ok((StatusCode::BAD_REQUEST, NO_UPGRADE).into_response());
    };
    let name = match who.client_id {
        name if name.is_empty() => Uuid::new_v4().simple().to_string(),
        name if name.len() > LONGEST_NAME => {
            let error = format!("clientId has more than {LONGEST_NAME} bytes");
            return Err(ApiError::bad_request("bad_client_id", error).field("clientId"));
        }
        name => name,
    };
    let permit = state.permits.waiting()?;
    let guest = Visit::guest();
    let tracked = state.tasks.token();
    let upgrade = upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let _held_to_the_end = (permit, tracked);
        let streams = state.metrics.streams.clone();
        streams.inc();
        serve(state, socket, caller, guest, name).await;
        streams.dec();
    }))
}

async fn serve(state: AppState, socket: WebSocket, caller: Caller, guest: Arc<Guest>, name: String) {
    let (out, incoming) = socket.split();
    let admission = caller.admission().clone();
    let mut out = Out { out, state: state.clone(), admission, guest, held: Vec::new(), uncounted: 0 };
    let Some((client, (reader, end))) = state.desk.visit(&state, &caller.tenant, &name, Client::join) else {
        let code = if state.stop.is_cancelled() { GOING_AWAY } else { TRY_AGAIN };
        return out.farewell(code).await;
    };
    let mut connection = Connection {
        state: &state,
        client: &client,
        reader,
        incoming,
        labelled: false,
        introduced: false,
        heard_at: Instant::now(),
        ping_at: Instant::now() + PING,
        spoke_at: Instant::now(),
        said: Said::new(),
    };
    let left = connection.run(&mut out, end).await;
    client.leave(reader, matches!(left, Left::Properly));
    match left {
        Left::Stopped => out.farewell(GOING_AWAY).await,
        Left::Refused => out.farewell(NOT_ALLOWED).await,
        // What the peer's farewell is answered with goes out.
        Left::Properly => drop(tokio::time::timeout(FAREWELL, out.out.flush()).await),
        Left::Broken => {}
    }
}

/// How many bytes a message brings.
fn size_of(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}

/// How a connection ended.
enum Left {
    /// The client said so.
    Properly,
    Broken,
    Stopped,
    /// Its key was revoked, or it says too much.
    Refused,
}

struct Out {
    out: SplitSink<WebSocket, Message>,
    state: AppState,
    /// How long its client may stay.
    admission: Arc<Admission>,
    /// Who messages on their way are charged to.
    guest: Arc<Guest>,
    /// What they were charged.
    held: Vec<Pass>,
    /// How many bytes on their way were not charged.
    uncounted: usize,
}

impl Out {
    /// Hands a message to the connection. Who does not read holds up nobody but itself.
    async fn feed(&mut self, message: Message) -> Result<(), Left> {
        let size = size_of(&message);
        if self.uncounted + size <= SMALL {
            self.uncounted += size;
        } else {
            // A connection has its own copy until it is written.
            let room = self.state.memory.wait(&self.guest, size as u64, share::PATIENCE);
            let room = tokio::select! {
                biased;
                () = self.state.stop.cancelled() => return Err(Left::Stopped),
                () = self.admission.over() => return Err(Left::Refused),
                room = room => room,
            };
            match room {
                Ok(pass) => self.held.push(pass),
                // Too much is on its way to its tenant's slow readers already. A picture can be missed.
                Err(_) if matches!(message, Message::Binary(_)) => return Ok(()),
                // A text cannot: the client finds it in its mailbox when it comes back.
                Err(_) => return Err(Left::Broken),
            }
        }
        tokio::select! {
            biased;
            () = self.state.stop.cancelled() => Err(Left::Stopped),
            () = self.admission.over() => Err(Left::Refused),
            fed = tokio::time::timeout(PATIENCE, self.out.feed(message)) => match fed {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(Left::Broken),
            },
        }
    }

    async fn flush(&mut self) -> Result<(), Left> {
        tokio::select! {
            biased;
            () = self.state.stop.cancelled() => Err(Left::Stopped),
            () = self.admission.over() => Err(Left::Refused),
            flushed = tokio::time::timeout(PATIENCE, self.out.flush()) => match flushed {
                Ok(Ok(())) => {
                    self.held.clear();
                    self.uncounted = 0;
                    Ok(())
                }
                Ok(Err(_)) | Err(_) => Err(Left::Broken),
            },
        }
    }

    async fn farewell(&mut self, code: u16) {
        // Who was sent out does not stay because it does not read.
        let time = if code == NOT_ALLOWED { FAREWELL / 5 } else { FAREWELL };
        let close = Message::Close(Some(CloseFrame { code, reason: "".into() }));
        drop(tokio::time::timeout(time, self.out.send(close)).await);
    }
}

struct Connection<'a> {
    state: &'a AppState,
    client: &'a Client,
    reader: ReaderId,
    incoming: SplitStream<WebSocket>,
    /// It understands pictures that say whose they are.
    labelled: bool,
    /// It has said its first sentence.
    introduced: bool,
    heard_at: Instant,
    ping_at: Instant,
    /// When it was last told something.
    spoke_at: Instant,
    /// What it said in this minute.
    said: Said,
}

/// How much a client says: it has little to say.
struct Said {
    since: Instant,
    count: u32,
}

impl Said {
    fn new() -> Self {
        Self { since: Instant::now(), count: 0 }
    }

    /// Counts a message of any kind. Whether there were more in a minute than may be.
    fn too_much(&mut self, most: u32) -> bool {
        if self.since.elapsed() >= MINUTE {
            *self = Self::new();
        }
        self.count += 1;
        self.count > most
    }
}

impl Connection<'_> {
    async fn run(&mut self, out: &mut Out, mut end: watch::Receiver<Place>) -> Left {
        match self.talk(out, &mut end).await {
            Ok(()) => Left::Properly,
            Err(left) => left,
        }
    }

    async fn talk(&mut self, out: &mut Out, end: &mut watch::Receiver<Place>) -> Result<(), Left> {
        self.greet(out).await?;
        loop {
            let mut handed = 0;
            while handed < BATCH
                && let Some(message) = self.client.next(self.reader, self.labelled)
            {
                out.feed(message).await?;
                handed += 1;
            }
            if handed > 0 {
                out.flush().await?;
                self.spoke_at = Instant::now();
                self.ping_at = self.ping_at.min(Instant::now() + ASK);
            }
            let heard = if handed == BATCH {
                // There may be more, but the client has its turn.
                match self.incoming.next().now_or_never() {
                    Some(heard) => heard,
                    None => continue,
                }
            } else {
                tokio::select! {
                    () = self.state.stop.cancelled() => return Err(Left::Stopped),
                    () = out.admission.over() => return Err(Left::Refused),
                    () = tokio::time::sleep_until(self.ping_at) => {
                        self.ping(out).await?;
                        continue;
                    }
                    () = tokio::time::sleep_until(self.spoke_at + REMIND) => {
                        self.remind(out).await?;
                        continue;
                    }
                    heard = self.incoming.next() => heard,
                    // The sender is the client's own and outlives us.
                    _ = end.changed() => continue,
                }
            };
            let Some(Ok(message)) = heard else { return Err(Left::Broken) };
            self.heard_at = Instant::now();
            if self.said.too_much(self.state.limits.messages) {
                return Err(Left::Refused);
            }
            match message {
                Message::Close(_) => return Ok(()),
                Message::Pong(place) => {
                    if let Ok(place) = <[u8; 8]>::try_from(&place[..]) {
                        self.client.arrived(self.reader, Place::from_be_bytes(place));
                    }
                }
                Message::Text(text) => self.listen(text.as_str(), out).await?,
                // Answered with the next thing that is sent, or now.
                Message::Ping(_) => out.flush().await?,
                Message::Binary(_) => {}
            }
        }
    }

    /// The first frames of every socket: who it is, how many of its prompts have not ended, and the node at work.
    async fn greet(&mut self, out: &mut Out) -> Result<(), Left> {
        let client = self.client;
        let remaining = client.unfinished(self.state).await.unwrap_or_else(|_| client.remaining());
        out.feed(Message::Text(words::status(remaining, Some(&client.id)).into())).await?;
        if let Some(node) = client.node() {
            out.feed(Message::Text(words::message("executing", json!({ "node": node })).into())).await?;
        }
        out.flush().await
    }

    /// Asks whether everything so far has arrived, and whether there is still somebody.
    async fn ping(&mut self, out: &mut Out) -> Result<(), Left> {
        if self.heard_at.elapsed() >= PATIENCE {
            return Err(Left::Broken);
        }
        let sent = self.client.sent(self.reader);
        self.ping_at = Instant::now() + PING;
        out.feed(Message::Ping(Bytes::copy_from_slice(&sent.to_be_bytes()))).await?;
        out.flush().await
    }

    /// Says again how many of the client's prompts have not ended, if any.
    async fn remind(&mut self, out: &mut Out) -> Result<(), Left> {
        self.spoke_at = Instant::now();
        let remaining = self.client.remaining();
        if remaining > 0 {
            out.feed(Message::Text(words::status(remaining, None).into())).await?;
            out.flush().await?;
        }
        Ok(())
    }

    async fn listen(&mut self, text: &str, out: &mut Out) -> Result<(), Left> {
        if self.introduced || text.len() > LONGEST_SENTENCE || !text.trim_start().starts_with('{') {
            return Ok(());
        }
        let Ok(sentence) = serde_json::from_str::<Sentence<'_>>(text) else { return Ok(()) };
        self.introduced = true;
        if !sentence.is_introduction() {
            return Ok(());
        }
        self.labelled = sentence.is_labelled();
        let features = feature_flags(self.state);
        out.feed(Message::Text(words::message("feature_flags", features).into())).await?;
        out.flush().await
    }
}
