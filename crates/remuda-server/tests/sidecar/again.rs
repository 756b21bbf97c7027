//! What is asked for again and again, or named twice, or more than fits into one answer.

use std::time::Instant;

use remuda_core::{LeaseRef, Phase, WorkerReport};
use remuda_runner::source::Source;
use remuda_sidecar::{LONGEST_WAIT, OWNER};
use remuda_store::AdoptRequest;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::ground::{BOUND, Ground, Sidecar};

/// Says something once, in the words of the protocol: a source asks again by itself.
fn ask(ground: &Ground, sidecar: &Sidecar, path: &str, body: &Value) -> JoinHandle<(StatusCode, Value)> {
    let url = ground.url().join(&format!("/api/v1/worker/{path}")).unwrap();
    let request = reqwest::Client::new().post(url).bearer_auth(ground.key.reveal()).timeout(BOUND);
    let request = request.header(OWNER, sidecar.owner.to_string());
    let request = request.header("content-type", "application/json").body(body.to_string());
    tokio::spawn(async move {
        let answer = request.send().await.unwrap();
        let status = answer.status();
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
    })
}

/// Of two the one that is answered first, and the other.
async fn either<T>(one: JoinHandle<T>, other: JoinHandle<T>) -> (T, JoinHandle<T>) {
    let first = tokio::time::timeout(LONGEST_WAIT / 2, futures_util::future::select(one, other)).await;
    let (answer, other) = first.expect("none of the two is answered before its time").factor_first();
    (answer.unwrap(), other.into_inner())
}

#[tokio::test]
async fn one_claim_of_a_worker_waits_and_keeps_little_of_what_is_loaded() {
    let ground = Ground::new().await;
    let sidecar = ground.sidecar().await;
    let body = json!({
        "worker": sidecar.worker, "worker_fence": sidecar.fence, "capabilities": {},
        "loaded": (0..100_000).collect::<Vec<i64>>(), "wait_ms": LONGEST_WAIT.as_millis() as u64,
    });
    let mut waits = ask(&ground, &sidecar, "claim", &body);
    for _ in 0..10 {
        let (answer, stays) = either(waits, ask(&ground, &sidecar, "claim", &body)).await;
        assert_eq!(answer, (StatusCode::NO_CONTENT, Value::Null));
        waits = stays;
    }
    let id = ground.submit().await;
    let (status, claimed) = waits.await.unwrap();
    assert_eq!((status, &claimed["claim"]["task"]["id"]), (StatusCode::OK, &json!(id)));
}

#[tokio::test]
async fn a_beat_names_everything_once_and_the_next_one_answers_it() {
    let ground = Ground::new().await;
    ground.submit().await;
    let sidecar = ground.sidecar().await;
    let lease = sidecar.claim().await.lease.reference();
    let beat = |lease: LeaseRef| json!({"lease": lease, "phase": Phase::Rendering, "progress": 0.5});
    let worker = |id: &str| json!({"id": id, "fence": sidecar.fence, "report": WorkerReport::default()});
    // What is named twice is renewed once, and told once.
    let lost = LeaseRef { task: remuda_core::TaskId::new(), ..lease };
    let leases = [vec![beat(lease); 15_000], vec![beat(lost); 15_000]].concat();
    let workers = [vec![worker(sidecar.worker.as_str()); 2_000], vec![worker("nobody"); 2_000]].concat();
    let doubled = json!({"leases": leases, "workers": workers});
    let (status, reply) = ask(&ground, &sidecar, "beat", &doubled).await.unwrap();
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert_eq!(reply, json!({"news": [], "lost": [lost], "lost_workers": ["nobody"]}));
    // What nobody has is refused.
    let many: Vec<Value> =
        (0..5_000).map(|n| beat(LeaseRef { fence: remuda_core::Fence(n), ..lost })).collect();
    let workers: Vec<Value> = (0..5_000).map(|n| worker(&format!("w{n}"))).collect();
    for (field, body) in [("leases", json!({"leases": many})), ("workers", json!({"workers": workers}))] {
        let (status, reply) = ask(&ground, &sidecar, "beat", &body).await.unwrap();
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{reply}");
        assert_eq!(reply["field"], field, "{reply}");
    }
    // Of those that wait, the newest stays.
    let waiting = json!({"leases": [beat(lease)], "wait_ms": LONGEST_WAIT.as_millis() as u64});
    let mut waits = ask(&ground, &sidecar, "beat", &waiting);
    for _ in 0..10 {
        let (answer, stays) = either(waits, ask(&ground, &sidecar, "beat", &waiting)).await;
        assert_eq!(answer, (StatusCode::OK, json!({"news": [], "lost": [], "lost_workers": []})));
        waits = stays;
    }
    let since = Instant::now();
    ground.store.cancel(lease.task).await.unwrap();
    let (_, reply) = waits.await.unwrap();
    assert_eq!(reply["news"][0]["cancel"], true, "{reply}");
    assert!(since.elapsed() < LONGEST_WAIT / 2, "after {:?}", since.elapsed());
}

#[tokio::test]
async fn what_is_large_is_adopted_in_several_answers() {
    let ground = Ground::new().await;
    let sidecar = ground.sidecar().await;
    let text = format!("\"{}\"", "x".repeat(5 << 20));
    let mut ids = Vec::new();
    for _ in 0..3 {
        let workflow = serde_json::value::RawValue::from_string(text.clone()).unwrap();
        ids.push(ground.submit_with(|new| new.input.workflow = workflow).await);
        sidecar.claim().await;
    }
    let mut known = Vec::new();
    for id in ids {
        let claim = adopt(&sidecar, known.clone()).await.pop().expect("one at a time");
        assert_eq!((claim.task.id, claim.input.workflow.get().len()), (id, text.len()));
        known.push(claim.lease.reference());
    }
    assert_eq!(adopt(&sidecar, known.clone()).await, []);
    // Whoever asks once, as a sidecar of an earlier release does, loses none of the others.
    assert_eq!(adopt(&sidecar, Vec::new()).await.len(), 1);
    let leases = sidecar.source.leases(&sidecar.worker).await.unwrap();
    assert_eq!(leases.len(), 3);
    assert_eq!(leases.iter().filter(|lease| known.contains(&lease.reference())).count(), 2);
}

async fn adopt(sidecar: &Sidecar, known: Vec<LeaseRef>) -> Vec<remuda_core::Claim> {
    let request = AdoptRequest {
        owner: sidecar.owner,
        worker: sidecar.worker.clone(),
        worker_fence: sidecar.fence,
        gateway: None,
        known,
    };
    let adopted = tokio::time::timeout(BOUND, sidecar.source.adopt(request)).await.expect("in time");
    let adopted = adopted.expect("an answer");
    assert!(adopted.len() < 2, "not more than 8 MiB together");
    adopted
}
