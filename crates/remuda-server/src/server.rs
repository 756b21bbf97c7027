//! Accepting connections, and ending well.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::extract::State;
use axum::routing::get;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::access::Line;
use crate::keys_socket::KeysHandle;
use crate::options::ServerOptions;
use crate::router::router;
use crate::routes;
use crate::sentry::Sentry;
use crate::state::AppState;

/// After an error of `accept`, such as too many open files, so long nothing is accepted.
const BREATH: Duration = Duration::from_millis(100);

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

    /// Answers `/metrics`, `/live` and `/ready` on a listener of their own, without keys, until `shutdown`. For a network that only
    /// the monitoring reaches.
    pub fn metrics(&self) -> MetricsServer {
        MetricsServer { state: self.state.clone() }
    }

    /// Answers requests until `shutdown`; then takes no new ones, ends waits and streams of events, and lets other requests
    /// under way go on for the drain time.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) {
        let state = self.state;
        let background = TaskTracker::new();
        background.spawn(state.changes.clone().run(state.store.clone(), state.stop.clone()));
        let watcher = state.clone();
        background.spawn(async move { watcher.keys.watch(&watcher.stop).await });
        background.close();
        let app = router(state.clone());
        let limits = &state.limits;
        let sentry = Sentry::stand(&listener, &state.pulse);
        let (most, head_time) = (limits.connections, limits.head_time);
        serve(listener, sentry, app, most, head_time, self.drain, shutdown, &state.stop).await;
        state.tasks.close();
        // They were told to stop, and wait for nothing but a moment's work.
        state.tasks.wait().await;
        background.wait().await;
    }
}

/// Metrics on a listener of their own.
#[derive(Debug)]
pub struct MetricsServer {
    state: AppState,
}

impl MetricsServer {
    /// Answers until `shutdown`.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) {
        let metrics = |State(state): State<AppState>| async move { routes::scrape(&state).await };
        let app = Router::new()
            .route("/metrics", get(metrics))
            .route("/live", get(routes::live))
            .route("/ready", get(routes::ready))
            .with_state(self.state.clone());
        let (head_time, drain) = (self.state.limits.head_time, Duration::from_secs(1));
        let sentry = Sentry::stand(&listener, &self.state.pulse);
        serve(listener, sentry, app, 64, head_time, drain, shutdown, &CancellationToken::new()).await;
    }
}

#[allow(clippy::too_many_arguments, reason = "called twice, with what the two have not in common")]
async fn serve(
    listener: TcpListener,
    mut sentry: Sentry,
    app: Router,
    connections: usize,
    head_time: Duration,
    drain: Duration,
    shutdown: CancellationToken,
    stop: &CancellationToken,
) {
    let room = Arc::new(Semaphore::new(connections));
    let tracker = TaskTracker::new();
    // Cancelled when the drain time is over.
    let cut = CancellationToken::new();
    loop {
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = room.clone().acquire_owned() => permit,
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            handed = sentry.handed() => handed,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connection(stream, peer, app.clone(), head_time, shutdown.clone());
                let cut = cut.clone();
                tracker.spawn(async move {
                    let _held_to_the_end = permit;
                    tokio::select! {
                        () = connection => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
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

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    app: Router,
    head_time: Duration,
    shutdown: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let line = Line::default();
    let requests = line.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        requests.add_to(&mut request);
        request.extensions_mut().insert(ConnectInfo(peer));
        app.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let whole = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = shutdown.cancelled() => {
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
