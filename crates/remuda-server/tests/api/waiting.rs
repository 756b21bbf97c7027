//! Many wait, and one looks: what the store is asked does not grow with those who wait, and what is not pushed is found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use reqwest::Response;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use crate::counted::Counted;
use crate::events::Reader;
use crate::support::{BOUND, GRAPH, Gateway, Ground, JsonText as _, Worker, json};

/// How long it is counted.
const WHILE: Duration = Duration::from_secs(4);

/// Whoever waits hears what was not pushed within about a second. The test allows more, for machines that are busy, but less
/// than anything that ends by itself.
const SOON: Duration = Duration::from_secs(20);

/// A gateway whose store pushes nothing, and counts.
async fn gateway() -> (Gateway, Arc<Counted>) {
    let ground = Arc::into_inner(Ground::new().await).expect("nobody else has it");
    let counted = Counted::new(ground.store.clone(), true);
    let ground = Arc::new(Ground { store: counted.clone(), ..ground });
    let gateway = Gateway::on(ground, |options| {
        options.sync.patience = 10 * BOUND;
        // They are sent all the time, and must cost the store nothing.
        options.limits.heartbeat = Duration::from_millis(500);
    });
    (gateway.await, counted)
}

/// Everything that can wait, this many times. Each says when it has heard of an end.
async fn waiters(gateway: &Gateway, many: usize) -> JoinSet<&'static str> {
    let mut waiting = JoinSet::new();
    for n in 0..many {
        let prompt = format!("{{\"prompt\": {GRAPH}, \"client_id\": \"client-{n}\"}}");
        let queued = json(gateway.post("/prompt").json_text(&prompt).send().await.unwrap(), 200).await;
        let address = gateway.url.replace("http", "ws");
        let socket = format!("{address}/ws?clientId=client-{n}");
        let (mut socket, _) = tokio_tungstenite::connect_async(socket).await.unwrap();
        waiting.spawn(async move {
            while let Some(Ok(message)) = socket.next().await {
                if matches!(&message, Message::Text(text) if text.contains("execution_success")) {
                    return "a websocket";
                }
            }
            panic!("the socket was closed");
        });
        let id = queued["prompt_id"].as_str().unwrap();
        for path in [format!("/api/v1/tasks/{id}/events"), "/api/v1/events?kind=completed".to_owned()] {
            let mut reader = Reader::new(gateway.get(&path).timeout(10 * BOUND).send().await.unwrap());
            waiting.spawn(async move {
                while reader.next().await.expect("it goes on").2["status"] != "completed" {}
                "a stream of events"
            });
        }
        let submit = gateway.post("/api/v1/tasks").header("prefer", "wait=600");
        let submit = submit.json_text(&format!("{{\"payload\": {GRAPH}}}"));
        let sync = gateway.post("/prompt_sync?timeout=600").json_text(&format!("{{\"prompt\": {GRAPH}}}"));
        for (what, request) in [("a waiting request", submit), ("a synchronous request", sync)] {
            waiting.spawn(async move {
                let answer: Response = request.timeout(10 * BOUND).send().await.unwrap();
                let text = answer.text().await.unwrap();
                assert!(text.contains("completed") || text.contains("success"), "{text}");
                what
            });
        }
    }
    let counts =
        async || (gateway.store().counts(None).await.unwrap().pending == 3 * many as i64).then_some(());
    remuda_testbed::wait::until("all tasks to be there", BOUND, counts).await.unwrap();
    waiting
}

/// What the store is asked while nothing happens.
async fn asked(counted: &Counted) -> BTreeMap<&'static str, u64> {
    // What waits looks once when it is first followed.
    let quiet = async || {
        counted.take();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let counts = counted.take();
        let idle = counts.keys().all(|what| ["feed", "workers"].contains(what));
        if idle { Ok(()) } else { Err(format!("{counts:?}")) }
    };
    remuda_testbed::wait::until("only the one look to be left", BOUND, quiet).await.unwrap();
    let began = Instant::now();
    tokio::time::sleep(WHILE).await;
    let mut counts = counted.take();
    let seconds = began.elapsed().as_secs_f64();
    assert!(counts["feed"] >= 1, "{counts:?}");
    // How many a second, rounded up.
    counts.values_mut().for_each(|count| *count = (*count as f64 / seconds).ceil() as u64);
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_is_asked_does_not_grow_with_those_who_wait() {
    let mut seen = Vec::new();
    for many in [1, 40] {
        let (gateway, counted) = gateway().await;
        let waiting = waiters(&gateway, many).await;
        seen.push(asked(&counted).await);
        // What nobody pushed is heard by all of them nevertheless.
        let began = Instant::now();
        let worker = Worker::join(&gateway.ground, "gpu-1", None).await;
        for _ in 0..3 * many {
            let claim = worker.claim().await;
            worker.complete_without_files(&claim).await;
        }
        let heard = tokio::time::timeout(SOON, waiting.join_all()).await.expect("all of them hear of it");
        assert_eq!(heard.len(), 5 * many);
        assert!(began.elapsed() < SOON);
    }
    let two_a_second = |counts: &BTreeMap<&str, u64>| counts.values().all(|count| *count <= 3);
    assert!(seen.iter().all(two_a_second), "a second: {seen:?}");
    assert!(seen[1].len() <= seen[0].len(), "{seen:?}");
}

#[tokio::test]
async fn when_nobody_waits_any_more_nothing_is_asked() {
    let (gateway, counted) = gateway().await;
    let id = gateway.submit().await;
    let mut reader = Reader::new(gateway.get(&format!("/api/v1/tasks/{id}/events")).send().await.unwrap());
    reader.next().await.unwrap();
    drop(reader);
    let idle = async || {
        counted.take();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let counts = counted.take();
        if counts.is_empty() { Ok(()) } else { Err(format!("{counts:?}")) }
    };
    remuda_testbed::wait::until("nothing to be asked", BOUND, idle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_before_the_waiting_begins_is_heard_at_once() {
    let ground = Arc::into_inner(Ground::new().await).expect("nobody else has it");
    let counted = Counted::new(ground.store.clone(), false);
    let gateway = Gateway::on(Arc::new(Ground { store: counted.clone(), ..ground }), |_| {}).await;
    // Somebody waits all the time: nobody looks at everything because this one comes.
    let mut reader = Reader::new(gateway.get("/api/v1/events").timeout(10 * BOUND).send().await.unwrap());
    let task = format!("{{\"payload\": {GRAPH}}}");
    let prompt = format!("{{\"prompt\": {GRAPH}, \"prompt_id\": \"again\", \"keep\": true}}");
    for (path, body, prefer) in [("/api/v1/tasks", task, "wait=60"), ("/prompt_sync?timeout=60", prompt, "")]
    {
        let key = format!("key of {path}");
        let submit = |prefer: &str| {
            let request = gateway.post(path).header("idempotency-key", &key).timeout(10 * BOUND);
            let request = if prefer.is_empty() { request } else { request.header("prefer", prefer) };
            request.json_text(&body).send()
        };
        let first = tokio::spawn(submit(""));
        let taken = reader.next().await.expect("it is taken in").2;
        let task = taken["task"].as_str().unwrap().parse().unwrap();
        counted.cancel_after("glance", task);
        let began = Instant::now();
        let answer = submit(prefer).await.unwrap().text().await.unwrap();
        assert!(answer.contains("cancelled"), "{answer}");
        assert!(began.elapsed() < SOON, "{path}: after {:?}", began.elapsed());
        drop(first.await.unwrap().unwrap());
        reader.next().await.expect("it is cancelled");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_that_another_server_took_in_are_looked_at_together() {
    const MANY: usize = 40;
    let (gateway, counted) = gateway().await;
    let Ground { store: _, files, owner, addresses, .. } = &*gateway.ground;
    let (files, addresses) = (files.clone(), addresses.clone());
    let same =
        Ground { store: counted.inner(), files, owner: *owner, addresses, dir: TempDir::new().unwrap() };
    let there = Gateway::on(Arc::new(same), |_| {}).await;
    let address = format!("{}/ws?clientId=far", gateway.url.replace("http", "ws"));
    let (mut socket, _) = tokio_tungstenite::connect_async(address).await.unwrap();
    socket.next().await.expect("it greets").unwrap();
    // What a client asks for when it comes.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    counted.take();

    let prompt = format!("{{\"prompt\": {GRAPH}, \"client_id\": \"far\"}}");
    for sent in
        futures_util::future::join_all((0..MANY).map(|_| there.post("/prompt").json_text(&prompt).send()))
            .await
    {
        json(sent.unwrap(), 200).await;
    }
    // Within a second they are found in the feed.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = counted.take();
    let worker = Worker::join(&gateway.ground, "gpu-1", None).await;
    for _ in 0..MANY {
        let claim = worker.claim().await;
        worker.complete_without_files(&claim).await;
    }
    let heard = async {
        let mut ends = 0;
        while ends < MANY {
            let message = socket.next().await.expect("it goes on").unwrap();
            ends +=
                usize::from(matches!(&message, Message::Text(text) if text.contains("execution_success")));
        }
    };
    tokio::time::timeout(SOON, heard).await.expect("its client hears of all of them");
    // Whoever tells its client looks at each of them when it is new.
    let (alone, together) = (asked["task"], asked["briefly"]);
    assert!(alone <= MANY as u64 && together < MANY as u64 / 2, "looked at {MANY} prompts with {asked:?}");
}
