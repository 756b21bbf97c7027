//! Websockets of the replay: each is read by a task of its own, always, and what came is kept in order.

use futures_util::{SinkExt, StreamExt};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

/// A frame from the server.
#[derive(Debug, Clone)]
pub enum Incoming {
    Text(String),
    Binary(Vec<u8>),
}

/// What a socket has seen so far.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub frames: Vec<Incoming>,
    pub pongs: usize,
    /// Set when the connection is over, with the close code (1006 when there was none).
    pub closed: Option<u16>,
}

/// One connection.
pub struct Socket {
    outgoing: mpsc::Sender<Message>,
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

impl Socket {
    /// Connects. `Err(Some(status))` is a refusal by the server.
    pub async fn open(server: SocketAddr, path: &str, origin: Option<&str>) -> Result<Self, Option<u16>> {
        let mut request = format!("ws://{server}{path}").into_client_request().map_err(|_| None)?;
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().expect("an origin is a header value"));
        }
        let mut config = WebSocketConfig::default();
        config.max_message_size = None;
        config.max_frame_size = None;
        let (stream, _) =
            match tokio_tungstenite::connect_async_with_config(request, Some(config), false).await {
                Ok(connected) => connected,
                Err(Error::Http(response)) => return Err(Some(response.status().as_u16())),
                Err(_) => return Err(None),
            };
        let (outgoing, mut to_send) = mpsc::channel::<Message>(16);
        let (publish, seen) = watch::channel(Seen::default());
        let task = tokio::spawn(async move {
            let (mut sink, mut stream) = stream.split();
            let mut open_for_sending = true;
            loop {
                tokio::select! {
                    message = to_send.recv(), if open_for_sending => match message {
                        Some(message) => {
                            let closing = matches!(message, Message::Close(_));
                            if sink.send(message).await.is_err() || closing {
                                open_for_sending = false;
                            }
                        }
                        None => open_for_sending = false,
                    },
                    message = stream.next() => match message {
                        Some(Ok(Message::Text(text))) => {
                            publish.send_modify(|seen| seen.frames.push(Incoming::Text(text.to_string())));
                        }
                        Some(Ok(Message::Binary(bytes))) => {
                            publish.send_modify(|seen| seen.frames.push(Incoming::Binary(bytes.to_vec())));
                        }
                        Some(Ok(Message::Pong(_))) => publish.send_modify(|seen| seen.pongs += 1),
                        Some(Ok(Message::Close(frame))) => {
                            let code = frame.map_or(1005, |frame| u16::from(frame.code));
                            publish.send_modify(|seen| { seen.closed.get_or_insert(code); });
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => {
                            publish.send_modify(|seen| { seen.closed.get_or_insert(1006); });
                            return;
                        }
                    }
                }
            }
        });
        Ok(Self { outgoing, seen, task })
    }

    /// Sends a frame.
    pub async fn send(&self, message: Message) {
        // A socket that the server has closed takes nothing; the comparison of the frames shows it.
        let _ = self.outgoing.send(message).await;
    }

    /// What came so far.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until what came satisfies the condition; `false` when the deadline passes first.
    pub async fn wait(&mut self, deadline: Duration, condition: impl FnMut(&Seen) -> bool) -> bool {
        tokio::time::timeout(deadline, self.seen.wait_for(condition)).await.is_ok_and(|seen| seen.is_ok())
    }

    /// Closes politely and waits until the server has closed as well.
    pub async fn close(&mut self, deadline: Duration) {
        self.send(Message::Close(None)).await;
        self.wait(deadline, |seen| seen.closed.is_some()).await;
        // The server forgets the socket just after its last byte.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
    }
}
