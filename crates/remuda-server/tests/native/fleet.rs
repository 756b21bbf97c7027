//! The fleet as one ComfyUI: `/object_info`, `/models`, `/extensions`, `/system_stats` and what goes with them.

use std::path::Path;
use std::time::Duration;

use comfyui_sim::{Profile, SimConfig};
use remuda_core::{Health, Scope, Sha256, WorkerReport};
use remuda_testbed::wait;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{BOUND, Ranch};
use crate::support::{self, Gateway, Ground, JsonText as _, Worker};

/// Checkpoints and nodes that differ between two workers.
fn info(checkpoint: &str, own: &str) -> String {
    json!({
        "CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["both.safetensors", checkpoint]]}}},
        own: {"input": {"required": {"image": ["IMAGE"]}}, "output_node": true},
        "LoadImage": {"input": {"required": {"image": [["example.png"], {"image_upload": true}]}}},
        "LoadVideo": {"input": {"required": {"file": ["COMBO", {"options": [], "video_upload": true}]}}},
    })
    .to_string()
}

async fn get(gateway: &Gateway, path: &str) -> Value {
    support::json(gateway.get(path).send().await.unwrap(), 200).await
}

#[tokio::test]
async fn nodes_of_all_workers_are_shown_as_one_and_say_where_they_are() {
    // Nobody answers for workers that only the store knows.
    let gateway = Gateway::start_with(|options| options.owner = None).await;
    let nobody = gateway.get("/object_info").send().await.unwrap();
    assert_eq!(nobody.status(), StatusCode::SERVICE_UNAVAILABLE, "an empty answer would be a lie");

    let one = info("one.safetensors", "OnlyOne");
    let first = Worker::join(&gateway.ground, "gpu-1", Some(&one)).await;
    let alone = gateway.get("/object_info").send().await.unwrap();
    assert_eq!(alone.headers()["content-type"], "application/json; charset=utf-8");
    let alone = support::json(alone, 200).await;
    assert_eq!(
        alone,
        serde_json::from_str::<Value>(&one).unwrap(),
        "one worker's nodes are shown as they are"
    );

    let two = info("two.safetensors", "OnlyTwo");
    Worker::join(&gateway.ground, "gpu-2", Some(&two)).await;
    Worker::join(&gateway.ground, "gpu-3", Some(&two)).await;
    let all = get(&gateway, "/api/object_info").await;
    let loader = &all["CheckpointLoaderSimple"];
    let names = ["both.safetensors", "one.safetensors", "two.safetensors"];
    assert_eq!(loader["input"]["required"]["ckpt_name"][0], json!(names));
    let rare = json!({"ckpt_name": {"one.safetensors": ["gpu-1"], "two.safetensors": ["gpu-2", "gpu-3"]}});
    assert_eq!(loader["remuda"], json!({"choices": rare}));
    assert_eq!(all["OnlyOne"]["remuda"], json!({"workers": ["gpu-1"]}));
    assert_eq!(all["OnlyTwo"]["remuda"], json!({"workers": ["gpu-2", "gpu-3"]}));
    assert!(all["LoadImage"].get("remuda").is_none(), "what is everywhere needs no word");
    assert_eq!(get(&gateway, "/object_info/OnlyTwo").await, json!({"OnlyTwo": all["OnlyTwo"]}));
    assert_eq!(get(&gateway, "/object_info/Nowhere").await, json!({}));
    assert_eq!(get(&gateway, "/models/checkpoints").await, json!(names));

    // A worker that is away for a while takes nothing with it: its tasks wait for it.
    let hash = Sha256::of(one.as_bytes());
    let away =
        WorkerReport { health: Health::Unreachable, object_info: Some(hash), ..WorkerReport::default() };
    first.report(away).await;
    let all = get(&gateway, "/object_info").await;
    assert_eq!(all["OnlyOne"]["remuda"], json!({"workers": ["gpu-1"]}));
    let names = json!(["both.safetensors", "two.safetensors", "one.safetensors"]);
    let found = &all["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0];
    assert_eq!(*found, names, "what usable workers say comes first");
}

#[tokio::test]
async fn nothing_is_sent_again_that_the_client_has() {
    let gateway = Gateway::start_with(|options| options.owner = None).await;
    Worker::join(&gateway.ground, "gpu-1", Some(&info("one.safetensors", "OnlyOne"))).await;
    for path in ["/object_info", "/object_info/LoadImage"] {
        let first = gateway.get(path).send().await.unwrap();
        let etag = first.headers()["etag"].to_str().unwrap().to_owned();
        let again = || gateway.get(path).header("if-none-match", &etag).send();
        let answer = again().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer.headers()["etag"], etag.as_str());
        assert!(answer.bytes().await.unwrap().is_empty());
    }
    let whole = gateway.get("/object_info").send().await.unwrap();
    let etag = whole.headers()["etag"].to_str().unwrap().to_owned();
    Worker::join(&gateway.ground, "gpu-2", Some(&info("two.safetensors", "OnlyTwo"))).await;
    let changed = gateway.get("/object_info").header("if-none-match", &etag).send().await.unwrap();
    assert_eq!(changed.status(), StatusCode::OK);
}

#[tokio::test]
async fn uploads_are_choices_for_their_own_tenant() {
    let ground = Ground::new().await;
    let both = [Scope::Submit, Scope::Read];
    let (mine, yours) = (ground.key("mine", &both).await, ground.key("yours", &both).await);
    let gateway = Gateway::on(ground, |options| options.owner = None).await;
    Worker::join(&gateway.ground, "gpu-1", Some(&info("one.safetensors", "OnlyOne"))).await;
    for (name, bytes) in [("fox.png", "a fox"), ("dog.mp4", "a dog")] {
        let upload = gateway.post(&format!("/api/v1/assets?filename={name}")).bearer_auth(&mine).body(bytes);
        support::json(upload.send().await.unwrap(), 201).await;
    }
    let of = async |key: &str, path: &str| {
        support::json(gateway.get(path).bearer_auth(key).send().await.unwrap(), 200).await
    };
    for path in ["/object_info", "/object_info/LoadImage"] {
        let images = |all: Value| all["LoadImage"]["input"]["required"]["image"][0].clone();
        assert_eq!(images(of(&mine, path).await), json!(["example.png", "fox.png"]), "{path}");
        assert_eq!(images(of(&yours, path).await), json!(["example.png"]), "{path}");
    }
    let all = of(&mine, "/object_info").await;
    assert_eq!(all["LoadVideo"]["input"]["required"]["file"][1]["options"], json!(["dog.mp4"]));
    assert_eq!(all.as_object().unwrap().len(), 4, "the classes around them are all there");
    let asked = || gateway.get("/object_info").bearer_auth(&mine);
    let etag = asked().send().await.unwrap().headers()["etag"].to_str().unwrap().to_owned();
    let again = asked().header("if-none-match", &etag).send().await.unwrap();
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    let mut listed: Vec<String> = serde_json::from_value(of(&mine, "/internal/files/input").await).unwrap();
    listed.sort();
    assert_eq!(listed, ["dog.mp4", "fox.png"]);
    assert_eq!(of(&yours, "/internal/files/input").await, json!([]));
}

fn with_models(profile: Profile, folder: &str, names: &[&str]) -> SimConfig {
    let mut config = SimConfig { profile, ..SimConfig::default() };
    config.models.insert(folder.to_owned(), names.iter().map(|&name| name.to_owned()).collect());
    config
}

#[tokio::test]
async fn models_of_all_workers_are_listed_also_while_one_is_away() {
    let mut ranch = Ranch::start(0).await;
    let mut first = with_models(Profile::V0_7_0, "checkpoints", &["a.safetensors", "both.ckpt"]);
    first.models.insert("my_models".to_owned(), vec!["mine.bin".to_owned()]);
    first.models.insert("embeddings".to_owned(), vec!["ugly.pt".to_owned()]);
    ranch.add(first).await;
    ranch.add(with_models(Profile::V0_3_64, "checkpoints", &["b.safetensors", "both.ckpt"])).await;

    let checkpoints = json!(["a.safetensors", "b.safetensors", "both.ckpt"]);
    assert_eq!(ranch.get("/models/checkpoints").await, checkpoints);
    assert_eq!(ranch.get("/api/models/my_models").await, json!(["mine.bin"]));
    assert_eq!(ranch.get("/embeddings").await, json!(["easynegative", "ugly"]));
    let folders = ranch.get("/models").await;
    assert_eq!(folders[0], "checkpoints");
    assert!(folders.as_array().unwrap().contains(&json!("my_models")));
    let missing = ranch.gateway.get("/models/no_such_folder").send().await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert!(missing.bytes().await.unwrap().is_empty());
    let folders = ranch.get("/experiment/models").await;
    let names: Vec<_> =
        folders.as_array().unwrap().iter().map(|folder| folder["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"my_models") && !names.contains(&"custom_nodes"), "{names:?}");
    let paths = ranch.get("/internal/folder_paths").await;
    assert_eq!(paths["my_models"], json!(["models/my_models"]), "places on workers are not told");
    let files = ranch.get("/experiment/models/checkpoints").await;
    let names: Vec<_> = files.as_array().unwrap().iter().map(|file| file["name"].clone()).collect();
    assert_eq!(Value::from(names), checkpoints);
    let no_metadata =
        ranch.gateway.get("/view_metadata/checkpoints?filename=a.safetensors").send().await.unwrap();
    assert_eq!(no_metadata.status(), StatusCode::NOT_FOUND);
    let loader = ranch.get("/object_info/CheckpointLoaderSimple").await;
    let rare = &loader["CheckpointLoaderSimple"]["remuda"]["choices"]["ckpt_name"];
    assert_eq!(rare.as_object().unwrap().keys().collect::<Vec<_>>(), ["a.safetensors", "b.safetensors"]);

    let stats = ranch.get("/system_stats").await;
    assert_eq!(stats["system"]["comfyui_version"], "0.3.64", "what the oldest can do, all can");
    assert_eq!(stats["devices"].as_array().unwrap().len(), 2);
    assert!(stats["system"]["ram_total"].as_u64().is_some() && stats["system"]["argv"].is_array());

    let gone = ranch.sims.remove(1);
    gone.shutdown().await;
    let away = wait::until("the worker to be away", BOUND, async || {
        let workers = ranch.gateway.store().workers().await.unwrap();
        workers.iter().any(|worker| worker.report.health == Health::Unreachable).then_some(())
    });
    away.await.unwrap();
    assert_eq!(ranch.get("/models/checkpoints").await, checkpoints);
    assert_eq!(ranch.get("/system_stats").await["system"]["comfyui_version"], "0.7.0");
    ranch.stop().await;
}

fn put(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

#[tokio::test]
async fn scripts_of_custom_nodes_come_from_the_worker_that_has_them() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for root in [&one, &two] {
        put(root.path(), "index.html", "<!doctype html>");
    }
    put(one.path(), "extensions/core/page.js", "// of the page");
    put(one.path(), "extensions/first/main.js", "// first");
    put(two.path(), "extensions/second/js/main.js", "// second");
    put(two.path(), "extensions/second/style.css", "p {}");
    let page = tempfile::tempdir().unwrap();
    put(page.path(), "index.html", "<!doctype html>");
    put(page.path(), "extensions/core/page.js", "// of our own page");
    put(two.path(), "templates/index.json", "[{\"moduleName\": \"default\"}]");
    let folder = page.path().to_owned();
    let mut ranch = Ranch::start_with(0, |options| options.frontend = Some(folder)).await;
    for root in [&one, &two] {
        ranch.add(SimConfig { frontend: Some(root.path().to_owned()), ..SimConfig::default() }).await;
    }
    let scripts = json!(["/extensions/first/main.js", "/extensions/second/js/main.js"]);
    assert_eq!(ranch.get("/extensions").await, scripts);
    assert_eq!(ranch.get("/api/extensions").await, scripts);
    for (path, text, kind) in [
        ("/extensions/core/page.js", "// of our own page", "javascript"),
        ("/extensions/first/main.js", "// first", "javascript"),
        ("/extensions/second/js/main.js", "// second", "javascript"),
        ("/api/extensions/second/style.css", "p {}", "css"),
    ] {
        let answer = ranch.gateway.get(path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert!(answer.headers()["content-type"].to_str().unwrap().contains(kind), "{path}");
        assert_eq!(answer.text().await.unwrap(), text);
    }
    let etag = ranch.gateway.get("/extensions/first/main.js").send().await.unwrap().headers()["etag"].clone();
    let again =
        ranch.gateway.get("/extensions/first/main.js").header("if-none-match", etag).send().await.unwrap();
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    for path in [
        "/extensions/third/main.js",
        "/extensions/first/..%2f..%2fqueue",
        "/extensions/.%09./queue",
        "/templates/.%0a./history",
        "/extensions/core/other.js",
    ] {
        let answer = ranch.gateway.get(path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(ranch.get("/templates/index.json").await, json!([{"moduleName": "default"}]));
    assert_eq!(ranch.get("/templates/index_logo.json").await, json!({}));
    ranch.stop().await;
}

#[tokio::test]
async fn what_the_page_asks_for_at_its_start_is_there() {
    let ranch = Ranch::start_with(1, |options| options.limits.asset = 12_345).await;
    let features = ranch.get("/features").await;
    assert_eq!(features, json!({"supports_preview_metadata": true, "max_upload_size": 12_345}));
    for path in ["/i18n", "/workflow_templates", "/global_subgraphs", "/node_replacements"] {
        assert_eq!(ranch.get(path).await, json!({}), "{path}");
        assert_eq!(ranch.get(&format!("/api{path}")).await, json!({}), "{path}");
    }
    assert_eq!(ranch.get("/global_subgraphs/x").await, Value::Null);
    assert_eq!(ranch.get("/templates/index.json").await, json!([]));
    let logs = json!({"entries": [], "size": {"cols": 80, "rows": 24}});
    assert_eq!(ranch.get("/internal/logs/raw").await, logs);
    let subscribe = ranch.gateway.request(reqwest::Method::PATCH, "/internal/logs/subscribe");
    let subscribe = subscribe.json_text(r#"{"enabled": true, "clientId": "x"}"#).send().await.unwrap();
    assert_eq!(subscribe.status(), StatusCode::OK);
    assert_eq!(ranch.get("/internal/files/output").await, json!([]));
    let wrong = ranch.gateway.get("/internal/files/secrets").send().await.unwrap();
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    let cluster = ranch.gateway.get("/internal/v1/frames/x").send().await.unwrap();
    assert_eq!(cluster.status(), StatusCode::UNAUTHORIZED, "what is between gateways stays between them");
    ranch.stop().await;
}

#[tokio::test]
async fn a_worker_that_hangs_holds_nobody_up_for_long() {
    let hung = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start().await;
    let endpoint = format!("http://{}", hung.local_addr().unwrap());
    Worker::join_at(&gateway.ground, "gpu-1", &endpoint, Some(&info("one.safetensors", "OnlyOne"))).await;
    let began = std::time::Instant::now();
    // What the store knows is there; what only the worker could tell is not made up.
    let names = json!(["both.safetensors", "one.safetensors"]);
    assert_eq!(get(&gateway, "/models/checkpoints").await, names);
    let unknown = gateway.get("/models/my_models").send().await.unwrap();
    assert_eq!(unknown.status(), StatusCode::SERVICE_UNAVAILABLE);
    let script = gateway.get("/extensions/first/main.js").send().await.unwrap();
    assert_eq!(script.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(began.elapsed() < Duration::from_secs(60), "one wait is enough: {:?}", began.elapsed());
}

#[tokio::test]
async fn pages_of_a_worker_are_shut_in() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "index.html", "<!doctype html>");
    put(root.path(), "extensions/first/main.js", "// first");
    put(root.path(), "extensions/first/page.html", "<script>steal()</script>");
    put(root.path(), "extensions/first/picture.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>");
    put(root.path(), "templates/page.html", "<script>steal()</script>");
    let page = tempfile::tempdir().unwrap();
    put(page.path(), "index.html", "<!doctype html>");
    for frontend in [None, Some(page.path().to_owned())] {
        let shown = frontend.is_some();
        let mut ranch = Ranch::start_with(0, |options| options.frontend = frontend).await;
        ranch.add(SimConfig { frontend: Some(root.path().to_owned()), ..SimConfig::default() }).await;
        for path in ["/extensions/first/page.html", "/extensions/first/picture.svg", "/templates/page.html"] {
            let answer = ranch.gateway.get(path).send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
            let policy = answer.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("sandbox") && !policy.contains("allow-same-origin"), "{policy}");
            assert_eq!(policy.contains("allow-scripts"), shown, "{path}: {policy}");
            assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        }
        let script = ranch.gateway.get("/extensions/first/main.js").send().await.unwrap();
        assert!(!script.headers().contains_key("content-security-policy"), "a page may load it");
        ranch.stop().await;
    }
}
