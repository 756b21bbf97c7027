//! What happens to tasks, told by several servers over one database of which one is killed: every reader hears all of it once,
//! in the order in which the database has it, however often it comes back and at whichever server.
//!
//! `REMUDA_FEED_EVENTS=50000 cargo test -p remuda --test feed -- --nocapture` is the long way, and says how long it took.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "clippy does not see that the helpers are part of tests"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use remuda_core::OwnerId;
use remuda_store::{FeedPlace, Options, PostgresStore, Store};
use remuda_testbed::postgres;
use serde_json::Value;
use support::{PATIENCE, Running, SEED_EXAMPLE};
use tokio::task::JoinSet;
use uuid::Uuid;

/// How many readers there are.
const READERS: u64 = 20;

/// How many submit and cancel.
const WRITERS: usize = 8;

/// How many tasks are rendered, and not cancelled.
const RENDERED: usize = 20;

/// How many events there are at least; `REMUDA_FEED_EVENTS=50000` for the number that is promised.
fn wanted() -> usize {
    std::env::var("REMUDA_FEED_EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(3000)
}

/// The servers, as clients know them.
struct Servers {
    urls: [String; 2],
    /// The second one is not there any more.
    killed: AtomicBool,
    http: reqwest::Client,
    /// Every event has happened, and this is the last one.
    last: tokio::sync::watch::Sender<Option<String>>,
    /// How often readers came.
    visits: AtomicU64,
}

impl Servers {
    fn any(&self, random: &mut StdRng) -> &str {
        let alive = if self.killed.load(Ordering::SeqCst) { 1 } else { 2 };
        &self.urls[random.random_range(0..alive)]
    }

    /// Asks until a server answers well.
    async fn ask(
        &self,
        random: &mut StdRng,
        request: impl Fn(&reqwest::Client, &str) -> reqwest::RequestBuilder,
    ) -> Value {
        let begun = Instant::now();
        loop {
            if let Ok(answer) = request(&self.http, self.any(random)).send().await
                && answer.status().is_success()
                && let Ok(text) = answer.text().await
            {
                return serde_json::from_str(&text).unwrap();
            }
            assert!(begun.elapsed() < PATIENCE, "no server answers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Submits a task.
    async fn submit(&self, random: &mut StdRng, body: &str) -> String {
        // Once, also if the answer is lost with its server.
        let key = Uuid::from_u128(random.random()).to_string();
        let task = self.ask(random, |http, url| {
            let request = http.post(format!("{url}/api/v1/tasks")).header("content-type", "application/json");
            request.header("idempotency-key", &key).body(body.to_owned())
        });
        task.await["id"].as_str().unwrap().to_owned()
    }
}

/// Submits and cancels until there are enough events.
async fn write(servers: Arc<Servers>, seed: u64, pairs: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    // Far from now: only whoever cancels it touches it.
    let body = SEED_EXAMPLE.trim_end().strip_suffix('}').unwrap().to_owned();
    let body = format!("{body}, \"not_before\": \"2999-01-01T00:00:00Z\"}}");
    for _ in 0..pairs {
        let id = servers.submit(&mut random, &body).await;
        servers.ask(&mut random, |http, url| http.delete(format!("{url}/api/v1/tasks/{id}"))).await;
    }
}

/// What was heard, and how often somebody had to come for it.
async fn read(servers: Arc<Servers>, seed: u64) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut heard, mut last) = (Vec::new(), None::<String>);
    let begun = Instant::now();
    loop {
        if let Some(end) = &*servers.last.borrow()
            && heard.last() == Some(end)
        {
            return heard;
        }
        assert!(begun.elapsed() < PATIENCE * 2, "{} events after {:?}", heard.len(), begun.elapsed());
        let url = format!("{}/api/v1/events?after=first", servers.any(&mut random));
        let mut request = servers.http.get(url);
        if let Some(last) = &last {
            request = request.header("last-event-id", last);
        }
        let Ok(answer) = request.send().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if !answer.status().is_success() {
            assert!(answer.status().is_server_error(), "{}", answer.status());
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        servers.visits.fetch_add(1, Ordering::Relaxed);
        // Now and then, in the middle of anything, it goes.
        let most = random.random_range(1..=1 + wanted() / 20);
        let patience = Duration::from_millis(random.random_range(50..3000));
        let leaves = tokio::time::Instant::now() + patience;
        let (mut buffer, mut stream, mut count) = (String::new(), answer.bytes_stream(), 0);
        while count < most
            && let Ok(Some(Ok(bytes))) = tokio::time::timeout_at(leaves, stream.next()).await
        {
            buffer.push_str(std::str::from_utf8(&bytes).unwrap());
            while count < most
                && let Some(end) = buffer.find("\n\n")
            {
                let block: String = buffer.drain(..end + 2).collect();
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                let Some(id) = field("id: ") else { continue };
                last = Some(id.to_owned());
                if let Some(data) = field("data: ") {
                    let _whole: Value = serde_json::from_str(data).unwrap();
                    heard.push(id.to_owned());
                    count += 1;
                }
            }
        }
    }
}

/// The feed as the store has it, read on from where it was read before.
async fn keep(store: &dyn Store, all: &mut Vec<FeedPlace>) {
    loop {
        let place = match all.last() {
            Some(last) => *last,
            None => store.feed_ends().await.unwrap().first,
        };
        let page = store.feed(None, place, 1000).await.unwrap();
        all.extend(page.items.iter().map(|item| item.place));
        if !page.more {
            return;
        }
    }
}

fn report(what: &str, events: usize, since: Instant) {
    let took = since.elapsed().as_secs_f64();
    eprintln!("{what}: {events} events in {took:.1} s, {:.0} a second", events as f64 / took);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reader_hears_everything_once_over_two_servers_of_which_one_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let database = postgres::database().await.unwrap();
    let files = format!("file:{}", dir.path().join("files").display());
    let sim = Running::sim(1).await;
    let more = [
        "--store",
        &database,
        "--files",
        &files,
        "--lease",
        "5s",
        "--comfyui",
        sim.url(),
        "--retention",
        "1d",
    ];
    let stays = Running::serve(&dir.path().join("stays"), &more).await;
    let mut goes = Running::serve(&dir.path().join("goes"), &more).await;
    let store = PostgresStore::connect(&database, Options::new(OwnerId(Uuid::new_v4()))).await.unwrap();
    let servers = Arc::new(Servers {
        urls: [stays.url().to_owned(), goes.url().to_owned()],
        killed: AtomicBool::new(false),
        http: reqwest::Client::new(),
        last: tokio::sync::watch::channel(None).0,
        visits: AtomicU64::new(0),
    });

    let began = Instant::now();
    let mut readers = JoinSet::new();
    (0..READERS).for_each(|n| drop(readers.spawn(read(servers.clone(), n))));
    let pairs = wanted() / 2 / WRITERS + 1;
    let mut writers = JoinSet::new();
    (0..WRITERS).for_each(|n| drop(writers.spawn(write(servers.clone(), 1000 + n as u64, pairs))));
    let rendered = {
        let servers = servers.clone();
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(7);
            let mut ids = Vec::new();
            for _ in 0..RENDERED {
                ids.push(servers.submit(&mut random, SEED_EXAMPLE).await);
            }
            ids
        })
    };
    // Midway, with everything under way.
    let mut all = Vec::new();
    while all.len() < wanted() / 2 {
        keep(&store, &mut all).await;
        assert!(began.elapsed() < PATIENCE, "{} events", all.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    goes.program.kill_9().unwrap();
    servers.killed.store(true, Ordering::SeqCst);
    writers.join_all().await;
    for id in rendered.await.unwrap() {
        support::status(stays.url(), None, &id, "completed").await;
    }
    keep(&store, &mut all).await;
    report("written", all.len(), began);
    assert!(all.len() >= wanted() + 3 * RENDERED, "{}", all.len());
    assert!(all.is_sorted());
    let all: Vec<String> = all.iter().map(FeedPlace::to_string).collect();

    servers.last.send_replace(all.last().cloned());
    let heard = readers.join_all().await;
    report("heard by the last of 20 readers", all.len(), began);
    eprintln!("the readers came {} times", servers.visits.load(Ordering::Relaxed));
    assert_eq!(heard.len() as u64, READERS);
    for (n, heard) in heard.iter().enumerate() {
        let differs = heard.iter().zip(&all).position(|(heard, kept)| heard != kept);
        assert!(
            differs.is_none() && heard.len() == all.len(),
            "reader {n}: {} of {}, first at {differs:?}",
            heard.len(),
            all.len()
        );
    }
    assert!(servers.visits.load(Ordering::Relaxed) > 2 * READERS, "they came back");
    store.close().await;
}
