//! Tasks that bring processes down: counted, and set aside.

use remuda_core::{
    AttemptOutcome, EventKind, FailureClass, Fence, Harm, HarmKind, Harmed, Status, TaskId, Timestamp,
};

use super::Fixture;
use super::world::{World, completed, new_task, owner};
use crate::{Counts, Error};

fn harm(kind: HarmKind, second: i64) -> Harm {
    let at = Timestamp::from_second(1_700_000_000 + second).expect("a moment");
    Harm { kind, work: "editing a graph".to_owned(), process: "a process".to_owned(), at }
}

const ONCE: Harmed = Harmed { count: 1, set_aside: false };
const ENOUGH: Harmed = Harmed { count: 2, set_aside: true };

/// A task that brought its process down twice fails, whoever holds it; its lease goes, and it is never claimed again.
pub async fn a_task_that_harmed_twice_is_set_aside(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (id, store) = (claim.task.id, &world.store);
    assert_eq!(store.note_harm(id, None, harm(HarmKind::Death, 1)).await.expect("it counts"), ONCE);
    assert_eq!(world.task(id).await.status, Status::Running, "once can be chance");
    assert_eq!(store.note_harm(id, None, harm(HarmKind::Stall, 2)).await.expect("it counts"), ENOUGH);
    let task = world.task(id).await;
    assert_eq!(task.status, Status::Failed);
    let error = task.error.clone().expect("it says why");
    assert_eq!(error.class, FailureClass::Harmful);
    assert_eq!(error.details.expect("what is known").read()["harm"][1]["kind"], "stall");
    assert_eq!(world.lease(id).await, None);
    let attempts = store.attempts(id, 1000).await.expect("it answers");
    assert_eq!((attempts.len(), attempts[0].outcome), (1, Some(AttemptOutcome::Failed)));
    assert_eq!(attempts[0].failure.as_ref().map(|failure| failure.class), Some(FailureClass::Harmful));
    assert_eq!(world.kinds(id).await.last(), Some(&EventKind::Failed));
    assert_eq!(store.counts(None).await.expect("it counts"), Counts { failed: 1, ..Counts::default() });
    // Its holder finds out, and changes nothing.
    assert!(matches!(
        store.end(claim.lease.owner, claim.lease.reference(), completed()).await,
        Err(Error::Fenced)
    ));
    assert_eq!(world.task(id).await, task);
    // The worker goes on with something else.
    let next = world.submit(new_task()).await;
    assert_eq!(hand.get().await.task.id, next.id);
}

/// An incident that is told again, because nobody knows whether it was heard, is one incident.
pub async fn the_same_harm_is_counted_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (_, claim) = world.running("w").await;
    for _ in 0..3 {
        let harmed = world.store.note_harm(claim.task.id, None, harm(HarmKind::Death, 1)).await;
        assert_eq!(harmed.expect("it counts"), ONCE);
    }
    assert_eq!(world.task(claim.task.id).await, claim.task);
}

/// A task that waits is set aside as well: its process died, and its lease was lost before anybody came back to tell.
pub async fn a_waiting_task_is_set_aside(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let task = world.submit(new_task()).await;
    let store = &world.store;
    store.note_harm(task.id, None, harm(HarmKind::Death, 1)).await.expect("it counts");
    assert_eq!(store.note_harm(task.id, None, harm(HarmKind::Death, 2)).await.expect("it counts"), ENOUGH);
    let task = world.task(task.id).await;
    assert_eq!(
        (task.status, task.error.map(|error| error.class)),
        (Status::Failed, Some(FailureClass::Harmful))
    );
    let next = world.submit(new_task()).await;
    let hand = world.hand("w").await;
    assert_eq!(hand.get().await.task.id, next.id);
}

/// What ended stays as it ended, and what is not there counts nothing.
pub async fn an_ended_task_stays_as_it_is(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (_, claim) = world.running("w").await;
    let (id, store) = (claim.task.id, &world.store);
    store.note_harm(id, None, harm(HarmKind::Death, 1)).await.expect("it counts");
    store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    let ended = world.task(id).await;
    let harmed = store.note_harm(id, None, harm(HarmKind::Death, 2)).await.expect("it counts");
    assert_eq!(harmed, Harmed { count: 2, set_aside: false });
    assert_eq!(world.task(id).await, ended);
    let nobody = store.note_harm(TaskId::new(), None, harm(HarmKind::Death, 1)).await.expect("it answers");
    assert_eq!(nobody, Harmed { count: 0, set_aside: false });
    // With the task goes what is known of it.
    assert_eq!(store.forget(&[id]).await.expect("it forgets"), 1);
    let again = store.note_harm(id, None, harm(HarmKind::Death, 3)).await.expect("it answers");
    assert_eq!(again, Harmed { count: 0, set_aside: false });
}

/// Who says that it holds the task must hold it.
pub async fn harm_told_with_a_lease_needs_that_lease(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (hand, claim) = world.running("w").await;
    let (other, _) = world.running("x").await;
    let (id, fence, store) = (claim.task.id, claim.lease.fence, &world.store);
    let (mine, unknown) = (hand.owner, owner());
    for (task, who, wrong) in [
        (id, mine, fence.next()),
        (id, mine, Fence(0)),
        (TaskId::new(), mine, fence),
        (id, other.owner, fence),
        (id, unknown, fence),
    ] {
        let refused = store.note_harm(task, Some((who, wrong)), harm(HarmKind::Death, 1)).await;
        assert!(matches!(refused, Err(Error::Fenced)), "{refused:?}");
    }
    let waits = world.submit(new_task()).await;
    let refused = store.note_harm(waits.id, Some((mine, waits.fence)), harm(HarmKind::Death, 1)).await;
    assert!(matches!(refused, Err(Error::Fenced)), "{refused:?}");
    let holder = Some((mine, fence));
    assert_eq!(store.note_harm(id, holder, harm(HarmKind::Death, 1)).await.expect("it is heard"), ONCE);
    assert_eq!(store.note_harm(id, holder, harm(HarmKind::Death, 2)).await.expect("it is heard"), ENOUGH);
}

/// A cancellation that came before wins.
pub async fn a_cancelled_task_is_not_set_aside(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (_, claim) = world.running("w").await;
    let (id, store) = (claim.task.id, &world.store);
    store.cancel(id).await.expect("it is marked");
    store.note_harm(id, None, harm(HarmKind::Death, 1)).await.expect("it counts");
    store.note_harm(id, None, harm(HarmKind::Death, 2)).await.expect("it counts");
    let task = world.task(id).await;
    assert_eq!((task.status, task.error), (Status::Cancelled, None));
    assert_eq!(world.lease(id).await, None);
}
