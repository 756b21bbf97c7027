//! `POST /api/v1/tasks/{id}/retry`.

use remuda_core::{FailureClass, Scope};

use crate::support::{GRAPH, Gateway, Ground, JsonText as _, json};

#[tokio::test]
async fn an_ended_task_is_repeated_by_a_new_one() {
    let gateway = Gateway::start().await;
    let id = gateway.submit_with("\"workflow_id\": \"w\", \"priority\": 7, \"metadata\": [1],").await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.fail(&claim, FailureClass::Validation, "refused").await;
    let path = format!("/api/v1/tasks/{id}/retry");
    let answer = gateway.post(&path).header("Idempotency-Key", "again").send().await.unwrap();
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let new = json(answer, 201).await;
    assert_ne!(new["id"].as_str().unwrap(), id);
    assert_eq!(new["retry_of"], id);
    let new = json(gateway.get(&location).send().await.unwrap(), 200).await;
    assert_eq!(
        (&new["workflow_id"], &new["priority"], &new["metadata"][0]),
        (&"w".into(), &7.into(), &1.into())
    );
    let old = gateway.task(&id).await;
    assert_eq!(old["status"], "failed");
    assert_eq!(old["payload"], new["payload"]);
    let same = json(gateway.post(&path).header("Idempotency-Key", "again").send().await.unwrap(), 200).await;
    assert_eq!(same["id"], new["id"]);
}

#[tokio::test]
async fn a_delayed_task_waits_no_longer_and_a_running_one_is_refused() {
    let gateway = Gateway::start().await;
    let id = gateway.submit_with("\"not_before\": \"2100-01-01T00:00:00Z\",").await;
    let path = format!("/api/v1/tasks/{id}/retry");
    let task = json(gateway.post(&path).send().await.unwrap(), 200).await;
    assert_eq!((&task["id"], &task["reason"]), (&id.as_str().into(), &"queued".into()));
    // And again: it is queued already.
    json(gateway.post(&path).send().await.unwrap(), 200).await;
    let worker = gateway.worker().await;
    worker.claim().await;
    let error = json(gateway.post(&path).send().await.unwrap(), 409).await;
    assert_eq!(error["code"], "running");
}

/// What was taken in before a rule held is not taken in again by way of a retry.
#[tokio::test]
async fn a_retry_is_checked_as_a_submission_is() {
    let tenant = remuda_core::Tenant::new("default").unwrap();
    let labels = std::collections::BTreeSet::from(["pool=a".to_owned()]);
    let gateway = Gateway::start_with(|options| drop(options.tenant_labels.insert(tenant, labels))).await;
    let graph = |image: &str| {
        let text = format!(r#"{{"1": {{"class_type": "LoadImage", "inputs": {{"image": "{image}"}}}}}}"#);
        serde_json::value::RawValue::from_string(text).unwrap()
    };
    let placed = remuda_core::Placement {
        node_id: "1".to_owned(),
        input: "image".to_owned(),
        sha256: remuda_core::Sha256::of(b"x"),
        key: "outputs/aa/1-1/000-x.png".to_owned(),
        filename: "x.png".to_owned(),
    };
    for (image, placements, status) in
        [("/etc/passwd", vec![], 422), ("x.png [output]", vec![placed.clone()], 201)]
    {
        let mut new = remuda_core::NewTask::new(graph(image));
        new.input.placements = placements;
        let id = new.id;
        gateway.ground.store.submit(new).await.unwrap();
        gateway.ground.store.cancel(id).await.unwrap();
        let answer = gateway.post(&format!("/api/v1/tasks/{id}/retry")).send().await.unwrap();
        let told = json(answer, status).await;
        if status == 201 {
            let new = told["id"].as_str().unwrap().parse().unwrap();
            let input = gateway.ground.store.input(new).await.unwrap().unwrap();
            assert_eq!(input.placements, std::slice::from_ref(&placed));
            assert!(input.requires.labels.contains("pool=a"));
        }
    }
}

#[tokio::test]
async fn what_an_administrator_runs_again_stays_its_tenants() {
    let ground = Ground::new().await;
    let (owner, other, admin) = (
        ground.key("owner", &[Scope::Submit, Scope::Read]).await,
        ground.key("other", &[Scope::Submit, Scope::Read]).await,
        ground.key("ops", &[Scope::Admin]).await,
    );
    let gateway = Gateway::on(ground, |_| {}).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    let submitted = gateway.post("/api/v1/tasks").bearer_auth(&owner).json_text(&body).send().await.unwrap();
    let path = format!("/api/v1/tasks/{}", json(submitted, 201).await["id"].as_str().unwrap());
    json(gateway.delete(&path).bearer_auth(&owner).send().await.unwrap(), 200).await;
    let again = format!("{path}/retry");
    json(gateway.post(&again).bearer_auth(&other).send().await.unwrap(), 404).await;
    let new = json(gateway.post(&again).bearer_auth(&admin).send().await.unwrap(), 201).await;
    assert_eq!(new["tenant"], "owner");
}
