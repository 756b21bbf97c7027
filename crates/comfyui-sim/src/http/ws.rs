//! `/ws`: the handshake, and one socket from its first frame to its last.

use super::call::Call;
use super::info::feature_flags;
use super::reply::{Content, Reply};
use crate::config::Profile;
use crate::faults::{Faults, SocketFault, SocketFaultKind};
use crate::host::{Host, Life};
use crate::hub::Outgoing;
use crate::json::{Dict, Json, dict, repr_str};
use crate::wire::Control;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use http::StatusCode;
use http::header::{self, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// aiohttp takes no larger message from a client.
const MESSAGE: usize = 4 * 1024 * 1024;

/// Accepts or refuses a socket. An accepted one lives on in a task of its own.
pub(crate) fn open(call: &Call, upgrade: Option<OnUpgrade>, control: Arc<Control>) -> Reply {
    let key = match handshake(call) {
        Ok(key) => key,
        Err(text) => return Reply::raise_text(StatusCode::BAD_REQUEST, text),
    };
    let Some(upgrade) = upgrade else {
        return Reply::raise_text(StatusCode::BAD_REQUEST, "No CONNECTION upgrade hdr: None");
    };
    let client = match call.query("clientId") {
        Some(client) if !client.is_empty() => client.to_owned(),
        _ => uuid::Uuid::new_v4().simple().to_string(),
    };
    let socket = Socket { host: call.host.clone(), life: call.life.clone(), control, client };
    // Known before the client hears of it: what it submits next must find its socket.
    let (frames, receiver) = call.life.sockets.open(&socket.client, socket.greeting());
    let leaving = Leaving(socket.life.clone(), socket.client.clone());
    call.host.tasks.spawn(async move {
        let _leaving = leaving;
        let ended = socket.life.ended.clone();
        let control = socket.control.clone();
        tokio::select! {
            () = socket.run(upgrade, frames, receiver) => {}
            () = control.ended() => {}
            () = ended.cancelled() => {}
        }
    });
    let accept =
        HeaderValue::from_str(&derive_accept_key(key.as_bytes())).unwrap_or(HeaderValue::from_static(""));
    Reply::new(StatusCode::SWITCHING_PROTOCOLS, Content::Upgrade)
        .with(header::UPGRADE, HeaderValue::from_static("websocket"))
        .with(header::CONNECTION, HeaderValue::from_static("upgrade"))
        .with(header::SEC_WEBSOCKET_ACCEPT, accept)
}

/// The client's key, or what aiohttp says instead.
fn handshake(call: &Call) -> Result<String, String> {
    let python = |value: Option<&str>| value.map_or("None".to_owned(), str::to_owned);
    let upgrade = call.header(header::UPGRADE);
    if !upgrade.is_some_and(|upgrade| upgrade.trim().eq_ignore_ascii_case("websocket")) {
        let upgrade = python(upgrade);
        return Err(format!("No WebSocket UPGRADE hdr: {upgrade}\n Can \"Upgrade\" only to \"WebSocket\"."));
    }
    let connection = call.header(header::CONNECTION);
    if !connection.is_some_and(|connection| connection.to_ascii_lowercase().contains("upgrade")) {
        return Err(format!("No CONNECTION upgrade hdr: {}", python(connection)));
    }
    let version = call.header(header::SEC_WEBSOCKET_VERSION).unwrap_or_default();
    if !matches!(version, "13" | "8" | "7") {
        return Err(format!("Unsupported version: {version}"));
    }
    let key = call.header(header::SEC_WEBSOCKET_KEY);
    match key {
        // Sixteen bytes in Base64.
        Some(key) if key.len() == 24 && key.ends_with("==") => Ok(key.to_owned()),
        Some(key) => Err(format!("Handshake error: {}", repr_str(key))),
        None => Err("Handshake error: None".to_owned()),
    }
}

struct Socket {
    host: Arc<Host>,
    life: Arc<Life>,
    control: Arc<Control>,
    client: String,
}

/// Forgets the socket when its task ends, however that comes about.
struct Leaving(Arc<Life>, String);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.sockets.close(&self.1);
    }
}

impl Socket {
    async fn run(self, upgrade: OnUpgrade, frames: mpsc::Sender<Message>, receiver: mpsc::Receiver<Message>) {
        let upgraded = match upgrade.await {
            Ok(upgraded) => upgraded,
            Err(error) => {
                tracing::debug!(%error, "websocket not opened");
                return;
            }
        };
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE))
            .max_frame_size(Some(MESSAGE))
            .write_buffer_size(0);
        let stream =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        let (sink, stream) = stream.split();
        let sending = send(sink, receiver, self.host.faults.clone(), &self.control);
        let receiving = self.receive(stream, &frames);
        tokio::select! {
            () = sending => {}
            () = receiving => {}
        }
    }

    /// The state of the queue, and what runs now if it is the client's own.
    fn greeting(&self) -> Vec<Message> {
        let remaining = dict([("queue_remaining", self.life.engine.queue_remaining().into())]);
        let status = dict([("exec_info", remaining)]);
        let mut greeting = vec![Outgoing::Text {
            event: "status",
            data: dict([("status", status), ("sid", Json::from(&self.client))]),
        }];
        if let Some(node) = self.life.engine.running_node_of(&self.client) {
            greeting.push(Outgoing::Text { event: "executing", data: dict([("node", Json::from(node))]) });
        }
        greeting.iter().filter_map(Outgoing::frame).collect()
    }

    /// Reads until the client is gone. Only the first message means something, and only if it is JSON.
    async fn receive(
        &self,
        mut stream: impl Stream<Item = Result<Message, Error>> + Unpin,
        frames: &mpsc::Sender<Message>,
    ) {
        let mut first = self.life.config.profile > Profile::V0_3_30;
        while let Some(message) = stream.next().await {
            let text = match message {
                Ok(Message::Text(text)) => text,
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!(%error, client = self.client, "websocket ended");
                    return;
                }
            };
            // What is no JSON does not count, nor does JSON that is no object.
            if let (true, Ok(Json::Dict(message))) = (first, Json::parse(text.as_bytes())) {
                first = false;
                self.negotiate(&message, frames).await;
            }
        }
    }

    async fn negotiate(&self, message: &Dict, frames: &mpsc::Sender<Message>) {
        if message.get("type").and_then(Json::as_str) != Some("feature_flags") {
            return;
        }
        self.life.sockets.set_flags(&self.client, message.get("data").unwrap_or(&Json::Null));
        let answer = Outgoing::Text { event: "feature_flags", data: feature_flags(&self.life.config) };
        if let Some(frame) = answer.frame() {
            // An error means that the socket is closing.
            let _ = frames.send(frame).await;
        }
    }
}

/// Sends frames until the socket breaks, and lets faults at them.
async fn send(
    mut sink: impl Sink<Message, Error = Error> + Unpin,
    mut frames: mpsc::Receiver<Message>,
    faults: Faults,
    control: &Control,
) {
    let mut book = faults.watch();
    let mut asked = HashSet::new();
    let mut fault = faults.socket(&mut asked);
    let mut mute = false;
    loop {
        if let Some(SocketFault { kind, after_frames: 0 }) = fault {
            match kind {
                SocketFaultKind::Mute => mute = true,
                SocketFaultKind::Drop => return control.reset(),
                SocketFaultKind::HalfOpen => control.silence(),
                SocketFaultKind::Flood { frames, bytes } => {
                    let frame = unasked(bytes);
                    for _ in 0..frames {
                        if sink.send(frame.clone()).await.is_err() {
                            return;
                        }
                    }
                }
            }
            fault = faults.socket(&mut asked);
            continue;
        }
        tokio::select! {
            frame = frames.recv() => {
                let Some(frame) = frame else { return };
                if mute {
                    continue;
                }
                if sink.send(frame).await.is_err() {
                    return;
                }
                if let Some(fault) = &mut fault {
                    fault.after_frames -= 1;
                }
            }
            Ok(()) = book.changed() => fault = fault.or_else(|| faults.socket(&mut asked)),
        }
    }
}

/// A frame that nobody asked for: a picture, or news of a prompt that nobody knows.
fn unasked(bytes: u64) -> Message {
    if bytes == 0 {
        let text = r#"{"type": "progress", "data": {"value": 1, "max": 2, "prompt_id": "nobody-knows-it", "node": "1"}}"#;
        return Message::text(text);
    }
    // A preview in JPEG.
    let mut picture = vec![0, 0, 0, 1, 0, 0, 0, 1];
    picture.resize(picture.len() + usize::try_from(bytes).unwrap_or(MESSAGE), 0xff);
    Message::binary(picture)
}
