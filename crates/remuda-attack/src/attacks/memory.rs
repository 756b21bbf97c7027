//! What makes a server keep more in memory than it should.

use super::pictures;
use crate::raw::{Client, connect_narrow, head};
use crate::stage::Stage;
use anyhow::{Context, Result};
use futures_util::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Asks for this again and again over connections that nobody reads, and holds them.
pub(super) async fn unread(stage: &Stage, path: &str, times: usize) -> Result<()> {
    let head = head("GET", path, &stage.server, &stage.keys.mallory, &[]);
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..times {
        // A connection that is refused is a limit that works.
        if let Ok(mut stream) = connect_narrow(&stage.server).await
            && stream.write_all(head.as_bytes()).await.is_ok()
        {
            held.push(stream);
        }
    }
    tokio::time::sleep(stage.while_it_lasts()).await;
    Ok(())
}

async fn masks(stage: Stage, bombs: Vec<Vec<u8>>) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let mut wrong = Vec::new();
    client.upload("/upload/image", key, &[], "plain.png", pictures::plain()?).await?;
    for (n, bomb) in bombs.iter().enumerate() {
        // As the mask, and as what the mask is laid upon.
        client.upload("/upload/image", key, &[], &format!("bomb{n}.png"), bomb.clone()).await?;
    }
    let reference = |name: &str| json!({"filename": name, "type": "input", "subfolder": ""}).to_string();
    let sent = bombs.iter().enumerate().flat_map(|(n, bomb)| {
        let plain = (reference("plain.png"), format!("m{n}.png"), bomb.clone());
        let on_bomb = (reference(&format!("bomb{n}.png")), format!("o{n}.png"), bomb.clone());
        [plain, on_bomb]
    });
    let sent = sent.map(|(original, name, bomb)| {
        let client = client.clone();
        async move {
            let fields = [("original_ref", original.as_str()), ("type", "input")];
            client.upload("/upload/mask", key, &fields, &name, bomb).await
        }
    });
    for answer in join_all(sent).await {
        match answer {
            Ok(answer) if answer.status >= 500 && answer.status != 503 => {
                wrong.push(format!("/upload/mask answers {} {}", answer.status, answer.text()));
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("/upload/mask does not answer: {error}")),
        }
    }
    for n in 0..bombs.len() {
        let path = format!("/view?filename=bomb{n}.png&type=input&preview=webp;50");
        let _ = client.get(&path, key).await;
    }
    wrong.dedup();
    Ok(wrong)
}

pub(crate) async fn mask_bomb(stage: Stage) -> Result<Vec<String>> {
    // Either is more than the server may have, and takes the attacker some seconds to pack.
    let size = if stage.quick { 400 << 20 } else { 1 << 30 };
    let bombs = vec![pictures::text_bomb(*b"zTXt", size)?, pictures::text_bomb(*b"iTXt", size)?];
    masks(stage, bombs).await
}

pub(crate) async fn picture_bomb(stage: Stage) -> Result<Vec<String>> {
    masks(stage, vec![pictures::pixel_bomb(30_000)?]).await
}

pub(crate) async fn many_parts(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let fields: Vec<(&str, &str)> = (0..200_000).map(|_| ("overwrite", "true")).collect();
    for _ in 0..4 {
        let answer =
            client.upload("/upload/image", &stage.keys.mallory, &fields, "a.png", pictures::plain()?).await;
        if let Ok(answer) = answer
            && answer.status >= 500
            && answer.status != 503
        {
            return Ok(vec![format!("/upload/image answers {} {}", answer.status, answer.text())]);
        }
    }
    Ok(Vec::new())
}

pub(crate) async fn settings(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let value = "v".repeat(15 << 20);
    for n in 0..12 {
        let body = format!("\"{value}\"");
        // A refusal is a limit that works.
        let answer = client.post(&format!("/settings/s{n}"), &stage.keys.mallory, body).await?;
        if !answer.is_success() {
            break;
        }
    }
    unread(&stage, "/settings", 12).await?;
    Ok(Vec::new())
}

pub(crate) async fn task(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let body = json!({
        "payload": {
            "1": {"class_type": "RigProgress", "inputs":
                {"steps": 1, "step_ms": 1, "preview": "none", "preview_size": 16, "seed": 1}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"},
                "_meta": {"title": "t".repeat(30 << 20)}},
        },
        "not_before": "2999-01-01T00:00:00Z",
    });
    let answer = client.post("/api/v1/tasks", &stage.keys.mallory, body.to_string()).await?;
    if answer.is_success() {
        let id = answer.json()["id"].as_str().context("a task without an id")?.to_owned();
        unread(&stage, &format!("/api/v1/tasks/{id}"), 40).await?;
    }
    Ok(Vec::new())
}

pub(crate) async fn history(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    for n in 0..24 {
        let body = json!({"prompt": {
            "1": {"class_type": "RigProgress", "inputs":
                {"steps": 1, "step_ms": 1, "preview": "none", "preview_size": 16, "seed": n}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"},
                "_meta": {"title": "t".repeat(4 << 20)}},
        }});
        client.post("/prompt", &stage.keys.mallory, body.to_string()).await?;
    }
    unread(&stage, "/history", 20).await?;
    unread(&stage, "/queue", 20).await?;
    Ok(Vec::new())
}

pub(crate) async fn object_info(stage: Stage) -> Result<Vec<String>> {
    unread(&stage, "/object_info", 500).await?;
    Ok(Vec::new())
}
