//! PostgreSQL that stops, freezes, vanishes and comes back, and programs of different ages on one database.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remuda_core::transition::Ending;
use remuda_core::{
    Claim, Fence, LeaseRef, NewTask, OwnerId, Phase, Status, Task, TaskId, TaskResult, WorkerId, WorkerSpec,
};
use remuda_store::{
    Acquired, AdoptRequest, BeatRequest, ClaimRequest, Error, HousekeepingStore as _, LeaseBeat, Options,
    PostgresStore, RunnerStore as _, Store, TaskStore as _,
};
use remuda_testbed::net::{Proxy, target};
use remuda_testbed::postgres::{self, Cluster, database};
use remuda_testbed::wait;
use serde_json::value::RawValue;
use tokio_postgres::NoTls;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(120);

fn owner() -> OwnerId {
    OwnerId(Uuid::new_v4())
}

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{}}"#.to_owned()).expect("it is JSON"))
}

fn completed() -> Ending {
    Ending::Completed { result: TaskResult::default(), gpu_ms: Some(1000) }
}

async fn open(url: &str, owner: OwnerId) -> PostgresStore {
    PostgresStore::connect(url, Options::new(owner)).await.expect("the store opens")
}

async fn statements(url: &str, statements: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    let work = async {
        client.batch_execute(statements).await.expect("the statements are right");
        drop(client);
    };
    let ((), ended) = tokio::join!(work, connection);
    ended.expect("the connection ends well");
}

/// One worker of one process.
#[derive(Debug, Clone)]
struct Hand {
    owner: OwnerId,
    worker: WorkerId,
    fence: Fence,
}

impl Hand {
    async fn acquire(store: &dyn Store, owner: OwnerId, name: &str) -> Self {
        let worker = WorkerId::new(name).expect("the name is fine");
        let spec = WorkerSpec {
            id: worker.clone(),
            endpoint: String::new(),
            name: None,
            labels: Default::default(),
        };
        match store.acquire_worker(spec, owner).await.expect("workers can be acquired") {
            Acquired::Yes(held) => Self { owner, worker, fence: held.fence },
            Acquired::HeldBy(other) => panic!("held by another: {other:?}"),
        }
    }

    fn request(&self, wait: Duration) -> ClaimRequest {
        ClaimRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            capabilities: Arc::default(),
            loaded: Vec::new(),
            ahead: false,
            gateway: None,
            wait,
        }
    }

    async fn claim(&self, store: &dyn Store) -> Claim {
        let claim = store.claim(self.request(SOON)).await.expect("claims are answered");
        claim.expect("there is a task")
    }

    fn adoption(&self, known: Vec<LeaseRef>) -> AdoptRequest {
        AdoptRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            gateway: None,
            known,
        }
    }

    fn beat(&self, lease: LeaseRef) -> BeatRequest {
        let lease = LeaseBeat { lease, phase: Phase::Rendering, progress: 0.5 };
        BeatRequest { owner: self.owner, leases: vec![lease], workers: Vec::new(), wait: Duration::ZERO }
    }
}

/// Repeats a call as it was while the database is away.
macro_rules! insist {
    ($call:expr) => {{
        let deadline = Instant::now() + 2 * SOON;
        loop {
            match $call.await {
                Err(Error::Unavailable { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => break other,
            }
        }
    }};
}

/// Submits, claims and ends, whatever happens to the database. What was claimed and the answer lost is found again
/// by adopting.
async fn lives(store: Arc<PostgresStore>, hand: Hand, goal: Arc<AtomicBool>) -> Vec<TaskId> {
    let mut made = Vec::new();
    while !goal.load(Ordering::Relaxed) {
        let new = new_task();
        let submitted = insist!(store.submit(new.clone())).expect("submitted");
        made.push(submitted.task().id);
        let claimed = insist!(store.claim(hand.request(Duration::from_millis(200))));
        let mut leases: Vec<LeaseRef> =
            claimed.expect("answered").iter().map(|claim| claim.lease.reference()).collect();
        let lost = insist!(store.adopt(hand.adoption(leases.clone()))).expect("adopted");
        leases.extend(lost.iter().map(|claim| claim.lease.reference()));
        for lease in leases {
            let reply = insist!(store.end(hand.owner, lease, completed())).expect("it is still ours");
            assert_eq!(reply.status, Status::Completed);
        }
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_server_stops_hard_in_mid_work() {
    let options = postgres::Options { durable: true, ..postgres::Options::default() };
    let mut cluster = Cluster::start(options).await.unwrap();
    let url = cluster.database().await.unwrap();
    let me = owner();
    let store = Arc::new(open(&url, me).await);
    let goal = Arc::new(AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    let mut hands = Vec::new();
    for n in 0..12 {
        let hand = Hand::acquire(&*store, me, &format!("w{n}")).await;
        callers.spawn(lives(Arc::clone(&store), hand.clone(), Arc::clone(&goal)));
        hands.push(hand);
    }
    for _ in 0..3 {
        let begun = store.counts(None).await.map_or(0, |counts| counts.completed);
        let more = async || match store.counts(None).await {
            Ok(counts) if counts.completed > begun + 30 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait::until("work to go on", SOON, more).await.unwrap();
        cluster.stop_for(Duration::from_millis(200)).await.unwrap();
    }
    goal.store(true, Ordering::Relaxed);
    let mut made = Vec::new();
    while let Some(one) = callers.join_next().await {
        made.extend(one.unwrap());
    }
    // What the callers left in the queue, because a claim got another's task, is done now.
    for hand in &hands {
        for claim in insist!(store.adopt(hand.adoption(Vec::new()))).unwrap() {
            insist!(store.end(claim.lease.owner, claim.lease.reference(), completed())).unwrap();
        }
    }
    while let Some(claim) = insist!(store.claim(hands[0].request(Duration::ZERO))).unwrap() {
        insist!(store.end(claim.lease.owner, claim.lease.reference(), completed())).unwrap();
    }
    for id in &made {
        let task: Task = insist!(store.task(*id)).unwrap().expect("it was not lost");
        assert_eq!(task.status, Status::Completed);
        let events = insist!(store.events(*id, 0, 100)).unwrap();
        assert_eq!(events.iter().filter(|event| event.kind.is_terminal()).count(), 1);
        let numbers: Vec<i64> = events.iter().map(|event| event.n).collect();
        assert_eq!(numbers, (1..=task.version).collect::<Vec<_>>());
    }
    let counts = insist!(store.counts(None)).unwrap();
    assert_eq!((counts.pending, counts.running), (0, 0));
    assert_eq!(usize::try_from(counts.completed).unwrap(), made.len());
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_owners_have_time_to_renew() {
    let mut cluster =
        Cluster::start(postgres::Options { durable: true, ..Default::default() }).await.unwrap();
    let url = cluster.database().await.unwrap();
    let (mine, other) = (owner(), owner());
    let mut options = Options::new(mine);
    options.policy.lease = Duration::from_millis(100);
    options.policy.adoption = Duration::from_millis(100);
    options.settle = Duration::from_secs(3);
    let store = PostgresStore::connect(&url, options).await.unwrap();
    let hand = Hand::acquire(&store, other, "w").await;
    store.submit(new_task()).await.unwrap();
    let claim = hand.claim(&store).await;

    // Long after the lease ran out, but not long after the server came back.
    cluster.stop_for(Duration::from_secs(1)).await.unwrap();
    wait::until("the store to be back", SOON, async || store.ping().await).await.unwrap();
    let mut lost = Vec::new();
    let gone = async || {
        lost = store.tidy().await.map_err(|error| error.to_string())?.lost;
        if lost.is_empty() { Err("nothing lost".to_owned()) } else { Ok(()) }
    };
    wait::until("the task to be lost", SOON, gone).await.unwrap();
    // Raises an error if the server was not up for as long as the store must settle.
    statements(&url, "SELECT 1 / (now() - pg_postmaster_start_time() >= interval '3 s')::int").await;
    assert_eq!(lost, [claim.task.id]);
    store.close().await;
}

/// Calls of every kind end in an error of the right kind, in time.
async fn all_are_unavailable(store: &PostgresStore, hand: &Hand, claim: &Claim) {
    let begun = Instant::now();
    let (submit, read, claimed, beat, end) = tokio::join!(
        store.submit(new_task()),
        store.task(claim.task.id),
        store.claim(hand.request(Duration::from_secs(1))),
        store.beat(hand.beat(claim.lease.reference())),
        store.end(claim.lease.owner, claim.lease.reference(), completed()),
    );
    let took = begun.elapsed();
    let errors = [submit.err(), read.err(), claimed.err(), beat.err(), end.err()];
    for error in errors {
        assert!(matches!(error, Some(Error::Unavailable { .. })), "{error:?}");
    }
    // Ten seconds, and what a busy machine needs to notice that they are over.
    assert!(took < Duration::from_secs(30), "it took {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_noticed_and_forgiven() {
    let cluster = Cluster::start(postgres::Options::default()).await.unwrap();
    let me = owner();
    let store = open(&cluster.database().await.unwrap(), me).await;
    let hand = Hand::acquire(&store, me, "w").await;
    store.submit(new_task()).await.unwrap();
    let claim = hand.claim(&store).await;
    cluster.freeze().unwrap();
    all_are_unavailable(&store, &hand, &claim).await;
    cluster.thaw().unwrap();
    let reply = insist!(store.end(claim.lease.owner, claim.lease.reference(), completed())).unwrap();
    assert_eq!(reply.status, Status::Completed);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_is_noticed_and_forgiven() {
    let url = database().await.unwrap();
    let proxy = Proxy::start(target(&url).unwrap()).await.unwrap();
    let me = owner();
    let store = open(&proxy.through(&url).unwrap(), me).await;
    let hand = Hand::acquire(&store, me, "w").await;
    store.submit(new_task()).await.unwrap();
    let claim = hand.claim(&store).await;
    proxy.stall().await;
    all_are_unavailable(&store, &hand, &claim).await;
    proxy.pass().await;
    let reply = insist!(store.end(claim.lease.owner, claim.lease.reference(), completed())).unwrap();
    assert_eq!(reply.status, Status::Completed);
    // Connections that are reset cost the calls under way, and nothing after them.
    proxy.cut().await;
    insist!(store.submit(new_task())).unwrap();
    hand.claim(&store).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_make_the_schema_at_once() {
    let url = database().await.unwrap();
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        starting.spawn(async move { open(&url, owner()).await });
    }
    let mut ids = HashSet::new();
    while let Some(store) = starting.join_next().await {
        let store = store.unwrap();
        ids.insert(store.installation().await.unwrap().id);
        store.close().await;
    }
    assert_eq!(ids.len(), 1, "they are one installation");
}

#[tokio::test]
async fn a_newer_schema_is_used_only_where_it_allows_it() {
    let url = database().await.unwrap();
    open(&url, owner()).await.close().await;
    statements(&url, "UPDATE remuda.schema SET version = 99, min_binary = 1").await;
    let store = open(&url, owner()).await;
    store.submit(new_task()).await.unwrap();
    store.close().await;
    statements(&url, "UPDATE remuda.schema SET min_binary = 98").await;
    let error = PostgresStore::connect(&url, Options::new(owner())).await.unwrap_err();
    assert!(matches!(error, Error::TooNew { found: 99, needs: 98, .. }), "{error:?}");
}

#[tokio::test]
async fn no_error_shows_the_password() {
    let port = remuda_testbed::net::free_port().unwrap();
    for mode in ["prefer", "verify-full", "maybe"] {
        let url = format!("postgres://me:s3cret@127.0.0.1:{port}/db?sslmode={mode}");
        let error = PostgresStore::connect(&url, Options::new(owner())).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_cannot_hold_harms_only_itself() {
    let store = Arc::new(open(&database().await.unwrap(), owner()).await);
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..40 {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            let mut new = new_task();
            // No text in PostgreSQL has a NUL in it.
            new.workflow_id = Some(if n % 10 == 0 { "a\0b".to_owned() } else { format!("w{n}") });
            (n, store.submit(new).await)
        });
    }
    while let Some(done) = callers.join_next().await {
        let (n, submitted) = done.unwrap();
        assert_eq!(submitted.is_ok(), n % 10 != 0, "{n}: {submitted:?}");
    }
    assert_eq!(store.counts(None).await.unwrap().pending, 36);
    store.close().await;
}
