//! Adding a dialect, as CONTRIBUTING.md says it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::delete;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use remuda_core::{OwnerId, Scope, Tenant};
use remuda_files::{Files, Location};
use remuda_frames::FrameHub;
use remuda_store::{Options, SqliteStore, Store};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::{Contest, Dialect, example, nowhere};
use crate::keys_socket::{KeyReply, KeyRequest, perform};
use crate::options::ServerOptions;
use crate::state::AppState;
use crate::{native, routes, sync};

/// The list with one line more, and one that wants a method which a path of another has not.
const DIALECTS: &[Dialect] = &[routes::DIALECT, native::DIALECT, sync::DIALECT, example::DIALECT, OTHER];

const OTHER: Dialect = Dialect {
    routes: OpenApiRouter::new,
    refusal: None,
    contests: &[WIPE],
    key_in_query: nowhere,
    listens: None,
};

const WIPE: Contest = Contest {
    method: Method::DELETE,
    path: "/prompt",
    is_ours: <[u8]>::is_empty,
    handler: || delete(async || "wiped"),
};

struct Rig {
    state: AppState,
    router: Router,
    _dir: TempDir,
}

impl Rig {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let options = Options::new(OwnerId(Uuid::new_v4()));
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&dir.path().join("remuda.db"), options).await.unwrap());
        let files = Files::open(&Location::directory(dir.path().join("files"))).unwrap();
        let state = AppState::new(ServerOptions::new(store, files, FrameHub::default()));
        let router = super::router(DIALECTS, &state).with_state(state.clone());
        Self { state, router, _dir: dir }
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 7))));
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.ask(Method::POST, path, &body.to_string()).await
    }
}

fn graph() -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "blue"}},
    })
}

#[test]
fn the_page_shows_the_example_that_is_built_here() {
    let page = include_str!("../../../../CONTRIBUTING.md");
    let (_, section) = page.split_once("\n## Add a dialect\n").expect("the section is there");
    let (_, rest) = section.split_once("```rust\n").expect("it has an example");
    let (example, _) = rest.split_once("```\n").expect("it ends");
    let built = include_str!("example.rs");
    assert!(example == built, "copy crates/remuda-server/src/dialect/example.rs into CONTRIBUTING.md");
}

#[tokio::test]
async fn a_dialect_that_was_added_works() {
    let rig = Rig::new().await;
    let (status, job) = rig.post("/runs", &json!({"workflow": graph()})).await;
    assert_eq!((status, &job["state"]), (StatusCode::OK, &json!("pending")), "{job}");
    let id = job["job"].as_str().unwrap();
    assert_eq!(rig.ask(Method::GET, &format!("/runs/{id}"), "").await, (StatusCode::OK, job.clone()));
    // It is a task as any other.
    let (status, task) = rig.ask(Method::GET, &format!("/api/v1/tasks/{id}"), "").await;
    assert_eq!((status, &task["payload"]), (StatusCode::OK, &graph()));
    // Its description is there, and every error has its shape, whoever found it.
    let (routes, described) = (example::DIALECT.routes)().split_for_parts();
    drop(routes);
    assert_eq!(described.paths.paths.keys().collect::<Vec<_>>(), ["/runs", "/runs/{id}"]);
    let missing = format!("/runs/{}", Uuid::new_v4());
    for (method, path, body, expected) in [
        (Method::GET, missing.as_str(), "", 404),
        (Method::GET, "/runs/7", "", 400),
        (Method::POST, "/runs", "[", 400),
        (Method::POST, "/runs", "{\"workflow\": {}, \"more\": 1}", 422),
        (Method::DELETE, "/runs", "", 405),
    ] {
        let (status, body) = rig.ask(method, path, body).await;
        assert_eq!((status.as_u16(), &body["failed"]), (expected, &json!(true)), "{path}: {body}");
    }
    let request = KeyRequest::Make {
        name: "one".to_owned(),
        tenant: Tenant::default_tenant(),
        scopes: [Scope::Read].into(),
    };
    let KeyReply::Made { .. } = perform(&*rig.state.store, request).await.unwrap() else { panic!() };
    rig.state.keys.refresh().await.unwrap();
    let (status, body) = rig.ask(Method::GET, &format!("/runs/{id}"), "").await;
    assert_eq!((status, &body["failed"]), (StatusCode::UNAUTHORIZED, &json!(true)), "{body}");
}

#[tokio::test]
async fn two_dialects_want_one_path_and_the_body_says_whose_it_is() {
    let rig = Rig::new().await;
    let (status, ours) = rig.post("/prompt", &json!({"workflow": graph()})).await;
    assert_eq!((status, &ours["state"]), (StatusCode::OK, &json!("pending")), "{ours}");
    let (status, comfyui) = rig.post("/prompt", &json!({"prompt": graph()})).await;
    assert_eq!(status, StatusCode::OK);
    assert!(comfyui["prompt_id"].is_string() && comfyui["job"].is_null(), "{comfyui}");
    // Only the method and the path that are contested are; and each dialect says what is wrong in its own words.
    let (_, queue) = rig.ask(Method::GET, "/prompt", "").await;
    assert_eq!(queue["exec_info"]["queue_remaining"], 1);
    let (status, error) = rig.post("/prompt", &json!({"workflow": graph(), "more": 1})).await;
    assert_eq!((status.as_u16(), &error["failed"]), (422, &json!(true)), "{error}");
    let (status, error) = rig.post("/prompt", &json!({"neither": 1})).await;
    assert_eq!((status.as_u16(), &error["error"]["type"]), (400, &json!("no_prompt")), "{error}");
    let (status, _) = rig.ask(Method::POST, "/prompt", "not JSON").await;
    assert!(status.is_client_error());
    assert_eq!(rig.ask(Method::DELETE, "/prompt", "").await.0, StatusCode::OK);
    assert_eq!(rig.ask(Method::DELETE, "/prompt", "{}").await.0, StatusCode::METHOD_NOT_ALLOWED);
    // A body that is too large is nobody's.
    let long = format!("{{\"workflow\": \"{}\"}}", "x".repeat(33 << 20));
    assert_eq!(rig.ask(Method::POST, "/prompt", &long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

/// What a door does with tasks, the service does for all of them.
#[test]
fn no_door_reaches_around_the_service() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for folder in ["native/prompts", "sync"] {
        for entry in std::fs::read_dir(source.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("state.store."), "{} asks the store itself", path.display());
        }
    }
}

/// The service knows no dialect, no socket and no request.
#[test]
fn the_service_knows_no_door() {
    let service = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/service");
    for entry in std::fs::read_dir(service).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for door in ["desk", "crate::native", "crate::routes", "crate::sync", "Visit::", "axum"] {
            assert!(!text.contains(door), "{} knows {door}", path.display());
        }
    }
}
