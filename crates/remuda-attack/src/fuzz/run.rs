//! Builds an installation, fuzzes it, and looks what is left of it.

use super::lanes::{Ground, lane};
use super::make::Bunch;
use super::report::FuzzReport;
use super::routes;
use super::values::Known;
use crate::attacks::pictures;
use crate::dice::Dice;
use crate::options::Options;
use crate::probe::{Probe, graph};
use crate::raw::Client;
use crate::stage::{Setup, Stage};
use crate::world::{World, make_key};
use anyhow::{Context, Result};
use serde_json::json;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How many requests are under way at once.
const LANES: usize = 32;
/// At least this many percent must get past authentication and parsing, or the run says nothing.
const ENOUGH: f64 = 50.0;
const NEWS: Duration = Duration::from_secs(10);
/// How long schemathesis may take.
const SCHEMATHESIS: Duration = Duration::from_secs(20 * 60);

/// What is to be fuzzed.
#[derive(Debug, Clone)]
pub struct FuzzOptions {
    /// How many requests are made.
    pub requests: usize,
    /// The program of schemathesis, to be run afterwards.
    pub schemathesis: Option<PathBuf>,
    /// The program under test, and the bounds.
    pub options: Options,
}

impl FuzzOptions {
    /// The run of which the documentation speaks.
    pub fn new(options: Options) -> FuzzOptions {
        FuzzOptions { requests: 200_000, schemathesis: None, options }
    }
}

/// Makes requests by chance, and returns what came of them.
pub async fn fuzz(fuzz: &FuzzOptions, mut tell: impl FnMut(String)) -> Result<FuzzReport> {
    let options = &fuzz.options;
    let mut world = World::start(options, Setup::Plain).await?;
    let stage = world.stage.clone();
    let narrow = [&["submit"][..], &["read"][..], &["read", "submit"][..]];
    let narrow = narrow.iter().map(|scopes| make_key(&stage.remuda, &stage.data, "narrow", "carol", scopes));
    let bunch = Bunch { keys: stage.keys.clone(), narrow: narrow.collect::<Result<_>>()? };
    let (openapi, known) = known(&stage).await?;
    let routes = routes::all(&openapi);
    let ground = Arc::new(Ground { stage, routes, known, bunch, left: AtomicUsize::new(fuzz.requests) });
    let lanes = (0..LANES).map(|n| {
        let dice = Dice::new(options.seed.wrapping_mul(1_000_003).wrapping_add(n as u64));
        tokio::spawn(lane(ground.clone(), dice))
    });
    let lanes: Vec<_> = lanes.collect();
    let mut report = FuzzReport { seed: options.seed, ..FuzzReport::default() };
    let gathered = futures_util::future::join_all(lanes);
    tokio::pin!(gathered);
    let parts = loop {
        match tokio::time::timeout(NEWS, &mut gathered).await {
            Ok(parts) => break parts,
            Err(_) => tell(format!("{} requests are left", ground.left.load(Ordering::Relaxed))),
        }
    };
    for part in parts {
        report.add(part??);
    }
    if let Some(program) = &fuzz.schemathesis {
        tell("schemathesis".to_owned());
        report.violations.extend(schemathesis(program, &ground.stage, &mut tell).await?);
    }
    report.peak = world.peak();
    if report.share() < ENOUGH {
        let share = report.share();
        report
            .violations
            .push(format!("only {share:.1} % of the requests got past authentication and parsing"));
    }
    if report.peak > options.memory {
        report.violations.push(format!("{} MiB of memory", report.peak >> 20));
    }
    let probe = Probe::new(&ground.stage, options.patience)?;
    for key in [&ground.stage.keys.mallory, &ground.stage.keys.bob] {
        if let Err(why) = probe.cancel_all(key).await {
            report.violations.push(format!("afterwards {why}"));
        }
    }
    if let Err(why) = probe.renders(options.turn * 2).await {
        report.violations.push(format!("afterwards {why}"));
    }
    report.violations.extend(world.panics());
    if let Err(why) = world.stop().await {
        report.violations.push(why);
    }
    Ok(report)
}

/// The description of the API, and things that exist.
async fn known(stage: &Stage) -> Result<(serde_json::Value, Known)> {
    let client = Client::new(stage)?;
    let openapi = client.get("/openapi.json", &stage.keys.admin).await?.json();
    anyhow::ensure!(openapi["paths"].is_object(), "/openapi.json describes nothing");
    let mut known = Known::default();
    for key in [&stage.keys.bob, &stage.keys.mallory] {
        client.upload("/upload/image", key, &[], "fuzz.png", pictures::plain()?).await?;
        let request = client.request(reqwest::Method::POST, "/api/v1/assets?filename=fuzz.png", key);
        let made =
            client.send(request.header("content-type", "image/png").body(pictures::plain()?)).await?.json();
        known.assets.push(made["sha256"].as_str().context("an upload without a hash")?.to_owned());
        for n in 0..20 {
            let waits = json!({"payload": graph(n), "not_before": "2999-01-01T00:00:00Z"});
            let body = if n % 2 == 0 { waits } else { json!({"payload": graph(n)}) };
            known.tasks.push(client.task(key, &body).await?);
            let answer = client.post("/prompt", key, json!({"prompt": graph(n)}).to_string()).await?;
            known
                .prompts
                .push(answer.json()["prompt_id"].as_str().context("a prompt without an id")?.to_owned());
        }
    }
    Ok((openapi, known))
}

/// What somebody else's fuzzer finds in the described part of the API.
async fn schemathesis(
    program: &PathBuf,
    stage: &Stage,
    tell: &mut impl FnMut(String),
) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    // A server that is busy or whose disk is full says so; everything else beyond 500 is a fault.
    let settings =
        "[checks]\nnot_a_server_error.expected-statuses = [\"2xx\", \"3xx\", \"4xx\", \"503\", \"507\"]\n";
    std::fs::write(folder.path().join("schemathesis.toml"), settings)?;
    let mut command = tokio::process::Command::new(program);
    command.current_dir(folder.path()).arg("run").arg(stage.url("/openapi.json"));
    command.args([
        "--checks",
        "not_a_server_error",
        "--max-examples",
        "50",
        "--request-timeout",
        "45",
        "--no-color",
    ]);
    // Streams without an end.
    command.args(["--exclude-path", "/api/v1/tasks/{id}/events", "--exclude-path", "/api/v1/events"]);
    command.arg("--continue-on-failure");
    command.args(["--seed", &stage.seed.to_string()]);
    command.args(["--header", &format!("Authorization: Bearer {}", stage.keys.admin)]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(SCHEMATHESIS, command.output()).await;
    let Ok(output) = output else {
        // What it would still have found, nobody knows.
        let minutes = SCHEMATHESIS.as_secs() / 60;
        return Ok(vec![format!("schemathesis was broken off after {minutes} minutes, before it was done")]);
    };
    let output = output.context("cannot start schemathesis")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last: Vec<&str> = text.lines().rev().take(25).collect();
    tell(last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    anyhow::ensure!(
        text.contains("Test cases:"),
        "schemathesis failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Its exit code also tells of operations for which it could make no body; those are made by our own.
    let failures = text.lines().filter(|line| line.contains("Server error"));
    Ok(failures.take(10).map(|line| format!("schemathesis: {line}")).collect())
}
