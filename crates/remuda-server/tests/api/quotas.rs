//! What one tenant may have at once, at every door.

use remuda_core::quota::Quota;
use remuda_testbed::wait;
use reqwest::multipart::{Form, Part};
use tokio::sync::mpsc;

use crate::support::{BOUND, GRAPH, Gateway, Ground, JsonText as _, json};

async fn gateway(quota: Quota) -> Gateway {
    Gateway::on(Ground::with(|options| options.quota = quota).await, |_| {}).await
}

#[tokio::test]
async fn who_has_enough_waiting_tasks_is_refused_at_every_door_by_the_name_of_the_limit() {
    let gateway = gateway(Quota { waiting: 2, bytes: 0 }).await;
    let ended = gateway.submit().await;
    json(gateway.delete(&format!("/api/v1/tasks/{ended}")).send().await.unwrap(), 200).await;
    let retry = format!("/api/v1/tasks/{ended}/retry");
    let again = async |status| {
        let answer = gateway.post(&retry).header("Idempotency-Key", "again").send().await.unwrap();
        json(answer, status).await
    };
    let task = again(201).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let keyed = async |status| {
        let answer = gateway.post("/api/v1/tasks").header("Idempotency-Key", "mine").json_text(&body);
        json(answer.send().await.unwrap(), status).await
    };
    let kept = keyed(201).await;

    // What is repeated was taken in before.
    assert_eq!((&again(200).await["id"], &keyed(200).await["id"]), (&task["id"], &kept["id"]));
    for path in ["/api/v1/tasks", &retry] {
        let answer = gateway.post(path).json_text(&body).send().await.unwrap();
        assert!(answer.headers().contains_key("retry-after"), "{path}");
        let told = json(answer, 429).await;
        assert_eq!(
            (&told["code"], &told["limit"]),
            (&"over_limit".into(), &"tasks.max_waiting".into()),
            "{told}"
        );
    }
    let prompt = format!("{{\"prompt\": {GRAPH}}}");
    let told = json(gateway.post("/prompt").json_text(&prompt).send().await.unwrap(), 429).await;
    assert_eq!(
        (&told["error"]["type"], &told["node_errors"]),
        (&"over_limit".into(), &serde_json::json!({}))
    );
    assert_eq!(told["error"]["extra_info"]["limit"], "tasks.max_waiting", "{told}");
    let told = json(gateway.post("/prompt_sync").json_text(&prompt).send().await.unwrap(), 429).await;
    assert_eq!(
        (&told["code"], &told["limit"]),
        (&"over_limit".into(), &"tasks.max_waiting".into()),
        "{told}"
    );
    assert_eq!(told["error"], "Limit is reached");

    gateway.worker().await.claim().await;
    json(gateway.post("/prompt").json_text(&prompt).send().await.unwrap(), 200).await;
    json(gateway.post("/prompt").json_text(&prompt).send().await.unwrap(), 429).await;
}

#[tokio::test]
async fn who_has_stored_enough_brings_nothing_more() {
    let room = 1000 - GRAPH.len();
    let gateway = gateway(Quota { waiting: 0, bytes: 1000 }).await;
    gateway.submit().await;
    let upload = async |bytes: usize, streamed: bool, status| {
        let content = vec![b'x'; bytes];
        let body = match streamed {
            true => {
                let chunks: Vec<std::io::Result<Vec<u8>>> =
                    content.chunks(7).map(|chunk| Ok(chunk.to_vec())).collect();
                reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))
            }
            false => content.into(),
        };
        json(gateway.post("/api/v1/assets?filename=x.png").body(body).send().await.unwrap(), status).await
    };
    let form = |bytes: usize| {
        let part = Part::bytes(vec![b'y'; bytes]).file_name("y.png");
        gateway.post("/upload/image").multipart(Form::new().part("image", part)).send()
    };
    // With its length said, also a form's; and found out on the way.
    for told in [
        upload(100_000, false, 429).await,
        upload(room + 1, true, 429).await,
        json(form(100_000).await.unwrap(), 429).await,
        json(form(room + 1).await.unwrap(), 429).await,
    ] {
        assert_eq!(
            (&told["code"], &told["limit"]),
            (&"over_limit".into(), &"tasks.max_stored".into()),
            "{told}"
        );
    }
    let files = gateway.ground.dir.path().join("files");
    let kept = |dir: &std::path::Path| std::fs::read_dir(dir.join("assets")).map_or(0, Iterator::count);
    assert_eq!(kept(&files), 0, "nothing of what was refused is kept");
    json(form(room - 10).await.unwrap(), 200).await;
    upload(10, true, 201).await;
    assert!(kept(&files) > 0);
    let body = format!("{{\"payload\": {GRAPH}}}");
    let told = json(gateway.post("/api/v1/tasks").json_text(&body).send().await.unwrap(), 429).await;
    assert_eq!(told["limit"], "tasks.max_stored");
}

/// How many uploads are in the file store, under whatever name.
fn kept(gateway: &Gateway) -> usize {
    let below = |dir: std::path::PathBuf| {
        std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path())
    };
    below(gateway.ground.dir.path().join("files/assets")).flat_map(below).count()
}

/// A body that goes on when it is told to, and ends when nobody can tell it any more.
fn told() -> (mpsc::Sender<Vec<u8>>, reqwest::Body) {
    let (tell, told) = mpsc::channel::<Vec<u8>>(1);
    let pieces = futures_util::stream::unfold(told, async |mut told| {
        told.recv().await.map(|piece| (Ok::<_, std::io::Error>(piece), told))
    });
    (tell, reqwest::Body::wrap_stream(pieces))
}

#[tokio::test]
async fn uploads_that_come_side_by_side_share_the_room_that_is_left() {
    const MIB: usize = 1 << 20;
    let gateway = gateway(Quota { waiting: 0, bytes: 10 * MIB as u64 }).await;
    let upload = |body: reqwest::Body| gateway.post("/api/v1/assets").body(body).send();
    let (tell, body) = told();
    let first = tokio::spawn(upload(body));
    tell.send(vec![1; 6 * MIB]).await.unwrap();
    // What is longer than one part is in the file store before it has ended, where nobody sees it.
    let temporary = gateway.ground.dir.path().join("files/tmp");
    let begun = async || {
        let mut entries = std::fs::read_dir(&temporary).into_iter().flatten().flatten();
        let length = entries.next().and_then(|entry| entry.metadata().ok()).map_or(0, |file| file.len());
        (length >= 4 * MIB as u64).then_some(())
    };
    wait::until("the first one to be under way", BOUND, begun).await.unwrap();
    let told = json(upload(vec![2; 5 * MIB].into()).await.unwrap(), 429).await;
    assert_eq!(told["limit"], "tasks.max_stored");
    json(upload(vec![3; 3 * MIB].into()).await.unwrap(), 201).await;
    drop(tell);
    json(first.await.unwrap().unwrap(), 201).await;
    json(upload(vec![2; MIB + 1].into()).await.unwrap(), 429).await;
    json(upload(vec![2; MIB].into()).await.unwrap(), 201).await;
}

#[tokio::test]
async fn of_what_is_refused_at_last_nothing_is_left() {
    let gateway = gateway(Quota { waiting: 0, bytes: 1000 }).await;
    let file = || Part::bytes(vec![7; 300]).file_name("a.png");
    // The form has a file, and then it turns out to be none that is taken.
    let two = Form::new().part("image", file()).part("other", file());
    json(gateway.post("/api/v1/assets").multipart(two).send().await.unwrap(), 400).await;
    let upload = gateway.post("/api/v1/assets?filename=..").body(vec![7; 300]);
    json(upload.send().await.unwrap(), 422).await;
    for name in ["type", "subfolder"] {
        let form = Form::new().part("image", file()).text(name, "../elsewhere");
        assert_eq!(gateway.post("/upload/image").multipart(form).send().await.unwrap().status(), 400);
    }
    assert_eq!(kept(&gateway), 0);
    // There was room when it began, and there is none when it ends.
    let (tell, body) = told();
    let late = tokio::spawn(gateway.post("/api/v1/assets").body(body).send());
    tell.send(vec![1; 600]).await.unwrap();
    tell.send(vec![2; 300]).await.unwrap();
    tell.reserve().await.map(drop).unwrap();
    while gateway.store().room(&remuda_core::Tenant::default_tenant()).await.unwrap() >= 900 {
        gateway.submit().await;
    }
    drop(tell);
    assert_eq!(json(late.await.unwrap().unwrap(), 429).await["limit"], "tasks.max_stored");
    assert_eq!(kept(&gateway), 0, "what was kept and then refused is gone");
}
