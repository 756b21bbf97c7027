//! What is open ends with the key that opened it.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use remuda_core::{ApiKey, Scope};
use remuda_server::keys_socket::{KeyRequest, perform};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{BOUND, GRAPH, Gateway, Ground, JsonText as _, json};

const BOTH: [Scope; 2] = [Scope::Submit, Scope::Read];

/// As another server of the installation would do it: this one is not told.
async fn revoke(gateway: &Gateway, key: &str) {
    let hash = ApiKey::presented(key).hash();
    let keys = gateway.store().keys().await.unwrap();
    let id = keys.into_iter().find(|record| record.hash == hash).unwrap().id;
    perform(&**gateway.store(), KeyRequest::Revoke { id }).await.unwrap();
}

/// Only a revocation ends what these tests hold open, within their bound.
fn patient(options: &mut remuda_server::ServerOptions) {
    options.limits.heartbeat = 10 * BOUND;
    options.limits.body_time = 10 * BOUND;
    options.sync.patience = 10 * BOUND;
}

/// A revocation is noticed within a second. The tests allow more, for machines that are busy: but less than anything that
/// ends by itself.
const SOON: Duration = Duration::from_secs(20);

async fn all_end(mut held: JoinSet<&'static str>) {
    let ended = tokio::time::timeout(SOON, async {
        while let Some(ended) = held.join_next().await {
            ended.unwrap();
        }
    });
    assert!(ended.await.is_ok(), "{} are still open", held.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_is_open_ends_with_its_key() {
    let ground = Ground::new().await;
    let key = ground.key("mine", &[Scope::Submit, Scope::Read, Scope::Worker]).await;
    let other = ground.key("mine", &BOTH).await;
    let gateway = Gateway::on(ground, patient).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let task = gateway.post("/api/v1/tasks").bearer_auth(&key).json_text(&body).send().await.unwrap();
    let task = json(task, 201).await["id"].as_str().unwrap().to_owned();
    let mut held = JoinSet::new();

    let events = format!("/api/v1/tasks/{task}/events");
    let mut stream = gateway.get(&events).bearer_auth(&key).send().await.unwrap().bytes_stream();
    stream.next().await.unwrap().unwrap();
    let mut others = gateway.get(&events).bearer_auth(&other).send().await.unwrap().bytes_stream();
    others.next().await.unwrap().unwrap();
    held.spawn(async move {
        while let Some(Ok(_)) = stream.next().await {}
        "a stream of events"
    });
    let mut feed = gateway.get("/api/v1/events").bearer_auth(&key).send().await.unwrap().bytes_stream();
    feed.next().await.unwrap().unwrap();
    held.spawn(async move {
        while let Some(Ok(_)) = feed.next().await {}
        "a stream of all events"
    });
    let waits = gateway.post("/api/v1/tasks").header("prefer", "wait=600").bearer_auth(&key).json_text(&body);
    let sync = gateway.post("/prompt_sync?timeout=600").bearer_auth(&key);
    let sync = sync.json_text(&format!("{{\"prompt\": {GRAPH}}}"));
    let endless = futures_util::stream::once(async { Ok::<_, std::io::Error>(vec![1_u8; 10]) })
        .chain(futures_util::stream::pending());
    let upload = gateway.post("/api/v1/assets?filename=x.bin").bearer_auth(&key);
    let upload = upload.body(reqwest::Body::wrap_stream(endless));
    for (what, request) in [("a wait", waits), ("a synchronous request", sync), ("an upload", upload)] {
        held.spawn(async move {
            // The upload may find its connection closed before it reads the refusal.
            if let Ok(answer) = request.timeout(10 * BOUND).send().await {
                assert_eq!(answer.status(), 401, "{what}");
            }
            what
        });
    }

    let address = gateway.url.strip_prefix("http://").unwrap().to_owned();
    let (mut socket, _) =
        tokio_tungstenite::connect_async(format!("ws://{address}/ws?clientId=c&token={key}")).await.unwrap();
    socket.next().await.unwrap().unwrap();
    held.spawn(async move {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(Some(frame)) = message {
                assert_eq!(u16::from(frame.code), 1008);
            }
        }
        "a websocket"
    });

    let size = 48 << 20;
    let file = gateway.post("/api/v1/assets?filename=large.bin").bearer_auth(&key).body(vec![7_u8; size]);
    let sha256 = json(file.send().await.unwrap(), 201).await["sha256"].as_str().unwrap().to_owned();
    let mut unread = TcpStream::connect(&address).await.unwrap();
    let head = format!("GET /api/v1/assets/{sha256} HTTP/1.1\r\nhost: {address}\r\nx-api-key: {key}\r\n\r\n");
    unread.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    unread.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    // All of them have begun when the waiting ones are counted as tasks.
    remuda_testbed::wait::until("both tasks to be there", BOUND, async || {
        let counts = gateway.store().counts(None).await.unwrap();
        (counts.pending == 3).then_some(())
    })
    .await
    .unwrap();
    revoke(&gateway, &key).await;
    let began = Instant::now();
    all_end(held).await;
    // The connection is cut although nobody reads: what was not sent by now is never sent.
    tokio::time::sleep(Duration::from_millis(1500).saturating_sub(began.elapsed())).await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(BOUND, unread.read_to_end(&mut rest)).await.expect("the connection ends");
    assert!(read.is_err() || rest.len() < size, "the whole file was sent");
    // Another key of the same tenant goes on.
    while let Ok(piece) = tokio::time::timeout(Duration::from_millis(50), others.next()).await {
        piece.expect("it goes on").expect("it goes on");
    }
    let answer = gateway.get("/api/v1/tasks").bearer_auth(&other).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer = gateway.get("/api/v1/tasks").bearer_auth(&key).send().await.unwrap();
    assert_eq!(answer.status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_opened_before_there_were_keys_ends_with_the_first_one() {
    let gateway = Gateway::start_with(patient).await;
    let task = gateway.submit().await;
    let events = gateway.get(&format!("/api/v1/tasks/{task}/events")).send().await.unwrap();
    let mut stream = events.bytes_stream();
    stream.next().await.unwrap().unwrap();
    let mut held = JoinSet::new();
    held.spawn(async move {
        while let Some(Ok(_)) = stream.next().await {}
        "a stream of events"
    });
    gateway.ground.key("default", &BOTH).await;
    all_end(held).await;
}
