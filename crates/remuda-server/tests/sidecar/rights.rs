//! Every route of the worker's side with every wrong combination of key, process, worker, lease and fence: only the right
//! one changes anything.

use std::time::Duration;

use remuda_core::{ApiKey, Claim, Fence, KeyRecord, OwnerId, Scope, TaskId, WorkerId};
use remuda_runner::frames::{Frame, FrameKind};
use remuda_runner::source::{GatewaySource, Source};
use remuda_runner::wire;
use remuda_store::Acquired;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::ground::{BOUND, Ground, Sidecar, stream};

/// Everything that a request says of itself.
#[derive(Debug, Clone)]
struct Said {
    key: Option<ApiKey>,
    instance: OwnerId,
    worker: WorkerId,
    worker_fence: Fence,
    task: TaskId,
    fence: Fence,
    attempt: i32,
}

/// The routes. What a route does not say cannot be wrong with it.
const ROUTES: [(&str, &str); 12] = [
    ("acquire", "ki"),
    ("release", "kiwf"),
    ("claim", "kiwf"),
    ("adopt", "kiwf"),
    ("leases", "kiw"),
    ("beat lease", "kitl"),
    ("beat worker", "kiwf"),
    ("input", "kitl"),
    ("output", "kitla"),
    ("discard", "kitla"),
    ("give-back", "kitl"),
    ("end", "kitl"),
];

impl Said {
    async fn ask(&self, ground: &Ground, route: &str) -> reqwest::Response {
        let Self { worker, worker_fence, task, fence, attempt, .. } = self;
        let lease = json!({"task": task, "fence": fence});
        let held = json!({"worker": worker, "worker_fence": worker_fence});
        let spec = json!({"id": worker, "endpoint": "http://127.0.0.1:1", "name": null, "labels": []});
        let query = format!("fence={fence}&attempt={attempt}");
        let mut claim = held.clone();
        claim["capabilities"] = json!({"labels": [], "nodes": [], "models": []});
        let (method, path, body): (Method, String, Option<Value>) = match route {
            "acquire" => (Method::POST, "acquire".to_owned(), Some(json!({"spec": spec}))),
            "release" => {
                let body = json!({"worker": worker, "fence": worker_fence});
                (Method::POST, "release".to_owned(), Some(body))
            }
            "claim" => (Method::POST, "claim".to_owned(), Some(claim)),
            "adopt" => (Method::POST, "adopt".to_owned(), Some(held)),
            "leases" => (Method::GET, format!("leases?worker={worker}"), None),
            "beat lease" => {
                let beat = json!({"lease": lease, "phase": "collecting", "progress": 0.9});
                (Method::POST, "beat".to_owned(), Some(json!({"leases": [beat]})))
            }
            "beat worker" => {
                let beat = json!({"id": worker, "fence": worker_fence, "report": {"reason": "forged"}});
                (Method::POST, "beat".to_owned(), Some(json!({"workers": [beat]})))
            }
            "input" => (Method::GET, format!("tasks/{task}/input?fence={fence}&key=assets/aa/aaaa"), None),
            "output" => (Method::PUT, format!("tasks/{task}/outputs/0?{query}&filename=forged.png"), None),
            "discard" => (Method::DELETE, format!("tasks/{task}/outputs?{query}"), None),
            "give-back" => (Method::POST, "give-back".to_owned(), Some(json!({"lease": lease}))),
            "end" => {
                let failure = json!({"class": "validation", "message": "it broke"});
                let body = json!({"lease": lease, "ending": {"how": "failed", "failure": failure}});
                (Method::POST, "end".to_owned(), Some(body))
            }
            other => panic!("{other} is no route"),
        };
        let url = ground.url().join(&format!("/api/v1/worker/{path}")).unwrap();
        let mut request = reqwest::Client::new().request(method.clone(), url).timeout(BOUND);
        request = request.header(wire::OWNER, self.instance.to_string());
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }
        request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None if method == Method::PUT => request.body("forged"),
            None => request,
        };
        request.send().await.expect("an answer")
    }
}

/// What must not change.
async fn picture(ground: &Ground, tasks: &[TaskId]) -> String {
    let mut parts = vec![format!("{:?}", ground.store.workers().await.unwrap())];
    for &task in tasks {
        parts.push(format!("{:?}", ground.store.task(task).await.unwrap()));
        parts.push(format!("{:?}", ground.store.lease(task).await.unwrap()));
        parts.push(format!("{:?}", ground.store.attempts(task).await.unwrap()));
    }
    let files = remuda_files::FileKey::output(tasks[0].0, 1, 1, 0, "a b/ü.png");
    parts.push(format!("{:?}", ground.files.size(&files).await.unwrap()));
    let forged = remuda_files::FileKey::output(tasks[0].0, 1, 1, 0, "forged.png");
    parts.push(format!("{:?}", ground.files.size(&forged).await.unwrap()));
    parts.join("\n")
}

async fn key(ground: &Ground, scopes: &[Scope]) -> ApiKey {
    let key = ApiKey::generate(&mut rand::rng());
    ground.allow(&key, scopes.iter().copied().collect()).await;
    key
}

async fn record(ground: &Ground, key: &ApiKey) -> KeyRecord {
    let keys = ground.store.keys().await.unwrap();
    keys.into_iter().find(|record| record.hash == key.hash()).unwrap()
}

/// Waits until the server knows a key, or its end.
async fn known(ground: &Ground, key: &ApiKey, status: StatusCode) {
    let deadline = tokio::time::Instant::now() + BOUND;
    loop {
        let url = ground.url().join("/api/v1/worker/installation").unwrap();
        let request = reqwest::Client::new().get(url).bearer_auth(key.reveal());
        let answer = request.header(wire::OWNER, Uuid::nil().to_string()).send().await.unwrap();
        if answer.status() == status {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "the key is still {}", answer.status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn busy(ground: &Ground) -> (Sidecar, Claim) {
    let task = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    assert_eq!(claim.task.id, task);
    (sidecar, claim)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_right_combination_changes_anything() {
    let ground = Ground::new().await;
    let other_key = key(&ground, &[Scope::Worker]).await;
    let reader = key(&ground, &[Scope::Read, Scope::Submit]).await;
    let revoked = key(&ground, &[Scope::Worker]).await;
    known(&ground, &revoked, StatusCode::OK).await;
    ground.store.revoke_key(record(&ground, &revoked).await.id).await.unwrap();
    known(&ground, &revoked, StatusCode::UNAUTHORIZED).await;
    known(&ground, &other_key, StatusCode::OK).await;
    let (sidecar, claim) = busy(&ground).await;
    sidecar.deliver(&claim, 0, stream(b"mine")).await.unwrap();
    let (other, others) = busy(&ground).await;
    let waiting = ground.submit().await;
    let right = Said {
        key: Some(ground.key.clone()),
        instance: sidecar.owner,
        worker: sidecar.worker.clone(),
        worker_fence: sidecar.fence,
        task: claim.task.id,
        fence: claim.lease.fence,
        attempt: claim.lease.attempt,
    };
    // Each is wrong in one way: who asks (k, i), the worker and its fence (w, f), the task and its fence (t, l), the attempt.
    let stored = ground.store.lease(claim.task.id).await.unwrap().unwrap();
    let wrong = [
        ("another key", "k", Said { key: Some(other_key.clone()), ..right.clone() }),
        ("a key without the scope", "k", Said { key: Some(reader), ..right.clone() }),
        ("a revoked key", "k", Said { key: Some(revoked), ..right.clone() }),
        ("no key", "k", Said { key: None, ..right.clone() }),
        ("another process", "i", Said { instance: other.owner, ..right.clone() }),
        ("an unknown process", "i", Said { instance: OwnerId(Uuid::new_v4()), ..right.clone() }),
        ("the owner as the store knows it", "i", Said { instance: stored.owner, ..right.clone() }),
        ("another worker", "w", Said { worker: other.worker.clone(), ..right.clone() }),
        ("an unknown worker", "w", Said { worker: WorkerId::new("x").unwrap(), ..right.clone() }),
        ("an old hold", "f", Said { worker_fence: Fence(sidecar.fence.0 - 1), ..right.clone() }),
        ("a hold to come", "f", Said { worker_fence: sidecar.fence.next(), ..right.clone() }),
        ("another task", "t", Said { task: others.task.id, ..right.clone() }),
        ("a waiting task", "t", Said { task: waiting, ..right.clone() }),
        ("an unknown task", "t", Said { task: TaskId::new(), ..right.clone() }),
        ("an old fence", "l", Said { fence: Fence(claim.lease.fence.0 - 1), ..right.clone() }),
        ("a fence to come", "l", Said { fence: claim.lease.fence.next(), ..right.clone() }),
        ("another attempt", "a", Said { attempt: claim.lease.attempt + 1, ..right.clone() }),
    ];
    let tasks = [claim.task.id, others.task.id, waiting];
    let before = picture(&ground, &tasks).await;
    let mut asked = 0;
    for (route, says) in ROUTES {
        for (what, part, said) in &wrong {
            if !says.contains(part) {
                continue;
            }
            let answer = said.ask(&ground, route).await;
            let (status, text) = (answer.status(), answer.text().await.unwrap());
            let body: Value = serde_json::from_str(&text).unwrap_or_default();
            let lost = body["lost"].as_array().map_or(0, Vec::len)
                + body["lost_workers"].as_array().map_or(0, Vec::len);
            let held = route == "acquire" && body["yours"] == json!(false);
            let refused = [400, 401, 403, 404, 409].contains(&status.as_u16());
            assert!(refused || lost == 1 || held, "{route} with {what}: {status} {text}");
            let owner = stored.owner.to_string();
            assert!(!text.contains(&owner), "{route} with {what} tells the owner: {text}");
            assert_eq!(picture(&ground, &tasks).await, before, "{route} with {what}");
            asked += 1;
        }
    }
    assert!(asked > 100, "{asked} combinations");
    for (route, status) in
        [("leases", 200), ("input", 404), ("beat lease", 200), ("output", 200), ("end", 200)]
    {
        let answer = right.ask(&ground, route).await;
        assert_eq!(answer.status().as_u16(), status, "{route}: {}", answer.text().await.unwrap());
    }
    assert!(ground.task(claim.task.id).await.status.is_terminal());
    // The files of an attempt that ended go at the word of who made them, and of nobody else.
    for (what, _, said) in wrong.iter().filter(|(_, part, _)| "ki".contains(part)) {
        let answer = said.ask(&ground, "discard").await;
        assert!(answer.status().is_client_error(), "discard with {what}: {}", answer.status());
    }
    assert_eq!(right.ask(&ground, "discard").await.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn frames_are_shown_only_from_who_holds_the_lease() {
    let ground = Ground::new().await;
    let other_key = key(&ground, &[Scope::Worker]).await;
    known(&ground, &other_key, StatusCode::OK).await;
    let (sidecar, claim) = busy(&ground).await;
    let send = async |key: &ApiKey, owner: OwnerId, attempt: i32| {
        let what = FrameKind::Binary { event: 1, bytes: bytes::Bytes::from_static(b"x") };
        let frame = Frame { task: claim.task.id, attempt, what };
        let body = wire::frames::encode_one(&frame).unwrap();
        let url = ground.url().join("/api/v1/worker/frames").unwrap();
        let request = reqwest::Client::new().post(url).bearer_auth(key.reveal()).body(body);
        let request = request.header(wire::OWNER, owner.to_string());
        let request = request.header("content-type", wire::frames::MIME);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    };
    let mut messages = ground.hub.follow_messages(claim.task.id, claim.lease.attempt);
    send(&other_key, sidecar.owner, 1).await;
    send(&ground.key, OwnerId(Uuid::new_v4()), 1).await;
    send(&ground.key, sidecar.owner, 2).await;
    let heard = tokio::time::timeout(Duration::from_millis(10), messages.recv()).await;
    assert!(heard.is_err(), "{heard:?}");
    send(&ground.key, sidecar.owner, 1).await;
    let heard = tokio::time::timeout(BOUND, messages.recv()).await.expect("it is passed on");
    assert_eq!(heard.map(|frame| frame.attempt), Some(1));
}

#[tokio::test]
async fn the_server_never_asks_the_address_of_a_worker_that_somebody_registered() {
    let ground = Ground::new().await;
    let trap = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", trap.local_addr().unwrap());
    // As a process that says it is the server itself.
    let source = GatewaySource::new(&ground.url(), Some(&ground.key), ground.owner).unwrap();
    let id = WorkerId::new("bait").unwrap();
    let spec = remuda_core::WorkerSpec { id, endpoint, name: None, labels: Default::default() };
    let acquired = source.acquire_worker(spec).await.unwrap();
    assert!(matches!(acquired, Acquired::Yes(_)), "{acquired:?}");
    let rows = ground.store.workers().await.unwrap();
    assert!(rows.iter().all(|worker| worker.owner != ground.owner), "{rows:?}");
    // Also when a row of the store says that it is the server's own, as one from before could.
    let id = WorkerId::new("old-bait").unwrap();
    let endpoint = format!("http://{}", trap.local_addr().unwrap());
    let spec = remuda_core::WorkerSpec { id, endpoint, name: None, labels: Default::default() };
    let acquired = ground.store.acquire_worker(spec, ground.owner).await.unwrap();
    assert!(matches!(acquired, Acquired::Yes(_)), "{acquired:?}");
    for path in ["/extensions", "/extensions/x/y.js", "/view?filename=x.png&type=input", "/models", "/i18n"] {
        let _ = ground.get(path).await.text().await.unwrap();
    }
    let caught = tokio::time::timeout(Duration::from_millis(10), trap.accept()).await;
    assert!(caught.is_err(), "the server asked the address");
}
