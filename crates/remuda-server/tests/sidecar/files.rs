//! Files are streamed, arrive whole or not at all, and only under the current lease.

use std::io;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use remuda_files::FileKey;
use remuda_runner::source::{ByteStream, NewFile, Source, SourceError};

use crate::ground::Ground;

const PIECE: usize = 256 << 10;

fn zeros(pieces: usize, last: Option<io::Error>) -> ByteStream {
    let bytes = stream::repeat_with(|| Ok(Bytes::from(vec![0; PIECE]))).take(pieces);
    bytes.chain(stream::iter(last.map(Err))).boxed()
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
