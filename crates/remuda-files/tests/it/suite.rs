//! What every store must do. A backend that does not pass all of it does not exist.

#![allow(clippy::expect_used, reason = "these functions are the bodies of tests")]

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use remuda_files::{Error, FileKey, Files, Sha256};
use sha2::Digest;
use uuid::Uuid;

type Chunks = BoxStream<'static, io::Result<Bytes>>;

/// Runs every part of the contract on one store.
pub(crate) async fn run_all(files: &Files) {
    forty_megabytes_pass(files).await;
    sizes_around_a_part_pass(files).await;
    ranges_are_exact(files).await;
    a_failing_stream_leaves_nothing(files).await;
    a_dropped_write_leaves_nothing(files).await;
    a_limit_holds(files).await;
    content_is_kept_once(files).await;
    what_is_staged_is_seen_when_it_is_kept(files).await;
    many_may_bring_the_same(files).await;
    folders_are_deleted_whole_and_alone(files).await;
    absence_is_no_error(files).await;
    names_of_strangers_pass(files).await;
    installations_do_not_mix(files).await;
}

pub(crate) fn key(text: &str) -> FileKey {
    FileKey::parse(text).expect("a key")
}

pub(crate) fn once(content: impl Into<Bytes>) -> Chunks {
    stream::iter([Ok(content.into())]).boxed()
}

/// Bytes that depend on their place, so that a swapped or lost part is noticed.
fn sample(size: usize) -> Bytes {
    let mut state: u32 = 0x9e37_79b9;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut all: Vec<u8> =
        std::iter::repeat_with(next).take(size.div_ceil(4)).flat_map(u32::to_le_bytes).collect();
    all.truncate(size);
    all.into()
}

fn in_chunks(content: Bytes, chunk: usize) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let pieces = (0..content.len()).step_by(chunk).map(move |start| {
        let end = content.len().min(start + chunk);
        Ok(content.slice(start..end))
    });
    stream::iter(pieces)
}

fn hash(content: &[u8]) -> Sha256 {
    Sha256(sha2::Sha256::digest(content).into())
}

pub(crate) async fn read(files: &Files, key: &FileKey) -> Result<Bytes, Error> {
    files.get(key, None).await?.bytes(u64::MAX).await
}

async fn forty_megabytes_pass(files: &Files) {
    let content = sample(40 << 20);
    let place = key("outputs/large/video.mp4");
    // Odd chunks, so that none of them ends with a part.
    let stored =
        files.put(&place, in_chunks(content.clone(), 777_777), Some(40 << 20)).await.expect("it is stored");
    assert_eq!((stored.size, stored.sha256), (40 << 20, hash(&content)));
    assert_eq!(files.size(&place).await.expect("a size"), Some(40 << 20));

    let mut back = files.get(&place, None).await.expect("it is there");
    assert_eq!((back.size, back.range.clone()), (40 << 20, 0..40 << 20));
    let (mut hasher, mut most) = (sha2::Sha256::new(), 0);
    while let Some(chunk) = back.stream.next().await {
        let chunk = chunk.expect("a chunk");
        most = most.max(chunk.len());
        hasher.update(&chunk);
    }
    assert_eq!(Sha256(hasher.finalize().into()), stored.sha256);
    assert!(most <= 4 << 20, "a chunk of {most} bytes is not streaming");
    files.delete(&place).await.expect("it goes");
}

async fn sizes_around_a_part_pass(files: &Files) {
    let place = key("outputs/edges/file");
    for part in [1_usize << 20, 5 << 20] {
        for size in [0, 1, part - 1, part, part + 1, 2 * part] {
            let content = sample(size);
            let stored =
                files.put(&place, in_chunks(content.clone(), 1 << 18), None).await.expect("it is stored");
            assert_eq!((stored.size, stored.sha256), (size as u64, hash(&content)), "{size} bytes");
            let back = read(files, &place).await.expect("it is there");
            assert!(back == content, "{size} bytes come back as others");
        }
    }
    files.delete(&place).await.expect("it goes");
}

async fn ranges_are_exact(files: &Files) {
    let content = sample(700_001);
    let place = key("outputs/ranges/file");
    files.put(&place, once(content.clone()), None).await.expect("it is stored");
    let size = content.len() as u64;
    for range in [0..1, 0..size, 5..5, 1000..300_000, size - 1..size, size - 10..size + 10, size..size] {
        let part = files.get(&place, Some(range.clone())).await.expect("a part");
        let expected = range.start..range.end.min(size);
        assert_eq!((part.size, part.range.clone()), (size, expected.clone()), "{range:?}");
        let bytes = part.bytes(u64::MAX).await.expect("bytes");
        assert!(bytes == content[expected.start as usize..expected.end as usize], "{range:?}");
    }
    for range in [size..size + 1, size + 5..size + 9, size + 5..size + 5] {
        let error = files.get(&place, Some(range.clone())).await.expect_err("it begins after the end");
        assert!(matches!(error, Error::BadRange { size: told } if told == size), "{range:?}: {error:?}");
    }
    let error = files.get(&key("outputs/ranges/none"), Some(0..1)).await.expect_err("no file");
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    files.delete(&place).await.expect("it goes");
}

/// Both within the first part and after several: one is never sent, the others are taken back.
async fn a_failing_stream_leaves_nothing(files: &Files) {
    for size in [1000, 12 << 20] {
        let fresh = key("outputs/failing/fresh");
        let known = key("outputs/failing/known");
        files.put(&known, once("before"), None).await.expect("it is stored");
        for place in [&fresh, &known] {
            let broken = in_chunks(sample(size), 1 << 18).chain(stream::iter([Err(io::Error::other("cut"))]));
            let error = files.put(place, broken, None).await.expect_err("the stream failed");
            assert!(matches!(&error, Error::Source(source) if source.to_string() == "cut"), "{error:?}");
            assert!(!error.is_temporary());
        }
        assert_eq!(files.size(&fresh).await.expect("an answer"), None);
        assert_eq!(read(files, &known).await.expect("what was there"), "before");

        let broken = in_chunks(sample(size), 1 << 18).chain(stream::iter([Err(io::Error::other("cut"))]));
        files.put_content_addressed(broken, None).await.expect_err("the stream failed");
    }
    files.settled().await;
    assert_eq!(files.delete_all(&key("outputs/failing")).await.expect("it goes"), 1);
    assert_eq!(files.delete_all(&key("tmp")).await.expect("nothing temporary is left"), 0);
}

async fn a_dropped_write_leaves_nothing(files: &Files) {
    let place = key("outputs/dropped/file");
    for addressed in [false, true] {
        let (asked, mut all_read) = tokio::sync::mpsc::channel::<()>(1);
        let never = stream::once(async move {
            asked.send(()).await.expect("the test waits");
            std::future::pending().await
        });
        let endless = in_chunks(sample(12 << 20), 1 << 18).chain(never);
        let write = async {
            match addressed {
                false => files.put(&place, endless, None).await.map(drop),
                true => files.put_content_addressed(endless, None).await.map(drop),
            }
        };
        // All that the stream has was taken: two parts are in the store or on their way.
        tokio::select! {
            result = write => unreachable!("the stream has no end: {result:?}"),
            () = async { all_read.recv().await.expect("the stream is read") } => {}
        }
        files.settled().await;
        assert_eq!(files.size(&place).await.expect("an answer"), None);
        assert_eq!(files.delete_all(&key("tmp")).await.expect("nothing temporary is left"), 0);
    }
}

async fn a_limit_holds(files: &Files) {
    let place = key("outputs/limits/file");
    for (size, limit) in [(11, 10), (7 << 20, (6 << 20) + 5)] {
        let error =
            files.put(&place, in_chunks(sample(size), 1 << 18), Some(limit)).await.expect_err("too large");
        assert!(matches!(error, Error::TooLarge { limit: told } if told == limit), "{error:?}");
        assert_eq!(files.size(&place).await.expect("an answer"), None);
        files
            .put_content_addressed(in_chunks(sample(size), 1 << 18), Some(limit))
            .await
            .expect_err("too large");
        files
            .put(&place, in_chunks(sample(limit as usize), 1 << 18), Some(limit))
            .await
            .expect("it fits exactly");
        files.delete(&place).await.expect("it goes");
    }
    files.settled().await;
}

async fn content_is_kept_once(files: &Files) {
    for size in [1000, 7 << 20] {
        let content = sample(size);
        let digits = hash(&content).to_string();
        let (first, stored) =
            files.put_content_addressed(in_chunks(content.clone(), 99_999), None).await.expect("stored");
        assert_eq!(first.as_str(), format!("assets/{}/{digits}", &digits[..2]));
        assert_eq!((stored.size, stored.sha256), (size as u64, hash(&content)));
        let again = files
            .put_content_addressed(in_chunks(content.clone(), 12_345), None)
            .await
            .expect("stored again");
        assert_eq!(again, (first.clone(), stored));
        assert!(read(files, &first).await.expect("it is there") == content);

        // Damage from outside is mended by the next upload.
        files.put(&first, once("damaged"), None).await.expect("it is damaged");
        files.put_content_addressed(in_chunks(content.clone(), 99_999), None).await.expect("stored");
        assert!(read(files, &first).await.expect("it is there") == content);
    }
    files.settled().await;
    assert_eq!(files.delete_all(&key("tmp")).await.expect("nothing temporary is left"), 0);
    assert_eq!(files.delete_all(&key("assets")).await.expect("they go"), 2);
    assert_eq!(files.sweep_temporary(Duration::ZERO).await.expect("nothing to sweep"), 0);
}

async fn what_is_staged_is_seen_when_it_is_kept(files: &Files) {
    for size in [1000, 6 << 20] {
        let content = sample(size);
        let place = FileKey::asset(hash(&content));
        let stage = async || files.stage(in_chunks(content.clone(), 99_999), None).await.expect("it is read");
        drop(stage().await);
        let staged = stage().await;
        assert_eq!((staged.stored().size, staged.stored().sha256), (size as u64, hash(&content)));
        assert_eq!(files.size(&place).await.expect("an answer"), None);
        assert_eq!(staged.keep().await.expect("it is kept").0, place);
        assert!(read(files, &place).await.expect("it is there") == content);
        let folder = hash(&content).0[0];
        let listed = async |age| files.contents(folder, age).await.expect("an answer");
        assert_eq!(listed(Duration::ZERO).await, [hash(&content)]);
        assert_eq!(listed(Duration::from_secs(3600)).await, []);

        let aside = files.set_aside(&place).await.expect("it is moved").expect("it was there");
        assert_eq!(files.size(&place).await.expect("an answer"), None);
        assert!(files.set_aside(&place).await.expect("an answer").is_none(), "it is not there now");
        aside.put_back().await.expect("it is back");
        assert!(read(files, &place).await.expect("it is there") == content);
        let aside = files.set_aside(&place).await.expect("it is moved").expect("it was there");
        aside.remove().await.expect("it goes");
        assert_eq!(files.size(&place).await.expect("an answer"), None);
    }
    files.settled().await;
    assert_eq!(files.delete_all(&key("tmp")).await.expect("nothing temporary is left"), 0);
}

async fn many_may_bring_the_same(files: &Files) {
    for size in [1000, 6 << 20] {
        let content = sample(size);
        let uploads = (0..6).map(|n| {
            let (files, content) = (files.clone(), content.clone());
            tokio::spawn(
                async move { files.put_content_addressed(in_chunks(content, 100_000 + n), None).await },
            )
        });
        for result in futures_util::future::join_all(uploads).await {
            let (key, stored) = result.expect("no panic").expect("it is stored");
            assert_eq!((key, stored.size), (FileKey::asset(hash(&content)), size as u64));
        }
        assert!(read(files, &FileKey::asset(hash(&content))).await.expect("it is there") == content);
    }
    files.settled().await;
    assert_eq!(files.delete_all(&key("tmp")).await.expect("nothing temporary is left"), 0);
    assert_eq!(files.delete_all(&key("assets")).await.expect("they go"), 2);
}

async fn folders_are_deleted_whole_and_alone(files: &Files) {
    let (task, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let places = [
        FileKey::output(task, 1, 5, 0, "a.png"),
        FileKey::output(task, 1, 5, 1, "a.png"),
        FileKey::output(task, 2, 9, 0, "a.png"),
        FileKey::output(task, 2, 91, 0, "a.png"),
        FileKey::output(other, 2, 9, 0, "a.png"),
    ];
    for place in &places {
        files.put(place, once(place.to_string()), None).await.expect("it is stored");
    }
    // `2-9` is a folder, not the beginning of `2-91`.
    assert_eq!(files.delete_all(&FileKey::outputs_of_attempt(task, 2, 9)).await.expect("it goes"), 1);
    assert_eq!(files.size(&places[2]).await.expect("an answer"), None);
    assert!(files.size(&places[3]).await.expect("an answer").is_some());
    let kept = std::collections::BTreeSet::from(["1-5".to_owned(), "2-9".to_owned()]);
    assert_eq!(files.delete_all_but(&FileKey::outputs_of(task), &kept).await.expect("one goes"), 1);
    assert_eq!(files.size(&places[3]).await.expect("an answer"), None);
    assert!(files.size(&places[1]).await.expect("an answer").is_some());
    assert_eq!(files.delete_all(&FileKey::outputs_of(task)).await.expect("they go"), 2);
    assert_eq!(files.delete_all(&FileKey::outputs_of(task)).await.expect("none is fine"), 0);
    assert_eq!(read(files, &places[4]).await.expect("another task's"), places[4].as_str());
    assert_eq!(files.delete_all(&FileKey::outputs_of(other)).await.expect("they go"), 1);
}

async fn absence_is_no_error(files: &Files) {
    let nothing = key("outputs/nothing/here");
    assert_eq!(files.size(&nothing).await.expect("an answer"), None);
    files.delete(&nothing).await.expect("absent is fine");
    let error = files.get(&nothing, None).await.expect_err("no file");
    assert!(matches!(&error, Error::NotFound { key } if *key == nothing), "{error:?}");
}

async fn names_of_strangers_pass(files: &Files) {
    let task = Uuid::from_u128(3);
    let names = [
        "ComfyUI_00001_.png",
        "a b.png",
        "größe 猫.webp",
        "..",
        "../../etc/passwd",
        "C:\\con",
        "nul.txt",
        ".hidden",
        "",
        "x#1",
        "100%25.png",
        "q?a=b&c=d",
        "new\nline\0.png",
        "+plus+.png",
        "a=b,c@d!(1).png",
        "trailing. ",
        "~",
        "e\u{301}.png",
    ];
    for (n, name) in (0..).zip(names) {
        let place = FileKey::output(task, 1, 1, n, name);
        files.put(&place, once(name), None).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(read(files, &place).await.expect("it is there"), name, "{place}");
        assert_eq!(files.size(&place).await.expect("a size"), Some(name.len() as u64), "{place}");
    }
    assert_eq!(files.delete_all(&FileKey::outputs_of(task)).await.expect("they go"), names.len() as u64);
}

async fn installations_do_not_mix(files: &Files) {
    let (ours, theirs) = (Uuid::from_u128(10), Uuid::from_u128(11));
    let error = files.check_installation(ours, true).await.expect_err("nobody was here");
    assert!(matches!(error, Error::WrongInstallation { found: None, .. }), "{error:?}");
    files.check_installation(ours, false).await.expect("it is claimed");
    files.check_installation(ours, false).await.expect("it is ours");
    files.check_installation(ours, true).await.expect("it is ours");
    for must_exist in [false, true] {
        let error = files.check_installation(theirs, must_exist).await.expect_err("it is not theirs");
        assert!(error.to_string().contains(&ours.to_string()), "{error}");
        assert!(matches!(error, Error::WrongInstallation { found: Some(_), .. }), "{error:?}");
        assert!(!error.is_temporary());
    }
}
