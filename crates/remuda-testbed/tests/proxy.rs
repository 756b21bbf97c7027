//! The proxy: each kind of trouble, and that it heals.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use remuda_testbed::net::Proxy;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(100);

/// A server that repeats what it hears, and a proxy before it.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    Proxy::start(address.to_string()).await.expect("start a proxy")
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.expect("connect")
}

async fn answers(stream: &mut TcpStream) -> bool {
    stream.write_all(b"ping").await.expect("write");
    let mut answer = [0; 4];
    timeout(LONG, stream.read_exact(&mut answer)).await.is_ok_and(|read| read.is_ok() && &answer == b"ping")
}

#[tokio::test]
async fn it_passes_bytes_and_the_end_of_each_direction() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    let sent = vec![7; 1_000_000];
    let (mut from, mut to) = stream.split();
    let mut received = Vec::new();
    let send = async {
        to.write_all(&sent).await?;
        to.shutdown().await
    };
    let (_, read) =
        timeout(LONG, async { tokio::join!(send, from.read_to_end(&mut received)) }).await.unwrap();
    assert_eq!(read.unwrap(), sent.len());
    assert_eq!(received, sent);
}

#[tokio::test]
async fn refusing_spares_existing_connections_and_heals() {
    let proxy = echo().await;
    let mut before = connect(&proxy).await;
    assert!(answers(&mut before).await);
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(answers(&mut before).await);
    proxy.pass().await;
    assert!(answers(&mut connect(&proxy).await).await);
}

#[tokio::test]
async fn stalled_bytes_arrive_when_it_passes_again() {
    let proxy = echo().await;
    let mut before = connect(&proxy).await;
    assert!(answers(&mut before).await);
    proxy.stall().await;
    let mut during = connect(&proxy).await;
    let mut answer = [0; 1];
    for stream in [&mut before, &mut during] {
        stream.write_all(b"x").await.unwrap();
        assert!(timeout(SHORT, stream.read_exact(&mut answer)).await.is_err());
    }
    proxy.pass().await;
    for stream in [&mut before, &mut during] {
        timeout(LONG, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_cut_resets_what_there_is_and_nothing_later() {
    let proxy = echo().await;
    let mut flowing = connect(&proxy).await;
    assert!(answers(&mut flowing).await);
    proxy.stall().await;
    proxy.cut().await;
    let ended = timeout(LONG, flowing.read(&mut [0; 1])).await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    proxy.pass().await;
    let mut after = connect(&proxy).await;
    assert!(answers(&mut after).await);
    drop(proxy);
    assert!(timeout(LONG, after.read(&mut [0; 1])).await.unwrap().is_err());
}

#[tokio::test]
async fn nobody_behind_it_is_a_broken_connection() {
    let port = remuda_testbed::net::free_port().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{port}")).await.unwrap();
    let read = timeout(LONG, connect(&proxy).await.read(&mut [0; 1])).await.unwrap();
    assert!(read.is_err());
    assert_eq!(
        proxy.through("postgres://me:pw@db:5/x?a=1").unwrap(),
        format!("postgres://me:pw@{}/x?a=1", proxy.address())
    );
}
