//! What one tenant may have at once, at every door.

use remuda_core::quota::Quota;
use reqwest::multipart::{Form, Part};

use crate::support::{GRAPH, Gateway, Ground, JsonText as _, json};

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
