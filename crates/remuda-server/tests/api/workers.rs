//! `GET /api/v1/workers`, `/api/v1/workers/metrics` and `/api/v1/workers/{id}`.

use remuda_core::{Health, Scope, WorkerReport};
use serde_json::json as value;

use crate::support::{Gateway, Ground, Worker, json};

#[tokio::test]
async fn workers_are_shown_with_the_fields_and_states_of_the_documentation() {
    let gateway = Gateway::start().await;
    let busy = Worker::join(&gateway.ground, "busy", None).await;
    let dead = Worker::join(&gateway.ground, "dead", None).await;
    Worker::join(&gateway.ground, "free", None).await;
    let id = gateway.submit().await;
    busy.claim().await;
    busy.report(WorkerReport {
        health: Health::Busy,
        comfyui_version: Some("0.7.0".to_owned()),
        vram: Some((1, 2)),
        ..WorkerReport::default()
    })
    .await;
    dead.report(WorkerReport {
        health: Health::Unreachable,
        reason: Some("connection refused".to_owned()),
        ..WorkerReport::default()
    })
    .await;
    let list = json(gateway.get("/api/v1/workers").send().await.unwrap(), 200).await;
    let shown: Vec<_> = list["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| {
            (
                worker["id"].as_str().unwrap(),
                worker["status"].as_str().unwrap(),
                worker["health_status"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(shown, [("busy", "running", true), ("dead", "error", false), ("free", "idle", true)]);

    let worker = json(gateway.get("/api/v1/workers/busy").send().await.unwrap(), 200).await;
    assert_eq!(
        (&worker["pod_name"], &worker["port"], &worker["version"]),
        (&"pod-busy".into(), &8188.into(), &"0.7.0".into())
    );
    assert_eq!((&worker["current_task_id"], &worker["labels"]), (&id.as_str().into(), &value!(["a100"])));
    for field in ["endpoint", "created_at", "last_active_at"] {
        assert!(worker[field].is_string(), "{field} is missing");
    }
    let dead = json(gateway.get("/api/v1/workers/dead").send().await.unwrap(), 200).await;
    assert_eq!((&dead["health"], &dead["reason"]), (&"unreachable".into(), &"connection refused".into()));
    json(gateway.get("/api/v1/workers/nobody").send().await.unwrap(), 404).await;
    let metrics = json(gateway.get("/api/v1/workers/metrics").send().await.unwrap(), 200).await;
    let expected = value!({
        "total_workers": 3, "idle_workers": 1, "running_workers": 1, "starting_workers": 0, "failed_workers": 1,
    });
    assert_eq!(metrics, expected);
}

#[tokio::test]
async fn what_a_worker_renders_is_shown_to_its_tenant_only() {
    let ground = Ground::new().await;
    let both = [Scope::Submit, Scope::Read];
    let (mine, yours) = (ground.key("mine", &both).await, ground.key("yours", &both).await);
    let admin = ground.key("ops", &[Scope::Admin]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let body = format!("{{\"payload\": {}}}", crate::support::GRAPH);
    let sent = gateway
        .post("/api/v1/tasks")
        .bearer_auth(&mine)
        .header("content-type", "application/json")
        .body(body);
    let task = json(sent.send().await.unwrap(), 201).await;
    let worker = gateway.worker().await;
    worker.claim().await;
    for (key, sees) in [(&mine, true), (&yours, false), (&admin, true)] {
        for path in ["/api/v1/workers/gpu-1", "/api/v1/workers"] {
            let text = gateway.get(path).bearer_auth(key).send().await.unwrap().text().await.unwrap();
            assert_eq!(text.contains(task["id"].as_str().unwrap()), sees, "{text}");
        }
    }
}

#[tokio::test]
async fn where_a_worker_is_only_administrators_see() {
    let ground = Ground::new().await;
    let reader = ground.key("mine", &[Scope::Submit, Scope::Read]).await;
    let admin = ground.key("ops", &[Scope::Admin]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let endpoint = "http://10.20.30.40:8199";
    let worker = Worker::join_at(&gateway.ground, "gpu-1", endpoint, None).await;
    let reason = format!("{endpoint}/queue did not answer: connect to 10.20.30.40:8199 was refused");
    worker
        .report(WorkerReport { health: Health::Unreachable, reason: Some(reason), ..WorkerReport::default() })
        .await;
    for path in ["/api/v1/workers/gpu-1", "/api/v1/workers"] {
        let view = json(gateway.get(path).bearer_auth(&admin).send().await.unwrap(), 200).await;
        let view = view["workers"].get(0).unwrap_or(&view);
        assert_eq!((&view["endpoint"], &view["port"]), (&endpoint.into(), &8199.into()));
        let view = json(gateway.get(path).bearer_auth(&reader).send().await.unwrap(), 200).await;
        assert!(!view.to_string().contains("10.20.30.40"), "{view}");
        let view = view["workers"].get(0).unwrap_or(&view);
        assert_eq!((&view["endpoint"], &view["port"]), (&value!(null), &value!(null)));
        assert_eq!(view["reason"], "the worker/queue did not answer: connect to the worker was refused");
    }
}
