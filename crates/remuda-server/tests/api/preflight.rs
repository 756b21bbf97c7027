//! What is known of the workers decides what is queued, and for whom.

use remuda_core::{Health, WorkerReport};
use serde_json::Value;

use crate::support::{Gateway, JsonText as _, Worker, json};

fn object_info(models: &[&str], extra: &str) -> String {
    let models = serde_json::to_string(models).unwrap();
    format!(
        r#"{{"CheckpointLoaderSimple": {{"input": {{"required": {{"ckpt_name": [{models}]}}}}, "output": ["MODEL", "CLIP", "VAE"]}},
            "SaveCheckpoint": {{"input": {{"required": {{"model": ["MODEL"]}}}}, "output_node": true}}{extra}}}"#
    )
}

fn graph(model: &str) -> String {
    format!(
        r#"{{"payload": {{"4": {{"class_type": "CheckpointLoaderSimple", "inputs": {{"ckpt_name": "{model}"}}}},
            "5": {{"class_type": "SaveCheckpoint", "inputs": {{"model": ["4", 0]}}}}}}}}"#
    )
}

async fn submit(gateway: &Gateway, body: &str, status: u16) -> Value {
    json(gateway.post("/api/v1/tasks").json_text(body).send().await.unwrap(), status).await
}

#[tokio::test]
async fn what_every_worker_lacks_is_refused_and_what_some_have_is_kept_for_them() {
    let gateway = Gateway::start().await;
    let info = object_info(&["sdxl.safetensors"], "");
    Worker::join(&gateway.ground, "one", Some(&info)).await;
    let info = object_info(&["sdxl.safetensors", "flux.safetensors"], "");
    Worker::join(&gateway.ground, "two", Some(&info)).await;

    let task = submit(&gateway, &graph("sdxl.safetensors"), 201).await;
    let task = gateway.task(task["id"].as_str().unwrap()).await;
    assert_eq!(task["requires"]["models"], serde_json::json!([]), "everybody can run it");
    let task = submit(&gateway, &graph("flux.safetensors"), 201).await;
    assert!(task["warnings"].is_null(), "{task}");
    let task = gateway.task(task["id"].as_str().unwrap()).await;
    assert_eq!(task["requires"]["models"], serde_json::json!(["flux.safetensors"]));

    let error = submit(&gateway, &graph("wan.safetensors"), 422).await;
    assert_eq!(
        (&error["code"], &error["node_id"], &error["input"]),
        (&"missing_everywhere".into(), &"4".into(), &"ckpt_name".into())
    );
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("one lacks model wan.safetensors") && detail.contains("two lacks"), "{detail}");
    let error =
        submit(&gateway, r#"{"payload": {"1": {"class_type": "Nonsense", "inputs": {}}}}"#, 422).await;
    assert_eq!((&error["code"], &error["class_type"]), (&"missing_everywhere".into(), &"Nonsense".into()));
}

#[tokio::test]
async fn a_worker_that_comes_later_counts_at_once() {
    let gateway = Gateway::start().await;
    Worker::join(&gateway.ground, "one", Some(&object_info(&["a.safetensors"], ""))).await;
    submit(&gateway, &graph("b.safetensors"), 422).await;
    Worker::join(&gateway.ground, "two", Some(&object_info(&["b.safetensors"], ""))).await;
    submit(&gateway, &graph("b.safetensors"), 201).await;
}

#[tokio::test]
async fn a_worker_that_has_not_spoken_yet_may_have_it() {
    let gateway = Gateway::start().await;
    Worker::join(&gateway.ground, "one", Some(&object_info(&["a.safetensors"], ""))).await;
    let two = Worker::join(&gateway.ground, "two", None).await;
    two.report(WorkerReport::default()).await;
    let task = submit(&gateway, &graph("b.safetensors"), 201).await;
    assert!(task["warnings"][0].as_str().unwrap().contains("two"), "{task}");
    // One that cannot be reached is no hope.
    two.report(WorkerReport { health: Health::Unreachable, ..WorkerReport::default() }).await;
    submit(&gateway, &graph("b.safetensors"), 422).await;
}

#[tokio::test]
async fn labels_that_nobody_carries_yet_wait_with_a_warning() {
    let gateway = Gateway::start().await;
    Worker::join(&gateway.ground, "one", Some(&object_info(&["a.safetensors"], ""))).await;
    let body = graph("a.safetensors").replacen('{', "{\"labels\": [\"h200\"],", 1);
    let task = submit(&gateway, &body, 201).await;
    assert!(task["warnings"][0].as_str().unwrap().contains("h200"), "{task}");
}

#[tokio::test]
async fn what_no_comfyui_would_run_is_refused_and_what_one_might_is_a_warning() {
    let gateway = Gateway::start().await;
    let extra = r#", "Blur": {"input": {"required": {"image": ["IMAGE"], "radius": ["INT", {"min": 1, "max": 9}]}}, "output_node": true, "output": ["IMAGE"]},
        "Picture": {"input": {"required": {}}, "output": ["IMAGE"]}"#;
    Worker::join(&gateway.ground, "one", Some(&object_info(&[], extra))).await;
    let missing = r#"{"payload": {"1": {"class_type": "Blur", "inputs": {"radius": 3}}}}"#;
    let error = submit(&gateway, missing, 422).await;
    assert_eq!((&error["code"], &error["node_id"]), (&"invalid_graph".into(), &"1".into()));
    let strange = r#"{"payload": {"1": {"class_type": "Blur", "inputs": {"radius": 99, "image": ["2", 0]}}, "2": {"class_type": "Picture", "inputs": {}}}}"#;
    let task = submit(&gateway, strange, 201).await;
    assert!(task["warnings"][0].as_str().unwrap().contains("radius"), "{task}");
}

#[tokio::test]
async fn inputs_that_workers_mark_as_uploads_find_files_by_name() {
    let gateway = Gateway::start().await;
    let extra = r#", "MyLoader": {"input": {"required": {"clip": [[], {"video_upload": true}]}}, "output_node": true}"#;
    Worker::join(&gateway.ground, "one", Some(&object_info(&[], extra))).await;
    json(gateway.post("/api/v1/assets?filename=a.mp4").body("film").send().await.unwrap(), 201).await;
    let body = r#"{"payload": {"1": {"class_type": "MyLoader", "inputs": {"clip": "a.mp4"}}}}"#;
    let task = submit(&gateway, body, 201).await;
    let task = gateway.task(task["id"].as_str().unwrap()).await;
    assert_eq!(task["inputs"][0]["filename"], "a.mp4");
}
