//! A TCP proxy that plays a network in trouble.

use super::address::{AddressError, at_port};
use super::port::free_port;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often the port is asked for again after it was given up.
const REBIND: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Refuse,
    Stall,
}

/// The connections that exist until the next cut.
#[derive(Debug, Clone, Default)]
struct Generation {
    cut: CancellationToken,
    connections: TaskTracker,
}

/// A TCP proxy on 127.0.0.1 in front of a server; it begins by passing everything.
///
/// It lives in the runtime in which it was started, and ends, with all its connections, when it is dropped.
///
/// ```
/// # async fn example(database_url: &str) -> Result<(), Box<dyn std::error::Error>> {
/// use remuda_testbed::net::{Proxy, target};
///
/// let proxy = Proxy::start(target(database_url)?).await?;
/// let url = proxy.through(database_url)?;
/// // … connect to `url`, then let the network fail:
/// proxy.stall().await;
/// // … and heal:
/// proxy.pass().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    listening: watch::Receiver<bool>,
    generation: Arc<Mutex<Generation>>,
    end: CancellationToken,
}

impl Proxy {
    /// Starts a proxy in front of `host:port`, which need not answer yet.
    pub async fn start(target: impl Into<String>) -> std::io::Result<Proxy> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = TcpListener::bind(address).await?;
        let (mode, seen) = watch::channel(Mode::Pass);
        let (listens, listening) = watch::channel(true);
        let generation = Arc::<Mutex<Generation>>::default();
        let end = CancellationToken::new();
        let door =
            Door { target: target.into(), address, mode: seen, listens, generation: generation.clone() };
        let stop = end.clone();
        // Ends with the token, which is cancelled when the proxy is dropped.
        tokio::spawn(async move { stop.run_until_cancelled(door.keep(listener)).await });
        Ok(Proxy { address, mode, listening, generation, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A URL with this proxy's host and port in place of its own.
    pub fn through(&self, url: &str) -> Result<String, AddressError> {
        at_port(url, self.address.port())
    }

    /// Accepts and forwards; stalled connections go on where they stood.
    pub async fn pass(&self) {
        self.switch(Mode::Pass, true).await;
    }

    /// Refuses new connections, as a host without the server does. Existing ones go on: see [`cut`](Proxy::cut).
    pub async fn refuse(&self) {
        self.switch(Mode::Refuse, false).await;
    }

    /// Accepts and forwards nothing, in existing connections too: packets vanish, and nobody is told.
    pub async fn stall(&self) {
        self.switch(Mode::Stall, true).await;
    }

    /// Resets all current connections and returns when they are gone. New ones are treated as before.
    pub async fn cut(&self) {
        let generation = std::mem::take(&mut *self.generation.lock().unwrap_or_else(PoisonError::into_inner));
        generation.cut.cancel();
        generation.connections.close();
        generation.connections.wait().await;
    }

    async fn switch(&self, mode: Mode, listening: bool) {
        self.mode.send_replace(mode);
        // An error means that the runtime of the proxy is gone, and the proxy with it.
        let _ = self.listening.clone().wait_for(|now| *now == listening).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.cancel();
        self.generation.lock().unwrap_or_else(PoisonError::into_inner).cut.cancel();
    }
}

/// The side of the proxy at which connections come in.
struct Door {
    target: String,
    address: SocketAddr,
    mode: watch::Receiver<Mode>,
    listens: watch::Sender<bool>,
    generation: Arc<Mutex<Generation>>,
}

impl Door {
    async fn keep(mut self, first: TcpListener) {
        let mut listener = Some(first);
        loop {
            let refuses = *self.mode.borrow_and_update() == Mode::Refuse;
            if refuses {
                // Only a closed listener refuses; an open one would accept and then break off.
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind(self.address).await.ok();
            }
            self.listens.send_replace(listener.is_some());
            let changed = match &listener {
                Some(listener) => tokio::select! {
                    accepted = listener.accept() => {
                        if let Ok((client, _)) = accepted {
                            self.admit(client);
                        }
                        Ok(())
                    }
                    changed = self.mode.changed() => changed,
                },
                None if refuses => self.mode.changed().await,
                None => {
                    tokio::time::sleep(REBIND).await;
                    Ok(())
                }
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn admit(&self, client: TcpStream) {
        let generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = generation.cut.clone();
        let (target, mode) = (self.target.clone(), self.mode.clone());
        generation.connections.spawn(connection(client, target, mode, cut));
    }
}

async fn connection(
    mut client: TcpStream,
    target: String,
    mut mode: watch::Receiver<Mode>,
    cut: CancellationToken,
) {
    let opened = async {
        flowing(&mut mode).await;
        TcpStream::connect(&target).await
    };
    let mut server = match cut.run_until_cancelled(opened).await {
        Some(Ok(server)) => server,
        Some(Err(_)) | None => return reset(client),
    };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = pump(from_client, to_server, mode.clone());
    let down = pump(from_server, to_client, mode);
    let both = async { tokio::try_join!(up, down) };
    if !matches!(cut.run_until_cancelled(both).await, Some(Ok(_))) {
        reset(client);
        reset(server);
    }
}

/// Closes without the usual good-bye: the other side sees the connection reset.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Waits while the proxy stalls.
async fn flowing(mode: &mut watch::Receiver<Mode>) {
    if mode.wait_for(|mode| *mode != Mode::Stall).await.is_err() {
        // The proxy is gone, and with it, in a moment, this connection.
        std::future::pending().await
    }
}

/// Carries bytes in one direction until that direction is closed.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut mode: watch::Receiver<Mode>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        // What arrives while it stalls is held here, and the end of the connection too.
        flowing(&mut mode).await;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}
