//! The contract on a directory, and what only a directory can do wrong.

#![allow(clippy::expect_used, reason = "a helper that fails ends its test")]

use std::path::{Path, PathBuf};

use remuda_files::{Error, Files, Location};
use uuid::Uuid;

use crate::suite::{self, key, once, read};

fn open(path: &Path) -> Files {
    Files::open(&Location::directory(path)).expect("a store")
}

/// All files below a folder.
fn tree(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { tree(&path) } else { vec![path] }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_keeps_the_contract() {
    let folder = tempfile::tempdir().expect("a folder");
    suite::run_all(&open(folder.path())).await;
    let left: Vec<_> = tree(folder.path())
        .iter()
        .map(|path| path.strip_prefix(folder.path()).expect("below").to_owned())
        .collect();
    assert_eq!(left, [Path::new(".remuda-installation")], "nothing unfinished is left");
}

#[tokio::test]
async fn a_missing_directory_is_made_and_its_files_survive() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deep/below");
    open(&path).put(&key("a/b"), once("x"), None).await.expect("it is stored");
    let again = open(&path);
    assert_eq!(read(&again, &key("a/b")).await.expect("it is there"), "x");
    assert_eq!(
        again.path_on_disk(&key("a/b")).expect("a path"),
        path.canonicalize().expect("a path").join("a/b")
    );
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_a_bad_location() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let error = Files::open(&Location::directory(file.join("below"))).expect_err("a file is in the way");
    assert!(matches!(error, Error::BadLocation { .. }), "{error:?}");
}

/// An unmounted disk leaves an empty folder behind: that says nothing about the files.
#[tokio::test]
async fn a_disk_that_has_gone_is_not_an_empty_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, elsewhere) = (folder.path().join("mounted"), folder.path().join("unmounted"));
    let files = open(&root);
    files.check_installation(Uuid::from_u128(1), false).await.expect("it is claimed");
    let place = key("outputs/one/file");
    files.put(&place, once("x"), None).await.expect("it is stored");

    for empty_folder in [true, false] {
        std::fs::rename(&root, &elsewhere).expect("unmounted");
        if empty_folder {
            std::fs::create_dir(&root).expect("a mount point");
        }
        let errors = [
            files.size(&place).await.map(drop),
            files.get(&place, None).await.map(drop),
            files.delete(&place).await,
            files.delete_all(&key("outputs")).await.map(drop),
            files.put(&place, once("y"), None).await.map(drop),
        ];
        for error in errors {
            let error = error.expect_err("the disk has gone");
            assert!(matches!(error, Error::Unavailable { .. }) && error.is_temporary(), "{error:?}");
        }
        if empty_folder {
            assert!(tree(&root).is_empty(), "nothing was written beside the disk");
            std::fs::remove_dir(&root).expect("the mount point");
        }
        std::fs::rename(&elsewhere, &root).expect("mounted again");
        assert_eq!(read(&files, &place).await.expect("it is there"), "x");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn links_are_not_followed() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().expect("a folder");
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    std::fs::create_dir_all(outside.join("inner")).expect("a folder outside");
    std::fs::write(outside.join("secret"), "secret").expect("a file outside");
    let files = open(&root);
    symlink(&outside, root.join("outputs")).expect("a link to a folder");
    symlink(outside.join("secret"), root.join("link")).expect("a link to a file");

    files.get(&key("outputs/secret"), None).await.expect_err("it is outside");
    let error = files.get(&key("link"), None).await.expect_err("it is outside");
    assert!(matches!(error, remuda_files::Error::Linked { .. }), "as good as not there: {error}");
    files.size(&key("outputs/secret")).await.expect_err("it is outside");
    files.put(&key("outputs/new"), once("x"), None).await.expect_err("it is outside");
    files.put(&key("outputs/inner/new"), once("x"), None).await.expect_err("it is outside");
    files.delete(&key("outputs/secret")).await.expect_err("it is outside");
    files.delete_all(&key("outputs")).await.expect_err("it is outside");
    assert_eq!(tree(&outside), [outside.join("secret")]);

    // A file replaces a link, and a tree goes with the links in it: what they point to stays.
    files.put(&key("link"), once("ours"), None).await.expect("it is stored");
    std::fs::create_dir(root.join("tree")).expect("a folder");
    symlink(&outside, root.join("tree/link")).expect("a link");
    files.delete_all(&key("tree")).await.expect("it goes");
    assert_eq!(std::fs::read(outside.join("secret")).expect("it stayed"), b"secret");
    assert_eq!(read(&files, &key("link")).await.expect("it is there"), "ours");
}

#[tokio::test]
async fn what_a_crash_left_goes_with_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    files.put(&key("outputs/one/a.png"), once("x"), None).await.expect("it is stored");
    std::fs::write(folder.path().join("outputs/one/b.png#1"), "half").expect("an unfinished file");
    assert_eq!(files.delete_all(&key("outputs/one")).await.expect("they go"), 1, "only one was a file");
    assert!(!folder.path().join("outputs").exists());
}

#[tokio::test]
async fn old_temporary_files_are_swept() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    std::fs::create_dir(folder.path().join("tmp")).expect("a folder");
    let (old, young) = (folder.path().join("tmp/old#1"), folder.path().join("tmp/young"));
    std::fs::write(&old, "x").expect("a file");
    std::fs::write(&young, "x").expect("a file");
    let hour = std::time::Duration::from_secs(3600);
    let file = std::fs::File::options().write(true).open(&old).expect("a file");
    file.set_modified(std::time::SystemTime::now() - 2 * hour).expect("its time");
    assert_eq!(files.sweep_temporary(hour).await.expect("swept"), 1);
    assert!(young.exists() && !old.exists());
}

/// What a killed process left of a write goes when the write is repeated; what goes on beside it does not.
#[tokio::test]
async fn a_repeated_write_clears_what_the_killed_one_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    let place = |name: &str| folder.path().join(name);
    std::fs::create_dir(place("a")).expect("a folder");
    for name in ["a/b#1", "a/b#2", "a/b#x", "a/bc#1"] {
        std::fs::write(place(name), "x").expect("a file");
        let file = std::fs::File::options().write(true).open(place(name)).expect("a file");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        file.set_modified(if name == "a/b#2" { std::time::SystemTime::now() } else { old })
            .expect("its time");
    }
    files.put(&key("a/b"), once("y"), None).await.expect("it is stored");
    assert_eq!(read(&files, &key("a/b")).await.expect("it is there"), "y");
    let left = ["a/b#1", "a/b#2", "a/b#x", "a/bc#1"].map(|name| place(name).exists());
    assert_eq!(left, [false, true, true, true]);
}

/// A file that shrinks under a reader ends in an error, not in a short answer or an endless one.
#[tokio::test]
async fn a_file_that_shrinks_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    let place = key("a/b");
    files.put(&place, once(vec![7; 100_000]), None).await.expect("it is stored");
    let content = files.get(&place, None).await.expect("it is there");
    std::fs::File::options()
        .write(true)
        .open(folder.path().join("a/b"))
        .expect("a file")
        .set_len(10)
        .expect("cut");
    let error = content.bytes(u64::MAX).await.expect_err("it is shorter now");
    assert!(error.to_string().contains("99990 bytes early"), "{error}");
}

/// The cause is found through all of object_store's wrappings.
#[tokio::test]
async fn a_folder_in_the_way_is_no_outage() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    files.put(&key("a/b"), once("x"), None).await.expect("it is stored");
    let error = files.put(&key("a"), once("x"), None).await.expect_err("it is a folder");
    assert!(matches!(error, Error::Other { .. }) && !error.is_temporary(), "{error:?}");
    let error = files.put(&key("a/b/c"), once("x"), None).await.expect_err("it is a file");
    assert!(!matches!(error, Error::NotFound { .. }), "{error:?}");
}

/// On S3 a folder and a file may have the same name; here neither is taken for the other.
#[tokio::test]
async fn a_folder_is_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    let inner = key("outputs/folder/file");
    files.put(&inner, once("x"), None).await.expect("it is stored");
    for place in ["outputs/folder", "outputs/folder/file/below"] {
        assert_eq!(files.size(&key(place)).await.expect("an answer"), None);
        let error = files.get(&key(place), None).await.expect_err("no file");
        assert!(matches!(error, Error::NotFound { .. }), "{place}: {error:?}");
    }
    files.delete(&key("outputs/folder")).await.expect_err("only `delete_all` removes folders");
    assert_eq!(files.delete_all(&inner).await.expect("nothing is below a file"), 0);
    assert_eq!(read(&files, &inner).await.expect("it stayed"), "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_claim_at_once_one_wins() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = open(folder.path());
    let claims = (1..=8).map(|id| {
        let files = files.clone();
        tokio::spawn(async move { files.check_installation(Uuid::from_u128(id), false).await })
    });
    let results = futures_util::future::join_all(claims).await;
    let results: Vec<_> = results.into_iter().map(|result| result.expect("no panic")).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    for error in results.into_iter().filter_map(Result::err) {
        assert!(matches!(error, Error::WrongInstallation { found: Some(_), .. }), "{error:?}");
    }
}
