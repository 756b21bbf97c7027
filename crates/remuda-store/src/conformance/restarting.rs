//! What is durable, what a restarted process finds again, and what several processes see of each other.

use std::time::Duration;

use remuda_core::{FailureClass, Idempotency, NewTask, PendingReason, Phase, Sha256, Status};

use super::Fixture;
use super::world::{Hand, SECOND, SOON, World, completed, failed, joined, label, new_task, owner, requiring};
use crate::{Counts, Error, LeaseBeat, ListQuery, Submitted};

/// Everything that was answered is there after a restart, as it was.
pub async fn everything_survives_a_restart(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let installation = world.store.installation().await.expect("it answers");
    let (hand, done) = world.running("done").await;
    world.store.end(done.lease.owner, done.lease.reference(), completed()).await.expect("it ends");
    let (_, retried) = world.running("retried").await;
    world
        .store
        .end(retried.lease.owner, retried.lease.reference(), failed(FailureClass::OutOfMemory))
        .await
        .expect("it ends");
    let (_, runs) = world.running("runs").await;
    let waits = world.submit(requiring(&label("rare"))).await;
    let later = world.submit(NewTask { not_before: Some(world.now() + 60 * SECOND), ..new_task() }).await;
    let ids = [done.task.id, retried.task.id, runs.task.id, waits.id, later.id];
    let mut before = Vec::new();
    for id in ids {
        let attempts = world.store.attempts(id, 1000).await.expect("it answers");
        let input = world.store.input(id).await.expect("it answers");
        before.push((world.task(id).await, world.events(id).await, attempts, input));
    }
    let counts = world.store.counts(None).await.expect("it counts");
    let lanes = world.store.lanes().await.expect("it lists");

    world.restart().await;
    let same = world.store.installation().await.expect("it answers");
    assert_eq!(same, installation);
    assert!(!same.cluster_key.is_empty());
    for (id, before) in ids.into_iter().zip(before) {
        let attempts = world.store.attempts(id, 1000).await.expect("it answers");
        let input = world.store.input(id).await.expect("it answers");
        assert_eq!((world.task(id).await, world.events(id).await, attempts, input), before);
    }
    assert_eq!(world.store.counts(None).await.expect("it counts"), counts);
    assert_eq!(counts, Counts { pending: 3, running: 1, completed: 1, ..Counts::default() });
    assert_eq!(world.store.lanes().await.expect("it lists"), lanes);
    let lease = world.lease(runs.task.id).await.expect("it is held");
    assert_eq!((lease.fence, lease.prompt_id), (runs.lease.fence, runs.lease.prompt_id));

    // And it goes on: lanes are known, delays are over, ids are recognised.
    let rare = Hand { store: world.store.clone(), ..hand }.able(&label("rare"));
    assert_eq!(rare.get().await.task.id, waits.id);
    world.clock.advance(60 * SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").released, 2);
}

/// A killed process that starts again finds what it was doing, under its own name.
pub async fn a_restarted_process_adopts_its_own(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    // The process that opened the store drives the worker itself.
    let mine = world.options.owner;
    let hand = world.hand_of("w", mine).await;
    let task = world.submit(new_task()).await;
    let claim = hand.get().await;
    hand.renew(claim.lease.reference(), Phase::Rendering).await;
    world.restart().await;
    let hand = world.hand_of("w", mine).await;
    let adopted = hand.adopt(&[]).await;
    assert_eq!(adopted.len(), 1);
    let lease = &adopted[0].lease;
    assert_eq!((adopted[0].task.id, lease.prompt_id), (task.id, claim.lease.prompt_id));
    assert_eq!((lease.phase, lease.attempt), (Phase::Rendering, 1));
    assert!(matches!(
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await,
        Err(Error::Fenced)
    ));
    let ended = world.store.end(lease.owner, lease.reference(), completed()).await.expect("it ends");
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(world.store.attempts(task.id, 1000).await.expect("it answers").len(), 1);
}

/// Renewing after a restart is soon enough: what others held is not taken from them meanwhile.
pub async fn others_renew_after_a_restart(fixture: impl Fixture) {
    let mut world = World::with(fixture, |options| options.settle = 60 * SECOND).await;
    let (hand, claim) = world.running("w").await;
    world.store.close().await;
    // Longer away than any lease.
    world.clock.advance(600 * SECOND);
    world.restart().await;
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty());
    let hand = Hand { store: world.store.clone(), ..hand };
    assert!(hand.report(Default::default()).await.lost_workers.is_empty());
    assert!(hand.renew(claim.lease.reference(), Phase::Rendering).await.lost.is_empty());
    let ended =
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    assert_eq!((ended.status, ended.repeated), (Status::Completed, false));
}

/// The clock set back takes nothing away and frees nothing early.
pub async fn a_clock_set_back_does_no_harm(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    world.clock.set_back(3600 * SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, []);
    assert!(hand.renew(claim.lease.reference(), Phase::Rendering).await.lost.is_empty());
    let second = world.submit(new_task()).await;
    assert_eq!((second.reason, second.run_at), (Some(PendingReason::Queued), world.now()));
    assert_eq!(hand.get().await.task.id, second.id);
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let listed = world.store.list(&ListQuery { limit: 9, ..ListQuery::default() }).await.expect("it lists");
    assert_eq!(listed.tasks.len(), 2);
    assert_eq!(world.task(claim.task.id).await.version, 3);
}

/// A second process shares the store, or is refused while the first has it.
pub async fn a_second_process_shares_or_is_refused(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let second = world.another(|_| {}).await;
    if !world.is_shared() {
        assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
        world.submit(new_task()).await;
        world.store.close().await;
        let second = world.another(|_| {}).await.expect("the first has let go");
        assert_eq!(second.counts(None).await.expect("it counts").pending, 1);
        return;
    }
    let second = second.expect("several may have it");
    let here = world.store.installation().await.expect("it answers");
    assert_eq!(second.installation().await.expect("it answers"), here);
    // A claim that waits there is served by what comes in here, also in a lane that is new.
    let hand = Hand::acquire(second.clone(), "there", owner()).await.able(&label("new"));
    for new in [new_task(), requiring(&label("new"))] {
        let parked = hand.park(false);
        let task = world.submit(new).await;
        let claim = joined("a claim in the other process", parked).await.expect("it is served");
        assert_eq!(claim.task.id, task.id);
        // A cancellation here is heard there.
        let lease = claim.lease.reference();
        let waiting = {
            let hand = hand.clone();
            let beat = LeaseBeat { lease, phase: Phase::Rendering, progress: 0.1 };
            tokio::spawn(async move { hand.beat(&[beat], SOON).await })
        };
        world.store.cancel(task.id).await.expect("it runs");
        let reply = joined("a beat in the other process", waiting).await;
        assert!(reply.news.iter().any(|news| news.lease == lease && news.cancel), "{reply:?}");
        second.end(hand.owner, lease, remuda_core::transition::Ending::Cancelled).await.expect("it ends");
        assert_eq!(world.task(task.id).await.status, Status::Cancelled);
    }
    let counts = world.store.counts(None).await.expect("it counts");
    assert_eq!(counts, Counts { cancelled: 2, ..Counts::default() });
    assert_eq!(second.counts(None).await.expect("it counts"), counts);
    // The same submission through both is one task.
    let keyed = || NewTask {
        idempotency: Some(Idempotency { key: "k".to_owned(), request: Sha256::of(b"r") }),
        ..new_task()
    };
    for _ in 0..5 {
        let new = new_task();
        let (one, two) = tokio::join!(world.store.submit(new.clone()), second.submit(new));
        let made = [one.expect("it is taken in"), two.expect("it is taken in")];
        assert_eq!(made.iter().filter(|answer| matches!(answer, Submitted::New(_))).count(), 1);
    }
    let (one, two) = tokio::join!(world.store.submit(keyed()), second.submit(keyed()));
    assert_eq!(one.expect("it is taken in").task().id, two.expect("it is taken in").task().id);
    assert_eq!(world.store.counts(None).await.expect("it counts").pending, 6);
}

/// Several processes that submit, claim and end at the same time do every task once.
pub async fn processes_that_share_do_every_task_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    if !world.is_shared() {
        return;
    }
    let mut stores = vec![world.store.clone()];
    for _ in 0..2 {
        stores.push(world.another(|_| {}).await.expect("several may have it"));
    }
    let work = stores.iter().enumerate().map(async |(n, store)| {
        let hand = Hand::acquire(store.clone(), &format!("w{n}"), owner()).await;
        for _ in 0..15 {
            store.submit(new_task()).await.expect("it is taken in");
        }
        let mut done = 0;
        while let Some(claim) = hand.claim().await {
            let ended =
                store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
            assert!(!ended.repeated);
            done += 1;
        }
        done
    });
    let mut done: i64 = futures_util::future::join_all(work).await.into_iter().sum();
    // A lane that one process made new is noticed by the others a moment later.
    let hand = world.hand("rest").await;
    while done < 45 {
        let claim = world.store.claim(hand.request(SOON)).await.expect("it answers").expect("there are 45");
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
        done += 1;
    }
    assert_eq!(done, 45);
    assert_eq!(world.store.claim(hand.request(Duration::ZERO)).await.expect("it answers"), None);
    for store in &stores {
        let counts = store.counts(None).await.expect("it counts");
        assert_eq!(counts, Counts { completed: 45, ..Counts::default() });
    }
}
