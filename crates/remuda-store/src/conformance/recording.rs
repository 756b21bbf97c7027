//! The small things that a store keeps: leaders, keys, uploads, descriptions of nodes.

use remuda_core::{ApiKey, KeyId, KeyRecord, Scope, Sha256, Timestamp};
use uuid::Uuid;

use super::Fixture;
use super::world::{SECOND, World, owner, tenant};
use crate::{Asset, Error};

/// One process leads until it stops saying so, and each leader has a higher number than the one before.
pub async fn one_process_leads(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let (first, second) = (owner(), owner());
    let lead = async |holder| world.store.lead("scaler", holder, 15 * SECOND).await.expect("it answers");
    let fence = lead(first).await.expect("nobody led before");
    assert_eq!(lead(second).await, None);
    assert!(
        world.store.lead("retention", second, SECOND).await.expect("it answers").is_some(),
        "another office"
    );
    world.clock.advance(14 * SECOND);
    assert_eq!(lead(first).await, Some(fence), "it stays, under the same number");
    world.clock.advance(14 * SECOND);
    assert_eq!(lead(second).await, None);
    world.clock.advance(2 * SECOND);
    let next = lead(second).await.expect("the first one's time is over");
    assert!(next > fence);
    assert_eq!(lead(first).await, None);
    world.store.resign("scaler", first).await.expect("it was not in office, and that is no error");
    assert_eq!(lead(first).await, None, "nobody resigns for another");
    world.store.resign("scaler", second).await.expect("it steps down");
    let last = lead(first).await.expect("the office is free");
    assert!(last > next);
}

/// Keys are kept with their hash, listed oldest first, and revoked once.
pub async fn keys_are_kept_and_revoked(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let secrets =
        [ApiKey::presented("rmd_one"), ApiKey::presented("rmd_two"), ApiKey::presented("rmd_three")];
    let mut made = Vec::new();
    for (secret, name) in secrets.iter().zip(["z", "a", "m"]) {
        let key = KeyRecord {
            id: KeyId(Uuid::new_v4()),
            name: name.to_owned(),
            tenant: tenant("team"),
            scopes: [Scope::Read, Scope::Submit].into(),
            hash: secret.hash(),
            created_at: world.now(),
            revoked_at: None,
        };
        world.store.add_key(key.clone()).await.expect("it is kept");
        made.push(key);
        world.clock.advance(SECOND);
    }
    assert_eq!(world.store.keys().await.expect("it lists"), made);
    let revoked = world.store.revoke_key(made[1].id).await.expect("it is there");
    made[1].revoked_at = Some(world.now());
    assert_eq!(revoked, made[1]);
    assert_eq!(world.store.keys().await.expect("it lists"), made, "revoked ones are listed, too");
    world.clock.advance(SECOND);
    let again = world.store.revoke_key(made[1].id).await.expect("it is there");
    assert!(!again.allows(Scope::Read));
    let unknown = world.store.revoke_key(KeyId(Uuid::new_v4())).await;
    assert!(matches!(unknown, Err(Error::NotFound { .. })), "{unknown:?}");
}

/// Uploads are found by content and by their newest name, each tenant's apart.
pub async fn assets_are_found_by_content_and_name(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let asset = |whose: &str, bytes: &[u8], filename: &str, created_at: Timestamp| Asset {
        tenant: tenant(whose),
        sha256: Sha256::of(bytes),
        key: format!("assets/{}", Sha256::of(bytes)),
        filename: filename.to_owned(),
        mime: "image/png".to_owned(),
        size: 3_000_000_000,
        created_at,
    };
    let old = asset("a", b"one", "cat.png", world.now());
    let new = asset("a", b"two", "cat.png", world.now() + SECOND);
    let others = asset("b", b"one", "cat.png", world.now() + 2 * SECOND);
    for asset in [&old, &new, &others] {
        world.store.add_asset(asset.clone()).await.expect("it is kept");
    }
    let by_content = async |whose: &str, bytes: &[u8]| {
        world.store.asset(&tenant(whose), Sha256::of(bytes)).await.expect("it answers")
    };
    assert_eq!(by_content("a", b"one").await.as_ref(), Some(&old));
    assert_eq!(by_content("b", b"one").await.as_ref(), Some(&others));
    assert_eq!(by_content("b", b"two").await, None);
    let by_name = async |whose: &str, name: &str| {
        world.store.asset_named(&tenant(whose), name).await.expect("it answers")
    };
    assert_eq!(by_name("a", "cat.png").await.as_ref(), Some(&new));
    assert_eq!(by_name("b", "cat.png").await.as_ref(), Some(&others));
    assert_eq!(by_name("a", "dog.png").await, None);
    // The same bytes again: it came again, perhaps under another name.
    let again = Asset { created_at: world.now() + 3 * SECOND, ..old.clone() };
    world.store.add_asset(again.clone()).await.expect("it is kept");
    assert_eq!(by_content("a", b"one").await.as_ref(), Some(&again));
    assert_eq!(by_name("a", "cat.png").await.as_ref(), Some(&again));
}

/// What a worker's nodes are is kept by its hash.
pub async fn descriptions_of_nodes_are_kept(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let json = format!(r#"{{"KSampler": {{"input": "{}"}}}}"#, "ä".repeat(300_000));
    let hash = Sha256::of(json.as_bytes());
    assert_eq!(world.store.object_info(hash).await.expect("it answers"), None);
    world.store.save_object_info(hash, &json).await.expect("it is kept");
    world.store.save_object_info(hash, &json).await.expect("twice is once");
    assert_eq!(world.store.object_info(hash).await.expect("it answers").as_deref(), Some(json.as_str()));
}
