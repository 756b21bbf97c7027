//! Lanes: how many there may be, which are looked into, and that they are forgotten.

use std::collections::BTreeSet;

use remuda_core::{NewTask, Requirements, Task};

use super::Fixture;
use super::world::{
    SECOND, SHORT, World, completed, joined, label, new_task, of_priority, requiring, tenant,
};
use crate::Error;

/// Labels that a worker of these tests has all of.
fn labels(count: usize) -> Requirements {
    let labels = (0..count).map(|n| format!("label-{n}")).collect();
    Requirements { labels, ..Requirements::default() }
}

fn labelled(n: usize) -> Requirements {
    label(&format!("label-{n}"))
}

/// One task in each of this many lanes.
async fn fill(world: &World, count: usize) -> Vec<Task> {
    let mut tasks = Vec::with_capacity(count);
    for n in 0..count {
        let priority = of_priority([5, 1, 9, 5, 3][n % 5]);
        let new = NewTask { priority: priority.priority, ..requiring(&labelled(n)) };
        tasks.push(world.submit(new).await);
    }
    tasks
}

async fn knows(world: &World, requires: &Requirements) -> bool {
    let lanes = world.store.lanes().await.expect("it lists");
    lanes.iter().any(|lane| lane.requires == *requires)
}

/// With the end of its last task a lane is forgotten, and with the next task it is there again.
pub async fn a_forgotten_lane_comes_back(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let rare = label("rare");
    for round in 0..3 {
        let hand = world.hand(&format!("able-{round}")).await.able(&rare);
        let task = world.submit(requiring(&rare)).await;
        let second = world.submit(requiring(&rare)).await;
        assert!(knows(&world, &rare).await);
        let claim = hand.get().await;
        assert_eq!(claim.task.id, task.id);
        assert_eq!(claim.input.requires, rare);
        world.store.cancel(second.id).await.expect("it is cancelled");
        assert!(knows(&world, &rare).await, "one of its tasks runs");
        if round == 1 {
            world.restart().await;
            assert!(knows(&world, &rare).await, "it still runs");
        }
        let owner = claim.lease.owner;
        world.store.end(owner, claim.lease.reference(), completed()).await.expect("it ends");
        assert!(!knows(&world, &rare).await, "nobody needs it any more");
    }
    // A worker that waits meanwhile is reached.
    let hand = world.hand("waits").await.able(&rare);
    let waiting = hand.park(false);
    let task = world.submit(requiring(&rare)).await;
    assert_eq!(joined("a claim", waiting).await.expect("it is served").task.id, task.id);
    // One that is cancelled while it is scheduled leaves no lane either.
    let other = label("other");
    let later = NewTask { not_before: Some(world.now() + SECOND * 3600), ..requiring(&other) };
    let later = world.submit(later).await;
    world.store.cancel(later.id).await.expect("it is cancelled");
    world.restart().await;
    assert!(!knows(&world, &other).await);
}

/// Unfinished tasks of a tenant may ask for 1,000 different things. What it asks for already it may ask for again.
pub async fn a_tenant_has_so_many_lanes_at_once(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let first = fill(&world, 1000).await;
    world.restart().await;
    let refused = |new: NewTask| async {
        match world.store.submit(new).await {
            Err(Error::OverLimit { limit, .. }) => assert_eq!(limit, "tasks.max_lanes"),
            other => panic!("{other:?}"),
        }
    };
    refused(requiring(&label("more"))).await;
    world.submit(new_task()).await;
    let again = world.submit(requiring(&labelled(7))).await;
    world.submit(NewTask { tenant: tenant("other"), ..requiring(&label("more")) }).await;
    // What was taken in before is no further one.
    let same = NewTask { id: again.id, ..requiring(&label("more")) };
    assert_eq!(world.submit(same).await.id, again.id);
    world.store.cancel(first[7].id).await.expect("it is cancelled");
    refused(requiring(&label("more"))).await;
    world.store.cancel(again.id).await.expect("it is cancelled");
    world.submit(requiring(&label("more"))).await;
    refused(requiring(&label("still more"))).await;
}

/// However many lanes fit a worker, it gets what is next in all of them.
pub async fn of_many_lanes_the_next_task_is_served(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let mut tasks = fill(&world, 300).await;
    for n in [290, 3, 3, 120] {
        tasks.push(world.submit(requiring(&labelled(n))).await);
    }
    tasks.sort_by_key(|task| (task.rank, std::cmp::Reverse(task.priority), task.id));
    let hand = world.hand("able").await.able(&labels(300));
    for task in &tasks[..150] {
        assert_eq!(hand.get().await.task.id, task.id);
    }
    world.restart().await;
    let hand = world.hand("another").await.able(&labels(300));
    for task in &tasks[150..] {
        assert_eq!(hand.get().await.task.id, task.id);
    }
    assert_eq!(hand.claim().await, None);
}

/// Several workers at once get all there is, each only what it can run.
pub async fn several_workers_share_many_lanes(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let tasks = fill(&world, 150).await;
    let mut hands = Vec::new();
    for n in 0..5 {
        // The last ones fit a few lanes only, and those are behind all others.
        let able = if n < 3 { labels(150) } else { labelled(145 + n) };
        hands.push((world.hand(&format!("w{n}")).await.able(&able), able));
    }
    let mut left: BTreeSet<_> = tasks.iter().map(|task| task.id).collect();
    while !left.is_empty() {
        let before = left.len();
        let waiting: Vec<_> = hands.iter().map(|(hand, _)| hand.park_for(SHORT)).collect();
        for (claim, (_, able)) in waiting.into_iter().zip(&hands) {
            let Some(claim) = joined("a claim", claim).await else { continue };
            assert!(able.include(&claim.input.requires), "{:?}", claim.input.requires);
            assert!(left.remove(&claim.task.id), "nothing is given twice");
        }
        assert!(left.len() < before, "{before} tasks wait, and nobody gets one");
    }
}

/// Tasks for workers that are not there wait, and nobody waits for them.
pub async fn lanes_that_nobody_fits_are_in_nobodys_way(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    fill(&world, 200).await;
    let hand = world.hand("plain").await;
    assert_eq!(hand.claim().await, None);
    let task = world.submit(NewTask { tenant: tenant("other"), ..new_task() }).await;
    assert_eq!(hand.get().await.task.id, task.id);
    let able = world.hand("able").await.able(&labelled(199));
    assert_eq!(able.get().await.input.requires, labelled(199));
}

/// A task that ended is retried with the requirements that it came with, also when nothing else has them.
pub async fn what_a_task_came_with_outlives_its_lane(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let asked = label("rare");
    let hand = world.hand("able").await.able(&asked.clone().and(&label("found")));
    let task = world.submit(requiring(&asked)).await;
    let claim = hand.get().await;
    let lease = claim.lease.reference();
    world.store.give_back(claim.lease.owner, lease, Some(label("found"))).await.expect("it goes back");
    assert!(!knows(&world, &asked).await, "it waits in another lane");
    world.restart().await;
    let hand = world.hand("other").await.able(&asked.clone().and(&label("found")));
    let claim = hand.get().await;
    assert_eq!(claim.input.requires, asked, "what it came with");
    assert_eq!(claim.task.lane, asked.clone().and(&label("found")).lane());
    let owner = claim.lease.owner;
    world.store.end(owner, claim.lease.reference(), completed()).await.expect("it ends");
    world.restart().await;
    let input = world.store.input(task.id).await.expect("it reads").expect("it is kept");
    assert_eq!(input.requires, asked);
    let retried = world.submit(requiring(&input.requires)).await;
    assert_eq!(retried.lane, asked.lane());
    assert_eq!(world.store.forget(&[task.id]).await.expect("it is forgotten"), 1);
    let hand = world.hand("third").await.able(&asked);
    let claim = hand.get().await;
    assert_eq!((claim.task.id, claim.input.requires), (retried.id, asked));
}

/// What is before a task is counted in some of the lanes, and it is said when there are more.
pub async fn a_position_among_many_lanes_is_estimated(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let last = |n: usize| requiring(&labels(n));
    fill(&world, 60).await;
    let task = world.submit(last(60)).await;
    let position = world.store.position(task.id).await.expect("it reads").expect("it waits");
    assert!(position.exact && position.ahead <= 60, "{position:?}");
    fill(&world, 100).await;
    let task = world.submit(last(100)).await;
    let position = world.store.position(task.id).await.expect("it reads").expect("it waits");
    assert!(!position.exact, "{position:?}");
}
