//! What is to be done outside when a task has ended: due with its end, done by one at a time, and never lost.

use std::time::Duration;

use remuda_core::{
    Destination, Errand, ErrandRecord, ErrandRef, ErrandState, FailureClass, NewTask, TakenErrand, Task,
    TaskId, Tenant,
};

use super::Fixture;
use super::world::{Hand, SECOND, World, completed, failed, new_task, tenant};
use crate::Submitted;

const HOLD: Duration = Duration::from_secs(30);

fn deliver(sink: &str) -> Errand {
    Errand::Deliver(Destination { sink: sink.to_owned(), folder: Some("ä/b".to_owned()) })
}

fn with(sinks: &[&str]) -> NewTask {
    NewTask { errands: sinks.iter().map(|sink| deliver(sink)).collect(), ..new_task() }
}

async fn take(world: &World) -> Vec<TakenErrand> {
    take_but(world, 100, &[]).await
}

async fn take_but(world: &World, limit: u32, busy: &[Tenant]) -> Vec<TakenErrand> {
    world.store.take_errands(limit, busy, HOLD).await.expect("it answers")
}

async fn errands(world: &World, task: TaskId) -> Vec<ErrandRecord> {
    world.store.errands(task).await.expect("it answers")
}

async fn states(world: &World, task: TaskId) -> Vec<ErrandState> {
    errands(world, task).await.into_iter().map(|errand| errand.state).collect()
}

/// The next task ends well.
async fn complete(hand: &Hand) -> TaskId {
    let claim = hand.get().await;
    hand.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    claim.task.id
}

/// A task of a tenant with one errand, ended well.
async fn ended(world: &World, hand: &Hand, whose: &str) -> Task {
    let task = world.submit(NewTask { tenant: tenant(whose), ..with(&["s"]) }).await;
    assert_eq!(complete(hand).await, task.id);
    world.task(task.id).await
}

/// The errands of a task fall due in the commit that ends it well, and in no other way; tasks that bring none have none.
pub async fn errands_fall_due_with_the_end_of_their_task(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let new = with(&["first", "second"]);
    let task = world.submit(new.clone()).await;
    assert!(matches!(world.store.submit(new).await.expect("it is known"), Submitted::Before(_)));
    assert_eq!(states(&world, task.id).await, [ErrandState::Idle; 2], "once, however often it is submitted");
    // Another attempt is no end.
    let claim = hand.get().await;
    let (owner, lease) = (claim.lease.owner, claim.lease.reference());
    world.store.end(owner, lease, failed(FailureClass::Execution)).await.expect("it is tried again");
    assert!(take(&world).await.is_empty());
    world.clock.advance(3600 * SECOND);
    world.store.tidy().await.expect("it tidies");
    assert_eq!(complete(&hand).await, task.id);
    assert_eq!(states(&world, task.id).await, [ErrandState::Due; 2]);
    world.restart().await;
    let since = world.task(task.id).await.finished_at.expect("it has ended");
    let taken = take(&world).await;
    let expected = [(0, "first"), (1, "second")].map(|(n, sink)| TakenErrand {
        at: ErrandRef { task: task.id, n, attempt: 1 },
        tenant: task.tenant.clone(),
        errand: deliver(sink),
        since,
    });
    assert_eq!(taken, expected);

    // Ends of every other kind.
    let hand = world.hand("other").await;
    let plain = world.submit(new_task()).await;
    assert_eq!(complete(&hand).await, plain.id);
    let broken = world.submit(with(&["s"])).await;
    let claim = hand.get().await;
    let (owner, lease) = (claim.lease.owner, claim.lease.reference());
    world.store.end(owner, lease, failed(FailureClass::Validation)).await.expect("it ends");
    let cancelled = world.submit(with(&["s"])).await;
    world.store.cancel(cancelled.id).await.expect("it ends");
    let late = world.submit(NewTask { deadline: Some(world.now() + SECOND), ..with(&["s"]) }).await;
    world.clock.advance(2 * SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").expired, 1);
    assert!(take(&world).await.is_empty());
    for task in [broken, cancelled, late] {
        assert_eq!(states(&world, task.id).await, [ErrandState::Idle]);
    }
    assert!(errands(&world, plain.id).await.is_empty() && errands(&world, TaskId::new()).await.is_empty());
}

/// Who takes an errand has it for a while, and for longer if that is said in time. After that it is somebody else's, and what the
/// one before says changes nothing.
pub async fn an_errand_is_done_by_one_at_a_time(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let task = ended(&world, &hand, "t").await;
    let first = take(&world).await.remove(0).at;
    assert!(take(&world).await.is_empty());
    world.clock.advance(HOLD - SECOND);
    assert!(world.store.hold_errand(first, HOLD).await.expect("it answers"));
    world.clock.advance(HOLD - SECOND);
    assert!(take(&world).await.is_empty(), "it was kept for longer");
    world.clock.advance(2 * SECOND);
    let second = take(&world).await.remove(0).at;
    assert_eq!(second, ErrandRef { attempt: 2, ..first });
    assert!(!world.store.hold_errand(first, HOLD).await.expect("it answers"));
    assert!(!world.store.finish_errand(first).await.expect("it answers"));
    assert!(!world.store.fail_errand(first, "late", None).await.expect("it answers"));
    assert_eq!(states(&world, task.id).await, [ErrandState::Due]);
    assert!(world.store.finish_errand(second).await.expect("it answers"));
    let done = errands(&world, task.id).await.remove(0);
    assert_eq!((done.state, done.attempts, done.due_at), (ErrandState::Done, 2, None));
    assert_eq!((done.over_at, done.error), (Some(world.now()), None));
    world.clock.advance(10 * HOLD);
    assert!(take(&world).await.is_empty());
    assert!(!world.store.fail_errand(second, "after all", Some(SECOND)).await.expect("it answers"));
}

/// What fails comes again when it is said to, with its reason; what is given up never does.
pub async fn a_failed_errand_comes_again(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let task = ended(&world, &hand, "t").await;
    let at = take(&world).await.remove(0).at;
    assert!(world.store.fail_errand(at, "the sink is full", Some(60 * SECOND)).await.expect("it answers"));
    let waits = errands(&world, task.id).await.remove(0);
    assert_eq!((waits.state, waits.attempts), (ErrandState::Due, 1));
    assert_eq!(
        (waits.due_at, waits.error.as_deref()),
        (Some(world.now() + 60 * SECOND), Some("the sink is full"))
    );
    world.clock.advance(59 * SECOND);
    assert!(take(&world).await.is_empty());
    world.clock.advance(SECOND);
    let again = take(&world).await.remove(0);
    assert_eq!((again.at.attempt, Some(again.since)), (2, task.finished_at));
    let why = "no ".repeat(100_000);
    assert!(world.store.fail_errand(again.at, &why, None).await.expect("it answers"));
    world.clock.advance(100 * HOLD);
    world.restart().await;
    assert!(take(&world).await.is_empty());
    let over = errands(&world, task.id).await.remove(0);
    assert_eq!((over.state, over.due_at), (ErrandState::GivenUp, None));
    assert!(over.error.is_some_and(|error| error.starts_with("no no") && error.len() < 10_000));
}

/// The longest due come first, as many as are asked for, and none of tenants that have enough under way.
pub async fn errands_of_busy_tenants_wait(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let mut tasks = Vec::new();
    for whose in ["b", "a", "b", "c", "a"] {
        tasks.push(ended(&world, &hand, whose).await.id);
        world.clock.advance(SECOND);
    }
    let taken = async |limit, busy: &[&str]| {
        let busy: Vec<Tenant> = busy.iter().map(|name| tenant(name)).collect();
        let taken = take_but(&world, limit, &busy).await.into_iter();
        let place = |errand: TakenErrand| tasks.iter().position(|task| *task == errand.at.task);
        taken.filter_map(place).collect::<Vec<usize>>()
    };
    assert_eq!(taken(2, &["b"]).await, [1, 3]);
    assert_eq!(taken(1, &[]).await, [0]);
    assert_eq!(taken(9, &["b", "nobody"]).await, [4]);
    assert!(taken(9, &["b"]).await.is_empty() && taken(0, &[]).await.is_empty());
    assert_eq!(taken(9, &[]).await, [2]);
}

/// Of many who take at the same time each gets others, and together they get all.
pub async fn many_who_take_errands_get_each_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let mut tasks = Vec::new();
    for n in 0..20 {
        tasks.push(ended(&world, &hand, &format!("t{}", n % 3)).await.id);
    }
    let mut taken = Vec::new();
    while taken.len() < tasks.len() {
        let some = futures_util::future::join_all((0..8).map(|_| take_but(&world, 3, &[]))).await.concat();
        // Whoever comes second to all it saw gets nothing, and somebody got that.
        assert!(!some.is_empty());
        taken.extend(some.into_iter().map(|errand| errand.at.task));
    }
    taken.sort_unstable();
    tasks.sort_unstable();
    assert_eq!(taken, tasks);
}

/// With its task an errand is forgotten.
pub async fn errands_go_with_their_tasks(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let (first, second) = (ended(&world, &hand, "t").await, ended(&world, &hand, "t").await);
    assert_eq!(take(&world).await.len(), 2);
    assert_eq!(world.store.forget(&[first.id]).await.expect("it is forgotten"), 1);
    let at = ErrandRef { task: first.id, n: 0, attempt: 1 };
    assert!(!world.store.finish_errand(at).await.expect("it answers"));
    assert!(errands(&world, first.id).await.is_empty());
    assert_eq!(states(&world, second.id).await, [ErrandState::Due]);
}
