//! `DELETE /api/v1/tasks/{id}`.

use remuda_core::transition::Ending;
use remuda_store::BeatRequest;

use crate::support::{BOUND, Gateway, json};

#[tokio::test]
async fn a_waiting_task_is_cancelled_at_once_and_again_without_harm() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    for _ in 0..2 {
        let task = json(gateway.delete(&format!("/api/v1/tasks/{id}")).send().await.unwrap(), 200).await;
        assert_eq!(task["status"], "cancelled");
    }
    assert_eq!(gateway.task(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn a_running_task_is_202_until_its_runner_confirms() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    let path = format!("/api/v1/tasks/{id}");
    let task = json(gateway.delete(&path).send().await.unwrap(), 202).await;
    assert_eq!(task["status"], "running");
    assert!(task["cancel_requested_at"].is_string());
    json(gateway.delete(&path).send().await.unwrap(), 202).await;

    let waiting = gateway.delete(&path).header("Prefer", "wait=100").send();
    let confirming = async {
        let beat = BeatRequest {
            owner: gateway.ground.owner,
            leases: vec![remuda_store::LeaseBeat {
                lease: claim.lease.reference(),
                phase: remuda_core::Phase::Rendering,
                progress: 0.5,
            }],
            workers: Vec::new(),
            wait: BOUND,
        };
        let reply = gateway.store().beat(beat).await.unwrap();
        assert!(reply.news[0].cancel);
        worker.end(&claim, Ending::Cancelled).await;
    };
    let (answer, ()) = tokio::join!(waiting, confirming);
    assert_eq!(json(answer.unwrap(), 200).await["status"], "cancelled");
}

#[tokio::test]
async fn a_finished_task_is_refused_and_stays_as_it_is() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.complete(&claim, b"x").await;
    let error = json(gateway.delete(&format!("/api/v1/tasks/{id}")).send().await.unwrap(), 409).await;
    assert_eq!(
        (&error["code"], &error["status"], &error["task"]),
        (&"finished".into(), &"completed".into(), &id.as_str().into())
    );
    assert_eq!(gateway.task(&id).await["status"], "completed");
}
