//! Memory of `remuda serve`: with many waiting tasks, and while a huge output comes in and goes out.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, stream};
use remuda_testbed::wait;
use serde_json::{Value, json};

use crate::programs::{Server, Sim};
use crate::table::Row;

const WAITING_GROUP: &str = "memory of remuda serve on SQLite, tasks waiting behind a busy worker";
const OUTPUT_GROUP: &str = "memory of remuda serve while an output is collected and downloaded";
const SYNC_GROUP: &str = "memory of remuda serve while /prompt_sync answers with an output";
/// How long memory is watched when all tasks are in.
const WATCHED: Duration = Duration::from_secs(3);

pub(crate) async fn waiting(folder: &Path, tasks: usize) -> Result<Vec<Row>> {
    let sim = Sim::start(&folder.join("waiting-sim")).await?;
    let server = Server::start(&folder.join("waiting"), None, &[&sim.url]).await?;
    server.idle_worker().await?;
    let empty = server.resident_mb()?;
    // The first task stays in its node, and the worker is busy for as long as we look.
    sim.fault(&json!({"kind": "stuck_node", "times": 1})).await?;
    let filler = "x".repeat(1_950);
    let submissions = stream::iter(0..=tasks).map(|number| {
        let text = format!("{number} {filler}");
        let server = &server;
        async move {
            let graph = json!({"1": {"class_type": "RigText", "inputs": {"text": text}}});
            server.submit(&graph, false).await.map(drop)
        }
    });
    let mut most = empty;
    let mut submissions = submissions.buffer_unordered(32);
    while let Some(done) = submissions.next().await {
        done?;
        most = most.max(server.resident_mb()?);
    }
    let watched = Instant::now();
    let mut settled: f64 = 0.0;
    while watched.elapsed() < WATCHED {
        settled = settled.max(server.resident_mb()?);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let pending = server.waiting().await?;
    ensure!(pending >= tasks as u64 - 1, "only {pending} of {tasks} tasks wait");
    sim.heal().await?;
    Ok(vec![
        Row::fact(WAITING_GROUP, "one idle worker, no tasks", empty, "MB"),
        Row::fact(WAITING_GROUP, "most while they come in, 32 at a time", most, "MB"),
        Row::at_most(WAITING_GROUP, format!("with {tasks} waiting tasks of 2 KiB"), settled, "MB", 60.0),
    ])
}

pub(crate) async fn output(folder: &Path, bytes: u64) -> Result<Vec<Row>> {
    let sim = Sim::start(&folder.join("output-sim")).await?;
    let server = Server::start(&folder.join("output"), None, &[&sim.url]).await?;
    server.idle_worker().await?;
    // A few small ones first, so that buffers that stay are there already.
    for number in 0..5 {
        let task = server.submit(&picture(&format!("small{number}")), true).await?;
        server.download(&output_path(&task)?, |_| Ok(())).await?;
    }
    let before = server.resident_mb()?;

    // The worker's answer waits until the picture has become a file of the wanted size: it is a hole, the simulator
    // reads zeros, and only Remuda's copy fills the disk.
    sim.fault(&json!({"kind": "slow", "on": "GET /view", "delay_ms": 2_000, "times": 1})).await?;
    let begun = Instant::now();
    let task = server.submit(&picture("huge"), false).await?;
    let id = task["id"].as_str().context("a task without an id")?.to_owned();
    let name = "the file at the simulator";
    let file = wait::until(name, Duration::from_secs(20), async || find(&sim.folder.join("output"), "huge"));
    std::fs::OpenOptions::new().write(true).open(file.await?)?.set_len(bytes)?;
    let mut collecting = before;
    let ended = async {
        loop {
            collecting = collecting.max(server.resident_mb()?);
            let task = server.get(&format!("api/v1/tasks/{id}")).await?;
            match task["status"].as_str() {
                Some("pending" | "running") => tokio::time::sleep(Duration::from_millis(5)).await,
                Some("completed") => break anyhow::Ok(task),
                _ => anyhow::bail!("the task did not complete: {task}"),
            }
        }
    };
    let task = tokio::time::timeout(Duration::from_secs(300), ended).await??;
    let collected = begun.elapsed().as_secs_f64() - 2.0;
    let mut downloading = server.resident_mb()?;
    let begun = Instant::now();
    let mut looked = 0;
    let received = server
        .download(&output_path(&task)?, |so_far| {
            if so_far - looked > 16 << 20 {
                looked = so_far;
                downloading = downloading.max(server.resident_mb()?);
            }
            Ok(())
        })
        .await?;
    ensure!(received == bytes, "{received} bytes came of {bytes}");
    let downloaded = begun.elapsed().as_secs_f64();
    server.stop().await?;
    let grown = collecting.max(downloading) - before;
    let megabytes = bytes as f64 / 1e6;
    Ok(vec![
        Row::fact(OUTPUT_GROUP, "size of the output", megabytes, "MB"),
        Row::fact(OUTPUT_GROUP, "before", before, "MB"),
        Row::fact(OUTPUT_GROUP, "most while it is collected", collecting, "MB"),
        Row::fact(OUTPUT_GROUP, "most while it is downloaded", downloading, "MB"),
        Row::at_most(OUTPUT_GROUP, "grown", grown, "MB", 32.0),
        Row::fact(OUTPUT_GROUP, "collected, hashed and kept at", megabytes / collected, "MB/s"),
        Row::fact(OUTPUT_GROUP, "downloaded at", megabytes / downloaded, "MB/s"),
    ])
}

/// The synchronous handler answers with a large output, in both forms: as base64 within JSON, and as it is.
pub(crate) async fn sync(folder: &Path, bytes: u64) -> Result<Vec<Row>> {
    let sim = Sim::start(&folder.join("sync-sim")).await?;
    let server = Server::start(&folder.join("sync"), None, &[&sim.url]).await?;
    server.idle_worker().await?;
    for number in 0..5 {
        for base64 in [true, false] {
            large_answer(&sim, &server, &format!("small{number}-{base64}"), None, base64).await?;
        }
    }
    let before = server.resident_mb()?;
    let (received, in_json) = large_answer(&sim, &server, "large-json", Some(bytes), true).await?;
    ensure!(received > bytes / 3 * 4, "only {received} bytes came");
    let (received, alone) = large_answer(&sim, &server, "large-bytes", Some(bytes), false).await?;
    ensure!(received == bytes, "{received} bytes came of {bytes}");
    server.stop().await?;
    Ok(vec![
        Row::fact(SYNC_GROUP, "size of the output", bytes as f64 / 1e6, "MB"),
        Row::fact(SYNC_GROUP, "before", before, "MB"),
        Row::at_most(SYNC_GROUP, "grown, as base64 in JSON", in_json - before, "MB", 32.0),
        Row::at_most(SYNC_GROUP, "grown, as the file alone", alone - before, "MB", 32.0),
    ])
}

/// Asks for a picture that has become a file of the wanted size; how much came, and the most memory meanwhile.
async fn large_answer(
    sim: &Sim,
    server: &Server,
    name: &str,
    size: Option<u64>,
    base64: bool,
) -> Result<(u64, f64)> {
    if size.is_some() {
        sim.fault(&json!({"kind": "slow", "on": "GET /view", "delay_ms": 2_000, "times": 1})).await?;
    }
    let body = json!({"prompt": picture(name), "return_image_base64": base64}).to_string();
    let mut request = server.http.post(format!("{}/prompt_sync?timeout=300", server.url));
    request = request.header("content-type", "application/json").body(body);
    if !base64 {
        request = request.header("accept", "image/png");
    }
    let grow = async {
        let Some(size) = size else { return anyhow::Ok(()) };
        let name = name.to_owned();
        let file = wait::until("the file at the simulator", Duration::from_secs(20), async || {
            find(&sim.folder.join("output"), &name)
        });
        std::fs::OpenOptions::new().write(true).open(file.await?)?.set_len(size)?;
        Ok(())
    };
    let mut most = server.resident_mb()?;
    let (mut received, mut looked) = (0, 0);
    let fetch = async {
        let answer = request.send();
        tokio::pin!(answer);
        let mut answer = loop {
            tokio::select! {
                answer = &mut answer => break answer?.error_for_status()?,
                () = tokio::time::sleep(Duration::from_millis(5)) => most = most.max(server.resident_mb()?),
            }
        };
        while let Some(piece) = answer.chunk().await? {
            received += piece.len() as u64;
            if received - looked > 4 << 20 {
                looked = received;
                most = most.max(server.resident_mb()?);
            }
        }
        anyhow::Ok(())
    };
    let ((), ()) = tokio::try_join!(grow, fetch)?;
    Ok((received, most))
}

fn picture(name: &str) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": name}},
    })
}

fn output_path(task: &Value) -> Result<String> {
    let path = task["result"]["files"][0]["url"].as_str();
    Ok(path.with_context(|| format!("no output in {task}"))?.to_owned())
}

/// A file somewhere below a folder whose name begins so.
fn find(folder: &Path, begin: &str) -> Option<PathBuf> {
    std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return find(&path, begin);
        }
        entry.file_name().to_str()?.starts_with(begin).then_some(path)
    })
}
