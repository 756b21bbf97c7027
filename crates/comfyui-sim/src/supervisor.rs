//! The loop that owns the port: accepts connections, and starts, ends and restarts the simulated process.
//!
//! ```text
//!            ┌───────────── time is up, revive, fault removed ◀───┐
//!            ▼                                                    │
//!   door open, process alive ── crash, restart, refuse ──▶ door shut (port kept, connections refused)
//!            │                                                    ▲
//!            └── message loop broken ──▶ dying: accepts nothing, answers nothing ── a little later
//! ```

use crate::faults::{FaultId, ProcessFault};
use crate::host::{Command, Deed, Host, Life};
use crate::http;
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long a process with a broken message loop still holds its port. The real one took 4 to 10 seconds.
const DYING: Duration = Duration::from_secs(2);
/// How long it takes until all that was sent before is delivered.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long to try for the port again if somebody else took it meanwhile.
const REBIND: Duration = Duration::from_secs(5);
/// Pause after a failed accept, so that a lack of file descriptors does not become a busy loop.
const AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(50);

/// What the outside can know without asking the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The process lives and the port accepts connections.
    Up,
    /// The process lives, the port refuses connections.
    Refusing,
    /// The process hangs before it ends: connections are neither refused nor served.
    Dying,
    /// There is no process, the port refuses connections; it comes back by itself.
    Restarting,
    /// There is no process, the port refuses connections until [`revive`](crate::Simulator::revive).
    Down,
    /// The simulator was shut down.
    Stopped,
}

pub(crate) struct Supervisor {
    host: Arc<Host>,
    commands: mpsc::Receiver<Command>,
    book: watch::Receiver<u64>,
    condition: watch::Sender<Condition>,
    stop: CancellationToken,
    door: Door,
    /// When the door opens again by itself.
    reopen: Option<Instant>,
    /// The fault that keeps the door shut while the process lives.
    refusal: Option<FaultId>,
    /// When a process with a broken message loop is gone at last.
    dying: Option<Instant>,
    waiting: Vec<oneshot::Sender<()>>,
}

enum Door {
    Open(TcpListener),
    /// A bound socket that does not listen: the system refuses connections, and the port stays ours.
    Shut(Option<TcpSocket>),
}

/// Everything that can wake the supervisor.
enum Event {
    Stop,
    Accepted(TcpStream),
    AcceptFailed(io::Error),
    Command(Command),
    BookChanged,
    ProcessEnded,
    MessageLoopBroken,
    Dead,
    TimeToReopen,
}

impl Supervisor {
    pub(crate) fn new(
        host: Arc<Host>,
        listener: TcpListener,
        commands: mpsc::Receiver<Command>,
        condition: watch::Sender<Condition>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            book: host.faults.watch(),
            host,
            commands,
            condition,
            stop,
            door: Door::Open(listener),
            reopen: None,
            refusal: None,
            dying: None,
            waiting: Vec::new(),
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let event = self.next_event().await;
            match event {
                Event::Stop => break,
                Event::Accepted(stream) => self.serve(stream),
                Event::AcceptFailed(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    sleep(AFTER_FAILED_ACCEPT).await;
                }
                Event::Command(Command { deed, done }) => {
                    self.waiting.extend(done);
                    self.act(deed).await;
                }
                Event::BookChanged => self.look_into_the_book().await,
                Event::ProcessEnded => self.die(None),
                Event::MessageLoopBroken => {
                    tracing::debug!("message loop broken: the process hangs, then ends");
                    // What was sent before the fatal message is on its way already.
                    sleep(LAST_WORDS).await;
                    self.host.end_life();
                    self.host.connections.silence_all();
                    self.dying = Some(Instant::now() + DYING);
                }
                Event::Dead => self.die(None),
                Event::TimeToReopen => self.open().await,
            }
            self.report();
        }
        self.host.end_life();
        self.host.connections.close_all();
        self.condition.send_replace(Condition::Stopped);
    }

    async fn next_event(&mut self) -> Event {
        let life = self.host.life();
        let accepting = self.dying.is_none();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Event::Stop,
            Some(command) = self.commands.recv() => Event::Command(command),
            Ok(()) = self.book.changed() => Event::BookChanged,
            () = process_end(life.as_deref()) => Event::ProcessEnded,
            () = message_loop_end(life.as_deref()) => Event::MessageLoopBroken,
            () = at(self.dying) => Event::Dead,
            () = at(self.reopen) => Event::TimeToReopen,
            accepted = accept(&self.door), if accepting => match accepted {
                Ok(stream) => Event::Accepted(stream),
                Err(error) => Event::AcceptFailed(error),
            },
        }
    }

    async fn act(&mut self, deed: Deed) {
        match deed {
            // Without a process the door is shut anyway, and must not open when the fault is over.
            Deed::Fault(ProcessFault::Refuse { .. }) if self.host.life().is_none() => {}
            Deed::Fault(ProcessFault::Refuse { id, lasting }) => {
                self.shut();
                self.refusal = Some(id);
                self.reopen = lasting.map(|duration| Instant::now() + duration);
            }
            Deed::Fault(ProcessFault::Restart { down }) => self.restart(down).await,
            Deed::Fault(ProcessFault::Crash { down }) => self.die(down),
            Deed::Fault(ProcessFault::Version(profile)) => {
                self.host.set_profile(profile);
                self.restart(Duration::ZERO).await;
            }
            Deed::Revive => self.open().await,
            Deed::Reset => {
                self.host.faults.clear();
                self.host.executions.reset();
                self.restart(Duration::ZERO).await;
            }
        }
    }

    async fn look_into_the_book(&mut self) {
        for fault in self.host.faults.take_process() {
            self.act(Deed::Fault(fault)).await;
        }
        if self.refusal.is_some_and(|id| !self.host.faults.contains(id)) {
            self.open().await;
        }
    }

    async fn restart(&mut self, down: Duration) {
        self.die(Some(down));
        if down.is_zero() {
            self.open().await;
        }
    }

    /// Ends the process and everything that hangs on it.
    fn die(&mut self, down: Option<Duration>) {
        self.host.end_life();
        self.dying = None;
        self.shut();
        self.reopen = down.map(|duration| Instant::now() + duration);
    }

    fn shut(&mut self) {
        self.refusal = None;
        if matches!(self.door, Door::Open(_)) {
            // The listener has to be gone before the port can be bound again.
            self.door = Door::Shut(None);
            self.door = Door::Shut(keep(self.host.addr).ok());
        }
        self.host.connections.reset_all();
    }

    /// Opens the door, and starts a process if there is none.
    async fn open(&mut self) {
        (self.reopen, self.refusal, self.dying) = (None, None, None);
        if self.host.life().is_none()
            && let Err(error) = self.host.start_life()
        {
            tracing::error!(%error, dir = %self.host.base_dir.display(), "cannot start again");
            return;
        }
        if let Door::Shut(kept) = &mut self.door {
            let kept = kept.take();
            match listen(self.host.addr, kept, &self.stop).await {
                Ok(listener) => self.door = Door::Open(listener),
                Err(error) => tracing::error!(%error, addr = %self.host.addr, "cannot listen again"),
            }
        }
    }

    /// Publishes the condition and tells those who wait for the end of a downtime.
    fn report(&mut self) {
        let condition = match (&self.door, self.host.life(), self.dying) {
            (Door::Open(_), Some(_), None) => Condition::Up,
            (Door::Shut(_), Some(_), _) => Condition::Refusing,
            (.., Some(_)) => Condition::Dying,
            _ if self.reopen.is_some() => Condition::Restarting,
            _ => Condition::Down,
        };
        self.condition.send_if_modified(|now| std::mem::replace(now, condition) != condition);
        if condition != Condition::Restarting {
            for waiting in self.waiting.drain(..) {
                // Whoever no longer waits need not be told.
                let _ = waiting.send(());
            }
        }
    }

    fn serve(&self, stream: TcpStream) {
        // As aiohttp does; a failure only costs time.
        let _ = stream.set_nodelay(true);
        let host = self.host.clone();
        let (wire, control) = host.connections.register(stream);
        self.host.tasks.spawn(async move {
            let service =
                hyper::service::service_fn(|request| http::serve(host.clone(), control.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .title_case_headers(true)
                .auto_date_header(false)
                .serve_connection(TokioIo::new(wire), service)
                .with_upgrades();
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                },
                () = control.ended() => {}
            }
        });
    }
}

async fn accept(door: &Door) -> io::Result<TcpStream> {
    match door {
        Door::Open(listener) => listener.accept().await.map(|(stream, _)| stream),
        Door::Shut(_) => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn process_end(life: Option<&Life>) {
    match life {
        Some(life) => life.engine.process_end().cancelled_owned().await,
        None => std::future::pending().await,
    }
}

async fn message_loop_end(life: Option<&Life>) {
    match life {
        Some(life) => life.sockets.broken().cancelled().await,
        None => std::future::pending().await,
    }
}

/// Binds the port without listening on it.
fn keep(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

async fn listen(
    addr: SocketAddr,
    kept: Option<TcpSocket>,
    stop: &CancellationToken,
) -> io::Result<TcpListener> {
    const BACKLOG: u32 = 1024;
    if let Some(listener) = kept.and_then(|socket| socket.listen(BACKLOG).ok()) {
        return Ok(listener);
    }
    let deadline = Instant::now() + REBIND;
    loop {
        match keep(addr).and_then(|socket| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) if Instant::now() >= deadline || stop.is_cancelled() => return Err(error),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}
