//! Secrets in a SQLite file: never in plain text, and gone with their tasks.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod secrets;

use std::path::Path;
use std::sync::Arc;

use remuda_store::{
    Error, Keyring, ManualClock, Options, RunnerStore as _, SqliteStore, Store as _, TaskStore as _,
};
use rusqlite::Connection;
use secrets::{SECRET, every_end_takes_its_secret, options, paid};

fn is_on_disk(folder: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    files.into_iter().any(|file| {
        let bytes = std::fs::read(file).expect("it can be read");
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_of_a_task_takes_its_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let clock = Arc::new(ManualClock::default());
    let store = SqliteStore::open(&path, options(&Keyring::generate(), &clock)).await.expect("it opens");
    let left = async || {
        let raw = Connection::open(&path).expect("it opens");
        raw.query_row("SELECT count(*) FROM secret", (), |row| row.get(0)).expect("it counts")
    };
    every_end_takes_its_secret(&store, &clock, left).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_secret_reaches_the_disk_in_plain_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let clock = Arc::new(ManualClock::default());
    let store = SqliteStore::open(&path, options(&Keyring::generate(), &clock)).await.expect("it opens");
    store.submit(paid()).await.expect("it is taken in");
    let cluster_key = store.installation().await.expect("it answers").cluster_key;
    assert!(!is_on_disk(folder.path(), SECRET), "in the file or its log");
    assert!(!is_on_disk(folder.path(), &cluster_key), "the key between servers");
    store.close().await;
    assert!(!is_on_disk(folder.path(), SECRET) && !is_on_disk(folder.path(), &cluster_key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_key_seals_what_was_kept_in_plain_text_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let clock = Arc::new(ManualClock::default());
    let keyless = Options { secrets: Keyring::default(), ..options(&Keyring::generate(), &clock) };
    let store = SqliteStore::open(&path, keyless.clone()).await.expect("it opens");
    let plain = store.installation().await.expect("it answers").cluster_key;
    let task = store.submit(remuda_core::NewTask { input: bare(), ..paid() }).await.expect("taken").task().id;
    let ended =
        store.submit(remuda_core::NewTask { input: bare(), ..paid() }).await.expect("taken").task().id;
    store.cancel(ended).await.expect("it waits");
    store.close().await;
    // As the release before wrote it.
    let raw = Connection::open(&path).expect("it opens");
    let extra = format!(r#"{{"extra_data":{{"a":1,"api_key_comfy_org":"{SECRET}"}},"number":1.0}}"#);
    raw.execute("UPDATE input SET extra = ?", (&extra,)).expect("it is changed");
    raw.close().expect("it closes");
    assert!(is_on_disk(folder.path(), SECRET));

    let key = Keyring::generate();
    let store = SqliteStore::open(&path, options(&key, &clock)).await.expect("it opens");
    assert_ne!(store.installation().await.expect("it answers").cluster_key, plain, "a new key, never seen");
    for id in [task, ended] {
        let input = store.input(id).await.expect("it answers").expect("it is there");
        assert_eq!(input.extra.expect("it has some").sealed, ["api_key_comfy_org"]);
    }
    // Somebody goes back to the release before for a while.
    let later =
        store.submit(remuda_core::NewTask { input: bare(), ..paid() }).await.expect("taken").task().id;
    store.cancel(later).await.expect("it waits");
    store.close().await;
    assert!(!is_on_disk(folder.path(), SECRET));
    let raw = Connection::open(&path).expect("it opens");
    let write = "UPDATE input SET extra = ? WHERE no = (SELECT max(no) FROM input)";
    raw.execute(write, (extra,)).expect("it is changed");
    raw.close().expect("it closes");
    let store = SqliteStore::open(&path, options(&key, &clock)).await.expect("it opens");
    let input = store.input(later).await.expect("it answers").expect("it is there");
    assert_eq!(input.extra.expect("it has some").sealed, ["api_key_comfy_org"]);
    store.close().await;
    assert!(!is_on_disk(folder.path(), SECRET));
    let raw = Connection::open(&path).expect("it opens");
    let kept: i64 = raw.query_row("SELECT count(*) FROM secret", (), |row| row.get(0)).expect("it counts");
    assert_eq!(kept, 1, "the ended one needs none");
    raw.close().expect("it closes");
    let refused = SqliteStore::open(&path, keyless).await.expect_err("it is refused");
    assert!(matches!(refused, Error::WrongSecretKey(_)), "{refused}");
}

fn bare() -> remuda_core::TaskInput {
    let mut input = paid().input;
    input.extra = Some(Box::default());
    input
}

/// A start looks at what an earlier release wrote. Whoever sends many prompts would otherwise hold it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_release_wrote_is_not_looked_at_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let (clock, keys) = (Arc::new(ManualClock::default()), Keyring::generate());
    let store = SqliteStore::open(&path, options(&keys, &clock)).await.expect("it opens");
    for _ in 0..3 {
        store.submit(paid()).await.expect("it is taken in");
    }
    store.close().await;
    let raw = Connection::open(&path).expect("it opens");
    let unsealed =
        "SELECT count(*) FROM input_row INDEXED BY input_unsealed WHERE sealed IS NULL AND extra IS NOT NULL";
    let unsealed = || raw.query_row::<i64, _, _>(unsealed, (), |row| row.get(0)).expect("it counts");
    assert_eq!(unsealed(), 0);
    // As the release before writes it, for tasks that are there.
    raw.execute("DELETE FROM input_row", ()).expect("it deletes");
    for no in 1..=3 {
        let extra = format!(r#"{{"extra_data":{{"api_key_comfy_org":"{SECRET}"}},"number":1.0}}"#);
        let sql =
            "INSERT INTO input (no, lane, workflow, extra) SELECT ?1, lane, '{}', ?2 FROM task WHERE no = ?1";
        raw.execute(sql, rusqlite::params![no, extra]).expect("it writes");
    }
    raw.execute("UPDATE sealed_installation SET sealed_to = 0", ()).expect("it writes");
    assert_eq!(unsealed(), 3);
    let store = SqliteStore::open(&path, options(&keys, &clock)).await.expect("it opens");
    assert_eq!(unsealed(), 0, "they are sealed, and never looked at again");
    store.close().await;
    drop(raw);
    assert!(!is_on_disk(folder.path(), SECRET));
}
