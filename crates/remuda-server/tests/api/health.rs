//! `/live`, `/ready`, `/health`, `/metrics`, `/` and the documentation.

use remuda_core::{Health, WorkerReport};

use crate::support::{Gateway, json};

#[tokio::test]
async fn health_has_the_fields_of_the_handler_and_is_503_only_without_a_usable_worker() {
    let gateway = Gateway::start().await;
    assert_eq!(json(gateway.get("/live").send().await.unwrap(), 200).await["status"], "alive");
    assert_eq!(json(gateway.get("/ready").send().await.unwrap(), 200).await["status"], "ready");
    let health = json(gateway.get("/health").send().await.unwrap(), 503).await;
    assert_eq!((&health["status"], &health["comfyui_server"]), (&"unhealthy".into(), &"disconnected".into()));
    assert!(health["error"].as_str().unwrap().contains("--comfyui"));

    gateway.submit().await;
    gateway.submit().await;
    let worker = gateway.worker().await;
    worker.claim().await;
    let health = json(gateway.get("/health").send().await.unwrap(), 200).await;
    assert_eq!((&health["status"], &health["comfyui_server"]), (&"healthy".into(), &"connected".into()));
    assert_eq!((&health["queue_running"], &health["queue_pending"]), (&1.into(), &1.into()));
    assert!(health["timestamp"].as_f64().unwrap() > 1e9);

    worker.report(WorkerReport { health: Health::Zombie, ..WorkerReport::default() }).await;
    json(gateway.get("/health").send().await.unwrap(), 503).await;
}

#[tokio::test]
async fn metrics_are_in_the_format_of_prometheus() {
    let gateway = Gateway::start().await;
    gateway.submit().await;
    gateway.worker().await;
    gateway.get("/nowhere/1").send().await.unwrap();
    let answer = gateway.get("/metrics").send().await.unwrap();
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let text = answer.text().await.unwrap();
    for line in [
        "remuda_tasks{status=\"pending\"} 1",
        "remuda_workers{status=\"idle\"} 1",
        "remuda_tasks_submitted_total{tenant=\"default\"} 1",
        "remuda_http_requests_total{method=\"POST\",route=\"/api/v1/tasks\",status=\"201\"} 1",
        "remuda_http_requests_total{method=\"GET\",route=\"unknown\",status=\"404\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn the_index_the_description_and_the_page_for_people_are_served_from_here() {
    let gateway = Gateway::start().await;
    let index = json(gateway.get("/").send().await.unwrap(), 200).await;
    assert_eq!(index["routes"]["/api/v1/tasks"], serde_json::json!(["GET", "POST"]));
    let description = json(gateway.get("/openapi.json").send().await.unwrap(), 200).await;
    assert!(description["paths"]["/api/v1/tasks/{id}/events"]["get"].is_object());
    let page = gateway.get("/docs").send().await.unwrap();
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    assert!(page.contains("swagger-ui") && !page.contains("https://"), "{page}");
}
