//! A database in which somebody else's transaction goes on and on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use remuda_core::OwnerId;
use remuda_store::{ListQuery, Options, PostgresStore, Store};
use remuda_testbed::postgres::{self, Cluster};
use remuda_testbed::wait;
use tempfile::TempDir;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::counted::Counted;
use crate::support::{BOUND, GRAPH, Gateway, Ground, JsonText as _, json};

async fn open(url: &str, owner: OwnerId) -> Arc<dyn Store> {
    Arc::new(PostgresStore::connect(url, Options::new(owner)).await.unwrap())
}

/// Nobody hears what other processes commit, as behind a pooler, and the feed does not show it before that transaction has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_task_does_not_wait_for_a_foreign_transaction() {
    let cluster = Cluster::start(postgres::Options::default()).await.unwrap();
    let url = cluster.database().await.unwrap();
    let owner = OwnerId(Uuid::new_v4());
    let store = Counted::new(open(&url, owner).await, true);
    let gateway = Gateway::on(Ground::on(store, owner, TempDir::new().unwrap()), |_| {}).await;
    // Another process.
    let other = open(&url, OwnerId(Uuid::new_v4())).await;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let foreign = client.transaction().await.unwrap();
    foreign.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();

    let body = format!("{{\"payload\": {GRAPH}, \"not_before\": \"2999-01-01T00:00:00Z\"}}");
    let query = ListQuery { limit: 10, ..ListQuery::default() };
    let begun = Instant::now();
    let sent = gateway.post("/api/v1/tasks").header("Prefer", "wait=60").json_text(&body).send();
    let end = async {
        let there = async || {
            let tasks = other.list(&query).await.unwrap().tasks;
            tasks.first().map(|task| task.id)
        };
        let task = wait::until("the task to be there", BOUND, there).await.unwrap();
        // Whoever waits has looked at it when the feed was first followed, and does so no more.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        other.cancel(task).await.unwrap();
    };
    let (answer, ()) = tokio::join!(sent, end);
    let answer = answer.unwrap();
    let status = answer.status().as_u16();
    assert_eq!(json(answer, status).await["status"], "cancelled");
    assert!(begun.elapsed() < Duration::from_secs(30), "heard after {:?}", begun.elapsed());
    let metrics = gateway.get("/metrics").send().await.unwrap().text().await.unwrap();
    let held = metrics.lines().find_map(|line| line.strip_prefix("remuda_feed_held_seconds "));
    assert!(held.is_some_and(|seconds| seconds.parse::<i64>().unwrap() >= 3), "{held:?}");

    foreign.rollback().await.unwrap();
    other.close().await;
}
