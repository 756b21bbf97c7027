//! Long texts, which SQLite keeps in pieces: nobody waits for the whole of one, and nothing of them is left over.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod ended;

use std::path::Path;
use std::time::Duration;

use remuda_core::{NewTask, OwnerId, TaskId};
use remuda_store::{HousekeepingStore as _, Options, SqliteStore, Store as _, TaskStore as _};
use remuda_testbed::wait;
use rusqlite::Connection;
use serde_json::value::RawValue;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(60);

fn task(bytes: usize) -> NewTask {
    let text = format!(r#"{{"1":{{"class_type":"A","inputs":{{"text":"{}"}}}}}}"#, "ä".repeat(bytes / 2));
    NewTask::new(RawValue::from_string(text).expect("JSON"))
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, Options::new(OwnerId(Uuid::from_u128(1)))).await.expect("it opens")
}

fn number(path: &Path, sql: &str) -> i64 {
    let raw = Connection::open(path).expect("it opens");
    raw.query_row(sql, (), |row| row.get(0)).expect("it answers")
}

fn pieces(path: &Path) -> i64 {
    number(path, "SELECT count(*) FROM piece")
}

async fn none_left(path: &Path) {
    wait::until("all pieces to be removed", SOON, async || match pieces(path) {
        0 => Ok(()),
        n => Err(format!("{n} pieces are left")),
    })
    .await
    .expect("they are removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_task_does_not_wait_for_a_long_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let long = std::pin::pin!(store.submit(task(16 << 20)));
    let short = async {
        wait::until("the long one to begin", SOON, async || match pieces(&path) {
            0 => Err("not yet"),
            _ => Ok(()),
        })
        .await
        .expect("it begins");
        for _ in 0..3 {
            store.submit(task(10)).await.expect("it is taken in");
        }
    };
    // Whichever is done first is what this returns.
    tokio::select! {
        biased;
        _ = long => panic!("the short ones waited for the long one"),
        () = short => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_task_that_is_given_up_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let kept = task(1 << 20);
    store.submit(kept.clone()).await.expect("it is taken in");
    let of_kept = pieces(&path);
    assert!(of_kept > 1, "{of_kept}");
    let long = Box::pin(store.submit(task(16 << 20)));
    let begun = wait::until("the long one to begin", SOON, async || {
        if pieces(&path) > of_kept + 3 { Ok(()) } else { Err("not yet") }
    });
    tokio::select! {
        biased;
        begun = begun => begun.expect("it begins"),
        _ = long => panic!("it is done already"),
    }
    // The future was dropped: whoever sent it has hung up.
    wait::until("the pieces to be removed", SOON, async || match pieces(&path) {
        n if n == of_kept => Ok(()),
        n => Err(format!("{n} pieces")),
    })
    .await
    .expect("they are removed");
    let input = store.input(kept.id).await.expect("it answers").expect("it is there");
    assert_eq!(input.workflow.get(), kept.input.workflow.get(), "the other one is whole");
    store.cancel(kept.id).await.expect("it ends");
    store.forget(&[kept.id]).await.expect("it is forgotten");
    none_left(&path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_left_is_removed_at_the_next_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let kept = task(1 << 20);
    store.submit(kept.clone()).await.expect("it is taken in");
    store.close().await;
    let of_kept = pieces(&path);
    let raw = Connection::open(&path).expect("it opens");
    for text in [7_i64, 9, 1000] {
        for n in 0..20 {
            raw.execute("INSERT INTO piece (id, piece) VALUES (?, 'x')", [(text << 16) + n])
                .expect("it is put");
        }
    }
    drop(raw);
    let store = open(&path).await;
    store.ping().await.expect("it answers");
    // Something wakes the writer, as always in a running server.
    store.submit(task(10)).await.expect("it is taken in");
    wait::until("the pieces to be removed", SOON, async || match pieces(&path) {
        n if n == of_kept => Ok(()),
        n => Err(format!("{n} pieces")),
    })
    .await
    .expect("they are removed");
    let next = task(1 << 20);
    store.submit(next.clone()).await.expect("it is taken in");
    for one in [&kept, &next] {
        let input = store.input(one.id).await.expect("it answers").expect("it is there");
        assert_eq!(input.workflow.get(), one.input.workflow.get());
    }
}

/// What the release before says to the file, word for word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_before_finds_long_texts_where_it_looks_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let (long, short) = (task(3 << 20), task(10));
    for new in [&long, &short] {
        store.submit(new.clone()).await.expect("it is taken in");
    }
    store.close().await;
    let raw = Connection::open(&path).expect("it opens");
    let no = |id: TaskId| -> i64 {
        raw.query_row("SELECT no FROM task WHERE id = ?", [id.0.as_bytes()], |row| row.get(0))
            .expect("a number")
    };
    for new in [&long, &short] {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(1)?, row.get::<_, Option<String>>(2)?));
        let claimed = "SELECT placements, workflow, extra, lane FROM input WHERE no = ?";
        let read_later = "SELECT input.placements, input.workflow, input.extra, lane.requires FROM input \
                          JOIN lane ON lane.id = input.lane WHERE input.no = ?";
        for sql in [claimed, read_later] {
            let (workflow, extra) = raw.query_row(sql, [no(new.id)], read).expect("it reads");
            assert_eq!((workflow.as_str(), extra), (new.input.workflow.get(), None));
        }
    }
    let last = "SELECT coalesce(max(no), 0) FROM input";
    let last: i64 = raw.query_row(last, (), |row| row.get(0)).expect("it reads");
    assert_eq!(last, no(short.id));
    raw.execute("DELETE FROM input WHERE no = ?", [no(long.id)]).expect("it deletes");
    assert_eq!(pieces(&path), 0);
    assert_eq!(number(&path, "SELECT count(*) FROM input"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_ended_task_left_is_read_by_those_who_want_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let spoil = async |_| {
        let raw = Connection::open(&path).expect("it opens");
        raw.execute("UPDATE result_row SET result = '{'", ()).expect("it is written");
    };
    ended::what_it_left_is_read_by_those_who_want_it(&store, OwnerId(Uuid::from_u128(1)), spoil).await;
}
