//! This build beside another one: what a task costs with each, in turns within one run.
//!
//! The other program runs twice. How far it differs from itself is what this machine cannot tell apart, and a difference that is no
//! larger proves nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfyui::{Client, PromptRequest, Session, SessionOptions, Workflow};
use futures_util::future::try_join_all;
use serde_json::Value;

use crate::latency::{picture, text};
use crate::programs::{Server, Sim, beside};
use crate::table::{Row, Sample};

const GROUP: &str = "this build against the other one (ratio; 1 is equal, more is slower)";
/// What one build may cost more than another.
const ALLOWED: f64 = 1.05;
/// Rounds that warm connections and caches.
const WARM_UP: usize = 50;
/// How many callers submit at once when throughput is measured.
const CALLERS: usize = 32;
/// How long one of the builds is measured before the next has its turn.
const WINDOW: Duration = Duration::from_secs(3);

/// The other program, the same once more, and this one.
const NAMES: [&str; 3] = ["other", "other-again", "this"];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// How many tasks one after the other, per build.
    pub(crate) rounds: usize,
    /// How many windows with many callers at once, per build.
    pub(crate) windows: usize,
}

pub(crate) async fn measure(folder: &Path, other: &Path, plan: Plan) -> Result<Vec<Row>> {
    let ours = beside("remuda")?;
    let mut sides = Vec::new();
    for (name, program) in NAMES.into_iter().zip([other, other, &ours]) {
        sides.push(Side::start(program, &folder.join(name)).await.with_context(|| name.to_owned())?);
    }
    let mut rows = Vec::new();
    let taken = in_turns(&sides, plan.rounds, async |side, mark| side.task(&text(mark)).await).await?;
    rows.extend(compared("task API, text", "ms", taken));
    let taken = in_turns(&sides, plan.rounds / 2, async |side, mark| side.task(&picture(mark)).await).await?;
    rows.extend(compared("task API, picture fetched", "ms", taken));
    let taken = in_turns(&sides, plan.rounds, async |side, mark| side.prompt(&text(mark)).await).await?;
    rows.extend(compared("ComfyUI's own API, text", "ms", taken));
    rows.extend(throughput(&sides, plan.windows).await?);
    for side in sides {
        side.session.close().await;
        side.server.stop().await?;
    }
    Ok(rows)
}

/// One of the builds at work, with a ComfyUI of its own.
struct Side {
    _sim: Sim,
    server: Server,
    session: Session,
}

impl Side {
    async fn start(program: &Path, folder: &Path) -> Result<Side> {
        let sim = Sim::start(&folder.join("sim")).await?;
        let server = Server::start_as(program, &folder.join("data"), None, &[&sim.url]).await?;
        server.idle_worker().await?;
        let session = Session::open(Client::new(&server.url)?, SessionOptions::default()).await?;
        Ok(Side { _sim: sim, server, session })
    }

    /// Submits a task, waits for its end and fetches its files.
    async fn task(&self, graph: &Value) -> Result<()> {
        let task = self.server.submit(graph, true).await?;
        let files = task["result"]["files"].as_array().map(Vec::as_slice).unwrap_or_default();
        for file in files {
            let path = file["url"].as_str().with_context(|| format!("an output without a URL: {file}"))?;
            self.server.download(path, |_| Ok(())).await?;
        }
        Ok(())
    }

    async fn prompt(&self, graph: &Value) -> Result<()> {
        let workflow = Workflow::parse(graph.to_string())?;
        self.session.submit(PromptRequest::new(workflow)).await?.finish().await?;
        Ok(())
    }

    /// How many tasks a second many callers get through.
    async fn rate(&self, mark: &str) -> Result<f64> {
        let begun = Instant::now();
        let callers = (0..CALLERS).map(async |caller| -> Result<usize> {
            let mut done = 0;
            while begun.elapsed() < WINDOW {
                self.server.submit(&text(&format!("{mark} {caller} {done}")), true).await?;
                done += 1;
            }
            Ok(done)
        });
        let done: usize = try_join_all(callers).await?.into_iter().sum();
        Ok(done as f64 / begun.elapsed().as_secs_f64())
    }
}

/// How long each takes, in milliseconds: every round asks all of them, each time another one first.
async fn in_turns(
    sides: &[Side],
    rounds: usize,
    one: impl AsyncFn(&Side, &str) -> Result<()>,
) -> Result<Vec<Sample>> {
    let mut taken = vec![Vec::with_capacity(rounds); sides.len()];
    for round in 0..rounds + WARM_UP {
        for turn in 0..sides.len() {
            let which = (round + turn) % sides.len();
            let begun = Instant::now();
            one(&sides[which], &format!("round {round} {which}")).await?;
            if round >= WARM_UP {
                taken[which].push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    Ok(taken.into_iter().map(Sample::new).collect())
}

async fn throughput(sides: &[Side], windows: usize) -> Result<Vec<Row>> {
    let mut rates = vec![Vec::with_capacity(windows); sides.len()];
    for window in 0..windows {
        for turn in 0..sides.len() {
            let which = (window + turn) % sides.len();
            rates[which].push(sides[which].rate(&format!("window {window} {which}")).await?);
        }
    }
    let rates: Vec<f64> = rates.into_iter().map(|rates| Sample::new(rates).median()).collect();
    let mut rows: Vec<Row> = NAMES
        .iter()
        .zip(&rates)
        .map(|(name, rate)| {
            Row::fact(GROUP, format!("throughput of {name}, {CALLERS} callers"), *rate, "tasks/s")
        })
        .collect();
    // The slower of two has the larger ratio, as with times.
    rows.push(judged("throughput", rates[0] / rates[1], rates[0] / rates[2]));
    Ok(rows)
}

fn compared(what: &str, unit: &str, taken: Vec<Sample>) -> Vec<Row> {
    let mut rows: Vec<Row> = NAMES
        .iter()
        .zip(&taken)
        .map(|(name, sample)| Row::fact(GROUP, format!("{what}: {name}, median"), sample.median(), unit))
        .collect();
    for (name, share) in [("median", 0.5), ("90 of 100", 0.9)] {
        let base = taken[0].at(share);
        rows.push(judged(&format!("{what}, {name}"), taken[1].at(share) / base, taken[2].at(share) / base));
    }
    rows
}

/// A ratio that may be as large as what is allowed, or as the difference of a program from itself.
fn judged(what: &str, itself: f64, ours: f64) -> Row {
    let spread = itself.max(1.0 / itself);
    let name = format!("{what}: ratio (the other one against itself: {itself:.3})");
    Row::at_most(GROUP, name, ours, "", ALLOWED.max(spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_the_machine_cannot_tell_apart_is_allowed() {
        assert_eq!(judged("x", 1.0, 1.04).met, Some(true));
        assert_eq!(judged("x", 1.0, 1.06).met, Some(false));
        assert_eq!(judged("x", 1.1, 1.06).met, Some(true));
        assert_eq!(judged("x", 0.9, 1.06).met, Some(true));
        assert_eq!(judged("x", 0.9, 1.2).met, Some(false));
    }
}
