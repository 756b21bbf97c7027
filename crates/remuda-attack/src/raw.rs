//! Connections whose bytes we choose ourselves, from the attacker's own address.

use crate::stage::Stage;
use anyhow::{Context, Result, bail};
use reqwest::Method;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Where the attacker comes from. The second tenant comes from 127.0.0.1: what is bounded by address must not hit both.
pub(crate) const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
const CONNECT: Duration = Duration::from_secs(5);

/// Connects from the attacker's address.
pub(crate) async fn connect(to: &str) -> Result<TcpStream> {
    let to: SocketAddr = to.parse()?;
    let socket = TcpSocket::new_v4()?;
    socket.bind((FROM, 0).into())?;
    Ok(tokio::time::timeout(CONNECT, socket.connect(to)).await.context("no connection in time")??)
}

/// As `connect`, with a small window: what is not read piles up at the server and not in the kernel.
pub(crate) async fn connect_narrow(to: &str) -> Result<TcpStream> {
    let to: SocketAddr = to.parse()?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.bind((FROM, 0).into())?;
    Ok(tokio::time::timeout(CONNECT, socket.connect(to)).await.context("no connection in time")??)
}

/// The head of a request.
pub(crate) fn head(method: &str, path: &str, host: &str, key: &str, more: &[(&str, &str)]) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    if !key.is_empty() {
        text.push_str(&format!("Authorization: Bearer {key}\r\n"));
    }
    for (name, value) in more {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n"
}

/// Sends bytes and reads the head of the answer: its status and the text.
pub(crate) async fn answer_to(
    stream: &mut TcpStream,
    bytes: &[u8],
    within: Duration,
) -> Result<(u16, String)> {
    let exchange = async {
        stream.write_all(bytes).await?;
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        while !text.windows(4).any(|end| end == b"\r\n\r\n") && text.len() < 65_536 {
            let read = stream.read(&mut piece).await?;
            if read == 0 {
                break;
            }
            text.extend_from_slice(&piece[..read]);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok::<_, anyhow::Error>((status.context("closed without an answer")?, text))
    };
    tokio::time::timeout(within, exchange).await.context("no answer in time")?
}

/// Whether the other side closes within this time; what it sends is thrown away.
pub(crate) async fn closes(stream: &mut TcpStream, within: Duration) -> bool {
    let end = async {
        let mut piece = vec![0; 65_536];
        while matches!(stream.read(&mut piece).await, Ok(read) if read > 0) {}
    };
    tokio::time::timeout(within, end).await.is_ok()
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(300).collect()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// An HTTP client at the attacker's address.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    stage: Stage,
}

impl Client {
    pub(crate) fn new(stage: &Stage) -> Result<Client> {
        let http = reqwest::Client::builder()
            .local_address(IpAddr::V4(FROM))
            .timeout(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Client { http, stage: stage.clone() })
    }

    pub(crate) fn request(&self, method: Method, path: &str, key: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, self.stage.url(path));
        if key.is_empty() { request } else { request.bearer_auth(key) }
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Result<Answer> {
        let answer = request.send().await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Ok(Answer { status, headers, body: answer.bytes().await?.to_vec() })
    }

    pub(crate) async fn get(&self, path: &str, key: &str) -> Result<Answer> {
        self.send(self.request(Method::GET, path, key)).await
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: impl Into<Vec<u8>>) -> Result<Answer> {
        let request = self.request(Method::POST, path, key).header("content-type", "application/json");
        self.send(request.body(body.into())).await
    }

    /// Uploads a file through ComfyUI's own API.
    pub(crate) async fn upload(
        &self,
        path: &str,
        key: &str,
        fields: &[(&str, &str)],
        name: &str,
        file: Vec<u8>,
    ) -> Result<Answer> {
        let boundary = "remuda-attack-boundary";
        let mut body = Vec::new();
        for (field, value) in fields {
            body.extend_from_slice(
                format!(
                    "--{boundary}\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n"
                )
                .as_bytes(),
            );
        }
        let part = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\
             Content-Type: image/png\r\n\r\n"
        );
        body.extend_from_slice(part.as_bytes());
        body.extend_from_slice(&file);
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let kind = format!("multipart/form-data; boundary={boundary}");
        self.send(self.request(Method::POST, path, key).header("content-type", kind).body(body)).await
    }

    /// A task, submitted and taken.
    pub(crate) async fn task(&self, key: &str, body: &Value) -> Result<String> {
        let answer = self.post("/api/v1/tasks", key, body.to_string()).await?;
        if !answer.is_success() {
            bail!("a task was refused: {} {}", answer.status, answer.text());
        }
        Ok(answer.json()["id"].as_str().context("a task without an id")?.to_owned())
    }
}
