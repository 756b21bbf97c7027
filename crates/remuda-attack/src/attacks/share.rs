//! More than one guest's share of connections, permits and time.

use super::pictures;
use crate::raw::{Client, answer_to, closes, connect, connect_narrow, head};
use crate::stage::Stage;
use crate::world::{DOCUMENTS_MIB, make_key};
use anyhow::{Context, Result};
use futures_util::future::join_all;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// How long a header may take before the server must have lost its patience.
const HEADER_TIME: Duration = Duration::from_secs(60);

/// Opens this many connections, sends these bytes on each, and holds them while the load lasts.
async fn hold(stage: &Stage, count: usize, bytes: &[u8], narrow: bool) -> Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..count {
        let stream = if narrow { connect_narrow(&stage.server).await } else { connect(&stage.server).await };
        // A connection that is refused is a limit that works.
        let Ok(mut stream) = stream else { continue };
        if bytes.is_empty() || stream.write_all(bytes).await.is_ok() {
            held.push(stream);
        }
    }
    tokio::time::sleep(stage.while_it_lasts()).await;
    Ok(held)
}

/// What the second tenant does, from its own address, while the attacker holds what it has.
async fn beside(stage: &Stage, path: String, body: Option<Vec<u8>>) -> Vec<String> {
    // By now the attacker has what it can get.
    tokio::time::sleep(stage.while_it_lasts() / 2 + Duration::from_secs(1)).await;
    let Ok(http) = reqwest::Client::builder().timeout(Duration::from_secs(10)).build() else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    for _ in 0..5 {
        let request = match &body {
            Some(body) => http
                .post(stage.url(&path))
                .header("content-type", "application/octet-stream")
                .body(body.clone()),
            None => http.get(stage.url(&path)),
        };
        match request.bearer_auth(&stage.keys.bob).send().await {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => wrong.push(format!("the second tenant's {path} is answered {}", answer.status())),
            Err(_) => wrong.push(format!("the second tenant's {path} is not answered")),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wrong.dedup();
    wrong
}

/// Sends just enough of the body that the server has to keep it somewhere, and then nothing more.
async fn stalled(stage: &Stage, path: &str, kind: &str) -> Result<()> {
    let more = [("Content-Type", kind), ("Content-Length", "20000000")];
    let mut bytes = head("POST", path, &stage.server, &stage.keys.mallory, &more).into_bytes();
    bytes.extend_from_slice(b"{\"payload\":\"");
    bytes.resize(bytes.len() + (300 << 10), b'x');
    hold(stage, 200, &bytes, false).await?;
    Ok(())
}

pub(crate) async fn stalled_bodies(stage: Stage) -> Result<Vec<String>> {
    let mut graph = crate::probe::graph(1);
    graph["2"]["_meta"] = json!({"title": "b".repeat(400 << 10)});
    let large = json!({"payload": graph, "not_before": "2999-01-01T00:00:00Z"}).to_string();
    let (held, wrong) = tokio::join!(
        stalled(&stage, "/api/v1/tasks", "application/json"),
        beside_json(&stage, "/api/v1/tasks", large)
    );
    held?;
    Ok(wrong)
}

pub(crate) async fn stalled_prompts(stage: Stage) -> Result<Vec<String>> {
    let mut graph = crate::probe::graph(1);
    graph["2"]["_meta"] = json!({"title": "b".repeat(400 << 10)});
    let large = json!({"prompt": graph}).to_string();
    let (held, wrong) =
        tokio::join!(stalled(&stage, "/prompt", "application/json"), beside_json(&stage, "/prompt", large));
    held?;
    Ok(wrong)
}

/// A body of the second tenant that is large, as bodies may be.
async fn beside_json(stage: &Stage, path: &str, body: String) -> Vec<String> {
    tokio::time::sleep(stage.while_it_lasts() / 2 + Duration::from_secs(1)).await;
    let Ok(http) = reqwest::Client::builder().timeout(Duration::from_secs(30)).build() else {
        return Vec::new();
    };
    let request = http.post(stage.url(path)).header("content-type", "application/json").body(body);
    let began = Instant::now();
    match request.bearer_auth(&stage.keys.bob).send().await {
        Ok(answer) if answer.status().is_success() && began.elapsed() < Duration::from_secs(5) => Vec::new(),
        Ok(answer) => {
            let took = began.elapsed().as_secs();
            vec![format!("the second tenant's larger {path} is answered {} after {took} s", answer.status())]
        }
        Err(_) => vec![format!("the second tenant's larger {path} is not answered")],
    }
}

pub(crate) async fn stalled_uploads(stage: Stage) -> Result<Vec<String>> {
    let raw = "application/octet-stream";
    let (one, two, form, wrong) = tokio::join!(
        stalled(&stage, "/api/v1/assets?filename=a.png", raw),
        stalled(&stage, "/api/v1/assets?filename=b.png", raw),
        stalled(&stage, "/upload/image", "multipart/form-data; boundary=x"),
        beside(&stage, "/api/v1/assets?filename=c.png".to_owned(), Some(pictures::plain()?)),
    );
    one.and(two).and(form)?;
    Ok(wrong)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) async fn unread_downloads(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let mut file = pictures::plain()?;
    file.resize(16 << 20, 7);
    let sha = sha256(&file);
    let request = client.request(reqwest::Method::POST, "/api/v1/assets?filename=big.bin", key);
    client.send(request.header("content-type", "application/octet-stream").body(file)).await?;
    let own = pictures::plain()?;
    let mine = sha256(&own);
    let request = client.request(reqwest::Method::POST, "/api/v1/assets?filename=own.png", &stage.keys.bob);
    client.send(request.header("content-type", "application/octet-stream").body(own)).await?;
    let head = head("GET", &format!("/api/v1/assets/{sha}"), &stage.server, key, &[]);
    let (held, wrong) = tokio::join!(
        hold(&stage, 600, head.as_bytes(), true),
        beside(&stage, format!("/api/v1/assets/{mine}"), None)
    );
    held?;
    Ok(wrong)
}

pub(super) const HANDSHAKE: [(&str, &str); 4] = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

pub(crate) async fn sockets(stage: Stage) -> Result<Vec<String>> {
    let mine = head("GET", "/ws", &stage.server, &stage.keys.mallory, &HANDSHAKE);
    let _held = hold(&stage, 4_200, mine.as_bytes(), false).await?;
    let theirs = head("GET", "/ws", &stage.server, &stage.keys.bob, &HANDSHAKE);
    let mut wrong = Vec::new();
    for _ in 0..5 {
        let mut stream = tokio::net::TcpStream::connect(&stage.server).await?;
        match answer_to(&mut stream, theirs.as_bytes(), Duration::from_secs(5)).await {
            Ok((101, _)) => {}
            Ok((status, _)) => wrong.push(format!("the second tenant's socket is answered {status}")),
            Err(error) => wrong.push(format!("the second tenant's socket: {error}")),
        }
    }
    wrong.dedup();
    Ok(wrong)
}

/// A task that nobody runs before the end of the attack.
async fn waiting_task(stage: &Stage) -> Result<String> {
    let client = Client::new(stage)?;
    let body = json!({"payload": crate::probe::graph(1), "not_before": "2999-01-01T00:00:00Z"});
    client.task(&stage.keys.mallory, &body).await
}

pub(crate) async fn streams(stage: Stage) -> Result<Vec<String>> {
    let task = waiting_task(&stage).await?;
    let head = head("GET", &format!("/api/v1/tasks/{task}/events"), &stage.server, &stage.keys.mallory, &[]);
    hold(&stage, 2_000, head.as_bytes(), false).await?;
    Ok(Vec::new())
}

pub(crate) async fn held(stage: Stage) -> Result<Vec<String>> {
    let body = json!({"payload": crate::probe::graph(1), "not_before": "2999-01-01T00:00:00Z"}).to_string();
    let length = body.len().to_string();
    let more = [("Prefer", "wait=60"), ("Content-Type", "application/json"), ("Content-Length", &length)];
    let head = head("POST", "/api/v1/tasks", &stage.server, &stage.keys.mallory, &more) + &body;
    hold(&stage, 1_200, head.as_bytes(), false).await?;
    Ok(Vec::new())
}

pub(crate) async fn synchronous(stage: Stage) -> Result<Vec<String>> {
    let graph = json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": 60, "step_ms": 1000, "preview": "none", "preview_size": 16, "seed": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let body = json!({"prompt": graph}).to_string();
    let length = body.len().to_string();
    let more = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
    let head = head("POST", "/prompt_sync", &stage.server, &stage.keys.mallory, &more) + &body;
    hold(&stage, 1_200, head.as_bytes(), false).await?;
    Ok(Vec::new())
}

pub(crate) async fn idle(stage: Stage) -> Result<Vec<String>> {
    hold(&stage, 12_000, b"", false).await?;
    Ok(Vec::new())
}

pub(crate) async fn trickle(stage: Stage) -> Result<Vec<String>> {
    let head = head("GET", "/api/v1/tasks", &stage.server, &stage.keys.mallory, &[]);
    let mut held = hold(&stage, 2_000, &head.as_bytes()[..20], false).await?;
    if stage.quick {
        return Ok(Vec::new());
    }
    let began = Instant::now();
    let mut bytes = head.as_bytes()[20..].iter();
    // Never to its end: that would be a request like any other.
    while began.elapsed() < HEADER_TIME && bytes.len() > 8 {
        let Some(byte) = bytes.next() else { break };
        let mut left = Vec::new();
        for mut stream in held {
            if stream.write_all(&[*byte]).await.is_ok() {
                left.push(stream);
            }
        }
        held = left;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut open = 0;
    for stream in &mut held {
        open += usize::from(!closes(stream, Duration::from_millis(20)).await);
    }
    match open {
        0 => Ok(Vec::new()),
        open => Ok(vec![format!(
            "after {} s {open} connections without a request are still open",
            HEADER_TIME.as_secs()
        )]),
    }
}

pub(crate) async fn pipelining(stage: Stage) -> Result<Vec<String>> {
    let one = head("GET", "/object_info", &stage.server, &stage.keys.mallory, &[]);
    let requests = one.repeat(2_000);
    let send = (0..100).map(|_| async {
        let mut stream = connect_narrow(&stage.server).await.ok()?;
        let sent = stream.write_all(requests.as_bytes());
        let _ = tokio::time::timeout(stage.while_it_lasts(), sent).await;
        tokio::time::sleep(stage.while_it_lasts()).await;
        Some(())
    });
    join_all(send).await;
    Ok(Vec::new())
}

async fn flooded(stage: Stage, key: String) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let until = Instant::now() + stage.while_it_lasts();
    let lanes = (0..64).map(|n| {
        let (client, key) = (client.clone(), key.clone());
        async move {
            while Instant::now() < until {
                let path = ["/api/v1/tasks", "/object_info", "/history", "/queue"][n % 4];
                let _ = client.get(path, &key).await;
            }
        }
    });
    join_all(lanes).await;
    Ok(Vec::new())
}

pub(crate) async fn flood(stage: Stage) -> Result<Vec<String>> {
    let key = stage.keys.mallory.clone();
    flooded(stage, key).await
}

pub(crate) async fn flood_no_key(stage: Stage) -> Result<Vec<String>> {
    flooded(stage, String::new()).await
}

pub(crate) async fn hoard_settings(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    // Both count together: each has a tenant of its own, so that each is filled from nothing.
    let other = make_key(&stage.remuda, &stage.data, "hoarder", "hoarder", &["submit", "read"])?;
    let mut wrong = Vec::new();
    let body = format!("\"{}\"", "v".repeat(1 << 20));
    let hoards = [("settings", "/settings/s", &stage.keys.mallory), ("user data", "/userdata/f", &other)];
    for (what, path, key) in hoards {
        let mut refused = None;
        let mut taken = 0;
        while taken <= DOCUMENTS_MIB {
            let answer = client.post(&format!("{path}{taken}"), key, body.clone()).await?;
            if !answer.is_success() {
                refused = Some(answer);
                break;
            }
            taken += 1;
        }
        match refused {
            None => wrong.push(format!("{taken} MiB of {what} were taken, {DOCUMENTS_MIB} are allowed")),
            Some(answer) if answer.status == 429 && answer.json()["limit"] == "server.document_bytes" => {
                // A limit that is met too early would be a fault as well.
                if taken < DOCUMENTS_MIB / 2 {
                    wrong.push(format!("only {taken} MiB of {what} are taken, {DOCUMENTS_MIB} are allowed"));
                }
            }
            Some(answer) => wrong.push(format!("{what}: {} {}", answer.status, answer.text())),
        }
    }
    // What one has filled is not what another has.
    let own = client.post("/settings/own", &stage.keys.bob, body).await?;
    if !own.is_success() {
        wrong.push(format!("a setting of the second tenant: {} {}", own.status, own.text()));
    }
    let listed = client.get("/settings", &stage.keys.bob).await.context("the second tenant's settings")?;
    if !listed.is_success() {
        wrong.push(format!("the second tenant's settings: {}", listed.status));
    }
    Ok(wrong)
}
