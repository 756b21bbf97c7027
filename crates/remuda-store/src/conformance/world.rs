//! A store on a fixture, a clock, and hands that drive workers.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{
    Capabilities, Claim, EventKind, Failure, FailureClass, Fence, Lease, LeaseRef, NewTask, OwnerId, Phase,
    Priority, Requirements, Task, TaskEvent, TaskId, TaskResult, Tenant, Timestamp, Worker, WorkerId,
    WorkerReport, WorkerSpec,
};
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Fixture;
use crate::{
    Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, Clock as _, LeaseBeat, ManualClock,
    Options, Result, Store, WorkerBeat,
};

/// How long something that must happen may take on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(60);

/// A wait that shows that something did not come.
pub(super) const SHORT: Duration = Duration::from_millis(120);

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) struct World {
    fixture: Arc<dyn Fixture>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) options: Options,
    pub(super) store: Arc<dyn Store>,
}

impl World {
    /// A store that needs no time to settle, opened by a process that drives no worker itself: the workers of
    /// these tests belong to other processes, as with sidecars, so that their leases run out everywhere.
    pub(super) async fn new(fixture: impl Fixture) -> Self {
        Self::with(fixture, |_| {}).await
    }

    pub(super) async fn with(fixture: impl Fixture, change: impl FnOnce(&mut Options)) -> Self {
        let clock = Arc::new(ManualClock::default());
        let mut options = Options::new(owner());
        options.settle = Duration::ZERO;
        options.clock = Some(clock.clone());
        change(&mut options);
        let fixture: Arc<dyn Fixture> = Arc::new(fixture);
        let store = fixture.open(options.clone()).await.expect("the store opens");
        Self { fixture, clock, options, store }
    }

    /// The process ends and starts again.
    pub(super) async fn restart(&mut self) {
        self.store.close().await;
        self.store = self.fixture.open(self.options.clone()).await.expect("the store opens again");
    }

    /// Another process, with options of its own.
    pub(super) async fn another(&self, change: impl FnOnce(&mut Options)) -> Result<Arc<dyn Store>> {
        let mut options = Options { owner: owner(), ..self.options.clone() };
        change(&mut options);
        self.fixture.open(options).await
    }

    pub(super) fn is_shared(&self) -> bool {
        self.fixture.is_shared()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) async fn submit(&self, new: NewTask) -> Task {
        self.store.submit(new).await.expect("it is taken in").task().clone()
    }

    pub(super) async fn task(&self, id: TaskId) -> Task {
        self.store.task(id).await.expect("it can be read").expect("it is there")
    }

    pub(super) async fn lease(&self, id: TaskId) -> Option<Lease> {
        self.store.lease(id).await.expect("leases can be read")
    }

    pub(super) async fn events(&self, id: TaskId) -> Vec<TaskEvent> {
        self.store.events(id, 0, 1000).await.expect("events can be read")
    }

    pub(super) async fn kinds(&self, id: TaskId) -> Vec<EventKind> {
        self.events(id).await.into_iter().map(|event| event.kind).collect()
    }

    /// A worker of a process of its own.
    pub(super) async fn hand(&self, name: &str) -> Hand {
        self.hand_of(name, owner()).await
    }

    pub(super) async fn hand_of(&self, name: &str, owner: OwnerId) -> Hand {
        Hand::acquire(self.store.clone(), name, owner).await
    }

    /// A task that a worker of its own is busy with.
    pub(super) async fn running(&self, worker: &str) -> (Hand, Claim) {
        let hand = self.hand(worker).await;
        let task = self.submit(new_task()).await;
        let claim = hand.get().await;
        assert_eq!(claim.task.id, task.id, "the queue was empty before");
        (hand, claim)
    }
}

/// A process that drives one worker.
#[derive(Debug, Clone)]
pub(super) struct Hand {
    pub(super) store: Arc<dyn Store>,
    pub(super) owner: OwnerId,
    pub(super) worker: WorkerId,
    pub(super) fence: Fence,
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) loaded: Vec<i64>,
}

impl Hand {
    pub(super) async fn acquire(store: Arc<dyn Store>, name: &str, owner: OwnerId) -> Self {
        let worker = acquired(store.acquire_worker(spec(name), owner).await);
        assert_eq!(worker.owner, owner);
        Self {
            store,
            owner,
            worker: worker.spec.id,
            fence: worker.fence,
            capabilities: Arc::default(),
            loaded: Vec::new(),
        }
    }

    pub(super) fn able(mut self, requires: &Requirements) -> Self {
        let Requirements { labels, nodes, models } = requires.clone();
        self.capabilities = Arc::new(Capabilities { labels, nodes, models });
        self
    }

    pub(super) fn request(&self, wait: Duration) -> ClaimRequest {
        ClaimRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            capabilities: self.capabilities.clone(),
            loaded: self.loaded.clone(),
            ahead: false,
            gateway: None,
            wait,
        }
    }

    /// What is there now.
    pub(super) async fn claim(&self) -> Option<Claim> {
        self.store.claim(self.request(Duration::ZERO)).await.expect("claims are answered")
    }

    /// What must be there now.
    pub(super) async fn get(&self) -> Claim {
        self.claim().await.expect("a task is ready for the worker")
    }

    /// What is there now, to wait in the worker's own queue.
    pub(super) async fn get_ahead(&self) -> Claim {
        let request = ClaimRequest { ahead: true, ..self.request(Duration::ZERO) };
        self.store.claim(request).await.expect("claims are answered").expect("a task is ready for the worker")
    }

    /// Asks in the background, for as long as anything may take.
    pub(super) fn park(&self, ahead: bool) -> JoinHandle<Option<Claim>> {
        let (store, request) = (self.store.clone(), ClaimRequest { ahead, ..self.request(SOON) });
        tokio::spawn(async move { store.claim(request).await.expect("claims are answered") })
    }

    /// Asks in the background, for this long.
    pub(super) fn park_for(&self, wait: Duration) -> JoinHandle<Option<Claim>> {
        let (store, request) = (self.store.clone(), self.request(wait));
        tokio::spawn(async move { store.claim(request).await.expect("claims are answered") })
    }

    pub(super) async fn beat(&self, leases: &[LeaseBeat], wait: Duration) -> BeatReply {
        let request = BeatRequest { owner: self.owner, leases: leases.to_vec(), workers: Vec::new(), wait };
        self.store.beat(request).await.expect("beats are answered")
    }

    /// Renews one lease, without waiting.
    pub(super) async fn renew(&self, lease: LeaseRef, phase: Phase) -> BeatReply {
        self.beat(&[LeaseBeat { lease, phase, progress: 0.5 }], Duration::ZERO).await
    }

    /// Renews the worker, without waiting.
    pub(super) async fn report(&self, report: WorkerReport) -> BeatReply {
        let worker = WorkerBeat { id: self.worker.clone(), fence: self.fence, report };
        let request =
            BeatRequest { owner: self.owner, leases: vec![], workers: vec![worker], wait: Duration::ZERO };
        self.store.beat(request).await.expect("beats are answered")
    }

    pub(super) async fn adopt(&self, known: &[LeaseRef]) -> Vec<Claim> {
        self.try_adopt(known).await.expect("adoptions are answered")
    }

    pub(super) async fn try_adopt(&self, known: &[LeaseRef]) -> Result<Vec<Claim>> {
        let request = AdoptRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            gateway: None,
            known: known.to_vec(),
        };
        self.store.adopt(request).await
    }
}

pub(super) fn owner() -> OwnerId {
    OwnerId(Uuid::new_v4())
}

pub(super) fn spec(name: &str) -> WorkerSpec {
    WorkerSpec {
        id: WorkerId::new(name).expect("the name is fine"),
        endpoint: format!("http://{name}:8188"),
        name: Some(format!("pod of {name}")),
        labels: ["test".to_owned()].into(),
    }
}

pub(super) fn acquired(answer: Result<Acquired>) -> Worker {
    match answer.expect("workers can be acquired") {
        Acquired::Yes(worker) => worker,
        Acquired::HeldBy(worker) => panic!("the worker is held by another: {worker:?}"),
    }
}

pub(super) fn held(answer: Result<Acquired>) -> Worker {
    match answer.expect("workers can be asked for") {
        Acquired::HeldBy(worker) => worker,
        Acquired::Yes(worker) => panic!("the worker was given to a second process: {worker:?}"),
    }
}

pub(super) fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{}}"#.to_owned()).expect("it is JSON"))
}

pub(super) fn of_priority(priority: i64) -> NewTask {
    NewTask { priority: Priority::new(priority).expect("it is in range"), ..new_task() }
}

pub(super) fn of_tenant(name: &str) -> NewTask {
    NewTask { tenant: tenant(name), ..new_task() }
}

pub(super) fn requiring(requires: &Requirements) -> NewTask {
    let mut new = new_task();
    new.input.requires = requires.clone();
    new
}

pub(super) fn label(name: &str) -> Requirements {
    Requirements { labels: [name.to_owned()].into(), ..Requirements::default() }
}

pub(super) fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("the name is fine")
}

pub(super) fn completed() -> Ending {
    let result =
        TaskResult { outputs: serde_json::json!({"9": {"images": []}}).into(), ..TaskResult::default() };
    Ending::Completed { result, gpu_ms: None }
}

pub(super) fn failed(class: FailureClass) -> Ending {
    Ending::Failed { failure: Failure::new(class, "it broke"), partial: None }
}

/// Failed, with what was done before.
pub(super) fn failed_in_part(class: FailureClass) -> Ending {
    let partial =
        TaskResult { outputs: serde_json::json!({"3": {"images": []}}).into(), ..TaskResult::default() };
    Ending::Failed { failure: Failure::new(class, "it broke"), partial: Some(Box::new(partial)) }
}

/// Looks until the condition holds.
pub(super) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "waited {SOON:?} for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a spawned call returned, in time.
pub(super) async fn joined<T>(what: &str, handle: JoinHandle<T>) -> T {
    match tokio::time::timeout(SOON + 5 * SECOND, handle).await {
        Ok(returned) => returned.expect("the call did not panic"),
        Err(_) => panic!("it did not return: {what}"),
    }
}

/// What the first of two spawned calls to return gave, and the other one.
pub(super) async fn either<T>(what: &str, one: JoinHandle<T>, other: JoinHandle<T>) -> (T, JoinHandle<T>) {
    let first = futures_util::future::select(one, other);
    match tokio::time::timeout(SOON + 5 * SECOND, first).await {
        Ok(first) => {
            let (returned, other) = first.factor_first();
            (returned.expect("the call did not panic"), other.into_inner())
        }
        Err(_) => panic!("none returned: {what}"),
    }
}
