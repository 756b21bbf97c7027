//! A sidecar that worked before keys were part of owners, and works on.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{ApiKey, OwnerId, Phase, Scope, WorkerId, WorkerSpec};
use remuda_runner::source::{GatewaySource, Source, SourceError};
use remuda_store::{Acquired, BeatRequest, ClaimRequest, LeaseBeat, WorkerBeat};
use uuid::Uuid;

use crate::ground::{Ground, completed, stream};

/// As the former program left it: the id that the process tells is the owner, and nobody noted who registered the worker.
const FORMER: &str = "DELETE FROM registration; INSERT INTO former_owner (owner, since) \
    SELECT DISTINCT owner, CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM worker";

#[tokio::test]
async fn a_sidecar_keeps_its_worker_and_its_lease_across_the_upgrade() {
    let mut ground = Ground::new().await;
    let other_key = ApiKey::generate(&mut rand::rng());
    ground.allow(&other_key, [Scope::Worker].into()).await;
    ground.stop().await;
    let told = OwnerId(Uuid::new_v4());
    let id = WorkerId::new("beside").unwrap();
    let spec = WorkerSpec { id: id.clone(), endpoint: String::new(), name: None, labels: Default::default() };
    let Acquired::Yes(row) = ground.store.acquire_worker(spec.clone(), told).await.unwrap() else {
        panic!("it is free")
    };
    let task = ground.submit().await;
    let request = ClaimRequest {
        owner: told,
        worker: id.clone(),
        worker_fence: row.fence,
        capabilities: Arc::default(),
        loaded: Vec::new(),
        ahead: false,
        gateway: None,
        wait: Duration::ZERO,
    };
    let claim = ground.store.claim(request).await.unwrap().unwrap();
    ground.as_before(FORMER).await;
    ground.start().await;

    let beat = |progress| BeatRequest {
        owner: told,
        leases: vec![LeaseBeat { lease: claim.lease.reference(), phase: Phase::Rendering, progress }],
        workers: vec![WorkerBeat { id: id.clone(), fence: row.fence, report: Default::default() }],
        wait: Duration::ZERO,
    };
    let source = ground.source(told);
    let reply = source.beat(beat(0.5)).await.unwrap();
    assert!(reply.lost.is_empty() && reply.lost_workers.is_empty(), "{reply:?}");
    let thief = GatewaySource::new(&ground.url(), Some(&other_key), told).unwrap();
    let reply = thief.beat(beat(0.9)).await.unwrap();
    assert_eq!((reply.lost.len(), reply.lost_workers.len()), (1, 1), "another key is another process");
    assert!(matches!(thief.leases(&id).await, Err(SourceError::Fenced)));
    let leases = source.leases(&id).await.unwrap();
    assert_eq!(leases.iter().map(|lease| (lease.task, lease.owner)).collect::<Vec<_>>(), [(task, told)]);
    let file = remuda_runner::source::NewFile { n: 0, filename: "a.png".to_owned(), size: None };
    let lease = claim.lease.reference();
    let delivered = source.deliver(lease, claim.lease.attempt, file, stream(b"picture")).await.unwrap();
    let ended = source.end(lease, completed(0, delivered)).await.unwrap();
    assert!(!ended.repeated && !ended.discarded, "{ended:?}");
    let again = source.acquire_worker(spec).await.unwrap();
    assert!(matches!(again, Acquired::Yes(worker) if worker.owner == told), "it is shown under its own name");
}
