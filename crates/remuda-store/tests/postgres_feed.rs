//! The feed of a PostgreSQL database that was restored elsewhere, and that several servers trim.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{NewTask, OwnerId, TaskId};
use remuda_store::{FeedItem, HousekeepingStore, ManualClock, Options, PostgresStore, Store, TaskStore};
use remuda_testbed::postgres::database;
use remuda_testbed::wait;
use serde_json::value::RawValue;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(60);
const MINUTE: Duration = Duration::from_secs(60);

async fn open(url: &str, clock: &Arc<ManualClock>) -> PostgresStore {
    let mut options = Options::new(OwnerId(Uuid::new_v4()));
    options.clock = Some(clock.clone());
    PostgresStore::connect(url, options).await.expect("the store opens")
}

async fn submit(store: &PostgresStore) -> TaskId {
    let new = NewTask::new(RawValue::from_string(r#"{"1":{}}"#.to_owned()).expect("it is JSON"));
    store.submit(new).await.expect("it is taken in").task().id
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// What the feed has, when it has so many entries: what was begun before may have to end first.
async fn entries(store: &PostgresStore, count: usize) -> Vec<FeedItem> {
    let read = async || {
        let first = store.feed_ends().await.expect("it answers").first;
        let items = store.feed(None, first, 100).await.expect("it can be read").items;
        (items.len() == count).then_some(items)
    };
    wait::until("the entries of the feed", SOON, read).await.expect("in time")
}

#[tokio::test]
async fn a_feed_that_was_trimmed_elsewhere_goes_on_after_a_restore() {
    let (url, clock) = (database().await.expect("a database"), Arc::new(ManualClock::default()));
    let before = open(&url, &clock).await;
    submit(&before).await;
    let old = before.feed_ends().await.expect("it answers");
    before.close().await;
    // As a dump says it that was made where many more transactions were. With rows that are beyond, and without.
    for rows in [true, false] {
        let server = client(&url).await;
        server
            .batch_execute("UPDATE remuda.feed_state SET removed_xid = '4000000000', removed_seq = 7")
            .await
            .expect("it is written");
        if rows {
            server
                .batch_execute("UPDATE remuda.feed SET xid = '4000000001'::xid8")
                .await
                .expect("it is written");
        }
        let store = open(&url, &clock).await;
        let ends = store.feed_ends().await.expect("it answers");
        assert!(ends.first > old.first, "{ends:?} after {old:?}: another epoch");
        let seen = entries(&store, usize::from(!rows)).await.len();
        let task = submit(&store).await;
        let items = entries(&store, seen + 1).await;
        assert_eq!(items[seen].entry.task, task);
        // Whoever begins where it ended hears of it.
        let next = store.feed(None, ends.last, 10).await.expect("it is followed").items;
        assert_eq!(next.last().map(|item| item.entry.task), Some(task));
        store.close().await;
    }
}

#[tokio::test]
async fn of_two_servers_that_trim_neither_sets_the_feed_back() {
    let (url, clock) = (database().await.expect("a database"), Arc::new(ManualClock::default()));
    let store = open(&url, &clock).await;
    for _ in 0..3 {
        submit(&store).await;
    }
    clock.advance(2 * MINUTE);
    submit(&store).await;
    let items = entries(&store, 4).await;
    // Another server removes all four …
    let mut other = client(&url).await;
    let further = other.transaction().await.expect("it begins");
    let statement = "UPDATE remuda.feed_state SET removed_xid = f.xid, removed_seq = f.seq \
        FROM (SELECT xid, seq FROM remuda.feed ORDER BY xid DESC, seq DESC LIMIT 1) f; DELETE FROM remuda.feed";
    further.batch_execute(statement).await.expect("it is written");
    // … while this one removes three of them, and has read what they are.
    let trim = async { store.trim_feed(MINUTE).await.expect("it trims") };
    let commit = async {
        let watch = client(&url).await;
        let waits = async || {
            let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
            let rows = watch.query(waiting, &[]).await.expect("it answers");
            (!rows.is_empty()).then_some(())
        };
        wait::until("the other to wait", SOON, waits).await.expect("in time");
        further.commit().await.expect("it is committed");
    };
    tokio::join!(trim, commit);
    let ends = store.feed_ends().await.expect("it answers");
    assert_eq!(
        (ends.first, ends.first),
        (ends.last, ends.first.max(items[3].place)),
        "not before the fourth"
    );
    store.close().await;
}
