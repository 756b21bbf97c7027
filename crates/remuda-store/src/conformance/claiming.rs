//! How a worker comes by a task: at once, after a wait, ahead of time; and never two by the same one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use remuda_core::{AttemptOutcome, EventKind, Fence, Lease, Phase, Status, WorkerId};

use super::Fixture;
use super::world::{
    Hand, SECOND, SHORT, SOON, World, completed, either, eventually, joined, label, new_task, owner,
    requiring, spec,
};
use crate::{ClaimRequest, Error, LeaseBeat, LeaseNews, Submitted};

/// Attempt, lease, prompt id and event are there when the claim returns, and agree.
pub async fn a_claim_is_recorded_before_it_is_given(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let new = new_task();
    world.submit(new.clone()).await;
    world.clock.advance(SECOND);
    let request = ClaimRequest { gateway: Some("http://gw:1".to_owned()), ..hand.request(SHORT) };
    let claim = world.store.claim(request).await.expect("it answers").expect("a task is ready");
    assert!(!claim.adopted);
    assert_eq!(claim.input, new.input);
    let (task, lease) = (&claim.task, &claim.lease);
    assert_eq!((task.id, task.status, task.attempt), (new.id, Status::Running, 1));
    assert_eq!((task.fence, task.version), (Fence(1), 2));
    assert_eq!((task.started_at, task.worker.as_ref()), (Some(world.now()), Some(&hand.worker)));
    assert_eq!(world.task(new.id).await, *task);
    assert_eq!(world.lease(new.id).await.as_ref(), Some(lease));
    let expected = Lease {
        task: new.id,
        fence: Fence(1),
        attempt: 1,
        owner: hand.owner,
        worker: hand.worker.clone(),
        prompt_id: lease.prompt_id,
        until: world.now() + world.options.policy.lease,
        phase: Phase::Placing,
        progress: 0.0,
        rendering_since: None,
        gateway: Some("http://gw:1".to_owned()),
        wanted: false,
    };
    assert_eq!(*lease, expected);
    let attempts = world.store.attempts(new.id, 1000).await.expect("it answers");
    assert_eq!(attempts.len(), 1);
    let attempt = &attempts[0];
    assert_eq!((attempt.n, attempt.owner, &attempt.worker), (1, hand.owner, &hand.worker));
    assert_eq!((attempt.prompt_id, attempt.started_at), (lease.prompt_id, world.now()));
    assert_eq!((attempt.ended_at, attempt.outcome), (None, None));
    assert_eq!(world.kinds(new.id).await, [EventKind::Submitted, EventKind::Claimed]);
    assert_eq!(world.store.leases(&hand.worker).await.expect("it lists"), std::slice::from_ref(lease));
    // The next attempt has a prompt of its own.
    world.store.give_back(lease.owner, lease.reference(), None).await.expect("it goes back");
    let again = hand.get().await;
    assert_ne!(again.lease.prompt_id, lease.prompt_id);
    assert_eq!((again.lease.attempt, again.lease.fence), (2, Fence(2)));
}

/// With nothing to do a claim waits as long as it was told to.
pub async fn a_claim_without_work_waits_and_comes_back_empty(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let started = Instant::now();
    assert_eq!(world.store.claim(hand.request(SHORT)).await.expect("it answers"), None);
    assert!(started.elapsed() >= SHORT / 2, "{:?}", started.elapsed());
}

/// Of one worker one claim waits, and one ahead: whoever asks again does not wait for the answer before.
pub async fn a_newer_claim_of_a_worker_answers_the_one_before(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, other) = (world.hand("w").await, world.hand("other").await);
    let stranger = Hand { owner: owner(), ..hand.clone() };
    let (elsewhere, ahead) = (other.park(false), hand.park(true));
    let started = Instant::now();
    let mut newest = hand.park(false);
    for _ in 0..20 {
        // Which of the two comes first is not known; the other one stays.
        let (answer, stays) = either("one of two claims", newest, hand.park(false)).await;
        assert_eq!(answer, None);
        newest = stays;
    }
    assert!(started.elapsed() < SOON / 2, "they were answered before their time: {:?}", started.elapsed());
    let answer = world.store.claim(stranger.request(SHORT)).await;
    assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
    tokio::time::sleep(SHORT).await;
    for waits in [&elsewhere, &ahead, &newest] {
        assert!(!waits.is_finished(), "neither another worker's, nor the other kind, nor who was refused");
    }
    let mut made = BTreeSet::new();
    for _ in 0..3 {
        made.insert(world.submit(new_task()).await.id);
    }
    let mut got = BTreeSet::new();
    for waits in [newest, elsewhere, ahead] {
        got.insert(joined("one that waits", waits).await.expect("it is served").task.id);
    }
    assert_eq!(got, made, "and nothing went to those that were answered before");
    assert_eq!(world.store.leases(&hand.worker).await.expect("it lists").len(), 2);
}

/// A task that went back again and again has many attempts: the last ones are told, with the one under way.
pub async fn the_last_attempts_are_told(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let id = world.submit(new_task()).await.id;
    for _ in 0..6 {
        let lease = hand.get().await.lease;
        world.store.give_back(lease.owner, lease.reference(), None).await.expect("it goes back");
    }
    let told = async |limit| -> Vec<_> {
        let attempts = world.store.attempts(id, limit).await.expect("it answers");
        attempts.into_iter().map(|attempt| (attempt.n, attempt.outcome.is_some())).collect()
    };
    assert_eq!(told(3).await, [(4, true), (5, true), (6, true)]);
    assert_eq!(hand.get().await.task.attempt, 7);
    assert_eq!(told(3).await, [(5, true), (6, true), (7, false)]);
    assert_eq!(told(1).await, [(7, false)]);
    assert_eq!(told(1000).await.len(), 7);
    assert!(told(0).await.is_empty());
}

/// Who does not hold the worker gets nothing for it.
pub async fn only_the_holder_of_a_worker_claims_for_it(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    world.submit(new_task()).await;
    let wrong = [
        ClaimRequest { owner: owner(), ..hand.request(SHORT) },
        ClaimRequest { worker_fence: Fence(hand.fence.0 - 1), ..hand.request(SHORT) },
        ClaimRequest { worker_fence: hand.fence.next(), ..hand.request(SHORT) },
        ClaimRequest { worker: WorkerId::new("nobody").expect("fine"), ..hand.request(SHORT) },
    ];
    for request in wrong {
        let answer = world.store.claim(request.clone()).await;
        assert!(matches!(answer, Err(Error::Fenced)), "{request:?}: {answer:?}");
    }
    let newer = world.hand_of("w", hand.owner).await;
    let answer = world.store.claim(hand.request(SHORT)).await;
    assert!(matches!(answer, Err(Error::Fenced)), "an earlier life of the same process: {answer:?}");
    newer.get().await;
}

/// A submission that finds a waiting worker is claimed for it in the same commit.
pub async fn a_submission_serves_a_waiting_claim_at_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    // Whether a claim already waits cannot be seen from outside: it is asked until one did.
    eventually("a submission is answered as running", async || {
        let parked = hand.park(false);
        tokio::task::yield_now().await;
        let submitted = world.store.submit(new_task()).await.expect("it is taken in");
        let Submitted::New(task) = submitted else { panic!("it is new") };
        let claim = joined("the waiting claim", parked).await.expect("it is served");
        assert_eq!(claim.task.id, task.id);
        assert_eq!(world.kinds(task.id).await, [EventKind::Submitted, EventKind::Claimed]);
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
        if task.status == Status::Running {
            assert_eq!(task, claim.task, "what was answered is what was committed");
        }
        task.status == Status::Running
    })
    .await;
}

/// A claim that waits is also served by what is given back.
pub async fn a_task_given_back_serves_a_waiting_claim(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (_, claim) = world.running("first").await;
    let parked = world.hand("second").await.park(false);
    world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    let next = joined("the waiting claim", parked).await.expect("it is served");
    assert_eq!((next.task.id, next.lease.attempt), (claim.task.id, 2));
}

/// Claims for busy workers are served when no idle one asks, and behind every idle one.
pub async fn idle_workers_come_before_busy_ones(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (busy, idle) = (world.hand("busy").await, world.hand("idle").await);
    let first = world.submit(new_task()).await;
    let ahead = busy.get_ahead().await;
    assert_eq!((ahead.task.id, ahead.lease.phase), (first.id, Phase::Ahead));
    let second_busy = world.hand("second-busy").await;
    let (waits_ahead, waits_idle) = (second_busy.park(true), idle.park(false));
    // Its mark on the first task shows that the idle one waits.
    wanted(&world, &ahead.lease).await;
    // The mark is there a moment before the claim waits again. Whatever comes after this one finds it waiting.
    let witness = world.hand("witness").await;
    let asks = ClaimRequest { ahead: true, ..witness.request(Duration::ZERO) };
    assert_eq!(world.store.claim(asks).await.expect("claims are answered"), None);
    let second = world.submit(new_task()).await;
    let served = joined("the idle claim", waits_idle).await.expect("it is served");
    assert_eq!((served.task.id, served.lease.phase), (second.id, Phase::Placing));
    let third = world.submit(new_task()).await;
    let served = joined("the claim ahead", waits_ahead).await.expect("it is served");
    assert_eq!((served.task.id, served.lease.phase), (third.id, Phase::Ahead));
}

async fn wanted(world: &World, lease: &Lease) {
    eventually("the lease is wanted", async || {
        world.lease(lease.task).await.expect("it is still held").wanted
    })
    .await;
}

/// An idle worker that finds nothing makes the holder of a task that only waits elsewhere give it back.
pub async fn an_idle_worker_wants_what_only_waits_elsewhere(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (busy, idle) = (world.hand("busy").await, world.hand("idle").await);
    world.submit(new_task()).await;
    world.submit(new_task()).await;
    let (first, second) = (busy.get_ahead().await.lease, busy.get_ahead().await.lease);
    let waiting = {
        let busy = busy.clone();
        let beats = [&first, &second].map(|lease| LeaseBeat {
            lease: lease.reference(),
            phase: Phase::Ahead,
            progress: 0.0,
        });
        tokio::spawn(async move { busy.beat(&beats, SOON).await })
    };
    let parked = idle.park(false);
    let reply = joined("a beat that waits for news", waiting).await;
    let news = LeaseNews { lease: first.reference(), cancel: false, wanted: true };
    assert_eq!(reply.news, [news], "the first in the queue, and one for one idle worker");
    assert!(!world.lease(second.task).await.expect("it is held").wanted);
    let returned = world.store.give_back(first.owner, first.reference(), None).await.expect("it goes back");
    assert_eq!((returned.status, returned.repeated), (Status::Pending, false));
    let claim = joined("the idle claim", parked).await.expect("it is served");
    assert_eq!((claim.task.id, claim.lease.phase), (first.task, Phase::Placing));
    let attempts = world.store.attempts(first.task, 1000).await.expect("it answers");
    assert_eq!(attempts[0].outcome, Some(AttemptOutcome::Returned));
}

/// What already renders, and what it could not run, an idle worker does not want.
pub async fn nobody_wants_what_renders_or_what_they_cannot_run(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let busy = world.hand("busy").await.able(&label("a100"));
    world.submit(new_task()).await;
    let renders = busy.get_ahead().await.lease;
    assert!(busy.renew(renders.reference(), Phase::Rendering).await.news.is_empty());
    world.submit(requiring(&label("a100"))).await;
    let special = busy.get_ahead().await.lease;
    world.submit(new_task()).await;
    let plain = busy.get_ahead().await.lease;
    let parked = world.hand("idle").await.park(false);
    wanted(&world, &plain).await;
    for lease in [&renders, &special] {
        assert!(!world.lease(lease.task).await.expect("it is held").wanted);
    }
    // Once it renders it is not wanted any more.
    let reply = busy.renew(plain.reference(), Phase::Rendering).await;
    assert!(reply.news.iter().all(|news| !news.wanted), "{reply:?}");
    assert!(!world.lease(plain.task).await.expect("it is held").wanted);
    let next = world.submit(new_task()).await;
    assert_eq!(joined("the idle claim", parked).await.expect("it is served").task.id, next.id);
}

/// What is being cancelled is offered to nobody: an idle worker gets what waits behind it.
pub async fn nobody_wants_what_is_being_cancelled(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let busy = world.hand("busy").await;
    world.submit(new_task()).await;
    world.submit(new_task()).await;
    let (first, second) = (busy.get_ahead().await.lease, busy.get_ahead().await.lease);
    world.store.cancel(first.task).await.expect("it is stopped");
    let parked = world.hand("idle").await.park(false);
    wanted(&world, &second).await;
    assert!(!world.lease(first.task).await.expect("its holder stops it").wanted);
    world.store.give_back(second.owner, second.reference(), None).await.expect("it goes back");
    assert_eq!(joined("the idle claim", parked).await.expect("it is served").task.id, second.task);
}

/// What was claimed for a caller that is gone goes back at once.
pub async fn a_claim_whose_caller_is_gone_is_given_back(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (gone, there) = (world.hand("gone").await, world.hand("there").await);
    for round in 0..12 {
        let parked = gone.park(false);
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        let submitting = {
            let store = world.store.clone();
            tokio::spawn(async move { store.submit(new_task()).await.expect("it is taken in") })
        };
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        parked.abort();
        if let Ok(Some(claim)) = parked.await {
            // It was there in time; the race was lost.
            world
                .store
                .give_back(claim.lease.owner, claim.lease.reference(), None)
                .await
                .expect("it goes back");
        }
        let task = joined("the submission", submitting).await.task().clone();
        let claim = world.store.claim(there.request(SOON)).await.expect("it answers");
        let claim = claim.expect("the task did not go with the one who asked first");
        assert_eq!(claim.task.id, task.id);
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
        let attempts = world.store.attempts(task.id, 1000).await.expect("it answers");
        let (last, before) = attempts.split_last().expect("there is one");
        assert_eq!(last.worker, there.worker);
        assert!(before.iter().all(|attempt| attempt.outcome == Some(AttemptOutcome::Returned)));
    }
    assert!(world.store.leases(&gone.worker).await.expect("it lists").is_empty());
}

/// Many workers at once get every task once.
pub async fn no_task_is_claimed_twice(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let made = join_all((0..60).map(|_| world.store.submit(new_task()))).await;
    let made: BTreeSet<_> = made.into_iter().map(|task| task.expect("it is taken in").task().id).collect();
    let hands = join_all((0..6).map(async |n| world.hand(&format!("w{n}")).await)).await;
    let work = hands.iter().map(async |hand| {
        let mut mine = Vec::new();
        while let Some(claim) = hand.claim().await {
            assert_eq!((claim.lease.fence, claim.lease.attempt), (Fence(1), 1));
            world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
            mine.push(claim.task.id);
        }
        mine
    });
    let done: Vec<_> = join_all(work).await.into_iter().flatten().collect();
    assert_eq!(done.len(), made.len(), "each once");
    assert_eq!(done.into_iter().collect::<BTreeSet<_>>(), made, "and all of them");
}

/// Closing answers those who wait, and refuses those who come after it.
pub async fn closing_answers_those_who_wait(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let beat = LeaseBeat { lease: claim.lease.reference(), phase: Phase::Rendering, progress: 0.5 };
    let waits = {
        let (store, request) = (world.store.clone(), hand.request(10 * SOON));
        tokio::spawn(async move { store.claim(request).await })
    };
    let beats = {
        let store = world.store.clone();
        let request =
            crate::BeatRequest { owner: hand.owner, leases: vec![beat], workers: vec![], wait: 10 * SOON };
        tokio::spawn(async move { store.beat(request).await })
    };
    tokio::task::yield_now().await;
    tokio::time::timeout(SOON, world.store.close()).await.expect("it closes in time");
    match joined("the claim that waited", waits).await {
        Ok(None) | Err(Error::Closed) => {}
        other => panic!("a claim at the closing: {other:?}"),
    }
    match joined("the beat that waited", beats).await {
        Ok(reply) => assert!(reply.lost.is_empty() && reply.news.is_empty(), "{reply:?}"),
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    assert!(matches!(world.store.submit(new_task()).await, Err(Error::Closed)));
    assert!(matches!(world.store.claim(hand.request(SHORT)).await, Err(Error::Closed)));
    assert!(matches!(world.store.acquire_worker(spec("w"), owner()).await, Err(Error::Closed)));
    assert!(matches!(world.store.task(claim.task.id).await, Err(Error::Closed)));
    world.store.close().await;
}
