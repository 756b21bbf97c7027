//! Settings and user data: kept here, each tenant's apart.

use remuda_core::Scope;
use serde_json::{Value, json};

use crate::support::{self, Gateway, Ground, JsonText as _};

async fn get(gateway: &Gateway, path: &str) -> Value {
    support::json(gateway.get(path).send().await.unwrap(), 200).await
}

async fn status(request: reqwest::RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn settings_are_kept_one_by_one() {
    let gateway = Gateway::start().await;
    assert_eq!(get(&gateway, "/users").await, json!({"storage": "server", "migrated": true}));
    assert_eq!(get(&gateway, "/api/settings").await, json!({}));
    assert_eq!(get(&gateway, "/settings/Comfy.Locale").await, Value::Null);
    assert_eq!(status(gateway.post("/settings/Comfy.Locale").json_text("\"de\"")).await, 200);
    assert_eq!(
        status(gateway.post("/api/settings").json_text(r#"{"a.b": {"x": [1.50]}, "c": null}"#)).await,
        200
    );
    assert_eq!(
        get(&gateway, "/settings").await,
        json!({"Comfy.Locale": "de", "a.b": {"x": [1.5]}, "c": null})
    );
    assert_eq!(get(&gateway, "/settings/Comfy.Locale").await, "de");
    for body in ["nonsense", "[1]", ""] {
        assert_eq!(status(gateway.post("/settings").json_text(body)).await, 400, "{body}");
    }
    assert_eq!(status(gateway.post("/settings/x").json_text("{")).await, 400);
}

#[tokio::test]
async fn files_of_the_user_are_kept_listed_moved_and_deleted() {
    let gateway = Gateway::start().await;
    assert_eq!(status(gateway.get("/userdata?dir=workflows")).await, 404);
    assert_eq!(status(gateway.get("/userdata")).await, 400);
    let put = |path: &str, body: &'static str| gateway.post(&format!("/userdata/{path}")).body(body).send();
    let told = support::json(put("workflows%2Ffox.json", "{}").await.unwrap(), 200).await;
    assert_eq!(told, "workflows/fox.json");
    let told = put("workflows%2Fsub%2Fdeep.json?full_info=true", "[1]").await.unwrap();
    let told = support::json(told, 200).await;
    assert_eq!((&told["path"], &told["size"]), (&json!("workflows/sub/deep.json"), &json!(3)));
    assert!(told["modified"].as_f64().unwrap() > 1e9);
    assert_eq!(put("workflows%2Ffox.json?overwrite=false", "x").await.unwrap().status(), 409);
    assert_eq!(put("..%2Fescape.json", "x").await.unwrap().status(), 403);
    assert_eq!(put("%252e%252e%2Fescape.json", "x").await.unwrap().status(), 403);
    assert_eq!(get(&gateway, "/api/userdata?dir=workflows").await, json!(["fox.json"]));
    let all = get(&gateway, "/userdata?dir=workflows&recurse=true&split=true").await;
    assert_eq!(all, json!([["fox.json", "fox.json"], ["sub/deep.json", "sub", "deep.json"]]));
    let newer = get(&gateway, "/v2/userdata?path=workflows").await;
    let names: Vec<_> = newer.as_array().unwrap().iter().map(|entry| &entry["path"]).collect();
    assert_eq!(names, ["workflows/sub", "workflows/sub/deep.json", "workflows/fox.json"]);
    let file = gateway.get("/userdata/workflows%2Ffox.json").send().await.unwrap();
    assert_eq!(file.headers()["content-type"], "application/json");
    assert_eq!(file.text().await.unwrap(), "{}");
    let moved =
        gateway.post("/userdata/workflows%2Ffox.json/move/workflows%2Fhorse.json").send().await.unwrap();
    assert_eq!(support::json(moved, 200).await, "workflows/horse.json");
    assert_eq!(status(gateway.get("/userdata/workflows%2Ffox.json")).await, 404);
    let taken =
        gateway.post("/userdata/workflows%2Fhorse.json/move/workflows%2Fsub%2Fdeep.json?overwrite=false");
    assert_eq!(status(taken).await, 409);
    assert_eq!(status(gateway.delete("/userdata/workflows%2Fhorse.json")).await, 204);
    assert_eq!(status(gateway.delete("/userdata/workflows%2Fhorse.json")).await, 404);
    let large = gateway.post("/userdata/large.bin").body(vec![0; (16 << 20) + 1]);
    assert_eq!(status(large).await, 413);
}

#[tokio::test]
async fn nobody_sees_what_another_tenant_keeps() {
    let ground = Ground::new().await;
    let mine = ground.key("mine", &[Scope::Submit, Scope::Read]).await;
    let yours = ground.key("yours", &[Scope::Submit, Scope::Read]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    for path in ["/userdata/workflows%2Fsecret.json", "/settings/secret"] {
        assert_eq!(status(gateway.post(path).bearer_auth(&mine).body("\"secret\"")).await, 200);
    }
    for path in [
        "/settings",
        "/settings/secret",
        "/userdata?dir=workflows&recurse=true",
        "/v2/userdata",
        "/userdata/workflows%2Fsecret.json",
    ] {
        let own = gateway.get(path).bearer_auth(&mine).send().await.unwrap().text().await.unwrap();
        assert!(own.contains("secret"), "{path}: {own}");
        let other = gateway.get(path).bearer_auth(&yours).send().await.unwrap().text().await.unwrap();
        assert!(!other.contains("secret"), "{path}: {other}");
    }
    assert_eq!(status(gateway.delete("/userdata/workflows%2Fsecret.json").bearer_auth(&yours)).await, 404);
}

#[tokio::test]
async fn paths_are_not_deeper_than_a_list_can_show() {
    let gateway = Gateway::start().await;
    let path = |parts: usize| format!("/userdata/{}", vec!["a"; parts].join("%2F"));
    assert_eq!(status(gateway.post(&path(32)).body("x")).await, 200);
    assert_eq!(status(gateway.post(&path(33)).body("x")).await, 400);
    assert_eq!(status(gateway.post(&format!("{}/move/{}", path(32), &path(33)[10..]))).await, 400);
    assert_eq!(get(&gateway, "/v2/userdata").await.as_array().unwrap().len(), 32);
}
