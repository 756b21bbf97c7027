//! Who may touch a lease and a worker: its owner and nobody else, also with the right fence.

use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{FailureClass, NewTask, Phase, Status};

use super::Fixture;
use super::world::{World, completed, failed, label, new_task, owner, tenant};
use crate::{BeatRequest, EndReply, Error, LeaseBeat, WorkerBeat};

/// A beat of a stranger who knows task and fence renews nothing, notes nothing and hears nothing of it.
pub async fn only_the_owner_renews_a_lease(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (lease, id) = (claim.lease.reference(), claim.task.id);
    let before = world.lease(id).await;
    world.clock.advance(Duration::from_secs(1));
    world.store.cancel(id).await.expect("it runs");
    let stranger = BeatRequest {
        owner: owner(),
        leases: vec![LeaseBeat { lease, phase: Phase::Collecting, progress: 0.9 }],
        workers: vec![WorkerBeat { id: hand.worker.clone(), fence: hand.fence, report: Default::default() }],
        wait: Duration::ZERO,
    };
    let reply = world.store.beat(stranger).await.expect("beats are answered");
    assert_eq!((reply.lost, reply.lost_workers), (vec![lease], vec![hand.worker.clone()]));
    assert!(reply.news.is_empty(), "that it was cancelled is for its owner");
    assert_eq!(world.lease(id).await, before);
    let reply = hand.renew(lease, Phase::Rendering).await;
    assert!(reply.lost.is_empty() && reply.news.iter().any(|news| news.cancel), "{reply:?}");
}

/// A stranger cannot end an attempt, neither while it runs nor by repeating its owner's report.
pub async fn only_the_owner_ends_an_attempt(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (lease, id) = (claim.lease.reference(), claim.task.id);
    for ending in [completed(), failed(FailureClass::Crash), Ending::Cancelled] {
        let answer = world.store.end(owner(), lease, ending).await;
        assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    }
    assert_eq!(world.task(id).await, claim.task);
    assert_eq!(world.lease(id).await, Some(claim.lease.clone()));
    world.store.end(hand.owner, lease, completed()).await.expect("it is its own");
    let answer = world.store.end(owner(), lease, completed()).await;
    assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    let again = world.store.end(hand.owner, lease, completed()).await.expect("it is known");
    assert_eq!(again, EndReply { status: Status::Completed, discarded: false, repeated: true });
}

/// A stranger cannot give a task back, neither while it is held nor by repeating that it was.
pub async fn only_the_owner_gives_a_task_back(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (lease, id) = (claim.lease.reference(), claim.task.id);
    for learnt in [None, Some(label("x"))] {
        let answer = world.store.give_back(owner(), lease, learnt).await;
        assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    }
    assert_eq!(world.task(id).await, claim.task);
    world.store.give_back(hand.owner, lease, None).await.expect("it is its own");
    let answer = world.store.give_back(owner(), lease, None).await;
    assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    let again = world.store.give_back(hand.owner, lease, None).await.expect("it is known");
    assert_eq!((again.status, again.repeated), (Status::Pending, true));
}

/// A stranger who knows its fence cannot let go of a worker.
pub async fn only_the_owner_lets_go_of_a_worker(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let answer = world.store.release_worker(owner(), &hand.worker, hand.fence).await;
    assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    world.submit(new_task()).await;
    assert!(hand.claim().await.is_some(), "it still holds the worker");
    world.store.release_worker(hand.owner, &hand.worker, hand.fence).await.expect("it is its own");
    let answer = world.store.release_worker(hand.owner, &hand.worker, hand.fence).await;
    assert!(matches!(answer, Err(Error::Fenced)), "it is held no more: {answer:?}");
}

/// What runs on a worker is told to who holds it.
pub async fn leases_are_told_to_who_holds_the_worker(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let told = world.store.leases_for(hand.owner, &hand.worker).await.expect("it is its own");
    assert_eq!(told, [claim.lease]);
    let answer = world.store.leases_for(owner(), &hand.worker).await;
    assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    world.store.release_worker(hand.owner, &hand.worker, hand.fence).await.expect("it lets go");
    let answer = world.store.leases_for(hand.owner, &hand.worker).await;
    assert!(matches!(answer, Err(Error::Fenced)), "it let go: {answer:?}");
}

/// Whatever a holder says of its progress, a number from 0 to 1 is kept.
pub async fn progress_is_a_share(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let said = [
        (f64::NAN, 0.0),
        (f64::INFINITY, 1.0),
        (f64::NEG_INFINITY, 0.0),
        (-3.0, 0.0),
        (17.0, 1.0),
        (0.25, 0.25),
    ];
    for (progress, kept) in said {
        let beat = LeaseBeat { lease: claim.lease.reference(), phase: Phase::Rendering, progress };
        assert!(hand.beat(&[beat], Duration::ZERO).await.lost.is_empty());
        let lease = world.lease(claim.task.id).await.expect("it is held");
        assert!((lease.progress - kept).abs() < f64::EPSILON, "{progress} became {}", lease.progress);
    }
}

/// A task id is everybody's to choose: one that another tenant has is refused, and nothing of that task is told.
pub async fn another_tenants_task_id_is_a_conflict(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let first = NewTask { tenant: tenant("a"), ..new_task() };
    let task = world.submit(first.clone()).await;
    let answer = world.store.submit(NewTask { tenant: tenant("b"), ..first.clone() }).await;
    assert!(matches!(&answer, Err(Error::Conflict { task }) if *task == first.id), "{answer:?}");
    assert_eq!(world.task(first.id).await, task);
    let (hand, claim) = (world.hand("w").await, task.id);
    assert_eq!(hand.get().await.task.id, claim);
    let answer = world.store.submit(NewTask { tenant: tenant("b"), ..first }).await;
    assert!(matches!(answer, Err(Error::Conflict { .. })), "also while it runs: {answer:?}");
}
