//! The feed: what happened to tasks, in the order of the commits.

use std::collections::HashMap;

use futures_util::future::join_all;
use remuda_core::{FailureClass, FeedEntry, NewTask, TaskId, Tenant, Version};

use super::Fixture;
use super::world::{SECOND, World, completed, eventually, failed, new_task, of_tenant, tenant};
use crate::{Error, FeedItem, FeedPlace, Store};

/// Everything after a place, in pages of this size.
async fn read(store: &dyn Store, tenant: Option<&Tenant>, after: FeedPlace, limit: u32) -> Vec<FeedItem> {
    let (mut items, mut place) = (Vec::new(), after);
    loop {
        let page = store.feed(tenant, place, limit).await.expect("the feed can be read");
        assert!(page.items.len() <= limit as usize && page.next >= place);
        assert_eq!(page.next, page.items.last().map_or(place, |item| item.place));
        place = page.next;
        items.extend(page.items);
        if !page.more {
            return items;
        }
    }
}

/// Everything of all tenants, when there are this many entries: what was just committed may have to wait for what was begun
/// before it, also by others.
pub(super) async fn whole(world: &World, count: usize) -> Vec<FeedItem> {
    let first = world.store.feed_ends().await.expect("it answers").first;
    let mut items = Vec::new();
    eventually(&format!("{count} entries of the feed"), async || {
        items = read(&*world.store, None, first, 500).await;
        items.len() >= count
    })
    .await;
    assert_eq!(items.len(), count);
    items
}

/// What the feed has of each task, as the events of the task have it.
async fn compare(world: &World, tasks: &[TaskId]) -> Vec<FeedItem> {
    let mut events: HashMap<TaskId, Vec<FeedEntry>> = HashMap::new();
    for task in tasks {
        events.insert(*task, world.events(*task).await.iter().map(FeedEntry::from).collect());
    }
    let items = whole(world, events.values().map(Vec::len).sum()).await;
    assert!(items.is_sorted_by_key(|item| item.place), "places rise");
    let mut told: HashMap<TaskId, Vec<FeedEntry>> = HashMap::new();
    for item in &items {
        told.entry(item.entry.task).or_default().push(item.entry);
    }
    assert_eq!(told, events);
    items
}

/// Whatever happens to a task is in the feed once, in its order.
pub async fn what_happens_is_in_the_feed(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let mut tasks = Vec::new();
    // Completed, failed and tried again, given back, cancelled while it waits and while it runs, expired.
    let good = world.submit(new_task()).await;
    let claim = hand.get().await;
    world.store.end(hand.owner, claim.lease.reference(), completed()).await.expect("it ends");
    tasks.push(good.id);
    let bad = world.submit(NewTask { max_retries: 1, ..new_task() }).await;
    let claim = hand.get().await;
    world
        .store
        .end(hand.owner, claim.lease.reference(), failed(FailureClass::Execution))
        .await
        .expect("it ends");
    tasks.push(bad.id);
    world.store.cancel(bad.id).await.expect("it waits for its next try");
    let back = world.submit(new_task()).await;
    let claim = hand.get().await;
    world.store.give_back(hand.owner, claim.lease.reference(), None).await.expect("it is given back");
    let claim = hand.get().await;
    world.store.cancel(back.id).await.expect("it runs");
    let stopped = remuda_core::transition::Ending::Cancelled;
    world.store.end(hand.owner, claim.lease.reference(), stopped).await.expect("it ends");
    tasks.push(back.id);
    let late = world.submit(NewTask { deadline: Some(world.now() + SECOND), ..of_tenant("other") }).await;
    world.clock.advance(2 * SECOND);
    world.store.tidy().await.expect("it tidies");
    tasks.push(late.id);
    // Lost with its process.
    let lost = world.submit(of_tenant("other")).await;
    hand.get().await;
    tasks.push(lost.id);
    world.clock.advance(3600 * SECOND);
    assert_eq!(world.store.tidy().await.expect("it tidies").lost, [lost.id]);

    let all = compare(&world, &tasks).await;
    let first = world.store.feed_ends().await.expect("it answers").first;
    for name in ["other", Tenant::default_tenant().as_str()] {
        let of = tenant(name);
        let own: Vec<FeedItem> = all.iter().filter(|item| item.tenant == of).cloned().collect();
        assert!(!own.is_empty());
        assert_eq!(read(&*world.store, Some(&of), first, 500).await, own, "{name}'s own");
    }
    assert!(read(&*world.store, Some(&tenant("nobody")), first, 500).await.is_empty());
}

/// A reader may stop anywhere, also in the middle of a commit, and go on from there; at another server, too.
pub async fn a_feed_is_read_in_pages_and_resumed_anywhere(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let names = ["a", "b"];
    let new = (0..40).map(|n| world.submit(of_tenant(names[n % 2])));
    let tasks: Vec<TaskId> = join_all(new).await.iter().map(|task| task.id).collect();
    let all = compare(&world, &tasks).await;
    let ends = world.store.feed_ends().await.expect("it answers");
    let place = |item: &FeedItem| item.place;
    assert!(ends.first < place(&all[0]) && ends.last >= place(&all[all.len() - 1]));
    let another =
        if world.is_shared() { world.another(|_| {}).await.expect("it opens") } else { world.store.clone() };
    for limit in [1, 3, 7, 39, 40, 41] {
        assert_eq!(read(&*another, None, ends.first, limit).await, all, "pages of {limit}");
    }
    for (at, item) in all.iter().enumerate() {
        let text: FeedPlace = item.place.to_string().parse().expect("a place is a text and back");
        assert_eq!(read(&*another, None, text, 9).await, &all[at + 1..], "after {text}");
    }
    let own: Vec<FeedItem> = all.iter().filter(|item| item.tenant == tenant("b")).cloned().collect();
    for (at, item) in own.iter().enumerate() {
        assert_eq!(read(&*another, Some(&tenant("b")), item.place, 3).await, &own[at + 1..]);
    }
}

/// What is old is removed from the feed, and whoever comes from before hears where to begin. What comes is after it all.
pub async fn an_old_feed_is_gone_and_says_where_to_begin(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let old: Vec<TaskId> =
        join_all((0..5).map(|_| world.submit(new_task()))).await.iter().map(|t| t.id).collect();
    let before = compare(&world, &old).await;
    let first = world.store.feed_ends().await.expect("it answers").first;
    assert_eq!(world.store.trim_feed(60 * SECOND).await.expect("it trims"), 0, "it is new");
    world.clock.advance(90 * SECOND);
    let young = world.submit(new_task()).await;
    assert!(world.store.trim_feed(60 * SECOND).await.expect("it trims") > 0);
    let begin = |answer| match answer {
        Err(Error::Gone { first }) => first,
        other => panic!("it was not told where to begin: {other:?}"),
    };
    let begins = begin(world.store.feed(None, first, 10).await);
    assert_eq!(begins, begin(world.store.feed(None, before[0].place, 10).await));
    let one = |items: &[FeedItem]| (items.len(), items[0].entry.task, items[0].entry.n);
    let left = whole(&world, 1).await;
    assert_eq!(one(&left), (1, young.id, 1 as Version));
    assert_eq!(read(&*world.store, None, begins, 10).await, left);

    world.clock.advance(90 * SECOND);
    world.store.trim_feed(60 * SECOND).await.expect("it trims");
    let ends = world.store.feed_ends().await.expect("it answers");
    assert_eq!(ends.first, ends.last, "nothing is left");
    // Who had heard all of it missed nothing.
    let caught_up = left[0].place;
    assert!(caught_up.is_between(&ends), "{caught_up} in {ends:?}");
    assert!(read(&*world.store, None, caught_up, 10).await.is_empty());
    world.restart().await;
    let next = world.submit(new_task()).await;
    let after = whole(&world, 1).await;
    assert_eq!(one(&after), (1, next.id, 1));
    assert!(after[0].place > left[0].place && after[0].place > ends.last);
    assert_eq!(read(&*world.store, None, caught_up, 10).await, after);
}
