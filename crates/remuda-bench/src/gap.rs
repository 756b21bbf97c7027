//! How long a GPU waits between two queued tasks: fed by Remuda, and by a client that puts everything into ComfyUI's own
//! queue at once. The simulator keeps the times.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use remuda_testbed::wait;
use serde_json::{Value, json};

use crate::programs::{Server, Sim};
use crate::table::{Row, Sample};

const GROUP: &str = "GPU idle between two queued tasks, one worker, renders of 100 ms";
const SHORT_GROUP: &str = "the same with renders that take no time";
const RENDER_S: f64 = 0.1;
/// Both take turns in blocks of this many tasks.
const BLOCK: usize = 50;
/// Of each block: the first ones are sent while nothing waits yet.
const SKIPPED: usize = 3;

pub(crate) async fn measure(folder: &Path, tasks: usize) -> Result<Vec<Row>> {
    let sim = Sim::start(&folder.join("gap-sim")).await?;
    let server = Server::start(&folder.join("gap"), None, &[&sim.url]).await?;
    server.idle_worker().await?;
    let feeds = Feeds { sim, server };
    let (raw, remuda) = feeds.compare(RENDER_S, tasks).await?;
    let mut rows = vec![
        Row::fact(GROUP, "ComfyUI fed back to back, median", raw.median(), "ms"),
        Row::fact(GROUP, "ComfyUI fed back to back, 99 of 100 within", raw.p99(), "ms"),
        Row::fact(GROUP, "fed by Remuda, median", remuda.median(), "ms"),
        Row::fact(GROUP, "fed by Remuda, 99 of 100 within", remuda.p99(), "ms"),
        Row::at_most(
            GROUP,
            "beyond ComfyUI's own, median (none: 0.1 ms)",
            remuda.median() - raw.median(),
            "ms",
            0.1,
        ),
        Row::at_most(
            GROUP,
            "beyond ComfyUI's own, 99 of 100 (none: 1 ms)",
            remuda.p99() - raw.p99(),
            "ms",
            1.0,
        ),
    ];
    let (raw, remuda) = feeds.compare(0.0, tasks).await?;
    rows.push(Row::fact(SHORT_GROUP, "ComfyUI fed back to back, on average", raw.mean(), "ms"));
    rows.push(Row::fact(SHORT_GROUP, "fed by Remuda, on average", remuda.mean(), "ms"));
    feeds.server.stop().await?;
    Ok(rows)
}

struct Feeds {
    sim: Sim,
    server: Server,
}

impl Feeds {
    /// Gaps in milliseconds: of the raw client, and of Remuda.
    async fn compare(&self, seconds: f64, tasks: usize) -> Result<(Sample, Sample)> {
        let (mut raw, mut remuda) = (Vec::new(), Vec::new());
        for block in 0..tasks.div_ceil(BLOCK) {
            let graphs = |who: &str| {
                let text = move |number| format!("{who} {seconds} {block} {number}");
                (0..BLOCK).map(|number| graph(seconds, &text(number))).collect::<Vec<_>>()
            };
            let before = self.seen().await?;
            self.feed_raw(graphs("raw")).await?;
            raw.extend(self.gaps(&before).await?);
            let before = self.seen().await?;
            self.feed_remuda(graphs("remuda")).await?;
            remuda.extend(self.gaps(&before).await?);
        }
        Ok((Sample::new(raw), Sample::new(remuda)))
    }

    async fn seen(&self) -> Result<HashSet<String>> {
        Ok(self.sim.timeline().await?.into_iter().map(|(id, ..)| id).collect())
    }

    /// Waits until a block is through, and says how long the worker waited after each prompt of it.
    async fn gaps(&self, before: &HashSet<String>) -> Result<Vec<f64>> {
        let spans = wait::until("the end of a block", Duration::from_secs(120), async || {
            let spans = self.sim.timeline().await.map_err(|error| error.to_string())?;
            let new: Vec<_> = spans.into_iter().filter(|(id, ..)| !before.contains(id)).collect();
            if new.len() >= BLOCK { Ok(new) } else { Err(format!("{} prompts executed", new.len())) }
        });
        let spans = spans.await?;
        ensure!(spans.len() == BLOCK, "{} prompts were executed instead of {BLOCK}", spans.len());
        Ok(spans.windows(2).skip(SKIPPED).map(|pair| pair[1].1 - pair[0].2).collect())
    }

    async fn feed_raw(&self, graphs: Vec<Value>) -> Result<()> {
        for graph in graphs {
            let body = json!({"prompt": graph, "client_id": "raw"}).to_string();
            let request = self.server.http.post(format!("{}/prompt", self.sim.url)).body(body);
            request.send().await?.error_for_status()?;
        }
        Ok(())
    }

    async fn feed_remuda(&self, graphs: Vec<Value>) -> Result<()> {
        let tasks = stream::iter(graphs)
            .map(async |graph| self.server.submit(&graph, false).await)
            .buffered(8)
            .try_collect::<Vec<_>>();
        let tasks = tasks.await?;
        let last = tasks.last().and_then(|task| task["id"].as_str()).context("a task without an id")?;
        self.server.ended(last, Duration::from_secs(120)).await?;
        Ok(())
    }
}

fn graph(seconds: f64, text: &str) -> Value {
    json!({"1": {"class_type": "RigSleepText", "inputs": {"seconds": seconds, "text": text}}})
}
