//! Every way in which a task can end takes its secret with it.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{
    Claim, Failure, FailureClass, NewTask, OwnerId, PromptExtra, TaskId, TaskResult, WorkerId, WorkerSpec,
};
use remuda_store::{Acquired, ClaimRequest, Clock as _, Keyring, ManualClock, Options, Store};
use serde_json::value::RawValue;
use uuid::Uuid;

pub(crate) const SECRET: &str = "sk-0123456789-very-secret";

pub(crate) fn options(key: &str, clock: &Arc<ManualClock>) -> Options {
    let mut options = Options::new(OwnerId(Uuid::from_u128(1)));
    options.settle = Duration::ZERO;
    options.clock = Some(clock.clone());
    options.secrets = Keyring::parse(key).expect("a key");
    options
}

pub(crate) fn paid() -> NewTask {
    let text = format!(r#"{{"api_key_comfy_org": "{SECRET}"}}"#);
    let extra_data = Some(RawValue::from_string(text).expect("JSON"));
    let mut new = NewTask::new(RawValue::from_string("{}".to_owned()).expect("JSON"));
    new.input.extra = Some(Box::new(PromptExtra { extra_data, ..PromptExtra::default() }));
    new
}

async fn claim(store: &dyn Store) -> Claim {
    let id = WorkerId::new("w").expect("a name");
    let spec = WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() };
    let owner = OwnerId(Uuid::from_u128(1));
    let Ok(Acquired::Yes(worker)) = store.acquire_worker(spec, owner).await else {
        panic!("the worker is not to be had")
    };
    let request = ClaimRequest {
        owner,
        worker: worker.spec.id,
        worker_fence: worker.fence,
        capabilities: Arc::default(),
        loaded: Vec::new(),
        ahead: false,
        gateway: None,
        wait: Duration::ZERO,
    };
    store.claim(request).await.expect("it answers").expect("a task")
}

async fn submit(store: &dyn Store, new: NewTask) -> TaskId {
    store.submit(new).await.expect("it is taken in").task().id
}

/// Ends a task with a secret in every way there is; `left` says how many secrets the store holds.
pub(crate) async fn every_end_takes_its_secret(
    store: &dyn Store,
    clock: &ManualClock,
    left: impl AsyncFn() -> i64,
) {
    let result = TaskResult::default();
    let failure = |class| Ending::Failed { failure: Failure::new(class, "it broke"), partial: None };
    let endings = [
        ("completed", Ending::Completed { result, gpu_ms: None }, true),
        ("refused", failure(FailureClass::Validation), true),
        ("failed, to be tried again", failure(FailureClass::Execution), false),
    ];
    for (what, ending, over) in endings {
        let id = submit(store, paid()).await;
        assert_eq!(left().await, 1, "{what}");
        let claim = claim(store).await;
        assert_eq!(claim.task.id, id);
        store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
        assert_eq!(left().await, i64::from(!over), "{what}");
    }
    let waits =
        store.list(&remuda_store::ListQuery { limit: 1, ..Default::default() }).await.expect("a list");
    store.cancel(waits.tasks[0].id).await.expect("it waits for its next try");
    assert_eq!(left().await, 0, "cancelled while it waited");

    submit(store, paid()).await;
    let claim = claim(store).await;
    store.cancel(claim.task.id).await.expect("it runs");
    assert_eq!(left().await, 1);
    store.end(claim.lease.owner, claim.lease.reference(), Ending::Cancelled).await.expect("it ends");
    assert_eq!(left().await, 0, "cancelled while it ran");

    let deadline = Some(clock.now() + Duration::from_secs(5));
    submit(store, NewTask { deadline, ..paid() }).await;
    assert_eq!(left().await, 1);
    clock.advance(Duration::from_secs(6));
    assert_eq!(store.tidy().await.expect("it tidies").expired, 1);
    assert_eq!(left().await, 0, "expired");
}
