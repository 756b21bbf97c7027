//! Cancellation in every state, and how the holder of a lease hears of it.

use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{AttemptOutcome, EventKind, FailureClass, NewTask, PendingReason, Phase, Status};

use super::Fixture;
use super::world::{SECOND, SHORT, SOON, World, completed, failed, failed_in_part, joined, new_task};
use crate::{Counts, Error, LeaseBeat, LeaseNews};

/// Whatever it waits for, a waiting task ends at once.
pub async fn a_waiting_task_ends_at_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let queued = world.submit(new_task()).await.id;
    let scheduled = NewTask { not_before: Some(world.now() + SECOND), ..new_task() };
    let scheduled = world.submit(scheduled).await.id;
    let retried = hand.get().await;
    assert_eq!(retried.task.id, queued);
    world
        .store
        .end(retried.lease.owner, retried.lease.reference(), failed(FailureClass::Execution))
        .await
        .expect("it ends");
    assert_eq!(world.task(queued).await.reason, Some(PendingReason::Retry));
    let plain = world.submit(new_task()).await.id;
    world.clock.advance(SECOND / 2);
    for id in [queued, scheduled, plain] {
        let before = world.task(id).await;
        let task = world.store.cancel(id).await.expect("it waits");
        assert_eq!((task.status, task.reason), (Status::Cancelled, None));
        assert_eq!((task.cancel_at, task.finished_at), (Some(world.now()), Some(world.now())));
        assert_eq!(task.version, before.version + 1);
        assert_eq!(world.task(id).await, task);
        assert_eq!(world.kinds(id).await.last(), Some(&EventKind::Cancelled));
        assert!(matches!(world.store.cancel(id).await, Err(Error::Finished(Status::Cancelled))));
    }
    world.clock.advance(600 * SECOND);
    world.store.tidy().await.expect("it tidies");
    assert_eq!(hand.claim().await, None, "none of them runs later");
    let counts = world.store.counts(None).await.expect("it counts");
    assert_eq!(counts, Counts { cancelled: 3, ..Counts::default() });
}

/// A running task is marked, once; then no end that its runner reports is anything else than cancelled.
pub async fn a_cancellation_before_the_end_wins(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let endings = [
        completed(),
        failed(FailureClass::Execution),
        failed_in_part(FailureClass::Execution),
        Ending::Cancelled,
    ];
    for (n, ending) in endings.into_iter().enumerate() {
        let (_, claim) = world.running(&format!("w{n}")).await;
        let id = claim.task.id;
        let marked = world.store.cancel(id).await.expect("it runs");
        assert_eq!((marked.status, marked.cancel_at), (Status::Running, Some(world.now())));
        assert!(world.lease(id).await.is_some());
        world.clock.advance(SECOND);
        assert_eq!(world.store.cancel(id).await.expect("it runs"), marked, "twice is once");
        let discarded = ending.result().is_some();
        let reply =
            world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
        assert_eq!((reply.status, reply.discarded), (Status::Cancelled, discarded));
        let task = world.task(id).await;
        assert_eq!((task.status, &task.result), (Status::Cancelled, &None));
        assert_eq!((task.cancel_at, task.finished_at), (marked.cancel_at, Some(world.now())));
        let kinds = world.kinds(id).await;
        assert_eq!(kinds[2..], [EventKind::CancelRequested, EventKind::Cancelled]);
        let attempts = world.store.attempts(id, 1000).await.expect("it answers");
        assert_eq!(attempts[0].outcome, Some(AttemptOutcome::Cancelled));
        assert_eq!(world.lease(id).await, None);
    }
}

/// A marked task that is given back or lost ends, too: nobody runs it again.
pub async fn a_cancelled_task_does_not_come_back(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, returned) = world.running("w").await;
    world.store.cancel(returned.task.id).await.expect("it runs");
    let reply = world
        .store
        .give_back(returned.lease.owner, returned.lease.reference(), None)
        .await
        .expect("it goes back");
    assert_eq!(reply.status, Status::Cancelled);
    let (_, lost) = world.running("x").await;
    world.store.cancel(lost.task.id).await.expect("it runs");
    world.clock.advance(world.options.policy.lease + world.options.policy.adoption + SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, [lost.task.id]);
    for id in [returned.task.id, lost.task.id] {
        assert_eq!(world.task(id).await.status, Status::Cancelled);
        assert_eq!(world.kinds(id).await.last(), Some(&EventKind::Cancelled));
    }
    assert_eq!(hand.claim().await, None);
}

/// What ended cannot be cancelled, and stays as it is.
pub async fn a_finished_task_cannot_be_cancelled(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let cases = [(completed(), Status::Completed), (failed(FailureClass::Validation), Status::Failed)];
    for (n, (ending, status)) in cases.into_iter().enumerate() {
        let (_, claim) = world.running(&format!("w{n}")).await;
        world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
        let ended = world.task(claim.task.id).await;
        assert_eq!(ended.status, status);
        match world.store.cancel(claim.task.id).await {
            Err(Error::Finished(said)) => assert_eq!(said, status),
            other => panic!("a finished task was cancelled: {other:?}"),
        }
        assert_eq!(world.task(claim.task.id).await, ended);
    }
}

/// A holder that waits for news hears of a cancellation at once.
pub async fn the_holder_hears_of_it_at_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let lease = claim.lease.reference();
    let waiting = {
        let hand = hand.clone();
        tokio::spawn(async move {
            let started = std::time::Instant::now();
            let beat = LeaseBeat { lease, phase: Phase::Rendering, progress: 0.1 };
            (hand.beat(&[beat], SOON).await, started.elapsed())
        })
    };
    world.store.cancel(claim.task.id).await.expect("it runs");
    let (reply, took) = joined("a beat that waits for news", waiting).await;
    assert_eq!(reply.news, [LeaseNews { lease, cancel: true, wanted: false }]);
    assert!(took < SOON, "it was woken, not over");
}

/// News are told again with every beat, and only new ones cut a wait short.
pub async fn known_news_do_not_cut_a_wait_short(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let lease = claim.lease.reference();
    let beat = [LeaseBeat { lease, phase: Phase::Rendering, progress: 0.1 }];
    let quiet = hand.beat(&beat, Duration::ZERO).await;
    assert!(quiet.news.is_empty() && quiet.lost.is_empty());
    world.store.cancel(claim.task.id).await.expect("it runs");
    let news = [LeaseNews { lease, cancel: true, wanted: false }];
    assert_eq!(hand.beat(&beat, SOON).await.news, news);
    let started = std::time::Instant::now();
    assert_eq!(hand.beat(&beat, SHORT).await.news, news, "told again");
    assert!(started.elapsed() >= SHORT / 2, "a holder that knows would otherwise turn in circles");
    assert_eq!(hand.beat(&beat, Duration::ZERO).await.news, news);
}
