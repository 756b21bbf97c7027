//! Facts of the recordings that are measurements, not conversations.

use crate::http::{self, Received};
use crate::recording;
use crate::server::Server;
use crate::sockets::{Incoming, Socket};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const PATIENCE: Duration = Duration::from_secs(60);

async fn server_of(name: &str) -> Server {
    let recording = recording::load(name);
    Server::start(&recording.version, &recording.server_args, |_| {}).await
}

async fn ask(server: SocketAddr, method: &str, path: &str, body: Option<Value>) -> Received {
    let headers = [("Content-Type".to_owned(), "application/json".to_owned())];
    let body = body.map(|body| body.to_string().into_bytes());
    http::send(server, method, path, &headers, body.as_deref(), PATIENCE).await.unwrap()
}

async fn get(server: SocketAddr, path: &str) -> Value {
    serde_json::from_slice(&ask(server, "GET", path, None).await.body).unwrap()
}

async fn submit(server: SocketAddr, prompt: Value, client: &str) -> String {
    let answer = ask(server, "POST", "/prompt", Some(json!({"prompt": prompt, "client_id": client}))).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    answer["prompt_id"].as_str().unwrap().to_owned()
}

/// Asks until the answer satisfies the condition.
async fn until(server: SocketAddr, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = get(server, path).await;
        if condition(&answer) {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{path} never became as awaited: {answer}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn text_node(text: &str) -> Value {
    json!({"1": {"class_type": "RigText", "inputs": {"text": text}}})
}

fn progress_nodes(steps: u32, step_ms: u32, preview: &str, size: u32, prefix: &str) -> Value {
    json!({
        "1": {"class_type": "RigProgress", "inputs": {
            "steps": steps, "step_ms": step_ms, "preview": preview, "preview_size": size, "seed": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
    })
}

fn types_of(frames: &[Incoming], prompt: &str) -> Vec<String> {
    let texts = frames.iter().filter_map(|frame| match frame {
        Incoming::Text(text) if text.contains(prompt) => serde_json::from_str::<Value>(text).ok(),
        _ => None,
    });
    texts.map(|frame| frame["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// `load_1000`: counts and shapes with 1,000 pending prompts, and after they have run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_1000_counts_and_shapes() {
    let server = server_of("load_1000").await;
    let address = server.address;
    let blocker = submit(address, progress_nodes(100_000, 20, "none", 16, "load/blocker"), "load").await;
    until(address, "/queue", |queue| queue["queue_running"][0][1] == json!(blocker)).await;
    let padding = "x".repeat(6800);
    let mut ids = Vec::new();
    for number in 0..1000 {
        ids.push(submit(address, text_node(&format!("{number} {padding}")), "load").await);
        if [1, 10, 100].contains(&ids.len()) {
            let queue = get(address, "/queue").await;
            assert_eq!(queue["queue_pending"].as_array().unwrap().len(), ids.len());
        }
    }
    let queue = get(address, "/queue").await;
    let pending = queue["queue_pending"].as_array().unwrap();
    assert_eq!(queue["queue_running"].as_array().unwrap().len(), 1);
    assert_eq!(pending.len(), 1000);
    assert!(pending.iter().all(|item| item.as_array().unwrap().len() == 5), "an item has five parts");
    let in_queue: Vec<&str> = pending.iter().map(|item| item[1].as_str().unwrap()).collect();
    assert_eq!(in_queue, ids, "growing numbers keep their order in the heap");
    assert_eq!(get(address, "/prompt").await["exec_info"]["queue_remaining"], json!(1001));
    assert_eq!(get(address, &format!("/history/{}", ids[0])).await, json!({}));
    assert_eq!(get(address, &format!("/api/jobs/{}", ids[999])).await["status"], json!("pending"));
    let jobs = get(address, "/api/jobs?status=pending&limit=10").await;
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 10);
    assert_eq!(jobs["pagination"], json!({"offset": 0, "limit": 10, "total": 1000, "has_more": true}));

    ask(address, "POST", "/interrupt", Some(json!({"prompt_id": "unknown"}))).await;
    ask(address, "POST", "/queue", Some(json!({"delete": [ids[500]]}))).await;
    assert_eq!(get(address, "/prompt").await["exec_info"]["queue_remaining"], json!(1000));
    ask(address, "POST", "/interrupt", Some(json!({"prompt_id": blocker}))).await;
    until(address, "/prompt", |answer| answer["exec_info"]["queue_remaining"] == json!(0)).await;

    let history = get(address, "/history").await;
    let mut expected = vec![blocker];
    expected.extend(ids.iter().enumerate().filter(|(index, _)| *index != 500).map(|(_, id)| id.clone()));
    assert_eq!(history.as_object().unwrap().keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    let newest = get(address, "/history?max_items=10").await;
    assert_eq!(
        newest.as_object().unwrap().keys().collect::<Vec<_>>(),
        expected[990..].iter().collect::<Vec<_>>()
    );
    let jobs = get(address, "/api/jobs?limit=10").await;
    assert_eq!(jobs["pagination"], json!({"offset": 0, "limit": 10, "total": 1000, "has_more": true}));
}

/// `slow_reader`: a client that does not read stops the delivery to everybody, but neither execution nor HTTP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_stops_everybodys_frames() {
    let server = server_of("slow_reader").await;
    let address = server.address;
    let hanging = connect_without_reading(address, "hanging").await;
    let mut good =
        Socket::open(address, "/ws?clientId=good", None).await.unwrap_or_else(|_| panic!("no socket"));
    let flood = submit(address, progress_nodes(60, 5, "PNG", 256, "slow/flood"), "hanging").await;
    until(address, &format!("/history/{flood}"), |entry| *entry != json!({})).await;
    let own = submit(address, text_node("of the good client"), "good").await;
    until(address, &format!("/history/{own}"), |entry| *entry != json!({})).await;
    assert_eq!(get(address, "/prompt").await["exec_info"]["queue_remaining"], json!(0));
    // Everything has run; the good client must not hear of it while the other one hangs.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(types_of(&good.seen().frames, &own), Vec::<String>::new());
    drop(hanging);
    let delivered = good
        .wait(PATIENCE, |seen| types_of(&seen.frames, &own).iter().any(|kind| kind == "execution_success"))
        .await;
    assert!(delivered, "the frames come once the hanging client is gone");
}

/// A websocket whose client never reads after the handshake, with a small buffer.
async fn connect_without_reading(server: SocketAddr, client: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let request = format!(
        "GET /ws?clientId={client} HTTP/1.1\r\nHost: {server}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// `race_success_vs_history`: with the last `status` and with `executing` null the history entry is there, always;
/// with `execution_success` it may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn race_success_vs_history_entry_is_there_with_the_last_frames() {
    let facts = recording::load("race_success_vs_history").facts;
    for message in ["status_0", "executing_null"] {
        let measured = &facts["measured"][message];
        assert_eq!(
            measured["asked"], measured["entry_already_there"],
            "{message} is certain in the recording"
        );
    }
    let server = server_of("race_success_vs_history").await;
    let address = server.address;
    let mut socket =
        Socket::open(address, "/ws?clientId=race", None).await.unwrap_or_else(|_| panic!("no socket"));
    socket.wait(PATIENCE, |seen| !seen.frames.is_empty()).await;
    for round in 0..60 {
        let final_frame = if round % 2 == 0 { "\"queue_remaining\": 0" } else { "\"node\": null" };
        let before = socket.seen().frames.len();
        let prompt = submit(address, text_node(&format!("round {round}")), "race").await;
        let came = socket
            .wait(PATIENCE, |seen| {
                seen.frames[before..]
                    .iter()
                    .any(|frame| matches!(frame, Incoming::Text(text) if text.contains(final_frame)))
            })
            .await;
        assert!(came, "round {round}: no frame with {final_frame}");
        assert_ne!(
            get(address, &format!("/history/{prompt}")).await,
            json!({}),
            "round {round}: after {final_frame}"
        );
        socket
            .wait(PATIENCE, |seen| {
                types_of(&seen.frames, &prompt).iter().filter(|kind| *kind == "executing").count() == 2
            })
            .await;
    }
}
