//! The outside without faults: aiohttp's manners, files, settings, sockets.

mod support;

use comfyui_sim::{Profile, SimConfig};
use serde_json::{Value, json};
use std::io::Write;
use support::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

#[tokio::test]
async fn answers_have_aiohttps_manners() {
    let sim = start().await;
    let ask = async |line: &str, headers: &str| {
        raw(sim.addr(), format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")).await
    };
    let check = |answer: &str, status: &str, headers: &[(&str, Option<&str>)], body: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        assert_eq!(header(answer, "Server"), Some("Python/3.11 aiohttp/3.14.5"), "{answer}");
        for (name, value) in headers {
            assert_eq!(header(answer, name), *value, "{name} in {answer}");
        }
        assert_eq!(answer.split_once("\r\n\r\n").unwrap().1, body, "{answer}");
    };
    let json = [("Content-Type", Some("application/json; charset=utf-8"))];
    check(&ask("GET /prompt", "").await, "200 OK", &json, r#"{"exec_info": {"queue_remaining": 0}}"#);
    check(&ask("GET /api/i18n", "").await, "200 OK", &json, "{}");
    let head = [json[0], ("Content-Length", Some("37"))];
    check(&ask("HEAD /prompt", "").await, "200 OK", &head, "");
    let missing = [
        ("Transfer-Encoding", Some("chunked")),
        ("Content-Type", Some("application/octet-stream")),
        ("Content-Length", None),
    ];
    for path in ["GET /no_such_route", "GET /queue/", "GET /jobs", "GET /upload/image"] {
        check(&ask(path, "").await, "404 Not Found", &missing, "0\r\n\r\n");
    }
    let wrong = [("Allow", Some("GET,HEAD,POST")), ("Content-Type", Some("text/plain; charset=utf-8"))];
    check(&ask("PUT /prompt", "").await, "405 Method Not Allowed", &wrong, "405: Method Not Allowed");
    check(&ask("GET /internal/x", "").await, "404 Not Found", &[], "404: Not Found");
    let empty = [("Content-Length", Some("0")), ("Content-Type", None)];
    check(&ask("OPTIONS /anything", "").await, "200 OK", &empty, "");
    check(&ask("GET /models/nowhere", "").await, "404 Not Found", &empty, "");
    let foreign = raw(
        sim.addr(),
        "GET /prompt HTTP/1.1\r\nHost: localhost:1\r\nOrigin: https://example.com\r\nConnection: close\r\n\r\n",
    );
    check(&foreign.await, "403 Forbidden", &empty, "");
    let page = "500 Internal Server Error\n\nServer got itself in trouble";
    // No `Connection: close` in the request: the server ends the connection by itself.
    let trouble = raw(sim.addr(), "POST /queue HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{").await;
    let closed = [("Connection", Some("close")), ("Content-Type", Some("text/plain; charset=utf-8"))];
    check(&trouble, "500 Internal Server Error", &closed, page);
}

#[tokio::test]
async fn connections_are_kept_pipelined_and_old() {
    let sim = start().await;
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    let two = "GET /prompt HTTP/1.1\r\nHost: x\r\n\r\nGET /features HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(two.as_bytes()).await.unwrap();
    assert_eq!(read_answer(&mut stream).await.1, r#"{"exec_info": {"queue_remaining": 0}}"#);
    assert!(read_answer(&mut stream).await.1.contains("supports_preview_metadata"));
    // A body that nobody reads does not cost the connection.
    let unread = "POST /upload/image HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(unread.as_bytes()).await.unwrap();
    assert!(read_answer(&mut stream).await.0.starts_with("HTTP/1.1 400"));
    stream.write_all(b"GET /prompt HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(read_answer(&mut stream).await.0.starts_with("HTTP/1.1 200"));

    let old = raw(sim.addr(), "GET /prompt HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 OK\r\n"), "{old}");
}

#[tokio::test]
async fn bodies_may_be_chunked_packed_or_asked_for() {
    let sim = start().await;
    let chunked = "POST /settings/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\n\"ab\r\n2\r\nc\"\r\n0\r\n\r\n";
    assert!(raw(sim.addr(), chunked).await.starts_with("HTTP/1.1 200"));
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(br#""packed""#).unwrap();
    let packed = packer.finish().unwrap();
    let mut request = format!(
        "POST /settings/b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        packed.len()
    )
    .into_bytes();
    request.extend(packed);
    assert!(raw(sim.addr(), request).await.starts_with("HTTP/1.1 200"));
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    let asking = "POST /settings/c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    stream.write_all(asking.as_bytes()).await.unwrap();
    assert!(read_answer(&mut stream).await.0.starts_with("HTTP/1.1 100 Continue"));
    stream.write_all(b"1").await.unwrap();
    assert!(read_answer(&mut stream).await.0.starts_with("HTTP/1.1 200"));
    assert_eq!(get_json(&sim, "/settings").await, json!({"a": "abc", "b": "packed", "c": 1}));
}

#[tokio::test]
async fn too_large_a_body_is_refused_and_the_connection_lives_on() {
    let config = SimConfig { max_upload_bytes: 100_000, ..SimConfig::default() };
    let sim = start_with(config).await;
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    let size = 2_000_000;
    let request = format!("POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; size]).await.unwrap();
    let (head, body) = read_answer(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 413"), "{head}");
    assert_eq!(body, "Maximum request body size 100000 exceeded.");
    stream.write_all(b"GET /features HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(read_answer(&mut stream).await.1.contains("100000"));

    let file = reqwest::multipart::Part::bytes(vec![7; 200_000]).file_name("big.bin");
    let form = reqwest::multipart::Form::new().part("image", file);
    let answer = client().post(format!("{}/upload/image", sim.url())).multipart(form).send().await.unwrap();
    assert_eq!(answer.status(), 413);
    assert!(!sim.base_dir().join("input/big.bin").exists());
    let left: Vec<_> =
        std::fs::read_dir(sim.base_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "a half upload is left in {left:?}");
}

#[tokio::test]
async fn an_upload_can_be_seen_in_parts() {
    let sim = start().await;
    let content: Vec<u8> = (0..5_000_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    let file = reqwest::multipart::Part::bytes(content.clone()).file_name("film.mp4");
    let form = reqwest::multipart::Form::new().text("subfolder", "a/b").part("image", file);
    let answer = client().post(format!("{}/upload/image", sim.url())).multipart(form).send().await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(answer, json!({"name": "film.mp4", "subfolder": "a/b", "type": "input"}));

    let url = format!("{}/view?filename=film.mp4&subfolder=a/b&type=input", sim.url());
    let whole = client().get(&url).send().await.unwrap();
    assert_eq!(whole.headers()["content-type"], "video/mp4");
    assert_eq!(whole.headers()["content-disposition"], "filename=\"film.mp4\"");
    let tag = whole.headers()["etag"].clone();
    assert_eq!(whole.bytes().await.unwrap(), content);
    let part = client().get(&url).header("range", "bytes=1000000-1000009").send().await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(part.headers()["content-range"], "bytes 1000000-1000009/5000000");
    assert_eq!(part.bytes().await.unwrap(), content[1_000_000..1_000_010]);
    let outside = client().get(&url).header("range", "bytes=5000000-").send().await.unwrap();
    assert_eq!(
        (outside.status().as_u16(), &outside.headers()["content-range"]),
        (416, &"bytes */5000000".parse().unwrap())
    );
    let unchanged = client().get(&url).header("if-none-match", tag).send().await.unwrap();
    assert_eq!((unchanged.status().as_u16(), unchanged.content_length().unwrap_or(0)), (304, 0));
}

#[tokio::test]
async fn files_and_settings_survive_a_restart_and_temp_does_not() {
    let sim = start().await;
    let stored = post(&sim, "/userdata/workflows%2Fa.json", r#"{"nodes": []}"#).await.unwrap();
    assert_eq!(stored.text().await.unwrap(), r#""workflows/a.json""#);
    assert_eq!(post(&sim, "/settings/Comfy.Locale", "\"en\"").await.unwrap().status(), 200);
    for folder in ["input", "output", "temp"] {
        std::fs::write(sim.base_dir().join(folder).join("x.txt"), "x").unwrap();
    }
    sim.restart().await;
    assert_eq!(get_json(&sim, "/settings/Comfy.Locale").await, "en");
    assert_eq!(get_json(&sim, "/userdata/workflows%2Fa.json").await, json!({"nodes": []}));
    assert_eq!(get_json(&sim, "/userdata?dir=workflows&recurse=true").await, json!(["a.json"]));
    for (folder, status) in [("input", 200), ("output", 200), ("temp", 404)] {
        let path = format!("/view?filename=x.txt&type={folder}");
        assert_eq!(get(&sim, &path).await.unwrap().status(), status, "{folder}");
    }
}

#[tokio::test]
async fn pages_from_elsewhere_get_in_when_told_so_and_answers_are_packed() {
    let config = SimConfig { cors: Some("*".to_owned()), compress: true, ..SimConfig::default() };
    let sim = start_with(config).await;
    let request =
        "GET /prompt HTTP/1.1\r\nHost: localhost\r\nOrigin: https://example.com\r\nConnection: close\r\n\r\n";
    let answer = raw(sim.addr(), request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(header(&answer, "access-control-allow-origin"), Some("*"));
    assert_eq!(header(&answer, "content-encoding"), None);
    let failed = raw(sim.addr(), "POST /queue HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{").await;
    assert_eq!(header(&failed, "access-control-allow-origin"), None);
    let request = "GET /prompt HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip, br\r\nConnection: close\r\n\r\n";
    assert_eq!(header(&raw(sim.addr(), request).await, "content-encoding"), Some("gzip"));
}

#[tokio::test]
async fn a_frontend_folder_is_served() {
    let dir = std::env::temp_dir().join(format!("comfyui-sim-frontend-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("extensions/core")).unwrap();
    std::fs::write(dir.join("index.html"), "<html>").unwrap();
    std::fs::write(dir.join("extensions/core/a.js"), "1").unwrap();
    let config = SimConfig { frontend: Some(dir.clone()), ..SimConfig::default() };
    let sim = start_with(config).await;
    let page = get(&sim, "/").await.unwrap();
    assert_eq!(
        (page.headers()["content-type"].to_str().unwrap(), page.headers()["cache-control"].to_str().unwrap()),
        ("text/html", "no-cache")
    );
    assert_eq!(page.text().await.unwrap(), "<html>");
    assert_eq!(get_json(&sim, "/extensions").await, json!(["/extensions/core/a.js"]));
    let script = get(&sim, "/extensions/core/a.js").await.unwrap();
    assert_eq!(script.headers()["content-type"], "application/javascript");
    assert_eq!(get(&sim, "/extensions").await.unwrap().status(), 200);
    assert_eq!(get(&sim, "/extensions/core").await.unwrap().status(), 403);
    assert_eq!(get(&sim, "/..%2f..%2fetc/passwd").await.unwrap().status(), 404);
    std::fs::remove_dir_all(dir).unwrap();
    let without = start().await;
    assert!(get(&without, "/").await.unwrap().text().await.unwrap().contains("simulated ComfyUI 0.7.0"));
}

#[tokio::test]
async fn sockets_are_greeted_and_negotiate_once() {
    let sim = start().await;
    let mut socket = Socket::open(&sim, "me").await;
    let greeting = socket.event().await;
    assert_eq!(
        greeting,
        json!({"type": "status", "data": {"status": {"exec_info": {"queue_remaining": 0}}, "sid": "me"}})
    );
    socket.send_message(Message::text("not json")).await;
    socket.send_message(Message::text("[1]")).await;
    socket.send_message(Message::binary(&b"\0\x01"[..])).await;
    socket.send(&json!({"type": "feature_flags", "data": {"supports_preview_metadata": true}})).await;
    let answer = socket.event().await;
    assert_eq!(answer["type"], "feature_flags");
    assert_eq!(answer["data"], get_json(&sim, "/features").await);
    socket.send(&json!({"type": "feature_flags", "data": {}})).await;
    socket.send_message(Message::Ping("x".into())).await;
    assert!(
        matches!(socket.next().await, Some(Ok(Message::Pong(data))) if &data[..] == b"x"),
        "pings are answered, late flags are not"
    );
    socket.close().await;

    let mut nameless = Socket::open(&sim, "").await;
    let sid = nameless.event().await["data"]["sid"].as_str().unwrap().to_owned();
    assert!(sid.len() == 32 && sid.bytes().all(|byte| byte.is_ascii_hexdigit()), "{sid}");

    let plain = get(&sim, "/ws").await.unwrap();
    assert_eq!(plain.status(), 400);
    let text = "No WebSocket UPGRADE hdr: None\n Can \"Upgrade\" only to \"WebSocket\".";
    assert_eq!(plain.text().await.unwrap(), text);
}

#[tokio::test]
async fn an_old_version_negotiates_nothing() {
    let config = SimConfig { profile: Profile::V0_3_30, ..SimConfig::default() };
    let sim = start_with(config).await;
    let mut socket = Socket::greeted(&sim, "me").await;
    socket.send(&json!({"type": "feature_flags", "data": {}})).await;
    socket.send_message(Message::Ping("x".into())).await;
    assert!(matches!(socket.next().await, Some(Ok(Message::Pong(_)))));
    assert_eq!(get_json(&sim, "/system_stats").await["system"]["comfyui_version"], "0.3.30");
    assert_eq!(get(&sim, "/features").await.unwrap().status(), 404);
    assert_eq!(get(&sim, "/api/jobs").await.unwrap().status(), 404);
}

#[tokio::test]
async fn the_close_of_an_older_socket_silences_the_newer_one() {
    let sim = start().await;
    let older = Socket::greeted(&sim, "same").await;
    let mut newer = Socket::greeted(&sim, "same").await;
    submit(&sim, &text_prompt("one", "same")).await;
    newer.event_of("execution_success").await;
    while newer.event_of("executing").await["data"]["node"] != Value::Null {}
    older.close().await;
    // The server notices the close a moment later than the client does.
    soon("silence", async {
        loop {
            let id = submit(&sim, &text_prompt("two", "same")).await;
            finished(&sim, &id).await;
            if newer.is_quiet().await {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_frames_of_all() {
    let sim = start().await;
    let hanging = Socket::narrow(&sim, "hanging").await;
    let previews = json!({
        "prompt": {
            "1": {"class_type": "RigProgress",
                  "inputs": {"steps": 60, "step_ms": 0, "preview": "PNG", "preview_size": 256, "seed": 1}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        },
        "client_id": "hanging",
    });
    let id = submit(&sim, &previews).await;
    finished(&sim, &id).await;
    let mut good = Socket::greeted(&sim, "good").await;
    let id = submit(&sim, &text_prompt("after", "good")).await;
    finished(&sim, &id).await;
    assert!(good.is_quiet().await, "the loop waits for the client that does not read");
    drop(hanging);
    good.event_of("execution_success").await;
}

#[tokio::test]
async fn a_client_that_comes_back_hears_what_runs() {
    let sim = start().await;
    let mut first = Socket::greeted(&sim, "me").await;
    submit(&sim, &slow_prompt(30.0, "me")).await;
    first.event_of("executing").await;
    first.close().await;
    let mut second = Socket::greeted(&sim, "me").await;
    assert_eq!(second.event().await, json!({"type": "executing", "data": {"node": "1"}}));
}

#[tokio::test]
async fn control_routes_answer_and_explain() {
    let sim = start().await;
    let id = submit(&sim, &text_prompt("counted", "me")).await;
    finished(&sim, &id).await;
    let stats = get_json(&sim, "/sim/stats").await;
    assert_eq!((&stats["executions_total"], &stats["by_prompt"][&id]), (&json!(1), &json!(1)));
    assert_eq!(stats, serde_json::to_value(sim.stats()).unwrap());

    let script = json!([{"kind": "hang", "on": "GET /queue"}, {"kind": "error", "status": 503, "times": 1, "on": "GET /history"}]);
    let added = post(&sim, "/sim/faults", script).await.unwrap();
    assert_eq!(added.text().await.unwrap(), r#"{"added":[0,1]}"#);
    assert_eq!(get(&sim, "/history").await.unwrap().status(), 503);
    let listed = get_json(&sim, "/sim/faults").await;
    assert_eq!(
        listed["faults"][1],
        json!({"id": 1, "hits": 1, "active": false,
        "fault": {"kind": "error", "status": 503, "times": 1, "on": "GET /history"}})
    );
    let refused =
        post(&sim, "/sim/faults", json!([{"kind": "hang"}, {"kind": "hang", "tims": 1}])).await.unwrap();
    assert_eq!(refused.status(), 400);
    assert!(refused.text().await.unwrap().contains("fault 1: unknown field `tims`"));
    let forever = post(&sim, "/sim/faults", json!({"kind": "crash"})).await.unwrap();
    assert!(forever.text().await.unwrap().contains("crash needs the field `down_ms` here"));
    assert_eq!(sim.faults().list().len(), 2, "a script is taken whole or not at all");

    let cleared = client().delete(format!("{}/sim/faults", sim.url())).send().await.unwrap();
    assert_eq!(cleared.status(), 200);
    assert_eq!(get_json(&sim, "/queue").await["queue_pending"], json!([]));
    assert_eq!(post(&sim, "/sim/reset", "").await.unwrap().status(), 200);
    assert_eq!(get_json(&sim, "/sim/stats").await["executions_total"], 0);
    assert_eq!(get_json(&sim, "/history").await, json!({}));
    let foreign = client()
        .post(format!("{}/sim/reset", sim.url()))
        .header("origin", "https://example.com")
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 403);
}
