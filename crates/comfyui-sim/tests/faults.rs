//! Every fault does what it says, seen from the other end of the connection.
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

mod support;

use comfyui_sim::faults::Fault;
use comfyui_sim::{Condition, Profile, SimConfig, Simulator};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const QUEUE: &str = "GET /queue HTTP/1.1\r\nHost: x\r\n\r\n";

/// Whether a connection ends without a proper close, before it said anything.
async fn is_reset(sim: &Simulator, request: &str) -> bool {
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let error = soon("an end", stream.read_u8()).await.unwrap_err();
    error.kind() == std::io::ErrorKind::ConnectionReset
}

fn post_request(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

async fn refuses(sim: &Simulator) -> bool {
    matches!(TcpStream::connect(sim.addr()).await, Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[tokio::test]
async fn a_lost_answer_comes_after_the_deed() {
    let sim = start().await;
    sim.faults().add(Fault::lose_answer().on("POST /prompt").times(1));
    let mut prompt = text_prompt("lost", "me");
    prompt["prompt_id"] = json!("11111111-2222-3333-4444-555555555555");
    assert!(is_reset(&sim, &post_request("/prompt", &prompt)).await);
    finished(&sim, "11111111-2222-3333-4444-555555555555").await;
    assert_eq!(sim.stats().executions_total, 1);
    submit(&sim, &prompt).await;
}

#[tokio::test]
async fn a_reset_comes_instead_of_the_deed() {
    let sim = start().await;
    sim.faults().add(Fault::reset().on("POST /prompt").times(1));
    assert!(is_reset(&sim, &post_request("/prompt", &text_prompt("never", "me"))).await);
    submit(&sim, &text_prompt("second", "me")).await;
    assert_eq!(
        get_json(&sim, "/prompt").await["exec_info"]["queue_remaining"].as_u64().unwrap()
            + sim.stats().executions_total,
        1
    );
}

#[tokio::test]
async fn an_error_is_told_before_or_after_the_deed() {
    let sim = start().await;
    sim.faults().add(Fault::error(500).on("POST /prompt").times(1));
    sim.faults().add(Fault::error_after(502).on("POST /prompt").times(1));
    let mut prompt = text_prompt("x", "me");
    for (status, id) in [(500, "first"), (502, "second"), (200, "third")] {
        prompt["prompt_id"] = json!(id);
        let answer = post(&sim, "/prompt", &prompt).await.unwrap();
        assert_eq!(answer.status(), status, "{id}");
    }
    finished(&sim, "second").await;
    finished(&sim, "third").await;
    assert_eq!(get_json(&sim, "/history/first").await, json!({}));
}

#[tokio::test]
async fn a_slow_answer_comes_late_and_a_hanging_one_never() {
    let sim = start().await;
    let slow = sim.faults().add(Fault::slow(Duration::from_millis(150)).on("GET /queue"));
    let began = Instant::now();
    get_json(&sim, "/queue").await;
    assert!(began.elapsed() >= Duration::from_millis(150));
    sim.faults().remove(slow);
    sim.faults().add(Fault::hang().on("GET /queue").times(1));
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    stream.write_all(QUEUE.as_bytes()).await.unwrap();
    assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    get_json(&sim, "/queue").await;
}

#[tokio::test]
async fn a_half_open_connection_swallows_everything() {
    let sim = start().await;
    sim.faults().add(Fault::half_open().on("GET /queue").times(1));
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    stream.write_all(QUEUE.as_bytes()).await.unwrap();
    assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    // Far more than the buffers on the way hold.
    let void = vec![b'x'; 1024 * 1024];
    for _ in 0..32 {
        soon("room for bytes that nobody wants", stream.write_all(&void)).await.unwrap();
    }
    assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    get_json(&sim, "/queue").await;
}

#[tokio::test]
async fn garbage_is_no_json_and_a_cut_answer_no_answer() {
    let sim = start().await;
    sim.faults().add(Fault::garbage().on("GET /queue").times(1));
    let answer = get(&sim, "/queue").await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json; charset=utf-8");
    assert!(serde_json::from_slice::<Value>(&answer.bytes().await.unwrap()).is_err());

    std::fs::write(sim.base_dir().join("output/a.bin"), vec![1; 1_000_000]).unwrap();
    sim.faults().add(Fault::cut_answer().on("GET /view").times(1));
    let answer = get(&sim, "/view?filename=a.bin").await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.content_length()), (200, Some(1_000_000)));
    assert!(soon("the end of a cut body", answer.bytes()).await.is_err());
    assert_eq!(get(&sim, "/view?filename=a.bin").await.unwrap().bytes().await.unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn chance_repeats_itself() {
    let run = async || {
        let sim = start().await;
        sim.faults().add(Fault::error(500).on("GET /queue").probability(0.5).seed(7));
        let mut statuses = Vec::new();
        for _ in 0..24 {
            statuses.push(get(&sim, "/queue").await.unwrap().status().as_u16());
        }
        statuses
    };
    let first = run().await;
    assert_eq!(first, run().await);
    assert!(first.contains(&500) && first.contains(&200), "{first:?}");
}

#[tokio::test]
async fn a_mute_socket_answers_pings_and_says_nothing_else() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    sim.faults().add(Fault::mute_websocket());
    let id = submit(&sim, &text_prompt("unheard", "me")).await;
    finished(&sim, &id).await;
    // What was on its way when the fault came may still arrive.
    while !socket.is_quiet().await {}
    socket.send_message(tokio_tungstenite::tungstenite::Message::Ping("x".into())).await;
    assert!(matches!(socket.next().await, Some(Ok(tokio_tungstenite::tungstenite::Message::Pong(_)))));
    let mut later = Socket::open(&sim, "later").await;
    assert!(later.is_quiet().await, "a socket that is opened later is mute too");
    sim.faults().clear();
    let mut cured = Socket::greeted(&sim, "cured").await;
    submit(&sim, &text_prompt("heard", "cured")).await;
    cured.event_of("execution_success").await;
}

#[tokio::test]
async fn a_half_open_socket_does_not_even_answer_pings() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    let fault = sim.faults().add(Fault::half_open_websocket());
    eventually("a hit", || async { (sim.faults().hits(fault) == 1).then_some(()) }).await;
    // The hit is counted a moment before it is felt.
    while !socket.is_quiet().await {}
    socket.send_message(tokio_tungstenite::tungstenite::Message::Ping("x".into())).await;
    assert!(socket.is_quiet().await);
    get_json(&sim, "/queue").await;
}

#[tokio::test]
async fn a_socket_is_dropped_now_or_after_some_frames() {
    let sim = start().await;
    let mut open = Socket::greeted(&sim, "open").await;
    sim.faults().add(Fault::drop_websocket().times(1));
    assert!(open.is_cut().await);
    sim.faults().add(Fault::drop_websocket().after_frames(3).times(1));
    let mut counted = Socket::open(&sim, "counted").await;
    submit(&sim, &text_prompt("x", "counted")).await;
    for _ in 0..3 {
        counted.event().await;
    }
    assert!(counted.is_cut().await);
    Socket::greeted(&sim, "fine").await;
}

#[tokio::test]
async fn refused_connections_keep_the_queue() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    let id = submit(&sim, &text_prompt("kept", "me")).await;
    finished(&sim, &id).await;
    let refusal = sim.faults().add(Fault::refuse_connections());
    sim.wait_for(Condition::Refusing).await;
    assert!(refuses(&sim).await);
    assert!(socket.is_cut().await);
    sim.faults().remove(refusal);
    sim.wait_for(Condition::Up).await;
    finished(&sim, &id).await;
    sim.faults().add(Fault::refuse_connections().lasting(Duration::from_secs(1)));
    sim.wait_for(Condition::Refusing).await;
    sim.wait_for(Condition::Up).await;
    get_json(&sim, "/queue").await;
}

#[tokio::test]
async fn a_restart_forgets_all_but_the_counts() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    let id = submit(&sim, &text_prompt("forgotten", "me")).await;
    finished(&sim, &id).await;
    submit(&sim, &slow_prompt(60.0, "me")).await;
    sim.restart_after(Duration::from_millis(50)).await;
    assert!(socket.is_cut().await);
    assert_eq!(get_json(&sim, "/history").await, json!({}));
    assert_eq!(get_json(&sim, "/queue").await, json!({"queue_running": [], "queue_pending": []}));
    let answer = post(&sim, "/prompt", text_prompt("new", "me")).await.unwrap().text().await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["number"], 0);
    assert_eq!(sim.stats().by_prompt[&id], 1);
}

#[tokio::test]
async fn a_restart_can_wait_for_the_request_that_it_spoils() {
    let sim = start().await;
    sim.faults().add(Fault::restart().on("POST /prompt").times(1));
    assert!(is_reset(&sim, &post_request("/prompt", &slow_prompt(60.0, "me"))).await);
    sim.wait_for(Condition::Up).await;
    let queue = eventually("an answer", || async { get(&sim, "/queue").await.ok() }).await;
    let queue: Value = serde_json::from_slice(&queue.bytes().await.unwrap()).unwrap();
    assert_eq!(queue, json!({"queue_running": [], "queue_pending": []}));
}

#[tokio::test]
async fn a_crash_resets_everything_until_it_is_revived() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    let mut idle = TcpStream::connect(sim.addr()).await.unwrap();
    idle.write_all(QUEUE.as_bytes()).await.unwrap();
    read_answer(&mut idle).await;
    sim.crash().await;
    assert_eq!(sim.condition(), Condition::Down);
    assert!(socket.is_cut().await);
    let error = soon("an end", idle.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(refuses(&sim).await);
    sim.revive().await;
    assert_eq!(get_json(&sim, "/history").await, json!({}));
    // By the control route, whose own answer still arrives.
    let told = post(&sim, "/sim/faults", json!({"kind": "crash", "down_ms": 1_000})).await.unwrap();
    assert_eq!(told.status(), 200);
    sim.wait_for(Condition::Restarting).await;
    sim.wait_for(Condition::Up).await;
    get_json(&sim, "/queue").await;
}

#[tokio::test]
async fn a_zombie_takes_prompts_and_runs_none() {
    let sim = start().await;
    sim.faults().add(Fault::zombie_worker());
    submit(&sim, &text_prompt("stuck", "me")).await;
    submit(&sim, &text_prompt("waiting", "me")).await;
    eventually("a prompt that runs for ever", || async {
        let queue = get_json(&sim, "/queue").await;
        let lengths = (queue["queue_running"].as_array()?.len(), queue["queue_pending"].as_array()?.len());
        (lengths == (1, 1)).then_some(())
    })
    .await;
    assert_eq!(get(&sim, "/system_stats").await.unwrap().status(), 200);
    assert_eq!(get_json(&sim, "/history").await, json!({}));
    sim.restart().await;
    let id = submit(&sim, &text_prompt("cured", "me")).await;
    finished(&sim, &id).await;
}

fn picture(prefix: &str) -> Value {
    json!({
        "prompt": {
            "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 5}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
        },
        "client_id": "me",
    })
}

fn last_message(entry: &Value) -> (&str, &Value) {
    let last = entry["status"]["messages"].as_array().unwrap().last().unwrap();
    (last[0].as_str().unwrap(), &last[1])
}

#[tokio::test]
async fn memory_and_disk_run_out_and_files_vanish() {
    let sim = start().await;
    sim.faults().add(Fault::out_of_memory().times(1));
    let entry = finished(&sim, &submit(&sim, &picture("a")).await).await;
    assert_eq!(last_message(&entry).0, "execution_error");
    assert_eq!(last_message(&entry).1["exception_type"], "torch.OutOfMemoryError");

    sim.faults().add(Fault::disk_full().times(1));
    let entry = finished(&sim, &submit(&sim, &picture("b")).await).await;
    assert_eq!(last_message(&entry).1["exception_type"], "OSError");
    sim.faults().add(Fault::disk_full().times(1));
    let file = reqwest::multipart::Part::bytes(vec![1]).file_name("a.png");
    let form = reqwest::multipart::Form::new().part("image", file);
    let upload = client().post(format!("{}/upload/image", sim.url())).multipart(form).send().await.unwrap();
    assert_eq!(upload.status(), 500);

    sim.faults().add(Fault::files_gone().times(1));
    let entry = finished(&sim, &submit(&sim, &picture("c")).await).await;
    assert_eq!(last_message(&entry).0, "execution_success");
    let name = entry["outputs"]["2"]["images"][0]["filename"].as_str().unwrap();
    assert_eq!(get(&sim, &format!("/view?filename={name}")).await.unwrap().status(), 404);
    let entry = finished(&sim, &submit(&sim, &picture("d")).await).await;
    assert_eq!(last_message(&entry).0, "execution_success", "all faults are spent");
}

#[tokio::test]
async fn a_stuck_node_goes_on_when_the_fault_is_removed() {
    let sim = start().await;
    let stuck = sim.faults().add(Fault::stuck_node());
    let id = submit(&sim, &slow_prompt(0.0, "me")).await;
    eventually("a hit", || async { (sim.faults().hits(stuck) == 1).then_some(()) }).await;
    assert_eq!(get_json(&sim, &format!("/history/{id}")).await, json!({}));
    sim.faults().remove(stuck);
    finished(&sim, &id).await;
}

#[tokio::test]
async fn a_crash_in_a_node_is_the_end_of_the_process() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    sim.faults().add(Fault::crash_in_node().times(1));
    submit(&sim, &slow_prompt(0.0, "me")).await;
    assert!(socket.is_cut().await);
    sim.wait_for(Condition::Down).await;
    assert!(refuses(&sim).await);
}

#[tokio::test]
async fn a_client_id_that_is_no_text_hangs_the_process_and_then_ends_it() {
    let sim = start().await;
    let mut socket = Socket::greeted(&sim, "me").await;
    let mut poison = text_prompt("poison", "me");
    poison["client_id"] = json!({"a": 1});
    submit(&sim, &poison).await;
    sim.wait_for(Condition::Dying).await;
    // The port still takes connections, but nobody answers.
    assert!(is_reset(&sim, QUEUE).await);
    assert!(socket.is_cut().await);
    sim.wait_for(Condition::Down).await;
    assert!(refuses(&sim).await);
}

#[tokio::test]
async fn another_version_comes_with_a_restart() {
    let sim = start().await;
    sim.faults().add(Fault::version(Profile::V0_3_30));
    eventually("the old version", || async {
        let stats = get(&sim, "/system_stats").await.ok()?.bytes().await.ok()?;
        let stats: Value = serde_json::from_slice(&stats).ok()?;
        (stats["system"]["comfyui_version"] == "0.3.30").then_some(())
    })
    .await;
    sim.restart_as(Profile::V0_7_0).await;
    assert_eq!(get(&sim, "/api/jobs").await.unwrap().status(), 200);
}

#[tokio::test]
async fn shutdown_leaves_nothing_and_drop_is_safe() {
    let sim = start_with(SimConfig::default()).await;
    let mut socket = Socket::greeted(&sim, "me").await;
    submit(&sim, &slow_prompt(60.0, "me")).await;
    let (addr, dir) = (sim.addr(), sim.base_dir().to_owned());
    soon("the end", sim.shutdown()).await;
    assert!(!dir.exists());
    assert!(TcpStream::connect(addr).await.is_err());
    while let Some(Ok(_)) = socket.next().await {}

    let sim = start().await;
    let addr = sim.addr();
    drop(sim);
    eventually("a free port", || async { TcpStream::connect(addr).await.is_err().then_some(()) }).await;
}
