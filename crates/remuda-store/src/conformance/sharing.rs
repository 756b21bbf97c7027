//! What one tenant has much of, and what it asks for often, does not hold up the others.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use remuda_core::transition::Ending;
use remuda_core::{
    Dialect, Failure, FailureClass, NewTask, Sha256, Status, TaskId, Tenant, Timestamp, WorkerReport,
};
use serde_json::json;

use super::Fixture;
use super::world::{World, completed, new_task, of_tenant, tenant};
use crate::{Asset, EVENTS_TEXT, ListQuery, OriginOrder, OriginQuery, Store};

/// How often the one tenant asks.
const OFTEN: usize = 200;

/// What is read.
const READS: [&str; 8] =
    ["uploads", "a document", "documents", "attempts", "events", "a position", "a large task", "a list"];

/// A read of what belongs to a tenant, or to a task of it.
async fn read(store: &dyn Store, what: &str, whose: &Tenant, task: TaskId) {
    match what {
        "uploads" => store.assets(whose, 10_000).await.map(drop),
        "a document" => store.document(whose, "settings", "large").await.map(drop),
        "documents" => store.documents(whose, "settings", "").await.map(drop),
        "attempts" => store.attempts(task, 100).await.map(drop),
        "events" => store.events(task, 0, 100).await.map(drop),
        "a position" => store.position(task).await.map(drop),
        "a large task" => store.task(task).await.map(drop),
        _ => {
            let query = OriginQuery {
                tenant: whose.clone(),
                dialect: Dialect::COMFYUI,
                client: None,
                statuses: vec![Status::Pending],
                workflow_id: None,
                order: OriginOrder::OldestFirst,
                offset: 0,
                limit: 100,
            };
            store.list_origin(&query).await.map(drop)
        }
    }
    .expect("it answers");
}

/// Whoever asks most does not have all the readers: what another asks for afterwards is answered among the first.
pub async fn often_asked_reads_leave_readers_for_others(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut tasks = Vec::new();
    for name in ["many", "one"] {
        for n in 0..100 {
            let bytes = format!("{name} {n}");
            let asset = Asset {
                tenant: tenant(name),
                sha256: Sha256::of(bytes.as_bytes()),
                key: format!("assets/{n}"),
                filename: format!("{n}{}.png", "n".repeat(200)),
                mime: "image/png".to_owned(),
                size: 1,
                created_at: world.now(),
            };
            world.store.add_asset(asset).await.expect("it is kept");
        }
        let bytes = vec![b'd'; 200 << 10];
        let kept = world.store.put_document(&tenant(name), "settings", "large", bytes, true).await;
        kept.expect("it is kept");
        let mut task = of_tenant(name);
        // Nothing that a database could pack.
        let much: String = (0..3_000u32).map(|n| Sha256::of(&n.to_be_bytes()).to_string()).collect();
        task.metadata = Some(json!({"much": much}).into());
        tasks.push(world.submit(task).await.id);
    }
    let [many, one] = tasks[..] else { panic!("two tasks") };
    let whose = ["many", "one"].map(tenant);
    for what in READS {
        let mut seen = Vec::new();
        // A machine that is busy with something else may stop us in the middle; one that is unfair is unfair every time.
        for _ in 0..3 {
            let (before, waiting) = answered_before(&world, what, [&whose[0], &whose[1]], [many, one]).await;
            seen.push((before, waiting));
            if before <= waiting / 2 {
                seen.clear();
                break;
            }
        }
        assert!(seen.is_empty(), "{what}: answered before another's, and how many waited: {seen:?}");
    }
}

/// How many reads of the first were answered before one of the second that was asked for after them, and how many waited then.
async fn answered_before(
    world: &World,
    what: &str,
    whose: [&Tenant; 2],
    [many, one]: [TaskId; 2],
) -> (usize, usize) {
    let (store, done) = (&*world.store, AtomicUsize::new(0));
    let often = join_all((0..OFTEN).map(|_| async {
        read(store, what, whose[0], many).await;
        done.fetch_add(1, Ordering::SeqCst);
    }));
    let mut often = pin!(often);
    if futures_util::poll!(&mut often).is_ready() {
        // Answered where it was asked: nobody waits.
        return (0, 0);
    }
    let begun = done.load(Ordering::SeqCst);
    let other = pin!(async {
        read(store, what, whose[1], one).await;
        done.load(Ordering::SeqCst)
    });
    let before = match select(other, often).await {
        Either::Left((before, often)) => {
            often.await;
            before
        }
        Either::Right(_) => OFTEN,
    };
    // Some may be answered where they are asked.
    (before - begun, OFTEN - begun)
}

/// Large writes of one tenant take turns with another's.
pub async fn large_writes_take_turns_between_tenants(fixture: impl Fixture) {
    const DOCUMENTS: usize = 24;
    let world = World::new(fixture).await;
    let store = &*world.store;
    let done = AtomicUsize::new(0);
    let bytes = vec![b'd'; 2 << 20];
    let many = join_all((0..DOCUMENTS).map(|n| {
        let (bytes, done) = (bytes.clone(), &done);
        async move {
            let path = format!("d{n}");
            store.put_document(&tenant("many"), "settings", &path, bytes, true).await.expect("it is kept");
            done.fetch_add(1, Ordering::SeqCst);
        }
    }));
    let mut many = pin!(many);
    assert!(futures_util::poll!(&mut many).is_pending());
    let mut task = of_tenant("one");
    let graph = json!({"1": {"class_type": "A", "inputs": {"text": "t".repeat(100 << 10)}}}).to_string();
    task.input.workflow = serde_json::value::RawValue::from_string(graph).expect("it is JSON");
    let one = pin!(async {
        store.submit(task).await.expect("it is taken in");
        done.load(Ordering::SeqCst)
    });
    let before = match select(one, many).await {
        Either::Left((before, many)) => {
            many.await;
            before
        }
        Either::Right(_) => DOCUMENTS,
    };
    assert!(before <= DOCUMENTS / 2, "{before} of {DOCUMENTS} documents were written before another's task");
}

/// The last moments that can be said are moments like all others: they keep nobody from anything.
pub async fn moments_at_the_end_of_time_do_no_harm(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let hand = world.hand("w").await;
    let last: Vec<Timestamp> = ["9999-12-30T22:00:00Z", "9999-12-30T22:00:00.000001Z"]
        .iter()
        .map(|text| text.parse().expect("a moment"))
        .chain([Timestamp::MAX])
        .collect();
    let mut tasks = Vec::new();
    for moment in &last {
        tasks.push(NewTask { deadline: Some(*moment), ..of_tenant("far") });
        tasks.push(NewTask { not_before: Some(*moment), deadline: Some(*moment), ..of_tenant("far") });
    }
    let count = tasks.len();
    for task in tasks {
        world.submit(task).await;
    }
    let other = world.submit(of_tenant("near")).await;
    let query = ListQuery { tenant: None, status: None, workflow_id: None, before: None, limit: 100 };
    let listed = world.store.list(&query).await.expect("it lists").tasks;
    assert_eq!(listed.len(), count + 1);
    assert!(listed.iter().all(|task| task.deadline.is_none_or(|deadline| deadline >= last[0])));
    assert_eq!(world.store.tidy().await.expect("it tidies").expired, 0);
    let mut claimed = Vec::new();
    for _ in 0..=count / 2 {
        let claim = hand.get().await;
        claimed.push(claim.task.id);
        world.store.end(hand.owner, claim.lease.reference(), completed()).await.expect("it ends");
    }
    assert!(claimed.contains(&other.id), "those that may run do, whoever else waits");
    for task in listed.iter().filter(|task| !claimed.contains(&task.id)) {
        world.store.cancel(task.id).await.expect("it can be cancelled");
    }
}

/// What failures say is read in parts, and comes back as it was.
pub async fn long_failures_are_read_in_parts(fixture: impl Fixture) {
    const FAILURES: i32 = 8;
    let world = World::with(fixture, |options| options.policy.max_losses = FAILURES).await;
    let hand = world.hand("w").await;
    let task = world.submit(new_task()).await;
    let details = format!("[{}0]", "{\"\":0},".repeat(25_000));
    let details = serde_json::value::RawValue::from_string(details).expect("it is JSON");
    for _ in 0..FAILURES {
        let claim = hand.get().await;
        let details = Some(details.clone().into());
        let failure = Failure { details, ..Failure::new(FailureClass::Lost, "it failed") };
        let ending = Ending::Failed { failure, partial: None };
        world.store.end(hand.owner, claim.lease.reference(), ending).await.expect("it ends");
        // Also for this worker, which it avoids for a while.
        world.clock.advance(Duration::from_secs(3600));
        world.store.tidy().await.expect("it tidies");
        hand.report(WorkerReport::default()).await;
    }
    let (mut events, mut reads) = (Vec::new(), 0);
    loop {
        let after = events.last().map_or(0, |event: &remuda_core::TaskEvent| event.n);
        let some = world.store.events(task.id, after, 100).await.expect("it answers");
        let text: usize = some.iter().map(|event| event.data.get().len()).sum();
        assert!(text < EVENTS_TEXT + details.get().len() + 1000, "{text} bytes at once");
        if some.is_empty() {
            break;
        }
        events.extend(some);
        reads += 1;
    }
    assert!(reads > 2, "{reads}");
    assert!(events.iter().map(|event| event.n).eq((1..).take(events.len())));
    let told: Vec<_> = events.iter().filter(|event| event.data.get().len() > 1000).collect();
    assert_eq!(told.len(), 8);
    assert!(told.iter().all(|event| event.data.get().contains(details.get())), "the text that it was");
    let attempts = world.store.attempts(task.id, 100).await.expect("it answers");
    let (first, last) = (attempts[0].n, attempts[attempts.len() - 1].n);
    assert!(attempts.len() < 8 && last == FAILURES);
    assert!(attempts.iter().map(|attempt| attempt.n).eq(first..=last), "the last ones, first to last");
}
