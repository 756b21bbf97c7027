//! Collects the evidence once everything is at rest: through the API, from the file store, from the simulators.

use crate::api::{Api, EventView, TaskView};
use crate::check::{Evidence, Fetched, Seen, Stored};
use crate::drive::{Done, Story};
use crate::options::Options;
use crate::world::{Counts, World};
use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many tasks are read at once.
const AT_ONCE: usize = 8;
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);
const PAGE: usize = 100;

/// Collects everything. What is swept by and by has until `options.rest` has passed.
pub(crate) async fn gather(
    world: &mut World,
    options: &Options,
    stories: Vec<Story>,
    faults: Vec<Done>,
) -> Result<Evidence> {
    let api = world.api.clone();
    let tasks: Vec<Seen> = futures_util::stream::iter(stories)
        .map(|story| seen(&api, story))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut evidence = Evidence { tasks, faults, ..Evidence::default() };
    evidence.tasks.sort_by_key(|seen| seen.story.job.number);
    evidence.listed = listed(&api).await?;
    evidence.workers = workers(&api).await?;
    let servers = world.servers.iter().map(|part| part.name.clone()).cycle();
    evidence.beside = world.sidecars.iter().map(|part| part.name.clone()).zip(servers).collect();
    evidence.lease = options.lease;
    evidence.slack = options.slack;

    let deadline = Instant::now() + options.rest;
    evidence.queued = queued(world, deadline).await?;
    evidence.stored = stored(&world.files, &evidence, deadline).await?;
    let mut counts = Counts::default();
    for sim in &world.sims {
        counts.add(&sim.counts().await?);
        evidence.losses.extend(sim.losses.iter().cloned());
        evidence.surprises.extend(sim.part.surprises.iter().cloned());
    }
    evidence.counts = counts;
    for part in world.fleet() {
        // Also whether it is still there.
        part.is_alive()?;
        evidence.surprises.append(&mut part.surprises);
    }
    Ok(evidence)
}

async fn patient<T>(mut attempt: impl AsyncFnMut(usize) -> Result<T>) -> Result<T> {
    let mut server = 0;
    loop {
        match attempt(server).await {
            Ok(done) => return Ok(done),
            Err(error) if server >= TRIES => return Err(error),
            Err(_) => server += 1,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn seen(api: &Api, story: Story) -> Seen {
    let mut seen = Seen { view: None, events: Vec::new(), outputs: Vec::new(), story };
    let Some(id) = seen.story.ids.first().cloned() else { return seen };
    seen.view = patient(async |server| task(api, server, &id).await).await.ok();
    let told = patient(async |server| {
        let mut told: Vec<EventView> = Vec::new();
        let whole = api.events(server, &id, 0, |event| told.push(event)).await?;
        if whole { Ok(told) } else { bail!("the stream of events did not end") }
    });
    seen.events = told.await.unwrap_or_default();
    let seed = seen.story.job.seed.to_string();
    for file in seen.view.iter().flat_map(|view| view.files()) {
        let fetched = patient(async |server| fetch(api, server, &file.url, &seed).await).await;
        seen.outputs.push(fetched.map_err(|error| format!("{error:#}")));
    }
    seen
}

async fn task(api: &Api, server: usize, id: &str) -> Result<TaskView> {
    let answer = api.ask(server, Method::GET, &format!("/api/v1/tasks/{id}")).await?;
    if answer.status != 200 {
        bail!("task {id} was answered with {}: {}", answer.status, answer.text());
    }
    answer.json()
}

async fn fetch(api: &Api, server: usize, url: &str, seed: &str) -> Result<Fetched> {
    let answer = api.ask(server, Method::GET, path_of(url)?).await?;
    if answer.status != 200 {
        bail!("{url} was answered with {}: {}", answer.status, answer.text());
    }
    // The simulator writes the prompt into its pictures, as ComfyUI does.
    let is_its_own = answer.body.windows(seed.len()).any(|window| window == seed.as_bytes());
    Ok(Fetched { size: answer.body.len() as u64, sha256: sha256(&answer.body), is_its_own })
}

/// The path of an address that may be whole or only a path.
fn path_of(url: &str) -> Result<&str> {
    match url.split_once("://") {
        None => Ok(url),
        Some((_, rest)) => rest.find('/').map(|start| &rest[start..]).context("an address without a path"),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Every task that the API lists.
async fn listed(api: &Api) -> Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Page {
        tasks: Vec<TaskView>,
        #[serde(default)]
        next: Option<String>,
    }
    let mut ids = BTreeSet::new();
    let mut path = format!("/api/v1/tasks?limit={PAGE}");
    loop {
        let page: Page = patient(async |server| {
            let answer = api.ask(server, Method::GET, &path).await?;
            if answer.status != 200 {
                bail!("the list of tasks was answered with {}: {}", answer.status, answer.text());
            }
            answer.json()
        })
        .await?;
        ids.extend(page.tasks.into_iter().map(|task| task.id));
        match page.next {
            Some(next) => path = format!("/api/v1/tasks?limit={PAGE}&before={next}"),
            None => return Ok(ids),
        }
    }
}

async fn workers(api: &Api) -> Result<BTreeMap<String, String>> {
    let answer: Value =
        patient(async |server| api.ask(server, Method::GET, "/api/v1/workers").await?.json()).await?;
    let list = answer.get("workers").unwrap_or(&answer).as_array().cloned().unwrap_or_default();
    let text = |worker: &Value, field: &str| {
        worker[field].as_str().map(|text| text.trim_end_matches('/').to_owned())
    };
    Ok(list.iter().filter_map(|worker| Some((text(worker, "id")?, text(worker, "endpoint")?))).collect())
}

/// What is left in queues, when nothing goes any more.
async fn queued(world: &World, deadline: Instant) -> Result<Vec<(String, String)>> {
    loop {
        let mut left = Vec::new();
        for sim in &world.sims {
            left.extend(sim.queue().await?.into_iter().map(|prompt| (sim.url.clone(), prompt)));
        }
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What is in the file store, when as many files are there as there should be.
async fn stored(folder: &Path, evidence: &Evidence, deadline: Instant) -> Result<Vec<Stored>> {
    let wanted: usize =
        evidence.tasks.iter().filter_map(|seen| seen.view.as_ref()).map(|view| view.files().len()).sum();
    loop {
        let mut found = Vec::new();
        walk(folder, folder, &mut found)?;
        if found.len() == wanted || Instant::now() > deadline {
            return Ok(found);
        }
        tokio::time::sleep(PAUSE * 2).await;
    }
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<Stored>) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        // Folders go with what was in them.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && folder != root => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", folder.display())),
    };
    for entry in entries {
        let path = entry?.path();
        let relative = path.strip_prefix(root)?.display().to_string();
        if path.is_dir() {
            walk(root, &path, found)?;
        } else if relative.contains('/') {
            // Files at the top are the store's own: whose installation it is. One that has just gone was swept.
            let Ok(bytes) = std::fs::read(&path) else { continue };
            found.push(Stored { path: relative, size: bytes.len() as u64, sha256: sha256(&bytes) });
        }
    }
    Ok(())
}
