//! Who is next: priority, first come first served, tenants, lanes, models, and the moment of a start.

use remuda_core::{FailureClass, NewTask, PendingReason, Requirements, Status};

use super::Fixture;
use super::world::{
    SECOND, World, completed, eventually, failed, joined, label, new_task, of_priority, of_tenant, requiring,
    tenant,
};
use crate::Error;

/// Higher priorities first; among equals, first come first served.
pub async fn urgent_tasks_first_then_in_the_order_they_came(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut ids = Vec::new();
    for priority in [5, 1, 5, 9, 5] {
        ids.push(world.submit(of_priority(priority)).await.id);
    }
    let hand = world.hand("w").await;
    let mut order = Vec::new();
    while let Some(claim) = hand.claim().await {
        order.push(ids.iter().position(|id| *id == claim.task.id).expect("it is one of them"));
    }
    assert_eq!(order[..2], [3, 0], "the urgent one, then the first of the usual ones");
    let usual: Vec<_> = order.iter().copied().filter(|n| [0, 2, 4].contains(n)).collect();
    assert_eq!(usual, [0, 2, 4]);
    assert_eq!(order.len(), 5);
}

/// Many equal tasks leave in the order in which they came.
pub async fn equals_are_served_first_come_first_served(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(world.submit(new_task()).await.id);
    }
    for id in &ids {
        let claim = hand.get().await;
        assert_eq!(claim.task.id, *id);
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    }
    // What is given back keeps its place.
    let (first, second) = (world.submit(new_task()).await.id, world.submit(new_task()).await.id);
    let claim = hand.get().await;
    world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    assert_eq!((hand.get().await.task.id, hand.get().await.task.id), (first, second));
}

/// A tenant with one task does not wait for another's heap, nor an urgent task for its own tenant's.
pub async fn tenants_share_fairly(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    for _ in 0..30 {
        world.submit(of_tenant("heap")).await;
    }
    for _ in 0..3 {
        assert_eq!(hand.get().await.task.tenant, tenant("heap"));
    }
    let light = world.submit(of_tenant("light")).await;
    let mut urgent = of_priority(9);
    urgent.tenant = tenant("heap");
    let urgent = world.submit(urgent).await;
    let next = [hand.get().await.task.id, hand.get().await.task.id, hand.get().await.task.id];
    assert!(next.contains(&light.id) && next.contains(&urgent.id), "both are among the next three");
    // With equal heaps they take turns.
    for _ in 0..20 {
        world.submit(of_tenant("other")).await;
    }
    let mut turns = 0;
    for _ in 0..12 {
        turns += u32::from(hand.get().await.task.tenant == tenant("other"));
    }
    assert!((4..=8).contains(&turns), "{turns} of 12 turns");
}

/// A worker never gets a task whose requirements it lacks, and gets from all its lanes by rank.
pub async fn a_worker_is_served_from_the_lanes_it_satisfies(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let big = Requirements { models: ["flux.safetensors".to_owned()].into(), ..label("a100") };
    let plain = world.hand("plain").await;
    let labelled = world.hand("labelled").await.able(&label("a100"));
    let full = world.hand("full").await.able(&big);
    let mut ids = Vec::new();
    for requires in [&big, &label("a100"), &Requirements::default(), &big, &label("h100")] {
        ids.push(world.submit(requiring(requires)).await.id);
    }
    assert_eq!(plain.get().await.task.id, ids[2]);
    assert_eq!(plain.claim().await, None);
    assert_eq!(full.get().await.task.id, ids[0]);
    assert_eq!(labelled.get().await.task.id, ids[1]);
    assert_eq!(labelled.claim().await, None);
    assert_eq!(full.get().await.task.id, ids[3]);
    assert_eq!(full.claim().await, None, "nobody has an h100");
    let mut lanes = world.store.lanes().await.expect("it lists");
    lanes.retain(|lane| !lane.requires.is_empty());
    for wanted in [&big, &label("a100"), &label("h100")] {
        assert!(lanes.iter().any(|lane| lane.requires == *wanted && lane.id == wanted.lane()));
    }
    assert_eq!(lanes.len(), 3);
}

/// A lane that is new while a worker already waits reaches it.
pub async fn a_new_lane_reaches_a_waiting_worker(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let able = world.hand("able").await.able(&label("rare"));
    let plain = world.hand("plain").await;
    let (waiting, other) = (able.park(false), plain.park(false));
    let task = world.submit(requiring(&label("rare"))).await;
    let claim = joined("a claim for the new lane", waiting).await.expect("it is served");
    assert_eq!(claim.task.id, task.id);
    let usual = world.submit(new_task()).await;
    assert_eq!(joined("the other claim", other).await.expect("it is served").task.id, usual.id);
}

/// A worker with a task's models loaded gets it before its turn, within bounds.
pub async fn loaded_models_are_preferred(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let with = |affinity| NewTask { affinity: Some(affinity), ..new_task() };
    let mut ids = Vec::new();
    for affinity in [1, 1, 2, 1] {
        ids.push(world.submit(with(affinity)).await.id);
    }
    let mut hand = world.hand("w").await;
    hand.loaded = vec![2, 9];
    assert_eq!(hand.get().await.task.id, ids[2]);
    assert_eq!(hand.get().await.task.id, ids[0], "nothing fits: in order");
    // Nobody waits for ever because others fit better.
    let fits = world.submit(with(9)).await;
    world.clock.advance(31 * SECOND);
    assert_eq!(hand.get().await.task.id, ids[1]);
    assert_eq!(hand.get().await.task.id, ids[3]);
    assert_eq!(hand.get().await.task.id, fits.id);
}

/// A scheduled task is not claimed before housekeeping found that its moment has come.
pub async fn a_scheduled_task_starts_when_its_moment_comes(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let at = world.now() + 60 * SECOND;
    let task = world.submit(NewTask { not_before: Some(at), ..new_task() }).await;
    let later = world.submit(NewTask { not_before: Some(at + 5 * SECOND), ..new_task() }).await;
    assert_eq!((task.reason, task.run_at), (Some(PendingReason::Scheduled), at));
    world.clock.advance(59 * SECOND);
    let tidied = world.store.tidy().await.expect("it tidies");
    assert_eq!((tidied.released, tidied.next), (0, Some(at)));
    assert_eq!(hand.claim().await, None);
    world.clock.advance(SECOND);
    let parked = hand.park(false);
    let tidied = world.store.tidy().await.expect("it tidies");
    assert_eq!((tidied.released, tidied.next), (1, Some(later.run_at)));
    let claim = joined("a waiting claim", parked).await.expect("the release wakes it");
    assert_eq!(claim.task.id, task.id);
    assert_eq!(world.task(task.id).await.reason, None);
    let versions: Vec<_> = world.events(task.id).await.iter().map(|event| event.n).collect();
    assert_eq!(versions, [1, 2], "a release is not an event");
}

/// Somebody does not want to wait for the moment.
pub async fn a_hastened_task_is_queued_at_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let task = world.submit(NewTask { not_before: Some(world.now() + 60 * SECOND), ..new_task() }).await;
    let parked = hand.park(false);
    let hastened = world.store.hasten(task.id).await.expect("it waits");
    assert!(hastened.status == Status::Running || hastened.reason == Some(PendingReason::Queued));
    let claim = joined("a waiting claim", parked).await.expect("it is woken");
    assert_eq!(claim.task.id, task.id);
    // A second time, and for one that runs, it changes nothing.
    let before = world.task(task.id).await;
    if let Ok(after) = world.store.hasten(task.id).await {
        assert_eq!(after, before);
    }
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let ended = world.task(task.id).await;
    match world.store.hasten(task.id).await {
        Ok(after) => assert_eq!(after, ended),
        Err(error) => assert!(matches!(error, Error::Finished(Status::Completed)), "{error}"),
    }
    assert_eq!(world.task(task.id).await, ended);
}

/// A task that waits beyond its deadline fails; one that runs is its runner's matter.
pub async fn a_deadline_ends_only_what_waits(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let deadline = world.now() + 10 * SECOND;
    let until = || NewTask { deadline: Some(deadline), ..new_task() };
    let runs = world.submit(until()).await;
    assert_eq!(hand.get().await.task.id, runs.id);
    let queued = world.submit(until()).await;
    let scheduled = world.submit(NewTask { not_before: Some(deadline + SECOND), ..until() }).await;
    world.clock.advance(9 * SECOND);
    let tidied = world.store.tidy().await.expect("it tidies");
    assert_eq!((tidied.expired, tidied.next), (0, Some(deadline)));
    world.clock.advance(SECOND);
    let tidied = world.store.tidy().await.expect("it tidies");
    assert_eq!((tidied.expired, tidied.released), (2, 0));
    for id in [queued.id, scheduled.id] {
        let task = world.task(id).await;
        assert_eq!((task.status, task.finished_at), (Status::Failed, Some(deadline)));
        assert_eq!(task.error.expect("it says why").class, FailureClass::Timeout);
    }
    assert_eq!(world.task(runs.id).await.status, Status::Running);
    assert_eq!(hand.claim().await, None);
    assert_eq!(world.store.tidy().await.expect("it tidies").next, None);
}

/// A task that failed on a worker goes to another first, and back to it only after a while.
pub async fn a_failed_task_avoids_the_worker_for_a_while(fixture: impl Fixture) {
    let world = World::with(fixture, |options| options.policy.backoff = std::time::Duration::ZERO).await;
    let (first, second) = (world.hand("first").await, world.hand("second").await);
    for again in [false, true] {
        let task = world.submit(new_task()).await;
        let claim = first.get().await;
        world
            .store
            .end(claim.lease.owner, claim.lease.reference(), failed(FailureClass::Crash))
            .await
            .expect("it ends");
        let waiting = world.task(task.id).await;
        assert_eq!(
            (waiting.reason, waiting.avoid_worker.as_ref()),
            (Some(PendingReason::Queued), Some(&first.worker))
        );
        assert_eq!(first.claim().await, None);
        let taker = if again {
            world.clock.advance(world.options.policy.avoid + SECOND);
            &first
        } else {
            &second
        };
        let claim = taker.get().await;
        assert_eq!((claim.task.id, claim.lease.attempt), (task.id, 2));
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    }
}

/// What avoids a worker does not hide from it what is behind it in the same lane and next in the queue.
pub async fn what_avoids_a_worker_hides_nothing(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await.able(&label("x"));
    world.submit(requiring(&label("x"))).await;
    let claim = hand.get().await;
    world
        .store
        .end(claim.lease.owner, claim.lease.reference(), failed(FailureClass::Crash))
        .await
        .expect("it ends");
    let next = world.submit(requiring(&label("x"))).await;
    let other = world.submit(new_task()).await;
    assert_eq!(hand.get().await.task.id, next.id);
    assert_eq!(hand.get().await.task.id, other.id);
    assert_eq!(hand.claim().await, None);
}

/// A worker that everything at the head of the queue avoids gets what is further back, and takes it from nobody.
pub async fn behind_all_that_avoids_a_worker_is_what_does_not(fixture: impl Fixture) {
    let world = World::with(fixture, |options| options.policy.max_losses = 1).await;
    let bad = world.hand("bad").await.able(&label("x"));
    for _ in 0..40 {
        world.submit(requiring(&label("x"))).await;
        let claim = bad.get().await;
        world
            .store
            .end(claim.lease.owner, claim.lease.reference(), failed(FailureClass::Crash))
            .await
            .expect("it ends");
    }
    assert_eq!(bad.claim().await, None);
    let behind = world.submit(requiring(&label("x"))).await;
    assert_eq!(bad.get().await.task.id, behind.id);
    // The same with another worker that waits: its mark on what waits elsewhere shows that it does.
    let elsewhere = world.submit(new_task()).await;
    assert_eq!(world.hand("busy").await.get_ahead().await.task.id, elsewhere.id);
    let good = world.hand("good").await;
    let (waits_ahead, waits_idle) = (bad.park(true), good.park(false));
    eventually("the idle claim waits", async || world.lease(elsewhere.id).await.expect("it is held").wanted)
        .await;
    let first = world.submit(new_task()).await;
    assert_eq!(joined("the idle claim", waits_idle).await.expect("it is served").task.id, first.id);
    let second = world.submit(new_task()).await;
    assert_eq!(joined("the claim ahead", waits_ahead).await.expect("it is served").task.id, second.id);
}
