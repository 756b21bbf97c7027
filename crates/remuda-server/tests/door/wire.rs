//! HTTP by hand, for clients that stall.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{BOUND, Gateway};

/// A connection on which nothing was said yet, and whose machine takes little that is not read.
pub(crate) async fn connect(gateway: &Gateway) -> TcpStream {
    let address = gateway.url.trim_start_matches("http://").parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    timeout(BOUND, socket.connect(address)).await.expect("a connection in time").unwrap()
}

/// Sends this head, with the key.
pub(crate) async fn say(gateway: &Gateway, key: &str, request: &str, rest: &str) -> TcpStream {
    let mut stream = connect(gateway).await;
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{rest}");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Asks for something, and does not read it.
pub(crate) async fn ask(gateway: &Gateway, key: &str, path: &str) -> TcpStream {
    say(gateway, key, &format!("GET {path}"), "\r\n").await
}

/// The beginning of an answer, as far as it fits into this many bytes.
pub(crate) async fn begins(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 1024];
    let read = timeout(BOUND, stream.read(&mut buffer)).await.expect("an answer in time").unwrap();
    String::from_utf8_lossy(&buffer[..read]).into_owned()
}

/// The status of the answer that comes; `None` while none comes.
pub(crate) async fn status_within(stream: &mut TcpStream, time: Duration) -> Option<u16> {
    let mut buffer = [0; 12];
    timeout(time, stream.read_exact(&mut buffer)).await.ok()?.ok()?;
    String::from_utf8_lossy(&buffer).rsplit(' ').next()?.parse().ok()
}

/// Reads to the end; how many bytes there were, and whether the end was a proper one.
pub(crate) async fn drain(stream: &mut TcpStream) -> (usize, bool) {
    let (mut all, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        match timeout(BOUND, stream.read(&mut buffer)).await.expect("an end in time") {
            Ok(0) => return (all, true),
            Ok(read) => all += read,
            Err(_) => return (all, false),
        }
    }
}
