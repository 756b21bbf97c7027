//! What ComfyUI's own API costs when a fleet answers it: the same client, the same graph, straight and through Remuda.
//!
//! The client is that of the `comfyui` crate with one open websocket on each side. It submits with `POST /prompt`, learns
//! the end from the websocket, and reads the history entry.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use comfyui::{Client, PromptRequest, Session, SessionOptions, Workflow};
use serde_json::json;

use crate::probe::Probe;
use crate::programs::{Server, Sim};
use crate::table::{Row, Sample};

const GROUP: &str = "latency of /prompt and /ws, the same client straight and through remuda serve on SQLite";
/// Rounds that warm connections and caches.
const WARM_UP: usize = 50;

pub(crate) async fn measure(folder: &Path, rounds: usize) -> Result<Vec<Row>> {
    let sim = Sim::start(&folder.join("native-sim")).await?;
    let data = folder.join("native");
    let server = Server::start(&data, None, &[&sim.url]).await?;
    server.idle_worker().await?;
    let straight = Session::open(Client::new(&sim.url)?, SessionOptions::default()).await?;
    let through = Session::open(Client::new(&server.url)?, SessionOptions::default()).await?;
    let mut probe = Probe::new(&data)?;
    let (mut direct, mut detour, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds + WARM_UP {
        let one = render(&straight, &format!("straight {round}")).await?;
        let other = render(&through, &format!("through {round}")).await?;
        let commit = probe.commit()?;
        if round >= WARM_UP {
            direct.push(one);
            detour.push(other);
            commits.push(commit);
        }
    }
    straight.close().await;
    through.close().await;
    server.stop().await?;
    let (direct, detour, commits) = (Sample::new(direct), Sample::new(detour), Sample::new(commits));
    let added = |share| detour.at(share) - direct.at(share);
    Ok(vec![
        Row::fact(GROUP, "one durable write on this disk, median", commits.median(), "ms"),
        Row::fact(GROUP, "straight to ComfyUI, median", direct.median(), "ms"),
        Row::fact(GROUP, "straight to ComfyUI, 99 of 100 within", direct.p99(), "ms"),
        Row::fact(GROUP, "through Remuda, median", detour.median(), "ms"),
        Row::fact(GROUP, "through Remuda, 99 of 100 within", detour.p99(), "ms"),
        Row::at_most(GROUP, "added, median (one write + 2 ms)", added(0.5), "ms", commits.median() + 2.0),
        Row::fact(GROUP, "added, 99 of 100", added(0.99), "ms"),
    ])
}

/// Renders a line of text; how many milliseconds that took.
async fn render(session: &Session, mark: &str) -> Result<f64> {
    let graph = json!({"1": {"class_type": "RigText", "inputs": {"text": mark}}});
    let begun = Instant::now();
    let workflow = Workflow::parse(graph.to_string())?;
    session.submit(PromptRequest::new(workflow)).await?.finish().await?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
