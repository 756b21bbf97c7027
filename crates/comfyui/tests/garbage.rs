//! Any bytes on the socket and any JSON from the server: no panic, no hang.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use bytes::Bytes;
use comfyui::ws::{decode_binary, decode_text};
use comfyui::{Client, HistoryEntry, Lost, Outcome, PromptId, Session, SessionOptions};
use futures_util::SinkExt;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Any JSON value, biased towards the words that decoders look for.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("type".to_owned()),
        Just("data".to_owned()),
        Just("prompt_id".to_owned()),
        Just("node".to_owned()),
        Just("nodes".to_owned()),
        Just("status".to_owned()),
        Just("messages".to_owned()),
        Just("outputs".to_owned()),
        Just("prompt".to_owned()),
        Just("execution_error".to_owned()),
        Just("executing".to_owned()),
        Just("progress_state".to_owned()),
        ".{0,8}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((word.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

const KINDS: [&str; 12] = [
    "status",
    "feature_flags",
    "execution_start",
    "execution_cached",
    "executing",
    "progress",
    "progress_state",
    "executed",
    "execution_success",
    "execution_error",
    "execution_interrupted",
    "crystools.monitor",
];

proptest! {
    #[test]
    fn any_text_frame_is_read_or_refused(text in ".*") {
        let _ = decode_text(&text);
    }

    #[test]
    fn any_data_under_any_type_is_a_message(kind in proptest::sample::select(&KINDS[..]), data in any_json()) {
        let frame = json!({"type": kind, "data": data}).to_string();
        prop_assert!(decode_text(&frame).is_ok(), "{frame}");
    }

    #[test]
    fn any_binary_frame_is_read_or_refused(event in 0u32..6, size in any::<u32>(), rest in any::<Vec<u8>>()) {
        let mut frame = event.to_be_bytes().to_vec();
        frame.extend(size.to_be_bytes());
        frame.extend(&rest);
        let _ = decode_binary(Bytes::from(frame));
        let _ = decode_binary(Bytes::from(rest));
    }

    #[test]
    fn any_history_entry_is_judged(prompt in any_json(), outputs in any_json(), status in any_json()) {
        for prompt in [prompt, json!([0, "p", {}, {}, []])] {
            let entry = json!({"prompt": prompt, "outputs": outputs, "status": status}).to_string();
            if let Ok(entry) = comfyui::lenient::from_str::<HistoryEntry>(&entry) {
                let _ = (entry.cached_nodes(), entry.duration_ms());
                let _ = Outcome::judge(entry);
            }
        }
    }
}

/// What one socket of the mad server does.
#[derive(Debug, Clone)]
enum Madness {
    Raw(Vec<u8>),
    Text(String),
    Binary(Vec<u8>),
}

fn madness() -> impl Strategy<Value = Vec<Madness>> {
    let one = prop_oneof![
        any::<Vec<u8>>().prop_map(Madness::Raw),
        ".{0,64}".prop_map(Madness::Text),
        (proptest::sample::select(&KINDS[..]), any_json())
            .prop_map(|(kind, data)| Madness::Text(json!({"type": kind, "data": data}).to_string())),
        any::<Vec<u8>>().prop_map(Madness::Binary),
    ];
    proptest::collection::vec(one, 0..20)
}

/// Answers HTTP like an empty old ComfyUI, and goes mad on websockets.
async fn mad_server(
    listener: TcpListener,
    acts: Vec<Vec<Madness>>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let mut acts = acts.into_iter().cycle();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { return };
        let act = acts.next().unwrap_or_default();
        let stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = connection(stream, act) => {}
            }
        });
    }
}

async fn connection(mut stream: TcpStream, act: Vec<Madness>) -> Option<()> {
    let mut head = [0; 2048];
    let len = stream.peek(&mut head).await.ok()?;
    let head = String::from_utf8_lossy(&head[..len]).into_owned();
    if !head.starts_with("GET /ws") {
        let _ = stream.read(&mut [0; 2048]).await.ok()?;
        let (status, body) = match head.split_whitespace().nth(1)? {
            "/system_stats" => ("200 OK", r#"{"system": {"comfyui_version": "0.3.30"}, "devices": []}"#),
            "/queue" => ("200 OK", r#"{"queue_running": [], "queue_pending": []}"#),
            path if path.starts_with("/history") => ("200 OK", "{}"),
            _ => ("404 Not Found", ""),
        };
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        return stream.write_all(answer.as_bytes()).await.ok();
    }
    let mut socket = tokio_tungstenite::accept_async(stream).await.ok()?;
    for madness in act {
        match madness {
            Madness::Text(text) => socket.send(Frame::text(text)).await.ok()?,
            Madness::Binary(bytes) => socket.send(Frame::binary(bytes)).await.ok()?,
            Madness::Raw(bytes) => socket.get_mut().write_all(&bytes).await.ok()?,
        }
    }
    Some(())
}

#[tokio::test]
async fn a_mad_socket_neither_hangs_nor_breaks_a_session() {
    let mut runner = TestRunner::deterministic();
    let mut act = || madness().new_tree(&mut runner).expect("a value").current();
    let acts: Vec<_> = (0..64).map(|_| act()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(mad_server(listener, acts, stop.clone(), tasks.clone()));
    tasks.close();

    let options = SessionOptions {
        greeting: Duration::from_millis(100),
        survey: Duration::from_millis(100),
        survey_blind: Duration::from_millis(50),
        longest_backoff: Duration::from_millis(20),
        ..SessionOptions::default()
    };
    let session = Session::open(Client::new(&url).expect("an address"), options).await.expect("a session");
    for _ in 0..10 {
        let watch = session.watch(&PromptId::random()).await;
        let outcome = tokio::time::timeout(Duration::from_secs(60), watch.outcome()).await.expect("an end");
        assert!(matches!(outcome, Outcome::Lost(Lost::NeverSeen)), "{outcome:?}");
    }
    tokio::time::timeout(Duration::from_secs(60), session.close()).await.expect("closes");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), tasks.wait()).await.expect("the server stops");
}
