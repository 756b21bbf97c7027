//! One websocket connection, kept open.
//!
//! A task reads the socket without pause, whatever anybody does with the frames, because a client that does not read
//! stalls the delivery to *all* clients of that server. It pings, notices a peer that went silent, and reconnects with
//! growing pauses under the same client id; the rule for when to change the id is the session's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message as Frame, Utf8Bytes};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::ids::ClientId;
use crate::ws::pace::Pace;
use crate::ws::{Message, decode_binary, decode_text};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Asks for previews that say which node they belong to.
const HELLO: &str = r#"{"type":"feature_flags","data":{"supports_preview_metadata":true}}"#;

/// Kilobytes of frames beyond [`SMALL`] that may wait to be looked at.
pub(crate) const ROOM: u32 = 64 << 10;

/// Frames up to this many bytes are only counted.
const SMALL: usize = 64 << 10;

const NOBODY: &str = "nobody listens";

/// How patient a connection is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Time to connect and to hear the first `status`.
    pub(crate) greeting: Duration,
    /// Pause between pings.
    pub(crate) ping: Duration,
    /// A peer that sends nothing, not even pongs, for this long is gone.
    pub(crate) silence: Duration,
    /// First pause before a reconnect.
    pub(crate) backoff: Duration,
    /// Longest pause before a reconnect.
    pub(crate) longest_backoff: Duration,
}

/// A frame as it came; shares the memory that it was read into.
#[derive(Debug, Clone)]
pub(crate) enum RawFrame {
    Text(Utf8Bytes),
    Binary(Bytes),
}

/// What a connection reports.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The socket is open and the server greeted us.
    Up,
    /// The server accepted the socket but did not greet: it may have forgotten this client id.
    Ungreeted,
    /// The socket is gone; another is being opened.
    Down,
    /// The server answered a ping.
    Pong,
    /// A message, the frame it was read from, and the room that a large one takes until it has been looked at.
    Message(Message, RawFrame, Option<OwnedSemaphorePermit>),
}

/// Settings of one connection task.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) client_id: ClientId,
    pub(crate) timing: Timing,
    pub(crate) events: mpsc::Sender<ConnectionEvent>,
    /// Asks for a ping now.
    pub(crate) ping: Arc<Notify>,
    /// Kilobytes of large frames that may wait to be looked at: see [`ROOM`].
    pub(crate) room: Arc<Semaphore>,
    pub(crate) stop: CancellationToken,
}

impl Connection {
    /// Runs until stopped or until nobody listens any more.
    pub(crate) async fn run(self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep_open() => {}
        }
    }

    async fn keep_open(&self) {
        let mut failures = 0u32;
        loop {
            let connected = tokio::time::timeout(self.timing.greeting, self.open()).await;
            let reason = match connected {
                Ok(Ok(socket)) => {
                    let opened = Instant::now();
                    let reason = self.serve(socket).await;
                    // A server that greets and drops at once must not be stormed.
                    if opened.elapsed() >= self.timing.longest_backoff {
                        failures = 0;
                    }
                    reason
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {:?}", self.timing.greeting),
            };
            tracing::debug!(url = self.client.url(), reason, "websocket is down");
            if self.events.send(ConnectionEvent::Down).await.is_err() {
                return;
            }
            let pause = self.timing.backoff * (1 << failures.min(10));
            failures += 1;
            let pause = pause.min(self.timing.longest_backoff);
            // Not all clients of a restarted server at the same moment.
            let jitter = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
            tokio::time::sleep(pause.mul_f64(0.5 + jitter / 2.0)).await;
        }
    }

    async fn open(&self) -> Result<Socket, tokio_tungstenite::tungstenite::Error> {
        let mut url = self.client.endpoint(&["ws"]);
        url.query_pairs_mut().append_pair("clientId", self.client_id.as_str());
        let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
        // Cannot fail: http(s) and ws(s) are of one class, and a client's URL is http(s).
        let _ = url.set_scheme(scheme);
        let mut request = url.as_str().into_client_request()?;
        request.headers_mut().extend(self.client.headers().clone());
        let config = WebSocketConfig::default()
            .max_message_size(Some(self.client.limits().frame))
            .max_frame_size(Some(self.client.limits().frame));
        let (mut socket, _) = {
            let tls = Connector::Rustls(self.client.tls());
            connect_async_tls_with_config(request, Some(config), true, Some(tls)).await?
        };
        socket.send(Frame::Text(Utf8Bytes::from_static(HELLO))).await?;
        Ok(socket)
    }

    /// Waits until a large frame may wait with the others. Small ones are bounded by their number.
    async fn room_for(&self, raw: &RawFrame) -> Option<OwnedSemaphorePermit> {
        let size = match raw {
            // What is read of a text takes a multiple of it.
            RawFrame::Text(text) => text.len().saturating_mul(16),
            RawFrame::Binary(bytes) => bytes.len(),
        };
        if size <= SMALL {
            return None;
        }
        let kilobytes = u32::try_from(size >> 10).unwrap_or(ROOM).min(ROOM);
        // It is never closed.
        Arc::clone(&self.room).acquire_many_owned(kilobytes).await.ok()
    }

    /// Reads one socket to its end; returns why it ended.
    async fn serve(&self, socket: Socket) -> String {
        let (mut sink, mut stream) = socket.split();
        let mut greeted = false;
        let mut complained = false;
        let opened = Instant::now();
        let mut heard = opened;
        let mut ping =
            tokio::time::interval(self.timing.ping.min(self.timing.greeting).max(Duration::from_millis(1)));
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_ping = opened;
        let mut ping_now = false;
        let mut pace = Pace::new(self.client.limits().frames_per_second, opened.into_std());
        loop {
            let frame = tokio::select! {
                frame = stream.next() => frame,
                () = self.ping.notified() => {
                    ping_now = true;
                    ping.reset_immediately();
                    continue;
                }
                _ = ping.tick() => {
                    if heard.elapsed() >= self.timing.silence {
                        return format!("nothing was heard for {:?}", self.timing.silence);
                    }
                    if !greeted && !complained && opened.elapsed() >= self.timing.greeting {
                        complained = true;
                        if self.events.send(ConnectionEvent::Ungreeted).await.is_err() {
                            return NOBODY.into();
                        }
                    }
                    if std::mem::take(&mut ping_now) || last_ping.elapsed() >= self.timing.ping {
                        last_ping = Instant::now();
                        // A peer that does not take a ping within the silence limit is as good as gone.
                        let sent = tokio::time::timeout(
                            self.timing.silence,
                            sink.send(Frame::Ping(Bytes::new())),
                        );
                        if !matches!(sent.await, Ok(Ok(()))) {
                            return "ping could not be sent".into();
                        }
                    }
                    continue;
                }
            };
            heard = Instant::now();
            // While it waits here nothing is read: the flood stands in the server's own buffers.
            if let Some(rest) = pace.take(heard.into_std()) {
                if pace.is_new() {
                    let limit = self.client.limits().frames_per_second;
                    tracing::warn!(
                        url = self.client.url(),
                        limit,
                        "more websocket messages per second than the limit; reading more slowly"
                    );
                }
                tokio::time::sleep(rest).await;
            }
            let message = match frame {
                Some(Ok(Frame::Text(text))) => decode_text(&text).map(|read| (read, RawFrame::Text(text))),
                Some(Ok(Frame::Binary(bytes))) => {
                    decode_binary(bytes.clone()).map(|read| (read, RawFrame::Binary(bytes)))
                }
                Some(Ok(Frame::Close(close))) => {
                    return close.map_or("closed by the server".into(), |close| format!("closed: {close}"));
                }
                Some(Ok(Frame::Pong(_))) => {
                    if self.events.send(ConnectionEvent::Pong).await.is_err() {
                        return NOBODY.into();
                    }
                    continue;
                }
                Some(Ok(Frame::Ping(_) | Frame::Frame(_))) => continue,
                Some(Err(error)) => return error.to_string(),
                None => return "closed by the server".into(),
            };
            match message {
                Ok((message, raw)) => {
                    if !greeted && matches!(message, Message::Status(_)) {
                        greeted = true;
                        if self.events.send(ConnectionEvent::Up).await.is_err() {
                            return NOBODY.into();
                        }
                    }
                    let room = self.room_for(&raw).await;
                    if self.events.send(ConnectionEvent::Message(message, raw, room)).await.is_err() {
                        return NOBODY.into();
                    }
                }
                // A custom node may send anything; one odd frame is no reason to lose the others.
                Err(error) => tracing::debug!(url = self.client.url(), %error, "frame skipped"),
            }
        }
    }
}
