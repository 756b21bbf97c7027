//! The budget for bodies and answers under way.

use std::time::Duration;

use remuda_core::Scope;
use remuda_testbed::wait;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{BOUND, Gateway, JsonText as _, json};
use crate::wire::{ask, begins, drain, say, status_within};

/// More than the machine keeps for a connection that nobody reads.
const LARGE: usize = 8 << 20;

/// Memory for eight of them.
async fn gateway(write_time: Duration) -> (Gateway, String, String) {
    let gateway = Gateway::start_with(|options| {
        options.limits.body = 16 << 20;
        options.limits.memory = 64 << 20;
        options.limits.write_time = write_time;
    })
    .await;
    let scopes = [Scope::Submit, Scope::Read];
    let keys = (gateway.ground.key("greedy", &scopes).await, gateway.ground.key("modest", &scopes).await);
    (gateway, keys.0, keys.1)
}

/// A task with a large graph.
async fn submit(gateway: &Gateway, key: &str) -> String {
    let text = "x".repeat(LARGE);
    let body = format!(
        r#"{{"payload": {{"1": {{"class_type": "Note", "inputs": {{"text": "{text}"}}}},
        "2": {{"class_type": "SaveImage", "inputs": {{"images": ["1", 0], "filename_prefix": "a"}}}}}}}}"#
    );
    let answer = gateway.post("/api/v1/tasks").bearer_auth(key).json_text(&body).send().await.unwrap();
    json(answer, 201).await["id"].as_str().unwrap().to_owned()
}

async fn get(gateway: &Gateway, key: &str, id: &str) -> reqwest::Response {
    gateway.get(&format!("/api/v1/tasks/{id}")).bearer_auth(key).send().await.unwrap()
}

#[tokio::test]
async fn unread_answers_are_refused_to_who_has_most_and_free_when_their_reader_is_gone() {
    let (gateway, greedy, modest) = gateway(BOUND).await;
    let own = submit(&gateway, &modest).await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        tasks.push(submit(&gateway, &greedy).await);
    }
    let mut unread: Vec<TcpStream> = Vec::new();
    let mut statuses = Vec::new();
    for id in &tasks {
        let mut stream = ask(&gateway, &greedy, &format!("/api/v1/tasks/{id}")).await;
        statuses.push(status_within(&mut stream, BOUND).await.unwrap());
        unread.push(stream);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 503, 503], "three quarters, and not more");
    let refused = get(&gateway, &greedy, &tasks[7]).await;
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(json(refused, 503).await["limit"], "server.memory");
    let whole = json(get(&gateway, &modest, &own).await, 200).await;
    assert_eq!(whole["payload"]["1"]["inputs"]["text"].as_str().unwrap().len(), LARGE);
    drop(unread);
    let free = wait::until("memory to be free again", BOUND, async || {
        let answer = get(&gateway, &greedy, &tasks[7]).await;
        let status = answer.status();
        drop(answer);
        if status == 200 { Ok(()) } else { Err(status.to_string()) }
    });
    free.await.unwrap();
}

#[tokio::test]
async fn an_answer_of_one_piece_is_counted_until_it_was_read() {
    let (gateway, greedy, modest) = gateway(BOUND).await;
    for key in [&greedy, &modest] {
        let put = gateway.post("/userdata/f.bin").bearer_auth(key).body("x".repeat(LARGE)).send();
        assert!(put.await.unwrap().status().is_success());
    }
    let mut unread: Vec<TcpStream> = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..12 {
        let mut stream = ask(&gateway, &greedy, "/userdata/f.bin").await;
        statuses.push(status_within(&mut stream, BOUND).await.unwrap());
        unread.push(stream);
    }
    let held = statuses.iter().filter(|status| **status == 200).count();
    assert!(held <= 6 && statuses.contains(&503), "three quarters of the memory, and not more: {statuses:?}");
    let read = gateway.get("/userdata/f.bin").bearer_auth(&modest).send().await.unwrap();
    assert_eq!(read.bytes().await.unwrap().len(), LARGE);
}

#[tokio::test]
async fn many_readers_of_one_graph_have_the_same_bytes() {
    let (gateway, greedy, _) = gateway(BOUND).await;
    let id = submit(&gateway, &greedy).await;
    let mut unread = Vec::new();
    for n in 0..40 {
        let mut stream = ask(&gateway, &greedy, &format!("/api/v1/tasks/{id}")).await;
        assert_eq!(status_within(&mut stream, BOUND).await, Some(200), "reader {n}");
        unread.push(stream);
    }
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut_off() {
    let (gateway, greedy, _) = gateway(Duration::from_millis(500)).await;
    let id = submit(&gateway, &greedy).await;
    let mut stream = ask(&gateway, &greedy, &format!("/api/v1/tasks/{id}")).await;
    assert_eq!(status_within(&mut stream, BOUND).await, Some(200));
    // Long after the time is over; a slower machine only makes it longer.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (read, _) = drain(&mut stream).await;
    assert!(read < LARGE, "{read} bytes came, and nobody was cut off");
}

#[tokio::test]
async fn bodies_are_counted_as_they_come_whatever_their_senders_say() {
    let (gateway, greedy, modest) = gateway(BOUND).await;
    let mut held = Vec::new();
    let mut told = Vec::new();
    for _ in 0..4 {
        // Chunked: nobody knows how long it will be.
        let head = "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut stream = say(&gateway, &greedy, "POST /api/v1/tasks", head).await;
        let piece = vec![b' '; 1 << 20];
        let mut broken = false;
        for _ in 0..12 {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
            broken |= stream.write_all(&chunk).await.is_err();
        }
        told.push(broken);
        held.push(stream);
    }
    let refused = wait::until("a body to be refused", BOUND, async || {
        for stream in &mut held {
            if status_within(stream, Duration::from_millis(100)).await == Some(503) {
                return Ok(());
            }
        }
        Err("none yet".to_owned())
    });
    refused.await.unwrap();
    let answer = gateway.post("/settings/x").bearer_auth(&modest).json_text("1").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let small = ask(&gateway, &modest, "/settings/x");
    assert!(begins(&mut small.await).await.contains(" 200 "));
}
