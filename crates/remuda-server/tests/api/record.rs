//! `GET /api/v1/tasks/{id}`: the walk of a task, as its owner sees it.

use remuda_core::FailureClass;

use crate::support::Gateway;

#[tokio::test]
async fn a_task_is_readable_from_its_submission_to_long_after_its_end() {
    let gateway = Gateway::start().await;
    let first = gateway.submit().await;
    let second = gateway.submit().await;
    let task = gateway.task(&second).await;
    assert_eq!((&task["status"], &task["reason"]), (&"pending".into(), &"queued".into()));
    assert_eq!(task["position"]["ahead"], 1);
    assert_eq!(task["position"]["exact"], true);
    assert_eq!(task["attempts"].as_array().unwrap().len(), 0);

    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    assert_eq!(claim.task.id.to_string(), first);
    worker.render(&claim, 0.25).await;
    let task = gateway.task(&first).await;
    assert_eq!(task["status"], "running");
    assert_eq!(task["worker_id"], "gpu-1");
    assert_eq!(task["progress"], 0.25);
    assert_eq!(task["phase"], "rendering");
    assert!(task["started_at"].is_string() && task["completed_at"].is_null() && task["position"].is_null());
    assert_eq!(task["attempts"][0]["outcome"], serde_json::Value::Null);
    assert_eq!(gateway.task(&second).await["position"]["ahead"], 0);

    let file = worker.complete(&claim, b"a picture").await;
    let task = gateway.task(&first).await;
    assert_eq!(task["status"], "completed");
    assert_eq!(task["attempts"][0]["outcome"], "completed");
    assert_eq!(task["attempts"][0]["prompt_id"], claim.lease.prompt_id.to_string());
    let shown = &task["result"]["files"][0];
    assert_eq!(shown["url"], format!("/api/v1/tasks/{first}/outputs/0"));
    assert_eq!(shown["sha256"], file.sha256.to_string());
    assert_eq!(
        (&shown["type"], &shown["mime"], &shown["size"]),
        (&"output".into(), &"image/png".into(), &9.into())
    );
    assert!(shown["key"].is_null(), "keys of the file store are nobody's business");
}

#[tokio::test]
async fn a_failure_is_told_with_its_class_and_keeps_the_retry_count() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.fail(&claim, FailureClass::Execution, "node 3 raised ValueError").await;
    let task = gateway.task(&id).await;
    assert_eq!((&task["status"], &task["reason"]), (&"pending".into(), &"retry".into()));
    assert_eq!(task["retry_count"], 1);
    assert_eq!(task["error"], "node 3 raised ValueError");
    assert_eq!(task["error_class"], "execution");
    assert_eq!(task["attempts"][0]["outcome"], "failed");
}

#[tokio::test]
async fn urls_stand_behind_the_public_address_where_there_is_one() {
    let gateway = Gateway::start_with(|options| {
        options.public_url = Some("https://render.example/remuda/".parse().unwrap());
    })
    .await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.complete(&claim, b"x").await;
    let url = &gateway.task(&id).await["result"]["files"][0]["url"];
    assert_eq!(url, &format!("https://render.example/remuda/api/v1/tasks/{id}/outputs/0"));
}

#[tokio::test]
async fn a_task_that_went_back_again_and_again_shows_its_last_attempts() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    for _ in 0..120 {
        let lease = worker.claim().await.lease;
        gateway.store().give_back(lease.owner, lease.reference(), None).await.unwrap();
    }
    let claim = worker.claim().await;
    let task = gateway.task(&id).await;
    assert_eq!(task["attempt_count"], 121);
    let attempts = task["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 100);
    let numbers: Vec<i64> = attempts.iter().filter_map(|attempt| attempt["n"].as_i64()).collect();
    assert_eq!(
        numbers,
        (22..=121).collect::<Vec<_>>(),
        "first to last, with the one under way: {}",
        attempts[0]
    );
    assert_eq!(attempts[99]["prompt_id"], claim.lease.prompt_id.to_string());
}
