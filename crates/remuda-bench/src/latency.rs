//! What a task takes longer through `remuda serve` than with a client that talks to ComfyUI itself.
//!
//! Both use the same simulator and take turns, so that whatever else the machine does hits both; and in each round two
//! durable writes are made beside them, because that much is the price of a task that survives a crash.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use comfyui::{Client, FileRef, PromptRequest, Session, SessionOptions, Workflow};
use serde_json::{Value, json};

use crate::probe::Probe;
use crate::programs::{Server, Sim};
use crate::table::{Row, Sample};

const GROUP: &str = "latency from submission to result, remuda serve on SQLite";
/// Rounds that warm connections and caches.
const WARM_UP: usize = 50;

pub(crate) async fn measure(folder: &Path, rounds: usize) -> Result<Vec<Row>> {
    let sim = Sim::start(&folder.join("latency-sim")).await?;
    let data = folder.join("latency");
    let server = Server::start(&data, None, &[&sim.url]).await?;
    server.idle_worker().await?;
    let session = Session::open(Client::new(&sim.url)?, SessionOptions::default()).await?;
    let pair = Pair { session, server };
    let mut probe = Probe::new(&data)?;
    let text = pair.compare(text, &mut probe, rounds).await?;
    let picture = pair.compare(picture, &mut probe, rounds / 4).await?;
    pair.session.close().await;
    pair.server.stop().await?;

    let (median, tail) = (text.commits.median(), text.commits.p99());
    let added = |compared: &Compared, share| compared.through.at(share) - compared.direct.at(share);
    Ok(vec![
        Row::fact(GROUP, "two durable writes on this disk, median", median, "ms"),
        Row::fact(GROUP, "two durable writes on this disk, 99 of 100 within", tail, "ms"),
        Row::fact(GROUP, "straight to ComfyUI, median", text.direct.median(), "ms"),
        Row::fact(GROUP, "straight to ComfyUI, 99 of 100 within", text.direct.p99(), "ms"),
        Row::fact(GROUP, "through Remuda, median", text.through.median(), "ms"),
        Row::fact(GROUP, "through Remuda, 99 of 100 within", text.through.p99(), "ms"),
        Row::at_most(GROUP, "added, median (two writes + 2 ms)", added(&text, 0.5), "ms", median + 2.0),
        Row::at_most(GROUP, "added, 99 of 100 (two writes + 10 ms)", added(&text, 0.99), "ms", tail + 10.0),
        Row::fact(GROUP, "added with a picture that is kept and fetched, median", added(&picture, 0.5), "ms"),
        Row::fact(
            GROUP,
            "added with a picture that is kept and fetched, 99 of 100",
            added(&picture, 0.99),
            "ms",
        ),
    ])
}

/// A graph that leaves a line of text, and no files.
pub(crate) fn text(mark: &str) -> Value {
    json!({"1": {"class_type": "RigText", "inputs": {"text": mark}}})
}

/// A graph that leaves a small picture.
pub(crate) fn picture(mark: &str) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": mark}},
    })
}

struct Pair {
    session: Session,
    server: Server,
}

/// Milliseconds.
struct Compared {
    direct: Sample,
    through: Sample,
    commits: Sample,
}

impl Pair {
    async fn compare(&self, graph: fn(&str) -> Value, probe: &mut Probe, rounds: usize) -> Result<Compared> {
        let (mut direct, mut through, mut commits) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds + WARM_UP {
            let begun = Instant::now();
            self.direct(&graph(&format!("direct {round}"))).await?;
            let straight = begun.elapsed().as_secs_f64() * 1e3;
            let begun = Instant::now();
            self.through(&graph(&format!("through {round}"))).await?;
            let detour = begun.elapsed().as_secs_f64() * 1e3;
            let two = probe.commit()? + probe.commit()?;
            if round >= WARM_UP {
                direct.push(straight);
                through.push(detour);
                commits.push(two);
            }
        }
        Ok(Compared {
            direct: Sample::new(direct),
            through: Sample::new(through),
            commits: Sample::new(commits),
        })
    }

    async fn direct(&self, graph: &Value) -> Result<()> {
        let workflow = Workflow::parse(graph.to_string())?;
        let success = self.session.submit(PromptRequest::new(workflow)).await?.finish().await?;
        for file in success.outputs.files() {
            let file = FileRef::output(&file.filename).in_subfolder(&file.subfolder);
            self.session.client().view(&file).await?.write_to(&mut tokio::io::sink()).await?;
        }
        Ok(())
    }

    async fn through(&self, graph: &Value) -> Result<()> {
        let task = self.server.submit(graph, true).await?;
        let files = task["result"]["files"].as_array().map(Vec::as_slice).unwrap_or_default();
        for file in files {
            let path = file["url"].as_str().with_context(|| format!("an output without a URL: {file}"))?;
            self.server.download(path, |_| Ok(())).await?;
        }
        Ok(())
    }
}
