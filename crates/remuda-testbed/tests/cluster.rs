//! Private PostgreSQL clusters: made, crashed, frozen, and gone without a trace.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use remuda_testbed::postgres::{Cluster, GIVEN, Options, Server, database};
use remuda_testbed::process::Program;
use remuda_testbed::wait;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    // Ends with its client.
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn databases_of_the_shared_server_are_strangers() {
    let (one, two) = tokio::join!(database(), database());
    let (one, two) = (one.unwrap(), two.unwrap());
    connect(&one).await.batch_execute("CREATE TABLE seen ()").await.unwrap();
    let found = connect(&two).await.query_opt("SELECT 1 FROM pg_tables WHERE tablename = 'seen'", &[]).await;
    assert!(found.unwrap().is_none());
}

#[tokio::test]
async fn a_durable_cluster_keeps_its_commits_through_a_crash() {
    let mut cluster = Cluster::start(Options { durable: true, ..Options::default() }).await.unwrap();
    let url = cluster.database().await.unwrap();
    let client = connect(&url).await;
    client.batch_execute("CREATE TABLE kept AS SELECT 7 AS n").await.unwrap();

    cluster.stop_hard().await.unwrap();
    assert!(client.batch_execute("SELECT 1").await.is_err());
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    cluster.start_again().await.unwrap();
    let n: i32 = connect(&url).await.query_one("SELECT n FROM kept", &[]).await.unwrap().get(0);
    assert_eq!(n, 7);
}

#[tokio::test]
async fn a_frozen_cluster_answers_nobody_until_it_is_thawed() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    let client = connect(&cluster.url()).await;
    cluster.freeze().unwrap();
    let asked = client.simple_query("SELECT 1");
    tokio::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut asked).await.is_err());
    cluster.thaw().unwrap();
    tokio::time::timeout(Duration::from_secs(120), asked).await.unwrap().unwrap();
    // Dropped while frozen, it still goes.
    cluster.freeze().unwrap();
}

#[tokio::test]
async fn thawing_reaches_every_process_while_others_end() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    let kept = connect(&cluster.url()).await;
    for round in 0..20 {
        let mut leaving = Vec::new();
        for _ in 0..10 {
            leaving.push(connect(&cluster.url()).await);
        }
        drop(leaving);
        cluster.freeze().unwrap();
        cluster.thaw().unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(60), kept.simple_query("SELECT 1")).await;
        asked.unwrap_or_else(|_| panic!("still frozen after round {round}")).unwrap();
    }
}

#[tokio::test]
async fn a_wrong_address_is_refused_in_words() {
    let error = Server::at("mysql://127.0.0.1/x").unwrap_err();
    assert!(error.to_string().contains("postgres://"), "{error}");
}

#[tokio::test]
async fn a_killed_owner_leaves_neither_server_nor_folder() {
    const LONG: Duration = Duration::from_secs(120);
    let folders = tempfile::tempdir().unwrap();
    // The server's user must be able to enter.
    std::fs::set_permissions(folders.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let script = format!("echo \"at ${GIVEN}\"; exec sleep 600");
    let path = folders.path().to_str().unwrap();
    let mut owner = Program::start(
        env!("CARGO_BIN_EXE_with_postgres"),
        ["sh", "-c", &script],
        [("TMPDIR", path), (GIVEN, "")],
    )
    .unwrap();
    let line = owner.wait_line("at ", LONG).await.unwrap();
    let url = line.trim_start_matches("at ");
    connect(url).await;
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 1);

    owner.kill_9().unwrap();
    let closed = async || match tokio_postgres::connect(url, NoTls).await {
        Ok(_) => Err("it answers"),
        Err(_) => Ok(()),
    };
    wait::until("the server to go", LONG, closed).await.unwrap();
    let empty = async || match std::fs::read_dir(path).unwrap().count() {
        0 => Ok(()),
        count => Err(format!("{count} entries")),
    };
    wait::until("its folder to go", LONG, empty).await.unwrap();
}
