//! Everything at the same time, by everybody; then the books must balance.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use remuda_core::{FailureClass, NewTask, Phase, Priority, Status, TaskId};

use super::Fixture;
use super::world::{
    Hand, SECOND, SHORT, World, completed, eventually, failed, label, new_task, owner, tenant,
};
use crate::{Counts, Error, ListQuery, Store};

const TASKS: usize = 80;
const HANDS: usize = 4;

/// How often each task was reported complete and believed.
type Done = Mutex<BTreeMap<TaskId, u32>>;

/// Submissions, claims, ends of every kind, returns, cancellations and losses at once leave every task in one end,
/// with its whole history.
pub async fn a_storm_leaves_the_books_balanced(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut stores = vec![world.store.clone()];
    if world.is_shared() {
        stores.push(world.another(|_| {}).await.expect("several may have it"));
    }
    let (over, done) = (AtomicBool::new(false), Done::default());
    let mut hands = Vec::new();
    for n in 0..HANDS {
        let store = stores[n % stores.len()].clone();
        let hand = Hand::acquire(store, &format!("w{n}"), owner()).await;
        hands.push(if n % 2 == 0 { hand.able(&label("a")) } else { hand });
    }
    let news: Vec<NewTask> = (0..TASKS).map(task).collect();
    let submitting = join_all(news.iter().enumerate().map(async |(n, new)| {
        stores[n % stores.len()].submit(new.clone()).await.expect("it is taken in");
    }));
    let working = join_all(hands.iter().map(|hand| work(hand, &over, &done)));
    let cancelling = async {
        for new in news.iter().step_by(7) {
            match stores[0].cancel(new.id).await {
                Ok(_) | Err(Error::Finished(_) | Error::NotFound { .. }) => {}
                Err(error) => panic!("a cancellation: {error}"),
            }
        }
    };
    let tidying = async {
        eventually("all tasks end", async || {
            // Time flies: delays pass, and slow hands lose what they hold.
            world.clock.advance(3 * SECOND);
            world.store.tidy().await.expect("it tidies");
            let counts = world.store.counts(None).await.expect("it counts");
            let ended = counts.completed + counts.failed + counts.cancelled;
            usize::try_from(ended).is_ok_and(|ended| ended == TASKS)
        })
        .await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(submitting, working, cancelling, tidying);
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    balance(&world, &stores, &done).await;
}

fn task(n: usize) -> NewTask {
    let mut new = new_task();
    new.tenant = tenant(["a", "b", "c"][n % 3]);
    new.priority = Priority::new(i64::try_from(n % 10).unwrap_or_default()).unwrap_or_default();
    new.affinity = Some(i64::try_from(n % 2).unwrap_or_default());
    if n.is_multiple_of(5) {
        new.input.requires = label("a");
    }
    new
}

async fn work(hand: &Hand, over: &AtomicBool, done: &Done) {
    while !over.load(Ordering::Relaxed) {
        let claim = hand.store.claim(hand.request(SHORT)).await.expect("it holds its worker");
        let Some(claim) = claim else { continue };
        let lease = claim.lease.reference();
        let reported = match rand::random_range(0..10) {
            0 => hand.store.give_back(hand.owner, lease, None).await,
            1 => hand.store.end(hand.owner, lease, failed(FailureClass::Execution)).await,
            2 => hand.store.end(hand.owner, lease, failed(FailureClass::Crash)).await,
            3 => {
                // It wakes up when it likes, and asks whether it may still go on.
                tokio::time::sleep(Duration::from_millis(rand::random_range(0..30))).await;
                if hand.renew(lease, Phase::Rendering).await.lost.is_empty() {
                    hand.store.end(hand.owner, lease, completed()).await
                } else {
                    Err(Error::Fenced)
                }
            }
            _ => hand.store.end(hand.owner, lease, completed()).await,
        };
        match reported {
            Ok(reply) if reply.status == Status::Completed => {
                *done.lock().unwrap_or_else(PoisonError::into_inner).entry(lease.task).or_default() += 1;
            }
            Ok(_) | Err(Error::Fenced) => {}
            Err(error) => panic!("a report: {error}"),
        }
    }
}

async fn balance(world: &World, stores: &[Arc<dyn Store>], done: &BTreeMap<TaskId, u32>) {
    let page = world.store.list(&ListQuery { limit: 1000, ..ListQuery::default() }).await.expect("it lists");
    assert_eq!(page.tasks.len(), TASKS);
    let mut counts = Counts::default();
    for task in page.tasks {
        match task.status {
            Status::Completed => counts.completed += 1,
            Status::Failed => counts.failed += 1,
            Status::Cancelled => counts.cancelled += 1,
            Status::Pending | Status::Running => panic!("it has not ended: {task:?}"),
        }
        let times = done.get(&task.id).copied().unwrap_or_default();
        assert_eq!(times, u32::from(task.status == Status::Completed), "believed once: {task:?}");
        assert_eq!(world.lease(task.id).await, None);
        let events = world.events(task.id).await;
        assert!(events.iter().map(|event| event.n).eq(1..=task.version), "{events:?}");
        let ends: Vec<_> =
            events.iter().filter(|event| event.kind.is_terminal()).map(|event| event.n).collect();
        assert_eq!(ends, [task.version], "one end, and nothing after it");
        let attempts = world.store.attempts(task.id, 1000).await.expect("it answers");
        assert!(attempts.iter().map(|attempt| attempt.n).eq(1..=task.attempt), "{attempts:?}");
        assert!(attempts.iter().all(|attempt| attempt.outcome.is_some() && attempt.ended_at.is_some()));
    }
    for store in stores {
        assert_eq!(store.counts(None).await.expect("it counts"), counts);
    }
}
