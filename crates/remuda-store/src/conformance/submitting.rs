//! What comes in stays as it came, once; and what is told of it is true.

use futures_util::future::join_all;
use remuda_core::schedule::UNKNOWN_COST_MS;
use remuda_core::{
    EventKind, FailureClass, Fence, Idempotency, NewTask, PendingReason, Placement, Priority, Sha256, Status,
    TaskId,
};
use serde_json::json;
use serde_json::value::RawValue;

use super::Fixture;
use super::world::{
    SECOND, SOON, World, completed, eventually, failed, label, new_task, of_priority, of_tenant, requiring,
    tenant,
};
use crate::{Counts, Error, ListQuery, Submitted};

/// A task and its input come back as they went in: the workflow byte for byte, every field of the rest.
pub async fn a_task_is_kept_as_it_came(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    // Re-serialised, this would lose the seed, the spaces, the doubled key and the escapes.
    let text = r#"{ "3": {"seed":18446744073709551615, "cfg": 1.10e2,"cfg":7},  "ä\u00e4\u0000":"💥" }"#;
    let mut new = NewTask::new(RawValue::from_string(text.to_owned()).expect("it is JSON"));
    new.tenant = tenant("team/a@b");
    new.workflow_id = Some("portrait \"v2\"; --".to_owned());
    new.priority = Priority::new(7).expect("it is in range");
    new.input.requires = label("a100");
    new.input.placements = vec![Placement {
        node_id: "10".to_owned(),
        input: "image".to_owned(),
        sha256: Sha256::of(b"cat"),
        key: "assets/cat".to_owned(),
        filename: "cat ü.png".to_owned(),
    }];
    new.affinity = Some(i64::MIN);
    new.shape = -5;
    new.not_before = Some(world.now() + 90 * SECOND);
    new.deadline = Some(world.now() + 900 * SECOND);
    new.timeout_s = 77;
    new.max_retries = 2;
    new.metadata = Some(json!({"user": 1, "nul": "a\u{0}b", "big": 9_007_199_254_740_993_i64}).into());
    let submitted = world.store.submit(new.clone()).await.expect("it is taken in");
    let Submitted::New(task) = submitted else { panic!("it is new") };

    assert_eq!((task.id, &task.tenant, &task.workflow_id), (new.id, &new.tenant, &new.workflow_id));
    assert_eq!((task.priority, task.lane.clone()), (new.priority, label("a100").lane()));
    assert_eq!((task.affinity, task.shape, task.cost_ms), (new.affinity, new.shape, UNKNOWN_COST_MS));
    assert_eq!((task.status, task.reason), (Status::Pending, Some(PendingReason::Scheduled)));
    assert_eq!((task.created_at, Some(task.run_at)), (world.now(), new.not_before));
    assert_eq!((task.deadline, task.timeout_s, task.max_retries), (new.deadline, 77, 2));
    assert_eq!((task.attempt, task.fence, task.version), (0, Fence(0), 1));
    assert_eq!(task.metadata, new.metadata);
    assert_eq!(world.task(new.id).await, task);

    let input = world.store.input(new.id).await.expect("it can be read").expect("it is there");
    assert_eq!(input.workflow.get(), text);
    assert_eq!(input, new.input);
    let events = world.events(new.id).await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].n, events[0].kind, events[0].at), (1, EventKind::Submitted, world.now()));
    assert_eq!(world.lease(new.id).await, None);
    assert!(world.store.attempts(new.id, 1000).await.expect("it can be read").is_empty());
}

/// Questions about a task that is not there have empty answers; commands are refused.
pub async fn an_unknown_task_is_not_there(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (store, id) = (&world.store, TaskId::new());
    assert_eq!(store.task(id).await.expect("it answers"), None);
    assert_eq!(store.input(id).await.expect("it answers"), None);
    assert_eq!(store.lease(id).await.expect("it answers"), None);
    assert_eq!(store.position(id).await.expect("it answers"), None);
    assert!(store.attempts(id, 1000).await.expect("it answers").is_empty());
    assert!(store.events(id, 0, 10).await.expect("it answers").is_empty());
    assert!(matches!(store.cancel(id).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.hasten(id).await, Err(Error::NotFound { .. })));
}

/// A submission whose answer was lost can be repeated, at any later time.
pub async fn the_same_id_again_is_the_same_task(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let new = new_task();
    let first = world.submit(new.clone()).await;
    let again = world.store.submit(new.clone()).await.expect("it is taken in");
    assert_eq!(again, Submitted::Before(first));
    let hand = world.hand("w").await;
    let claim = hand.get().await;
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let again = world.store.submit(new.clone()).await.expect("it is taken in");
    assert_eq!(again, Submitted::Before(world.task(new.id).await), "also when it is done");
    let counts = world.store.counts(None).await.expect("it counts");
    assert_eq!(counts, Counts { completed: 1, ..Counts::default() });
    assert!(hand.claim().await.is_none(), "nothing was made twice");
}

/// A key names a submission within its tenant; for another request it is a conflict.
pub async fn the_same_key_again_is_the_same_task_or_a_conflict(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let keyed = |name: &str, request: &[u8]| NewTask {
        idempotency: Some(Idempotency { key: "k-1".to_owned(), request: Sha256::of(request) }),
        ..of_tenant(name)
    };
    let first = world.submit(keyed("a", b"one")).await;
    let again = world.store.submit(keyed("a", b"one")).await.expect("it is taken in");
    assert_eq!(again, Submitted::Before(first.clone()));
    match world.store.submit(keyed("a", b"two")).await {
        Err(Error::Conflict { task }) => assert_eq!(task, first.id),
        other => panic!("another request under the same key: {other:?}"),
    }
    let known = async |name: &str, key: &str| {
        world.store.submitted(&tenant(name), key).await.expect("it is looked up")
    };
    assert_eq!(known("a", "k-1").await, Some((Sha256::of(b"one"), first.id)));
    assert_eq!((known("a", "k-2").await, known("b", "k-1").await), (None, None));
    let elsewhere = world.store.submit(keyed("b", b"two")).await.expect("it is taken in");
    assert!(matches!(elsewhere, Submitted::New(_)), "keys of tenants are apart");
    assert_eq!(world.store.counts(None).await.expect("it counts").pending, 2);
}

/// A submission with the id of one task and the key of another is the key's: that is what its client chose.
pub async fn of_a_known_id_and_a_known_key_the_key_counts(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let keyed = |key: &str, request: &[u8]| {
        let idempotency = Idempotency { key: key.to_owned(), request: Sha256::of(request) };
        NewTask { idempotency: Some(idempotency), ..requiring(&label("rare")) }
    };
    let first = world.submit(keyed("first", b"1")).await;
    let second = world.submit(keyed("second", b"2")).await;
    let again = world.store.submit(NewTask { id: first.id, ..keyed("second", b"2") }).await;
    assert_eq!(again.expect("it was taken in before"), Submitted::Before(second.clone()));
    let conflict = world.store.submit(NewTask { id: first.id, ..keyed("second", b"3") }).await;
    assert!(matches!(conflict, Err(Error::Conflict { task }) if task == second.id), "{conflict:?}");
}

/// Of many equal submissions at the same time one makes the task.
pub async fn of_equal_submissions_at_once_one_is_new(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let keyed = || NewTask {
        idempotency: Some(Idempotency { key: "k".to_owned(), request: Sha256::of(b"r") }),
        ..new_task()
    };
    let by_key = join_all((0..24).map(|_| world.store.submit(keyed()))).await;
    let one = new_task();
    let by_id = join_all((0..24).map(|_| world.store.submit(one.clone()))).await;
    for answers in [by_key, by_id] {
        let answers: Vec<Submitted> = answers.into_iter().map(|a| a.expect("it is taken in")).collect();
        assert_eq!(answers.iter().filter(|a| matches!(a, Submitted::New(_))).count(), 1);
        assert!(answers.iter().all(|a| a.task().id == answers[0].task().id));
    }
    assert_eq!(world.store.counts(None).await.expect("it counts").pending, 2);
}

/// However many are asked for, a page is not longer than memory has room for, and the next one goes on from there.
pub async fn a_page_ends_where_it_has_much_text(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut made = Vec::new();
    // In MiB: beyond the bound alone, just within it together, and small ones.
    for size in [9, 9, 3, 4, 0, 5, 0] {
        let metadata = Some(json!({"text": "x".repeat(size << 20)}).into());
        made.push(world.submit(NewTask { metadata, ..of_tenant("a") }).await.id);
    }
    made.reverse();
    for tenant in [None, Some(tenant("a"))] {
        let mut query = ListQuery { tenant, limit: 5, ..ListQuery::default() };
        let (mut pages, mut seen) = (Vec::new(), Vec::new());
        loop {
            let page = world.store.list(&query).await.expect("it lists");
            query.before = page.tasks.last().map(|task| task.id);
            pages.push(page.tasks.len());
            seen.extend(page.tasks.into_iter().map(|task| task.id));
            if !page.more {
                break;
            }
        }
        assert_eq!((pages, &seen), (vec![3, 2, 1, 1], &made));
    }
}

/// Pages are newest first, complete, without overlap, and filtered by every field together.
pub async fn lists_are_newest_first_in_pages(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut made = Vec::new();
    for n in 0..12_u32 {
        let workflow_id = n.is_multiple_of(3).then(|| "portrait".to_owned());
        let new = NewTask { workflow_id, ..of_tenant(if n % 2 == 0 { "a" } else { "b" }) };
        made.push(world.submit(new).await);
    }
    for n in [0, 4, 5] {
        made[n] = world.store.cancel(made[n].id).await.expect("it waits");
    }
    let check = async |query: ListQuery| {
        let fits = |task: &&remuda_core::Task| {
            query.tenant.as_ref().is_none_or(|wanted| *wanted == task.tenant)
                && query.status.is_none_or(|wanted| wanted == task.status)
                && query.workflow_id.as_ref().is_none_or(|wanted| Some(wanted) == task.workflow_id.as_ref())
        };
        let expected: Vec<_> = made.iter().rev().filter(fits).cloned().collect();
        let mut query = query;
        let mut seen = Vec::new();
        loop {
            let page = world.store.list(&query).await.expect("it lists");
            assert!(page.tasks.len() <= query.limit as usize);
            query.before = page.tasks.last().map(|task| task.id);
            seen.extend(page.tasks);
            assert_eq!(page.more, seen.len() < expected.len(), "{query:?}");
            if !page.more {
                break;
            }
        }
        assert_eq!(seen, expected, "{query:?}");
    };
    for limit in [1, 4, 12, 100] {
        for whose in [None, Some(tenant("a")), Some(tenant("nobody"))] {
            for status in [None, Some(Status::Cancelled), Some(Status::Running)] {
                for workflow_id in [None, Some("portrait".to_owned())] {
                    let tenant = whose.clone();
                    check(ListQuery { tenant, status, workflow_id, before: None, limit }).await;
                }
            }
        }
    }
}

/// A queued task's position is the number of tasks that would be claimed before it.
pub async fn a_position_is_what_would_run_before(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut ids = Vec::new();
    for priority in [5, 5, 5, 9] {
        ids.push(world.submit(of_priority(priority)).await.id);
    }
    let later = NewTask { not_before: Some(world.now() + SECOND), ..new_task() };
    let scheduled = world.submit(later).await;
    let hand = world.hand("w").await;
    let position = async |id| {
        let position = world.store.position(id).await.expect("it answers");
        position.map(|position| {
            assert!(position.exact, "so few are counted");
            position.ahead
        })
    };
    for (id, ahead) in ids.iter().zip([1, 2, 3, 0]) {
        assert_eq!(position(*id).await, Some(ahead));
    }
    assert_eq!(position(scheduled.id).await, None, "it is not in the queue yet");
    assert_eq!(hand.get().await.task.id, ids[3]);
    assert_eq!(position(ids[3]).await, None, "it runs");
    assert_eq!(position(ids[0]).await, Some(0));
    world.store.cancel(ids[0]).await.expect("it waits");
    assert_eq!(position(ids[0]).await, None, "it ended");
    assert_eq!(position(ids[2]).await, Some(1));
}

/// Beyond a thousand a position is an estimate, and says so.
pub async fn a_far_position_is_estimated(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    for _ in 0..11 {
        let made = join_all((0..100).map(|_| world.store.submit(new_task()))).await;
        made.into_iter().for_each(|answer| drop(answer.expect("it is taken in")));
    }
    let last = world.submit(new_task()).await;
    let position = world.store.position(last.id).await.expect("it answers").expect("it is queued");
    assert!(!position.exact && position.ahead >= 1000, "{position:?}");
}

/// Counters agree with what lists show, for each tenant and for all, through every state.
pub async fn counts_are_what_there_is(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let count = async |whose: Option<&str>| {
        let whose = whose.map(tenant);
        let mut seen = Counts::default();
        let query = ListQuery { tenant: whose.clone(), limit: 100, ..ListQuery::default() };
        for task in world.store.list(&query).await.expect("it lists").tasks {
            *match task.status {
                Status::Pending => &mut seen.pending,
                Status::Running => &mut seen.running,
                Status::Completed => &mut seen.completed,
                Status::Failed => &mut seen.failed,
                Status::Cancelled => &mut seen.cancelled,
            } += 1;
        }
        assert_eq!(world.store.counts(whose.as_ref()).await.expect("it counts"), seen);
        seen
    };
    let endings = [completed(), failed(FailureClass::Validation), failed(FailureClass::Crash)];
    let mut ended = Vec::new();
    for name in ["a", "b"] {
        for ending in &endings {
            world.submit(of_tenant(name)).await;
            let claim = hand.get().await;
            count(Some(name)).await;
            world
                .store
                .end(claim.lease.owner, claim.lease.reference(), ending.clone())
                .await
                .expect("it ends");
            // The one that was lost waits again, away from this worker.
            count(Some(name)).await;
            ended.push(claim.task.id);
        }
        let waiting = world.submit(of_tenant(name)).await;
        world.store.cancel(waiting.id).await.expect("it waits");
        let returned = world.submit(of_tenant(name)).await;
        let claim = hand.get().await;
        assert_eq!(claim.task.id, returned.id);
        world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
        world.store.cancel(returned.id).await.expect("it waits");
    }
    let one = Counts { pending: 1, running: 0, completed: 1, failed: 1, cancelled: 2 };
    assert_eq!((count(Some("a")).await, count(Some("b")).await), (one, one));
    let forgotten = world.store.forget(&ended).await.expect("it forgets");
    assert_eq!(forgotten, 4, "those that wait are not forgotten");
    let rest = Counts { pending: 2, cancelled: 4, ..Counts::default() };
    assert_eq!((count(None).await, count(Some("nobody")).await), (rest, Counts::default()));
}

/// Events are numbered by the task's version, without gaps, and can be read on from any of them.
pub async fn events_have_no_gaps_and_can_be_resumed(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let task = world.submit(new_task()).await;
    for _ in 0..3 {
        world.clock.advance(SECOND);
        let claim = hand.get().await;
        world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    }
    let claim = hand.get().await;
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let all = world.events(task.id).await;
    let (kinds, numbers): (Vec<_>, Vec<_>) = all.iter().map(|event| (event.kind, event.n)).unzip();
    use EventKind::{Claimed, Completed, Returned, Submitted};
    let expected = [Submitted, Claimed, Returned, Claimed, Returned, Claimed, Returned, Claimed, Completed];
    assert_eq!(kinds, expected);
    assert!(numbers.iter().copied().eq(1..=9));
    assert_eq!(world.task(task.id).await.version, 9);
    assert_eq!(all[1].data.read()["worker"], "w");
    assert_eq!(all[1].at.duration_since(all[0].at).as_secs(), 1);
    let rest = world.store.events(task.id, 4, 3).await.expect("it answers");
    assert_eq!(rest, all[4..7]);
    assert!(world.store.events(task.id, 9, 10).await.expect("it answers").is_empty());
}

/// Who listens hears of every task that changed, up to its last version, after it can be read.
pub async fn every_change_is_announced(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut changes = world.store.changes();
    let mut heard = async |task: TaskId, version: i64| loop {
        let next = tokio::time::timeout(SOON, changes.recv()).await;
        let change = next.expect("a change is announced").expect("the store is open");
        let now = world.task(change.task).await;
        assert!(now.version >= change.version, "announced before it was there");
        match &change.ended {
            Some(ended) => assert_eq!(**ended, now, "as it can be read"),
            None => {
                assert!(now.version > change.version || !now.status.is_terminal(), "its end is told whole")
            }
        }
        if change.task == task && change.version == version {
            break;
        }
    };
    let task = world.submit(new_task()).await;
    heard(task.id, 1).await;
    let hand = world.hand("w").await;
    let claim = hand.get().await;
    heard(task.id, 2).await;
    world.store.cancel(task.id).await.expect("it runs");
    heard(task.id, 3).await;
    world
        .store
        .end(claim.lease.owner, claim.lease.reference(), remuda_core::transition::Ending::Cancelled)
        .await
        .expect("ends");
    heard(task.id, 4).await;
    let waiting = world.submit(NewTask { deadline: Some(world.now() + SECOND), ..new_task() }).await;
    world.clock.advance(2 * SECOND);
    world.store.tidy().await.expect("it tidies");
    heard(waiting.id, 2).await;
    let good = world.submit(new_task()).await;
    let claim = hand.get().await;
    world
        .store
        .end(claim.lease.owner, claim.lease.reference(), super::world::completed())
        .await
        .expect("it ends");
    heard(good.id, 3).await;
}

/// Many tasks are seen at once as each is alone, but for what may be long.
pub async fn many_tasks_are_seen_in_one_look(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let metadata = remuda_core::JsonText::of(&json!({"note": "x".repeat(1000)}));
    let mut made = vec![world.submit(NewTask { metadata: Some(metadata), ..of_tenant("a") }).await.id];
    made.extend(join_all((0..20).map(|_| world.submit(new_task()))).await.iter().map(|task| task.id));
    world.store.end(hand.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let unknown = TaskId::new();
    let asked = [&[unknown, claim.task.id], &made[..]].concat();
    let mut seen = world.store.briefly(&asked).await.expect("it answers");
    seen.sort_by_key(|task| asked.iter().position(|id| *id == task.id));
    let mut alone = Vec::new();
    for id in &asked[1..] {
        let task = world.task(*id).await;
        alone.push(remuda_core::Task { error: None, result: None, metadata: None, ..task });
    }
    assert_eq!(seen, alone);
    assert!(world.store.briefly(&[]).await.expect("it answers").is_empty());
}

/// What a shape of graph cost before is what it is expected to cost.
pub async fn costs_are_learnt_by_shape(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let shaped = |shape| NewTask { shape, ..new_task() };
    world.submit(shaped(7)).await;
    let claim = hand.get().await;
    let remuda_core::transition::Ending::Completed { result, .. } = completed() else { panic!("it is that") };
    let ending = remuda_core::transition::Ending::Completed { result, gpu_ms: Some(4_321) };
    world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
    let attempts = world.store.attempts(claim.task.id, 1000).await.expect("it answers");
    assert_eq!(attempts[0].gpu_ms, Some(4_321));
    // A store may learn a moment after the commit that taught it.
    eventually("the next of its shape is expected to cost as much", async || {
        world.submit(shaped(7)).await.cost_ms == 4_321
    })
    .await;
    assert_eq!(world.submit(shaped(8)).await.cost_ms, UNKNOWN_COST_MS);
}

/// Many callers at once, and nothing is lost or mixed up.
pub async fn a_hundred_submissions_at_once_are_a_hundred_tasks(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let names = ["a", "b", "c"];
    let news: Vec<NewTask> = (0..100).map(|n| of_tenant(names[n % 3])).collect();
    let made = join_all(news.iter().map(|new| world.store.submit(new.clone()))).await;
    for (new, answer) in news.iter().zip(made) {
        let Ok(Submitted::New(task)) = answer else { panic!("it is new: {answer:?}") };
        assert_eq!((task.id, &task.tenant), (new.id, &new.tenant));
        assert_eq!(world.task(new.id).await, task);
    }
    assert_eq!(world.store.counts(None).await.expect("it counts").pending, 100);
    let query = ListQuery { limit: 1000, ..ListQuery::default() };
    assert_eq!(world.store.list(&query).await.expect("it lists").tasks.len(), 100);
    tokio::time::timeout(SOON, world.store.ping()).await.expect("in time").expect("pong");
}
