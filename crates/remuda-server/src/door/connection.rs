//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse as _, Response};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::lobby::Seated;
use super::socket::Socket;
use crate::access::{Line, OPEN};
use crate::error::ApiError;
use crate::options::Limits;
use crate::share::Held;

/// The longest head of a request, in bytes. Also what is read of a body at once.
const HEAD: usize = 32 << 10;

/// The most header lines of a request.
const HEADERS: usize = 128;

/// What a connection is told for which there is no room.
const NO_ROOM: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 78\r\n\r\n\
    {\"error\":\"too many connections at once: try again in a moment\",\"code\":\"busy\"}\n";

/// How long a connection of the reserve has for its request.
const RESERVE_HEAD_TIME: Duration = Duration::from_secs(2);

/// How much of an answer the kernel keeps that it cannot send yet, in bytes. Its own measure is megabytes for each
/// connection: hundreds of readers who take nothing fill the memory that all connections of the machine share.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 << 10;

/// How long a peer may keep us waiting, and what it may ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    /// For the head of a request, and between two requests.
    pub(crate) head_time: Duration,
    /// Without reading anything of what is written to it.
    pub(crate) write_time: Duration,
    /// Only one request is answered, and only if it is one of those that need no key.
    only_health: bool,
}

impl From<&Limits> for Manners {
    fn from(limits: &Limits) -> Self {
        Self { head_time: limits.head_time, write_time: limits.write_time, only_health: false }
    }
}

impl Manners {
    /// For a connection that came when all others were busy.
    pub(crate) fn in_reserve(self) -> Self {
        Self { head_time: self.head_time.min(RESERVE_HEAD_TIME), only_health: true, ..self }
    }
}

/// Tells a connection that there is no room, if it takes that at once.
pub(crate) fn refuse(stream: TcpStream) {
    // Whatever comes of it, the connection is closed.
    drop(stream.try_write(NO_ROOM));
}

/// Small answers go at once, and large ones do not pile up in the kernel.
fn set_up(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT could not be set");
    }
}

/// Answers the requests of one connection, until it ends, is told to leave, or everything stops.
pub(crate) async fn attend(
    stream: TcpStream,
    peer: SocketAddr,
    app: Router,
    seat: Arc<Seated>,
    manners: Manners,
    shutdown: CancellationToken,
) {
    set_up(&stream);
    let here = Arc::clone(&seat);
    let line = Line::default();
    let requests = line.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let serving = here.serve();
        let mut request = request.map(Body::new);
        requests.add_to(&mut request);
        request.extensions_mut().insert(ConnectInfo(peer));
        let refused = manners.only_health && !OPEN.contains(&request.uri().path());
        let answer = (!refused).then(|| app.clone().oneshot(request));
        async move {
            let answer: Response = match answer {
                Some(answer) => answer.await?,
                None => ApiError::busy("connections").into_response(),
            };
            Ok::<_, Infallible>(answer.map(|body| Held::wrap(body, serving)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(manners.head_time)
        .keep_alive(!manners.only_health)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(Socket::new(stream, manners.write_time)), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let whole = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = seat.told_to_leave() => {
                if seat.is_idle() {
                    return Ok(());
                }
                // A request came at the same moment; it is answered.
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let ended = tokio::select! {
        biased;
        ended = whole => ended,
        () = line.is_to_be_cut() => {
            tracing::debug!(%peer, "a connection was cut off: its key was revoked");
            return;
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, %peer, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let text = std::str::from_utf8(NO_ROOM).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_keeps_little_for_who_reads_nothing() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let (unread, accepted) =
            tokio::join!(socket.connect(listener.local_addr().unwrap()), listener.accept());
        let (_unread, stream) = (unread.unwrap(), accepted.unwrap().0);
        set_up(&stream);
        let (bytes, mut taken) = ([7; 16 << 10], 0);
        let mut waits = 0;
        // What has just been sent makes room for a little more.
        while waits < 20 {
            match stream.try_write(&bytes) {
                Ok(count) => taken += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    waits += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(taken < 4 * UNSENT as usize, "{taken} bytes are kept");
    }
}
