//! Every route of the worker's side with every wrong combination of key, process, worker, lease and fence: only the right
//! one changes anything.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use remuda_core::{
    ApiKey, Claim, Fence, Harm, HarmKind, KeyRecord, OwnerId, Scope, Sha256, TaskId, Timestamp, WorkerId,
};
use remuda_frames::{Frame, FrameKind, Messages};
use remuda_runner::source::{GatewaySource, Source};
use remuda_sidecar as sidecar;
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

/// The routes, each with what it looks at: a key that may (s), that key and process (k, i), the worker and its fence (w, f),
/// the task, its fence and attempt (t, l, a). What a route does not look at cannot be wrong with it.
const ROUTES: [(&str, &str); 16] = [
    ("installation", "s"),
    ("object-info", "s"),
    ("acquire", "ski"),
    ("release", "skiwf"),
    ("claim", "skiwf"),
    ("adopt", "skiwf"),
    ("leases", "skiw"),
    ("beat lease", "skitl"),
    ("beat worker", "skiwf"),
    ("input", "skitl"),
    ("output", "skitla"),
    ("discard", "skitla"),
    ("give-back", "skitl"),
    ("harm", "skitl"),
    ("end", "skitl"),
    ("frames", "skita"),
];

/// What a stranger would describe.
const FORGED_INFO: &str = r#"{"Forged":{}}"#;

/// How many combinations of several wrong things are tried.
const COMBINATIONS: usize = 300;

impl Said {
    async fn ask(&self, ground: &Ground, route: &str) -> reqwest::Response {
        self.ask_with(ground, route, b"forged").await
    }

    /// `bytes`: of the file or frame that it sends, if it sends one.
    async fn ask_with(&self, ground: &Ground, route: &str, bytes: &'static [u8]) -> reqwest::Response {
        let Self { worker, worker_fence, task, fence, attempt, .. } = self;
        let lease = json!({"task": task, "fence": fence});
        let held = json!({"worker": worker, "worker_fence": worker_fence});
        let spec = json!({"id": worker, "endpoint": "http://127.0.0.1:1", "name": null, "labels": []});
        let query = format!("fence={fence}&attempt={attempt}");
        let mut claim = held.clone();
        claim["capabilities"] = json!({"labels": [], "nodes": [], "models": []});
        let (method, path, body): (Method, String, Option<Value>) = match route {
            "installation" => (Method::GET, "installation".to_owned(), None),
            "object-info" => {
                let info = serde_json::from_str(FORGED_INFO).unwrap();
                (Method::PUT, format!("object-info/{}", Sha256::of(FORGED_INFO.as_bytes())), Some(info))
            }
            "frames" => (Method::POST, "frames".to_owned(), None),
            "harm" => {
                let harm = Harm {
                    kind: HarmKind::Death,
                    work: "forging".to_owned(),
                    process: "forged".to_owned(),
                    // Another incident each time.
                    at: Timestamp::now(),
                };
                (Method::POST, "harm".to_owned(), Some(json!({"lease": lease, "harm": harm})))
            }
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
        request = request.header(sidecar::OWNER, self.instance.to_string());
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }
        request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None if route == "frames" => {
                let what = FrameKind::Binary { event: 1, bytes: bytes::Bytes::from_static(bytes) };
                let frame = Frame { task: *task, attempt: *attempt, what };
                let frame = sidecar::frames::encode_one(&frame).unwrap();
                request.header("content-type", sidecar::frames::MIME).body(frame)
            }
            None if method == Method::PUT => request.body(bytes),
            None => request,
        };
        request.send().await.expect("an answer")
    }

    /// Whether this is what a holder may say on a route, in all that the route looks at.
    fn is_of(&self, holder: &Self, route: &str, looks_at: &str) -> bool {
        // Whose worker it is decides there, too.
        let looks_at = if route == "acquire" { "skiw" } else { looks_at };
        looks_at.chars().all(|part| match part {
            's' => true,
            'k' => same(self.key.as_ref(), holder.key.as_ref()),
            'i' => self.instance == holder.instance,
            'w' => self.worker == holder.worker,
            'f' => self.worker_fence == holder.worker_fence,
            't' => self.task == holder.task,
            'l' => self.fence == holder.fence,
            'a' => self.attempt == holder.attempt,
            other => panic!("{other} is no part"),
        })
    }

    /// Takes one part from another.
    fn take(&mut self, part: char, from: &Self) {
        match part {
            's' | 'k' => self.key = from.key.clone(),
            'i' => self.instance = from.instance,
            'w' => self.worker = from.worker.clone(),
            'f' => self.worker_fence = from.worker_fence,
            't' => self.task = from.task,
            'l' => self.fence = from.fence,
            'a' => self.attempt = from.attempt,
            other => panic!("{other} is no part"),
        }
    }

    /// Asks what must be refused, or heard and passed over.
    async fn is_refused(&self, ground: &Ground, route: &str, what: &str, owners: &[OwnerId]) {
        let answer = self.ask(ground, route).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let lost =
            body["lost"].as_array().map_or(0, Vec::len) + body["lost_workers"].as_array().map_or(0, Vec::len);
        let held = route == "acquire" && body["yours"] == json!(false);
        // Frames are never answered one by one. What readers hear of them is looked at in the end.
        let unheard = route == "frames" && status == StatusCode::NO_CONTENT;
        let refused = [400, 401, 403, 404, 409].contains(&status.as_u16());
        assert!(refused || lost == 1 || held || unheard, "{route} with {what}: {status} {text}");
        for owner in owners {
            assert!(!text.contains(&owner.to_string()), "{route} with {what} tells the owner: {text}");
        }
    }
}

fn same(one: Option<&ApiKey>, other: Option<&ApiKey>) -> bool {
    one.map(ApiKey::reveal) == other.map(ApiKey::reveal)
}

/// What must not change.
async fn picture(ground: &Ground, tasks: &[TaskId]) -> String {
    let mut parts = vec![format!("{:?}", ground.store.workers().await.unwrap())];
    for &task in tasks {
        parts.push(format!("{:?}", ground.store.task(task).await.unwrap()));
        parts.push(format!("{:?}", ground.store.lease(task).await.unwrap()));
        parts.push(format!("{:?}", ground.store.attempts(task, 1000).await.unwrap()));
    }
    let files = remuda_files::FileKey::output(tasks[0].0, 1, 1, 0, "a b/ü.png");
    parts.push(format!("{:?}", ground.files.size(&files).await.unwrap()));
    let forged = remuda_files::FileKey::output(tasks[0].0, 1, 1, 0, "forged.png");
    parts.push(format!("{:?}", ground.files.size(&forged).await.unwrap()));
    let info = Sha256::of(FORGED_INFO.as_bytes());
    parts.push(format!("{:?}", ground.store.object_info(info).await.unwrap()));
    parts.join("\n")
}

pub(crate) async fn key(ground: &Ground, scopes: &[Scope]) -> ApiKey {
    let key = ApiKey::generate(&mut rand::rng());
    ground.allow(&key, scopes.iter().copied().collect()).await;
    key
}

pub(crate) async fn record(ground: &Ground, key: &ApiKey) -> KeyRecord {
    let keys = ground.store.keys().await.unwrap();
    keys.into_iter().find(|record| record.hash == key.hash()).unwrap()
}

/// Waits until the server knows a key, or its end.
pub(crate) async fn known(ground: &Ground, key: &ApiKey, status: StatusCode) {
    let deadline = tokio::time::Instant::now() + BOUND;
    loop {
        let url = ground.url().join("/api/v1/worker/installation").unwrap();
        let request = reqwest::Client::new().get(url).bearer_auth(key.reveal());
        let answer = request.header(sidecar::OWNER, Uuid::nil().to_string()).send().await.unwrap();
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

async fn first_frame(messages: &mut Messages) -> bytes::Bytes {
    let frame = tokio::time::timeout(BOUND, messages.recv()).await.expect("it is passed on");
    match &frame.expect("it goes on").what {
        FrameKind::Binary { bytes, .. } => bytes.clone(),
        other => panic!("another frame: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_right_combination_changes_anything() {
    let mut ground = Ground::new().await;
    ground.stop().await;
    // Many wrong keys come from here, and are not to be slowed.
    ground.limits.login_failures = u32::MAX;
    ground.start().await;
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
    let neighbour = Said {
        key: Some(ground.key.clone()),
        instance: other.owner,
        worker: other.worker.clone(),
        worker_fence: other.fence,
        task: others.task.id,
        fence: others.lease.fence,
        attempt: others.lease.attempt,
    };
    // Each is wrong in one way.
    let stored = ground.store.lease(claim.task.id).await.unwrap().unwrap();
    let owners = [stored.owner, ground.store.lease(others.task.id).await.unwrap().unwrap().owner];
    let wrong = [
        ("another key", "k", Said { key: Some(other_key), ..right.clone() }),
        ("a key without the scope", "s", Said { key: Some(reader), ..right.clone() }),
        ("a revoked key", "s", Said { key: Some(revoked), ..right.clone() }),
        ("no key", "s", Said { key: None, ..right.clone() }),
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
    let mut heard = ground.hub.follow_messages(claim.task.id, claim.lease.attempt);
    let mut neighbours = ground.hub.follow_messages(others.task.id, others.lease.attempt);
    let before = picture(&ground, &tasks).await;
    let mut asked = 0;
    for (route, looks_at) in ROUTES {
        for (what, part, said) in &wrong {
            if !looks_at.contains(part) {
                continue;
            }
            said.is_refused(&ground, route, what, &owners).await;
            assert_eq!(picture(&ground, &tasks).await, before, "{route} with {what}");
            asked += 1;
        }
    }
    assert!(asked > 100, "{asked} combinations");
    // Several at once, in any combination. Two that are wrong for one holder may be right for its neighbour.
    let mut dice = StdRng::seed_from_u64(11);
    let mut combined = 0;
    while combined < COMBINATIONS {
        let (route, looks_at) = ROUTES[dice.random_range(0..ROUTES.len())];
        let (mut said, mut what) = (right.clone(), Vec::new());
        for (name, part, from) in &wrong {
            let part = part.chars().next().unwrap();
            if looks_at.contains(part) && dice.random_bool(0.2) {
                said.take(part, from);
                what.push(*name);
            }
        }
        // A holder that shows an old fence sends its own readers elsewhere, and they could not tell any more who was heard.
        let judged = if route == "beat lease" { "skit" } else { looks_at };
        let is_right = [&right, &neighbour].iter().any(|holder| said.is_of(holder, route, judged));
        // The two routes for every worker's key have but one thing that can be wrong.
        let is_enough = if looks_at == "s" { !what.is_empty() } else { what.len() > 1 && !is_right };
        if !is_enough {
            continue;
        }
        let what = what.join(", ");
        said.is_refused(&ground, route, &what, &owners).await;
        assert_eq!(picture(&ground, &tasks).await, before, "{route} with {what}");
        combined += 1;
    }
    for (said, heard) in [(&right, &mut heard), (&neighbour, &mut neighbours)] {
        assert_eq!(said.ask_with(&ground, "frames", b"true").await.status(), StatusCode::NO_CONTENT);
        assert_eq!(first_frame(heard).await, b"true"[..]);
        let answer = said.ask(&ground, "harm").await;
        assert_eq!(answer.status(), StatusCode::OK);
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(answer, json!({"count": 1, "set_aside": false}), "none of a stranger's was counted");
    }
    for (route, status) in [
        ("installation", 200),
        ("object-info", 204),
        ("leases", 200),
        ("input", 404),
        ("beat lease", 200),
        ("output", 200),
        ("end", 200),
    ] {
        let answer = right.ask(&ground, route).await;
        assert_eq!(answer.status().as_u16(), status, "{route}: {}", answer.text().await.unwrap());
    }
    assert!(ground.task(claim.task.id).await.status.is_terminal());
    // The files of an attempt that ended go at the word of who made them, and of nobody else.
    for (what, _, said) in wrong.iter().filter(|(_, part, _)| "ski".contains(part)) {
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
    let send = async |key: &ApiKey, owner: OwnerId, attempt: i32, bytes: &'static [u8]| {
        let what = FrameKind::Binary { event: 1, bytes: bytes::Bytes::from_static(bytes) };
        let frame = Frame { task: claim.task.id, attempt, what };
        let body = sidecar::frames::encode_one(&frame).unwrap();
        let url = ground.url().join("/api/v1/worker/frames").unwrap();
        let request = reqwest::Client::new().post(url).bearer_auth(key.reveal()).body(body);
        let request = request.header(sidecar::OWNER, owner.to_string());
        let request = request.header("content-type", sidecar::frames::MIME);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    };
    let mut messages = ground.hub.follow_messages(claim.task.id, claim.lease.attempt);
    send(&other_key, sidecar.owner, 1, b"another key").await;
    send(&ground.key, OwnerId(Uuid::new_v4()), 1, b"another process").await;
    send(&ground.key, sidecar.owner, 2, b"another attempt").await;
    send(&ground.key, sidecar.owner, 1, b"true").await;
    // Each was answered before the next was sent, so one that was passed on would come first.
    assert_eq!(first_frame(&mut messages).await, b"true"[..]);
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
