//! Moments far away.

use remuda_core::{NewTask, Timestamp};

use super::Fixture;
use super::world::{World, completed, new_task};
use crate::ListQuery;

/// The last moments that can be told are moments like all others: who names one keeps nobody else from working.
pub async fn the_last_moments_keep_nobody_from_working(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut tasks = Vec::new();
    for last in [Timestamp::MAX, Timestamp::new(Timestamp::MAX.as_second(), 0).expect("a moment")] {
        tasks.push(NewTask { deadline: Some(last), ..new_task() });
        tasks.push(NewTask { not_before: Some(last), ..new_task() });
    }
    for task in &tasks {
        world.store.submit(task.clone()).await.expect("it is taken in");
    }
    world.store.tidy().await.expect("housekeeping goes on");
    let usual = new_task();
    world.store.submit(usual.clone()).await.expect("it is taken in");
    let listed = world.store.list(&ListQuery { limit: 10, ..ListQuery::default() }).await;
    assert_eq!(listed.expect("a list").tasks.len(), 5);
    let hand = world.hand("w").await;
    let mut claimed = Vec::new();
    while let Some(claim) = hand.claim().await {
        claimed.push(claim.task.id);
        world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    }
    assert!(claimed.contains(&usual.id), "{claimed:?}");
    assert_eq!(claimed.len(), 3, "those that wait for their moment are not begun");
    for task in &tasks {
        world.store.cancel(task.id).await.ok();
        assert!(world.store.task(task.id).await.expect("it can be read").is_some());
    }
}
