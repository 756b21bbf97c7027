//! Long polls: who waits is woken, who went away gets nothing, and a server that restarts is no reason to stop.

use std::time::{Duration, Instant};

use remuda_core::{ApiKey, Phase, Scope, Status, WorkerId};
use remuda_runner::source::{GatewaySource, Source, SourceError};
use remuda_sidecar::{LONGEST_WAIT, OWNER};
use remuda_store::{Acquired, BeatRequest, LeaseBeat};
use remuda_testbed::net::Proxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::ground::{BOUND, Ground, Sidecar, url};
use crate::rights::{key, known, record};

#[tokio::test]
async fn a_claim_that_waits_is_served_at_once() {
    let ground = Ground::new().await;
    let sidecar = ground.sidecar().await;
    assert!(sidecar.source.claim(sidecar.request(Duration::from_millis(10))).await.unwrap().is_none());
    let waiting = tokio::spawn({
        let (source, request) = (sidecar.source.clone(), sidecar.request(BOUND));
        async move { source.claim(request).await }
    });
    let id = ground.submit().await;
    let claim = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!((claim.task.id, claim.lease.owner), (id, sidecar.owner));
}

#[tokio::test]
async fn a_claim_whose_client_went_away_takes_nothing() {
    let ground = Ground::new().await;
    let (gone, there) = (ground.sidecar().await, ground.sidecar().await);
    let body = serde_json::json!({
        "worker": gone.worker, "worker_fence": gone.fence, "capabilities": {}, "wait_ms": 25_000,
    });
    let body = body.to_string();
    let head = format!(
        "POST /api/v1/worker/claim HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n{OWNER}: {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        ground.address,
        ground.key.reveal(),
        gone.owner,
        body.len(),
    );
    let mut client = TcpStream::connect(ground.address).await.unwrap();
    client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let early = tokio::time::timeout(Duration::from_millis(300), client.read_to_end(&mut answer)).await;
    assert!(early.is_err(), "the claim waits: {}", String::from_utf8_lossy(&answer));
    // It goes away; the server shows that it has noticed by closing its side too.
    client.shutdown().await.unwrap();
    tokio::time::timeout(BOUND, client.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "");
    let id = ground.submit().await;
    assert_eq!(there.claim().await.task.id, id);
    assert_eq!(gone.source.leases(&gone.worker).await.unwrap(), []);
}

#[tokio::test]
async fn a_claim_outlives_the_server_that_it_waits_at() {
    let mut ground = Ground::new().await;
    let sidecar = ground.sidecar().await;
    let waiting = tokio::spawn({
        let (source, request) = (sidecar.source.clone(), sidecar.request(BOUND));
        async move {
            // A request that is cut off in the middle may have been done, so it is for its sender to ask again.
            while let Err(error) = source.claim(request.clone()).await {
                assert!(matches!(error, SourceError::Unavailable(_)), "{error:?}");
            }
        }
    });
    for _ in 0..3 {
        ground.stop().await;
        ground.start().await;
        assert!(!waiting.is_finished(), "nothing was submitted");
    }
    let id = ground.submit().await;
    waiting.await.unwrap();
    let lease = ground.store.lease(id).await.unwrap().unwrap();
    assert_eq!(lease.worker, sidecar.worker);

    // Reports too.
    ground.stop().await;
    let report = tokio::spawn({
        let source = sidecar.source.clone();
        let lease = lease.reference();
        async move { source.give_back(lease, None).await }
    });
    ground.start().await;
    assert_eq!(report.await.unwrap().unwrap().status, Status::Pending);
}

#[tokio::test]
async fn a_beat_brings_the_cancellation_while_it_waits() {
    let ground = Ground::new().await;
    let id = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let lease = claim.lease.reference();
    let beat = |wait| BeatRequest {
        owner: sidecar.owner,
        leases: vec![LeaseBeat { lease, phase: Phase::Rendering, progress: 0.5 }],
        workers: Vec::new(),
        wait,
    };
    assert_eq!(sidecar.source.beat(beat(Duration::ZERO)).await.unwrap().news, []);
    assert_eq!(ground.store.lease(id).await.unwrap().unwrap().progress, 0.5);
    let since = Instant::now();
    let waiting = tokio::spawn({
        let (source, beat) = (sidecar.source.clone(), beat(Duration::from_secs(25)));
        async move { source.beat(beat).await }
    });
    ground.store.cancel(id).await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    assert!(reply.news.iter().any(|news| news.lease == lease && news.cancel), "{reply:?}");
    assert!(since.elapsed() < Duration::from_secs(22), "after {:?}", since.elapsed());
}

#[tokio::test]
async fn a_beat_that_gets_stuck_leaves_time_for_another() {
    let ground = Ground::new().await;
    ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let proxy = Proxy::start(ground.address.to_string()).await.unwrap();
    let source = GatewaySource::new(&url(proxy.address()), Some(&ground.key), sidecar.owner).unwrap();
    let beat = || BeatRequest {
        owner: sidecar.owner,
        leases: vec![LeaseBeat { lease: claim.lease.reference(), phase: Phase::Rendering, progress: 0.5 }],
        workers: Vec::new(),
        wait: Duration::ZERO,
    };
    source.beat(beat()).await.unwrap();
    proxy.stall().await;
    let since = Instant::now();
    assert!(matches!(source.beat(beat()).await, Err(SourceError::Unavailable(_))));
    assert!(since.elapsed() < Duration::from_secs(20), "after {:?}", since.elapsed());
    // What had got stuck arrives late, and does no harm.
    proxy.pass().await;
    assert_eq!(source.beat(beat()).await.unwrap().lost, []);
}

/// A sidecar with a key of its own.
async fn sidecar_with(ground: &Ground, key: &ApiKey, name: &str) -> Sidecar {
    let owner = remuda_core::OwnerId(uuid::Uuid::new_v4());
    let source = GatewaySource::new(&ground.url(), Some(key), owner).unwrap();
    let worker = WorkerId::new(name).unwrap();
    let endpoint = "http://127.0.0.1:8188".to_owned();
    let spec =
        remuda_core::WorkerSpec { id: worker.clone(), endpoint, name: None, labels: Default::default() };
    let Acquired::Yes(row) = source.acquire_worker(spec).await.unwrap() else { panic!("it is free") };
    Sidecar { source: std::sync::Arc::new(source), owner, worker, fence: row.fence }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_and_a_beat_that_wait_end_with_their_key() {
    let ground = Ground::new().await;
    let mine = key(&ground, &[Scope::Worker]).await;
    known(&ground, &mine, reqwest::StatusCode::OK).await;
    let (idle, busy) =
        (sidecar_with(&ground, &mine, "idle").await, sidecar_with(&ground, &mine, "busy").await);
    ground.submit().await;
    let claim = busy.claim().await;
    let wait_ms = u64::try_from(LONGEST_WAIT.as_millis()).unwrap();
    let asks = serde_json::json!({
        "worker": idle.worker, "worker_fence": idle.fence, "capabilities": {}, "wait_ms": wait_ms,
    });
    let beat = serde_json::json!({"lease": claim.lease.reference(), "phase": "rendering", "progress": 0.5});
    let beats = serde_json::json!({"leases": [beat], "wait_ms": wait_ms});
    let ask = |path: &str, sidecar: &Sidecar, body: &serde_json::Value| {
        let url = ground.url().join(&format!("/api/v1/worker/{path}")).unwrap();
        let request = reqwest::Client::new().post(url).bearer_auth(mine.reveal()).timeout(BOUND);
        let request = request.header(OWNER, sidecar.owner.to_string());
        let request = request.header("content-type", "application/json").body(body.to_string());
        tokio::spawn(async move { request.send().await.unwrap().status().as_u16() })
    };
    let mut held = [("the claim", ask("claim", &idle, &asks)), ("the beat", ask("beat", &busy, &beats))];
    // The beat has begun when it is stored; a claim leaves no trace.
    remuda_testbed::wait::until("the beat to arrive", BOUND, async || {
        let lease = ground.store.lease(claim.task.id).await.unwrap().unwrap();
        (lease.progress > 0.4).then_some(())
    })
    .await
    .unwrap();
    for (what, held) in &mut held {
        let early = tokio::time::timeout(Duration::from_millis(300), held).await;
        assert!(early.is_err(), "{what} waits: {early:?}");
    }
    // As another server of the installation would do it. Here it is noticed within a second; the bound is for busy machines,
    // and well below what both would wait for by themselves.
    ground.store.revoke_key(record(&ground, &mine).await.id).await.unwrap();
    let soon = tokio::time::Instant::now() + LONGEST_WAIT / 2;
    for (what, held) in held {
        let status =
            tokio::time::timeout_at(soon, held).await.unwrap_or_else(|_| panic!("{what} still waits"));
        assert_eq!(status.unwrap(), 401, "{what}");
    }
    // A claim that ended takes nothing more.
    let id = ground.submit().await;
    assert_eq!(ground.sidecar().await.claim().await.task.id, id);
}
