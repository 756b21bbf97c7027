//! What an ended task left may be very long: only who wants it reads it.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{
    Harm, HarmKind, Idempotency, NewTask, OwnerId, Sha256, Status, TaskId, TaskResult, WorkerId, WorkerSpec,
};
use remuda_store::{Acquired, ClaimRequest, EndReply, Error, Store, Submitted};
use serde_json::value::RawValue;

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{}}"#.to_owned()).expect("it is JSON"))
}

/// Everything that looks at an ended task without wanting its result. `spoil` makes the result of a task one that cannot be
/// read: whoever reads it shows that.
pub(crate) async fn what_it_left_is_read_by_those_who_want_it(
    store: &dyn Store,
    owner: OwnerId,
    spoil: impl AsyncFnOnce(TaskId),
) {
    let id = WorkerId::new("worker").expect("a name");
    let spec = WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() };
    let Ok(Acquired::Yes(worker)) = store.acquire_worker(spec, owner).await else {
        panic!("the worker is not to be had")
    };
    let idempotency = Idempotency { key: "again".to_owned(), request: Sha256::of(b"") };
    let new = NewTask { idempotency: Some(idempotency), ..new_task() };
    store.submit(new.clone()).await.expect("it is taken in");
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
    let claim = store.claim(request).await.expect("it is answered").expect("it is ready");
    let lease = claim.lease.reference();
    let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: None };
    store.end(owner, lease, ending.clone()).await.expect("it ends");
    let whole = store.task(new.id).await.expect("it can be read").expect("it is there");
    assert_eq!(store.submit(new.clone()).await.expect("it is known"), Submitted::Before(whole));
    spoil(new.id).await;

    for answer in [store.cancel(new.id).await, store.hasten(new.id).await] {
        assert!(matches!(answer, Err(Error::Finished(Status::Completed))), "{answer:?}");
    }
    let again = store.end(owner, lease, ending).await.expect("it was told before");
    assert_eq!(again, EndReply { status: Status::Completed, discarded: false, repeated: true });
    let (work, process) = ("reading".to_owned(), "it".to_owned());
    let harm = Harm { kind: HarmKind::Stall, work, process, at: claim.task.created_at };
    let harmed = store.note_harm(new.id, None, harm).await.expect("it is counted");
    assert_eq!((harmed.count, harmed.set_aside), (1, false));
    // Those who are written in the same transaction notice nothing of it; who wants the whole task does.
    let (again, by_id) = (new.clone(), NewTask { idempotency: None, ..new.clone() });
    let (again, by_id, other) =
        tokio::join!(store.submit(again), store.submit(by_id), store.submit(new_task()));
    for answer in [again, by_id] {
        assert!(matches!(answer, Err(Error::Corrupt(_))), "{answer:?}");
    }
    other.expect("it is taken in");
    assert_eq!(store.forget(&[new.id]).await.expect("it is forgotten"), 1);
}
