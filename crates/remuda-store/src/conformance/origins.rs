//! Tasks that came through another door: kept with where they came from, listed, counted and hidden.

use remuda_core::{
    Dialect, FailureClass, Idempotency, NewTask, Origin, PromptExtra, Sha256, Status, Task, TaskId, Tenant,
};
use serde_json::value::RawValue;

use super::Fixture;
use super::world::{Hand, SECOND, World, completed, failed, new_task, tenant};
use crate::{Hide, LookedUp, Lookup, OriginOrder, OriginPage, OriginQuery, Submitted};

fn native(client: Option<&str>) -> NewTask {
    let origin = Origin { dialect: Dialect::COMFYUI, external_id: None, client: client.map(str::to_owned) };
    NewTask { origin: Some(origin), ..new_task() }
}

fn query(whose: &Tenant, statuses: &[Status], order: OriginOrder) -> OriginQuery {
    OriginQuery {
        tenant: whose.clone(),
        dialect: Dialect::COMFYUI,
        client: None,
        statuses: statuses.to_vec(),
        workflow_id: None,
        order,
        offset: 0,
        limit: 100,
    }
}

fn ids(tasks: &[Task]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

async fn listed(world: &World, query: &OriginQuery) -> OriginPage {
    let page = world.store.list_origin(query).await.expect("it lists");
    for task in &page.tasks {
        let whole = world.task(task.id).await;
        let brief = Task { error: None, result: None, metadata: None, ..whole };
        assert_eq!(*task, brief, "as it is when asked for alone, without what may be long");
    }
    page
}

const OPEN: [Status; 2] = [Status::Pending, Status::Running];
const ENDED: [Status; 3] = [Status::Completed, Status::Failed, Status::Cancelled];

/// Ends what the worker gets next.
async fn end_next(world: &World, hand: &Hand, ending: remuda_core::transition::Ending) -> TaskId {
    world.clock.advance(SECOND);
    let claim = hand.get().await;
    world.store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
    claim.task.id
}

/// What came in through a dialect of another release is read, listed under that and no other name, and run.
pub async fn a_task_of_an_unknown_dialect_runs_like_others(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let dialect: Dialect = "one-of-tomorrow".parse().expect("it is a name");
    let origin = Origin { dialect, external_id: Some("its-name".to_owned()), client: Some("c".to_owned()) };
    let task = world.submit(NewTask { origin: Some(origin.clone()), ..new_task() }).await;
    world.restart().await;
    assert_eq!(world.task(task.id).await.origin.as_ref(), Some(&origin));
    assert_eq!(listed(&world, &query(&task.tenant, &OPEN, OriginOrder::OldestFirst)).await.total, 0);
    let its_own = OriginQuery { dialect, ..query(&task.tenant, &OPEN, OriginOrder::OldestFirst) };
    assert_eq!(ids(&listed(&world, &its_own).await.tasks), [task.id]);
    let unfinished =
        async || world.store.unfinished(&task.tenant, dialect, Some("c")).await.expect("it counts");
    assert_eq!(unfinished().await, 1);
    let hand = world.hand("w").await;
    assert_eq!(end_next(&world, &hand, completed()).await, task.id);
    assert_eq!(unfinished().await, 0);
}

/// Origin and what came beside the graph are kept byte for byte, through claims, adoption, restarts and the end.
pub async fn where_a_task_came_from_is_kept(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let text = "{\"extra_pnginfo\": {\"workflow\":  {\"n\": 1.0e2, \"s\": \"\\u0000 \\ud83d\\ude00 é\"}}, \"client_id\":\"c\"}";
    let extra = PromptExtra {
        extra_data: Some(RawValue::from_string(text.to_owned()).expect("it is JSON")),
        targets: Some(vec!["9".to_owned(), "12:3".to_owned()]),
        number: -3.25,
        outputs: vec!["9".to_owned()],
        ..PromptExtra::default()
    };
    let origin = Origin {
        dialect: Dialect::COMFYUI,
        external_id: Some("my prompt 'ü'".to_owned()),
        client: Some("browser %1".to_owned()),
    };
    let mut new = NewTask {
        origin: Some(origin.clone()),
        idempotency: Some(Idempotency { key: "native:x".to_owned(), request: Sha256::of(b"r") }),
        ..new_task()
    };
    new.input.extra = Some(Box::new(extra));
    let input = new.input.clone();
    let task = world.submit(new.clone()).await;
    assert_eq!(task.origin.as_ref(), Some(&origin));
    assert_eq!(world.task(task.id).await, task);
    assert_eq!(world.store.input(task.id).await.expect("it answers").as_ref(), Some(&input));
    let size = world.store.input_size(task.id).await.expect("it answers").expect("it is there");
    let text = input.workflow.get().len() as u64;
    assert!((text..text + 1_000).contains(&size), "{size}");
    let again = world.store.submit(NewTask { id: TaskId::new(), ..new }).await.expect("it answers");
    assert_eq!(again, Submitted::Before(task.clone()));
    // One with nothing beside it, and an ordinary one that has something.
    let bare = world.submit(NewTask { idempotency: None, ..native(None) }).await;
    let plain = world.submit(NewTask { input: input.clone(), ..new_task() }).await;
    assert_eq!(world.task(plain.id).await.origin, None);

    world.restart().await;
    let hand = world.hand("w").await;
    let first = hand.get().await;
    assert_eq!((first.task.id, first.task.origin.as_ref()), (task.id, Some(&origin)));
    assert_eq!(first.input, input);
    let adopted = hand.adopt(&[]).await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(adopted[0].input, input);
    assert_eq!(adopted[0].task.origin.as_ref(), Some(&origin));
    world.restart().await;
    world
        .store
        .end(adopted[0].lease.owner, adopted[0].lease.reference(), completed())
        .await
        .expect("it ends");
    let ended = world.task(task.id).await;
    assert_eq!((ended.status, ended.origin.as_ref()), (Status::Completed, Some(&origin)));
    let second = hand_again(&world, &hand).await;
    assert_eq!((second.task.id, &second.task.origin), (bare.id, &bare.origin));
    assert_eq!(second.input, bare_input());
    let third = hand_again(&world, &hand).await;
    assert_eq!((third.task.id, third.input), (plain.id, input.clone()));
    // Claimed in the commit of its submission.
    let parked = Hand { store: world.store.clone(), ..hand.clone() }.park(false);
    let mut late = native(Some("late"));
    late.input = input.clone();
    let late = world.submit(late).await;
    let claim = super::world::joined("a claim", parked).await.expect("it was served");
    assert_eq!((claim.task.id, claim.task.origin, claim.input), (late.id, late.origin, input));
}

async fn hand_again(world: &World, hand: &Hand) -> remuda_core::Claim {
    Hand { store: world.store.clone(), ..hand.clone() }.get().await
}

fn bare_input() -> remuda_core::TaskInput {
    new_task().input
}

/// By the key of its submission, else by its id, for its own tenant only; with what it runs, if that is asked for.
pub async fn a_task_is_looked_up_by_key_or_id(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let keyed = |key: &str| Some(Idempotency { key: key.to_owned(), request: Sha256::of(b"r") });
    let mut new = NewTask { idempotency: keyed("native:x"), ..native(Some("c")) };
    let extra = PromptExtra {
        extra_data: None,
        targets: None,
        number: 3.0,
        outputs: vec!["9".to_owned()],
        ..PromptExtra::default()
    };
    new.input.extra = Some(Box::new(extra));
    let input = new.input.clone();
    let first = world.submit(new).await.id;
    assert_eq!(end_next(&world, &hand, completed()).await, first);
    let second = world.submit(native(None)).await.id;
    let theirs = NewTask { tenant: tenant("b"), idempotency: keyed("native:x"), ..native(None) };
    let theirs = world.submit(theirs).await.id;
    world.restart().await;
    let look = async |whose: &Tenant, key: Option<&str>, id: Option<TaskId>, input: bool| {
        let lookup = Lookup { tenant: whose.clone(), key: key.map(str::to_owned), id, input };
        let found = world.store.look_up(lookup.clone()).await.expect("it answers");
        match world.store.look_up_small(&lookup).await.expect("it answers") {
            LookedUp::Small(small) => {
                assert_eq!(small.map(|(task, _)| task), found.as_ref().map(|(task, _)| task.clone()))
            }
            LookedUp::Large { .. } => panic!("nothing here is large"),
        }
        found
    };
    let own = Tenant::default_tenant();
    let known = world.task(first).await;
    assert!(known.result.is_some());
    for (key, id) in [(Some("native:x"), None), (Some("native:x"), Some(second)), (None, Some(first))] {
        assert_eq!(look(&own, key, id, true).await, Some((known.clone(), Some(input.clone()))));
        assert_eq!(look(&own, key, id, false).await, Some((known.clone(), None)));
    }
    let (found, ran) = look(&own, Some("native:y"), Some(second), true).await.expect("it is there by its id");
    assert_eq!((found, ran), (world.task(second).await, Some(bare_input())));
    assert_eq!(look(&own, None, None, true).await, None);
    assert_eq!(look(&own, Some("native:y"), Some(TaskId::new()), true).await, None);
    assert_eq!(look(&own, None, Some(theirs), true).await, None, "another tenant's");
    let found = look(&tenant("b"), Some("native:x"), Some(first), false).await;
    assert_eq!(found.map(|(task, _)| task.id), Some(theirs));
    world.store.forget(&[first]).await.expect("it forgets");
    assert_eq!(look(&own, Some("native:x"), Some(first), true).await, None);
}

/// Oldest and newest first over several states, first and last ended over the ended ones; in pages.
pub async fn tasks_of_a_dialect_are_listed_in_every_order(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let whose = Tenant::default_tenant();
    let mut came = Vec::new();
    for _ in 0..9 {
        came.push(world.submit(native(Some("c"))).await.id);
        // Others in between.
        world.submit(NewTask { not_before: Some(world.now() + 9 * SECOND), ..new_task() }).await;
        world.clock.advance(SECOND);
    }
    came.sort();
    let hand = world.hand("w").await;
    let mut ended = Vec::new();
    for ending in [completed(), failed(FailureClass::Validation), completed()] {
        ended.push(end_next(&world, &hand, ending).await);
    }
    world.clock.advance(SECOND);
    ended.push(came[8]);
    world.store.cancel(came[8]).await.expect("it waits");
    let runs = hand.get().await.task.id;

    let page = |statuses: &[Status], order, offset, limit| {
        let query = OriginQuery { offset, limit, ..query(&whose, statuses, order) };
        let world = &world;
        async move { listed(world, &query).await }
    };
    let all: Vec<Status> = Status::ALL.into();
    let oldest = page(&all, OriginOrder::OldestFirst, 0, 100).await;
    assert_eq!((ids(&oldest.tasks), oldest.total), (came.clone(), 9));
    let mut newest = came.clone();
    newest.reverse();
    for offset in 0..11_u32 {
        let some = page(&all, OriginOrder::NewestFirst, offset, 2).await;
        let from = (offset as usize).min(9);
        assert_eq!((ids(&some.tasks), some.total), (newest[from..(from + 2).min(9)].to_vec(), 9));
    }
    let waits: Vec<TaskId> = came.iter().copied().filter(|id| !ended.contains(id)).collect();
    let open = page(&OPEN, OriginOrder::OldestFirst, 0, 100).await;
    assert_eq!((ids(&open.tasks), open.total), (waits.clone(), 5));
    let running = page(&[Status::Running], OriginOrder::OldestFirst, 0, 100).await;
    assert_eq!((ids(&running.tasks), running.total), (vec![runs], 1));
    let pending = page(&[Status::Pending, Status::Pending], OriginOrder::OldestFirst, 1, 2).await;
    assert_eq!((ids(&pending.tasks), pending.total), (waits[2..4].to_vec(), 4));

    let first = page(&ENDED, OriginOrder::FirstEnded, 0, 100).await;
    assert_eq!((ids(&first.tasks), first.total), (ended.clone(), 4));
    let mut last = ended.clone();
    last.reverse();
    for offset in 0..6_u32 {
        let some = page(&ENDED, OriginOrder::LastEnded, offset, 2).await;
        let from = (offset as usize).min(4);
        assert_eq!((ids(&some.tasks), some.total), (last[from..(from + 2).min(4)].to_vec(), 4));
    }
    let only = page(&all, OriginOrder::LastEnded, 0, 100).await;
    assert_eq!((ids(&only.tasks), only.total), (last, 4), "what has not ended is not listed by its end");
    let completed = page(&[Status::Completed], OriginOrder::FirstEnded, 0, 100).await;
    assert_eq!((ids(&completed.tasks), completed.total), (vec![ended[0], ended[2]], 2));
    let none = page(&[], OriginOrder::OldestFirst, 0, 100).await;
    assert_eq!(none, OriginPage::default());
    let counted = page(&ENDED, OriginOrder::FirstEnded, 0, 0).await;
    assert_eq!((counted.tasks.len(), counted.total), (0, 4));
}

/// Lists and totals are of one tenant, and if wanted of one client or workflow.
pub async fn lists_of_a_dialect_are_filtered_and_counted(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let mut made = Vec::new();
    for (whose, client, workflow) in [
        ("a", Some("one"), Some("flux")),
        ("a", Some("two"), Some("flux")),
        ("a", None, None),
        ("b", Some("one"), Some("flux")),
        ("a", Some("one"), None),
    ] {
        let new =
            NewTask { tenant: tenant(whose), workflow_id: workflow.map(str::to_owned), ..native(client) };
        made.push(world.submit(new).await.id);
        end_next(&world, &hand, completed()).await;
    }
    let a = tenant("a");
    for order in
        [OriginOrder::OldestFirst, OriginOrder::NewestFirst, OriginOrder::FirstEnded, OriginOrder::LastEnded]
    {
        let check = async |client: Option<&str>, workflow: Option<&str>, expected: &[usize]| {
            let query = OriginQuery {
                client: client.map(str::to_owned),
                workflow_id: workflow.map(str::to_owned),
                ..query(&a, &ENDED, order)
            };
            let mut expected: Vec<TaskId> = expected.iter().map(|n| made[*n]).collect();
            if matches!(order, OriginOrder::NewestFirst | OriginOrder::LastEnded) {
                expected.reverse();
            }
            let page = listed(&world, &query).await;
            assert_eq!(ids(&page.tasks), expected, "{query:?}");
            assert_eq!(page.total, i64::try_from(expected.len()).expect("few"), "{query:?}");
        };
        check(None, None, &[0, 1, 2, 4]).await;
        check(Some("one"), None, &[0, 4]).await;
        check(None, Some("flux"), &[0, 1]).await;
        check(Some("two"), Some("flux"), &[1]).await;
        check(Some("three"), None, &[]).await;
        check(None, Some("other"), &[]).await;
    }
}

/// What waits or runs is counted, of a tenant or of one of its clients; what ended is not.
pub async fn unfinished_tasks_are_counted_by_client(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let unfinished = async |whose: &str, client: Option<&str>| {
        world.store.unfinished(&tenant(whose), Dialect::COMFYUI, client).await.expect("it counts")
    };
    assert_eq!(unfinished("a", None).await, 0);
    let new = |whose: &str, client| NewTask { tenant: tenant(whose), ..native(client) };
    let later = Some(world.now() + 99 * SECOND);
    world.submit(new("a", Some("one"))).await;
    world.submit(NewTask { not_before: later, ..new("a", Some("one")) }).await;
    world.submit(NewTask { not_before: later, ..new("a", None) }).await;
    let cancelled = world.submit(NewTask { not_before: later, ..new("a", Some("two")) }).await;
    world.submit(NewTask { not_before: later, ..new("b", Some("one")) }).await;
    world.submit(NewTask { not_before: later, tenant: tenant("a"), ..new_task() }).await;
    let counts = async || {
        [unfinished("a", None).await, unfinished("a", Some("one")).await, unfinished("a", Some("two")).await]
    };
    assert_eq!(counts().await, [4, 2, 1]);
    assert_eq!(unfinished("b", Some("one")).await, 1);
    let claim = hand.get().await;
    assert_eq!(counts().await, [4, 2, 1], "it runs");
    world.store.give_back(claim.lease.owner, claim.lease.reference(), None).await.expect("it goes back");
    assert_eq!(counts().await, [4, 2, 1], "it waits again");
    end_next(&world, &hand, completed()).await;
    assert_eq!(counts().await, [3, 1, 1]);
    world.store.cancel(cancelled.id).await.expect("it waits");
    assert_eq!(counts().await, [2, 1, 0]);
    let deadline = Some(world.now() + SECOND);
    world.submit(NewTask { not_before: later, deadline, ..new("a", Some("two")) }).await;
    world.submit(NewTask { not_before: later, ..new("a", Some("one")) }).await;
    assert_eq!(counts().await, [4, 2, 1], "who was counted before is counted again");
    world.clock.advance(2 * SECOND);
    world.store.tidy().await.expect("it tidies");
    assert_eq!(counts().await, [3, 2, 0], "it ran out");
    world.restart().await;
    let after = world.store.unfinished(&tenant("a"), Dialect::COMFYUI, Some("one")).await;
    assert_eq!(after.expect("it counts"), 2);
}

/// Hidden tasks are in no list of the dialect and in no total. Their records do not change otherwise, and only
/// ended ones of that tenant and dialect are hidden.
pub async fn hidden_tasks_are_listed_no_more(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let whose = Tenant::default_tenant();
    let mut ended = Vec::new();
    for _ in 0..3 {
        world.submit(native(Some("c"))).await;
        ended.push(end_next(&world, &hand, completed()).await);
    }
    let others = world.submit(NewTask { tenant: tenant("b"), ..native(None) }).await.id;
    end_next(&world, &hand, completed()).await;
    let plain = world.submit(new_task()).await.id;
    end_next(&world, &hand, completed()).await;
    let waits = world.submit(native(Some("c"))).await;
    let before = world.task(ended[1]).await;
    assert_eq!(before.hidden_at, None);
    let events = world.events(ended[1]).await;
    let mut changes = world.store.changes();

    world.clock.advance(SECOND);
    let some = Hide::Tasks(vec![ended[1], others, plain, waits.id, TaskId::new()]);
    let hide = async |store: &dyn crate::Store, which: &Hide| {
        store.hide(&whose, Dialect::COMFYUI, which).await.expect("it hides")
    };
    assert_eq!(hide(&*world.store, &some).await, 1);
    let at = world.now();
    world.clock.advance(SECOND);
    assert_eq!(hide(&*world.store, &some).await, 0, "it was hidden before");
    assert_eq!(world.task(ended[1]).await, Task { hidden_at: Some(at), ..before });
    assert_eq!(world.events(ended[1]).await, events);
    // Of the others something may still be heard that came before: answers do not wait for announcements.
    while let Ok(change) = changes.try_recv() {
        assert_ne!(change.task, ended[1], "nothing happened to the task: {change:?}");
    }
    for order in [OriginOrder::OldestFirst, OriginOrder::FirstEnded] {
        let page = listed(&world, &query(&whose, &ENDED, order)).await;
        assert_eq!((ids(&page.tasks), page.total), (vec![ended[0], ended[2]], 2));
    }
    for id in [others, plain, waits.id] {
        assert_eq!(world.task(id).await.hidden_at, None);
    }

    assert_eq!(hide(&*world.store, &Hide::Ended).await, 2);
    assert_eq!(hide(&*world.store, &Hide::Ended).await, 0);
    world.restart().await;
    let page = listed(&world, &query(&whose, &Status::ALL, OriginOrder::NewestFirst)).await;
    assert_eq!((ids(&page.tasks), page.total), (vec![waits.id], 1), "what waits stays");
    let page = listed(&world, &query(&tenant("b"), &ENDED, OriginOrder::NewestFirst)).await;
    assert_eq!(ids(&page.tasks), [others], "another tenant's stay");
    let list = crate::ListQuery { limit: 100, ..Default::default() };
    assert_eq!(world.store.list(&list).await.expect("it lists").tasks.len(), 6, "the records stay");
    assert_eq!(world.store.counts(None).await.expect("it counts").completed, 5);

    let hand = Hand { store: world.store.clone(), ..hand };
    end_next(&world, &hand, completed()).await;
    let page = listed(&world, &query(&whose, &ENDED, OriginOrder::LastEnded)).await;
    assert_eq!(ids(&page.tasks), [waits.id], "what ends later is shown");
    let all = [ended[0], ended[1], ended[2], waits.id, plain];
    assert_eq!(world.store.forget(&all).await.expect("it forgets"), 5);
    assert_eq!(listed(&world, &query(&whose, &Status::ALL, OriginOrder::OldestFirst)).await.total, 0);
}

/// All that ended, also when it is more than one transaction takes.
pub async fn many_tasks_are_hidden_at_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let whose = Tenant::default_tenant();
    let submitted = (0..1100).map(|_| world.store.submit(native(None)));
    let submitted = futures_util::future::join_all(submitted).await;
    let submitted: Vec<TaskId> =
        submitted.into_iter().map(|new| new.expect("it is taken in").task().id).collect();
    // Not all at once: each is a transaction of its own, and who waits too long for one is sent away.
    for some in submitted.chunks(20) {
        let cancelled = some.iter().map(|id| world.store.cancel(*id));
        for done in futures_util::future::join_all(cancelled).await {
            done.expect("it waits");
        }
    }
    let some = Hide::Tasks(submitted[..50].to_vec());
    let hide =
        async |which: &Hide| world.store.hide(&whose, Dialect::COMFYUI, which).await.expect("it hides");
    assert_eq!(hide(&some).await, 50);
    assert_eq!(listed(&world, &query(&whose, &ENDED, OriginOrder::LastEnded)).await.total, 1050);
    assert_eq!(hide(&Hide::Ended).await, 1050);
    assert_eq!(listed(&world, &query(&whose, &ENDED, OriginOrder::LastEnded)).await.total, 0);
    assert_eq!(hide(&Hide::Tasks(submitted)).await, 0);
}
