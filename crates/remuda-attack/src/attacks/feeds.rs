//! Readers of all events that do not read, or slowly, while events are made for them.

use crate::raw::{Client, connect_narrow, head};
use crate::stage::Stage;
use anyhow::Result;
use futures_util::future::join_all;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How many readers of one tenant try to follow.
const READERS: usize = 700;

/// How many of them are let in, as they come (`server.feed_readers`).
const LET_IN: usize = 512;

/// One in this many reads, a little at a time.
const SLOW: usize = 4;

/// Tasks that are taken in and cancelled at once.
const AT_ONCE: usize = 16;

pub(crate) async fn streams(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let until = Instant::now() + stage.while_it_lasts();
    let (held, made) = tokio::join!(follow(&stage, until), make(&stage, &client, until));
    made?;
    let wrong = format!("{held} readers of one tenant follow all events");
    Ok(if held > LET_IN { vec![wrong] } else { Vec::new() })
}

/// Opens streams and leaves most of them unread. How many were let in.
async fn follow(stage: &Stage, until: Instant) -> usize {
    let head = head("GET", "/api/v1/events?after=first", &stage.server, &stage.keys.mallory, &[]);
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..READERS {
        let Ok(mut stream) = connect_narrow(&stage.server).await else { continue };
        let mut status = [0; 12];
        let answered = async {
            stream.write_all(head.as_bytes()).await?;
            stream.read_exact(&mut status).await
        };
        let answered = tokio::time::timeout(Duration::from_secs(5), answered).await;
        if matches!(answered, Ok(Ok(_))) && status.ends_with(b"200") {
            held.push(stream);
        }
    }
    let count = held.len();
    let read = held.into_iter().enumerate().map(|(n, mut stream)| async move {
        let mut some = [0; 64];
        while Instant::now() < until {
            if n % SLOW == 0 {
                let piece = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut some)).await;
                if matches!(piece, Ok(Ok(0) | Err(_))) {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    join_all(read).await;
    count
}

/// Makes events: every task has two at least.
async fn make(stage: &Stage, client: &Client, until: Instant) -> Result<()> {
    let key = &stage.keys.mallory;
    let body = json!({"payload": crate::probe::graph(1), "not_before": "2999-01-01T00:00:00Z"});
    let one = || async {
        // What is refused is a limit that works.
        let Ok(task) = client.task(key, &body).await else { return };
        let path = format!("/api/v1/tasks/{task}");
        drop(client.send(client.request(reqwest::Method::DELETE, &path, key)).await);
    };
    while Instant::now() < until {
        join_all((0..AT_ONCE).map(|_| one())).await;
    }
    Ok(())
}
