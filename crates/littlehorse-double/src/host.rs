//! One host: a port, its connections, and the ways in which they break.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt as _;

use crate::pings::Watched;
use crate::proto::little_horse_server::LittleHorseServer;
use crate::service::HostService;

/// More than any report that a test sends; the limit of the server is checked where it is checked there.
const MESSAGE: usize = 64 * 1024 * 1024;

/// One host.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    least_ping: Duration,
    accepted: AtomicUsize,
    pings: Arc<AtomicUsize>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// While it listens, what ends that; otherwise the port, kept for it.
    port: Port,
    breaks: Breaks,
}

#[derive(Debug)]
enum Port {
    Open { close: CancellationToken, tasks: TaskTracker },
    Kept(#[allow(dead_code)] TcpSocket),
}

/// What breaks connections that exist; those that are made later have new ones.
#[derive(Debug, Clone, Default)]
struct Breaks {
    /// The connection is closed, in the middle of a word if need be.
    cut: CancellationToken,
    /// GOAWAY: no new calls, those that run go on.
    goaway: CancellationToken,
    /// RST_STREAM on every poll stream.
    reset: CancellationToken,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Host {
    /// Takes a free port, without listening yet.
    pub(crate) fn bind(
        address: SocketAddr,
        acceptor: Option<TlsAcceptor>,
        least_ping: Duration,
    ) -> io::Result<Self> {
        let socket = keep(address)?;
        let address = socket.local_addr()?;
        let inner = Inner { port: Port::Kept(socket), breaks: Breaks::default() };
        Ok(Self {
            address,
            acceptor,
            least_ping,
            accepted: AtomicUsize::new(0),
            pings: Arc::default(),
            inner: Mutex::new(inner),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens, if it does not.
    pub(crate) fn up(self: &Arc<Self>, service: HostService) -> io::Result<()> {
        let mut inner = self.inner();
        if matches!(inner.port, Port::Open { .. }) {
            return Ok(());
        }
        let (close, tasks) = (CancellationToken::new(), TaskTracker::new());
        let open = Port::Open { close: close.clone(), tasks: tasks.clone() };
        let listener = match std::mem::replace(&mut inner.port, open) {
            Port::Kept(socket) => socket.listen(1024)?,
            Port::Open { .. } => return Ok(()),
        };
        drop(inner);
        let host = Arc::clone(self);
        let server = LittleHorseServer::new(service).max_decoding_message_size(MESSAGE);
        let routes = Routes::new(server).prepare();
        tasks.spawn(host.accept(listener, routes, tasks.clone(), close));
        Ok(())
    }

    /// Listens no longer, and cuts every connection. The port stays ours.
    pub(crate) async fn down(&self) -> io::Result<()> {
        let tasks = {
            let inner = self.inner();
            let Port::Open { close, tasks } = &inner.port else { return Ok(()) };
            close.cancel();
            tasks.close();
            tasks.clone()
        };
        tasks.wait().await;
        self.inner().port = Port::Kept(keep(self.address)?);
        Ok(())
    }

    /// Begins to go down, without waiting for it.
    pub(crate) fn close(&self) {
        if let Port::Open { close, .. } = &self.inner().port {
            close.cancel();
        }
    }

    /// Cuts every connection; new ones are welcome.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut self.inner().breaks.cut).cancel();
    }

    /// Asks every client to make a new connection for new calls.
    pub(crate) fn goaway(&self) {
        std::mem::take(&mut self.inner().breaks.goaway).cancel();
    }

    /// Resets every poll stream.
    pub(crate) fn reset(&self) {
        std::mem::take(&mut self.inner().breaks.reset).cancel();
    }

    /// How many connections were made so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many pings came so far.
    pub(crate) fn pings(&self) -> usize {
        self.pings.load(Ordering::Relaxed)
    }

    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        routes: Routes,
        tasks: TaskTracker,
        close: CancellationToken,
    ) {
        loop {
            let accepted = tokio::select! {
                () = close.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else { continue };
            self.accepted.fetch_add(1, Ordering::Relaxed);
            let connection = Arc::clone(&self).serve(socket, routes.clone());
            let (close, cut) = (close.clone(), self.inner().breaks.cut.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = close.cancelled() => {}
                    () = cut.cancelled() => {}
                    () = connection => {}
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, socket: TcpStream, routes: Routes) {
        // Answers are small, and must not wait for each other.
        if socket.set_nodelay(true).is_err() {
            return;
        }
        match &self.acceptor {
            None => self.speak(socket, routes).await,
            Some(acceptor) => match acceptor.accept(socket).await {
                Ok(socket) => self.speak(socket, routes).await,
                Err(error) => tracing::debug!(%error, "a client does not agree on TLS"),
            },
        }
    }

    async fn speak(
        self: Arc<Self>,
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        routes: Routes,
    ) {
        let goaway = self.inner().breaks.goaway.clone();
        let socket = Watched::new(socket, self.least_ping, Arc::clone(&self.pings));
        let service = service_fn(move |request| {
            let reset = self.inner().breaks.reset.clone();
            answer(request, routes.clone(), reset)
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(socket), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = goaway.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// A port that nobody else gets; who calls there is refused.
fn keep(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a server does to its streams when it is told to stop.
fn cancelled() -> Failure {
    h2::Error::from(h2::Reason::CANCEL).into()
}

async fn answer(
    request: Request<Incoming>,
    routes: Routes,
    mut reset: CancellationToken,
) -> Result<Response<Breakable>, Failure> {
    if !request.uri().path().ends_with("/PollTask") {
        reset = CancellationToken::new();
    }
    let response = tokio::select! {
        () = reset.cancelled() => return Err(cancelled()),
        response = routes.oneshot(request) => response,
    };
    Ok(response?.map(|body| Breakable { body, reset: Box::pin(reset.cancelled_owned()) }))
}

/// A body that can be broken off.
struct Breakable {
    body: Body,
    reset: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl HttpBody for Breakable {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if self.reset.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(cancelled())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
