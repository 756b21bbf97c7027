//! Answers and forms that are held in memory because somebody does not read, or never comes to the point.

use super::memory::unread;
use crate::raw::{Client, connect, connect_narrow, head};
use crate::stage::Stage;
use anyhow::{Result, ensure};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

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
