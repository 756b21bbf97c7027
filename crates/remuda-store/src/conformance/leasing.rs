//! Leases: renewal, ends of every kind, repeated reports, and fences against those who come too late.

use std::time::{Duration, Instant};

use remuda_core::transition::Ending;
use remuda_core::{
    AttemptOutcome, EventKind, FailureClass, Fence, LeaseRef, OutputFile, OwnerId, PendingReason, Phase,
    Requirements, Sha256, Status, TaskId, TaskResult,
};
use serde_json::json;

use super::Fixture;
use super::world::{
    Hand, SECOND, SOON, World, completed, either, failed, failed_in_part, joined, label, new_task, requiring,
};
use crate::{BeatReply, EndReply, Error, LeaseBeat, LeaseNews};

const fn reply(status: Status) -> EndReply {
    EndReply { status, discarded: false, repeated: false }
}

/// A beat renews the lease and notes how far the task is.
pub async fn a_beat_renews_and_notes_progress(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let before = world.task(claim.task.id).await;
    let policy = &world.options.policy;
    let lease = claim.lease.reference();
    let beat = async |phase, progress| {
        world.clock.advance(5 * SECOND);
        let reply = hand.beat(&[LeaseBeat { lease, phase, progress }], Duration::ZERO).await;
        assert_eq!(reply, BeatReply::default());
        let lease = world.lease(claim.task.id).await.expect("it is held");
        assert_eq!((lease.phase, lease.progress), (phase, progress));
        assert_eq!(lease.until, world.now() + policy.lease);
        lease
    };
    assert_eq!(beat(Phase::Submitted, 0.0).await.rendering_since, None);
    let began = beat(Phase::Rendering, 0.25).await.rendering_since;
    assert_eq!(began, Some(world.now()));
    assert_eq!(beat(Phase::Rendering, 0.75).await.rendering_since, began, "it began once");
    assert_eq!(beat(Phase::Collecting, 1.0).await.rendering_since, began);
    assert_eq!(world.task(claim.task.id).await, before, "progress is not a change of the task");
}

/// A lease that ran out and that nobody took is its holder's again with the next beat.
pub async fn a_lease_that_ran_out_is_renewed_while_nobody_took_it(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    world.clock.advance(world.options.policy.lease + 5 * SECOND);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty(), "it waits for adoption first");
    let reply = hand.renew(claim.lease.reference(), Phase::Rendering).await;
    assert_eq!(reply, BeatReply::default());
    world.clock.advance(world.options.policy.adoption + 5 * SECOND);
    assert!(world.store.tidy().await.expect("it tidies").lost.is_empty());
    let ended =
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    assert_eq!(ended, self::reply(Status::Completed));
}

/// Of one process one beat waits: whoever asks again does not wait for the answer before, and hears the news.
pub async fn a_newer_beat_of_a_process_answers_the_one_before(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (other, others) = world.running("other").await;
    let waits = |hand: &Hand, lease: LeaseRef| {
        let hand = hand.clone();
        let beat = LeaseBeat { lease, phase: Phase::Rendering, progress: 0.5 };
        tokio::spawn(async move { hand.beat(&[beat], SOON).await })
    };
    let lease = claim.lease.reference();
    let elsewhere = waits(&other, others.lease.reference());
    let started = Instant::now();
    let mut newest = waits(&hand, lease);
    for _ in 0..20 {
        // Which of the two comes first is not known; the other one stays.
        let (answer, stays) = either("one of two beats", newest, waits(&hand, lease)).await;
        assert_eq!(answer, BeatReply::default());
        newest = stays;
    }
    assert!(started.elapsed() < SOON / 2, "they were answered before their time: {:?}", started.elapsed());
    assert!(!elsewhere.is_finished() && !newest.is_finished(), "another's waits, and the newest");
    world.store.cancel(claim.task.id).await.expect("it can be cancelled");
    let reply = joined("the newest beat", newest).await;
    assert_eq!(reply.news, [LeaseNews { lease, cancel: true, wanted: false }]);
    assert!(!elsewhere.is_finished(), "that was no news of its own");
    world.store.cancel(others.task.id).await.expect("it can be cancelled");
    assert_eq!(joined("the other's beat", elsewhere).await.news.len(), 1);
}

/// What is not the caller's comes back as lost; the rest of the beat is done.
pub async fn a_beat_tells_what_was_lost(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (_, other) = world.running("x").await;
    world.store.end(other.lease.owner, other.lease.reference(), completed()).await.expect("it ends");
    let mine = claim.lease.reference();
    let unknown = LeaseRef { task: TaskId::new(), fence: Fence(1) };
    let newer = LeaseRef { fence: mine.fence.next(), ..mine };
    let refs = [unknown, mine, newer, other.lease.reference()];
    world.clock.advance(SECOND);
    let beats = refs.map(|lease| LeaseBeat { lease, phase: Phase::Rendering, progress: 0.5 });
    let mut reply = hand.beat(&beats, Duration::ZERO).await;
    let mut lost = vec![unknown, newer, other.lease.reference()];
    reply.lost.sort();
    lost.sort();
    assert_eq!((reply.lost, reply.news), (lost, vec![]));
    let lease = world.lease(mine.task).await.expect("it is held");
    assert_eq!(lease.until, world.now() + world.options.policy.lease);
}

/// What a task did before it failed for good is its result; that of an attempt that is tried again is not used.
pub async fn a_failed_task_keeps_what_was_done(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let ending = failed_in_part(FailureClass::Crash);
    let lease = claim.lease.reference();
    let again = EndReply { discarded: true, ..reply(Status::Pending) };
    assert_eq!(world.store.end(claim.lease.owner, lease, ending.clone()).await.expect("it ends"), again);
    let repeated = EndReply { repeated: true, ..again };
    assert_eq!(world.store.end(claim.lease.owner, lease, ending).await.expect("it ends"), repeated);
    let task = world.task(claim.task.id).await;
    assert_eq!((task.status, &task.result), (Status::Pending, &None));
    world.clock.advance(600 * SECOND);
    world.store.tidy().await.expect("it tidies");

    let second = hand.get().await;
    let ending = failed_in_part(FailureClass::Validation);
    let lease = second.lease.reference();
    assert_eq!(
        world.store.end(second.lease.owner, lease, ending.clone()).await.expect("it ends"),
        reply(Status::Failed)
    );
    let repeated = EndReply { repeated: true, ..reply(Status::Failed) };
    assert_eq!(
        world.store.end(second.lease.owner, lease, ending.clone()).await.expect("it ends"),
        repeated,
        "it is used"
    );
    world.restart().await;
    let task = world.task(claim.task.id).await;
    assert_eq!((task.status, task.result.as_ref()), (Status::Failed, ending.result()));
    assert_eq!(task.error.map(|error| error.class), Some(FailureClass::Validation));
    let unswept = world.store.unswept(10).await.expect("it lists");
    assert_eq!(unswept.iter().map(|task| task.id).collect::<Vec<_>>(), [task.id]);
    assert_eq!(unswept[0].result.as_ref(), ending.result(), "so that what is used stays");
}

/// A result is kept whole, and can be read from then on.
pub async fn a_result_is_kept_as_it_came(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (_, claim) = world.running("w").await;
    let file = OutputFile {
        subfolder: String::new(),
        n: 0,
        key: "tasks/1/0.png".to_owned(),
        filename: "ä 1.png".to_owned(),
        node_id: "9".to_owned(),
        output: "images".to_owned(),
        file_type: "output".to_owned(),
        mime: "image/png".to_owned(),
        size: 5_000_000_000,
        sha256: Sha256::of(b"png"),
    };
    let result = TaskResult {
        files: vec![file],
        outputs: json!({"9": {"images": [{"seed": 9_223_372_036_854_775_807_i64, "f": 0.1}]}}).into(),
        execution_ms: Some(1234),
        node_errors: Some(json!({"7": ["x"]}).into()),
    };
    world.clock.advance(3 * SECOND);
    let ending = Ending::Completed { result: result.clone(), gpu_ms: Some(2_000) };
    let ended = world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
    assert_eq!(ended, reply(Status::Completed));
    let task = world.task(claim.task.id).await;
    assert_eq!((task.status, task.reason, &task.error), (Status::Completed, None, &None));
    assert_eq!((task.result, task.finished_at), (Some(result), Some(world.now())));
    assert_eq!(world.lease(claim.task.id).await, None);
    let attempts = world.store.attempts(claim.task.id, 1000).await.expect("it answers");
    assert_eq!(
        (attempts[0].outcome, attempts[0].ended_at),
        (Some(AttemptOutcome::Completed), Some(world.now()))
    );
    assert_eq!(world.store.leases(&claim.lease.worker).await.expect("it lists"), []);
}

/// Every class of failure does what the policy says of it.
pub async fn failures_are_treated_by_their_class(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    for (n, class) in FailureClass::ALL.into_iter().enumerate() {
        let (_, claim) = world.running(&format!("w{n}")).await;
        let id = claim.task.id;
        let ended = world
            .store
            .end(claim.lease.owner, claim.lease.reference(), failed(class))
            .await
            .expect("it ends");
        let task = world.task(id).await;
        assert_eq!(ended, reply(task.status), "{class}");
        let error = task.error.clone().expect("it says why");
        assert_eq!((error.class, error.message.as_str()), (class, "it broke"));
        let attempts = world.store.attempts(id, 1000).await.expect("it answers");
        let outcome = if class.is_loss() { AttemptOutcome::Lost } else { AttemptOutcome::Failed };
        assert_eq!((attempts[0].outcome, attempts[0].failure.clone()), (Some(outcome), Some(error)));
        let (status, kind) = match class {
            _ if class.is_loss() => (Status::Pending, EventKind::Lost),
            FailureClass::Execution | FailureClass::OutOfMemory => {
                (Status::Pending, EventKind::RetryScheduled)
            }
            _ => (Status::Failed, EventKind::Failed),
        };
        assert_eq!((task.status, world.kinds(id).await.last()), (status, Some(&kind)), "{class}");
        let budget = if class.is_loss() { (0, 1) } else { (1, 0) };
        assert_eq!((task.failures, task.losses), budget, "{class}");
        if status == Status::Pending {
            world.store.cancel(id).await.expect("it waits");
        }
    }
}

/// A retry waits for its delay, then runs elsewhere under the next number; then the budget is used up.
pub async fn a_retry_comes_after_its_delay(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let backoff = world.options.policy.backoff;
    let (hand, claim) = world.running("first").await;
    let other = world.hand("second").await;
    let id = claim.task.id;
    world
        .store
        .end(claim.lease.owner, claim.lease.reference(), failed(FailureClass::Execution))
        .await
        .expect("it ends");
    let task = world.task(id).await;
    assert_eq!(task.reason, Some(PendingReason::Retry));
    assert!(task.run_at > world.now() && task.run_at <= world.now() + backoff, "{task:?}");
    assert_eq!((&task.avoid_worker, task.avoid_until.is_some()), (&Some(hand.worker.clone()), true));
    let tidied = world.store.tidy().await.expect("it tidies");
    assert_eq!((tidied.released, tidied.next), (0, Some(task.run_at)));
    assert_eq!(other.claim().await, None);
    world.clock.advance(backoff);
    assert_eq!(world.store.tidy().await.expect("it tidies").released, 1);
    let again = other.get().await;
    assert_eq!((again.task.id, again.lease.attempt), (id, 2));
    assert_ne!(again.lease.prompt_id, claim.lease.prompt_id);
    let ended =
        world.store.end(again.lease.owner, again.lease.reference(), failed(FailureClass::Execution)).await;
    assert_eq!(ended.expect("it ends").status, Status::Failed);
    let task = world.task(id).await;
    assert_eq!((task.failures, task.attempt), (2, 2));
}

/// A report whose answer was lost can be repeated; it changes nothing the second time.
pub async fn an_end_reported_twice_happens_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let endings = [completed(), failed(FailureClass::Execution), failed(FailureClass::Validation)];
    for (n, ending) in endings.into_iter().enumerate() {
        let (_, claim) = world.running(&format!("w{n}")).await;
        let lease = claim.lease.reference();
        let first = world.store.end(claim.lease.owner, lease, ending.clone()).await.expect("it ends");
        let task = world.task(claim.task.id).await;
        assert_eq!(first, reply(task.status));
        let again = world.store.end(claim.lease.owner, lease, ending).await.expect("it is known");
        assert_eq!(again, EndReply { repeated: true, ..first });
        assert_eq!(world.task(claim.task.id).await, task);
        assert_eq!(world.events(claim.task.id).await.len(), 3);
    }
    let (_, claim) = world.running("returner").await;
    let lease = claim.lease.reference();
    assert_eq!(
        world.store.give_back(claim.lease.owner, lease, None).await.expect("back"),
        reply(Status::Pending)
    );
    let again = world.store.give_back(claim.lease.owner, lease, None).await.expect("it is known");
    assert_eq!(again, EndReply { repeated: true, ..reply(Status::Pending) });
    assert_eq!(world.task(claim.task.id).await.version, 3);
}

/// Whoever held the task before changes nothing any more, whatever they try.
pub async fn a_stale_holder_changes_nothing(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (first, claim) = world.running("first").await;
    let second = world.hand("second").await;
    let id = claim.task.id;
    world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    let current = second.get().await;
    assert_eq!(current.task.id, id);
    let stale = async |owner: OwnerId, lease: LeaseRef| {
        let before = (world.task(id).await, world.lease(id).await, world.events(id).await);
        for ending in [completed(), failed(FailureClass::Crash), Ending::Cancelled] {
            let answer = world.store.end(owner, lease, ending).await;
            assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
        }
        let learnt = Some(label("x"));
        let answer = world.store.give_back(owner, lease, learnt).await;
        assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}");
        assert_eq!(first.renew(lease, Phase::Collecting).await.lost, [lease]);
        assert_eq!((world.task(id).await, world.lease(id).await, world.events(id).await), before);
    };
    let made_up = LeaseRef { fence: current.lease.fence.next(), ..current.lease.reference() };
    for lease in [claim.lease.reference(), made_up] {
        stale(first.owner, lease).await;
        stale(second.owner, lease).await;
    }
    world.store.end(current.lease.owner, current.lease.reference(), completed()).await.expect("it ends");
    for lease in [claim.lease.reference(), made_up] {
        stale(first.owner, lease).await;
        stale(second.owner, lease).await;
    }
    let unknown = LeaseRef { task: TaskId::new(), fence: Fence(1) };
    assert!(world.store.end(first.owner, unknown, completed()).await.is_err());
    assert!(world.store.give_back(first.owner, unknown, None).await.is_err());
}

/// A give-back uses no budget and no number twice; the attempt is closed as returned.
pub async fn a_give_back_costs_nothing(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let id = claim.task.id;
    world.clock.advance(SECOND);
    let ended =
        world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    assert_eq!(ended, reply(Status::Pending));
    let task = world.task(id).await;
    assert_eq!((task.reason, task.failures, task.losses), (Some(PendingReason::Queued), 0, 0));
    assert_eq!((task.attempt, task.started_at, task.rank), (1, None, claim.task.rank));
    assert_eq!(world.lease(id).await, None);
    let attempts = world.store.attempts(id, 1000).await.expect("it answers");
    assert_eq!(
        (attempts[0].outcome, attempts[0].ended_at),
        (Some(AttemptOutcome::Returned), Some(world.now()))
    );
    let again = hand.get().await;
    assert_eq!((again.lease.attempt, again.task.fence), (2, Fence(2)));
}

/// What a worker lacked is learnt: the task waits for one that has it, and its input stays as it came.
pub async fn learnt_requirements_move_a_task_to_another_lane(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let asked = label("a100");
    let learnt = Requirements { models: ["flux.safetensors".to_owned()].into(), ..Requirements::default() };
    let both = asked.clone().and(&learnt);
    let lacking = world.hand("lacking").await.able(&asked);
    let able = world.hand("able").await.able(&both);
    let task = world.submit(requiring(&asked)).await;
    let claim = lacking.get().await;
    world
        .store
        .give_back(claim.lease.owner, claim.lease.reference(), Some(learnt))
        .await
        .expect("it goes back");
    assert_eq!(world.task(task.id).await.lane, both.lane());
    assert_eq!(lacking.claim().await, None);
    let again = able.get().await;
    assert_eq!((again.task.id, &again.input.requires), (task.id, &asked), "the input stays as it came");
    let input = world.store.input(task.id).await.expect("it answers").expect("it is there");
    assert_eq!(input.requires, asked);
    let lanes = world.store.lanes().await.expect("it lists");
    assert!(lanes.iter().any(|lane| lane.id == both.lane() && lane.requires == both));
    // Learnt twice is learnt together.
    let more = Requirements { nodes: ["Upscale".to_owned()].into(), ..Requirements::default() };
    world
        .store
        .give_back(again.lease.owner, again.lease.reference(), Some(more.clone()))
        .await
        .expect("it goes back");
    let lane = world.task(task.id).await.lane;
    let lanes = world.store.lanes().await.expect("it lists");
    let now_needs = &lanes.iter().find(|known| known.id == lane).expect("it is listed").requires;
    assert_eq!(*now_needs, both.and(&more), "in addition to what was known");
    assert_eq!(able.claim().await, None);
}

/// All leases on a worker are listed, whoever holds them, and no others.
pub async fn leases_are_listed_by_worker(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, first) = world.running("w").await;
    world.submit(new_task()).await;
    let second = hand.get_ahead().await;
    world.running("x").await;
    let mut leases = world.store.leases(&hand.worker).await.expect("it lists");
    leases.sort_by_key(|lease| lease.task);
    assert_eq!(leases, [first.lease, second.lease]);
}
