//! Secrets in PostgreSQL: gone with their tasks, in the same transaction.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod secrets;

use std::sync::Arc;

use remuda_core::NewTask;
use remuda_store::{Keyring, ManualClock, Options, PostgresStore, Store as _, TaskStore as _};
use secrets::{SECRET, every_end_takes_its_secret, options, paid};
use tokio_postgres::NoTls;

async fn raw(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_of_a_task_takes_its_secret() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let clock = Arc::new(ManualClock::default());
    let store = PostgresStore::connect(&url, options(&Keyring::generate(), &clock)).await.expect("it opens");
    let client = raw(&url).await;
    let left = async || {
        let row = client.query_one("SELECT count(*) FROM remuda.secret", &[]).await.expect("it counts");
        row.get::<_, i64>(0)
    };
    every_end_takes_its_secret(&store, &clock, left).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_key_seals_what_was_kept_in_plain_text_before() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let clock = Arc::new(ManualClock::default());
    let keyless = Options { secrets: Keyring::default(), ..options(&Keyring::generate(), &clock) };
    let store = PostgresStore::connect(&url, keyless).await.expect("it opens");
    let mut new = paid();
    new.input.extra = Some(Box::default());
    let task = store.submit(new.clone()).await.expect("taken").task().id;
    let ended =
        store.submit(NewTask { id: remuda_core::TaskId::new(), ..new }).await.expect("taken").task().id;
    store.cancel(ended).await.expect("it waits");
    store.close().await;
    let client = raw(&url).await;
    let extra = format!(r#"{{"extra_data":{{"a":1,"api_key_comfy_org":"{SECRET}"}},"number":1.0}}"#);
    let write_plain = async || {
        client.execute("UPDATE remuda.task_input SET extra = $1", &[&extra]).await.expect("it is changed");
    };
    write_plain().await;

    let keys = Keyring::generate();
    let sealed = async |id| {
        let store = PostgresStore::connect(&url, options(&keys, &clock)).await.expect("it opens");
        let input = store.input(id).await.expect("it answers").expect("it is there");
        store.close().await;
        input.extra.expect("it has some").sealed
    };
    // Servers of the release before may still be there, and go on writing; they cannot open what waits and is sealed.
    for _ in 0..2 {
        write_plain().await;
        assert_eq!(sealed(ended).await, ["api_key_comfy_org"]);
        assert!(sealed(task).await.is_empty());
    }
    let past = "UPDATE remuda.sealed_installation SET since = now() - interval '25 hours'";
    client.execute(past, &[]).await.expect("it is changed");
    for id in [task, ended] {
        assert_eq!(sealed(id).await, ["api_key_comfy_org"]);
    }
    let plain = client.query("SELECT 1 FROM remuda.task_input WHERE strpos(extra, $1) > 0", &[&SECRET]).await;
    assert_eq!(plain.expect("it answers").len(), 0);
    let kept = client.query_one("SELECT count(*) FROM remuda.secret", &[]).await.expect("it counts");
    assert_eq!(kept.get::<_, i64>(0), 1, "the ended one needs none");
    let settled =
        client.query_one("SELECT settled FROM remuda.sealed_installation", &[]).await.expect("it answers");
    assert!(settled.get::<_, bool>(0));
}
