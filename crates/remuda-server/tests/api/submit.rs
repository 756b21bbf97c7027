//! `POST /api/v1/tasks`.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{BOUND, GRAPH, Gateway, JsonText as _, Worker, json};

/// The body of the first example of the serverless documentation, as its curl sends it.
const SEED: &str = include_str!("seed_example.json");

#[tokio::test]
async fn the_example_of_the_documentation_works_as_it_is_written() {
    let gateway = Gateway::start().await;
    let answer = gateway.post("/api/v1/tasks").json_text(SEED).send().await.unwrap();
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let task = json(answer, 201).await;
    assert_eq!(task["workflow_id"], "text_to_image_v1");
    assert_eq!(task["status"], "pending");
    assert_eq!(task["priority"], 5);
    assert!(task["created_at"].is_string());
    assert_eq!(location, format!("/api/v1/tasks/{}", task["id"].as_str().unwrap()));
    assert_eq!(task["warnings"].as_array().unwrap().len(), 1, "no worker is known yet: {task}");
    let record = json(gateway.get(&location).send().await.unwrap(), 200).await;
    assert_eq!(record["payload"]["3"]["inputs"]["seed"], 46588125086418_u64);
    for field in [
        "id",
        "workflow_id",
        "priority",
        "status",
        "payload",
        "worker_id",
        "created_at",
        "started_at",
        "completed_at",
        "result",
        "error",
        "retry_count",
        "max_retries",
    ] {
        assert!(record.as_object().unwrap().contains_key(field), "{field} is missing");
    }
}

#[tokio::test]
async fn a_workflow_is_kept_byte_for_byte() {
    let gateway = Gateway::start().await;
    let graph = "{ \"9\" : {\"inputs\":{\"z\": 18446744073709551615, \"a\": 1e-05,\t\"t\": \"\\u00e9 \\/\"},\n \"class_type\":\"A\"} }";
    let body = format!("{{\"priority\": 9,\n\"payload\":  {graph} , \"workflow_id\": null}}");
    let task = json(gateway.post("/api/v1/tasks").json_text(&body).send().await.unwrap(), 201).await;
    let id = task["id"].as_str().unwrap();
    let input = gateway.store().input(id.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(input.workflow.get(), graph);
    let text = gateway.get(&format!("/api/v1/tasks/{id}")).send().await.unwrap().text().await.unwrap();
    assert!(text.contains(&format!("\"payload\":{graph}")), "{text}");
}

#[tokio::test]
async fn every_field_reaches_the_task() {
    let gateway = Gateway::start().await;
    let id = gateway
        .submit_with(
            r#""workflow_id": "w", "priority": 9, "labels": ["a100"], "requires": {"models": ["x.safetensors"]},
            "not_before": "2100-01-01T00:00:00Z", "deadline": "2100-01-02T00:00:00Z", "timeout_s": 60, "max_retries": 0,
            "metadata": {"order": 17},"#,
        )
        .await;
    let task = gateway.task(&id).await;
    assert_eq!(task["status"], "pending");
    assert_eq!(task["reason"], "scheduled");
    assert_eq!(task["run_at"], "2100-01-01T00:00:00Z");
    assert_eq!(task["deadline"], "2100-01-02T00:00:00Z");
    assert_eq!(task["timeout_s"], 60);
    assert_eq!(task["max_retries"], 0);
    assert_eq!(task["metadata"]["order"], 17);
    assert_eq!(task["requires"]["labels"][0], "a100");
    assert_eq!(task["requires"]["models"][0], "x.safetensors");
    assert_eq!(task["tenant"], "default");
}

#[tokio::test]
async fn the_same_key_gives_the_same_task_and_another_body_is_a_conflict() {
    let gateway = Gateway::start().await;
    let send = |body: String| {
        gateway.post("/api/v1/tasks").header("Idempotency-Key", "order-17").json_text(&body).send()
    };
    let body = format!("{{\"payload\": {GRAPH}}}");
    let first = json(send(body.clone()).await.unwrap(), 201).await;
    let again = send(body.clone()).await.unwrap();
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    let again = json(again, 200).await;
    assert_eq!(first["id"], again["id"]);
    let conflict = json(send(format!("{{\"priority\": 1, \"payload\": {GRAPH}}}")).await.unwrap(), 409).await;
    assert_eq!(conflict["code"], "idempotency_conflict");
    assert_eq!(conflict["task"], first["id"]);
    let counts = gateway.store().counts(None).await.unwrap();
    assert_eq!(counts.pending, 1);
}

#[tokio::test]
async fn a_repeated_submission_is_the_same_task_whatever_became_of_the_workers_since() {
    let gateway = Gateway::start().await;
    let send =
        |body: &str| gateway.post("/api/v1/tasks").header("Idempotency-Key", "k").json_text(body).send();
    // A deadline that is near, and not yet over when the task comes in: a slow machine needs one that is further away.
    let mut near = Duration::from_millis(700);
    let (deadline, body, first) = loop {
        let deadline = jiff::Timestamp::now() + near;
        let body = format!("{{\"deadline\": \"{deadline}\", \"payload\": {GRAPH}}}");
        let answer = send(&body).await.unwrap();
        if answer.status() == 201 || near > BOUND {
            break (deadline, body, json(answer, 201).await);
        }
        near *= 4;
    };
    // A worker that could not run it, and a deadline that has passed: a new submission would be refused.
    Worker::join(&gateway.ground, "empty", Some("{}")).await;
    let refused = gateway.post("/api/v1/tasks").json_text(&format!("{{\"payload\": {GRAPH}}}")).send();
    assert_eq!(refused.await.unwrap().status(), 422);
    let passed = async || (jiff::Timestamp::now() > deadline).then_some(());
    remuda_testbed::wait::until("the deadline", 2 * BOUND, passed).await.unwrap();
    assert_eq!(json(send(&body).await.unwrap(), 200).await["id"], first["id"]);
}

#[tokio::test]
async fn many_at_once_under_one_key_make_one_task() {
    let gateway = Gateway::start().await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let sent =
        (0..16).map(|_| gateway.post("/api/v1/tasks").header("idempotency-key", "k").json_text(&body).send());
    let mut ids = Vec::new();
    let mut made = 0;
    for answer in futures_util::future::join_all(sent).await {
        let answer = answer.unwrap();
        made += u32::from(answer.status() == 201);
        let task: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        ids.push(task["id"].as_str().unwrap().to_owned());
    }
    ids.dedup();
    assert_eq!((ids.len(), made), (1, 1));
}

#[tokio::test]
async fn who_prefers_to_wait_gets_the_end() {
    let gateway = Gateway::start().await;
    let worker = gateway.worker().await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let waiting = gateway.post("/api/v1/tasks").header("Prefer", "wait=300").json_text(&body).send();
    let working = async {
        let claim = worker.claim().await;
        worker.complete(&claim, b"png").await;
    };
    let began = Instant::now();
    let (answer, ()) = tokio::join!(waiting, working);
    let answer = answer.unwrap();
    assert_eq!(answer.headers()["preference-applied"], "wait=300");
    let task = json(answer, 201).await;
    assert_eq!(task["status"], "completed");
    assert_eq!(task["result"]["files"][0]["filename"], "blue_00001_.png");
    assert!(began.elapsed() < BOUND);
}

#[tokio::test]
async fn who_waits_is_in_nobodys_way() {
    let gateway = Gateway::start_with(|options| options.limits.submissions = 1).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let waiting = gateway.post("/api/v1/tasks").header("Prefer", "wait=300").timeout(3 * BOUND);
    let other = async {
        let first = async || (gateway.store().counts(None).await.unwrap().pending == 1).then_some(());
        remuda_testbed::wait::until("the first task", BOUND, first).await.unwrap();
        gateway.submit().await;
    };
    tokio::select! {
        answer = waiting.json_text(&body).send() => panic!("it was to wait: {answer:?}"),
        () = other => {}
    }
}

#[tokio::test]
async fn who_waits_in_vain_gets_the_task_as_it_is() {
    let gateway = Gateway::start().await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let began = Instant::now();
    let answer =
        gateway.post("/api/v1/tasks").header("Prefer", "wait=1").json_text(&body).send().await.unwrap();
    assert_eq!(json(answer, 201).await["status"], "pending");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn slow_bodies_are_in_nobodys_way() {
    let gateway = Gateway::start_with(|options| {
        options.limits.submissions = 1;
        options.limits.body_time = 3 * BOUND;
    })
    .await;
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    let head = "POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                expect: 100-continue\r\ncontent-length: 100\r\n\r\n";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    // Told so when the server begins to read the body.
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    slow.write_all(b"{").await.unwrap();
    // Long before the body is given up.
    gateway.submit().await;
}
