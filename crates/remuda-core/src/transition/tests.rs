//! The life of a task: single steps as examples, and any sequence of steps as a property.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::*;
use crate::{Fence, Idempotency, LaneId};

fn moment(seconds: i64) -> Timestamp {
    Timestamp::new(1_800_000_000 + seconds, 0).unwrap()
}

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string("{}".to_owned()).unwrap())
}

fn claimer(n: u128, ahead: bool) -> Claimer {
    Claimer {
        owner: OwnerId(Uuid::from_u128(n)),
        worker: WorkerId::new(format!("worker-{n}")).unwrap(),
        gateway: None,
        ahead,
    }
}

fn pending() -> Task {
    submit(&new_task(), moment(0), 0, 10_000).0
}

fn running() -> (Task, Lease) {
    let mut task = pending();
    let (lease, ..) =
        claim(&mut task, moment(1), &Policy::default(), &claimer(1, false), Uuid::from_u128(7)).unwrap();
    (task, lease)
}

fn completed() -> Ending {
    Ending::Completed { result: TaskResult::default(), gpu_ms: Some(4_000) }
}

fn failed_with(class: FailureClass) -> Ending {
    Ending::Failed { failure: Failure::new(class, "it broke"), partial: None }
}

#[test]
fn a_task_in_the_future_waits_and_one_in_the_past_does_not() {
    let later = NewTask { not_before: Some(moment(60)), ..new_task() };
    let (task, event) = submit(&later, moment(0), 3, 5);
    assert_eq!((task.reason, task.run_at), (Some(PendingReason::Scheduled), moment(60)));
    assert_eq!((event.n, event.kind, task.version), (1, EventKind::Submitted, 1));
    assert_eq!((task.rank, task.cost_ms, task.fence), (3, 5, Fence(0)));

    let earlier = NewTask { not_before: Some(moment(-60)), ..new_task() };
    let (task, _) = submit(&earlier, moment(0), 0, 0);
    assert_eq!((task.reason, task.run_at), (Some(PendingReason::Queued), moment(0)));
}

#[test]
fn a_claim_makes_attempt_lease_and_fence_together() {
    let (task, lease) = running();
    assert_eq!((task.status, task.reason, task.attempt), (Status::Running, None, 1));
    assert_eq!((lease.fence, lease.attempt, lease.phase), (task.fence, 1, Phase::Placing));
    assert_eq!(lease.until, moment(1) + Policy::default().lease);
    let mut twice = task.clone();
    let again = claim(&mut twice, moment(2), &Policy::default(), &claimer(2, false), Uuid::nil());
    assert_eq!(again.unwrap_err(), NotPossible(Status::Running));
    assert_eq!(twice, task, "a refused claim changes nothing");
}

#[test]
fn an_adopted_attempt_keeps_its_number_its_prompt_and_its_progress() {
    let (mut task, mut lease) = running();
    lease.phase = Phase::Rendering;
    lease.rendering_since = Some(moment(2));
    let before = lease.clone();
    let next = OwnerId(Uuid::from_u128(2));
    let event = adopt(&mut task, &mut lease, moment(90), &Policy::default(), next, Some("http://b".into()));
    assert_eq!(event.kind, EventKind::Adopted);
    assert_eq!((lease.fence, task.fence, task.attempt), (before.fence.next(), before.fence.next(), 1));
    let expected = Lease {
        fence: lease.fence,
        owner: next,
        gateway: Some("http://b".into()),
        until: moment(90) + Policy::default().lease,
        ..before
    };
    assert_eq!(lease, expected);
}

#[test]
fn a_cancellation_wins_over_every_end_that_comes_after_it() {
    let endings = [completed(), failed_with(FailureClass::Execution), failed_with(FailureClass::Crash)];
    for ending in endings.into_iter().chain([Ending::Cancelled]) {
        let (mut task, _) = running();
        assert_eq!(cancel(&mut task, moment(2)).unwrap().unwrap().kind, EventKind::CancelRequested);
        assert_eq!(cancel(&mut task, moment(3)), Ok(None), "asking twice is asking once");
        let discarded = matches!(ending, Ending::Completed { .. });
        let ended = end(&mut task, moment(4), &Policy::default(), ending, 0.5);
        assert_eq!((task.status, task.cancel_at), (Status::Cancelled, Some(moment(2))));
        assert_eq!((ended.outcome, ended.discarded), (AttemptOutcome::Cancelled, discarded));
        assert_eq!(task.result, None);
    }
    let (mut given_back, _) = running();
    cancel(&mut given_back, moment(2)).unwrap();
    give_back(&mut given_back, moment(3), None);
    assert_eq!(given_back.status, Status::Cancelled);
    let (mut lost, _) = running();
    cancel(&mut lost, moment(2)).unwrap();
    lose(&mut lost, moment(3), &Policy::default());
    assert_eq!((lost.status, lost.losses), (Status::Cancelled, 0));
}

#[test]
fn failures_and_losses_have_budgets_of_their_own() {
    let policy = Policy { max_losses: 2, ..Policy::default() };
    let mut task = pending();
    let attempt = |task: &mut Task, ending: Option<Ending>| {
        release(task, moment(1));
        claim(task, moment(1), &policy, &claimer(1, false), Uuid::nil()).unwrap();
        match ending {
            Some(ending) => end(task, moment(2), &policy, ending, 0.5),
            None => lose(task, moment(2), &policy),
        }
    };
    // Two losses, in both ways, do not touch the retries.
    assert_eq!(attempt(&mut task, Some(failed_with(FailureClass::Connection))).outcome, AttemptOutcome::Lost);
    assert_eq!(attempt(&mut task, None).event.kind, EventKind::Lost);
    assert_eq!((task.status, task.losses, task.failures), (Status::Pending, 2, 0));
    assert_eq!(task.reason, Some(PendingReason::Queued), "a loss costs no delay");
    // A failure still has its retry, with a delay, and away from the worker.
    let failed = attempt(&mut task, Some(failed_with(FailureClass::Execution)));
    assert_eq!((failed.outcome, failed.event.kind), (AttemptOutcome::Failed, EventKind::RetryScheduled));
    assert_eq!((task.reason, task.run_at), (Some(PendingReason::Retry), moment(2) + policy.backoff / 2));
    assert_eq!(task.avoid_worker, task.worker);
    assert_eq!(task.avoid_until, Some(task.run_at + policy.avoid));
    // The third loss is one too many.
    let lost = attempt(&mut task, None);
    assert_eq!((lost.outcome, lost.event.kind), (AttemptOutcome::Lost, EventKind::Failed));
    assert_eq!((task.status, task.losses, task.failures, task.attempt), (Status::Failed, 3, 1, 4));
    assert_eq!(task.error.unwrap().class, FailureClass::Lost);
}

#[test]
fn a_task_given_back_waits_at_its_old_place_under_what_was_learnt() {
    let (mut task, _) = running();
    task.rank = 17;
    let learnt = Requirements { models: ["flux.safetensors".to_owned()].into(), ..Requirements::default() };
    let ended = give_back(&mut task, moment(5), Some(&learnt));
    assert_eq!((ended.outcome, ended.event.kind), (AttemptOutcome::Returned, EventKind::Returned));
    assert_eq!((task.status, task.reason, task.rank), (Status::Pending, Some(PendingReason::Queued), 17));
    assert_eq!((task.failures, task.losses, task.attempt), (0, 0, 1), "no budget is used, no number reused");
    assert_eq!(task.lane, learnt.lane());
    assert_ne!(task.lane, LaneId::any());
    assert_eq!(task.started_at, None);
}

#[test]
fn a_lost_task_has_a_fence_that_its_old_owner_does_not_know() {
    let (mut task, lease) = running();
    lose(&mut task, moment(100), &Policy::default());
    assert!(task.fence > lease.fence);
    assert!(task.error.unwrap().message.contains("worker-1"));
}

#[test]
fn only_a_waiting_task_expires_and_only_a_delayed_one_is_released() {
    let (mut task, _) = running();
    assert_eq!(expire(&mut task, moment(9)), Err(NotPossible(Status::Running)));
    assert!(!release(&mut task, moment(9)));
    let mut task = pending();
    assert!(!release(&mut task, moment(9)), "it is queued already");
    let event = expire(&mut task, moment(9)).unwrap();
    assert_eq!((event.kind, task.status), (EventKind::Failed, Status::Failed));
    assert_eq!(task.error.unwrap().class, FailureClass::Timeout);
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u32),
    Claim { owner: u128, ahead: bool },
    Adopt { owner: u128 },
    End { ending: Ending, dice: f64 },
    GiveBack,
    Lose,
    Cancel,
    Expire,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        1 => Just(completed()),
        1 => Just(Ending::Cancelled),
        4 => proptest::sample::select(FailureClass::ALL.to_vec()).prop_map(failed_with),
    ];
    prop_oneof![
        2 => (0..500_u32).prop_map(Step::Wait),
        6 => (1..4_u128, any::<bool>()).prop_map(|(owner, ahead)| Step::Claim { owner, ahead }),
        2 => (1..4_u128).prop_map(|owner| Step::Adopt { owner }),
        3 => (ending, 0.0..=1.0).prop_map(|(ending, dice)| Step::End { ending, dice }),
        2 => Just(Step::GiveBack),
        2 => Just(Step::Lose),
        1 => Just(Step::Cancel),
        1 => Just(Step::Expire),
        4 => Just(Step::Release),
    ]
}

/// One step as a store makes it: ends, returns, losses and adoptions only where there is a lease.
fn apply(
    step: Step,
    task: &mut Task,
    lease: &mut Option<Lease>,
    now: &mut Timestamp,
    policy: &Policy,
) -> Option<TaskEvent> {
    let ended = match (step, lease.as_mut()) {
        (Step::Wait(seconds), _) => {
            *now += Duration::from_secs(u64::from(seconds));
            return None;
        }
        (Step::Claim { owner, ahead }, _) => {
            if task.reason != Some(PendingReason::Queued) {
                return None;
            }
            let made = claim(task, *now, policy, &claimer(owner, ahead), Uuid::from_u128(owner));
            let (new, attempt, event) = made.unwrap();
            assert_eq!((attempt.n, new.attempt, new.fence), (task.attempt, task.attempt, task.fence));
            *lease = Some(new);
            return Some(event);
        }
        (Step::Cancel, _) => return cancel(task, *now).unwrap_or(None),
        (Step::Expire, _) => return expire(task, *now).ok(),
        (Step::Release, _) => {
            release(task, *now);
            return None;
        }
        (Step::Adopt { owner }, Some(lease)) => {
            return Some(adopt(task, lease, *now, policy, OwnerId(Uuid::from_u128(owner)), None));
        }
        (Step::End { ending, dice }, Some(_)) => end(task, *now, policy, ending, dice),
        (Step::GiveBack, Some(_)) => give_back(task, *now, None),
        (Step::Lose, Some(_)) => lose(task, *now, policy),
        (Step::Adopt { .. } | Step::End { .. } | Step::GiveBack | Step::Lose, None) => return None,
    };
    *lease = None;
    Some(ended.event)
}

proptest! {
    #[test]
    fn whatever_happens_a_task_lives_by_the_rules(
        steps in proptest::collection::vec(step(), 1..60),
        max_retries in 0..4_i32,
        max_losses in 0..4_i32,
    ) {
        let policy = Policy { max_losses, ..Policy::default() };
        let mut now = moment(0);
        let (mut task, first) = submit(&NewTask { max_retries, ..new_task() }, now, 0, 1);
        let mut lease = None;
        let mut events = vec![first];
        for step in steps {
            let before = task.clone();
            let event = apply(step.clone(), &mut task, &mut lease, &mut now, &policy);
            if before.status.is_terminal() {
                prop_assert_eq!(&task, &before, "an ended task changed by {:?}", step);
                prop_assert!(event.is_none());
            }
            prop_assert!(task.fence >= before.fence && task.attempt >= before.attempt);
            match event {
                Some(event) => {
                    prop_assert_eq!(task.version, before.version + 1);
                    prop_assert_eq!((event.n, event.task), (task.version, task.id));
                    prop_assert_eq!(event.kind.is_terminal(), task.status.is_terminal());
                    events.push(event);
                }
                None => prop_assert_eq!((task.version, task.status), (before.version, before.status)),
            }
            if before.cancel_at.is_some() {
                prop_assert_eq!(task.cancel_at, before.cancel_at);
                prop_assert!(matches!(task.status, Status::Running | Status::Cancelled), "{}", task.status);
            }
            prop_assert_eq!(lease.is_some(), task.status == Status::Running);
            prop_assert_eq!(lease.as_ref().is_none_or(|l| l.fence == task.fence && l.attempt == task.attempt), true);
            prop_assert_eq!(task.reason.is_some(), task.status == Status::Pending);
            prop_assert_eq!(task.finished_at.is_some(), task.status.is_terminal());
            prop_assert_eq!(task.result.is_some(), task.status == Status::Completed);
            prop_assert!(task.losses <= max_losses + 1 && task.failures <= max_retries + 1);
        }
        prop_assert!(events.iter().filter(|event| event.kind.is_terminal()).count() <= 1);
        prop_assert!(events.iter().map(|event| event.n).eq(1..=task.version), "event numbers have gaps");
    }
}

#[test]
fn what_was_done_before_a_failure_is_kept_only_when_it_is_the_end() {
    let partial = TaskResult { execution_ms: Some(5), ..TaskResult::default() };
    let ending = |class| Ending::Failed {
        failure: Failure::new(class, "it broke"),
        partial: Some(Box::new(partial.clone())),
    };
    let (mut task, _) = running();
    let ended = end(&mut task, moment(2), &Policy::default(), ending(FailureClass::Validation), 0.5);
    assert_eq!((task.status, task.result.as_ref(), ended.discarded), (Status::Failed, Some(&partial), false));

    let (mut task, _) = running();
    let ended = end(&mut task, moment(2), &Policy::default(), ending(FailureClass::Crash), 0.5);
    assert_eq!((task.status, task.result, ended.discarded), (Status::Pending, None, true));

    let (mut task, _) = running();
    cancel(&mut task, moment(1)).unwrap();
    let ended = end(&mut task, moment(2), &Policy::default(), ending(FailureClass::Validation), 0.5);
    assert_eq!((task.status, task.result, ended.discarded), (Status::Cancelled, None, true));
}

#[test]
fn reports_of_former_programs_are_understood_and_theirs_understand_ours() {
    let former = r#"{"how":"failed","failure":{"class":"crash","message":"it broke"}}"#;
    let read: Ending = serde_json::from_str(former).unwrap();
    assert_eq!(read, failed_with(FailureClass::Crash));
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!(written.get("partial"), None, "what is not there is not said");
}

#[test]
fn a_submission_was_made_before_under_its_key_or_else_its_id() {
    let (mine, other) = (Tenant::default_tenant(), Tenant::new("other").unwrap());
    let key = |text: &[u8]| Idempotency { key: "k".to_owned(), request: Sha256::of(text) };
    let plain = new_task();
    let keyed = NewTask { idempotency: Some(key(b"a")), ..new_task() };
    let before = TaskId::new();
    let by_key = |text: &[u8]| Some((Sha256::of(text), before));
    for (new, by_key, by_id, expected) in [
        (&plain, None, None, Ok(None)),
        (&plain, None, Some(&mine), Ok(Some(plain.id))),
        (&plain, None, Some(&other), Err(plain.id)),
        (&keyed, None, None, Ok(None)),
        (&keyed, by_key(b"a"), None, Ok(Some(before))),
        (&keyed, by_key(b"b"), None, Err(before)),
        (&keyed, None, Some(&mine), Ok(Some(keyed.id))),
        // The key is what the client chose, so it counts.
        (&keyed, by_key(b"a"), Some(&mine), Ok(Some(before))),
        (&keyed, by_key(b"b"), Some(&mine), Err(before)),
        (&keyed, by_key(b"a"), Some(&other), Ok(Some(before))),
    ] {
        assert_eq!(made_before(new, by_key, by_id), expected, "{new:?}");
    }
}
