//! Permits: what one key stalls is not missing to the others.

use std::time::Duration;

use remuda_core::Scope;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{GRAPH, Gateway, Ground, JsonText as _, Worker, json};
use crate::wire::{ask, begins, say, status_within};

/// Long enough for an answer that comes at once.
const SOON: Duration = Duration::from_secs(2);

async fn keys(gateway: &Gateway) -> (String, String) {
    let scopes = [Scope::Submit, Scope::Read];
    (gateway.ground.key("greedy", &scopes).await, gateway.ground.key("modest", &scopes).await)
}

async fn submit(gateway: &Gateway, key: &str) -> reqwest::Response {
    let body = format!("{{\"payload\": {GRAPH}}}");
    gateway.post("/api/v1/tasks").bearer_auth(key).json_text(&body).send().await.unwrap()
}

/// A body that stops after its first pieces.
async fn stalled(gateway: &Gateway, key: &str, request: &str, kind: &str) -> TcpStream {
    let head = format!("content-type: {kind}\r\ncontent-length: 1000000\r\n\r\n");
    let mut stream = say(gateway, key, request, &head).await;
    stream.write_all(&[b' '; 40 << 10]).await.unwrap();
    stream
}

#[tokio::test]
async fn stalled_bodies_of_one_key_leave_room_for_others() {
    let gateway = Gateway::start_with(|options| options.limits.submissions = 8).await;
    let (greedy, modest) = keys(&gateway).await;
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(stalled(&gateway, &greedy, "POST /api/v1/tasks", "application/json").await);
    }
    // Whoever waits for a permit for long is told why.
    let mut refused = 0;
    for stream in &mut held {
        if status_within(stream, SOON).await.is_some() {
            refused += 1;
        }
        json(submit(&gateway, &modest).await, 201).await;
    }
    assert!(refused < held.len());
}

#[tokio::test]
async fn who_waits_for_what_was_sent_before_holds_nothing_that_others_need_to_send() {
    let gateway = Gateway::start_with(|options| {
        options.limits.submissions = 8;
        options.limits.waiting = 8;
    })
    .await;
    let (greedy, modest) = keys(&gateway).await;
    let padding = "x".repeat(60 << 10);
    let body = format!("{{\"payload\": {GRAPH}, \"metadata\": {{\"padding\": \"{padding}\"}}}}");
    let sent = |wait: &str| {
        let post = gateway.post("/api/v1/tasks").bearer_auth(&greedy).header("idempotency-key", "one");
        post.header("prefer", wait).json_text(&body).send()
    };
    json(sent("wait=0").await.unwrap(), 201).await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..12 {
        waiting.spawn(sent("wait=600"));
    }
    // As many wait as may when the others are turned away.
    while waiting.len() > 6 {
        let ended = tokio::time::timeout(crate::support::BOUND, waiting.join_next()).await;
        let refused = ended.expect("six are turned away").unwrap().unwrap().unwrap();
        assert_eq!(json(refused, 429).await["limit"], "server.waiting");
    }
    for key in [&greedy, &modest] {
        let free = tokio::time::timeout(SOON, submit(&gateway, key)).await;
        json(free.expect("there is room to send"), 201).await;
    }
    waiting.abort_all();
}

#[tokio::test]
async fn stalled_uploads_of_one_key_leave_room_for_others_and_are_named() {
    let gateway = Gateway::start_with(|options| options.limits.uploads = 8).await;
    let (greedy, modest) = keys(&gateway).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(stalled(&gateway, &greedy, "POST /api/v1/assets", "image/png").await);
    }
    let upload = |key: &str| {
        let request = gateway.post("/api/v1/assets").bearer_auth(key).header("content-type", "image/png");
        request.body("picture").send()
    };
    let refused = remuda_testbed::wait::until("the share to be full", crate::support::BOUND, async || {
        let answer = upload(&greedy).await.unwrap();
        if answer.status() == 429 {
            return Ok(answer);
        }
        // This one may have taken the room of one that was to stall.
        held.push(stalled(&gateway, &greedy, "POST /api/v1/assets", "image/png").await);
        Err(answer.status().to_string())
    });
    let refused = refused.await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    let told = json(refused, 429).await;
    assert_eq!((&told["code"], &told["limit"]), (&"over_limit".into(), &"server.uploads".into()), "{told}");
    json(upload(&modest).await.unwrap(), 201).await;
    drop(held);
    let free = remuda_testbed::wait::until("room again", crate::support::BOUND, async || {
        let status = upload(&greedy).await.unwrap().status();
        if status == 201 { Ok(()) } else { Err(status.to_string()) }
    });
    free.await.unwrap();
}

#[tokio::test]
async fn websockets_of_one_key_leave_room_for_others() {
    let gateway = Gateway::start_with(|options| options.limits.waiting = 8).await;
    let (greedy, modest) = keys(&gateway).await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut held = Vec::new();
    let mut told = Vec::new();
    for n in 0..8 {
        let mut stream = say(&gateway, &greedy, &format!("GET /ws?clientId=c{n}"), upgrade).await;
        let answer = begins(&mut stream).await;
        told.push(answer.contains(" 101 "));
        if !answer.contains(" 101 ") {
            assert!(answer.contains(" 429 ") && answer.contains("server.waiting"), "{answer}");
        }
        held.push(stream);
    }
    assert_eq!(told.iter().filter(|open| **open).count(), 6);
    let mut stream = say(&gateway, &modest, "GET /ws?clientId=m", upgrade).await;
    assert!(begins(&mut stream).await.contains(" 101 "));
}

#[tokio::test]
async fn unread_downloads_of_one_key_leave_room_for_others() {
    static FILE: &[u8] = &[7; 16 << 20];
    let ground = Ground::new().await;
    let gateway = Gateway::on(ground, |options| options.limits.downloads = 8).await;
    let (greedy, modest) = keys(&gateway).await;
    let id = json(submit(&gateway, &greedy).await, 201).await["id"].as_str().unwrap().to_owned();
    let worker: Worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.complete(&claim, FILE).await;
    let path = format!("/api/v1/tasks/{id}/outputs/0");
    let mut held = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..8 {
        let mut stream = ask(&gateway, &greedy, &path).await;
        statuses.push(status_within(&mut stream, crate::support::BOUND).await);
        held.push(stream);
    }
    let count = |status| statuses.iter().filter(|seen| **seen == Some(status)).count();
    assert_eq!((count(200), count(429)), (6, 2), "{statuses:?}");
    json(gateway.get("/history").bearer_auth(&modest).send().await.unwrap(), 200).await;
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_by_name_and_others_are_answered() {
    let gateway = Gateway::start_with(|options| options.limits.rate = 2).await;
    let (greedy, modest) = keys(&gateway).await;
    let mut refused = None;
    for _ in 0..500 {
        let answer = gateway.get("/users").bearer_auth(&greedy).send().await.unwrap();
        if answer.status() == 429 {
            refused = Some(answer);
            break;
        }
    }
    let told = json(refused.expect("a limit"), 429).await;
    assert_eq!(told["limit"], "server.rate");
    json(gateway.get("/users").bearer_auth(&modest).send().await.unwrap(), 200).await;
}

#[tokio::test]
async fn a_websocket_that_never_stops_talking_is_closed() {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::Message;

    let gateway = Gateway::start_with(|options| options.limits.messages = 20).await;
    let url = format!("{}/ws?clientId=loud", gateway.url.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    for _ in 0..100 {
        if socket.send(Message::Ping("x".into())).await.is_err() {
            break;
        }
    }
    let closed = async {
        loop {
            match socket.next().await {
                Some(Ok(Message::Close(Some(close)))) => return Some(u16::from(close.code)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    };
    let code = tokio::time::timeout(crate::support::BOUND, closed).await.expect("an end in time");
    assert!(code.is_none_or(|code| code == 1008), "{code:?}");
}

#[tokio::test]
async fn wrong_keys_behind_a_trusted_proxy_slow_only_who_showed_them() {
    let delay = Duration::from_secs(30);
    let gateway = Gateway::start_with(|options| {
        options.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
        options.limits.login_failures = 2;
        options.limits.login_delay = delay;
    })
    .await;
    keys(&gateway).await;
    let wrong = async |from: &str| {
        let request = gateway.get("/users").bearer_auth("rmd_wrong").header("x-forwarded-for", from);
        request.send().await.unwrap().status()
    };
    let began = std::time::Instant::now();
    for from in ["198.51.100.1", "198.51.100.2", "2001:db8:1:1::1", "2001:db8:1:2::1"] {
        for _ in 0..2 {
            assert_eq!(wrong(from).await, 401);
        }
    }
    assert!(began.elapsed() < delay, "nobody had shown many");
    // A third one, from another address of the same network.
    let third = tokio::time::timeout(SOON, wrong("2001:db8:1:1::2")).await;
    assert!(third.is_err(), "{third:?}");
}

#[tokio::test]
async fn a_burst_of_ordinary_submissions_is_taken() {
    let gateway = Gateway::start_with(|options| {
        let pool = remuda_pool::PoolOptions { threads: 2, ..Default::default() };
        options.pool = remuda_pool::Pool::new(pool);
    })
    .await;
    let (key, _) = keys(&gateway).await;
    let mut graph: serde_json::Value = serde_json::from_str(GRAPH).unwrap();
    graph["1"]["_meta"] = serde_json::json!({ "title": "x".repeat(60 << 10) });
    let body = serde_json::json!({ "payload": graph }).to_string();
    let native = serde_json::json!({ "prompt": graph }).to_string();
    let burst = (0..200).map(|number| {
        let (path, body) = if number % 4 == 0 { ("/prompt", &native) } else { ("/api/v1/tasks", &body) };
        gateway.post(path).bearer_auth(&key).json_text(body).send()
    });
    for answer in futures_util::future::join_all(burst).await {
        let answer = answer.unwrap();
        let status = answer.status();
        assert!(status.is_success(), "{status}: {}", answer.text().await.unwrap());
    }
}
