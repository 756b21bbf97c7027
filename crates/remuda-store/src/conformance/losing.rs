//! When a process does not report any more: adoption by the next holder of its worker, else loss.

use std::collections::BTreeSet;

use remuda_core::{
    AttemptOutcome, Claim, EventKind, FailureClass, Fence, Lease, NewTask, PendingReason, Phase, Status,
    Task, TaskId,
};
use serde_json::value::RawValue;

use super::Fixture;
use super::world::{Hand, SECOND, World, acquired, completed, failed, held, new_task, owner, spec};
use crate::Error;

/// Nobody takes over a worker or a lease that its holder still renews.
pub async fn nothing_is_taken_before_it_ran_out(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (_, claim) = world.running("w").await;
    world.clock.advance(world.options.policy.lease - SECOND);
    let worker = held(world.store.acquire_worker(spec("w"), owner()).await);
    assert_eq!(worker.owner, claim.lease.owner);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty());
    assert_eq!(world.task(claim.task.id).await, claim.task);
}

/// After its holder went away the next one takes the worker and what runs on it: same attempt, same prompt.
pub async fn the_next_holder_adopts_what_ran_out(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (old, claim) = world.running("w").await;
    let id = claim.task.id;
    old.renew(claim.lease.reference(), Phase::Rendering).await;
    let since = world.now();
    world.clock.advance(world.options.policy.lease + SECOND);
    let new = world.hand("w").await;
    assert!(new.fence > old.fence);
    let adopted = new.adopt(&[]).await;
    assert_eq!(adopted.len(), 1);
    let taken = &adopted[0];
    assert!(taken.adopted);
    assert_eq!((taken.task.id, &taken.input), (id, &claim.input));
    assert_eq!((taken.lease.attempt, taken.lease.prompt_id), (1, claim.lease.prompt_id));
    assert_eq!((taken.lease.phase, taken.lease.rendering_since), (Phase::Rendering, Some(since)));
    assert_eq!((taken.lease.fence, taken.lease.owner), (claim.lease.fence.next(), new.owner));
    assert_eq!(taken.lease.until, world.now() + world.options.policy.lease);
    assert_eq!(world.lease(id).await.as_ref(), Some(&taken.lease));
    assert_eq!((world.task(id).await, taken.task.status), (taken.task.clone(), Status::Running));
    let attempts = world.store.attempts(id, 1000).await.expect("it answers");
    assert_eq!((attempts.len(), attempts[0].owner, attempts[0].outcome), (1, new.owner, None));
    assert_eq!(world.kinds(id).await.last(), Some(&EventKind::Adopted));
    // The old one wakes up and changes nothing.
    assert_eq!(old.renew(claim.lease.reference(), Phase::Collecting).await.lost, [claim.lease.reference()]);
    assert!(matches!(
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await,
        Err(Error::Fenced)
    ));
    assert!(matches!(
        world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await,
        Err(Error::Fenced)
    ));
    assert!(matches!(old.try_adopt(&[]).await, Err(Error::Fenced)));
    assert!(matches!(world.store.claim(old.request(SECOND)).await, Err(Error::Fenced)));
    assert_eq!(old.report(Default::default()).await.lost_workers, std::slice::from_ref(&old.worker));
    assert_eq!(world.lease(id).await.as_ref(), Some(&taken.lease));
    let ended =
        world.store.end(taken.lease.owner, taken.lease.reference(), completed()).await.expect("it ends");
    assert_eq!((ended.status, ended.repeated), (Status::Completed, false));
}

/// A process takes up what it held before, at once; what it says it knows is left alone.
pub async fn a_process_adopts_its_own_at_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (old, first) = world.running("w").await;
    world.submit(new_task()).await;
    let second = old.get_ahead().await;
    let new = world.hand_of("w", old.owner).await;
    assert_eq!(new.fence, old.fence.next(), "also for its own");
    let adopted = new.adopt(&[second.lease.reference()]).await;
    assert_eq!(adopted.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [first.task.id]);
    assert_eq!(world.lease(second.task.id).await, Some(second.lease.clone()));
    let adopted_ref = adopted[0].lease.reference();
    assert_eq!(adopted_ref.fence, first.lease.fence.next());
    let known = [second.lease.reference(), adopted_ref];
    assert!(new.adopt(&known).await.is_empty(), "nothing is left");
    assert!(matches!(
        world.store.end(first.lease.owner, first.lease.reference(), completed()).await,
        Err(Error::Fenced)
    ));
    for lease in known {
        let ended = world.store.end(new.owner, lease, completed()).await.expect("it ends");
        assert_eq!(ended.status, Status::Completed);
    }
}

/// Adopts until nothing more comes. What came each time.
async fn adopt_all(hand: &Hand) -> Vec<Vec<Claim>> {
    let (mut known, mut all) = (Vec::new(), Vec::new());
    loop {
        let some = hand.adopt(&known).await;
        if some.is_empty() {
            return all;
        }
        known.extend(some.iter().map(|claim| claim.lease.reference()));
        all.push(some);
    }
}

/// What a process left behind may be more than anybody can hold at once: it comes a little at a time, each once, and what did
/// not come yet stays as it is, with whoever had it.
pub async fn what_is_large_is_adopted_a_little_at_a_time(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let old = world.hand("w").await;
    let mut claims = Vec::new();
    for megabytes in [3, 3, 3, 10, 1] {
        let text = format!("\"{}\"", "x".repeat(megabytes << 20));
        let workflow = RawValue::from_string(text).expect("it is JSON");
        world.submit(NewTask::new(workflow)).await;
        world.clock.advance(SECOND);
        claims.push(old.get().await);
    }
    let ids: Vec<_> = claims.iter().map(|claim| claim.task.id).collect();
    let check = async |hand: &Hand, before: &[Lease]| {
        let first = hand.adopt(&[]).await;
        let came: Vec<_> = first.iter().map(|claim| claim.task.id).collect();
        assert_eq!(came, ids[..2], "six megabytes, and the next one is too much");
        for (id, lease) in ids.iter().zip(before).skip(2) {
            assert_eq!(world.lease(*id).await.as_ref(), Some(lease), "it stays as it is");
        }
        let sizes = |all: &[Vec<Claim>]| all.iter().map(Vec::len).collect::<Vec<_>>();
        let all = adopt_all(hand).await;
        assert_eq!(sizes(&all), [2, 1, 1, 1], "one is taken, however large");
        let came: Vec<_> = all.into_iter().flatten().map(|claim| (claim.task.id, claim)).collect();
        assert_eq!(came.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids, "each once");
        for ((_, now), was) in came.iter().zip(&claims) {
            assert_eq!(now.input.workflow.get().len(), was.input.workflow.get().len());
            assert_eq!(now.lease.prompt_id, was.lease.prompt_id, "the same attempt");
        }
        came.into_iter().map(|(_, claim)| claim.lease).collect::<Vec<_>>()
    };
    let leases: Vec<Lease> = claims.iter().map(|claim| claim.lease.clone()).collect();
    // The same process after a restart …
    let again = world.hand_of("w", old.owner).await;
    let leases = check(&again, &leases).await;
    // … and another one, once they ran out.
    world.clock.advance(world.options.policy.lease + SECOND);
    let new = world.hand("w").await;
    let leases = check(&new, &leases).await;
    for lease in leases {
        let ended = world.store.end(new.owner, lease.reference(), completed()).await.expect("it ends");
        assert_eq!((ended.status, ended.repeated), (Status::Completed, false));
    }
}

/// Small ones come together, however they are cut: all of them, each once.
pub async fn many_small_tasks_are_adopted_together(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let old = world.hand("w").await;
    let mut ids = BTreeSet::new();
    for _ in 0..60 {
        world.submit(new_task()).await;
        ids.insert(old.get().await.task.id);
    }
    let new = world.hand_of("w", old.owner).await;
    let all = adopt_all(&new).await;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].iter().map(|claim| claim.task.id).collect::<BTreeSet<_>>(), ids);
    assert_eq!(all[0].len(), 60);
}

/// A lease is not adopted from another process before it ran out, even by who holds the worker by now.
pub async fn others_leases_are_not_adopted_before_they_ran_out(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (old, claim) = world.running("w").await;
    world.store.release_worker(old.owner, &old.worker, old.fence).await.expect("it lets go");
    let new = world.hand("w").await;
    assert!(new.adopt(&[]).await.is_empty());
    assert_eq!(world.task(claim.task.id).await, claim.task);
    let reply = old.renew(claim.lease.reference(), Phase::Rendering).await;
    assert!(reply.lost.is_empty(), "its lease is still its own");
    world.clock.advance(world.options.policy.lease + SECOND);
    new.report(Default::default()).await;
    assert_eq!(new.adopt(&[]).await.len(), 1);
}

/// Only who holds the worker adopts on it.
pub async fn only_the_holder_of_the_worker_adopts(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (old, claim) = world.running("w").await;
    world.clock.advance(world.options.policy.lease + SECOND);
    let mut stranger = world.hand("x").await;
    assert!(stranger.adopt(&[]).await.is_empty(), "it runs on another worker");
    stranger.worker = old.worker.clone();
    assert!(matches!(stranger.try_adopt(&[]).await, Err(Error::Fenced)));
    let mut earlier = old.clone();
    earlier.fence = Fence(old.fence.0 - 1);
    assert!(matches!(earlier.try_adopt(&[]).await, Err(Error::Fenced)));
    assert_eq!(world.task(claim.task.id).await, claim.task);
}

/// While its worker is held, or may still be taken over, a lease that ran out waits for who drives the worker; not for ever.
pub async fn nothing_is_lost_while_who_drives_its_worker_may_adopt_it(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let policy = world.options.policy.clone();
    let (old, claim) = world.running("w").await;
    // The worker goes to another while the first still has the lease. Both go away, the second one later.
    world.store.release_worker(old.owner, &old.worker, old.fence).await.expect("it lets go");
    let second = world.hand("w").await;
    assert!(second.adopt(&[]).await.is_empty(), "the lease is good");
    world.clock.advance(policy.lease - SECOND);
    second.report(Default::default()).await;
    world.clock.advance(policy.adoption + 2 * SECOND);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty(), "its worker is held");
    world.clock.advance(policy.lease - 3 * SECOND);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty(), "its worker can be had");
    let third = world.hand("w").await;
    let adopted = third.adopt(&[]).await;
    assert_eq!(
        adopted.iter().map(|found| found.lease.prompt_id).collect::<Vec<_>>(),
        [claim.lease.prompt_id]
    );
    // Who drives the worker and does not adopt is not waited for without end.
    world.store.release_worker(third.owner, &third.worker, third.fence).await.expect("it lets go");
    let idle = world.hand("w").await;
    let beats = async |time: std::time::Duration| {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(policy.lease / 2);
            world.clock.advance(step);
            idle.report(Default::default()).await;
            left -= step;
        }
    };
    beats(11 * policy.lease + policy.adoption - SECOND).await;
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty());
    beats(2 * SECOND).await;
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, [claim.task.id]);
}

async fn wait_for_loss(world: &World, id: TaskId) -> Task {
    let policy = &world.options.policy;
    world.clock.advance(policy.lease + policy.adoption - SECOND);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty(), "it may still be adopted");
    world.clock.advance(2 * SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, [id]);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty(), "once");
    world.task(id).await
}

/// A task that nobody renewed and nobody adopted is tried again elsewhere; too often, and it fails.
pub async fn a_lost_task_is_repeated_until_its_budget_is_used_up(fixture: impl Fixture) {
    let world = World::with(fixture, |options| options.policy.max_losses = 2).await;
    let id = world.submit(new_task()).await.id;
    for n in 1..=3 {
        let hand = world.hand(&format!("w{n}")).await;
        let claim = hand.get().await;
        assert_eq!((claim.task.id, claim.lease.attempt), (id, n));
        let task = wait_for_loss(&world, id).await;
        assert_eq!((task.losses, task.failures, task.attempt), (n, 0, n));
        assert!(task.fence > claim.lease.fence, "the fence rises with the loss");
        assert_eq!(world.lease(id).await, None);
        assert_eq!(task.error.expect("it says why").class, FailureClass::Lost);
        let attempts = world.store.attempts(id, 1000).await.expect("it answers");
        let last = attempts.last().expect("there is one");
        assert_eq!((attempts.len(), last.outcome), (n as usize, Some(AttemptOutcome::Lost)));
        let lease = claim.lease.reference();
        assert!(
            matches!(world.store.end(hand.owner, lease, completed()).await, Err(Error::Fenced)),
            "too late"
        );
        assert_eq!(hand.renew(lease, Phase::Rendering).await.lost, [lease]);
        if n < 3 {
            assert_eq!((task.status, task.reason), (Status::Pending, Some(PendingReason::Queued)));
            assert_eq!(task.avoid_worker.as_ref(), Some(&hand.worker));
            assert_eq!(hand.claim().await, None, "elsewhere first");
            assert_eq!(world.kinds(id).await.last(), Some(&EventKind::Lost));
        } else {
            assert_eq!((task.status, task.finished_at), (Status::Failed, Some(world.now())));
            assert_eq!(world.kinds(id).await.last(), Some(&EventKind::Failed));
        }
    }
}

/// Losses and failures have budgets of their own.
pub async fn losses_do_not_use_up_retries(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let id = world.submit(new_task()).await.id;
    use FailureClass::{Connection, Crash, Execution};
    for (n, class) in [Some(Crash), None, Some(Execution), Some(Connection)].into_iter().enumerate() {
        let hand = world.hand(&format!("w{n}")).await;
        let claim = hand.get().await;
        assert_eq!(claim.task.id, id);
        match class {
            Some(class) => {
                let ended = world
                    .store
                    .end(claim.lease.owner, claim.lease.reference(), failed(class))
                    .await
                    .expect("it ends");
                assert_eq!(ended.status, Status::Pending, "{class}");
            }
            None => assert_eq!(wait_for_loss(&world, id).await.status, Status::Pending),
        }
        world.clock.advance(world.options.policy.backoff);
        world.store.tidy().await.expect("it tidies");
    }
    let task = world.task(id).await;
    assert_eq!((task.losses, task.failures), (3, 1));
    let hand = world.hand("last").await;
    let claim = hand.get().await;
    assert_eq!(claim.lease.attempt, 5);
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let task = world.task(id).await;
    assert_eq!((task.status, task.error), (Status::Completed, None));
}

/// A store that is not up for long enough takes nothing from anybody: they may not have had a chance to renew.
pub async fn nothing_is_taken_before_the_store_has_settled(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let (old, claim) = world.running("w").await;
    world.options.settle = 3600 * SECOND;
    world.restart().await;
    let policy = world.options.policy.clone();
    world.clock.advance(policy.lease + policy.adoption + 60 * SECOND);
    assert_eq!(held(world.store.acquire_worker(spec("w"), owner()).await).owner, old.owner);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty());
    assert_eq!(world.task(claim.task.id).await, claim.task);
    // The holder of a worker that was let go gets nothing of others, either, but its own at once.
    world.store.release_worker(old.owner, &old.worker, old.fence).await.expect("it lets go");
    let mut new = world.hand_of("w", owner()).await;
    assert!(new.adopt(&[]).await.is_empty());
    world.store.release_worker(new.owner, &new.worker, new.fence).await.expect("it lets go");
    new = world.hand_of("w", old.owner).await;
    let adopted = new.adopt(&[]).await;
    assert_eq!(adopted.len(), 1);
    let adopted = adopted[0].lease.reference();
    // With a settled store the same is lost.
    world.options.settle = std::time::Duration::ZERO;
    world.restart().await;
    world.clock.advance(policy.lease + policy.adoption + SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, [adopted.task]);
    acquired(world.store.acquire_worker(spec("w"), owner()).await);
}

/// What ran out while nobody could adopt it is not lost the moment somebody can.
pub async fn after_settling_there_is_time_to_adopt(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let (_, claim) = world.running("w").await;
    let policy = world.options.policy.clone();
    world.options.settle = 2 * (policy.lease + policy.adoption);
    world.restart().await;
    world.clock.advance(world.options.settle + SECOND);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty());
    let new = world.hand_of("w", owner()).await;
    let adopted = new.adopt(&[]).await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(adopted[0].lease.prompt_id, claim.lease.prompt_id);
    // Nobody else comes, so that time passes as well.
    world.clock.advance(policy.lease + policy.adoption + SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, [claim.task.id]);
}
