//! What the present program must find when the release before has worked on its store, whichever engine keeps it.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{
    AttemptOutcome, Claim, Destination, Dialect, Errand, ErrandState, KeyId, NewTask, Origin, OwnerId, Phase,
    PromptExtra, Sha256, Status, TaskId, TaskResult, Tenant, WorkerId, WorkerSpec,
};
use remuda_store::{
    Acquired, AdoptRequest, ClaimRequest, Counts, DocumentLimits, Error, Keyring, Options, Registrant, Store,
};
use serde_json::value::RawValue;
use uuid::Uuid;

pub(crate) const OWNER: OwnerId = OwnerId(Uuid::from_u128(1));
pub(crate) const SECRET: &str = "sk-0123456789-very-secret";
pub(crate) const PROMPT: Uuid = Uuid::from_u128(77);
pub(crate) const GRAPH: &str = r#"{"1":{"class_type":"A","inputs":{}}}"#;
pub(crate) const RESULT: &str = r#"{"files":[],"outputs":{},"execution_ms":null}"#;
pub(crate) const SPACE: &str = "userdata";
pub(crate) const INFO: &str = r#"{"A":{}}"#;

/// `extra` as the release before writes it: the key of the paid node is in plain text.
pub(crate) fn plain_extra() -> String {
    format!(r#"{{"extra_data":{{"a":1,"api_key_comfy_org":"{SECRET}"}},"number":1.0}}"#)
}

/// Room for exactly what the tests write, so that a total that is wrong by one shows.
pub(crate) fn options(keys: &str) -> Options {
    let mut options = Options::new(OWNER);
    options.documents = DocumentLimits { count: 3, bytes: 10 };
    options.secrets = Keyring::parse(keys).expect("a key");
    options
}

/// A task of a native client that brings the key of a paid node.
fn paid() -> NewTask {
    let raw = |text: String| RawValue::from_string(text).expect("JSON");
    let extra_data = Some(raw(format!(r#"{{"api_key_comfy_org": "{SECRET}"}}"#)));
    let origin = Origin { dialect: Dialect::COMFYUI, external_id: None, client: Some("c".to_owned()) };
    let deliver = || Errand::Deliver(Destination { sink: "s".to_owned(), folder: None });
    let errands = vec![deliver(), deliver()];
    let mut new = NewTask { origin: Some(origin), errands, ..NewTask::new(raw(GRAPH.to_owned())) };
    new.input.extra = Some(Box::new(PromptExtra { extra_data, ..PromptExtra::default() }));
    new
}

pub(crate) async fn acquire(store: &dyn Store) -> ClaimRequest {
    let Ok(Acquired::Yes(worker)) = store.acquire_worker(spec(), OWNER).await else {
        panic!("the worker is not to be had")
    };
    ClaimRequest {
        owner: OWNER,
        worker: worker.spec.id,
        worker_fence: worker.fence,
        capabilities: Arc::default(),
        loaded: Vec::new(),
        ahead: false,
        gateway: None,
        wait: Duration::ZERO,
    }
}

fn spec() -> WorkerSpec {
    let id = WorkerId::new("w").expect("a name");
    WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() }
}

/// What the present program leaves to the release before: two tasks with sealed secrets and two errands each, a worker and a
/// document of three bytes. That release ends the first task and cancels the second.
pub(crate) async fn prepare(store: &dyn Store) -> (remuda_core::Task, remuda_core::Task) {
    acquire(store).await;
    let first = store.submit(paid()).await.expect("it is taken in").task().clone();
    let second = store.submit(paid()).await.expect("it is taken in").task().clone();
    let tenant = Tenant::default_tenant();
    store.put_document(&tenant, SPACE, "a", vec![1; 3], true).await.expect("it fits");
    (first, second)
}

/// The tasks after the release before has worked on them.
pub(crate) struct Left {
    /// Ended by it, submitted by the present program.
    pub(crate) ended: TaskId,
    /// Cancelled by it, submitted by the present program.
    pub(crate) cancelled: TaskId,
    /// Submitted by it with [`plain_extra`], waiting.
    pub(crate) waits: TaskId,
    /// Submitted by it with [`plain_extra`], claimed for the worker as [`PROMPT`] and renewed with half of it done.
    pub(crate) runs: TaskId,
}

/// Opened again, the store of the present program has all of it right, and goes on with it. `secrets` counts what is sealed;
/// where servers of both releases may be at work, what has not ended is `left_plain` for a day.
pub(crate) async fn check(store: &dyn Store, left: &Left, left_plain: bool, secrets: impl AsyncFn() -> i64) {
    let tenant = Tenant::default_tenant();
    check_tasks(store, left, left_plain, &tenant).await;
    check_errands(store, left).await;
    assert_eq!(secrets().await, if left_plain { 0 } else { 2 }, "of the tasks that have not ended");
    finish(store, left).await;
    assert_eq!(secrets().await, 0, "they went with their tasks");
    let counts = store.counts(Some(&tenant)).await.expect("it counts");
    assert_eq!(counts, Counts { completed: 3, cancelled: 1, ..Counts::default() });
    check_documents(store, &tenant).await;

    let by = Registrant { key: KeyId(Uuid::from_u128(5)), tenant, most: 9, bytes: 1 << 20 };
    let taken = store.register_worker(spec(), OwnerId(Uuid::from_u128(6)), by).await;
    assert!(matches!(taken, Err(Error::Taken { .. })), "the worker is still this installation's: {taken:?}");
    assert_eq!(store.forget_object_info(Duration::from_secs(3600)).await.expect("it answers"), 0);
    let info = store.object_info(Sha256::of(INFO.as_bytes())).await.expect("it answers");
    assert_eq!(info.as_deref(), Some(INFO));
}

async fn check_tasks(store: &dyn Store, left: &Left, left_plain: bool, tenant: &Tenant) {
    let expected = [
        (left.ended, Status::Completed),
        (left.cancelled, Status::Cancelled),
        (left.waits, Status::Pending),
        (left.runs, Status::Running),
    ];
    for (id, status) in expected {
        let task = store.task(id).await.expect("it answers").expect("it is there");
        assert_eq!((task.status, task.result.is_some()), (status, id == left.ended));
        assert_eq!(task.origin.and_then(|origin| origin.client).as_deref(), Some("c"));
        let input = store.input(id).await.expect("it answers").expect("it is there");
        let sealed = !(left_plain && matches!(status, Status::Pending | Status::Running));
        let names: &[&str] = if sealed { &["api_key_comfy_org"] } else { &[] };
        assert_eq!(input.extra.expect("it has some").sealed, names, "{status}");
    }
    let counts = store.counts(Some(tenant)).await.expect("it counts");
    assert_eq!(counts, Counts { pending: 1, running: 1, completed: 1, cancelled: 1, failed: 0 });
    assert_eq!(store.unfinished(tenant, Dialect::COMFYUI, Some("c")).await.expect("it counts"), 2);
    let attempts = store.attempts(left.ended, 1000).await.expect("it answers");
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].owner, attempts[0].outcome), (OWNER, Some(AttemptOutcome::Completed)));
    let lease = store.lease(left.runs).await.expect("it answers").expect("it is held");
    assert_eq!((lease.owner, lease.prompt_id, lease.phase), (OWNER, PROMPT, Phase::Rendering));
    assert!((lease.progress - 0.5).abs() < 1e-9);
}

/// Of each task the second errand is for any end, as the rows were changed to say.
async fn check_errands(store: &dyn Store, left: &Left) {
    use ErrandState::{Due, Idle};
    for (id, expected) in [(left.ended, [Due, Due]), (left.cancelled, [Idle, Due])] {
        let errands = store.errands(id).await.expect("it answers");
        let states: Vec<ErrandState> = errands.iter().map(|errand| errand.state).collect();
        assert_eq!(states, expected);
    }
    let taken = store.take_errands(9, &[], Duration::from_secs(60)).await.expect("it answers");
    assert_eq!(taken.len(), 3, "those that fell due while the release before was at work");
}

/// Adopts what runs, claims what waits, and ends both. Each comes with its secret.
async fn finish(store: &dyn Store, left: &Left) {
    let hand = acquire(store).await;
    let adoption = AdoptRequest {
        owner: OWNER,
        worker: hand.worker.clone(),
        worker_fence: hand.worker_fence,
        gateway: None,
        known: Vec::new(),
    };
    let mut adopted = store.adopt(adoption).await.expect("it answers");
    assert_eq!(adopted.len(), 1);
    let runs = adopted.remove(0);
    assert_eq!((runs.task.id, runs.lease.prompt_id), (left.runs, PROMPT));
    end(store, runs).await;
    let waits = store.claim(hand).await.expect("it answers").expect("it is ready");
    assert_eq!(waits.task.id, left.waits);
    end(store, waits).await;
}

async fn end(store: &dyn Store, claim: Claim) {
    let extra = claim.input.extra.as_ref().and_then(|extra| extra.extra_data.as_ref());
    let extra: serde_json::Value = serde_json::from_str(extra.expect("it has some").get()).expect("JSON");
    assert_eq!(extra, serde_json::json!({"a": 1, "api_key_comfy_org": SECRET}));
    let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: None };
    store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
}

/// The release before left `a` with five bytes and `b` with two: there is room for one more, of three bytes.
async fn check_documents(store: &dyn Store, tenant: &Tenant) {
    let put = async |path, bytes| store.put_document(tenant, SPACE, path, vec![0; bytes], true).await;
    let refused = put("b", 6).await.expect_err("it is a byte too long");
    assert!(matches!(refused, Error::OverLimit { limit: "server.document_bytes", .. }), "{refused}");
    put("c", 3).await.expect("it fits");
    let refused = put("d", 0).await.expect_err("it is one too many");
    assert!(matches!(refused, Error::OverLimit { limit: "server.documents", .. }), "{refused}");
}
