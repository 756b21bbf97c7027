//! Workers of processes elsewhere: whose name it is, how many a key has, and what it brings.

use std::time::Duration;

use remuda_core::{Health, KeyId, KeyRecord, Scope, Sha256, WorkerReport, WorkerSpec};
use uuid::Uuid;

use super::Fixture;
use super::world::{Hand, World, acquired, held, owner, spec, tenant};
use crate::{Descriptions, Error, Registrant};

async fn key(world: &World, of: &str) -> Registrant {
    let id = KeyId(Uuid::new_v4());
    let record = KeyRecord {
        id,
        name: "a worker's".to_owned(),
        tenant: tenant(of),
        scopes: [Scope::Worker].into(),
        hash: Sha256::of(id.0.as_bytes()),
        created_at: world.now(),
        revoked_at: None,
    };
    world.store.add_key(record).await.expect("it is kept");
    Registrant { key: id, tenant: tenant(of), most: 2, bytes: 1 << 20 }
}

/// The name of a worker is the key's that registered it, also after its lease ran out or it was let go, until that key is
/// revoked; then it is a key's of the same tenant.
pub async fn a_name_is_the_keys_that_registered_it(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (a, b, foreign) = (key(&world, "t").await, key(&world, "t").await, key(&world, "u").await);
    let register =
        async |by: &Registrant, owner| world.store.register_worker(spec("w"), owner, by.clone()).await;
    let taken = async |by: &Registrant| matches!(register(by, owner()).await, Err(Error::Taken { .. }));
    let mine = owner();
    let worker = acquired(register(&a, mine).await);
    assert_eq!(held(register(&a, owner()).await).owner, mine, "another process with the same key waits");
    assert!(taken(&b).await && taken(&foreign).await);
    world.clock.advance(world.options.policy.lease * 3);
    assert!(taken(&b).await && taken(&foreign).await, "also when the lease ran out");
    let second = owner();
    let worker = {
        let again = acquired(register(&a, second).await);
        assert_eq!(again.fence, worker.fence.next());
        again
    };
    world.store.release_worker(second, &worker.spec.id, worker.fence).await.expect("it lets go");
    assert!(taken(&b).await && taken(&foreign).await, "also when it was let go");
    world.store.revoke_key(a.key).await.expect("it is revoked");
    assert!(taken(&foreign).await);
    acquired(register(&b, owner()).await);
    assert!(taken(&a).await, "it is the new key's from now on");
}

/// A worker of the installation is never a key's, and a key that took its name has to give way.
pub async fn the_installations_own_names_are_not_a_keys(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let by = key(&world, "t").await;
    let squatter = owner();
    let worker = acquired(world.store.register_worker(spec("w"), squatter, by.clone()).await);
    let hand = world.hand("w").await;
    assert_eq!(hand.fence, worker.fence.next());
    let lost = world.store.leases_for(squatter, &worker.spec.id).await;
    assert!(matches!(lost, Err(Error::Fenced)), "{lost:?}");
    for _ in 0..2 {
        let answer = world.store.register_worker(spec("w"), squatter, by.clone()).await;
        assert!(matches!(answer, Err(Error::Taken { .. })), "{answer:?}");
        world.clock.advance(world.options.policy.lease * 3);
    }
    world.store.release_worker(hand.owner, &hand.worker, hand.fence).await.expect("it lets go");
    let answer = world.store.register_worker(spec("w"), squatter, by.clone()).await;
    assert!(matches!(answer, Err(Error::Taken { .. })), "{answer:?}");
    world.store.forget_worker(&hand.worker).await.expect("nobody holds it");
    acquired(world.store.register_worker(spec("w"), squatter, by).await);
}

/// A key has this many workers and no more; one that is forgotten makes room.
pub async fn a_key_has_so_many_workers(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (by, other) = (key(&world, "t").await, key(&world, "t").await);
    let mine = owner();
    let register =
        async |name: &str, by: &Registrant| world.store.register_worker(spec(name), mine, by.clone()).await;
    let first = acquired(register("a", &by).await);
    acquired(register("b", &by).await);
    let answer = register("c", &by).await;
    assert!(matches!(answer, Err(Error::TooMany { .. })), "{answer:?}");
    acquired(register("b", &by).await);
    acquired(register("c", &other).await);
    world.store.release_worker(mine, &first.spec.id, first.fence).await.expect("it lets go");
    world.store.forget_worker(&first.spec.id).await.expect("nobody holds it");
    acquired(register("d", &by).await);
}

/// The workers of a key have this many labels together. One that it has may come again as it was.
pub async fn a_key_has_so_many_bytes_of_labels(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let by = Registrant { bytes: 10_000, ..key(&world, "t").await };
    let mine = owner();
    let labelled = |name: &str, bytes: usize| {
        let labels = ["l".repeat(bytes)].into();
        WorkerSpec { labels, ..spec(name) }
    };
    let register =
        async |spec: WorkerSpec, by: &Registrant| world.store.register_worker(spec, mine, by.clone()).await;
    acquired(register(labelled("a", 6_000), &by).await);
    let answer = register(labelled("b", 6_000), &by).await;
    assert!(matches!(answer, Err(Error::TooMany { what: Registrant::LABELS })), "{answer:?}");
    acquired(register(labelled("b", 2_000), &by).await);
    let answer = register(labelled("b", 6_000), &by).await;
    assert!(matches!(answer, Err(Error::TooMany { what: Registrant::LABELS })), "{answer:?}");
    // As after an upgrade: there is more than there may be.
    let narrow = Registrant { bytes: 100, ..by };
    acquired(register(labelled("a", 6_000), &narrow).await);
    acquired(register(labelled("b", 50), &narrow).await);
    let answer = register(labelled("b", 51), &narrow).await;
    assert!(matches!(answer, Err(Error::TooMany { what: Registrant::LABELS })), "{answer:?}");
}

/// Only owners from before the upgrade can be inherited: here there are none.
pub async fn there_is_nobody_to_inherit_from(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let by = key(&world, "t").await;
    let hand = world.hand("w").await;
    for owner in [hand.owner, world.options.owner, owner()] {
        let inherited = world.store.inherit(owner, by.key, Duration::MAX).await;
        assert!(!inherited.expect("it answers"), "{owner}");
    }
}

/// What a key brings is bounded. What nobody uses makes room; what a worker uses stays.
pub async fn a_key_brings_so_many_descriptions(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (by, other) = (key(&world, "t").await, key(&world, "t").await);
    let bring = async |n: usize, bytes: usize, by: &Registrant, bounds: Descriptions| {
        let json = format!("\"{n}{}\"", "x".repeat(bytes));
        let hash = Sha256::of(json.as_bytes());
        (hash, world.store.bring_object_info(hash, &json, by.key, bounds).await)
    };
    let kept = async |hash| world.store.object_info(hash).await.expect("it answers").is_some();
    let bounds = Descriptions { most: 2, bytes: 1000 };
    let mut hashes = Vec::new();
    for n in 0..3 {
        world.clock.advance(Duration::from_secs(1));
        let (hash, answer) = bring(n, 10, &by, bounds).await;
        answer.expect("there is room, or room is made");
        hashes.push(hash);
    }
    assert!(!kept(hashes[0]).await && kept(hashes[1]).await && kept(hashes[2]).await, "the oldest made room");
    for (n, hash) in hashes[1..].iter().enumerate() {
        let hand = Hand::acquire(world.store.clone(), &format!("w{n}"), owner()).await;
        let report = WorkerReport { health: Health::Healthy, object_info: Some(*hash), ..Default::default() };
        assert!(hand.report(report).await.lost_workers.is_empty());
    }
    let (_, answer) = bring(3, 10, &by, bounds).await;
    assert!(matches!(answer, Err(Error::TooMany { .. })), "{answer:?}");
    bring(2, 10, &by, bounds).await.1.expect("it is known");
    bring(3, 10, &other, bounds).await.1.expect("another key has its own");
    let (_, answer) = bring(4, 2000, &other, bounds).await;
    assert!(matches!(answer, Err(Error::TooMany { .. })), "too long: {answer:?}");
    assert!(kept(hashes[1]).await && kept(hashes[2]).await);
}

/// What no worker uses is forgotten by its age, whoever brought it; what one uses never is.
pub async fn unused_descriptions_are_forgotten(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let by = key(&world, "t").await;
    let day = Duration::from_secs(86_400);
    let texts = ["\"used\"", "\"of the installation\"", "\"of a key\""];
    let hashes = texts.map(|text| Sha256::of(text.as_bytes()));
    for (hash, text) in hashes[..2].iter().zip(texts) {
        world.store.save_object_info(*hash, text).await.expect("it is kept");
    }
    let bounds = Descriptions { most: 9, bytes: 999 };
    world.store.bring_object_info(hashes[2], texts[2], by.key, bounds).await.expect("it is kept");
    let hand = world.hand("w").await;
    let report = WorkerReport { object_info: Some(hashes[0]), ..WorkerReport::default() };
    assert!(hand.report(report).await.lost_workers.is_empty());
    let kept = async || {
        let mut kept = Vec::new();
        for hash in hashes {
            kept.push(world.store.object_info(hash).await.expect("it answers").is_some());
        }
        kept
    };
    assert_eq!(world.store.forget_object_info(30 * day).await.expect("it forgets"), 0);
    world.clock.advance(29 * day);
    assert_eq!(world.store.forget_object_info(30 * day).await.expect("it forgets"), 0);
    assert_eq!(kept().await, [true, true, true]);
    world.clock.advance(2 * day);
    assert_eq!(world.store.forget_object_info(30 * day).await.expect("it forgets"), 2);
    assert_eq!(kept().await, [true, false, false]);
    world.store.save_object_info(hashes[1], texts[1]).await.expect("it comes again");
    assert_eq!(kept().await, [true, true, false]);
}
