//! Connections: idle ones leave for others, and nobody keeps us waiting for ever.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::support::{BOUND, Gateway, json};
use crate::wire::{begins, connect, drain};

#[tokio::test]
async fn idle_connections_without_a_key_keep_nobody_out() {
    let gateway = Gateway::start_with(|options| options.limits.connections = 32).await;
    let mut idle = Vec::new();
    for n in 0..100 {
        let mut stream = connect(&gateway).await;
        if n % 2 == 0 {
            // Half a head is as good as nothing.
            stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    // A client of its own: none of its connections is kept from before.
    let fresh = reqwest::Client::new();
    for path in ["/live", "/ready"] {
        let answer = fresh.get(format!("{}{path}", gateway.url)).timeout(BOUND).send().await.unwrap();
        json(answer, 200).await;
    }
    // The oldest had to leave, long before their time was over.
    for stream in idle.iter_mut().take(50) {
        drain(stream).await;
    }
}

#[tokio::test]
async fn busy_connections_are_not_closed_for_newcomers_who_are_told_at_once() {
    let gateway = Gateway::start_with(|options| options.limits.connections = 4).await;
    let id = gateway.submit().await;
    let mut busy = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&gateway).await;
        let head = format!("GET /api/v1/tasks/{id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        assert!(begins(&mut stream).await.contains(" 200 "));
        busy.push(stream);
    }
    // The connection that submitted was idle, and has left for one of them.
    let mut late = connect(&gateway).await;
    let told = begins(&mut late).await;
    assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: 1"), "{told}");
    drop(busy);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_in_time() {
    let gateway = Gateway::start_with(|options| options.limits.head_time = Duration::from_millis(300)).await;
    let mut silent = connect(&gateway).await;
    let mut half = connect(&gateway).await;
    half.write_all(b"GET / HTTP/1.1\r\nx").await.unwrap();
    let mut kept = connect(&gateway).await;
    kept.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(begins(&mut kept).await.contains(" 200 "));
    for stream in [&mut silent, &mut half, &mut kept] {
        drain(stream).await;
    }
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let gateway = Gateway::start().await;
    let mut stream = connect(&gateway).await;
    let line = format!("x-y: {}\r\n", "z".repeat(1000));
    stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    for _ in 0..200 {
        if stream.write_all(line.as_bytes()).await.is_err() {
            break;
        }
    }
    let (_, _) = drain(&mut stream).await;
    let mut stream = connect(&gateway).await;
    stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    for n in 0..200 {
        stream.write_all(format!("x-{n}: y\r\n").as_bytes()).await.unwrap();
    }
    stream.write_all(b"\r\n").await.unwrap();
    assert!(begins(&mut stream).await.contains(" 431 "));
}
