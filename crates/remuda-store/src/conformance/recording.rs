//! The small things that a store keeps: leaders, keys, uploads, descriptions of nodes.

use remuda_core::quota::Quota;
use remuda_core::{ApiKey, KeyId, KeyRecord, Placement, Priority, Scope, Sha256, Tenant, Timestamp};
use uuid::Uuid;

use super::Fixture;
use super::world::{SECOND, World, completed, new_task, owner, tenant};
use crate::{Asset, AssetUse, DocumentLimits, Error};

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

/// A deleted upload is gone under all its names, counts no more, and is still there for others who brought the same.
pub async fn deleted_assets_make_room_and_are_found_no_more(fixture: impl Fixture) {
    let quota = Quota { waiting: 0, bytes: 1_000 };
    let world = World::with(fixture, |options| options.quota = quota).await;
    let asset = |whose: &str, filename: &str| Asset {
        tenant: tenant(whose),
        sha256: Sha256::of(b"one"),
        key: format!("assets/{}", Sha256::of(b"one")),
        filename: filename.to_owned(),
        mime: "image/png".to_owned(),
        size: 900,
        created_at: world.now(),
    };
    for (whose, name) in [("a", "1.png"), ("a", "2.png"), ("b", "1.png")] {
        world.store.add_asset(asset(whose, name)).await.expect("it is kept");
    }
    let content = Sha256::of(b"one");
    let unknown =
        async || world.store.unknown_assets(vec![content, Sha256::of(b"two")]).await.expect("it answers");
    assert_eq!(unknown().await, [Sha256::of(b"two")]);
    let delete = async |whose: &str| world.store.delete_asset(&tenant(whose), content).await;
    for (whose, was_there) in [("a", true), ("a", false), ("c", false)] {
        assert_eq!(delete(whose).await.expect("it answers"), was_there, "{whose}");
        let left = world.store.room(&tenant(whose)).await.expect("it answers");
        assert_eq!(left, 1_000, "{whose}");
    }
    assert_eq!(world.store.asset(&tenant("a"), content).await.expect("it answers"), None);
    assert_eq!(world.store.asset_named(&tenant("a"), "2.png").await.expect("it answers"), None);
    assert!(world.store.asset(&tenant("b"), content).await.expect("it answers").is_some());
    assert_eq!(unknown().await, [Sha256::of(b"two")], "another tenant has it");
    delete("b").await.expect("it is deleted");
    assert_eq!(unknown().await, [content, Sha256::of(b"two")]);
    // It counts again when it comes again.
    world.store.add_asset(asset("a", "1.png")).await.expect("it is kept");
    assert_eq!(world.store.room(&tenant("a")).await.expect("it answers"), 100);
}

/// Who takes back the name of an upload takes back that and no other, and not what came again since. Names of one content have an end.
pub async fn a_name_of_an_asset_is_taken_back_alone(fixture: impl Fixture) {
    let quota = Quota { waiting: 0, bytes: 1_000 };
    let world = World::with(fixture, |options| options.quota = quota).await;
    let content = Sha256::of(b"one");
    let asset = |filename: &str| Asset {
        tenant: tenant("a"),
        sha256: content,
        key: format!("assets/{content}"),
        filename: filename.to_owned(),
        mime: "image/png".to_owned(),
        size: 900,
        created_at: world.now(),
    };
    let (first, second) = (asset("1.png"), asset("2.png"));
    for asset in [&first, &second] {
        world.store.add_asset(asset.clone()).await.expect("it is kept");
    }
    let withdraw = async |asset: &Asset| world.store.withdraw_asset(asset).await.expect("it answers");
    let room = async || world.store.room(&tenant("a")).await.expect("it answers");
    world.clock.advance(SECOND);
    let again = Asset { created_at: world.now(), ..first.clone() };
    world.store.add_asset(again.clone()).await.expect("it is kept");
    assert!(!withdraw(&first).await, "it came again");
    assert!(withdraw(&again).await);
    assert_eq!(room().await, 100, "there is another name");
    assert_eq!(world.store.asset(&tenant("a"), content).await.expect("it answers"), Some(second.clone()));
    assert!(withdraw(&second).await && !withdraw(&second).await);
    assert_eq!(room().await, 1_000);

    for n in 0..1_000 {
        world.store.add_asset(asset(&format!("{n}.png"))).await.expect("it is kept");
    }
    let refused = world.store.add_asset(asset("one more.png")).await;
    assert!(matches!(refused, Err(Error::OverLimit { limit: "names_of_asset", .. })), "{refused:?}");
    world.store.add_asset(asset("7.png")).await.expect("it has that name");
}

/// Whoever reads an upload is found while it waits and while it runs, behind however many others.
pub async fn who_reads_an_asset_is_found_until_it_ends(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let content = Sha256::of(b"one");
    let find = async |whose: &Tenant| {
        let mut after = None;
        loop {
            match world.store.asset_use(whose, content, after, 2).await.expect("it answers") {
                AssetUse::By(task) => return Some(task),
                AssetUse::After(task) => after = Some(task),
                AssetUse::Unused => return None,
            }
        }
    };
    let whose = new_task().tenant;
    for _ in 0..5 {
        world.submit(new_task()).await;
    }
    assert_eq!(find(&whose).await, None);
    let mut new = new_task();
    new.priority = Priority::new(9).expect("it is one");
    new.input.placements.push(Placement {
        node_id: "1".to_owned(),
        input: "image".to_owned(),
        sha256: content,
        key: format!("assets/{content}"),
        filename: "cat.png".to_owned(),
    });
    let reads = world.submit(new).await.id;
    assert_eq!(find(&whose).await, Some(reads), "it waits");
    assert_eq!(find(&tenant("other")).await, None);
    let hand = world.hand("w").await;
    let claim = hand.get().await;
    assert_eq!(claim.task.id, reads);
    assert_eq!(find(&whose).await, Some(reads), "it runs");
    world.store.end(claim.lease.owner, claim.lease.reference(), completed()).await.expect("it ends");
    assert_eq!(find(&whose).await, None);
}

/// The newest upload under each name is listed, by name, each tenant's apart.
pub async fn assets_are_listed_by_name(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let mut kept = Vec::new();
    for (whose, bytes, filename) in [
        ("a", "1", "b.png"),
        ("a", "2", "folder/a.png"),
        ("a", "3", "B.png"),
        ("a", "4", "b.png"),
        ("b", "5", "a.png"),
        ("a", "6", "a_.png"),
        ("a", "6", "ä.png"),
    ] {
        world.clock.advance(SECOND);
        let asset = Asset {
            tenant: tenant(whose),
            sha256: Sha256::of(bytes.as_bytes()),
            key: format!("assets/{bytes}"),
            filename: filename.to_owned(),
            mime: "image/png".to_owned(),
            size: 1,
            created_at: world.now(),
        };
        world.store.add_asset(asset.clone()).await.expect("it is kept");
        kept.push(asset);
    }
    let listed =
        async |whose: &str, limit| world.store.assets(&tenant(whose), limit).await.expect("it lists");
    // By their bytes, wherever the database stands.
    let expected: Vec<Asset> = [2, 5, 3, 1, 6].map(|n: usize| kept[n].clone()).into();
    assert_eq!(listed("a", 10).await, expected);
    assert_eq!(listed("a", 2).await, expected[..2]);
    assert_eq!(listed("b", 10).await, kept[4..5]);
    assert!(listed("c", 10).await.is_empty());
    assert!(listed("a", 0).await.is_empty());
}

/// A document is what was last written; without permission nothing is replaced.
pub async fn documents_are_kept_and_replaced(fixture: impl Fixture) {
    let mut world = World::new(fixture).await;
    let (a, b) = (tenant("a"), tenant("b"));
    let first = world.now();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let made = world.store.put_document(&a, "settings", "x.json", all_bytes.clone(), false).await;
    let made = made.expect("it is kept").expect("there was none");
    assert_eq!((made.path.as_str(), made.size), ("x.json", 256));
    assert_eq!((made.created_at, made.modified_at), (first, first));
    world.clock.advance(SECOND);
    let refused = world.store.put_document(&a, "settings", "x.json", b"other".to_vec(), false).await;
    assert_eq!(refused.expect("it answers"), None);
    world.restart().await;
    let document = async |whose, space: &str, path: &str| {
        world.store.document(whose, space, path).await.expect("it answers")
    };
    let found = document(&a, "settings", "x.json").await.expect("it is there");
    assert_eq!((&found.tenant, found.space.as_str(), found.path.as_str()), (&a, "settings", "x.json"));
    assert_eq!((found.bytes, found.modified_at), (all_bytes, first), "it stayed as it was");
    let second = world.now();
    let large = vec![7_u8; 3 << 20];
    let replaced = world.store.put_document(&a, "settings", "x.json", large.clone(), true).await;
    let replaced = replaced.expect("it is kept").expect("it may be replaced");
    assert_eq!((replaced.created_at, replaced.modified_at), (first, second));
    assert_eq!(replaced.size, 3 << 20);
    assert_eq!(document(&a, "settings", "x.json").await.map(|found| found.bytes), Some(large));
    assert_eq!(document(&b, "settings", "x.json").await, None, "each tenant's apart");
    assert_eq!(document(&a, "userdata", "x.json").await, None, "each collection's apart");
    assert!(!world.store.delete_document(&b, "settings", "x.json").await.expect("it answers"));
    assert!(world.store.delete_document(&a, "settings", "x.json").await.expect("it answers"));
    assert!(!world.store.delete_document(&a, "settings", "x.json").await.expect("it answers"));
    assert_eq!(document(&a, "settings", "x.json").await, None);
    let empty = world.store.put_document(&a, "settings", "x.json", Vec::new(), true).await;
    let empty = empty.expect("it is kept").expect("there was none");
    assert_eq!((empty.size, empty.created_at), (0, second));
}

/// Documents are listed by what their paths begin with, in which no character means another.
pub async fn documents_are_listed_by_prefix(fixture: impl Fixture) {
    let world = World::new(fixture).await;
    let a = tenant("a");
    let paths = ["Z", "a%b", "a_b", "axb", "w/%_/é.json", "w/%_/日本.json", "w/2.json", "w\\x", "wz"];
    for path in paths.iter().rev() {
        let put = world.store.put_document(&a, "userdata", path, path.as_bytes().to_vec(), false).await;
        put.expect("it is kept").expect("there was none");
    }
    for (whose, space) in [(&a, "settings"), (&tenant("b"), "userdata")] {
        let put = world.store.put_document(whose, space, "w/other", Vec::new(), false).await;
        put.expect("it is kept").expect("there was none");
    }
    let listed = async |prefix: &str| -> Vec<String> {
        let found = world.store.documents(&a, "userdata", prefix).await.expect("it lists");
        for info in &found {
            assert_eq!(info.size, i64::try_from(info.path.len()).expect("it is short"));
            assert_eq!((info.created_at, info.modified_at), (world.now(), world.now()));
        }
        found.into_iter().map(|info| info.path).collect()
    };
    assert_eq!(listed("").await, paths, "in the order of their bytes");
    assert_eq!(listed("a%").await, ["a%b"]);
    assert_eq!(listed("a_").await, ["a_b"]);
    assert_eq!(listed("w/").await, paths[4..7]);
    assert_eq!(listed("w/%_/").await, paths[4..6]);
    assert_eq!(listed("w/%_/日").await, paths[5..6]);
    assert_eq!(listed("w\\").await, paths[7..8]);
    assert!(listed("w/%_/é.json0").await.is_empty());
    assert!(listed("A").await.is_empty(), "case matters");
}

/// A tenant keeps only this much; what it may not add changes nothing, and others are not concerned.
pub async fn a_tenant_keeps_so_many_documents_and_bytes(fixture: impl Fixture) {
    let world =
        World::with(fixture, |options| options.documents = DocumentLimits { count: 3, bytes: 100 }).await;
    let (a, b) = (tenant("a"), tenant("b"));
    let put = async |whose: &Tenant, space: &str, path: &str, size: usize, replace: bool| {
        let put = world.store.put_document(whose, space, path, vec![7; size], replace).await;
        match put {
            Ok(info) => Ok(info.is_some()),
            Err(Error::OverLimit { limit, .. }) => Err(limit),
            Err(error) => panic!("{error}"),
        }
    };
    let (number, bytes) = (Err("server.documents"), Err("server.document_bytes"));
    assert_eq!(put(&a, "settings", "1", 101, true).await, bytes);
    assert_eq!(put(&a, "settings", "1", 40, true).await, Ok(true));
    assert_eq!(put(&a, "userdata", "1", 40, false).await, Ok(true));
    assert_eq!(put(&a, "userdata", "2", 21, false).await, bytes, "of all collections together");
    assert_eq!(put(&a, "userdata", "2", 20, false).await, Ok(true));
    assert_eq!(put(&a, "userdata", "3", 0, false).await, number);
    assert_eq!(put(&a, "userdata", "2", 99, false).await, Ok(false), "there is one, and it stays");
    assert_eq!(put(&a, "userdata", "2", 21, true).await, bytes);
    assert_eq!(put(&a, "userdata", "2", 5, true).await, Ok(true), "in its place");
    assert_eq!(put(&a, "userdata", "2", 20, true).await, Ok(true));
    assert_eq!(put(&b, "userdata", "2", 100, true).await, Ok(true), "another tenant's");
    assert!(world.store.delete_document(&a, "settings", "1").await.expect("it answers"));
    assert_eq!(put(&a, "settings", "2", 40, true).await, Ok(true), "what was deleted makes room");
    assert_eq!(put(&a, "settings", "3", 0, true).await, number);
    let found = world.store.documents(&a, "userdata", "").await.expect("it lists");
    let sizes: Vec<i64> = found.iter().map(|info| info.size).collect();
    assert_eq!(sizes, [40, 20]);
    // Several at once do not get by each other.
    for path in ["1", "2"] {
        assert!(world.store.delete_document(&a, "userdata", path).await.expect("it answers"));
    }
    let paths: Vec<String> = (0..8).map(|n| n.to_string()).collect();
    let all = paths.iter().map(|path| put(&a, "userdata", path, 10, true));
    let done = futures_util::future::join_all(all).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 2, "{done:?}");
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
