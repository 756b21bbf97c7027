//! With an old fence nothing changes, whatever the route.

use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{Fence, Phase, Placement, Sha256, Status};
use remuda_runner::source::{Source, SourceError};
use remuda_store::{AdoptRequest, BeatRequest, LeaseBeat};

use crate::ground::{Ground, completed, older, stream};

fn fenced<T: std::fmt::Debug>(answer: Result<T, SourceError>) -> bool {
    matches!(answer, Err(SourceError::Fenced))
}

#[tokio::test]
async fn an_old_fence_changes_nothing_on_any_route() {
    let ground = Ground::new().await;
    let (key, stored) = {
        let bytes =
            futures_util::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"input"))]);
        ground.files.put_content_addressed(bytes, None).await.unwrap()
    };
    let placement = Placement {
        node_id: "1".to_owned(),
        input: "image".to_owned(),
        sha256: Sha256(stored.sha256.0),
        key: key.to_string(),
        filename: "in.png".to_owned(),
    };
    let placed = placement.clone();
    let id = ground.submit_with(|new| new.input.placements.push(placed)).await;
    let sidecar = ground.sidecar().await;
    let first = sidecar.claim().await;
    let delivered = sidecar.deliver(&first, 0, stream(b"first")).await.unwrap();
    // As after a restart in which the first answer was forgotten.
    let second = sidecar.adopt().await;
    assert!(second.adopted && second.lease.fence > first.lease.fence);
    assert_eq!(second.lease.prompt_id, first.lease.prompt_id);

    let old = first.lease.reference();
    assert_eq!(old, older(second.lease.reference()));
    let source = &sidecar.source;
    assert!(fenced(source.end(old, completed(0, delivered)).await));
    assert!(fenced(source.end(old, Ending::Cancelled).await));
    assert!(fenced(source.give_back(old, None).await));
    assert!(fenced(source.input(old, &placement).await.map(drop)));
    assert!(fenced(sidecar.deliver(&first, 1, stream(b"late")).await));
    assert!(fenced(source.discard(old, first.lease.attempt).await));
    let beat = |lease| BeatRequest {
        owner: sidecar.owner,
        leases: vec![LeaseBeat { lease, phase: Phase::Rendering, progress: f64::NAN }],
        workers: Vec::new(),
        wait: Duration::ZERO,
    };
    assert_eq!(source.beat(beat(old)).await.unwrap().lost, [old]);
    let foreign = ground.sidecar().await;
    assert!(fenced(foreign.deliver(&second, 1, stream(b"foreign")).await), "of another owner");
    let mut wrong = second.clone();
    wrong.lease.attempt += 1;
    assert!(fenced(sidecar.deliver(&wrong, 1, stream(b"x")).await), "of another attempt");

    // The same for the worker.
    let mut old_worker = sidecar.request(Duration::ZERO);
    old_worker.worker_fence = Fence(old_worker.worker_fence.0 - 1);
    let adopt = AdoptRequest {
        owner: sidecar.owner,
        worker: sidecar.worker.clone(),
        worker_fence: old_worker.worker_fence,
        gateway: None,
        known: Vec::new(),
    };
    assert!(fenced(source.adopt(adopt).await));
    assert!(fenced(source.release_worker(&sidecar.worker, old_worker.worker_fence).await));
    assert!(fenced(source.claim(old_worker).await));

    // And with the current one everything goes on, as if nothing had happened.
    let task = ground.task(id).await;
    assert_eq!((task.status, task.attempt), (Status::Running, 1));
    let current = second.lease.reference();
    assert_eq!(source.beat(beat(current)).await.unwrap().lost, []);
    let read = source.input(current, &placement).await.unwrap();
    let read: Vec<bytes::Bytes> = futures_util::TryStreamExt::try_collect(read).await.unwrap();
    assert_eq!(read.concat(), b"input");
    let mut other = placement.clone();
    other.key = "assets/aa/other".to_owned();
    let refused = source.input(current, &other).await.map(drop);
    assert!(
        matches!(refused, Err(SourceError::Refused(_))),
        "a file that the task does not name: {refused:?}"
    );
    sidecar.complete(&second, b"second").await;
    assert_eq!(ground.task(id).await.status, Status::Completed);
    assert!(
        matches!(source.discard(current, 1).await, Err(SourceError::Refused(_))),
        "it is a result by now"
    );
}

#[tokio::test]
async fn a_report_may_be_repeated_and_names_no_files_but_its_own() {
    let ground = Ground::new().await;
    let id = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let lease = claim.lease.reference();
    let mut delivered = sidecar.deliver(&claim, 0, stream(b"picture")).await.unwrap();
    let own = delivered.key.clone();
    delivered.key = format!("assets/aa/{}", "a".repeat(64));
    let refused = sidecar.source.end(lease, completed(0, delivered.clone())).await;
    assert!(
        matches!(&refused, Err(SourceError::Refused(words)) if words.contains("assets/aa")),
        "{refused:?}"
    );
    assert_eq!(ground.task(id).await.status, Status::Running);
    delivered.key = own;
    for repeated in [false, true] {
        let reply = sidecar.source.end(lease, completed(0, delivered.clone())).await.unwrap();
        assert_eq!((reply.status, reply.repeated), (Status::Completed, repeated));
    }
    let answer = ground.get(&format!("/api/v1/tasks/{id}/outputs/0")).await;
    assert_eq!(answer.bytes().await.unwrap(), "picture");
}

#[tokio::test]
async fn a_task_reaches_the_sidecar_byte_for_byte_without_what_is_not_its_business() {
    let ground = Ground::new().await;
    ground.submit_with(|new| new.metadata = Some(serde_json::json!({"customer": 7}).into())).await;
    let claim = ground.sidecar().await.claim().await;
    assert_eq!(claim.input.workflow.get(), crate::ground::GRAPH);
    assert_eq!(claim.task.metadata, None);
    assert_eq!(claim.lease.gateway.as_deref(), Some(ground.url().as_str()));
}
