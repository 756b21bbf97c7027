//! The sockets: who is connected, and the one loop that sends to them in order.
//!
//! ```text
//!  engine ── send ──▶ one queue ──▶ publish loop ──▶ socket after socket (each waits for the one before)
//! ```
//! As in ComfyUI, a socket whose client does not read stops the loop, and with it the delivery to everybody,
//! while execution goes on. ComfyUI then queues without limit; here the queue ends at [`QUEUE_BYTES`], and
//! what comes later is lost.
//!
//! ComfyUI's event loop writes the answer to a request before it comes to the messages that the request
//! caused. Clients rely on it: some listen for their prompt only once they know its id. A [`Hold`] keeps that
//! order here.

use crate::json::{Json, dict};
use bytes::{BufMut, Bytes, BytesMut};
use indexmap::IndexMap;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

/// How much may wait for a client that does not read.
const QUEUE_BYTES: usize = 256 * 1024 * 1024;
/// Frames on their way to one socket, on top of what the system buffers.
const SOCKET_FRAMES: usize = 4;

/// Where the engine puts its messages: one queue, sent by one loop, one socket after the other.
pub(crate) trait Hub: Send + Sync {
    /// Queues a message for the socket of one client, or for all sockets.
    fn send(&self, message: Outgoing, to: Option<&str>);

    /// Whether the socket of that client announced `supports_preview_metadata`. Never true for `None`.
    fn supports_preview_metadata(&self, client: Option<&str>) -> bool;
}

/// One message on its way to the sockets.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    /// A `{"type", "data"}` text frame.
    Text {
        /// The `type`.
        event: &'static str,
        /// The `data`.
        data: Json,
    },
    /// A binary frame: event number and what follows it.
    Binary {
        /// 1 preview, 3 text, 4 preview with metadata.
        event: u32,
        /// The rest of the frame.
        payload: Bytes,
    },
    /// A frame that JSON cannot hold: ends the message loop, and with it the process, if there is a
    /// socket to send it to.
    Unserializable,
    /// A frame for a `client_id` that is a list or an object: looking for its socket ends the message
    /// loop, and with it the process, whoever is connected.
    Unaddressable,
}

impl Outgoing {
    /// The frame, unless it is one of those that break the loop.
    pub(crate) fn frame(&self) -> Option<Message> {
        match self {
            Outgoing::Text { event, data } => {
                let mut text = dict([("type", Json::from(*event)), ("data", Json::Null)]).dump();
                // Splices the data in, which may be large, instead of copying it into an object first.
                text.truncate(text.len() - "null}".len());
                text.push_str(&data.dump());
                text.push('}');
                Some(Message::text(text))
            }
            Outgoing::Binary { event, payload } => {
                let mut frame = BytesMut::with_capacity(4 + payload.len());
                frame.put_u32(*event);
                frame.put_slice(payload);
                Some(Message::binary(frame.freeze()))
            }
            Outgoing::Unserializable | Outgoing::Unaddressable => None,
        }
    }

    /// About how many bytes it holds on to.
    fn weight(&self) -> usize {
        fn of(value: &Json) -> usize {
            let inside = match value {
                Json::Str(text) | Json::BigInt(text) => text.len(),
                Json::List(values) => values.iter().map(of).sum(),
                Json::Dict(members) => members.iter().map(|(key, value)| 32 + key.len() + of(value)).sum(),
                Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) => 0,
            };
            size_of::<Json>() + inside
        }
        size_of::<Self>()
            + match self {
                Outgoing::Text { data, .. } => of(data),
                Outgoing::Binary { payload, .. } => payload.len(),
                Outgoing::Unserializable | Outgoing::Unaddressable => 0,
            }
    }
}

/// All sockets of one ComfyUI process.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    state: Mutex<State>,
    queued: Notify,
    broken: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    sockets: IndexMap<String, Socket>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    lost: u64,
    next_hold: u64,
    holds: BTreeSet<u64>,
}

#[derive(Debug)]
struct Queued {
    message: Outgoing,
    to: Option<String>,
    /// Waits for all holds before this one. Later ones do not delay it, so that busy clients starve nobody.
    barrier: u64,
}

#[derive(Debug)]
struct Socket {
    frames: mpsc::Sender<Message>,
    supports_preview_metadata: bool,
}

impl Sockets {
    /// Takes in the socket of a client, in the place of an older one with the same id. The older one stays
    /// open, but gets nothing any more.
    ///
    /// `greeting` is sent before anything else.
    pub(crate) fn open(
        &self,
        client: &str,
        greeting: Vec<Message>,
    ) -> (mpsc::Sender<Message>, mpsc::Receiver<Message>) {
        let (frames, receiver) = mpsc::channel(SOCKET_FRAMES.max(greeting.len()));
        for frame in greeting {
            // There is room for all of them.
            let _ = frames.try_send(frame);
        }
        let socket = Socket { frames: frames.clone(), supports_preview_metadata: false };
        let mut state = self.state();
        state.sockets.shift_remove(client);
        state.sockets.insert(client.to_owned(), socket);
        (frames, receiver)
    }

    /// A socket with that id is gone. ComfyUI does not look which one: if a newer one has taken its place, the
    /// newer one is forgotten.
    pub(crate) fn close(&self, client: &str) {
        self.state().sockets.shift_remove(client);
    }

    /// Whether a client has a socket.
    pub(crate) fn has(&self, client: &str) -> bool {
        self.state().sockets.contains_key(client)
    }

    /// Notes what a client announced in its first message.
    pub(crate) fn set_flags(&self, client: &str, flags: &Json) {
        if let Some(socket) = self.state().sockets.get_mut(client) {
            socket.supports_preview_metadata =
                flags.get("supports_preview_metadata") == Some(&Json::Bool(true));
        }
    }

    /// Keeps back the messages that come from now on until the hold is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        let mut state = self.state();
        let number = state.next_hold;
        state.next_hold += 1;
        state.holds.insert(number);
        Hold { sockets: self.clone(), number }
    }

    /// Cancelled when a message broke the loop; ComfyUI's process ends a little later.
    pub(crate) fn broken(&self) -> &CancellationToken {
        &self.broken
    }

    /// The message loop. Ends only when a message breaks it.
    pub(crate) async fn publish(self: Arc<Self>) {
        loop {
            let Some(Queued { message, to, .. }) = self.take() else {
                self.queued.notified().await;
                continue;
            };
            let receivers = self.receivers(to.as_deref());
            if matches!(message, Outgoing::Unaddressable) {
                break;
            }
            if receivers.is_empty() {
                continue;
            }
            let Some(frame) = message.frame() else { break };
            for receiver in receivers {
                // An error means that the socket closed meanwhile.
                let _ = receiver.send(frame.clone()).await;
            }
        }
        self.broken.cancel();
    }

    fn take(&self) -> Option<Queued> {
        let mut state = self.state();
        let barrier = state.queue.front()?.barrier;
        if state.holds.first().is_some_and(|oldest| *oldest < barrier) {
            return None;
        }
        let taken = state.queue.pop_front()?;
        state.queued_bytes = state.queued_bytes.saturating_sub(taken.message.weight());
        Some(taken)
    }

    fn receivers(&self, to: Option<&str>) -> Vec<mpsc::Sender<Message>> {
        let state = self.state();
        match to {
            Some(client) => {
                state.sockets.get(client).map(|socket| socket.frames.clone()).into_iter().collect()
            }
            None => state.sockets.values().map(|socket| socket.frames.clone()).collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps messages back while it exists.
#[derive(Debug)]
pub(crate) struct Hold {
    sockets: Arc<Sockets>,
    number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.sockets.state().holds.remove(&self.number);
        self.sockets.queued.notify_one();
    }
}

impl Hub for Sockets {
    fn send(&self, message: Outgoing, to: Option<&str>) {
        let weight = message.weight();
        let mut state = self.state();
        if state.queued_bytes + weight > QUEUE_BYTES && !state.queue.is_empty() {
            state.lost += 1;
            if state.lost == 1 {
                tracing::warn!("a client does not read its socket: messages are lost from now on");
            }
            return;
        }
        state.queued_bytes += weight;
        let barrier = state.next_hold;
        state.queue.push_back(Queued { message, to: to.map(str::to_owned), barrier });
        drop(state);
        self.queued.notify_one();
    }

    fn supports_preview_metadata(&self, client: Option<&str>) -> bool {
        let state = self.state();
        client
            .and_then(|client| state.sockets.get(client))
            .is_some_and(|socket| socket.supports_preview_metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(60);

    fn text(value: u32) -> Outgoing {
        Outgoing::Text { event: "progress", data: dict([("value", value.into())]) }
    }

    fn running() -> Arc<Sockets> {
        let sockets = Arc::new(Sockets::default());
        tokio::spawn(sockets.clone().publish());
        sockets
    }

    #[test]
    fn frames_have_comfyuis_form() {
        let frame = text(3).frame().unwrap();
        assert_eq!(frame, Message::text(r#"{"type": "progress", "data": {"value": 3}}"#));
        let binary = Outgoing::Binary { event: 1, payload: Bytes::from_static(b"xy") };
        assert_eq!(binary.frame().unwrap(), Message::binary(&b"\0\0\0\x01xy"[..]));
    }

    #[tokio::test]
    async fn the_close_of_the_older_socket_silences_the_newer_one() {
        let sockets = running();
        let (_, mut older) = sockets.open("a", vec![]);
        let (_, mut newer) = sockets.open("a", vec![]);
        sockets.send(text(1), Some("a"));
        assert!(timeout(SOON, newer.recv()).await.unwrap().is_some());
        assert!(older.try_recv().is_err());
        sockets.close("a");
        let (_, mut other) = sockets.open("b", vec![]);
        sockets.send(text(2), None);
        assert!(timeout(SOON, other.recv()).await.unwrap().is_some());
        assert!(newer.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_socket_that_is_not_read_stops_everybody_until_it_is_gone() {
        let sockets = running();
        let (_, hanging) = sockets.open("hanging", vec![]);
        let (_, mut good) = sockets.open("good", vec![]);
        for value in 0..SOCKET_FRAMES as u32 + 1 {
            sockets.send(text(value), Some("hanging"));
        }
        sockets.send(text(99), Some("good"));
        assert!(timeout(Duration::from_millis(50), good.recv()).await.is_err());
        drop(hanging);
        assert!(timeout(SOON, good.recv()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_hold_keeps_back_what_came_after_it_and_nothing_else() {
        let sockets = running();
        let (_, mut frames) = sockets.open("a", vec![]);
        sockets.send(text(1), Some("a"));
        let hold = sockets.hold();
        sockets.send(text(2), Some("a"));
        assert_eq!(timeout(SOON, frames.recv()).await.unwrap(), text(1).frame());
        assert!(timeout(Duration::from_millis(50), frames.recv()).await.is_err());
        let later = sockets.hold();
        drop(hold);
        assert_eq!(timeout(SOON, frames.recv()).await.unwrap(), text(2).frame());
        drop(later);
    }

    #[tokio::test]
    async fn the_queue_is_bounded() {
        let sockets = Sockets::default();
        let large = Outgoing::Binary { event: 1, payload: Bytes::from(vec![0; QUEUE_BYTES / 8]) };
        for _ in 0..20 {
            sockets.send(large.clone(), None);
        }
        assert!(sockets.state().queue.len() < 9);
        assert!(sockets.state().lost > 10);
    }

    #[tokio::test]
    async fn what_json_cannot_hold_breaks_the_loop_only_if_somebody_would_get_it() {
        let sockets = running();
        sockets.send(Outgoing::Unserializable, Some("nobody"));
        let (_, mut frames) = sockets.open("a", vec![]);
        sockets.send(text(1), Some("a"));
        assert!(timeout(SOON, frames.recv()).await.unwrap().is_some());
        assert!(!sockets.broken().is_cancelled());
        sockets.send(Outgoing::Unserializable, Some("a"));
        timeout(SOON, sockets.broken().cancelled()).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_id_that_is_no_text_breaks_the_loop_for_everybody() {
        let sockets = running();
        sockets.send(Outgoing::Unaddressable, None);
        timeout(SOON, sockets.broken().cancelled()).await.unwrap();
    }
}
