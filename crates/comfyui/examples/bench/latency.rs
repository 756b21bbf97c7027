//! What `watch` adds over a raw websocket client plus one `GET /history/{id}`.

use std::time::Instant;

use comfyui::{Client, PromptRequest, Session, SessionOptions, Workflow};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::Failure;
use crate::table::{Row, percentiles};

fn graph(text: &str) -> Value {
    json!({"1": {"class_type": "RigText", "inputs": {"text": text}}})
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// The shortest client one can write: it waits for one frame, and asks once.
struct Raw {
    http: reqwest::Client,
    socket: Socket,
    url: String,
}

impl Raw {
    async fn open(url: &str) -> Result<Raw, Failure> {
        let socket_url = format!("{}/ws?clientId=raw", url.replace("http://", "ws://"));
        let (socket, _) = tokio_tungstenite::connect_async_with_config(socket_url, None, true).await?;
        Ok(Raw { http: reqwest::Client::new(), socket, url: url.to_owned() })
    }

    async fn render(&mut self, text: &str) -> Result<(), Failure> {
        let body = json!({"prompt": graph(text), "client_id": "raw"}).to_string();
        let answer = self.http.post(format!("{}/prompt", self.url)).body(body).send().await?.bytes().await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let id = answer["prompt_id"].as_str().ok_or("no prompt id")?.to_owned();
        loop {
            let Some(frame) = self.socket.next().await else {
                return Err("the socket ended".into());
            };
            let Frame::Text(text) = frame? else { continue };
            let message: Value = serde_json::from_str(&text)?;
            let over = message["type"] == "executing" && message["data"]["node"].is_null();
            if over && message["data"]["prompt_id"] == id.as_str() {
                break;
            }
        }
        let history = self.http.get(format!("{}/history/{id}", self.url)).send().await?.bytes().await?;
        let history: Value = serde_json::from_slice(&history)?;
        if history[&id]["status"]["completed"] != true {
            return Err(format!("not completed: {history}").into());
        }
        Ok(())
    }
}

pub(crate) async fn measure(url: &str, rounds: usize) -> Result<Vec<Row>, Failure> {
    let mut raw = Raw::open(url).await?;
    let session = Session::open(Client::new(url)?, SessionOptions::default()).await?;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..rounds + 20 {
        // Taking turns, so that whatever else the machine does hits both.
        let begun = Instant::now();
        raw.render(&format!("raw {round}")).await?;
        let raw_time = begun.elapsed();
        let begun = Instant::now();
        let workflow = Workflow::parse(graph(&format!("watch {round}")).to_string())?;
        session.submit(PromptRequest::new(workflow)).await?.finish().await?;
        let watch_time = begun.elapsed();
        // The first rounds warm connections and caches.
        if round >= 20 {
            theirs.push(raw_time.as_secs_f64() * 1e3);
            ours.push(watch_time.as_secs_f64() * 1e3);
        }
    }
    session.close().await;
    let ((raw_median, raw_tail), (median, tail)) = (percentiles(theirs), percentiles(ours));
    let added = median - raw_median;
    Ok(vec![
        Row::fact("raw websocket client + GET /history, median", raw_median, "ms"),
        Row::fact("watch, median", median, "ms"),
        Row::goal("added by watch, median", added, "ms", "at most 0.3 ms", added <= 0.3),
        Row::fact("raw, 99 of 100 within", raw_tail, "ms"),
        Row::fact("watch, 99 of 100 within", tail, "ms"),
    ])
}
