//! Several processes on one database: what one does reaches the other.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod ended;

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{Fence, LeaseRef, NewTask, OwnerId, Phase, WorkerId, WorkerSpec};
use remuda_store::{
    Acquired, BeatReply, BeatRequest, ClaimRequest, LeaseBeat, Options, PostgresStore, RunnerStore as _,
    Store, TaskStore as _, WorkerStore as _,
};
use remuda_testbed::postgres::database;
use serde_json::value::RawValue;
use tokio_postgres::NoTls;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(60);

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{}}"#.to_owned()).expect("it is JSON"))
}

/// A process with one worker.
#[derive(Debug, Clone)]
struct Process {
    store: Arc<PostgresStore>,
    owner: OwnerId,
    worker: WorkerId,
    fence: Fence,
}

impl Process {
    async fn start(url: &str, name: &str) -> Self {
        let owner = OwnerId(Uuid::new_v4());
        let store = PostgresStore::connect(url, Options::new(owner)).await.expect("it opens");
        let worker = WorkerId::new(name).expect("the name is fine");
        let spec = WorkerSpec {
            id: worker.clone(),
            endpoint: String::new(),
            name: None,
            labels: Default::default(),
        };
        let Acquired::Yes(held) = store.acquire_worker(spec, owner).await.expect("it answers") else {
            panic!("the worker is held by another")
        };
        Self { store: Arc::new(store), owner, worker, fence: held.fence }
    }

    fn request(&self, ahead: bool) -> ClaimRequest {
        ClaimRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            capabilities: Arc::default(),
            loaded: Vec::new(),
            ahead,
            gateway: None,
            wait: SOON,
        }
    }

    fn park(&self, ahead: bool) -> tokio::task::JoinHandle<Option<remuda_core::Claim>> {
        let (store, request) = (Arc::clone(&self.store), self.request(ahead));
        tokio::spawn(async move { store.claim(request).await.expect("claims are answered") })
    }

    async fn beat(&self, lease: LeaseRef, phase: Phase, wait: Duration) -> BeatReply {
        let lease = LeaseBeat { lease, phase, progress: 0.0 };
        let request = BeatRequest { owner: self.owner, leases: vec![lease], workers: Vec::new(), wait };
        self.store.beat(request).await.expect("beats are answered")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_idle_worker_elsewhere_wants_goes_to_it() {
    let url = database().await.unwrap();
    let (busy, idle) = (Process::start(&url, "busy").await, Process::start(&url, "idle").await);
    busy.store.submit(new_task()).await.unwrap();
    let ahead = busy.store.claim(busy.request(true)).await.unwrap().expect("it is ready");
    let lease = ahead.lease.reference();
    let waiting = idle.park(false);
    let reply = busy.beat(lease, Phase::Ahead, SOON).await;
    assert!(reply.news.iter().any(|news| news.lease == lease && news.wanted), "{reply:?}");
    // The busy worker would take it again at once, if it could.
    let greedy = busy.park(true);
    busy.store.give_back(busy.owner, lease, None).await.unwrap();
    let claim = waiting.await.unwrap().expect("the idle worker gets it");
    assert_eq!((claim.task.id, claim.task.attempt), (ahead.task.id, 2));
    greedy.abort();
    busy.store.close().await;
    idle.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_cancellations_and_changes_reach_the_other_process() {
    let url = database().await.unwrap();
    let (one, two) = (Process::start(&url, "one").await, Process::start(&url, "two").await);
    let mut changes = two.store.changes();
    let waiting = two.park(false);
    let submitted = one.store.submit(new_task()).await.unwrap().task().clone();
    let claim = waiting.await.unwrap().expect("it was submitted elsewhere");
    assert_eq!(claim.task.id, submitted.id);

    let (reply, cancelled) = tokio::join!(
        two.beat(claim.lease.reference(), Phase::Rendering, SOON),
        one.store.cancel(submitted.id)
    );
    assert!(cancelled.unwrap().cancel_at.is_some());
    assert!(reply.news.iter().any(|news| news.cancel), "{reply:?}");
    // Told by the other process: the submission and the cancellation are not its own.
    let heard = async {
        loop {
            let change = changes.recv().await.expect("it does not lag");
            if change.task == submitted.id && change.version == 3 {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, heard).await.unwrap();
    one.store.close().await;
    two.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_ended_task_left_is_read_by_those_who_want_it() {
    let url = database().await.unwrap();
    let owner = OwnerId(Uuid::new_v4());
    let store = PostgresStore::connect(&url, Options::new(owner)).await.expect("it opens");
    let spoil = async |id: remuda_core::TaskId| {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        let spoil = "UPDATE remuda.task SET result = '{}' WHERE id = $1";
        client.execute(spoil, &[&id.0]).await.expect("it is written");
    };
    ended::what_it_left_is_read_by_those_who_want_it(&store, owner, spoil).await;
    store.close().await;
}
