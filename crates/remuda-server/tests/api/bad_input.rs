//! Every kind of bad input is one clear error with the right status, and nothing else.

use serde_json::{Value, json};

use crate::support::{GRAPH, Gateway, JsonText as _, json as body_of};

/// What is sent, the status, the code, the field, and a word of the message.
type Case = (&'static str, String, u16, &'static str, Option<&'static str>, &'static str);

fn cases() -> Vec<Case> {
    let with = |fields: &str| format!("{{{fields}, \"payload\": {GRAPH}}}");
    let graph = |graph: &str| format!("{{\"payload\": {graph}}}");
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    vec![
        ("empty", String::new(), 400, "not_json", None, "empty"),
        ("not JSON", "workflow=1".to_owned(), 400, "not_json", None, "line 1"),
        ("cut short", "{\"payload\": {".to_owned(), 400, "not_json", None, "EOF"),
        ("more after it", format!("{} x", graph(GRAPH)), 400, "not_json", None, "trailing"),
        ("bare NaN", graph("{\"1\": NaN}"), 400, "not_json", None, "line 1"),
        ("a list", "[1]".to_owned(), 422, "not_an_object", None, "object"),
        ("a text", "\"x\"".to_owned(), 422, "not_an_object", None, "object"),
        ("no payload", "{}".to_owned(), 422, "invalid_field", Some("payload"), "missing"),
        ("unknown field", with("\"prioritty\": 1"), 422, "invalid_field", Some("prioritty"), "unknown"),
        (
            "unknown inner field",
            with("\"requires\": {\"gpu\": 1}"),
            422,
            "invalid_field",
            Some("requires.gpu"),
            "unknown",
        ),
        (
            "doubled field",
            with("\"priority\": 1, \"priority\": 2"),
            422,
            "invalid_field",
            Some("priority"),
            "duplicate",
        ),
        ("priority 10", with("\"priority\": 10"), 422, "invalid_field", Some("priority"), "0 (lowest) to 9"),
        ("priority -1", with("\"priority\": -1"), 422, "invalid_field", Some("priority"), "-1"),
        ("priority text", with("\"priority\": \"high\""), 422, "invalid_field", Some("priority"), "high"),
        ("priority 5.5", with("\"priority\": 5.5"), 422, "invalid_field", Some("priority"), "5.5"),
        (
            "priority huge",
            with("\"priority\": 99999999999999999999"),
            422,
            "invalid_field",
            Some("priority"),
            "priority",
        ),
        ("timeout -1", with("\"timeout_s\": -1"), 422, "invalid_field", Some("timeout_s"), "-1"),
        ("timeout 0", with("\"timeout_s\": 0"), 422, "invalid_field", Some("timeout_s"), "1 to"),
        ("retries -1", with("\"max_retries\": -1"), 422, "invalid_field", Some("max_retries"), "-1"),
        ("not a moment", with("\"not_before\": \"soon\""), 422, "invalid_field", Some("not_before"), "year"),
        (
            "deadline passed",
            with("\"deadline\": \"2001-01-01T00:00:00Z\""),
            422,
            "invalid_field",
            Some("deadline"),
            "passed",
        ),
        (
            "deadline before start",
            with("\"not_before\": \"2101-01-01T00:00:00Z\", \"deadline\": \"2100-01-01T00:00:00Z\""),
            422,
            "invalid_field",
            Some("not_before"),
            "deadline",
        ),
        (
            "the last deadline that can be told",
            with("\"deadline\": \"9999-12-30T22:00:00.999999999Z\""),
            422,
            "invalid_field",
            Some("deadline"),
            "the year 9000",
        ),
        (
            "a start before all",
            with("\"not_before\": \"-009999-01-02T01:59:59Z\""),
            422,
            "invalid_field",
            Some("not_before"),
            "1970",
        ),
        (
            "workflow_id number",
            with("\"workflow_id\": 7"),
            422,
            "invalid_field",
            Some("workflow_id"),
            "string",
        ),
        (
            "workflow_id empty",
            with("\"workflow_id\": \"\""),
            422,
            "invalid_field",
            Some("workflow_id"),
            "1 to 256",
        ),
        ("labels text", with("\"labels\": \"a\""), 422, "invalid_field", Some("labels"), "labels"),
        ("webhook", with("\"webhook\": \"http://x\""), 422, "invalid_field", Some("webhook"), "not possible"),
        (
            "metadata of many values",
            with(&format!("\"metadata\": [{}0]", "0,".repeat(2_000))),
            422,
            "invalid_field",
            Some("metadata"),
            "2000 values",
        ),
        (
            "many values",
            with(&format!("\"webhook\": [{}0]", "0,".repeat(200_000))),
            422,
            "too_many_values",
            None,
            "200000",
        ),
        (
            "metadata large",
            with(&format!("\"metadata\": \"{}\"", "x".repeat(70_000))),
            422,
            "invalid_field",
            Some("metadata"),
            "longer",
        ),
        (
            "inputs unknown node",
            with("\"inputs\": {\"77.image\": \"asset:x\"}"),
            422,
            "bad_input",
            Some("inputs"),
            "77.image",
        ),
        (
            "inputs unknown input",
            with("\"inputs\": {\"1.image\": \"a.png\"}"),
            422,
            "bad_input",
            Some("inputs"),
            "image",
        ),
        (
            "inputs link",
            with("\"inputs\": {\"2.images\": \"a.png\"}"),
            422,
            "bad_input",
            Some("inputs"),
            "linked",
        ),
        (
            "inputs no asset",
            with("\"inputs\": {\"1.color\": \"a.png\"}"),
            422,
            "bad_input",
            Some("inputs"),
            "a.png",
        ),
        ("graph text", graph("\"{}\""), 422, "not_a_graph", Some("payload"), "a text"),
        ("graph list", graph("[]"), 422, "not_a_graph", Some("payload"), "a list"),
        ("graph null", graph("null"), 422, "not_a_graph", Some("payload"), "null"),
        ("graph empty", graph("{}"), 422, "empty_graph", Some("payload"), "no nodes"),
        (
            "graph of the frontend",
            graph("{\"nodes\": [], \"links\": [], \"version\": 0.4}"),
            422,
            "ui_format",
            Some("payload"),
            "API format",
        ),
        (
            "graph wrapped",
            graph(&format!("{{\"prompt\": {GRAPH}}}")),
            422,
            "not_a_graph",
            Some("payload"),
            "prompt",
        ),
        ("graph deep", graph(&format!("{{\"1\": {deep}}}")), 422, "not_a_graph", Some("payload"), "nested"),
        (
            "graph that kills",
            graph("{\"1\": {\"class_type\": \"SaveImage\"}}"),
            422,
            "dangerous_graph",
            Some("payload"),
            "inputs",
        ),
        (
            "graph in a circle",
            graph(
                "{\"1\": {\"class_type\": \"A\", \"inputs\": {\"x\": [\"2\", 0]}}, \"2\": {\"class_type\": \"A\", \"inputs\": {\"x\": [\"1\", 0]}}}",
            ),
            422,
            "invalid_graph",
            Some("payload"),
            "1",
        ),
        (
            "graph with a loose end",
            graph("{\"1\": {\"class_type\": \"A\", \"inputs\": {\"x\": [\"9\", 0]}}}"),
            422,
            "invalid_graph",
            Some("payload"),
            "node 9",
        ),
    ]
}

#[tokio::test]
async fn each_is_one_clear_error_and_nothing_is_queued() {
    let gateway = Gateway::start().await;
    let mut wrong = Vec::new();
    for (name, body, status, code, field, word) in cases() {
        let answer = gateway.post("/api/v1/tasks").json_text(&body).send().await.unwrap();
        let found = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        let error: Value = serde_json::from_str(&text).unwrap_or_default();
        let right = (found, error["code"].as_str(), error["field"].as_str()) == (status, Some(code), field)
            && error["error"].as_str().is_some_and(|text| text.contains(word));
        if !right {
            wrong.push(format!("{name}: {found} {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let counts = gateway.store().counts(None).await.unwrap();
    assert_eq!(counts, remuda_store::Counts::default());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_or_without_its_length() {
    let gateway = Gateway::start_with(|options| options.limits.body = 1 << 20).await;
    let large = vec![b' '; 3 << 20];
    let answer =
        gateway.post("/api/v1/tasks").header("content-type", "application/json").body(large.clone()).send();
    let error = body_of(answer.await.unwrap(), 413).await;
    assert_eq!(error["code"], "too_large");
    assert!(error["error"].as_str().unwrap().contains("1048576"), "{error}");
    let chunks = futures_util::stream::iter(
        large.chunks(1 << 16).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect::<Vec<_>>(),
    );
    let body = reqwest::Body::wrap_stream(chunks);
    let answer = gateway
        .post("/api/v1/tasks")
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 413);
}

#[tokio::test]
async fn another_content_type_is_named() {
    let gateway = Gateway::start().await;
    let answer = gateway
        .post("/api/v1/tasks")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("a=b")
        .send()
        .await
        .unwrap();
    let error = body_of(answer, 415).await;
    assert_eq!(error["field"], "Content-Type");
}

#[tokio::test]
async fn malformed_ids_are_400_and_unknown_ones_404_on_every_route() {
    let gateway = Gateway::start().await;
    let unknown = uuid::Uuid::new_v4();
    for (method, rest) in
        [("GET", ""), ("DELETE", ""), ("POST", "/retry"), ("GET", "/events"), ("GET", "/outputs/0")]
    {
        let method: reqwest::Method = method.parse().unwrap();
        for (id, status, code) in
            [("nonsense".to_owned(), 400, "malformed_id"), (unknown.to_string(), 404, "not_found")]
        {
            let path = format!("/api/v1/tasks/{id}{rest}");
            let error = body_of(gateway.request(method.clone(), &path).send().await.unwrap(), status).await;
            assert_eq!(error["code"], code, "{method} {path}");
        }
    }
    let error = body_of(gateway.get("/api/v1/assets/xyz").send().await.unwrap(), 400).await;
    assert_eq!(error["code"], "malformed_id");
}

#[tokio::test]
async fn wrong_queries_routes_and_methods_are_told() {
    let gateway = Gateway::start().await;
    for (path, status, field) in [
        ("/api/v1/tasks?status=done", 422, json!("status")),
        ("/api/v1/tasks?limit=0", 422, json!("limit")),
        ("/api/v1/tasks?limit=501", 422, json!("limit")),
        ("/api/v1/tasks?limit=x", 422, Value::Null),
        ("/api/v1/tasks?workflow_id=%00", 422, json!("workflow_id")),
        ("/api/v1/tasks?before=x", 400, json!("before")),
        ("/api/v1/tasks?state=pending", 422, json!("state")),
        ("/api/v1/nothing", 404, Value::Null),
    ] {
        let error = body_of(gateway.get(path).send().await.unwrap(), status).await;
        assert_eq!(error["field"], field, "{path}: {error}");
    }
    let error = body_of(gateway.post("/api/v1/workers").send().await.unwrap(), 405).await;
    assert_eq!(error["code"], "method_not_allowed");
}

#[tokio::test]
async fn a_store_that_is_gone_is_503_and_says_when_to_come_back() {
    let gateway = Gateway::start().await;
    gateway.store().close().await;
    let answer =
        gateway.post("/api/v1/tasks").json_text(&format!("{{\"payload\": {GRAPH}}}")).send().await.unwrap();
    assert!(answer.headers().contains_key("retry-after"));
    body_of(answer, 503).await;
    body_of(gateway.get("/ready").send().await.unwrap(), 503).await;
    body_of(gateway.get("/live").send().await.unwrap(), 200).await;
}
