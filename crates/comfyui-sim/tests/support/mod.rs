//! What the tests of the simulator's outside share: raw connections, sockets, small prompts, waiting.
#![allow(dead_code, reason = "each test crate uses its own part of this")]
#![allow(clippy::expect_used, reason = "clippy does not see that this is part of tests")]

use comfyui_sim::{SimConfig, Simulator};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async, connect_async};

/// Longer than anything here takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Long enough to believe that nothing more comes.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

/// A simulator in which no time passes.
pub(crate) async fn start() -> Simulator {
    start_with(SimConfig::default()).await
}

pub(crate) async fn start_with(config: SimConfig) -> Simulator {
    let config = SimConfig { step: Duration::ZERO, model_load: Duration::ZERO, ..config };
    Simulator::start(config).await.expect("the simulator starts")
}

/// Waits, but not for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {DEADLINE:?}: {what}"),
    }
}

/// Asks again and again until an answer comes out.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    soon(what, async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// A client that opens a connection for every request, so that faults of connections hit one request each.
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client")
}

pub(crate) async fn get(sim: &Simulator, path: &str) -> reqwest::Result<reqwest::Response> {
    soon(path, client().get(format!("{}{path}", sim.url())).send()).await
}

pub(crate) async fn get_json(sim: &Simulator, path: &str) -> Value {
    let answer = get(sim, path).await.expect("an answer");
    assert_eq!(answer.status(), 200, "{path}");
    serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON")
}

pub(crate) async fn post(
    sim: &Simulator,
    path: &str,
    body: impl ToString,
) -> reqwest::Result<reqwest::Response> {
    soon(path, client().post(format!("{}{path}", sim.url())).body(body.to_string()).send()).await
}

/// A prompt that shows a text and takes no time.
pub(crate) fn text_prompt(text: &str, client: &str) -> Value {
    json!({"prompt": {"1": {"class_type": "RigText", "inputs": {"text": text}}}, "client_id": client})
}

/// A prompt that takes some time.
pub(crate) fn slow_prompt(seconds: f64, client: &str) -> Value {
    json!({
        "prompt": {
            "1": {"class_type": "RigSleep", "inputs": {"seconds": seconds, "seed": 1}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        },
        "client_id": client,
    })
}

/// Submits a prompt and gives its id.
pub(crate) async fn submit(sim: &Simulator, prompt: &Value) -> String {
    let answer = post(sim, "/prompt", prompt).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let answer: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
    answer["prompt_id"].as_str().expect("an id").to_owned()
}

/// The history entry of a prompt, when it is there.
pub(crate) async fn finished(sim: &Simulator, id: &str) -> Value {
    let path = format!("/history/{id}");
    eventually("a history entry", || async {
        let history = get_json(sim, &path).await;
        history.get(id).cloned()
    })
    .await
}

/// Sends bytes as they are and reads until the server closes.
pub(crate) async fn raw(addr: SocketAddr, request: impl AsRef<[u8]>) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    stream.write_all(request.as_ref()).await.expect("sent");
    let mut answer = Vec::new();
    soon("the end of the answer", stream.read_to_end(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// One answer of a connection that stays open: head and body, by its `Content-Length`.
pub(crate) async fn read_answer(stream: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon("the head of an answer", stream.read_u8()).await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text");
    let length = header(&head, "content-length").map_or(0, |length| length.parse().expect("a number"));
    let mut body = vec![0; length];
    soon("the body of an answer", stream.read_exact(&mut body)).await.expect("a body");
    (head, String::from_utf8_lossy(&body).into_owned())
}

/// A header of a raw answer.
pub(crate) fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// A websocket of the other side.
pub(crate) struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn open(sim: &Simulator, client: &str) -> Self {
        let url = format!("ws://{}/ws?clientId={client}", sim.addr());
        Self(soon("a websocket", connect_async(url)).await.expect("an open socket").0)
    }

    /// Opens one with little room for frames that are not read.
    pub(crate) async fn narrow(sim: &Simulator, client: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let stream = socket.connect(sim.addr()).await.expect("a connection");
        let url = format!("ws://{}/ws?clientId={client}", sim.addr());
        let opened = client_async(url, MaybeTlsStream::Plain(stream));
        Self(soon("a websocket", opened).await.expect("an open socket").0)
    }

    /// Opens one and waits for its first frame.
    pub(crate) async fn greeted(sim: &Simulator, client: &str) -> Self {
        let mut socket = Self::open(sim, client).await;
        assert_eq!(socket.event().await["type"], "status");
        socket
    }

    pub(crate) async fn send(&mut self, value: &Value) {
        self.0.send(Message::text(value.to_string())).await.expect("sent");
    }

    pub(crate) async fn send_message(&mut self, message: Message) {
        self.0.send(message).await.expect("sent");
    }

    /// The next message or how the socket ended.
    pub(crate) async fn next(&mut self) -> Option<Result<Message, Error>> {
        soon("a frame", self.0.next()).await
    }

    /// The next text frame.
    pub(crate) async fn event(&mut self) -> Value {
        loop {
            match self.next().await {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).expect("JSON"),
                Some(Ok(_)) => {}
                other => panic!("the socket ended: {other:?}"),
            }
        }
    }

    /// Reads until a text frame of that type.
    pub(crate) async fn event_of(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event().await;
            if event["type"] == kind {
                return event;
            }
        }
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        timeout(QUIET, self.0.next()).await.is_err()
    }

    /// Whether it ended without a closing handshake.
    pub(crate) async fn is_cut(&mut self) -> bool {
        loop {
            match self.next().await {
                Some(Ok(Message::Close(_))) => return false,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return true,
            }
        }
    }

    pub(crate) async fn close(mut self) {
        self.0.close(None).await.expect("closed");
        while let Some(Ok(_)) = self.next().await {}
    }
}
