//! How much of the store one tenant may have.

use remuda_core::quota::Quota;
use remuda_core::transition::Ending;
use remuda_core::{FailureClass, Idempotency, NewTask, OutputFile, PromptExtra, Sha256, TaskResult};
use serde_json::value::RawValue;

use super::Fixture;
use super::world::{SECOND, World, completed, failed, label, new_task, requiring, tenant};
use crate::{Asset, Error, Result, Submitted};

/// Who was refused, by the name of the limit.
fn refused(answer: Result<Submitted>) -> &'static str {
    match answer {
        Err(Error::OverLimit { limit, .. }) => limit,
        other => panic!("{other:?}"),
    }
}

fn with_key(key: &str) -> NewTask {
    let idempotency = Idempotency { key: key.to_owned(), request: Sha256::of(key.as_bytes()) };
    NewTask { idempotency: Some(idempotency), ..new_task() }
}

/// Of one tenant only this many tasks wait, for whatever reason. What was taken in before is told, and nothing that was taken in is
/// lost.
pub async fn a_tenant_has_so_many_waiting_tasks(fixture: impl Fixture) {
    let quota = Quota { waiting: 3, bytes: 0 };
    let mut world = World::with(fixture, |options| options.quota = quota).await;
    let first = world.submit(with_key("first")).await;
    let later = NewTask { not_before: Some(world.now() + 3600 * SECOND), ..new_task() };
    let later = world.submit(later).await;
    let third = world.submit(requiring(&label("rare"))).await;
    for _ in 0..2 {
        assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
        let again = world.store.submit(with_key("first")).await.expect("it was taken in before");
        assert_eq!(again, Submitted::Before(first.clone()));
        let again = world.store.submit(NewTask { id: later.id, ..new_task() }).await;
        assert_eq!(again.expect("it was taken in before"), Submitted::Before(later.clone()));
        let other = NewTask { tenant: tenant("other"), ..new_task() };
        let other = world.submit(other).await;
        world.store.cancel(other.id).await.expect("it is cancelled");
        world.restart().await;
    }
    // What runs does not wait, and comes back when it is tried again.
    let hand = world.hand("w").await;
    let claim = hand.get().await;
    assert_eq!(claim.task.id, first.id);
    let fourth = world.submit(new_task()).await;
    assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
    let (owner, lease) = (claim.lease.owner, claim.lease.reference());
    world.store.end(owner, lease, failed(FailureClass::Execution)).await.expect("it ends");
    let counts = world.store.counts(None).await.expect("it counts");
    assert_eq!((counts.pending, counts.failed), (4, 0), "one more than may be submitted");
    for done in [first.id, third.id] {
        assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
        world.store.cancel(done).await.expect("it is cancelled");
    }
    world.submit(new_task()).await;
    assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
    // A task whose deadline passes makes room as well.
    world.store.cancel(fourth.id).await.expect("it is cancelled");
    let deadline = NewTask { deadline: Some(world.now() + SECOND), ..requiring(&label("rare")) };
    world.submit(deadline).await;
    assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
    world.clock.advance(2 * SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").expired, 1);
    world.submit(new_task()).await;
}

/// A graph of this many bytes.
fn of_size(bytes: usize) -> NewTask {
    let text = format!(r#"{{"1":{{"{}":1}}}}"#, "x".repeat(bytes - r#"{"1":{"":1}}"#.len()));
    assert_eq!(text.len(), bytes);
    NewTask::new(RawValue::from_string(text).expect("it is JSON"))
}

fn asset(content: &str, filename: &str, size: i64) -> Asset {
    Asset {
        tenant: new_task().tenant,
        sha256: Sha256::of(content.as_bytes()),
        key: format!("assets/{content}"),
        filename: filename.to_owned(),
        mime: "image/png".to_owned(),
        size,
        created_at: remuda_core::Timestamp::UNIX_EPOCH,
    }
}

/// A tenant's tasks and assets take only this many bytes. They are counted from the submission to the day on which a task is
/// forgotten.
pub async fn a_tenant_stores_so_many_bytes(fixture: impl Fixture) {
    // Long texts are kept in another way than short ones, and count as much.
    const LONG: usize = 600_000;
    const MOST: u64 = 1_000_000;
    let quota = Quota { waiting: 0, bytes: MOST };
    let mut world = World::with(fixture, |options| options.quota = quota).await;
    let whose = new_task().tenant;
    let room = async |world: &World| world.store.room(&whose).await.expect("it answers");
    assert_eq!(room(&world).await, MOST);

    let mut new = of_size(LONG);
    let extra_data = RawValue::from_string(r#"{"a":"é"}"#.to_owned()).expect("it is JSON");
    new.input.extra = Some(Box::new(PromptExtra { extra_data: Some(extra_data), ..PromptExtra::default() }));
    new.metadata = Some(serde_json::json!([1]).into());
    let long = world.submit(new).await;
    let mut left = MOST - LONG as u64 - 10 - 3;
    assert_eq!(room(&world).await, left);
    let all = usize::try_from(left).expect("it is short");
    assert_eq!(refused(world.store.submit(of_size(all + 1)).await), "tasks.max_stored");
    let again = NewTask { id: long.id, ..of_size(all + 1) };
    assert_eq!(world.submit(again).await.id, long.id);
    world.submit(NewTask { tenant: tenant("other"), ..of_size(all + 1) }).await;

    // What a task leaves counts, too, and is never refused.
    let hand = world.hand("w").await;
    let claim = hand.get().await;
    assert_eq!(claim.task.id, long.id);
    let file = |n, size| OutputFile {
        n,
        key: format!("outputs/{n}"),
        filename: format!("{n}.png"),
        subfolder: String::new(),
        node_id: "1".to_owned(),
        output: "images".to_owned(),
        file_type: "output".to_owned(),
        mime: "image/png".to_owned(),
        size,
        sha256: Sha256::of(b"x"),
    };
    let outputs = serde_json::json!({"long": "y".repeat(300_000)});
    let length = outputs.to_string().len() as u64;
    let result = TaskResult {
        outputs: outputs.into(),
        files: vec![file(0, 5_000), file(1, 600)],
        ..TaskResult::default()
    };
    let ending = Ending::Completed { result, gpu_ms: None };
    world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
    left -= length + 5_600;
    assert_eq!(room(&world).await, left);

    // An asset counts once, under however many names.
    let add = async |world: &World, asset| match world.store.add_asset(asset).await {
        Ok(()) => None,
        Err(Error::OverLimit { limit, .. }) => Some(limit),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(add(&world, asset("a", "1.png", 50_000)).await, None);
    left -= 50_000;
    let rest = i64::try_from(left).expect("it is short");
    assert_eq!(add(&world, asset("b", "2.png", rest + 1)).await, Some("tasks.max_stored"));
    assert_eq!(world.store.asset_named(&whose, "2.png").await.expect("it answers"), None);
    assert_eq!(add(&world, asset("b", "2.png", rest)).await, None);
    for name in ["1.png", "another.png"] {
        assert_eq!(add(&world, asset("a", name, 50_000)).await, None, "{name} takes no further room");
    }
    for _ in 0..2 {
        assert_eq!(room(&world).await, 0);
        assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_stored");
        world.restart().await;
    }

    // What is forgotten makes room.
    assert_eq!(world.store.forget(&[long.id]).await.expect("it is forgotten"), 1);
    left = LONG as u64 + 10 + 3 + length + 5_600;
    assert_eq!(room(&world).await, left);
    let short = world.submit(of_size(1_000)).await;
    world.store.cancel(short.id).await.expect("it is cancelled");
    assert_eq!(room(&world).await, left - 1_000, "it is still kept");
    world.store.forget(&[short.id, long.id]).await.expect("it is forgotten");
    assert_eq!(room(&world).await, left);
}

/// Of many that come at once no more are taken in than may wait, but for what is under way at the same moment.
pub async fn many_at_once_do_not_get_by_a_quota(fixture: impl Fixture) {
    let quota = Quota { waiting: 10, bytes: 0 };
    let world = World::with(fixture, |options| options.quota = quota).await;
    let all = (0..200).map(|_| world.store.submit(new_task()));
    let done = futures_util::future::join_all(all).await;
    let taken = done.iter().filter(|done| done.is_ok()).count();
    // Where several transactions are under way, there are two.
    let most = if world.is_shared() { 20 } else { 10 };
    assert!((10..=most).contains(&taken), "{taken} were taken in");
    assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
    let counts = world.store.counts(None).await.expect("it counts");
    assert_eq!(counts.pending, i64::try_from(taken).expect("it is small"));
    let hand = world.hand("w").await;
    for _ in 0..=taken - 10 {
        let claim = hand.get().await;
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    }
    world.submit(new_task()).await;
    assert_eq!(refused(world.store.submit(new_task()).await), "tasks.max_waiting");
}

/// What a submission is refused for does not depend on the store. What was taken in before comes first; then the quota, then the
/// lanes.
pub async fn of_several_reasons_the_first_is_told(fixture: impl Fixture) {
    let quota = Quota { waiting: 2, bytes: 10_000 };
    let world = World::with(fixture, |options| (options.quota, options.max_lanes) = (quota, 1)).await;
    let rare = |new: NewTask| {
        let mut new = new;
        new.input.requires = label("another");
        new
    };
    let first =
        world.submit(NewTask { idempotency: with_key("k").idempotency, ..requiring(&label("one")) }).await;
    // One reason after the other goes away.
    assert_eq!(refused(world.store.submit(rare(of_size(20_000))).await), "tasks.max_stored");
    assert_eq!(refused(world.store.submit(rare(new_task())).await), "tasks.max_lanes");
    world.submit(new_task()).await;
    assert_eq!(refused(world.store.submit(rare(of_size(20_000))).await), "tasks.max_waiting");
    assert_eq!(refused(world.store.submit(rare(new_task())).await), "tasks.max_waiting");
    // Before all of them.
    let again = rare(NewTask { idempotency: with_key("k").idempotency, ..of_size(20_000) });
    assert_eq!(world.submit(again).await.id, first.id);
    assert_eq!(world.submit(rare(NewTask { id: first.id, ..of_size(20_000) })).await.id, first.id);
    let request = Sha256::of(b"another request");
    let other = Idempotency { key: "k".to_owned(), request };
    let foreign = NewTask { tenant: tenant("other"), ..new_task() };
    let foreign = world.submit(foreign).await;
    let taken = [
        (NewTask { idempotency: Some(other), ..of_size(20_000) }, first.id),
        (NewTask { id: foreign.id, ..of_size(20_000) }, foreign.id),
    ];
    for (new, in_the_way) in taken {
        let answer = world.store.submit(rare(new)).await;
        assert!(matches!(answer, Err(Error::Conflict { task }) if task == in_the_way), "{answer:?}");
    }
}
