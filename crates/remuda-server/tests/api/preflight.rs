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
async fn what_everybody_has_is_one_lane_and_asking_has_bounds() {
    let gateway = Gateway::start().await;
    let ask = |requires: Value| {
        let mut body: Value = serde_json::from_str(&graph("a.safetensors")).unwrap();
        body["requires"] = requires;
        body.to_string()
    };
    let nodes = |names: &[&str]| serde_json::json!({"nodes": names});
    let task = submit(&gateway, &ask(nodes(&["SaveCheckpoint"])), 201).await;
    let task = gateway.task(task["id"].as_str().unwrap()).await;
    assert_eq!(task["requires"]["nodes"], serde_json::json!(["SaveCheckpoint"]), "no worker is known");
    Worker::join(&gateway.ground, "one", Some(&object_info(&["a.safetensors"], ""))).await;
    Worker::join(&gateway.ground, "two", Some(&object_info(&["a.safetensors"], ""))).await;
    for names in
        [&["SaveCheckpoint"][..], &["CheckpointLoaderSimple"], &["SaveCheckpoint", "CheckpointLoaderSimple"]]
    {
        let task = submit(&gateway, &ask(nodes(names)), 201).await;
        let task = gateway.task(task["id"].as_str().unwrap()).await;
        assert_eq!(task["requires"]["nodes"], serde_json::json!([]), "every worker has {names:?}");
    }
    let many = |count: usize, length: usize| -> Vec<String> {
        (0..count).map(|n| format!("{n:0length$}")).collect()
    };
    for (requires, status, field) in [
        (serde_json::json!({"labels": many(64, 100)}), 201, ""),
        (serde_json::json!({"labels": many(65, 10)}), 422, "labels"),
        (serde_json::json!({"nodes": many(257, 10)}), 422, "requires.nodes"),
        (serde_json::json!({"models": many(257, 10)}), 422, "requires.models"),
        (serde_json::json!({"labels": many(64, 250), "models": many(2, 250)}), 422, "requires"),
        (serde_json::json!({"labels": many(1, 257)}), 422, "labels"),
    ] {
        let answer = submit(&gateway, &ask(requires), status).await;
        assert_eq!(answer["field"].as_str().unwrap_or_default(), field, "{answer}");
    }
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

#[tokio::test]
async fn names_of_files_that_are_not_the_callers_are_refused_with_their_node() {
    let gateway = Gateway::start().await;
    let loader = r#", "PictureLoader": {"input": {"required": {"picture": [["a.png"], {"image_upload": true}]}}, "output": ["IMAGE"]},
        "LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": true}]}}, "output": ["IMAGE"]},
        "PreviewImage": {"input": {"required": {"images": ["IMAGE"]}}, "output_node": true}"#;
    Worker::join(&gateway.ground, "one", Some(&object_info(&[], loader))).await;
    let graph = |class: &str, input: &str, name: &str| {
        serde_json::json!({"payload": {
            "1": {"class_type": class, "inputs": {input: name}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}})
        .to_string()
    };
    let names = [
        "/etc/passwd",
        "../output/x.png",
        "sub/../../x.png",
        "C:\\x.png",
        "..\\x.png",
        "%2e%2e/x.png",
        "x.png [output]",
        "x.png [temp]",
        "remuda/0123456789abcdef-cat.png",
        "remuda/0190b6c1-0000-7000-8000-000000000001/x.png [output]",
        "file:///etc/passwd",
        "~/x.png",
        "a\u{0}b.png",
    ];
    for (class, input) in [("LoadImage", "image"), ("PictureLoader", "picture")] {
        for name in names {
            let error = submit(&gateway, &graph(class, input, name), 422).await;
            let told = (&error["code"], &error["node_id"], &error["input"], &error["class_type"]);
            assert_eq!(told, (&"bad_input".into(), &"1".into(), &input.into(), &class.into()), "{name:?}");
        }
        for name in ["a.png", "sub/a.png", "a.png [input]"] {
            submit(&gateway, &graph(class, input, name), 201).await;
        }
    }
    // ComfyUI's own words for clients that speak its dialect.
    let prompt = graph("LoadImage", "image", "/etc/passwd").replace("\"payload\"", "\"prompt\"");
    let error = json(gateway.post("/prompt").json_text(&prompt).send().await.unwrap(), 400).await;
    assert_eq!(error["error"]["type"], "prompt_outputs_failed_validation", "{error}");
    let told = &error["node_errors"]["1"]["errors"][0];
    assert_eq!(told["type"], "custom_validation_failed", "{error}");
    let sync = graph("LoadImage", "image", "x.png [output]").replace("\"payload\"", "\"prompt\"");
    let answer = gateway.post("/prompt_sync").json_text(&sync).send().await.unwrap();
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn a_tenant_that_is_bound_to_a_pool_gets_no_other_workers() {
    let tenant = remuda_core::Tenant::new("default").unwrap();
    let labels = std::collections::BTreeSet::from(["pool=a".to_owned()]);
    let gateway = Gateway::start_with(|options| drop(options.tenant_labels.insert(tenant, labels))).await;
    Worker::join(&gateway.ground, "one", Some(&object_info(&["sdxl.safetensors"], ""))).await;
    let body = graph("sdxl.safetensors");
    for body in [body.clone(), body.replacen('{', r#"{"requires": {"labels": ["fast"]}, "#, 1)] {
        let task = submit(&gateway, &body, 201).await;
        let task = gateway.task(task["id"].as_str().unwrap()).await;
        let labels = task["requires"]["labels"].as_array().unwrap();
        assert!(labels.contains(&"pool=a".into()), "{task}");
        assert_eq!(task["status"], "pending");
    }
    let prompt = body.replace("\"payload\"", "\"prompt\"");
    let told = json(gateway.post("/prompt").json_text(&prompt).send().await.unwrap(), 200).await;
    let all = json(gateway.get("/api/v1/tasks").send().await.unwrap(), 200).await;
    let tasks = all["tasks"].as_array().or_else(|| all["items"].as_array()).unwrap();
    assert_eq!(tasks.len(), 3, "{told}");
    let lanes = gateway.ground.store.lanes().await.unwrap();
    assert!(lanes.iter().all(|lane| lane.requires.labels.contains("pool=a")), "{lanes:?}");
}
