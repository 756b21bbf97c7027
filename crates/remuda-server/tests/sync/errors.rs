//! Every class of error, provoked.

use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, Scope, Status, TaskResult};
use serde_json::{Value, json};

use crate::pen::{assert_shape, raising};
use crate::rig::{BOUND, Ranch, long, picture};
use crate::support::{Gateway, Worker, gone, json as answer};

async fn error(gateway: &Gateway, query: &str, body: &Value, status: u16) -> Value {
    let error = answer(gateway.sync(query, body).send().await.unwrap(), status).await;
    assert_shape(&error);
    error
}

#[tokio::test]
async fn a_request_that_is_malformed_is_422_and_names_its_fault() {
    let gateway = Gateway::start().await;
    let cases = [
        ("", "", "empty"),
        ("", "{", "not JSON"),
        ("", "[]", "object"),
        ("", "{}", "prompt"),
        ("", r#"{"prompt": null}"#, "prompt"),
        ("", r#"{"prompt": "text"}"#, "prompt"),
        ("", r#"{"prompt": {}, "client_id": {}}"#, "client_id"),
        ("", r#"{"prompt": {}, "return_image_base64": "yes"}"#, "return_image_base64"),
        ("", r#"{"prompt": {}, "priority": 11}"#, "priority"),
        ("?timeout=0", r#"{"prompt": {}}"#, "timeout"),
        ("?timeout=soon", r#"{"prompt": {}}"#, "timeout"),
        ("?on_disconnect=maybe", r#"{"prompt": {}}"#, "maybe"),
    ];
    for (query, body, word) in cases {
        let request = gateway.post(&format!("/prompt_sync{query}")).body(body);
        let error = answer(request.send().await.unwrap(), 422).await;
        assert_shape(&error);
        assert_eq!(error["error"], "Validation failed", "{body}: {error}");
        assert!(error["detail"].as_str().unwrap().contains(word), "{query} {body}: {error}");
    }
    assert!(gateway.only_task().await.is_none());
}

#[tokio::test]
async fn a_graph_that_is_refused_is_400_with_the_words_of_comfyui() {
    let ranch = Ranch::start(1).await;
    let gateway = &ranch.gateway;
    // ComfyUI says it.
    let graph = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "nowhere.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let refused = error(gateway, "", &json!({ "prompt": graph }), 400).await;
    assert_eq!(
        (&refused["error"], &refused["code"]),
        (&"Prompt was refused".into(), &"prompt_refused".into())
    );
    let node = &refused["node_errors"]["1"];
    assert_eq!(
        (&node["class_type"], &node["dependent_outputs"]),
        (&"LoadImage".into(), &json!(["2"])),
        "{refused}"
    );
    assert_eq!(node["errors"][0]["type"], "custom_validation_failed", "{refused}");
    assert!(refused["prompt_id"].is_string());
    // We say it for ComfyUI, before anything is queued.
    let blue = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": "blue"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let unlinked = json!({"2": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}});
    for (graph, code, fault) in [
        (blue, "prompt_outputs_failed_validation", Some(("1", "invalid_input_type"))),
        (unlinked, "prompt_outputs_failed_validation", Some(("2", "required_input_missing"))),
        (json!({"1": {"class_type": "Nonsense", "inputs": {}}}), "invalid_prompt", None),
        (json!({}), "prompt_no_outputs", None),
    ] {
        let refused = error(gateway, "", &json!({ "prompt": graph }), 400).await;
        assert_eq!(
            (&refused["error"], &refused["code"]),
            (&"Prompt was refused".into(), &code.into()),
            "{refused}"
        );
        assert!(refused["prompt_id"].is_null(), "{refused}");
        if let Some((node, kind)) = fault {
            assert_eq!(refused["node_errors"][node]["errors"][0]["type"], kind, "{refused}");
        }
    }
    assert_eq!(ranch.sims[0].stats().executions_total, 0);
    ranch.stop().await;
}

#[tokio::test]
async fn an_execution_that_fails_is_400_with_the_exception_and_is_tried_once() {
    let ranch = Ranch::start(1).await;
    let failed = error(&ranch.gateway, "", &json!({"prompt": raising("ValueError")}), 400).await;
    assert_eq!((&failed["error"], &failed["code"]), (&"Task execution failed".into(), &"task_failed".into()));
    let node = &failed["node_errors"]["1"];
    assert_eq!((&node["class_type"], &node["errors"][0]["type"]), (&"RigRaise".into(), &"ValueError".into()));
    assert!(node["errors"][0]["message"].as_str().unwrap().starts_with("too much"), "{failed}");
    assert!(node["errors"][0]["details"].as_str().unwrap().contains("rig_nodes"), "{failed}");
    let task = ranch.task(failed["prompt_id"].as_str().unwrap()).await;
    assert_eq!((task.status, task.attempt), (Status::Failed, 1));
    ranch.stop().await;
}

#[tokio::test]
async fn what_was_done_before_an_exception_is_told_with_it() {
    let gateway = Gateway::patient().await;
    let worker = gateway.worker().await;
    let body = json!({"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "x"}}}});
    let asked = tokio::spawn(gateway.sync("?timeout=100", &body).send());
    let claim = worker.claim().await;
    let outputs = json!({"1": {"images": [{"filename": "gone.png", "subfolder": "", "type": "output"}], "text": ["done"]}});
    let partial = TaskResult { files: vec![gone(&claim)], outputs: outputs.into(), ..TaskResult::default() };
    let failure = Failure::new(FailureClass::Execution, "the second node raised");
    worker.end(&claim, Ending::Failed { failure, partial: Some(Box::new(partial)) }).await;
    let failed = answer(asked.await.unwrap().unwrap(), 400).await;
    assert_shape(&failed);
    assert_eq!(
        (&failed["code"], &failed["detail"]),
        (&"task_failed".into(), &"the second node raised".into())
    );
    let folder = format!("remuda/{}", claim.task.id);
    assert_eq!(failed["outputs"]["1"]["images"][0]["subfolder"], folder.as_str(), "{failed}");
    assert_eq!(failed["outputs"]["1"]["text"], json!(["done"]), "{failed}");
    let file = &failed["images"]["1"][0];
    assert_eq!(
        (&file["filename"], &file["subfolder"]),
        (&"gone.png".into(), &folder.as_str().into()),
        "{failed}"
    );
}

#[tokio::test]
async fn a_timeout_is_408_and_the_prompt_really_stops() {
    let ranch = Ranch::start_with(1, |options| options.sync.confirmation = BOUND).await;
    let late = error(&ranch.gateway, "?timeout=1", &json!({"prompt": long(600.0)}), 408).await;
    assert_eq!((&late["error"], &late["code"]), (&"Timeout".into(), &"timeout".into()), "{late}");
    assert!(late["detail"].as_str().unwrap().ends_with("it is cancelled"), "{late}");
    let task = ranch.task(late["prompt_id"].as_str().unwrap()).await;
    assert_eq!(task.status, Status::Cancelled);
    assert!(task.deadline.is_some(), "a gateway that dies must leave nothing running");
    ranch.at_rest().await;
    ranch.stop().await;
}

#[tokio::test]
async fn the_stored_deadline_ends_what_no_gateway_cares_for_any_more() {
    let gateway = Gateway::patient().await;
    let body = json!({"prompt": picture()});
    let request = gateway.sync("?timeout=1000", &body);
    let late = tokio::spawn(request.send());
    let task = gateway.until(Status::Pending).await;
    // Counted from the receipt, and a little longer than the request's own.
    let until = task.deadline.expect("a deadline").duration_since(task.created_at);
    let most = Duration::from_secs(1002);
    let range = (most - BOUND).as_secs_f64()..=most.as_secs_f64();
    assert!(range.contains(&until.as_secs_f64()), "{until:?}");
    drop(late);
}

#[tokio::test]
async fn without_a_usable_worker_it_is_503_and_nothing_is_left_queued() {
    let gateway = Gateway::start_with(|options| options.sync.patience = Duration::from_millis(100)).await;
    let response = gateway.sync("", &json!({"prompt": picture()})).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    let nobody = answer(response, 503).await;
    assert_shape(&nobody);
    assert_eq!(nobody["code"], "connection_failed", "{nobody}");
    let task = gateway.only_task().await.expect("its record");
    assert_eq!(task.status, Status::Cancelled);
}

#[tokio::test]
async fn a_comfyui_that_is_lost_with_the_prompt_is_503() {
    // The runner is the test, so that nothing has to be waited for.
    let gateway = Gateway::patient().await;
    // A task that was lost avoids the worker that lost it.
    let workers = [gateway.worker().await, Worker::join(&gateway.ground, "gpu-2", None).await];
    let body = json!({"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "x"}}}});
    let asked = tokio::spawn(gateway.sync("?timeout=100", &body).send());
    for worker in workers.iter().cycle().take(4) {
        let claim = worker.claim().await;
        worker.fail(&claim, FailureClass::Crash, "ComfyUI ended in the middle").await;
    }
    let lost = answer(asked.await.unwrap().unwrap(), 503).await;
    assert_shape(&lost);
    assert_eq!(
        (&lost["code"], &lost["detail"]),
        (&"connection_failed".into(), &"ComfyUI ended in the middle".into())
    );
}

#[tokio::test]
async fn somebody_elses_cancellation_is_told() {
    let ranch = Ranch::start(1).await;
    let asked = tokio::spawn(ranch.gateway.sync("", &json!({"prompt": long(600.0)})).send());
    ranch.rendering().await;
    let id = ranch.gateway.until(Status::Running).await.id;
    let path = format!("/api/v1/tasks/{id}");
    assert!(ranch.gateway.delete(&path).send().await.unwrap().status().is_success());
    let stopped = answer(asked.await.unwrap().unwrap(), 400).await;
    assert_shape(&stopped);
    assert_eq!(stopped["code"], "cancelled", "{stopped}");
    ranch.stop().await;
}

#[tokio::test]
async fn a_file_that_is_gone_is_500_before_the_first_byte() {
    let gateway = Gateway::patient().await;
    let worker = gateway.worker().await;
    for (base64, accept) in [(true, "*/*"), (false, "image/*")] {
        let body = json!({"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "x"}}}, "return_image_base64": base64});
        let asked = tokio::spawn(gateway.sync("?timeout=100", &body).header("accept", accept).send());
        let claim = worker.claim().await;
        // The answer reads the record first: the file goes before the record comes.
        worker.complete_without_file(&claim).await;
        let broken = answer(asked.await.unwrap().unwrap(), 500).await;
        assert_shape(&broken);
        assert!(broken["prompt_id"].is_string(), "{broken}");
    }
}

#[tokio::test]
async fn what_never_reaches_the_handler_has_the_same_shape() {
    let gateway = Gateway::start_with(|options| options.limits.body = 1000).await;
    let large = json!({"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "x".repeat(2000)}}}});
    assert_eq!(error(&gateway, "", &large, 413).await["code"], "too_large");
    let wrong = answer(gateway.get("/prompt_sync").send().await.unwrap(), 405).await;
    assert_shape(&wrong);
    let foreign = gateway.sync("", &json!({})).header("origin", "https://evil.example");
    let foreign = answer(foreign.send().await.unwrap(), 403).await;
    assert_shape(&foreign);
    assert_eq!(foreign["error"], "Access denied");

    let reader = gateway.ground.key("default", &[Scope::Read]).await;
    let gateway = Gateway::on(gateway.ground.clone(), |_| {}).await;
    let unknown = gateway.sync("", &json!({})).send().await.unwrap();
    assert!(unknown.headers().contains_key("www-authenticate"));
    assert_shape(&answer(unknown, 401).await);
    let reader = gateway.sync("", &json!({})).bearer_auth(reader).send().await.unwrap();
    assert_shape(&answer(reader, 403).await);
}

#[tokio::test]
async fn a_store_that_is_away_is_503() {
    let gateway = Gateway::start().await;
    gateway.store().close().await;
    let response = gateway.sync("", &json!({"prompt": picture()})).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    assert_shape(&answer(response, 503).await);
}

#[tokio::test]
async fn a_comfyui_that_goes_away_for_good_is_503_not_a_silent_wait() {
    let ranch = Ranch::start_with(1, |options| options.sync.patience = Duration::from_millis(500)).await;
    ranch.sims[0].crash().await;
    let nobody = error(&ranch.gateway, "?timeout=100", &json!({"prompt": picture()}), 503).await;
    assert_eq!(nobody["code"], "connection_failed", "{nobody}");
    ranch.stop().await;
}
