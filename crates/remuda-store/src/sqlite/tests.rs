//! What can only be made to happen from within: a full disk, and a command that breaks its transaction.

use std::sync::mpsc;

use remuda_core::{NewTask, OwnerId};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::SqliteStore;
use super::reads::{Looked, task_within};
use crate::{Error, Options, TaskStore as _};

fn new_task(bytes: usize) -> NewTask {
    let text = format!(r#"{{"1":{{"class_type":"{}","inputs":{{}}}}}}"#, "A".repeat(bytes));
    NewTask::new(RawValue::from_string(text).expect("JSON"))
}

async fn open(folder: &tempfile::TempDir) -> SqliteStore {
    let options = Options::new(OwnerId(Uuid::from_u128(1)));
    SqliteStore::open(&folder.path().join("remuda.db"), options).await.expect("it opens")
}

async fn limit_pages(store: &SqliteStore, pages: i64) {
    let set = move |batch: &mut super::batch::Batch<'_>| {
        let sql = format!("PRAGMA max_page_count = {pages}");
        Ok(batch.db.query_row(&sql, (), |row| row.get::<_, i64>(0))?)
    };
    store.write(set).await.expect("it is set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_and_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder).await;
    // No room for more, whatever there is already.
    limit_pages(&store, 1).await;
    let mut kept = Vec::new();
    let refused = loop {
        let new = new_task(1000);
        let id = new.id;
        match store.submit(new).await {
            Ok(_) => kept.push(id),
            Err(error) => break error,
        }
        assert!(kept.len() < 1000, "the disk never was full");
    };
    assert!(matches!(refused, Error::Full), "{refused:?}");
    // Many at once, large and small: each is answered by itself.
    let many = (0..20).map(|n| store.submit(new_task(if n % 2 == 0 { 100_000 } else { 10 })));
    for answer in futures_util::future::join_all(many).await {
        match answer {
            Ok(submitted) => kept.push(submitted.task().id),
            Err(error) => assert!(matches!(error, Error::Full), "{error:?}"),
        }
    }
    limit_pages(&store, 1_000_000).await;
    kept.push(store.submit(new_task(100_000)).await.expect("there is room again").task().id);
    let counts = store.counts(None).await.expect("it counts");
    assert_eq!(counts.pending, i64::try_from(kept.len()).expect("few"));
    for id in kept {
        assert!(store.task(id).await.expect("it answers").is_some());
        assert!(store.input(id).await.expect("it answers").is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_breaks_its_transaction_breaks_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder).await;
    let (go, gate) = mpsc::channel::<()>();
    // While the writer stands at the gate, the others gather behind it.
    let mut gate = Some(gate);
    // It may be tried twice itself.
    let stand = store.write(move |_| Ok(gate.take().is_none_or(|gate| gate.recv().is_ok())));
    let gathered = async {
        let broken = store.write(|batch| {
            batch.db.execute("DELETE FROM input_row", ())?;
            batch.state.next_no = -5;
            Ok(batch.db.execute("INSERT INTO nowhere VALUES (1)", ())?)
        });
        let (before, after) = (new_task(1), new_task(2));
        let ids = [before.id, after.id];
        let send = async {
            tokio::task::yield_now().await;
            go.send(()).expect("the writer waits");
        };
        let (before, broken, after, ()) =
            tokio::join!(store.submit(before), broken, store.submit(after), send);
        before.expect("it has nothing to do with it");
        after.expect("it has nothing to do with it");
        assert!(matches!(broken, Err(Error::Corrupt(_))), "{broken:?}");
        ids
    };
    let (stood, ids) = tokio::join!(stand, gathered);
    assert!(stood.expect("it stood"));
    for id in ids {
        assert!(store.input(id).await.expect("it answers").is_some(), "what the broken one did is undone");
    }
    assert_eq!(store.counts(None).await.expect("it counts").pending, 2);
}

/// A result in pieces is put together for those who read it, and not to find out that it is too long to be read where it is
/// asked for: here it could not be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_long_a_result_is_is_known_without_reading_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder).await;
    let id = store.submit(new_task(1)).await.expect("it is taken in").task().id;
    let spoil = move |batch: &mut super::batch::Batch<'_>| {
        for sql in [
            "UPDATE task SET status = 'completed', reason = NULL, finished_at = 1 WHERE id = ?1",
            "INSERT INTO result_row (no, result, text) SELECT no, '', 7 FROM task WHERE id = ?1",
            "INSERT INTO piece (id, piece) SELECT 7 << 16, CAST(x'ff' AS TEXT) || hex(zeroblob(50000)) \
             FROM task WHERE id = ?1",
        ] {
            batch.db.execute(sql, (id.0.as_bytes(),))?;
        }
        Ok(())
    };
    store.write(spoil).await.expect("it is written");
    let looked = store.look(move |db| Ok(matches!(task_within(db, id, 64 << 10)?, Looked::Large))).await;
    assert!(looked.expect("nothing of it is read"));
    assert!(matches!(store.task(id).await, Err(Error::Corrupt(_))), "who wants it reads it");
}
