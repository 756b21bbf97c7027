//! Accepting connections, and ending well.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::changes::Changes;
use crate::door::{Lobby, Manners, Seated, attend, deepen, refuse};
use crate::feed::Feed;
use crate::keys_socket::KeysHandle;
use crate::native::Desk;
use crate::options::ServerOptions;
use crate::router::router;
use crate::sentry::Sentry;
use crate::share::Proxies;
use crate::state::AppState;

/// How long nothing is accepted after an error of `accept`, such as too many open files.
const BREATH: Duration = Duration::from_millis(100);

/// How many connections are let in beyond the others when all those are busy: probes must have their answer.
const RESERVE: usize = 64;

/// How many of these one address may have.
const RESERVE_PER_ADDRESS: usize = 16;

/// Remuda over HTTP.
#[derive(Debug)]
pub struct Server {
    state: AppState,
    drain: Duration,
}

impl Server {
    /// A server on this ground. It does nothing until [`Server::run`].
    pub fn new(options: ServerOptions) -> Self {
        let drain = options.drain;
        Self { state: AppState::new(options), drain }
    }

    /// For [`crate::keys_socket::serve`]: keys made and revoked there count at once.
    pub fn keys(&self) -> KeysHandle {
        KeysHandle::new(self.state.clone())
    }

    /// Answers requests until `shutdown`; then takes no new ones, ends waits and streams of events, and lets other requests
    /// under way go on for the drain time.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) {
        let state = self.state;
        let background = TaskTracker::new();
        background.spawn(Changes::run(state.clone()));
        background.spawn(Feed::run(state.clone()));
        background.spawn(Desk::run(state.clone()));
        let watcher = state.clone();
        background.spawn(async move { watcher.keys.watch(&watcher.stop).await });
        background.close();
        let app = router(state.clone());
        let limits = &state.limits;
        let sentry = Sentry::stand(&listener, &state.pulse);
        let lobby = Lobby::new(limits.connections, limits.connections_per_address);
        let house = House::new(lobby, state.proxies.clone(), limits.into());
        serve(listener, sentry, app, house, self.drain, shutdown, &state.stop).await;
        state.tasks.close();
        // They were told to stop, and wait for nothing but a moment's work.
        state.tasks.wait().await;
        background.wait().await;
    }
}

/// Who is let in, and what is expected of them.
struct House {
    lobby: Arc<Lobby>,
    /// For those who find everybody in the lobby busy.
    reserve: Arc<Lobby>,
    proxies: Proxies,
    manners: Manners,
}

impl House {
    fn new(lobby: Arc<Lobby>, proxies: Proxies, manners: Manners) -> Self {
        Self { lobby, reserve: Lobby::new(RESERVE, RESERVE_PER_ADDRESS), proxies, manners }
    }

    /// Lets a connection in, and says what is expected of it. `None`: the reserve is full of busy ones too.
    fn admit(&self, peer: IpAddr) -> Option<(Seated, Manners)> {
        let address = self.proxies.connection(peer);
        let usual = self.lobby.admit(address).map(|seat| (seat, self.manners));
        usual.or_else(|| self.reserve.admit(address).map(|seat| (seat, self.manners.in_reserve())))
    }
}

/// Accepts, lets in, and answers until `shutdown`.
async fn serve(
    listener: TcpListener,
    mut sentry: Sentry,
    app: Router,
    house: House,
    drain: Duration,
    shutdown: CancellationToken,
    stop: &CancellationToken,
) {
    deepen(&listener);
    let tracker = TaskTracker::new();
    // Cancelled when the drain time is over.
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            handed = sentry.handed() => handed,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some((seat, manners)) = house.admit(peer.ip()) else {
                    refuse(stream);
                    continue;
                };
                let connection = attend(stream, peer, app.clone(), Arc::new(seat), manners, shutdown.clone());
                let cut = cut.clone();
                tracker.spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Most often there are too many open files.
                house.lobby.relieve();
                tokio::time::sleep(BREATH).await;
            }
        }
    }
    // Both have the port.
    drop(sentry);
    drop(listener);
    stop.cancel();
    tracker.close();
    if tokio::time::timeout(drain, tracker.wait()).await.is_err() {
        tracing::info!(
            connections = tracker.len(),
            "requests under way were cut off at the end of the drain time"
        );
        cut.cancel();
        tracker.wait().await;
    }
}
