//! Workers: one process drives each, until it lets go, is restarted or does not report any more.

use remuda_core::{Fence, Health, Sha256, WorkerId, WorkerReport};

use super::Fixture;
use super::world::{SECOND, World, acquired, held, owner, spec};
use crate::Error;

fn report(health: Health) -> WorkerReport {
    WorkerReport {
        health,
        reason: Some("it said so".to_owned()),
        current_task: None,
        comfyui_version: Some("0.3.64".to_owned()),
        device: Some("cuda:0 NVIDIA H100".to_owned()),
        vram: Some((1 << 35, 1 << 36)),
        object_info: Some(Sha256::of(b"nodes")),
        identity: Some("id-1".to_owned()),
    }
}

/// One process gets a worker; the others are told who has it.
pub async fn one_process_drives_a_worker(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (mine, yours) = (owner(), owner());
    let worker = acquired(world.store.acquire_worker(spec("w"), mine).await);
    assert_eq!((worker.owner, &worker.spec), (mine, &spec("w")));
    assert_eq!((worker.created_at, worker.until), (world.now(), world.now() + world.options.policy.lease));
    assert_eq!(worker.report.health, Health::Starting);
    let holder = held(world.store.acquire_worker(spec("w"), yours).await);
    assert_eq!((holder.owner, holder.fence), (mine, worker.fence));
    let again = acquired(world.store.acquire_worker(spec("w"), mine).await);
    assert_eq!(again.fence, worker.fence.next(), "an earlier life of the process is fenced off");
    assert_eq!(world.store.workers().await.expect("it lists").len(), 1);
}

/// A beat keeps the worker and notes how it is; who restarts it knows what it has, not how it is.
pub async fn a_worker_is_kept_and_reported_on(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let worker = async || world.store.workers().await.expect("it lists")[0].clone();
    let first = worker().await;
    for _ in 0..3 {
        world.clock.advance(world.options.policy.lease - SECOND);
        assert!(hand.report(report(Health::Busy)).await.lost_workers.is_empty());
        let now = worker().await;
        assert_eq!((&now.report, now.last_active_at), (&report(Health::Busy), world.now()));
        assert_eq!(now.until, world.now() + world.options.policy.lease);
        assert_eq!((now.fence, now.created_at), (first.fence, first.created_at));
    }
    held(world.store.acquire_worker(spec("w"), owner()).await);
    let mut changed = spec("w");
    changed.endpoint = "http://elsewhere:8188".to_owned();
    let again = acquired(world.store.acquire_worker(changed.clone(), hand.owner).await);
    assert_eq!((&again.spec, again.created_at), (&changed, first.created_at));
    assert_eq!((again.report.health, &again.report.current_task), (Health::Starting, &None));
    assert_eq!(again.report.object_info, Some(Sha256::of(b"nodes")));
    assert_eq!(again.report.identity.as_deref(), Some("id-1"));
    assert_eq!(worker().await, again);
    // The earlier life's reports change nothing.
    assert_eq!(hand.report(report(Health::Zombie)).await.lost_workers, std::slice::from_ref(&hand.worker));
    assert_eq!(worker().await, again);
}

/// A worker that was let go is anybody's at once; with an old fence nobody lets go of anything.
pub async fn a_released_worker_is_free(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let stale = world.store.release_worker(hand.owner, &hand.worker, Fence(hand.fence.0 - 1)).await;
    assert!(matches!(stale, Ok(()) | Err(Error::Fenced)), "{stale:?}");
    held(world.store.acquire_worker(spec("w"), owner()).await);
    world.store.release_worker(hand.owner, &hand.worker, hand.fence).await.expect("it lets go");
    let other = acquired(world.store.acquire_worker(spec("w"), owner()).await);
    assert!(other.fence > hand.fence);
    assert!(matches!(world.store.claim(hand.request(SECOND)).await, Err(Error::Fenced)));
    assert_eq!(hand.report(report(Health::Busy)).await.lost_workers, std::slice::from_ref(&hand.worker));
}

/// A worker that was let go claims nothing, although nobody else took it.
pub async fn who_let_go_of_a_worker_gets_nothing_for_it(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    world.store.release_worker(hand.owner, &hand.worker, hand.fence).await.expect("it lets go");
    assert!(matches!(world.store.claim(hand.request(SECOND)).await, Err(Error::Fenced)));
    assert!(matches!(hand.try_adopt(&[]).await, Err(Error::Fenced)));
}

/// A worker whose process does not report any more is the next one's.
pub async fn a_worker_that_ran_out_is_taken_over(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    world.clock.advance(world.options.policy.lease + SECOND);
    // Late, but before anybody took it.
    assert!(hand.report(report(Health::Busy)).await.lost_workers.is_empty());
    held(world.store.acquire_worker(spec("w"), owner()).await);
    world.clock.advance(world.options.policy.lease + SECOND);
    let taken = acquired(world.store.acquire_worker(spec("w"), owner()).await);
    assert!(taken.fence > hand.fence);
    assert_eq!(hand.report(report(Health::Busy)).await.lost_workers, std::slice::from_ref(&hand.worker));
    assert!(matches!(world.store.claim(hand.request(SECOND)).await, Err(Error::Fenced)));
}

/// After the store was away, a worker whose process did not report in the meantime is neither another's nor forgotten before that
/// process had the time to come back.
pub async fn a_worker_that_ran_out_while_the_store_was_away_is_kept(fixture: impl Fixture) {
    let mut world = World::with(fixture, |options| options.settle = 60 * SECOND).await;
    world.clock.advance(61 * SECOND);
    let hand = world.hand("w").await;
    let id = hand.worker.clone();
    world.store.close().await;
    world.clock.advance(world.options.policy.lease + SECOND);
    world.restart().await;
    world.clock.advance(world.options.policy.lease + SECOND);
    held(world.store.acquire_worker(spec("w"), owner()).await);
    let forgotten = world.store.forget_worker(&id).await;
    assert!(matches!(forgotten, Err(Error::Fenced)), "{forgotten:?}");
    world.clock.advance(61 * SECOND);
    world.store.forget_worker(&id).await.expect("nobody holds it");
    acquired(world.store.acquire_worker(spec("w"), owner()).await);
}

/// Of many processes that want a free worker at the same time one gets it.
pub async fn of_many_one_gets_the_worker(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let asks = (0..12).map(|_| world.store.acquire_worker(spec("w"), owner()));
    let answers = futures_util::future::join_all(asks).await;
    let got = answers.iter().filter(|answer| matches!(answer, Ok(crate::Acquired::Yes(_)))).count();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(got, 1);
}

/// Workers are listed by name, and forgotten only when nobody holds them.
pub async fn workers_are_listed_and_forgotten(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    for name in ["b", "c", "a"] {
        world.hand(name).await;
    }
    let names = async || {
        let workers = world.store.workers().await.expect("it lists");
        workers.iter().map(|worker| worker.spec.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["a", "b", "c"]);
    let id = WorkerId::new("b").expect("fine");
    // Refused or not: what is held stays.
    let _ = world.store.forget_worker(&id).await;
    assert_eq!(names().await, ["a", "b", "c"]);
    let worker = world.store.workers().await.expect("it lists")[1].clone();
    world.store.release_worker(worker.owner, &id, worker.fence).await.expect("it lets go");
    world.store.forget_worker(&id).await.expect("nobody holds it");
    assert_eq!(names().await, ["a", "c"]);
}
