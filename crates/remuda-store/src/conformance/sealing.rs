//! What is secret of a task: sealed on the way in, there for whoever runs it, and for nobody else.

use remuda_core::{NewTask, PromptExtra};
use serde_json::value::RawValue;

use super::Fixture;
use super::world::{World, completed, new_task};
use crate::{Error, Keyring, Options};

const EXTRA: &str = r#"{"preview_method": "auto", "api_key_comfy_org": "sk-very-secret", "myToken":{"a":1}}"#;

fn paid() -> NewTask {
    let mut new = new_task();
    let extra_data = RawValue::from_string(EXTRA.to_owned()).expect("it is JSON");
    new.input.extra = Some(Box::new(PromptExtra { extra_data: Some(extra_data), ..PromptExtra::default() }));
    new
}

fn shown(input: &remuda_core::TaskInput) -> (serde_json::Value, Vec<String>) {
    let extra = input.extra.as_ref().expect("it came with extra data");
    let data = extra.extra_data.as_ref().expect("it came with extra data");
    (serde_json::from_str(data.get()).expect("it is JSON"), extra.sealed.clone())
}

fn whole() -> serde_json::Value {
    serde_json::from_str(EXTRA).expect("it is JSON")
}

fn keyed(keys: &[&str]) -> impl Fn(&mut Options) {
    let secrets = Keyring::parse(&keys.join(" ")).expect("they are keys");
    move |options| options.secrets = secrets.clone()
}

/// Readers see what is not secret; claims, also those after a restart, see everything.
pub async fn what_is_secret_is_for_claims_only(fixture: impl Fixture) {
    let key = Keyring::generate();
    let mut world = World::with(fixture, keyed(&[&key])).await;
    let mine = world.options.owner;
    let hand = world.hand_of("w", mine).await;
    let task = world.submit(paid()).await;
    let open = serde_json::json!({"preview_method": "auto"});
    let names = vec!["api_key_comfy_org".to_owned(), "myToken".to_owned()];
    let input = world.store.input(task.id).await.expect("it answers").expect("it is there");
    assert_eq!(shown(&input), (open.clone(), names.clone()));
    assert!(!format!("{input:?}").contains("sk-very"), "{input:?}");

    let claim = hand.get().await;
    assert_eq!(shown(&claim.input), (whole(), Vec::new()));
    assert!(!format!("{claim:?}").contains("sk-very"), "{claim:?}");
    world.restart().await;
    let hand = world.hand_of("w", mine).await;
    let adopted = hand.adopt(&[]).await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(shown(&adopted[0].input), (whole(), Vec::new()));
    // One that waits for nobody, claimed in the commit that takes it in.
    world
        .store
        .end(adopted[0].lease.owner, adopted[0].lease.reference(), completed())
        .await
        .expect("it ends");
    let parked = hand.park(false);
    let second = world.submit(paid()).await;
    let claim = parked.await.expect("no panic").expect("a task");
    assert_eq!((claim.task.id, shown(&claim.input)), (second.id, (whole(), Vec::new())));
    let ended = world.store.input(task.id).await.expect("it answers").expect("it is there");
    assert_eq!(shown(&ended), (open, names));
}

/// Without a key nothing secret is taken in, and everything else is.
pub async fn without_a_key_secrets_are_refused_by_name(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let new = paid();
    let id = new.id;
    match world.store.submit(new).await {
        Err(Error::NoSecretKey { field }) => assert_eq!(field, "api_key_comfy_org"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.store.task(id).await.expect("it answers"), None);
    world.submit(new_task()).await;
}

/// A process with the wrong key, or with none, is refused and harms nothing. One key follows another.
pub async fn keys_follow_each_other_and_wrong_ones_are_refused(fixture: impl Fixture) {
    let (old, new) = (Keyring::generate(), Keyring::generate());
    let mut world = World::with(fixture, keyed(&[&old])).await;
    let cluster_key = world.store.installation().await.expect("it answers").cluster_key;
    let mine = world.options.owner;
    let task = world.submit(paid()).await;
    let right = world.options.clone();
    world.store.close().await;
    for wrong in [Keyring::default(), Keyring::parse(&new).expect("a key")] {
        let refused = world.another(|options| options.secrets = wrong).await.expect_err("it is refused");
        assert!(matches!(refused, Error::WrongSecretKey(_)), "{refused}");
        assert!(refused.to_string().contains("--secret-key-file"), "{refused}");
    }
    world.options = right;
    world.restart().await;
    for keys in [vec![&*old, &new], vec![&*new, &old], vec![&*new]] {
        keyed(&keys)(&mut world.options);
        world.restart().await;
        let installation = world.store.installation().await.expect("it answers");
        assert_eq!(installation.cluster_key, cluster_key);
    }
    // Its key is gone: whoever claims it is told so, and does not get it without.
    let hand = world.hand_of("w", mine).await;
    let claim = hand.get().await;
    assert_eq!(claim.task.id, task.id);
    assert_eq!(shown(&claim.input).1.len(), 2);
    keyed(&[&new, &old])(&mut world.options);
    world.restart().await;
    let hand = world.hand_of("w", mine).await;
    assert_eq!(shown(&hand.adopt(&[]).await[0].input), (whole(), Vec::new()));
}
