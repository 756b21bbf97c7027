//! How much a sidecar may bring and say.

use remuda_core::transition::Ending;
use remuda_core::{
    Capabilities, Failure, FailureClass, OwnerId, Sha256, Status, WorkerId, WorkerReport, WorkerSpec,
};
use remuda_runner::source::{Delivered, NewFile, Source, SourceError};
use remuda_store::{Acquired, BeatRequest, Descriptions, WorkerBeat};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

use crate::ground::{BOUND, Ground, completed, stream};

fn refusal<T: std::fmt::Debug>(answer: Result<T, SourceError>) -> String {
    match answer {
        // What is too much of a key's may pass when something else goes.
        Err(SourceError::Refused(words)) => words,
        Err(SourceError::Unavailable(words)) if words.contains("429") => words,
        other => panic!("{other:?} is no refusal"),
    }
}

/// What was delivered, said otherwise.
fn forged(delivered: &Delivered) -> Vec<(&'static str, Delivered)> {
    let key = &delivered.key;
    let (folder, name) = key.rsplit_once('/').unwrap();
    vec![
        ("another size", Delivered { size: delivered.size + 1, ..delivered.clone() }),
        ("another hash", Delivered { sha256: Sha256::of(b"other"), ..delivered.clone() }),
        ("no such file", Delivered { key: format!("{folder}/001-other.png"), ..delivered.clone() }),
        ("a way up", Delivered { key: format!("{folder}/../{name}"), ..delivered.clone() }),
        ("an encoded way up", Delivered { key: format!("{folder}/%2e%2e/{name}"), ..delivered.clone() }),
        ("an empty part", Delivered { key: format!("{folder}//{name}"), ..delivered.clone() }),
        ("an upload", Delivered { key: "assets/aa/aaaa".to_owned(), ..delivered.clone() }),
    ]
}

#[tokio::test]
async fn a_result_names_files_as_they_were_delivered() {
    let mut ground = Ground::new().await;
    for restart in [false, true] {
        let id = ground.submit().await;
        let sidecar = ground.sidecar().await;
        let claim = sidecar.claim().await;
        let delivered = sidecar.deliver(&claim, 0, stream(b"picture")).await.unwrap();
        if restart {
            // The server does not remember what was delivered to the one before.
            ground.stop().await;
            ground.start().await;
        }
        let lease = claim.lease.reference();
        for (what, forged) in forged(&delivered) {
            let words = refusal(sidecar.source.end(lease, completed(0, forged)).await);
            assert!(words.contains("not delivered"), "{what}: {words}");
        }
        assert_eq!(ground.task(id).await.status, Status::Running);
        let ended = sidecar.source.end(lease, completed(0, delivered.clone())).await.unwrap();
        assert_eq!((ended.status, ended.repeated), (Status::Completed, false));
        let again = sidecar.source.end(lease, completed(0, delivered)).await.unwrap();
        assert!(again.repeated, "the same report again has the same answer");
    }
}

#[tokio::test]
async fn what_a_task_brings_back_is_bounded() {
    let mut ground = Ground::new().await;
    ground.limits.task_files = 2;
    ground.limits.task_outputs = 10;
    ground.stop().await;
    ground.start().await;
    ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let deliver = async |n: i32, name: &str, content: &'static [u8]| {
        let file = NewFile { n, filename: name.to_owned(), size: Some(content.len() as u64) };
        sidecar.source.deliver(claim.lease.reference(), claim.lease.attempt, file, stream(content)).await
    };
    let first = deliver(0, "a.png", b"1234567").await.unwrap();
    let words = refusal(deliver(1, "b.png", b"1234").await);
    assert!(words.contains("larger than"), "{words}");
    deliver(1, "b.png", b"123").await.unwrap();
    let words = refusal(deliver(2, "c.png", b"").await);
    assert!(words.contains("2 output files"), "{words}");
    // Under another name a file takes the place of the one before, which goes.
    deliver(0, "z.png", b"12").await.unwrap();
    let gone = remuda_files::FileKey::parse(&first.key).unwrap();
    assert_eq!(ground.files.size(&gone).await.unwrap(), None);
}

#[tokio::test]
async fn a_key_has_so_many_workers_and_descriptions() {
    let mut ground = Ground::new().await;
    ground.limits.key_workers = 2;
    ground.limits.key_descriptions = Descriptions { most: 1, bytes: 100 };
    ground.stop().await;
    ground.start().await;
    let source = ground.source(OwnerId(Uuid::new_v4()));
    let spec = |name: &str| WorkerSpec {
        id: WorkerId::new(name).unwrap(),
        endpoint: String::new(),
        name: None,
        labels: Default::default(),
    };
    for name in ["a", "b", "a"] {
        source.acquire_worker(spec(name)).await.unwrap();
    }
    let words = refusal(source.acquire_worker(spec("c")).await);
    assert!(words.contains("2 workers"), "{words}");
    let long = format!("\"{}\"", "x".repeat(100));
    let words = refusal(source.save_object_info(Sha256::of(long.as_bytes()), &long).await);
    assert!(words.contains("one key may keep"), "{words}");
    source.save_object_info(Sha256::of(b"{}"), "{}").await.unwrap();
    let mut odd = spec("a");
    for labels in [
        (0..1000).map(|n| n.to_string()).collect(),
        ["l".repeat(257)].into(),
        // Each is fine, and not so many.
        (0..100).map(|n| format!("{n:03}{}", "l".repeat(200))).collect(),
    ] {
        odd.labels = labels;
        let words = refusal(source.acquire_worker(odd.clone()).await);
        assert!(words.contains("422") && words.contains("spec.labels"), "{words}");
    }
    odd.labels = (0..60).map(|n| format!("{n:03}{}", "l".repeat(200))).collect();
    source.acquire_worker(odd).await.unwrap();
}

#[tokio::test]
async fn workers_from_before_may_have_more_labels_than_one_gets_now() {
    let ground = Ground::new().await;
    let sidecar = ground.sidecar().await;
    let labels: std::collections::BTreeSet<String> =
        (0..500).map(|n| format!("{n:03}{}", "l".repeat(1_900))).collect();
    let spec = WorkerSpec {
        id: WorkerId::new("before").unwrap(),
        endpoint: String::new(),
        name: None,
        labels: labels.clone(),
    };
    ground.store.acquire_worker(spec, OwnerId(Uuid::new_v4())).await.unwrap();
    let known = ground.store.workers().await.unwrap();
    let before = known.iter().find(|known| known.spec.id.as_str() == "before").unwrap();
    assert_eq!(before.spec.labels, labels);
    drop(sidecar);
}

#[tokio::test]
async fn what_a_sidecar_says_is_cut_before_others_see_it() {
    let ground = Ground::new().await;
    let id = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let report = WorkerReport {
        reason: Some("x".repeat(1 << 20)),
        device: Some("GPU\r\nSet-Cookie: a".to_owned()),
        ..WorkerReport::default()
    };
    let worker = WorkerBeat { id: sidecar.worker.clone(), fence: sidecar.fence, report };
    let wait = Duration::ZERO;
    let beat = BeatRequest { owner: sidecar.owner, leases: Vec::new(), workers: vec![worker], wait };
    assert!(sidecar.source.beat(beat).await.unwrap().lost_workers.is_empty());
    let row = ground.store.workers().await.unwrap()[0].clone();
    assert_eq!(row.report.reason.map(|text| text.len()), Some(4000));
    assert_eq!(row.report.device.as_deref(), Some("GPU__Set-Cookie: a"));
    let mut failure = Failure::new(FailureClass::Validation, "y".repeat(1 << 20));
    let details = serde_json::json!({"current_inputs": "z".repeat(1 << 20), "traceback": ["line"]});
    failure.details = Some(details.into());
    let ending = Ending::Failed { failure, partial: None };
    sidecar.source.end(claim.lease.reference(), ending).await.unwrap();
    let error = ground.task(id).await.error.unwrap();
    assert!(error.message.len() < 70_000, "{}", error.message.len());
    let details = error.details.unwrap().read();
    assert_eq!(
        (&details["traceback"][0], &details["cut"]["fields"][0]),
        (&"line".into(), &"current_inputs".into())
    );
}

#[tokio::test]
async fn a_claim_has_the_labels_that_its_worker_was_registered_with() {
    let mut ground = Ground::new().await;
    let pool: std::collections::BTreeSet<String> = ["pool=a".to_owned()].into();
    let id = ground.submit_with(|new| new.input.requires.labels = pool.clone()).await;
    let stranger = ground.sidecar().await;
    let mut request = stranger.request(Duration::from_millis(300));
    request.capabilities = Arc::new(Capabilities { labels: pool.clone(), ..Capabilities::default() });
    assert!(stranger.source.claim(request).await.unwrap().is_none(), "it only says that it has the label");
    let spec = WorkerSpec {
        id: stranger.worker.clone(),
        endpoint: "http://127.0.0.1:8188".to_owned(),
        name: None,
        labels: pool,
    };
    let Acquired::Yes(row) = stranger.source.acquire_worker(spec).await.unwrap() else {
        panic!("it is its own")
    };
    // A server that was started since knows it from the store.
    ground.stop().await;
    ground.start().await;
    let mut request = stranger.request(BOUND);
    request.worker_fence = row.fence;
    let claim = stranger.source.claim(request).await.unwrap().expect("a task");
    assert_eq!(claim.task.id, id);
}
