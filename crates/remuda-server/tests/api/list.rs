//! `GET /api/v1/tasks`.

use serde_json::Value;

use crate::support::{Gateway, json};

async fn list(gateway: &Gateway, query: &str) -> (Vec<String>, Option<String>) {
    let page = json(gateway.get(&format!("/api/v1/tasks{query}")).send().await.unwrap(), 200).await;
    let tasks = page["tasks"].as_array().unwrap();
    assert!(tasks.iter().all(|task| task["payload"].is_null()), "lists have no payload");
    let ids = tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect();
    (ids, page["next"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn pages_are_newest_first_and_leave_nothing_out() {
    let gateway = Gateway::start().await;
    let mut made = Vec::new();
    for n in 0..7 {
        made.push(gateway.submit_with(&format!("\"workflow_id\": \"w{}\",", n % 2)).await);
    }
    made.reverse();
    let (mut seen, mut next) = list(&gateway, "?limit=3").await;
    assert_eq!(seen.len(), 3);
    while let Some(before) = next {
        let (more, further) = list(&gateway, &format!("?limit=3&before={before}")).await;
        seen.extend(more);
        next = further;
    }
    assert_eq!(seen, made);
    let (even, _) = list(&gateway, "?workflow_id=w0").await;
    assert_eq!(even, made.iter().step_by(2).cloned().collect::<Vec<_>>());
}

#[tokio::test]
async fn states_are_told_apart() {
    let gateway = Gateway::start().await;
    let done = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.complete(&claim, b"x").await;
    let waiting = gateway.submit_with("\"not_before\": \"2100-01-01T00:00:00Z\",").await;
    assert_eq!(list(&gateway, "?status=completed").await, (vec![done], None));
    assert_eq!(list(&gateway, "?status=pending").await, (vec![waiting], None));
    assert_eq!(list(&gateway, "?status=failed").await, (vec![], None));
    let metrics = json(gateway.get("/api/v1/queue/metrics").send().await.unwrap(), 200).await;
    let expected: Value =
        serde_json::json!({"pending_tasks": 1, "running_tasks": 0, "completed_tasks": 1, "failed_tasks": 0});
    assert_eq!(metrics, expected);
}
