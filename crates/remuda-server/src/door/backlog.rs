//! How many connections may wait to be accepted.

use tokio::net::TcpListener;

/// How many connections the kernel keeps that were not accepted yet, if its own limit (`net.core.somaxconn`) allows as many.
/// Beyond that it ignores whoever knocks, and they try again after a second: one address that opens some hundred at once would
/// hold up everybody else.
const BACKLOG: i32 = 4096;

/// Lets more connections wait than the runtime asks for, which is 128.
pub(crate) fn deepen(listener: &TcpListener) {
    #[cfg(unix)]
    if let Err(error) = socket2::SockRef::from(listener).listen(BACKLOG) {
        tracing::debug!(%error, "the backlog could not be set");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    use super::*;

    /// How many of this many connections are let in while nobody accepts.
    fn knock(address: SocketAddr, count: usize) -> usize {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(500));
        let held: Vec<TcpStream> = (0..count).map_while(|_| connect().ok()).collect();
        held.len()
    }

    #[tokio::test]
    async fn a_burst_of_connections_does_not_keep_others_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        deepen(&listener);
        let let_in = tokio::task::spawn_blocking(move || knock(address, 400)).await.unwrap();
        assert_eq!(let_in, 400);
    }
}
