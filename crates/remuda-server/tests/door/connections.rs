//! Connections: idle ones leave for others, and nobody keeps us waiting for ever.

use std::time::Duration;

use remuda_core::Scope;
use remuda_testbed::wait;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{BOUND, GRAPH, Gateway, JsonText as _, json};
use crate::wire::{ask, begins, connect, drain};

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

/// A stream of events, which stays open.
async fn follow(gateway: &Gateway, key: &str, id: &str) -> (TcpStream, String) {
    let mut stream = ask(gateway, key, &format!("/api/v1/tasks/{id}/events")).await;
    let told = begins(&mut stream).await;
    (stream, told)
}

#[tokio::test]
async fn busy_connections_of_one_key_leave_room_for_others_and_for_probes() {
    let gateway = Gateway::start_with(|options| options.limits.connections = 8).await;
    let mut busy = Vec::new();
    let scopes = [Scope::Submit, Scope::Read];
    let keys = [gateway.ground.key("greedy", &scopes).await, gateway.ground.key("modest", &scopes).await];
    let mut followers = Vec::new();
    for key in keys {
        let body = format!("{{\"payload\": {GRAPH}}}");
        let answer = gateway.post("/api/v1/tasks").bearer_auth(&key).json_text(&body).send().await.unwrap();
        followers.push((key, json(answer, 201).await["id"].as_str().unwrap().to_owned()));
    }
    let [(greedy, its), (modest, own)] = followers.try_into().unwrap();
    for _ in 0..6 {
        let (stream, told) = follow(&gateway, &greedy, &its).await;
        assert!(told.contains(" 200 "), "{told}");
        busy.push(stream);
    }
    let (_, told) = follow(&gateway, &greedy, &its).await;
    assert!(told.contains(" 429 ") && told.contains("server.connections"), "{told}");
    for _ in 0..2 {
        let (stream, told) = follow(&gateway, &modest, &own).await;
        assert!(told.contains(" 200 "), "{told}");
        busy.push(stream);
    }
    // Now all of them are busy, and nobody is sent away for a newcomer.
    for path in ["/live", "/ready"] {
        let told = begins(&mut ask(&gateway, "none", path).await).await;
        assert!(told.starts_with("HTTP/1.1 200 ") && told.contains("connection: close"), "{path}: {told}");
    }
    let told = begins(&mut ask(&gateway, &modest, "/users").await).await;
    let refused = told.starts_with("HTTP/1.1 503 ") && told.contains("connection: close");
    assert!(refused && told.contains("retry-after: 1"), "{told}");
    // Those who say nothing keep no probe out either.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(connect(&gateway).await);
    }
    assert!(begins(&mut ask(&gateway, "none", "/live").await).await.contains(" 200 "));
    for stream in &mut silent {
        drain(stream).await;
    }
    busy.remove(0);
    let back = wait::until("room again", BOUND, async || {
        let (_, told) = follow(&gateway, &modest, &own).await;
        if told.contains(" 200 ") { Ok(()) } else { Err(told) }
    });
    back.await.unwrap();
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
