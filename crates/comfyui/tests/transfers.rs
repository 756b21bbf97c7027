//! Files over links that stand still, crawl or break, in both directions.

#![allow(clippy::expect_used, reason = "test code")]

use std::time::Duration;

use bytes::Bytes;
use comfyui::{Client, Error, FileRef, Upload};
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

const TIMEOUT: Duration = Duration::from_secs(2);
/// For a link that is slow: what the kernel buffers must drain within it.
const PATIENT: Duration = Duration::from_secs(3);
const BOUND: Duration = Duration::from_secs(60);

/// Serves connections with `serve` until the guard is dropped.
async fn server<F>(timeout: Duration, serve: impl Fn(TcpStream) -> F + Send + 'static) -> (Client, DropGuard)
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    connections.spawn(serve(stream));
                },
            }
        }
    });
    let client = Client::builder(&url).timeout(timeout).retries(0).build().expect("an address");
    (client, stop.drop_guard())
}

#[tokio::test]
async fn a_download_that_stands_still_in_the_middle_ends() {
    let (client, _stop) = server(TIMEOUT, |mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nsome").await?;
        std::future::pending().await
    })
    .await;
    let download = client.view(&FileRef::output("x.mp4")).await.expect("headers came");
    let end = tokio::time::timeout(BOUND, download.bytes(1 << 20)).await.expect("an end");
    assert!(matches!(end, Err(Error::TimedOut { .. })), "{end:?}");
}

#[tokio::test]
async fn a_download_that_ends_too_early_is_an_error() {
    let (client, _stop) = server(TIMEOUT, |mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nsome").await
    })
    .await;
    let download = client.view(&FileRef::output("x.mp4")).await.expect("headers came");
    assert!(download.write_to(&mut tokio::io::sink()).await.is_err());
}

#[tokio::test]
async fn an_upload_that_nobody_takes_ends() {
    let (client, _stop) = server(TIMEOUT, |stream| async move {
        let _open = stream;
        std::future::pending().await
    })
    .await;
    let upload = Upload::from_bytes("x.bin", vec![0; 64 << 20]);
    let end = tokio::time::timeout(BOUND, client.upload(upload)).await.expect("an end");
    assert!(matches!(end, Err(Error::TimedOut { .. })), "{end:?}");
}

#[tokio::test]
async fn an_upload_whose_answer_never_comes_to_its_end_ends() {
    let (client, _stop) = server(TIMEOUT, |mut stream| async move {
        let _ = stream.read(&mut [0; 65536]).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{").await?;
        std::future::pending().await
    })
    .await;
    let end =
        tokio::time::timeout(BOUND, client.upload(Upload::from_bytes("x.bin", "x"))).await.expect("an end");
    assert!(matches!(end, Err(Error::TimedOut { .. })), "{end:?}");
}

#[tokio::test]
async fn an_upload_over_a_slow_but_steady_link_arrives() {
    let (client, _stop) = server(PATIENT, |mut stream| async move {
        let answer = br#"{"name": "x.bin", "subfolder": "", "type": "input"}"#;
        let mut taken = 0;
        let mut buffer = vec![0; 256 << 10];
        // Longer in all than the timeout, with a sign of life within it.
        while taken < 64 << 20 {
            tokio::time::sleep(Duration::from_millis(16)).await;
            taken += stream.read(&mut buffer).await?;
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(answer).await
    })
    .await;
    let begun = std::time::Instant::now();
    let stored = client.upload(Upload::from_bytes("x.bin", vec![0; 64 << 20])).await.expect("stored");
    assert_eq!(stored.filename, "x.bin");
    assert!(begun.elapsed() > PATIENT, "the link was not slow");
}

#[tokio::test]
async fn a_source_that_fails_is_the_callers_trouble_and_not_the_servers() {
    let (client, _stop) = server(TIMEOUT, |mut stream| async move {
        let mut buffer = vec![0; 4096];
        while stream.read(&mut buffer).await? > 0 {}
        Ok(())
    })
    .await;
    let broken =
        stream::iter([Ok(Bytes::from_static(b"some")), Err(std::io::Error::other("the disk is gone"))]);
    let error = client.upload(Upload::from_stream("x.bin", None, broken)).await.expect_err("a broken source");
    assert!(
        matches!(&error, Error::Input { source, .. } if source.to_string() == "the disk is gone"),
        "{error:?}"
    );
    let short = stream::iter([Ok(Bytes::from_static(b"some"))]);
    let error =
        client.upload(Upload::from_stream("x.bin", Some(10), short)).await.expect_err("a short source");
    assert!(matches!(error, Error::Input { .. }), "{error:?}");
}

#[tokio::test]
async fn headers_of_the_caller_do_not_follow_a_redirect_to_another_host() {
    let (client, _stop) = server(TIMEOUT, |mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await?;
        stream
            .write_all(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.2:1/\r\ncontent-length: 0\r\n\r\n")
            .await
    })
    .await;
    let error = client.system_stats().await.expect_err("not followed");
    assert!(matches!(error, Error::Status { status, .. } if status == 302), "{error:?}");
}

#[test]
fn credentials_in_an_address_are_refused_and_not_repeated() {
    let error = Client::new("http://user:secret@127.0.0.1:8188").expect_err("refused");
    assert!(!format!("{error:?} {error}").contains("secret"), "{error:?}");
}
