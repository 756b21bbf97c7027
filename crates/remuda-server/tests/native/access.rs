//! The ways in which keys reach the native routes, and that no route goes without.

use remuda_core::{Scope, TaskId};
use reqwest::{Client, Method, redirect};

use crate::support::{self, GRAPH, Gateway, Ground, JsonText as _};

const BOTH: [Scope; 2] = [Scope::Submit, Scope::Read];

/// Every route of ComfyUI's that is here, each also below `/api`.
fn routes(task: &str) -> Vec<(Method, String)> {
    let both = [
        (Method::GET, "/prompt"),
        (Method::POST, "/prompt"),
        (Method::GET, "/queue"),
        (Method::POST, "/queue"),
        (Method::GET, "/history"),
        (Method::GET, "/history/{id}"),
        (Method::POST, "/history"),
        (Method::POST, "/interrupt"),
        (Method::POST, "/free"),
        (Method::GET, "/view?filename=secret.png&type=input"),
        (Method::GET, "/view?filename=blue_00001_.png&subfolder=remuda/{id}"),
        (Method::POST, "/upload/image"),
        (Method::POST, "/upload/mask"),
        (Method::GET, "/object_info"),
        (Method::GET, "/object_info/LoadImage"),
        (Method::GET, "/models"),
        (Method::GET, "/embeddings"),
        (Method::GET, "/extensions"),
        (Method::GET, "/system_stats"),
        (Method::GET, "/features"),
        (Method::GET, "/users"),
        (Method::GET, "/settings"),
        (Method::POST, "/settings"),
        (Method::GET, "/settings/secret"),
        (Method::POST, "/settings/x"),
        (Method::GET, "/userdata?dir=workflows&recurse=true"),
        (Method::GET, "/v2/userdata"),
        (Method::GET, "/userdata/workflows%2Fsecret.json"),
        (Method::POST, "/userdata/x.json"),
        (Method::DELETE, "/userdata/workflows%2Fsecret.json"),
        (Method::POST, "/userdata/workflows%2Fsecret.json/move/y.json"),
        (Method::GET, "/ws"),
    ];
    let jobs = ["/api/jobs", "/api/jobs/{id}"].map(|path| (Method::GET, path.to_owned()));
    let both = both
        .into_iter()
        .flat_map(|(method, path)| [(method.clone(), path.to_owned()), (method, format!("/api{path}"))]);
    both.chain(jobs).map(|(method, path)| (method, path.replace("{id}", task))).collect()
}

#[tokio::test]
async fn no_native_route_goes_without_a_key_or_shows_anything_of_another_tenant() {
    let ground = Ground::new().await;
    let mine = ground.key("mine", &BOTH).await;
    let yours = ground.key("yours", &BOTH).await;
    let worker_only = ground.key("default", &[Scope::Worker]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let body = format!(r#"{{"prompt": {GRAPH}, "client_id": "secret", "extra_data": {{"x": "secret"}}}}"#);
    let prompt = gateway.post("/prompt").bearer_auth(&mine).json_text(&body).send().await.unwrap();
    let task = support::json(prompt, 200).await["prompt_id"].as_str().unwrap().to_owned();
    let worker = gateway.worker().await;
    worker.complete(&worker.claim().await, b"secret picture").await;
    let pending = gateway.post("/prompt").bearer_auth(&mine).json_text(&body).send().await.unwrap();
    let pending = support::json(pending, 200).await["prompt_id"].as_str().unwrap().to_owned();
    for path in ["/userdata/workflows%2Fsecret.json", "/settings/secret"] {
        let kept = gateway.post(path).bearer_auth(&mine).body("\"secret\"").send().await.unwrap();
        assert_eq!(kept.status(), 200);
    }
    let file = reqwest::multipart::Part::bytes(&b"secret"[..]).file_name("secret.png");
    let form = reqwest::multipart::Form::new().part("image", file);
    let kept = gateway.post("/upload/image").bearer_auth(&mine).multipart(form).send().await.unwrap();
    assert_eq!(kept.status(), 200);

    for (method, path) in routes(&task) {
        let ask = |key: Option<&str>| {
            let request = gateway.request(method.clone(), &path);
            let request = if method == Method::POST { request.json_text("{}") } else { request };
            match key {
                Some(key) => request.bearer_auth(key).send(),
                None => request.send(),
            }
        };
        assert_eq!(ask(None).await.unwrap().status(), 401, "{method} {path}");
        assert_eq!(ask(Some("rmd_wrong")).await.unwrap().status(), 401, "{method} {path}");
        assert_eq!(ask(Some(&worker_only)).await.unwrap().status(), 403, "{method} {path}");
        let answer = ask(Some(&yours)).await.unwrap();
        let status = answer.status();
        assert_ne!(status, 401, "{method} {path}");
        let text = String::from_utf8_lossy(&answer.bytes().await.unwrap()).into_owned();
        for secret in ["secret picture", "\"secret\"", "secret.json", &task, &pending] {
            assert!(!text.contains(secret), "{method} {path} ({status}): {text}");
        }
    }
    let kept: TaskId = pending.parse().unwrap();
    let kept = gateway.store().task(kept).await.unwrap().unwrap();
    assert_eq!(kept.status, remuda_core::Status::Pending, "and nothing was changed");
    let settings = gateway.get("/settings/secret").bearer_auth(&mine).send().await.unwrap();
    assert_eq!(settings.text().await.unwrap(), "\"secret\"");
}

#[tokio::test]
async fn a_key_can_be_a_password_a_token_or_a_cookie() {
    let ground = Ground::new().await;
    let key = ground.key("default", &BOTH).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    assert_eq!(status(gateway.get("/users").basic_auth("anyone", Some(&key))).await, 200);
    assert_eq!(status(gateway.get("/users").basic_auth("anyone", Some("rmd_wrong"))).await, 401);
    assert_eq!(status(gateway.get(&format!("/api/view?token={key}"))).await, 404);
    assert_eq!(status(gateway.get(&format!("/users?token={key}"))).await, 401, "only where it is needed");

    // A browser gets a page that asks for the key, and then a cookie for it.
    let page = gateway.get("/").header("accept", "text/html").send().await.unwrap();
    assert_eq!(page.status(), 401);
    assert!(page.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    assert!(page.text().await.unwrap().contains("name=\"token\""));
    let http = Client::builder().redirect(redirect::Policy::none()).build().unwrap();
    let wrong = http.get(format!("{}/?token=rmd_wrong", gateway.url)).send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    assert!(!wrong.headers().contains_key("set-cookie"));
    let answer = http.get(format!("{}/?token={key}", gateway.url)).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["location"]), (303, &"/".parse().unwrap()));
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with = |request: reqwest::RequestBuilder| request.header("cookie", &cookie);
    assert_eq!(status(with(gateway.get("/users"))).await, 200);
    // A browser sends the cookie also for pages of others: they may not change anything.
    let change =
        |origin: &str| with(gateway.post("/settings/x")).header("origin", origin.to_owned()).body("1");
    assert_eq!(status(change(&gateway.url)).await, 200);
    assert_eq!(status(change("http://evil.example")).await, 403);
    assert_eq!(status(change("null")).await, 403);
    assert_eq!(status(with(gateway.post("/settings/x")).body("1")).await, 403);
    let socket =
        with(gateway.get("/ws")).header("upgrade", "websocket").header("origin", "http://evil.example");
    assert_eq!(status(socket).await, 403);
    let by_password = gateway.post("/settings/x").basic_auth("me", Some(&key)).body("1");
    assert_eq!(status(by_password.try_clone().unwrap()).await, 200, "a program sends no origin");
    assert_eq!(status(by_password.header("origin", "http://evil.example")).await, 403);
}

#[tokio::test]
async fn a_cookie_of_earlier_days_does_not_shut_anybody_out() {
    let gateway = Gateway::start().await;
    let id = gateway.store().installation().await.unwrap().id.simple().to_string();
    let old = format!("remuda-{}=rmd_old", &id[..8]);
    let answer = gateway.get("/users").header("cookie", old).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}
