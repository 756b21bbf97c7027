//! Stopping: waits and streams end at once, requests under way are finished, the rest is cut at the end of the drain time.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::events::Reader;
use crate::support::{BOUND, GRAPH, Gateway, JsonText as _, json};

#[tokio::test]
async fn waits_and_streams_end_at_once_and_the_task_is_safe() {
    // With all the time to drain: what ends before that was told to.
    let mut gateway = Gateway::start_with(|options| options.drain = 2 * BOUND).await;
    let id = gateway.submit().await;
    let mut reader = Reader::new(gateway.get(&format!("/api/v1/tasks/{id}/events")).send().await.unwrap());
    reader.next().await.unwrap();
    let body = format!("{{\"payload\": {GRAPH}}}");
    let waiting = gateway.post("/api/v1/tasks").header("Prefer", "wait=300").json_text(&body).send();
    let stopping = async {
        // The second task is in, so its submitter waits by now, or will not wait at all.
        let both = async || (gateway.store().counts(None).await.unwrap().pending == 2).then_some(());
        remuda_testbed::wait::until("the second task", BOUND, both).await.unwrap();
        gateway.stop.cancel();
    };
    let began = Instant::now();
    let (answer, ()) = tokio::join!(waiting, stopping);
    assert_eq!(json(answer.unwrap(), 201).await["status"], "pending");
    assert_eq!(reader.next().await, None);
    (&mut gateway.running).await.unwrap();
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    assert_eq!(gateway.store().counts(None).await.unwrap().pending, 2);
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_at_the_end_of_the_drain_time() {
    let mut gateway = Gateway::start_with(|options| {
        options.drain = Duration::from_millis(200);
        options.limits.body_time = 2 * BOUND;
    })
    .await;
    let address = gateway.url.strip_prefix("http://").unwrap().to_owned();
    let mut slow = TcpStream::connect(&address).await.unwrap();
    slow.write_all(b"POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n")
        .await
        .unwrap();
    // The server has begun to read the body.
    let mut head = [0; 12];
    slow.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 100");
    let began = Instant::now();
    gateway.stop.cancel();
    (&mut gateway.running).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < BOUND);
    assert!(TcpStream::connect(&address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn who_is_slow_with_the_head_or_the_body_of_a_request_is_sent_away() {
    let short = Duration::from_millis(200);
    let gateway = Gateway::start_with(|options| options.limits.head_time = short).await;
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(BOUND, slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection is closed");

    // A server of its own: the head of this one may take its time.
    let gateway = Gateway::start_with(|options| options.limits.body_time = short).await;
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        .await
        .unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(BOUND, slow.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("slow_body"), "{answer}");
}
