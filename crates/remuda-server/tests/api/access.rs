//! Keys, scopes and tenants: who sees what.

use std::time::Duration;

use futures_util::StreamExt as _;
use remuda_core::{Scope, TaskId};
use remuda_server::keys_socket::{KeyReply, KeyRequest, perform};
use reqwest::Method;

use crate::support::{GRAPH, Gateway, Ground, JsonText as _, json};

const BOTH: [Scope; 2] = [Scope::Submit, Scope::Read];

/// Every method and path of the description, with the parts in braces filled in.
fn routes(task: &str, asset: &str) -> Vec<(Method, String)> {
    let description = remuda_server::openapi();
    let mut routes = Vec::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let filled = if path.contains("/workers/") {
                path.replace("{id}", "gpu-1")
            } else {
                path.replace("{id}", task)
            };
            let filled = filled.replace("{n}", "0").replace("{sha256}", asset);
            assert!(
                !filled.contains('{') || filled.starts_with("/api/v1/worker/"),
                "{filled} has a part that this test does not know"
            );
            routes.push((method.to_uppercase().parse().unwrap(), filled));
        }
    }
    assert!(routes.len() >= 16, "{routes:?}");
    routes
}

#[tokio::test]
async fn no_route_shows_a_tenant_anything_of_another() {
    let ground = Ground::new().await;
    let mine = ground.key("mine", &BOTH).await;
    let yours = ground.key("yours", &[Scope::Submit, Scope::Read, Scope::Worker]).await;
    let soon = Duration::from_millis(500);
    let gateway = Gateway::on(ground, |options| options.limits.heartbeat = soon).await;
    let body =
        format!("{{\"workflow_id\": \"secret-plan\", \"metadata\": \"secret-plan\", \"payload\": {GRAPH}}}");
    let task =
        json(gateway.post("/api/v1/tasks").bearer_auth(&mine).json_text(&body).send().await.unwrap(), 201)
            .await;
    let task = task["id"].as_str().unwrap().to_owned();
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    let file = worker.complete(&claim, b"secret picture").await;
    let asset = json(
        gateway
            .post("/api/v1/assets?filename=secret-plan.png")
            .bearer_auth(&mine)
            .body("secret file")
            .send()
            .await
            .unwrap(),
        201,
    )
    .await;
    let asset = asset["sha256"].as_str().unwrap().to_owned();

    for (method, path) in routes(&task, &asset) {
        // The worker's side works for all tenants; that is what its scope says.
        if path.starts_with("/api/v1/worker/") {
            continue;
        }
        // This one has no end: it is heard until it says that there is nothing.
        if path == "/api/v1/events" {
            let pieces = gateway.get(&format!("{path}?after=first")).bearer_auth(&yours);
            let mut pieces = pieces.send().await.unwrap().bytes_stream();
            let mut text = String::new();
            while !text.contains(": still here") {
                text.push_str(std::str::from_utf8(&pieces.next().await.unwrap().unwrap()).unwrap());
            }
            assert!(!text.contains("data:"), "{text}");
            continue;
        }
        let mut request = gateway.request(method.clone(), &path).bearer_auth(&yours);
        if method == Method::POST {
            request = request.json_text(&format!("{{\"payload\": {GRAPH}}}"));
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        for secret in ["secret", &file.sha256.to_string()] {
            assert!(!text.contains(secret), "{method} {path}: {text}");
        }
        if path.contains(&task) || path.contains(&asset) {
            assert_eq!(status, 404, "{method} {path}: {text}");
        } else {
            assert!(!text.contains(&task), "{method} {path}: {text}");
        }
    }
    let id: TaskId = task.parse().unwrap();
    let kept = gateway.store().task(id).await.unwrap().unwrap();
    assert_eq!(kept.status, remuda_core::Status::Completed, "and nothing was changed");
    let metrics =
        json(gateway.get("/api/v1/queue/metrics").bearer_auth(&yours).send().await.unwrap(), 200).await;
    assert_eq!(metrics["completed_tasks"], 0);
    let foreign = gateway.get("/api/v1/tasks?tenant=mine").bearer_auth(&yours).send().await.unwrap();
    assert_eq!(foreign.status(), 403);
}

#[tokio::test]
async fn once_a_key_exists_every_route_but_live_and_ready_needs_one_with_the_right_scope() {
    let ground = Ground::new().await;
    let worker_only = ground.key("default", &[Scope::Worker]).await;
    let no_worker = ground.key("default", &BOTH).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let task = TaskId::new().to_string();
    let mut paths = routes(&task, &"0".repeat(64));
    for path in ["/docs/", "/openapi.json", "/nowhere"] {
        paths.push((Method::GET, path.to_owned()));
    }
    for (method, path) in paths {
        let open = path == "/live" || path == "/ready";
        for (key, expected) in [(None, 401), (Some("rmd_wrong"), 401)] {
            let mut request = gateway.request(method.clone(), &path);
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            let answer = request.send().await.unwrap();
            let expected = if open { 200 } else { expected };
            assert_eq!(answer.status().as_u16(), expected, "{method} {path} with {key:?}");
            assert!(open || answer.headers().contains_key("www-authenticate"));
        }
        let described = !["/docs/", "/openapi.json", "/nowhere"].contains(&path.as_str());
        if !open && described {
            let key = if path.starts_with("/api/v1/worker/") { &no_worker } else { &worker_only };
            let answer = gateway.request(method.clone(), &path).bearer_auth(key).send().await.unwrap();
            assert_eq!(json(answer, 403).await["code"], "missing_scope", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_reader_cannot_submit_and_only_an_administrator_sees_all() {
    let ground = Ground::new().await;
    let (reader, sender) = (ground.key("a", &[Scope::Read]).await, ground.key("a", &[Scope::Submit]).await);
    let admin = ground.key("ops", &[Scope::Admin]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let post = |key: &str| gateway.post("/api/v1/tasks").bearer_auth(key).json_text(&body).send();
    assert_eq!(post(&reader).await.unwrap().status(), 403);
    let task = json(post(&sender).await.unwrap(), 201).await;
    let path = format!("/api/v1/tasks/{}", task["id"].as_str().unwrap());
    assert_eq!(gateway.get(&path).bearer_auth(&sender).send().await.unwrap().status(), 403);
    for key in [&reader, &admin] {
        assert_eq!(gateway.get(&path).bearer_auth(key).send().await.unwrap().status(), 200);
    }
    assert_eq!(gateway.get("/metrics").bearer_auth(&reader).send().await.unwrap().status(), 403);
    assert_eq!(gateway.get("/metrics").bearer_auth(&admin).send().await.unwrap().status(), 200);
    let all = json(gateway.get("/api/v1/tasks").bearer_auth(&admin).send().await.unwrap(), 200).await;
    assert_eq!(all["tasks"].as_array().unwrap().len(), 1);
    let of_ops =
        json(gateway.get("/api/v1/tasks?tenant=ops").bearer_auth(&admin).send().await.unwrap(), 200).await;
    assert_eq!(of_ops["tasks"].as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn keys_take_effect_and_lose_it_within_a_second_also_when_another_process_changes_them() {
    let gateway = Gateway::start().await;
    assert_eq!(gateway.get("/api/v1/tasks").send().await.unwrap().status(), 200, "no key yet");
    let key = gateway.ground.key("default", &BOTH).await;
    // Who comes after this time meets the new rules; before, it may be either.
    let second = Duration::from_secs(1);
    tokio::time::sleep(second).await;
    assert_eq!(gateway.get("/api/v1/tasks").send().await.unwrap().status(), 401, "the door is closed");
    assert_eq!(gateway.get("/api/v1/tasks").bearer_auth(&key).send().await.unwrap().status(), 200);
    assert_eq!(gateway.get("/api/v1/tasks").header("X-API-Key", &key).send().await.unwrap().status(), 200);

    let KeyReply::Keys { keys } = perform(&**gateway.store(), KeyRequest::List).await.unwrap() else {
        panic!()
    };
    perform(&**gateway.store(), KeyRequest::Revoke { id: keys[0].id }).await.unwrap();
    tokio::time::sleep(second).await;
    let refused = gateway.get("/api/v1/tasks").bearer_auth(&key).send().await.unwrap();
    assert_eq!(refused.status(), 401, "the key is refused");
    // The last key is gone, and the door does not open again.
    assert_eq!(gateway.get("/api/v1/tasks").send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn before_the_first_key_foreign_hosts_and_origins_are_refused() {
    let gateway =
        Gateway::start_with(|options| options.cors_origins = vec!["https://app.example".to_owned()]).await;
    let get =
        |name: &'static str, value: &'static str| gateway.get("/api/v1/tasks").header(name, value).send();
    assert_eq!(json(get("host", "evil.example").await.unwrap(), 403).await["code"], "foreign_host");
    assert_eq!(
        json(get("origin", "https://evil.example").await.unwrap(), 403).await["code"],
        "foreign_origin"
    );
    let listed = get("origin", "https://app.example").await.unwrap();
    assert_eq!(listed.status(), 200);
    assert_eq!(listed.headers()["access-control-allow-origin"], "https://app.example");
    let asked = gateway
        .request(Method::OPTIONS, "/api/v1/tasks")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "content-type,idempotency-key")
        .send()
        .await
        .unwrap();
    assert_eq!(asked.status(), 200);
    assert!(asked.headers()["access-control-allow-headers"].to_str().unwrap().contains("idempotency-key"));
    // A simple cross-site form post, as a hostile page would send it.
    let post = gateway
        .post("/api/v1/tasks")
        .header("origin", "null")
        .header("content-type", "text/plain")
        .body("{}");
    assert_eq!(post.send().await.unwrap().status(), 403);
    assert_eq!(gateway.store().counts(None).await.unwrap().pending, 0);
}

#[tokio::test]
async fn a_star_lets_pages_of_every_origin_in() {
    let gateway = Gateway::start_with(|options| options.cors_origins = vec!["*".to_owned()]).await;
    let answer = gateway.get("/api/v1/tasks").header("origin", "https://any.example").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    // The name by which the server is called is checked all the same.
    let answer = gateway.get("/api/v1/tasks").header("host", "evil.example").send().await.unwrap();
    assert_eq!(json(answer, 403).await["code"], "foreign_host");
}

#[tokio::test]
async fn without_listed_origins_no_page_is_told_that_it_may() {
    let gateway = Gateway::start().await;
    let origin = gateway.url.clone();
    let own = gateway.get("/live").header("origin", &origin).send().await.unwrap();
    assert_eq!(own.status(), 200);
    assert!(!own.headers().contains_key("access-control-allow-origin"));
}
