//! A database of the former program that is brought up to date while that program goes on.

#![allow(clippy::expect_used, reason = "helpers of tests")]

#[path = "upgrade/call.rs"]
mod call;

use std::sync::Arc;
use std::time::Duration;

use remuda_core::quota::Quota;
use remuda_core::transition::Ending;
use remuda_core::{
    Capabilities, Dialect, KeyId, NewTask, Origin, OwnerId, Requirements, Status, TaskId, TaskResult, Tenant,
    WorkerId, WorkerSpec,
};
use remuda_store::{
    Acquired, AdoptRequest, ClaimRequest, DocumentStore as _, Options, PostgresStore, RunnerStore as _,
    Store, TaskStore as _, WorkerStore as _,
};
use serde_json::value::RawValue;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const FIRST: &str = include_str!("../src/postgres/migrations/0001.sql");

/// The former program: one connection, and the statements that it sends.
struct Former {
    client: Client,
    lane: String,
    owner: OwnerId,
}

impl Former {
    async fn found(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        let ground = "CREATE SCHEMA remuda; CREATE TABLE remuda.schema (one boolean PRIMARY KEY DEFAULT true \
            CHECK (one), version bigint NOT NULL, min_binary bigint NOT NULL); \
            INSERT INTO remuda.schema (version, min_binary) VALUES (1, 1);";
        client.batch_execute(ground).await.expect("the ground is laid");
        client.batch_execute(FIRST).await.expect("the first schema is made");
        let lane = Requirements::default().lane().as_str().to_owned();
        let rows = format!(
            "INSERT INTO remuda.tenant VALUES ('default', array_fill(0::bigint, ARRAY[10]), 1000); \
             INSERT INTO remuda.lane VALUES ('{lane}', '{{}}', 0);"
        );
        client.batch_execute(&rows).await.expect("it knows a tenant and a lane");
        Self { client, lane, owner: OwnerId(Uuid::new_v4()) }
    }

    async fn save(&self, given: &[(&str, String)]) {
        call::call(&self.client, "remuda.save_1", 72, given).await;
    }

    /// Takes a task in; `claimed`: for a worker that waited for it.
    async fn submit(&self, claimed: bool) -> TaskId {
        let id = TaskId::new();
        let one = |value: &str| format!("ARRAY['{value}']");
        let mut given = vec![
            ("new_id", one(&id.to_string())),
            ("new_tenant", one("default")),
            ("new_priority", "ARRAY[5]".to_owned()),
            ("new_status", one(if claimed { "running" } else { "pending" })),
            ("new_reason", if claimed { "ARRAY[NULL]".to_owned() } else { one("queued") }),
            ("new_lane", one(&self.lane)),
            ("new_shape", "ARRAY[0]".to_owned()),
            ("new_cost_ms", "ARRAY[10000]".to_owned()),
            ("new_rank", "ARRAY[1]".to_owned()),
            ("new_created_at", "ARRAY[now()]".to_owned()),
            ("new_run_at", "ARRAY[now()]".to_owned()),
            ("new_timeout_s", "ARRAY[1800]".to_owned()),
            ("new_max_retries", "ARRAY[3]".to_owned()),
            ("new_attempt", format!("ARRAY[{}]", i32::from(claimed))),
            ("new_fence", format!("ARRAY[{}]", i32::from(claimed))),
            ("new_version", format!("ARRAY[{}]", 1 + i32::from(claimed))),
            ("input_workflow", one("{}")),
            ("input_placements", one("[]")),
            ("input_requires", one("{}")),
            ("count_tenant", one("default")),
            ("count_pending", format!("ARRAY[{}]", i32::from(!claimed))),
            ("count_running", format!("ARRAY[{}]", i32::from(claimed))),
            ("count_completed", "ARRAY[0]".to_owned()),
            ("count_failed", "ARRAY[0]".to_owned()),
            ("count_cancelled", "ARRAY[0]".to_owned()),
        ];
        if claimed {
            given.push(("new_worker", one("w")));
            given.push(("new_started_at", "ARRAY[now()]".to_owned()));
            given.extend(self.lease(id));
        }
        self.save(&given).await;
        id
    }

    fn lease(&self, id: TaskId) -> [(&'static str, String); 9] {
        [
            ("lease_task", format!("ARRAY['{id}']")),
            ("lease_fence", "ARRAY[1]".to_owned()),
            ("lease_attempt", "ARRAY[1]".to_owned()),
            ("lease_owner", format!("ARRAY['{}']", self.owner.0)),
            ("lease_worker", "ARRAY['w']".to_owned()),
            ("lease_prompt_id", format!("ARRAY['{}']", Uuid::new_v4())),
            ("lease_until", "ARRAY[now() + interval '1 minute']".to_owned()),
            ("lease_phase", "ARRAY['rendering']".to_owned()),
            ("lease_started_at", "ARRAY[now()]".to_owned()),
        ]
    }

    /// The first tasks of the lane, as it looks at them.
    async fn load(&self) -> Vec<TaskId> {
        let statement = "SELECT t.id, t.tenant, t.metadata, t.retry_of FROM remuda.load_1('{}', $1, 9) t";
        let lanes: &[&str] = &[&self.lane];
        let rows = self.client.query(statement, &[&lanes]).await.expect("it reads");
        rows.iter().map(|row| TaskId(row.get(0))).collect()
    }

    /// Claims a task that waits.
    async fn claim(&self, id: TaskId) {
        let one = |value: &str| format!("ARRAY['{value}']");
        let mut given = vec![
            ("now_id", one(&id.to_string())),
            ("now_status", one("running")),
            ("now_lane", one(&self.lane)),
            ("now_run_at", "ARRAY[now()]".to_owned()),
            ("now_started_at", "ARRAY[now()]".to_owned()),
            ("now_failures", "ARRAY[0]".to_owned()),
            ("now_losses", "ARRAY[0]".to_owned()),
            ("now_attempt", "ARRAY[1]".to_owned()),
            ("now_fence", "ARRAY[1]".to_owned()),
            ("now_version", "ARRAY[2]".to_owned()),
            ("now_worker", one("w")),
            ("read_task", one(&id.to_string())),
        ];
        given.extend(self.lease(id));
        self.save(&given).await;
    }
}

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{}}"#.to_owned()).expect("it is JSON"))
}

async fn acquire(store: &PostgresStore, owner: OwnerId) -> ClaimRequest {
    let id = WorkerId::new("w").expect("a name");
    let spec = WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() };
    let Ok(Acquired::Yes(worker)) = store.acquire_worker(spec, owner).await else {
        panic!("the worker is not to be had")
    };
    ClaimRequest {
        owner,
        worker: worker.spec.id,
        worker_fence: worker.fence,
        capabilities: Arc::default(),
        loaded: Vec::new(),
        ahead: false,
        gateway: None,
        wait: Duration::ZERO,
    }
}

async fn adopt(store: &PostgresStore, hand: &ClaimRequest) -> Vec<remuda_core::Claim> {
    let adoption = AdoptRequest {
        owner: hand.owner,
        worker: hand.worker.clone(),
        worker_fence: hand.worker_fence,
        gateway: None,
        known: Vec::new(),
    };
    store.adopt(adoption).await.expect("it answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_former_program_goes_on_while_the_schema_is_brought_up_to_date() {
    let url = remuda_testbed::postgres::database().await.expect("a database can be made");
    let former = Former::found(&url).await;
    let waits = former.submit(false).await;
    let runs = former.submit(true).await;
    assert_eq!(former.load().await, [waits]);

    let store = PostgresStore::connect(&url, Options::new(former.owner)).await.expect("it opens");
    let version = former.client.query_one("SELECT version, min_binary FROM remuda.schema", &[]).await;
    let version = version.expect("it has a version");
    assert_eq!((version.get::<_, i64>(0), version.get::<_, i64>(1)), (6, 1), "the former program may go on");

    // What was in flight goes on here.
    let hand = acquire(&store, former.owner).await;
    let adopted = adopt(&store, &hand).await;
    assert_eq!(adopted.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [runs]);
    assert_eq!(adopted[0].input.extra, None);
    let ending = || Ending::Completed { result: TaskResult::default(), gpu_ms: None };
    store.end(adopted[0].lease.owner, adopted[0].lease.reference(), ending()).await.expect("it ends");
    let origin = Origin { dialect: Dialect::COMFYUI, external_id: None, client: Some("c".to_owned()) };
    let native = NewTask { origin: Some(origin.clone()), ..new_task() };
    let native = store.submit(native).await.expect("it is taken in").task().clone();

    // On the connection that it had before, the former program reads and writes as ever.
    let mut seen = former.load().await;
    seen.sort();
    assert_eq!(seen, [waits, native.id]);
    let late = former.submit(false).await;
    former.claim(native.id).await;
    let task = store.task(native.id).await.expect("it answers").expect("it is there");
    assert_eq!((task.status, task.origin.as_ref()), (Status::Running, Some(&origin)));
    let unfinished = store.unfinished(&native.tenant, Dialect::COMFYUI, Some("c")).await;
    assert_eq!(unfinished.expect("it counts"), 1);
    let taken = adopt(&store, &hand).await;
    assert_eq!(taken.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [native.id]);
    store.end(taken[0].lease.owner, taken[0].lease.reference(), ending()).await.expect("it ends");
    let task = store.task(native.id).await.expect("it answers").expect("it is there");
    assert_eq!((task.status, task.origin), (Status::Completed, Some(origin)));
    let task = store.task(late).await.expect("it answers").expect("it is there");
    assert_eq!((task.status, task.origin, task.hidden_at), (Status::Pending, None, None));
    store.close().await;
}

/// A process elsewhere was known by its id alone. Its first key from before the upgrade has what it held; a server, also
/// one that is brought up to date later, is never a key's once it has said that it is one.
#[tokio::test]
async fn a_sidecar_keeps_what_it_held_before_the_upgrade() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let former = Former::found(&url).await;
    let [sidecar, server, leader] = [2, 3, 4].map(|n| OwnerId(Uuid::from_u128(n)));
    for owner in [sidecar, server, leader] {
        let row = format!(
            "INSERT INTO remuda.worker VALUES ('{owner}', '', NULL, '{{}}', '{{}}', '{owner}', 1, true, now(), now(), \
             now())"
        );
        former.client.batch_execute(&row).await.expect("it writes");
    }
    let rows = format!(
        "INSERT INTO remuda.leader VALUES ('janitor', '{leader}', 1, now()); INSERT INTO remuda.api_key \
         SELECT u.id, 'a', 'default', '{{worker}}', ''::bytea, now() + u.later * interval '1 minute', NULL \
         FROM unnest(ARRAY['{}', '{}', '{}']::uuid[], ARRAY[-1, -1, 1]) AS u(id, later)",
        Uuid::from_u128(11),
        Uuid::from_u128(12),
        Uuid::from_u128(13),
    );
    former.client.batch_execute(&rows).await.expect("it writes");

    let store =
        PostgresStore::connect(&url, Options::new(OwnerId(Uuid::from_u128(1)))).await.expect("it opens");
    let inherit = async |owner, key: u128, grace| {
        store.inherit(owner, KeyId(Uuid::from_u128(key)), grace).await.expect("it answers")
    };
    let hour = Duration::from_secs(3600);
    assert!(!inherit(leader, 11, hour).await, "who leads is a server");
    assert!(!inherit(OwnerId(Uuid::from_u128(9)), 11, hour).await, "nobody was called so");
    assert!(!inherit(sidecar, 13, hour).await, "the key is newer than the upgrade");
    assert!(!inherit(sidecar, 14, hour).await, "there is no such key");
    assert!(!inherit(sidecar, 11, Duration::ZERO).await, "it comes too late");
    assert!(inherit(sidecar, 11, hour).await);
    assert!(!inherit(sidecar, 12, hour).await, "it is the first key's");
    assert!(inherit(sidecar, 11, Duration::ZERO).await, "it stays so");
    let second = PostgresStore::connect(&url, Options::new(server)).await.expect("it opens");
    assert!(!inherit(server, 11, hour).await, "the second server was brought up to date");
    store.close().await;
    second.close().await;
}

/// The name that the first releases gave to the lane of tasks for workers with the label `a100`.
const FORMER_LANE: &str = "54b4bf0866d194b4";

/// Lanes have other names today. Tasks that wait under a former name are found by what they ask for, in their turn among those
/// that came later, also those that a server of the release before takes in from then on.
#[tokio::test]
async fn tasks_in_lanes_of_former_names_are_served() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let mut former = Former::found(&url).await;
    FORMER_LANE.clone_into(&mut former.lane);
    let asks = Requirements { labels: ["a100".to_owned()].into(), ..Requirements::default() };
    let row = format!("INSERT INTO remuda.lane VALUES ('{FORMER_LANE}', '{{\"labels\": [\"a100\"]}}', 0)");
    former.client.batch_execute(&row).await.expect("it writes");
    let before = former.submit(false).await;

    let store = PostgresStore::connect(&url, Options::new(former.owner)).await.expect("it opens");
    let mut new = new_task();
    new.input.requires = asks.clone();
    let after = store.submit(new).await.expect("it is taken in").task().clone();
    assert_eq!(after.lane, asks.lane(), "under the name of today");
    let hand = acquire(&store, former.owner).await;
    assert_eq!(store.claim(hand.clone()).await.expect("it answers"), None, "this worker has no such label");
    let labels = asks.labels.clone();
    let able =
        ClaimRequest { capabilities: Arc::new(Capabilities { labels, ..Capabilities::default() }), ..hand };
    let claim = async || store.claim(able.clone()).await.expect("it answers").map(|claim| claim.task.id);
    let mut served = [claim().await, claim().await];
    served.sort();
    assert_eq!(served, [Some(before.min(after.id)), Some(before.max(after.id))]);
    let late = former.submit(false).await;
    assert_eq!(claim().await, Some(late));
    store.close().await;
}

/// The former program knows of no quota, and what it takes in and forgets counts all the same where that is known.
#[tokio::test]
async fn what_the_former_program_brings_and_forgets_counts() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let former = Former::found(&url).await;
    let asset = |content: &str, name: &str| {
        format!(
            "INSERT INTO remuda.asset (tenant, sha256, key, filename, mime, size, created_at) \
             VALUES ('default', '{content}', 'assets/x', '{name}', 'image/png', 100, now()) \
             ON CONFLICT (tenant, sha256, filename) DO UPDATE SET key = excluded.key, mime = excluded.mime, \
             size = excluded.size, created_at = excluded.created_at"
        )
    };
    let add =
        async |content, name| former.client.batch_execute(&asset(content, name)).await.expect("it writes");
    for name in ["a.png", "b.png"] {
        add("before", name).await;
    }
    let quota = Quota { waiting: 0, bytes: 1000 };
    let options = Options { quota, ..Options::new(former.owner) };
    let store = PostgresStore::connect(&url, options).await.expect("it opens");
    let room = async || store.room(&Tenant::default_tenant()).await.expect("it answers");
    assert_eq!(room().await, 900, "what was there before");
    let first = store.submit(new_task()).await.expect("it is taken in").task().id;
    store.submit(new_task()).await.expect("it is taken in");
    let each = new_task().input.stored_bytes(None).unsigned_abs();
    assert_eq!(room().await, 900 - 2 * each);

    let forget = format!("DELETE FROM remuda.task WHERE id = '{}'", first.0);
    former.client.batch_execute(&forget).await.expect("it forgets");
    for (content, name) in [("before", "c.png"), ("after", "d.png"), ("after", "e.png"), ("after", "d.png")] {
        add(content, name).await;
    }
    former.submit(false).await;
    assert_eq!(room().await, 800 - each);
    store.close().await;
}
