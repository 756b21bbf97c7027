//! Answers and forms that are held in memory because somebody does not read, or never comes to the point.

use super::memory::unread;
use crate::raw::{Client, answer_to, connect, connect_narrow, head};
use crate::stage::Stage;
use anyhow::{Result, ensure};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a render and its answer may take.
const WITHIN: Duration = Duration::from_secs(60);

/// A prompt that leaves this text as its output.
fn text(megabytes: usize) -> Value {
    json!({"1": {"class_type": "PreviewAny", "inputs": {"source": "x".repeat(megabytes << 20)}}})
}

pub(crate) async fn jobs(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let body = json!({"prompt": text(29), "prompt_id": "unread-job"}).to_string();
    let answer = client.post("/prompt", key, body).await?;
    ensure!(answer.is_success(), "the prompt is answered {} {}", answer.status, answer.text());
    let ended = || async {
        let list = client.get("/api/jobs?limit=1&status=completed", key).await;
        list.is_ok_and(|list| list.text().contains("unread-job"))
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ended().await && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    unread(&stage, "/api/jobs/unread-job", 40).await?;
    Ok(Vec::new())
}

pub(crate) async fn synchronous(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let body = json!({"prompt": text(29), "prompt_id": "unread-sync"}).to_string();
    let answer = client.post("/prompt_sync", key, body.clone()).await?;
    ensure!(answer.is_success(), "the prompt is answered {}", answer.status);
    drop(answer);
    let length = body.len().to_string();
    let more = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
    let head = head("POST", "/prompt_sync", &stage.server, key, &more);
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..30 {
        let Ok(mut stream) = connect_narrow(&stage.server).await else { continue };
        let sent = async {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await
        };
        // A body that is not taken is a limit that works.
        if let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(10), sent).await {
            held.push(stream);
        }
    }
    tokio::time::sleep(stage.while_it_lasts()).await;
    Ok(Vec::new())
}

pub(crate) async fn sockets(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let more = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let open = head("GET", "/ws?clientId=unread", &stage.server, &stage.keys.mallory, &more);
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..400 {
        if let Ok(mut stream) = connect_narrow(&stage.server).await
            && stream.write_all(open.as_bytes()).await.is_ok()
        {
            held.push(stream);
        }
    }
    let body = json!({"prompt": text(3), "client_id": "unread"}).to_string();
    client.post("/prompt", &stage.keys.mallory, body).await?;
    tokio::time::sleep(stage.while_it_lasts()).await;
    Ok(Vec::new())
}

/// A task with a large result, submitted, cancelled and run again by its own submitter as if nothing had happened.
pub(crate) async fn replayed(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let body = json!({"payload": text(29)}).to_string();
    let length = body.len().to_string();
    let submit = |prefer: &str| {
        let more = [
            ("Content-Type", "application/json"),
            ("Content-Length", length.as_str()),
            ("Idempotency-Key", "replayed"),
            ("Prefer", prefer),
        ];
        head("POST", "/api/v1/tasks", &stage.server, key, &more) + &body
    };
    let mut stream = connect(&stage.server).await?;
    let (status, answer) = answer_to(&mut stream, submit("wait=30").as_bytes(), WITHIN).await?;
    ensure!(status == 201, "the task is answered {status}");
    let place =
        answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap_or_default().to_owned();
    ensure!(!place.is_empty(), "the answer names no task");
    let until = Instant::now() + stage.while_it_lasts();
    let again = submit("wait=60");
    let short = |method: &str, path: &str| {
        let more = [("Content-Length", "0"), ("Prefer", "wait=60")];
        head(method, path, &stage.server, key, &more)
    };
    let (cancel, retry) = (short("DELETE", &place), short("POST", &format!("{place}/retry")));
    let requests = [again.as_str(), cancel.as_str(), retry.as_str()];
    // Some read what they get, and others keep it waiting.
    let callers = (0..48).map(|n| {
        let (server, request) = (&stage.server, requests[n % requests.len()]);
        async move {
            let mut kept = Vec::new();
            while Instant::now() < until {
                let Ok(mut stream) = connect_narrow(server).await else { continue };
                let asked = async {
                    stream.write_all(request.as_bytes()).await?;
                    let mut first = [0; 64];
                    stream.read(&mut first).await
                };
                drop(tokio::time::timeout(Duration::from_secs(2), asked).await);
                if n % 2 == 0 && kept.len() < 8 {
                    kept.push(stream);
                }
            }
        }
    });
    join_all(callers).await;
    // Cancelled by the client that is left, so that nothing renders on.
    drop(client.get(&place, key).await);
    Ok(Vec::new())
}

/// Forms without a boundary, and forms with a head that does not end.
pub(crate) async fn forms(stage: Stage) -> Result<Vec<String>> {
    let more =
        [("Transfer-Encoding", "chunked"), ("Content-Type", "multipart/form-data; boundary=never-comes")];
    let piece = [b"10000\r\n".as_slice(), &[b'a'; 1 << 16], b"\r\n"].concat();
    let begin = "--never-comes\r\nContent-Disposition: form-data; name=\"image\"; filename=\"";
    let begin = format!("{:x}\r\n{begin}\r\n", begin.len());
    let until = Instant::now() + stage.while_it_lasts();
    let sent = (0..90).map(|n| {
        let path = if n % 3 == 0 { "/api/v1/assets" } else { "/upload/image" };
        let head = head("POST", path, &stage.server, &stage.keys.mallory, &more);
        let (server, piece) = (&stage.server, &piece);
        let begin = if n % 2 == 0 { begin.as_str() } else { "" };
        async move {
            let Ok(mut stream) = connect(server).await else { return };
            let mut sent = stream.write_all((head + begin).as_bytes()).await;
            while sent.is_ok() && Instant::now() < until {
                let more = tokio::time::timeout(Duration::from_secs(2), stream.write_all(piece));
                sent = more.await.unwrap_or(Ok(()));
            }
        }
    });
    join_all(sent).await;
    Ok(Vec::new())
}
