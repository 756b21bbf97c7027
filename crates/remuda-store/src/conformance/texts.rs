//! Texts as long as requests and answers may be.

use remuda_core::transition::Ending;
use remuda_core::{Dialect, NewTask, Origin, PromptExtra, TaskResult};
use serde_json::json;
use serde_json::value::RawValue;

use super::Fixture;
use super::world::{SECOND, World};
use crate::{Glance, LookedUp, Lookup};

/// Long, and of characters of every length, so that it cannot be cut just anywhere.
fn long(what: &str) -> Box<RawValue> {
    let text = json!({ "1": {"class_type": what, "inputs": {"text": "aé€🐎".repeat(300_000)}} });
    RawValue::from_string(text.to_string()).expect("it is JSON")
}

fn long_task() -> NewTask {
    let mut new = NewTask::new(long("graph"));
    new.origin = Some(Origin { dialect: Dialect::COMFYUI, external_id: None, client: None });
    let extra = PromptExtra { extra_data: Some(long("extra")), number: 7.0, ..PromptExtra::default() };
    new.input.extra = Some(Box::new(extra));
    new
}

/// A long graph, what came beside it, and a long result come back byte for byte, from every side, also after a restart, and go
/// with their task.
pub async fn long_texts_come_back_as_they_were(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let new = long_task();
    let task = world.submit(new.clone()).await;
    let size = world.store.input_size(task.id).await.expect("it answers").expect("it is there");
    let texts = long("graph").get().len() + long("extra").get().len();
    assert!((texts as u64..texts as u64 + 200).contains(&size), "{size} of {texts}");
    let hand = world.hand("w").await;
    let claim = hand.get().await;
    assert_eq!(claim.input.workflow.get(), new.input.workflow.get());
    let extra = |extra: Option<Box<PromptExtra>>| {
        let extra = extra.expect("it is there");
        (extra.number, extra.extra_data.expect("it is there").get().to_owned())
    };
    assert_eq!(extra(claim.input.extra), extra(new.input.extra.clone()));

    world.restart().await;
    let hand = world.hand_of("w", hand.owner).await;
    let adopted = hand.adopt(&[]).await.pop().expect("it is found again");
    assert_eq!(adopted.input.workflow.get(), new.input.workflow.get());
    assert_eq!(extra(adopted.input.extra), extra(new.input.extra));
    let outputs = long("outputs").get().to_owned();
    let outputs: serde_json::Value = serde_json::from_str(&outputs).expect("it is JSON");
    let result = TaskResult { outputs: outputs.into(), ..TaskResult::default() };
    let ending = Ending::Completed { result: result.clone(), gpu_ms: None };
    for repeated in [false, true] {
        let reply =
            world.store.end(hand.owner, adopted.lease.reference(), ending.clone()).await.expect("it ends");
        assert_eq!(reply.repeated, repeated);
    }

    world.restart().await;
    let whole = world.task(task.id).await;
    assert_eq!(whole.result, Some(result));
    let glance = world.store.glance(task.id).await.expect("it answers").expect("it is there");
    assert!(!glance.whole, "it is large");
    assert_eq!(glance.task, whole.briefly());
    let size = world.store.task_size(task.id).await.expect("it answers").expect("it is there");
    let most = whole.text_bytes() as u64;
    assert!((most..most + 2000).contains(&size), "{size} of {most}");
    let graph = RawValue::from_string("{}".to_owned()).expect("it is JSON");
    let mut small = NewTask::new(graph);
    small.metadata = Some(json!({"mine": 1}).into());
    let small = world.submit(small).await;
    let glance = world.store.glance(small.id).await.expect("it answers").expect("it is there");
    assert_eq!(glance, Glance { task: world.task(small.id).await, whole: true });
    let lookup = Lookup { tenant: task.tenant, key: None, id: Some(task.id), input: true };
    match world.store.look_up_small(&lookup).await.expect("it answers") {
        LookedUp::Large { task: id, bytes } => {
            assert_eq!(id, task.id);
            assert!(bytes > most + texts as u64, "{bytes}");
        }
        LookedUp::Small(found) => panic!("it is large, and not {found:?}"),
    }
    let (_, input) = world.store.look_up(lookup).await.expect("it answers").expect("it is there");
    assert_eq!(input.expect("it was asked for").workflow.get(), new.input.workflow.get());
    world.clock.advance(SECOND);
    assert_eq!(world.store.forget(&[task.id]).await.expect("it answers"), 1);
    assert!(world.store.input(task.id).await.expect("it answers").is_none());
}

/// The same long submission again is the same task, and nothing of it is lost.
pub async fn a_long_task_is_taken_in_once(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let new = long_task();
    let (first, second) = tokio::join!(world.store.submit(new.clone()), world.store.submit(new.clone()));
    assert_eq!(first.expect("it is taken in").task().id, second.expect("it is taken in").task().id);
    world.submit(new.clone()).await;
    assert_eq!(world.store.counts(None).await.expect("it counts").pending, 1);
    let input = world.store.input(new.id).await.expect("it answers").expect("it is there");
    assert_eq!(input.workflow.get(), new.input.workflow.get());
}
