//! Who may speak as a worker.

use remuda_core::transition::Ending;
use remuda_core::{ApiKey, Fence, LeaseRef, OwnerId, Scope, Sha256, TaskId, WorkerId};
use remuda_runner::source::{GatewaySource, Source, SourceError};
use remuda_store::BeatRequest;
use std::time::Duration;
use uuid::Uuid;

use crate::ground::Ground;

fn words<T: std::fmt::Debug>(answer: Result<T, SourceError>) -> String {
    match answer {
        Err(SourceError::Refused(words)) => words,
        other => panic!("{other:?} is no refusal"),
    }
}

#[tokio::test]
async fn without_the_scope_nothing_is_answered_and_the_refusal_says_what_is_missing() {
    let ground = Ground::new().await;
    let reader = ApiKey::generate(&mut rand::rng());
    ground.allow(&reader, [Scope::Read, Scope::Submit].into()).await;
    let unknown = ApiKey::generate(&mut rand::rng());
    let cases = [
        (Some(&reader), "403", "scope worker"),
        (Some(&unknown), "401", "not known"),
        (None, "401", "a key is needed"),
    ];
    for (key, status, word) in cases {
        let owner = OwnerId(Uuid::new_v4());
        let source = GatewaySource::new(&ground.url(), key, owner).unwrap();
        let lease = LeaseRef { task: TaskId::new(), fence: Fence(1) };
        let worker = WorkerId::new("w").unwrap();
        let beat = BeatRequest { owner, leases: Vec::new(), workers: Vec::new(), wait: Duration::ZERO };
        let answers = [
            words(source.installation().await),
            words(source.leases(&worker).await),
            words(source.release_worker(&worker, Fence(1)).await),
            words(source.beat(beat).await),
            words(source.end(lease, Ending::Cancelled).await),
            words(source.give_back(lease, None).await),
            words(source.discard(lease, 1).await),
            words(source.save_object_info(Sha256::of(b"{}"), "{}").await),
        ];
        for answer in answers {
            assert!(answer.contains(status) && answer.contains(word), "{answer}");
            assert!(answer.contains("`worker`"), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_sidecar_learns_which_installation_it_is_and_not_the_key_between_gateways() {
    let ground = Ground::new().await;
    let known = ground.store.installation().await.unwrap();
    let found = ground.source(OwnerId(Uuid::new_v4())).installation().await.unwrap();
    assert_eq!((found.id, found.cluster_key.as_str()), (known.id, ""));
    let answer = ground.get("/api/v1/worker/installation").await;
    assert_eq!(answer.status(), 400, "who asks must be said");
    assert!(answer.text().await.unwrap().contains("remuda-owner"));
}

#[tokio::test]
async fn an_address_that_is_none_and_a_server_that_is_none_are_told_apart() {
    let owner = OwnerId(Uuid::new_v4());
    let error = GatewaySource::new(&"ftp://example.org".parse().unwrap(), None, owner).unwrap_err();
    assert!(error.to_string().contains("http"), "{error}");
    let mut ground = Ground::new().await;
    let source = ground.source(owner);
    ground.stop().await;
    let answer = tokio::time::timeout(Duration::from_millis(500), source.installation()).await;
    assert!(answer.is_err(), "a server that is away is asked again for a while");
    ground.start().await;
    source.installation().await.unwrap();
}

#[tokio::test]
async fn an_object_info_is_kept_under_its_own_hash_only() {
    let ground = Ground::new().await;
    let source = ground.source(OwnerId(Uuid::new_v4()));
    let json = r#"{"SaveImage": {}}"#;
    let hash = Sha256::of(json.as_bytes());
    source.save_object_info(hash, json).await.unwrap();
    assert_eq!(ground.store.object_info(hash).await.unwrap().as_deref(), Some(json));
    let refused = words(source.save_object_info(Sha256::of(b"other"), json).await);
    assert!(refused.contains("SHA-256"), "{refused}");
    let refused = words(source.save_object_info(Sha256::of(b"{"), "{").await);
    assert!(refused.contains("not JSON"), "{refused}");
}
