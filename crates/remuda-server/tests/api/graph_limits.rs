//! Graphs that are large, and graphs that are too large.

use std::time::{Duration, Instant};

use serde_json::{Value, json as value};

use crate::support::{Gateway, JsonText as _, Worker, json};

const INFO: &str = r#"{"SaveImage": {"input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING"]}}, "output_node": true},
    "LoadImage": {"input": {"required": {"image": [[], {"image_upload": true}]}}, "output": ["IMAGE"]}}"#;

/// The whole attack took longer than any test would wait; a slow machine has time enough.
const PROMPTLY: Duration = Duration::from_secs(60);

fn save(from: &str) -> String {
    format!(r#"{{"class_type": "SaveImage", "inputs": {{"images": ["{from}", 0], "filename_prefix": "a"}}}}"#)
}

/// A picture that is saved `n` times.
fn saved(n: usize) -> String {
    let mut nodes = vec![r#""in": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}"#.to_owned()];
    nodes.extend((0..n).map(|at| format!("\"{at}\": {}", save("in"))));
    format!("{{{}}}", nodes.join(", "))
}

/// One node with `n` inputs too large for a float.
fn infinite(n: usize) -> String {
    let inputs: Vec<String> = (0..n).map(|at| format!("\"i{at}\": 1e999")).collect();
    format!("{{\"1\": {{\"class_type\": \"SaveImage\", \"inputs\": {{{}}}}}}}", inputs.join(", "))
}

async fn post(gateway: &Gateway, path: &str, body: String, status: u16) -> Value {
    let begun = Instant::now();
    let answer = json(gateway.post(path).json_text(&body).send().await.unwrap(), status).await;
    assert!(begun.elapsed() < PROMPTLY, "{:?} for {path}", begun.elapsed());
    answer
}

async fn submit(gateway: &Gateway, graph: &str, status: u16) -> Value {
    post(gateway, "/api/v1/tasks", format!("{{\"payload\": {graph}}}"), status).await
}

async fn gateway() -> Gateway {
    let gateway = Gateway::start().await;
    Worker::join(&gateway.ground, "one", Some(INFO)).await;
    gateway
}

#[tokio::test]
async fn large_graphs_are_taken_promptly() {
    let gateway = gateway().await;
    submit(&gateway, &saved(12_000), 201).await;
    let error = submit(&gateway, &infinite(4_000), 422).await;
    assert_eq!((&error["code"], &error["node_id"]), (&value!("dangerous_graph"), &value!("1")));
    assert!(error["detail"].as_str().unwrap().ends_with("more"), "{error}");
    // The same id again and again, and links of all to all.
    let twice = format!("{{{}}}", vec![format!("\"1\": {}", save("1")); 10_000].join(", "));
    submit(&gateway, &twice, 422).await;
    let targets: Vec<String> = (0..9_000).map(|at| at.to_string()).collect();
    let body =
        format!("{{\"prompt\": {}, \"partial_execution_targets\": {}}}", saved(10_000), value!(targets));
    post(&gateway, "/prompt", body, 200).await;
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_the_name_of_its_limit() {
    let gateway = gateway().await;
    let name = "x".repeat(2_000);
    let cases = [
        (saved(20_001), "graph.nodes", Value::Null),
        (infinite(15_000), "graph.inputs", value!("1")),
        (format!("{{\"{name}\": {}}}", save("1")), "graph.name_length", value!(format!("{}…", &name[..60]))),
        (
            format!("{{\"1\": {{\"class_type\": \"{name}\", \"inputs\": {{}}}}}}"),
            "graph.name_length",
            value!("1"),
        ),
        (
            format!("{{\"1\": {{\"class_type\": \"A\", \"inputs\": {{\"{name}\": 1}}}}}}"),
            "graph.name_length",
            value!("1"),
        ),
        (saved(1).replace("a.png", &name), "graph.name_length", value!("in")),
    ];
    for (graph, limit, node) in &cases {
        let error = submit(&gateway, graph, 422).await;
        let told = (&error["code"], &error["limit"], &error["field"], &error["node_id"]);
        assert_eq!(told, (&value!("graph_too_large"), &value!(limit), &value!("payload"), node), "{error}");
        assert!(error["error"].as_str().unwrap().ends_with(&format!("(the limit is {limit})")), "{error}");
        // ComfyUI's own shape.
        let error = post(&gateway, "/prompt", format!("{{\"prompt\": {graph}}}"), 400).await;
        assert_eq!(
            (&error["error"]["type"], &error["error"]["extra_info"]["limit"]),
            (&value!("invalid_prompt"), &value!(limit))
        );
        assert!(error["node_errors"].is_object() && error["error"]["message"].is_string());
        let error = post(&gateway, "/prompt_sync", format!("{{\"prompt\": {graph}}}"), 400).await;
        assert!(error["detail"].as_str().unwrap().contains(limit), "{error}");
    }
}

#[tokio::test]
async fn what_comfyui_would_write_too_long_is_refused() {
    let gateway = Gateway::start_with(|options| options.limits.body = 2 << 20).await;
    let graph = |text: &str, times: usize| {
        saved(1).replacen(
            "{\"class_type\"",
            &format!("{{\"_meta\": {{\"title\": \"{}\"}}, \"class_type\"", text.repeat(times)),
            1,
        )
    };
    submit(&gateway, &graph("x", 3 << 19), 201).await;
    submit(&gateway, &graph("\u{1f600}", 30_000), 201).await;
    // 1.2 MB as they come, 3.6 MB as ComfyUI writes them.
    let faces = graph("\u{1f600}", 300_000);
    let error = submit(&gateway, &faces, 422).await;
    assert_eq!((&error["code"], &error["limit"]), (&value!("graph_too_large"), &value!("server.body_limit")));
    let error = post(&gateway, "/prompt", format!("{{\"prompt\": {faces}}}"), 400).await;
    assert_eq!(error["error"]["extra_info"]["limit"], "server.body_limit", "{error}");
    let extra = format!(
        "{{\"prompt\": {}, \"extra_data\": {{\"note\": \"{}\"}}}}",
        saved(1),
        "\u{1f600}".repeat(300_000)
    );
    let error = post(&gateway, "/prompt", extra.clone(), 400).await;
    assert_eq!(error["error"]["extra_info"]["limit"], "server.body_limit", "{error}");
    let error = post(&gateway, "/prompt_sync", extra, 400).await;
    assert!(error["detail"].as_str().unwrap().contains("server.body_limit"), "{error}");
}

#[tokio::test]
async fn files_and_targets_have_limits_too() {
    let gateway = gateway().await;
    let dots = ".".repeat(50_000);
    let body = format!("{{\"payload\": {}, \"inputs\": {{\"{dots}\": \"a.png\"}}}}", saved(100));
    let error = post(&gateway, "/api/v1/tasks", body, 422).await;
    assert_eq!(error["limit"], "graph.name_length", "{error}");
    assert!(error["error"].as_str().unwrap().len() < 1_000);
    let dots = ".".repeat(2_000);
    let body = format!("{{\"payload\": {}, \"inputs\": {{\"{dots}\": \"a.png\"}}}}", saved(10_000));
    assert_eq!(post(&gateway, "/api/v1/tasks", body, 422).await["code"], "bad_input");

    let load = |at: usize| {
        format!("\"{at}\": {{\"class_type\": \"LoadImage\", \"inputs\": {{\"image\": \"{at}.png\"}}}}")
    };
    let files: Vec<String> = (0..1_001).map(load).collect();
    let error = submit(&gateway, &format!("{{{}, \"out\": {}}}", files.join(", "), save("1")), 422).await;
    assert_eq!((&error["limit"], &error["field"]), (&value!("graph.files"), &value!("inputs")), "{error}");
    // One file for many nodes is one file.
    let same: Vec<String> = (0..2_000).map(|at| load(at).replace(&format!("{at}.png"), "a.png")).collect();
    submit(&gateway, &format!("{{{}, \"out\": {}}}", same.join(", "), save("1")), 201).await;

    let targets: Vec<String> = (0..10_001).map(|at| at.to_string()).collect();
    let body = format!("{{\"prompt\": {}, \"partial_execution_targets\": {}}}", saved(10), value!(targets));
    let error = post(&gateway, "/prompt", body, 400).await;
    assert_eq!(error["error"]["extra_info"]["limit"], "graph.targets", "{error}");
}
