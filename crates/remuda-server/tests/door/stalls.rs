//! Computations that go on after their request was answered or left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remuda_core::Scope;
use remuda_pool::{Pool, PoolOptions, Watchdog, WatchdogOptions};
use remuda_testbed::wait;

use crate::support::{BOUND, GRAPH, Gateway, JsonText as _, json};

/// Long enough for an answer that comes at once.
const SOON: Duration = Duration::from_secs(2);

/// The first computation of this name lasts until the flag is taken away.
fn held_up(pool: &Pool, what: &'static str) -> Arc<AtomicBool> {
    let held = Arc::new(AtomicBool::new(true));
    let (holds, first) = (Arc::clone(&held), AtomicBool::new(true));
    pool.fault_in(move |now, _| {
        if now == what && first.swap(false, Ordering::SeqCst) {
            while holds.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    });
    held
}

async fn keys(gateway: &Gateway) -> (String, String) {
    let scopes = [Scope::Submit];
    (gateway.ground.key("greedy", &scopes).await, gateway.ground.key("modest", &scopes).await)
}

fn large() -> String {
    let mut graph: serde_json::Value = serde_json::from_str(GRAPH).unwrap();
    graph["1"]["_meta"] = serde_json::json!({ "title": "x".repeat(60 << 10) });
    serde_json::json!({ "payload": graph }).to_string()
}

/// Nobody else gets the only permit until the work has ended.
async fn permit_comes_back_with_the_end(gateway: &Gateway, modest: &str, held: &AtomicBool) {
    let body = format!("{{\"payload\": {GRAPH}}}");
    let submit = || gateway.post("/api/v1/tasks").bearer_auth(modest).json_text(&body).send();
    let early = tokio::time::timeout(SOON, submit()).await;
    assert!(early.is_err(), "{early:?}");
    held.store(false, Ordering::SeqCst);
    json(submit().await.unwrap(), 201).await;
}

#[tokio::test]
async fn a_submission_that_was_given_up_is_under_way_until_its_work_ends() {
    let pool = Pool::new(PoolOptions { threads: 2, ..PoolOptions::default() });
    let _watchdog = Watchdog::start(&pool, WatchdogOptions::new(Duration::from_millis(100))).unwrap();
    let held = held_up(&pool, "reading a request");
    let gateway = Gateway::start_with(|options| {
        options.pool = pool.clone();
        options.limits.submissions = 1;
    })
    .await;
    let (greedy, modest) = keys(&gateway).await;
    let answer = gateway.post("/api/v1/tasks").bearer_auth(&greedy).json_text(&large()).send().await;
    assert_eq!(json(answer.unwrap(), 422).await["code"], "too_complex");
    permit_comes_back_with_the_end(&gateway, &modest, &held).await;
}

#[tokio::test]
async fn a_submission_whose_client_left_is_under_way_until_its_work_ends() {
    let pool = Pool::new(PoolOptions { threads: 2, ..PoolOptions::default() });
    let held = held_up(&pool, "checking a graph");
    let gateway = Gateway::start_with(|options| {
        options.pool = pool.clone();
        options.limits.submissions = 1;
    })
    .await;
    let (greedy, modest) = keys(&gateway).await;
    let left = gateway.post("/api/v1/tasks").bearer_auth(&greedy).json_text(&large()).send();
    let left = tokio::spawn(left);
    let begun = wait::until("the check to begin", BOUND, async || {
        pool.running().into_iter().find(|running| running.what == "checking a graph")
    });
    begun.await.unwrap();
    left.abort();
    let _aborted = left.await;
    permit_comes_back_with_the_end(&gateway, &modest, &held).await;
}

#[tokio::test]
async fn the_route_that_holds_a_thread_of_the_runtime_is_known() {
    let pool = Pool::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let gateway = Gateway::start_with(|options| options.pool = pool.clone()).await;
    let (sees, looks) = (Arc::clone(&seen), pool.clone());
    pool.fault_in(move |what, _| {
        if what == "reading a request" {
            sees.lock().unwrap().extend(looks.turning().into_iter().map(|turn| turn.what.to_string()));
        }
    });
    let key = gateway.ground.key("modest", &[Scope::Submit]).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let answer = gateway.post("/api/v1/tasks").bearer_auth(&key).json_text(&body).send().await;
    json(answer.unwrap(), 201).await;
    assert_eq!(*seen.lock().unwrap(), ["/api/v1/tasks"]);
}
