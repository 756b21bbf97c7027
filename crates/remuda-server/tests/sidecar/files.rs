//! Files are streamed, arrive whole or not at all, and only under the current lease.

use std::io;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use remuda_core::Sha256;
use remuda_files::FileKey;
use remuda_runner::source::{ByteStream, NewFile, Source, SourceError};

use crate::ground::{Ground, completed};

const PIECE: usize = 256 << 10;

fn zeros(pieces: usize, last: Option<io::Error>) -> ByteStream {
    let bytes = stream::repeat_with(|| Ok(Bytes::from(vec![0; PIECE]))).take(pieces);
    bytes.chain(stream::iter(last.map(Err))).boxed()
}

/// Memory in use, in bytes.
#[cfg(target_os = "linux")]
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_large_file_passes_through_in_little_memory() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const SIZE: usize = 200 << 20;
    let ground = Ground::new().await;
    let id = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let before = memory();
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let bytes = zeros(SIZE / PIECE, None).inspect(move |_| {
        seen.fetch_max(memory(), Ordering::Relaxed);
    });
    let delivered = sidecar.deliver(&claim, 0, bytes.boxed()).await.unwrap();
    assert_eq!(delivered.size, SIZE as u64);
    // Both ends are in this process, and so are the tests beside this one.
    let grown = most.load(Ordering::Relaxed).saturating_sub(before);
    assert!(grown < 100 << 20, "{} MiB more", grown >> 20);
    sidecar.source.end(claim.lease.reference(), completed(0, delivered.clone())).await.unwrap();

    let mut hash = sha2::Sha256::default();
    let mut answer = ground.get(&format!("/api/v1/tasks/{id}/outputs/0")).await;
    while let Some(piece) = answer.chunk().await.unwrap() {
        sha2::Digest::update(&mut hash, &piece);
    }
    assert_eq!(Sha256(sha2::Digest::finalize(hash).into()), delivered.sha256);
}

#[tokio::test]
async fn a_stream_that_breaks_leaves_nothing_and_can_be_sent_again() {
    let ground = Ground::new().await;
    ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    for pieces in [0, 1, 20] {
        let broken = zeros(pieces, Some(io::Error::other("ComfyUI went away")));
        let error = sidecar.deliver(&claim, 0, broken).await.unwrap_err();
        assert!(matches!(error, SourceError::Unavailable(_)), "{error:?}");
    }
    let lease = &claim.lease;
    let key = FileKey::output(lease.task.0, 1, lease.fence.0.unsigned_abs(), 0, "a b/ü.png");
    assert_eq!(ground.files.size(&key).await.unwrap(), None);
    let delivered = sidecar.deliver(&claim, 0, zeros(20, None)).await.unwrap();
    assert_eq!((delivered.key.as_str(), delivered.size), (key.as_str(), 20 * PIECE as u64));
    sidecar.source.discard(lease.reference(), lease.attempt).await.unwrap();
    assert_eq!(ground.files.size(&key).await.unwrap(), None);
}

#[tokio::test]
async fn a_large_file_that_is_refused_is_refused_in_words() {
    let ground = Ground::new().await;
    ground.submit().await;
    let sidecar = ground.sidecar().await;
    let old = sidecar.claim().await;
    let claim = sidecar.adopt().await;
    for _ in 0..5 {
        let refused = sidecar.deliver(&old, 0, zeros(400, None)).await;
        assert!(matches!(refused, Err(SourceError::Fenced)), "{refused:?}");
    }
    let file = NewFile { n: 0, filename: "a".to_owned(), size: Some(1 << 40) };
    let refused =
        sidecar.source.deliver(claim.lease.reference(), claim.lease.attempt, file, zeros(400, None)).await;
    assert!(matches!(&refused, Err(SourceError::Refused(words)) if words.contains("413")), "{refused:?}");
}
