//! Whole tasks: a herd on "another machine", which knows a URL and a key, and a simulated ComfyUI beside it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use comfyui::{Client, SessionOptions};
use comfyui_sim::faults::Fault;
use comfyui_sim::{SimConfig, Simulator};
use remuda_core::{Dialect, Origin, OwnerId, Phase, Status, TaskId, WorkerSpec};
use remuda_frames::FrameKind;
use remuda_runner::source::GatewaySource;
use remuda_runner::{Herd, HerdOptions, Timing, WorkerConfig, host_id, worker_id_for};
use remuda_testbed::net::Proxy;
use remuda_testbed::wait;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use url::Url;
use uuid::Uuid;

use crate::ground::{BOUND, Ground, url};

/// The example of the documentation.
const SEED: &str = include_str!("../api/seed_example.json");

struct Machine {
    sim: Simulator,
    herd: Herd,
    source: Arc<GatewaySource>,
}

impl Machine {
    async fn start(ground: &Ground, url: &Url) -> Self {
        let sim = Simulator::start(SimConfig::default()).await.expect("a simulator");
        let owner = OwnerId(Uuid::new_v4());
        let source = Arc::new(GatewaySource::new(url, Some(&ground.key), owner).expect("a source"));
        let mut options = HerdOptions::new(owner);
        // Seconds instead of minutes.
        options.timing = Timing {
            beat: Duration::from_millis(500),
            beat_retry: Duration::from_millis(100),
            retry: Duration::from_millis(200),
            probe: Duration::from_millis(300),
            sweep: Duration::from_millis(500),
            second_look: Duration::from_millis(100),
            ..Timing::default()
        };
        let herd = Herd::start(source.clone(), options);
        let spec = WorkerSpec {
            id: worker_id_for(&sim.url(), &host_id()).expect("a name"),
            endpoint: sim.url(),
            name: None,
            labels: BTreeSet::new(),
        };
        let client = Client::new(&sim.url()).expect("an address");
        // Seldom enough that every end is heard: one that is found by asking comes before the last messages.
        let session = SessionOptions { survey: Duration::from_secs(20), ..SessionOptions::default() };
        assert!(herd.add(WorkerConfig { session, ..WorkerConfig::new(spec, client) }));
        Self { sim, herd, source }
    }

    async fn stop(self) {
        self.herd.stop(Duration::from_secs(5)).await;
        self.source.close().await;
        self.sim.shutdown().await;
    }
}

impl Ground {
    async fn post(&self, body: String) -> TaskId {
        let url = self.url().join("/api/v1/tasks").expect("a path");
        let request = reqwest::Client::new().post(url).bearer_auth(self.key.reveal()).body(body);
        let answer = request.header("content-type", "application/json").send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        assert!(status.is_success(), "{status}: {text}");
        let task: Value = serde_json::from_str(&text).expect("JSON");
        task["id"].as_str().or(task["task_id"].as_str()).expect("an id").parse().expect("an id")
    }

    async fn seen(&self, id: TaskId) -> Value {
        let text = self.get(&format!("/api/v1/tasks/{id}")).await.text().await.expect("a body");
        serde_json::from_str(&text).expect("JSON")
    }

    async fn until(&self, id: TaskId, status: &str) -> Value {
        let waited = wait::until(format!("task {id} to be {status}"), BOUND, async || {
            let task = self.seen(id).await;
            if task["status"] == status { Ok(task) } else { Err(task.to_string()) }
        });
        waited.await.unwrap()
    }

    async fn rendering(&self, id: TaskId) {
        let waited = wait::until(format!("task {id} to render"), BOUND, async || {
            let lease = self.store.lease(id).await.expect("the store");
            lease.filter(|lease| lease.phase == Phase::Rendering)
        });
        waited.await.unwrap();
    }

    async fn completed_once(&self, id: TaskId, machine: &Machine) {
        self.completed_in_one_go(id).await;
        assert_eq!(machine.sim.stats().executions_total, 1);
    }

    async fn completed_in_one_go(&self, id: TaskId) {
        let waited = wait::until(format!("task {id} to end"), BOUND, async || {
            let task = self.task(id).await;
            if task.status.is_terminal() { Ok(task) } else { Err(format!("{task:?}")) }
        });
        let task = waited.await.unwrap();
        assert_eq!(task.status, Status::Completed, "{task:?}");
        assert_eq!((task.attempt, task.losses, task.failures), (1, 0, 0), "{task:?}");
    }
}

/// Works for about this long, with previews, and saves.
fn long(seconds: u64) -> String {
    let seed = Uuid::new_v4().as_u64_pair().0;
    let payload = json!({
        "1": {"class_type": "RigProgress", "inputs": {"steps": seconds * 50, "step_ms": 20, "preview": "JPEG", "preview_size": 32, "seed": seed}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "long"}},
    });
    json!({ "payload": payload }).to_string()
}

#[tokio::test]
async fn the_whole_walk_with_a_sidecar_that_knows_a_url_and_a_key() {
    let ground = Ground::new().await;
    let id = ground.post(SEED.to_owned()).await;
    assert_eq!(ground.seen(id).await["status"], "pending");
    // Followed before anybody could run it.
    let live = ground.post(long(4)).await;
    let followed = ground.get(&format!("/api/v1/tasks/{live}/events?preview=true")).await;
    let machine = Machine::start(&ground, &ground.url()).await;
    let task = ground.until(id, "completed").await;
    let events = ground.get(&format!("/api/v1/tasks/{id}/events")).await.text().await.unwrap();
    for state in ["\"pending\"", "\"running\"", "\"completed\""] {
        assert!(events.contains(&format!("\"status\":{state}")), "{state} in {events}");
    }
    let picture = ground.get(&format!("/api/v1/tasks/{id}/outputs/0")).await.bytes().await.unwrap();
    assert!(picture.starts_with(b"\x89PNG"), "{task}");

    // Live progress on the way, too.
    let events = followed.text().await.unwrap();
    for event in ["event: progress", "event: preview", "\"status\":\"completed\""] {
        assert!(events.contains(event), "{event} in {events:.2000}");
    }
    for id in [id, live] {
        ground.completed_in_one_go(id).await;
    }
    assert_eq!(machine.sim.stats().executions_total, 2);
    machine.stop().await;
}

#[tokio::test]
async fn what_comfyui_says_at_a_sidecar_arrives_whole_and_in_order() {
    let ground = Ground::new().await;
    let machine = Machine::start(&ground, &ground.url()).await;
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 512, "height": 512, "batch_size": 30, "color": 7}},
        "2": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a"}},
    });
    let mut messages = None;
    let id = ground.submit_with(|new| {
        new.input.workflow = serde_json::value::to_raw_value(&graph).expect("JSON");
        new.origin = Some(Origin { dialect: Dialect::COMFYUI, external_id: None, client: None });
        messages = Some(ground.hub.follow_messages(new.id, 1));
    });
    let id = id.await;
    let mut messages = messages.expect("a follower");
    let (mut kinds, mut pictures, mut steps) = (Vec::new(), 0, Vec::new());
    while let Some(frame) = tokio::time::timeout(BOUND, messages.recv()).await.expect("in time") {
        match &frame.what {
            FrameKind::Binary { event: 4, bytes } => {
                assert!(bytes.windows(4).any(|bytes| bytes == b"\x89PNG"));
                pictures += 1;
            }
            FrameKind::Message { kind, data } if kind == "progress" => {
                let data: Value = serde_json::from_str(data).expect("JSON");
                steps.push(data["value"].as_f64().expect("a number"));
            }
            FrameKind::Message { kind, .. } if kind == "progress_state" => {}
            FrameKind::Message { kind, .. } => kinds.push(kind.clone()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((pictures, steps.len(), steps.is_sorted()), (30, 30, true));
    let middle = ["executing", "executing", "executing", "executed"];
    let expected =
        [&["execution_start", "execution_cached"], &middle[..], &["execution_success", "executing"]];
    assert_eq!(kinds, expected.concat());
    ground.completed_once(id, &machine).await;
    machine.stop().await;
}

#[tokio::test]
async fn a_gateway_that_restarts_in_mid_render_costs_nothing() {
    let mut ground = Ground::new().await;
    let machine = Machine::start(&ground, &ground.url()).await;
    let stuck = machine.sim.faults().add(Fault::stuck_node());
    let id = ground.post(long(1)).await;
    ground.rendering(id).await;
    ground.stop().await;
    machine.sim.faults().remove(stuck);
    // The render goes on without it; it is away when it ends.
    let ended = wait::until("the render to end", BOUND, async || {
        let stats = machine.sim.stats();
        if stats.executions_total == 1 && machine.idle().await { Ok(()) } else { Err(format!("{stats:?}")) }
    });
    ended.await.unwrap();
    assert_eq!(ground.task(id).await.status, Status::Running, "nobody was there to hear of it");
    ground.start().await;
    ground.completed_once(id, &machine).await;
    machine.stop().await;
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found_and_rendered_once() {
    let ground = Ground::new().await;
    let proxy = Proxy::start(ground.address.to_string()).await.unwrap();
    let machine = Machine::start(&ground, &url(proxy.address())).await;
    // The worker is ready when it has done one.
    let first = ground.post(long(1)).await;
    ground.until(first, "completed").await;
    // A moment at which no claim waits, between two of them, is possible; the next try finds one.
    let mut rendered = 1;
    let id = loop {
        proxy.stall().await;
        let id = ground.post(long(1)).await;
        rendered += 1;
        let claimed = wait::until("the claim", Duration::from_secs(2), async || {
            (ground.task(id).await.status == Status::Running).then_some(())
        });
        let claimed = claimed.await.is_ok();
        proxy.cut().await;
        proxy.pass().await;
        if claimed {
            break id;
        }
        ground.until(id, "completed").await;
    };
    let task = ground.until(id, "completed").await;
    assert_eq!(machine.sim.stats().executions_total, rendered, "{task}");
    assert_eq!(ground.task(id).await.losses, 0);
    machine.stop().await;
}

#[tokio::test]
async fn several_gateways_behind_one_address_are_one() {
    let ground = Ground::new().await;
    let (other, stop) = ground.another().await;
    let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = door.local_addr().unwrap();
    let balancer = tokio::spawn(balance(door, [ground.address, other]));
    let machine = Machine::start(&ground, &url(address)).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(ground.post(long(1)).await);
    }
    for (n, id) in tasks.iter().enumerate() {
        ground.until(*id, "completed").await;
        if n == 0 {
            stop.cancel();
        }
    }
    assert_eq!(machine.sim.stats().executions_total, 4);
    machine.stop().await;
    balancer.abort();
}

/// Every connection to the next server that takes it.
async fn balance(door: TcpListener, servers: [SocketAddr; 2]) {
    let mut connections = JoinSet::new();
    let mut turn = 0;
    while let Ok((mut client, _)) = door.accept().await {
        turn += 1;
        for server in [servers[turn % 2], servers[(turn + 1) % 2]] {
            if let Ok(mut server) = TcpStream::connect(server).await {
                connections.spawn(async move {
                    tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
                });
                break;
            }
        }
    }
}

impl Machine {
    async fn idle(&self) -> bool {
        let queue = Client::new(&self.sim.url()).expect("an address").queue().await.expect("an answer");
        queue.running.is_empty() && queue.pending.is_empty()
    }
}
