//! The feed of a PostgreSQL database that was restored elsewhere, and that several servers trim.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{NewTask, OwnerId, TaskId};
use remuda_store::{
    Error, FeedItem, HousekeepingStore, ManualClock, Options, PostgresStore, Store, TaskStore,
};
use remuda_testbed::postgres::{self, Cluster, database};
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

/// What the feed has, when it has this many entries: what was begun before may have to end first.
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
async fn a_transaction_that_commits_late_is_not_skipped() {
    let (url, clock) = (database().await.expect("a database"), Arc::new(ManualClock::default()));
    let store = open(&url, &clock).await;
    let known = submit(&store).await;
    let before = entries(&store, 1).await;
    let place = before[0].place;
    // It takes its number and writes first …
    let mut other = client(&url).await;
    let late = other.transaction().await.expect("it begins");
    let statement = "INSERT INTO remuda.feed (tenant, at, entries) SELECT tenant, at, entries FROM remuda.feed \
        ORDER BY xid, seq LIMIT 1";
    assert_eq!(late.execute(statement, &[]).await.expect("it is written"), 1);
    // … and three others, of which each has a later number, are committed before it. Nobody may go past it meanwhile.
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(submit(&store).await);
        let page = store.feed(None, place, 10).await.expect("it can be read");
        assert_eq!((page.items.len(), page.next), (0, place), "it could be skipped");
        let ends = store.feed_ends().await.expect("it answers");
        assert_eq!((ends.last.max(place), place.is_between(&ends)), (ends.last, true));
        assert!(store.feed(None, ends.last, 10).await.expect("it can be read").items.is_empty());
    }
    let ends = store.feed_ends().await.expect("it answers");
    late.commit().await.expect("it is committed");

    let all = entries(&store, 5).await;
    let tasks: Vec<TaskId> = all.iter().map(|item| item.entry.task).collect();
    assert_eq!(tasks, [&[known, known], &others[..]].concat(), "in the order of the transactions");
    assert_eq!(all[0], before[0]);
    // Whoever waited at either place hears of all that came, the late one first.
    for place in [place, ends.last] {
        assert_eq!(store.feed(None, place, 10).await.expect("it can be read").items, all[1..]);
    }
    store.close().await;
}

#[tokio::test]
async fn after_a_standby_took_over_nobody_goes_on_as_if_nothing_were_lost() {
    let mut cluster = Cluster::start(postgres::Options { durable: true, ..postgres::Options::default() })
        .await
        .expect("a server");
    let url = cluster.database().await.expect("a database");
    let clock = Arc::new(ManualClock::default());
    let store = open(&url, &clock).await;
    let task = submit(&store).await;
    let before = entries(&store, 1).await[0].place;
    // A restart alone is no reason to doubt anything.
    cluster.stop_hard().await.expect("it stops");
    cluster.start_again().await.expect("it starts");
    let answers = async || store.feed_ends().await.ok();
    let ends = wait::until("the server to answer", SOON, answers).await.expect("in time");
    assert!(before.is_between(&ends), "{before} in {ends:?}");

    cluster.take_over().await.expect("it takes over");
    let ends = wait::until("the server to answer", SOON, answers).await.expect("in time");
    assert!(!before.is_between(&ends) && ends.first > before, "{before} in {ends:?}");
    let first = match store.feed(None, before, 10).await {
        Err(Error::Gone { first }) => first,
        other => panic!("it was not told where to begin: {other:?}"),
    };
    // What is there can be read from there on, and what comes.
    let next = submit(&store).await;
    let all = entries(&store, 2).await;
    assert_eq!([all[0].entry.task, all[1].entry.task], [task, next]);
    assert_eq!(store.feed(None, first, 10).await.expect("it can be read").items, all);
    store.close().await;
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
