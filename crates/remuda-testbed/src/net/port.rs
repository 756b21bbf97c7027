//! Ports that nobody uses, and that stay free while a server is restarted.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use uuid::Uuid;

/// Below the range from which systems take ports for outgoing connections (Linux: from 32768).
const FIRST: u16 = 10_240;
const COUNT: u16 = 32_768 - FIRST;

/// A port on 127.0.0.1 that is free now and not handed out twice by this process.
///
/// It lies below the range of outgoing connections. A port from that range can be taken while its server
/// is down, even by a client that tries to reach the server: the kernel may give it this very port and connect it
/// to itself. A server that is stopped and started again would then not get its port back.
///
/// ```
/// let port = remuda_testbed::net::free_port()?;
/// let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn free_port() -> std::io::Result<u16> {
    // Each process begins somewhere else, so that test processes side by side seldom meet.
    static NEXT: AtomicU16 = AtomicU16::new(u16::MAX);
    let start = (Uuid::new_v4().as_u128() % u128::from(COUNT)) as u16;
    let _ = NEXT.compare_exchange(u16::MAX, start, Ordering::Relaxed, Ordering::Relaxed);
    let mut refused = None;
    for _ in 0..1000 {
        let step = |at: u16| Some((at + 1) % COUNT);
        let at = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or_default();
        match TcpListener::bind((Ipv4Addr::LOCALHOST, FIRST + at)) {
            Ok(listener) => return listener.local_addr().map(|address| address.port()),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| std::io::Error::other("no port was tried")))
}
