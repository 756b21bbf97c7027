//! A file that the former program made, and the former program on a file of this one.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::quota::Quota;
use remuda_core::transition::Ending;
use remuda_core::{
    Capabilities, Dialect, KeyId, KeyRecord, NewTask, Origin, OwnerId, Requirements, Scope, Sha256, Status,
    TaskId, TaskResult, Tenant, Timestamp, WorkerId, WorkerSpec,
};
use remuda_store::{
    Acquired, AdoptRequest, ClaimRequest, DocumentStore as _, KeyStore as _, Options, OriginOrder,
    OriginQuery, RunnerStore as _, SqliteStore, Store, TaskStore as _, WorkerStore as _,
};
use rusqlite::{Connection, params};
use serde_json::value::RawValue;
use uuid::Uuid;

const FIRST: &str = include_str!("../src/sqlite/migrations/0001.sql");

fn options() -> Options {
    Options::new(OwnerId(Uuid::from_u128(1)))
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, options()).await.expect("it opens")
}

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{"class_type":"A","inputs":{}}}"#.to_owned()).expect("JSON"))
}

fn native() -> NewTask {
    let origin = Origin { dialect: Dialect::COMFYUI, external_id: None, client: Some("c".to_owned()) };
    NewTask { origin: Some(origin), ..new_task() }
}

async fn acquire(store: &SqliteStore) -> ClaimRequest {
    let id = WorkerId::new("w").expect("a name");
    let spec = WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() };
    let owner = options().owner;
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

/// The same rows under the first schema, as the first program would have left them.
fn as_first_version(new: &Path, old: &Path) {
    let raw = Connection::open(old).expect("it opens");
    raw.pragma_update(None, "application_id", 0x726d_6461).expect("it is set");
    raw.execute_batch(FIRST).expect("the first schema is made");
    raw.execute_batch("CREATE TABLE schema (version INTEGER NOT NULL, min_binary INTEGER NOT NULL) STRICT")
        .expect("it is made");
    raw.execute("ATTACH ? AS new", [new.to_str().expect("a path of this test")]).expect("it is attached");
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = raw.prepare(sql).expect("it is right");
        let rows = statement.query_map((), |row| row.get(0)).expect("it answers");
        rows.map(|row| row.expect("a text")).collect()
    };
    for table in texts("SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name <> 'schema'") {
        let columns = texts(&format!("SELECT name FROM main.pragma_table_info('{table}')")).join(", ");
        let copy = format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}");
        raw.execute(&copy, ()).expect("it is copied");
    }
    raw.execute("INSERT INTO main.schema VALUES (1, 1)", ()).expect("it is noted");
}

fn version(path: &Path) -> (i64, i64) {
    let raw = Connection::open(path).expect("it opens");
    raw.query_row("SELECT version, min_binary FROM schema", (), |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("it has a version")
}

async fn listed(store: &SqliteStore) -> Vec<TaskId> {
    let query = OriginQuery {
        tenant: Tenant::default_tenant(),
        dialect: Dialect::COMFYUI,
        client: None,
        statuses: Status::ALL.into(),
        workflow_id: None,
        order: OriginOrder::OldestFirst,
        offset: 0,
        limit: 100,
    };
    let page = store.list_origin(&query).await.expect("it lists");
    page.tasks.iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn tasks_in_flight_live_on_under_the_new_schema() {
    let folder = tempfile::tempdir().expect("a folder");
    let (new, old) = (folder.path().join("new.db"), folder.path().join("remuda.db"));
    let store = open(&new).await;
    let hand = acquire(&store).await;
    let runs = store.submit(new_task()).await.expect("it is taken in").task().id;
    let claim = store.claim(hand).await.expect("it answers").expect("it is ready");
    let waits = store.submit(new_task()).await.expect("it is taken in").task().clone();
    let ended = store.submit(new_task()).await.expect("it is taken in").task().id;
    let ended = store.cancel(ended).await.expect("it waits");
    store.close().await;
    as_first_version(&new, &old);

    let store = open(&old).await;
    assert_eq!(version(&old), (7, 1), "the former program may go on");
    assert_eq!(store.task(waits.id).await.expect("it answers"), Some(waits.clone()));
    assert_eq!(store.task(ended.id).await.expect("it answers"), Some(ended));
    let hand = acquire(&store).await;
    let adoption = AdoptRequest {
        owner: hand.owner,
        worker: hand.worker.clone(),
        worker_fence: hand.worker_fence,
        gateway: None,
        known: Vec::new(),
    };
    let adopted = store.adopt(adoption).await.expect("it answers");
    assert_eq!(adopted.len(), 1);
    assert_eq!((adopted[0].task.id, adopted[0].lease.prompt_id), (runs, claim.lease.prompt_id));
    let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: None };
    store.end(adopted[0].lease.owner, adopted[0].lease.reference(), ending).await.expect("it ends");
    let next = store.claim(hand).await.expect("it answers").expect("it is ready");
    assert_eq!((next.task.id, next.input.extra), (waits.id, None));
    let native = store.submit(native()).await.expect("it is taken in").task().id;
    assert_eq!(listed(&store).await, [native], "those of before came through no other door");
    store.close().await;
    let again = open(&old).await;
    assert_eq!(listed(&again).await, [native]);
}

/// What the former program wrote and read, word for word.
mod former {
    pub(super) const INSERT: &str = "INSERT INTO task (id, no, tenant, workflow_id, priority, status, reason, lane, \
        affinity, shape, cost_ms, rank, created_at, run_at, deadline, timeout_s, max_retries, failures, losses, \
        attempt, fence, version, metadata, retry_of) \
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, ?, ?, ?) ON CONFLICT DO NOTHING";
    pub(super) const INPUT: &str = "INSERT INTO input (no, lane, placements, workflow) VALUES (?, ?, ?, ?)";
    pub(super) const UPDATE: &str = "UPDATE task SET status = ?2, reason = ?3, lane = ?4, run_at = ?5, \
        started_at = ?6, finished_at = ?7, failures = ?8, losses = ?9, attempt = ?10, fence = ?11, version = ?12, \
        cancel_at = ?13, worker = ?14, avoid_worker = ?15, avoid_until = ?16, error = ?17 WHERE id = ?1";
    pub(super) const NEXT: &str = "SELECT id, lane, rank, priority, affinity, avoid_worker, avoid_until, run_at \
        FROM task INDEXED BY task_queued WHERE reason = 'queued' AND lane = ?1 \
        ORDER BY lane, rank, priority DESC, id LIMIT ?2";
}

#[tokio::test]
async fn the_former_program_goes_on_under_the_new_schema() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let native = store.submit(native()).await.expect("it is taken in").task().clone();
    store.close().await;

    let raw = Connection::open(&path).expect("it opens");
    let next: Uuid = raw
        .query_row(former::NEXT, params![native.lane.as_str(), 9], |row| Ok(Uuid::from_bytes(row.get(0)?)))
        .expect("it finds the next task");
    assert_eq!(next, native.id.0);
    let at = native.created_at.as_microsecond();
    let nothing = None::<i64>;
    let id = native.id.0;
    let ended = raw.execute(
        former::UPDATE,
        params![
            id.as_bytes(),
            "cancelled",
            nothing,
            native.lane.as_str(),
            at,
            nothing,
            at + 5,
            0,
            0,
            0,
            0,
            2,
            at + 5,
            nothing,
            nothing,
            nothing,
            nothing
        ],
    );
    assert_eq!(ended.expect("it ends the task"), 1);
    let mine = TaskId::new();
    let lane = native.lane.as_str();
    let made = raw.execute(
        former::INSERT,
        params![
            mine.0.as_bytes(),
            2,
            "default",
            nothing,
            5,
            "pending",
            "queued",
            lane,
            nothing,
            0,
            10_000,
            7,
            at,
            at,
            nothing,
            1800,
            3,
            1,
            nothing,
            nothing
        ],
    );
    assert_eq!(made.expect("it takes a task in"), 1);
    raw.execute(former::INPUT, params![2, lane, nothing, "{}"]).expect("with its input");
    drop(raw);

    let store = open(&path).await;
    let task = store.task(native.id).await.expect("it answers").expect("it is there");
    assert_eq!((task.status, &task.origin), (Status::Cancelled, &native.origin), "the origin stays");
    assert_eq!(listed(&store).await, [native.id]);
    let unfinished = store.unfinished(&native.tenant, Dialect::COMFYUI, Some("c")).await;
    assert_eq!(unfinished.expect("it counts"), 0);
    let task = store.task(mine).await.expect("it answers").expect("it is there");
    assert_eq!((task.status, task.origin, task.hidden_at), (Status::Pending, None, None));
    let input = store.input(mine).await.expect("it answers").expect("it is there");
    assert_eq!(input.extra, None);
    let hand = acquire(&store).await;
    assert_eq!(store.claim(hand).await.expect("it answers").map(|claim| claim.task.id), Some(mine));
}

fn key(n: u128, made: Timestamp) -> KeyRecord {
    KeyRecord {
        id: KeyId(Uuid::from_u128(n)),
        name: "a worker's".to_owned(),
        tenant: Tenant::default_tenant(),
        scopes: [Scope::Worker].into(),
        hash: Sha256::of(&n.to_be_bytes()),
        created_at: made,
        revoked_at: None,
    }
}

/// A process elsewhere was known by its id alone. Its first key from before the upgrade has what it held.
#[tokio::test]
async fn a_sidecar_keeps_what_it_held_before_the_upgrade() {
    let folder = tempfile::tempdir().expect("a folder");
    let (new, old) = (folder.path().join("new.db"), folder.path().join("remuda.db"));
    let sidecar = OwnerId(Uuid::from_u128(2));
    let store = open(&new).await;
    acquire(&store).await;
    let id = WorkerId::new("beside").expect("a name");
    let spec = WorkerSpec { id: id.clone(), endpoint: String::new(), name: None, labels: Default::default() };
    let acquired = store.acquire_worker(spec, sidecar).await;
    assert!(matches!(acquired, Ok(Acquired::Yes(_))), "{acquired:?}");
    for n in [11, 12] {
        store.add_key(key(n, Timestamp::now())).await.expect("it is kept");
    }
    store.close().await;
    as_first_version(&new, &old);

    let store = open(&old).await;
    store.add_key(key(13, Timestamp::now() + Duration::from_secs(60))).await.expect("it is kept");
    let inherit = async |owner, key: u128, grace| {
        store.inherit(owner, KeyId(Uuid::from_u128(key)), grace).await.expect("it answers")
    };
    let hour = Duration::from_secs(3600);
    assert!(!inherit(options().owner, 11, hour).await, "this process is no sidecar");
    assert!(!inherit(OwnerId(Uuid::from_u128(3)), 11, hour).await, "nobody was called so");
    assert!(!inherit(sidecar, 13, hour).await, "the key is newer than the upgrade");
    assert!(!inherit(sidecar, 14, hour).await, "there is no such key");
    assert!(!inherit(sidecar, 11, Duration::ZERO).await, "it comes too late");
    assert!(inherit(sidecar, 11, hour).await);
    assert!(!inherit(sidecar, 12, hour).await, "it is the first key's");
    store.close().await;
    let store = open(&old).await;
    let again = store.inherit(sidecar, KeyId(Uuid::from_u128(11)), Duration::ZERO).await;
    assert!(again.expect("it answers"), "it stays the first key's");
}

/// The name that the first releases gave to the lane of tasks for workers with the label `a100`.
const FORMER_LANE: &str = "54b4bf0866d194b4";

/// Lanes have other names today. Tasks that wait under a former name are found by what they ask for, in their turn among those
/// that came later.
#[tokio::test]
async fn tasks_in_lanes_of_former_names_are_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let (new, old) = (folder.path().join("new.db"), folder.path().join("remuda.db"));
    let asks = || Requirements { labels: ["a100".to_owned()].into(), ..Requirements::default() };
    let asking = || {
        let mut new = new_task();
        new.input.requires = asks();
        new
    };
    let store = open(&new).await;
    let before = store.submit(asking()).await.expect("it is taken in").task().clone();
    store.close().await;
    as_first_version(&new, &old);
    let raw = Connection::open(&old).expect("it opens");
    for change in ["UPDATE lane SET id = ?1 WHERE id = ?2", "UPDATE task SET lane = ?1 WHERE lane = ?2"] {
        raw.execute(change, params![FORMER_LANE, before.lane.as_str()]).expect("it writes");
    }
    raw.execute("UPDATE input SET lane = ?", [FORMER_LANE]).expect("it writes");
    drop(raw);

    let store = open(&old).await;
    let after = store.submit(asking()).await.expect("it is taken in").task().clone();
    assert_eq!(after.lane, before.lane, "under the name of today");
    let hand = acquire(&store).await;
    assert_eq!(store.claim(hand.clone()).await.expect("it answers"), None, "this worker has no such label");
    let labels = asks().labels;
    let able =
        ClaimRequest { capabilities: Arc::new(Capabilities { labels, ..Capabilities::default() }), ..hand };
    for id in [before.id, after.id] {
        let claim = store.claim(able.clone()).await.expect("it answers").expect("it is ready");
        assert_eq!((claim.task.id, &claim.input.requires), (id, &asks()));
        let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: None };
        store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
    }
    assert!(store.lanes().await.expect("it lists").is_empty(), "both are forgotten");
}

/// The former program knows of no quota, and what it takes in and forgets counts all the same where that is known.
#[tokio::test]
async fn what_the_former_program_brings_and_forgets_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let limited = Options { quota: Quota { waiting: 0, bytes: 1000 }, ..options() };
    let open = async || SqliteStore::open(&path, limited.clone()).await.expect("it opens");
    let tenant = Tenant::default_tenant();
    let store = open().await;
    let first = store.submit(new_task()).await.expect("it is taken in").task().id;
    store.submit(new_task()).await.expect("it is taken in");
    let each = new_task().input.stored_bytes(None).unsigned_abs();
    assert_eq!(store.room(&tenant).await.expect("it answers"), 1000 - 2 * each);
    store.close().await;

    let raw = Connection::open(&path).expect("it opens");
    raw.execute("DELETE FROM task WHERE id = ?", [first.0.as_bytes()]).expect("it forgets");
    let asset = "INSERT INTO asset (tenant, sha256, key, filename, mime, size, created_at) \
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET key = excluded.key, mime = excluded.mime, \
        size = excluded.size, created_at = excluded.created_at";
    for name in ["a.png", "b.png", "a.png"] {
        let row = params!["default", Sha256::of(b"x").0, "assets/x", name, "image/png", 100, 0];
        raw.execute(asset, row).expect("it keeps an asset");
    }
    drop(raw);
    let store = open().await;
    assert_eq!(store.room(&tenant).await.expect("it answers"), 1000 - each - 100);
}
