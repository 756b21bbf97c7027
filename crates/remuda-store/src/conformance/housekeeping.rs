//! What is left when tasks ended: files to be swept, records to be forgotten.

use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{FailureClass, Idempotency, NewTask, Sha256, Status, TaskId, TaskResult};

use super::Fixture;
use super::world::{SECOND, World, completed, failed, new_task};
use crate::{Counts, ListQuery, Submitted};

async fn unswept(world: &World) -> Vec<TaskId> {
    world.store.unswept(100).await.expect("it lists").into_iter().map(|task| task.id).collect()
}

/// Ended tasks with an earlier, adopted, discarded or stopped attempt are listed until their files are gone; others never.
pub async fn tasks_with_leftovers_are_listed_until_swept(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, plain) = world.running("plain").await;
    world.store.end(plain.lease.owner, plain.lease.reference(), completed()).await.expect("it ends");
    let waiting = world.submit(new_task()).await;
    world.store.cancel(waiting.id).await.expect("it waits");
    assert!(unswept(&world).await.is_empty(), "one attempt, one result: nothing is left over");

    world.clock.advance(SECOND);
    let (_, twice) = world.running("first").await;
    world.store.give_back(twice.lease.owner, twice.lease.reference(), None).await.expect("it goes back");
    let twice = hand.get().await;
    assert!(unswept(&world).await.is_empty(), "it has not ended");
    world
        .store
        .end(twice.lease.owner, twice.lease.reference(), failed(FailureClass::Validation))
        .await
        .expect("it ends");

    world.clock.advance(SECOND);
    let (old, adopted) = world.running("adopted").await;
    let new = world.hand_of("adopted", old.owner).await;
    let lease = new.adopt(&[]).await.remove(0).lease.reference();
    world.store.end(new.owner, lease, completed()).await.expect("it ends");

    world.clock.advance(SECOND);
    let (_, discarded) = world.running("discarded").await;
    world.store.cancel(discarded.task.id).await.expect("it runs");
    let reply = world
        .store
        .end(discarded.lease.owner, discarded.lease.reference(), completed())
        .await
        .expect("it ends");
    assert!(reply.discarded);

    world.clock.advance(SECOND);
    let (_, stopped) = world.running("stopped").await;
    world.store.cancel(stopped.task.id).await.expect("it runs");
    // Its files may have been on their way.
    world
        .store
        .end(stopped.lease.owner, stopped.lease.reference(), Ending::Cancelled)
        .await
        .expect("it ends");

    let all = [twice.task.id, adopted.task.id, discarded.task.id, stopped.task.id];
    assert_eq!(unswept(&world).await, all, "oldest first");
    assert_eq!(world.store.unswept(1).await.expect("it lists").len(), 1);
    assert_eq!(world.store.unswept(1).await.expect("it lists")[0], world.task(all[0]).await);
    world.store.swept(&all[..2]).await.expect("they are gone");
    assert_eq!(unswept(&world).await, all[2..]);
    world.store.swept(&[all[2], all[3], TaskId::new()]).await.expect("they are gone");
    assert!(unswept(&world).await.is_empty());
}

/// Only what ended long ago is outdated, and what is forgotten leaves nothing behind.
pub async fn old_tasks_are_forgotten_whole(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hour = Duration::from_secs(3600);
    let hand = world.hand("w").await;
    let mut ended = Vec::new();
    let endings = [completed(), failed(FailureClass::Validation), Ending::Cancelled];
    for ending in endings {
        let id = world.submit(new_task()).await.id;
        let claim = hand.get().await;
        world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
        ended.push(id);
        world.clock.advance(SECOND);
    }
    let waits = world.submit(NewTask { not_before: Some(world.now() + 9 * hour), ..new_task() }).await;
    let runs = world.submit(new_task()).await;
    assert_eq!(hand.get().await.task.id, runs.id);
    let outdated = async |limit| world.store.outdated(hour, limit).await.expect("it lists");
    assert!(outdated(10).await.is_empty());
    world.clock.advance(hour - SECOND);
    assert_eq!(outdated(10).await, ended[..2], "the last one ended less than an hour ago");
    world.clock.advance(hour);
    assert_eq!(outdated(2).await, ended[..2], "oldest first");
    assert_eq!(outdated(10).await, ended);

    let all = [ended[0], ended[1], waits.id, runs.id, TaskId::new()];
    assert_eq!(world.store.forget(&all).await.expect("it forgets"), 2, "only what ended");
    assert_eq!(world.store.forget(&all).await.expect("it forgets"), 0);
    for id in &ended[..2] {
        assert_eq!(world.store.task(*id).await.expect("it answers"), None);
        assert_eq!(world.store.input(*id).await.expect("it answers"), None);
        assert!(world.events(*id).await.is_empty());
        assert!(world.store.attempts(*id, 1000).await.expect("it answers").is_empty());
    }
    assert_eq!(outdated(10).await, ended[2..]);
    let counts = world.store.counts(None).await.expect("it counts");
    assert_eq!(counts, Counts { pending: 1, running: 1, cancelled: 1, ..Counts::default() });
    let listed = world.store.list(&ListQuery { limit: 10, ..ListQuery::default() }).await.expect("it lists");
    assert_eq!(listed.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [runs.id, waits.id, ended[2]]);
}

/// A forgotten task is swept with the rest and its key names nothing that is not there.
pub async fn a_forgotten_task_leaves_no_key_and_no_leftovers(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let idempotency = Some(Idempotency { key: "k".to_owned(), request: Sha256::of(b"r") });
    let keyed = || NewTask { idempotency: idempotency.clone(), ..new_task() };
    let hand = world.hand("w").await;
    let first = world.submit(keyed()).await;
    for _ in 0..2 {
        let claim = hand.get().await;
        world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    }
    let claim = hand.get().await;
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    assert_eq!(unswept(&world).await, [first.id]);
    assert_eq!(world.store.forget(&[first.id]).await.expect("it forgets"), 1);
    assert!(unswept(&world).await.is_empty());
    let again = world.store.submit(keyed()).await.expect("it is taken in");
    assert!(matches!(&again, Submitted::New(task) if task.status == Status::Pending), "{again:?}");
}

/// However much text they have, all tasks that become due together become due, and all leftovers are listed, a part at a time.
pub async fn housekeeping_takes_much_text_in_parts(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let mut ended = Vec::new();
    for _ in 0..3 {
        let id = world.submit(new_task()).await.id;
        let first = hand.get().await;
        world.store.give_back(first.lease.owner, first.lease.reference(), None).await.expect("it goes back");
        let claim = hand.get().await;
        let outputs = serde_json::json!({ "1": "r".repeat(5 << 20) });
        let result = TaskResult { outputs: outputs.into(), ..TaskResult::default() };
        let ending = Ending::Completed { result, gpu_ms: None };
        world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
        world.clock.advance(SECOND);
        ended.push(id);
    }
    let mut swept = Vec::new();
    for calls in 1.. {
        let some = unswept(&world).await;
        assert!(some.len() < 3, "15 MiB of results at once");
        if some.is_empty() {
            break;
        }
        world.store.swept(&some).await.expect("they are gone");
        swept.extend(some);
        assert!(calls < 10, "{swept:?}");
    }
    assert_eq!(swept, ended);

    let metadata = Some(serde_json::json!({ "text": "m".repeat(60_000) }).into());
    let due = Some(world.now() + SECOND);
    for _ in 0..40 {
        world.submit(NewTask { not_before: due, metadata: metadata.clone(), ..new_task() }).await;
        world.submit(NewTask { deadline: due, metadata: metadata.clone(), ..new_task() }).await;
    }
    world.clock.advance(2 * SECOND);
    let (mut released, mut expired) = (0, 0);
    for _ in 0..20 {
        let tidied = world.store.tidy().await.expect("it tidies");
        released += tidied.released;
        expired += tidied.expired;
        if (released, expired) == (40, 40) {
            return;
        }
        assert!(tidied.next.is_some_and(|next| next <= world.now()), "there is more to do");
    }
    panic!("{released} were released and {expired} expired");
}

/// With nothing to do housekeeping does nothing, and says that nothing is due.
pub async fn tidying_an_empty_store_does_nothing(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    assert_eq!(world.store.tidy().await.expect("it tidies"), crate::Tidied::default());
    assert!(world.store.outdated(Duration::ZERO, 10).await.expect("it lists").is_empty());
    assert!(unswept(&world).await.is_empty());
    assert_eq!(world.store.forget(&[]).await.expect("it forgets"), 0);
    world.store.swept(&[]).await.expect("nothing to sweep");
    assert_eq!(world.store.counts(None).await.expect("it counts"), Counts::default());
}
