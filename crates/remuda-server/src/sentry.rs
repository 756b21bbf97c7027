//! A thread that answers `/live` while the runtime does not turn.
//!
//! While all is well it only looks at the pulse. When that is missing it takes connections off the same listener, answers
//! `GET /live` itself, and keeps every other connection for the runtime, which serves it when it turns again. So nothing
//! is added to the way of a request, and a probe has its answer whatever holds the rest.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// How many connections are kept for the runtime. Further ones are told to come again.
const KEPT: usize = 512;

/// Stands at a listener until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Sentry {
    kept: Option<mpsc::Receiver<(std::net::TcpStream, SocketAddr)>>,
    #[cfg(unix)]
    _thread: Option<unix::Thread>,
}

impl Sentry {
    /// The next connection that was kept. Never, when there is none.
    pub(crate) async fn handed(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        match &mut self.kept {
            Some(kept) => match kept.recv().await {
                Some((stream, peer)) => TcpStream::from_std(stream).map(|stream| (stream, peer)),
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(unix))]
impl Sentry {
    pub(crate) fn stand(_: &tokio::net::TcpListener, _: &remuda_pool::Pulse) -> Self {
        Self::default()
    }
}

#[cfg(unix)]
mod unix {
    use std::io::{self, Read as _, Write as _};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    use remuda_pool::Pulse;
    use tokio::sync::mpsc;

    use super::{KEPT, Sentry};

    /// Without a pulse for this long the sentry steps in. A runtime under load is late by less.
    const SOON: Duration = Duration::from_millis(500);

    /// How often it looks at the pulse …
    const LOOK: Duration = Duration::from_millis(100);

    /// … and at its guests, while it stands in.
    const TURN: Duration = Duration::from_millis(10);

    /// How many guests who have not said yet what they want, or read their answer, may stay. When more come, the oldest
    /// silent ones go: else silence alone could keep a probe from its answer.
    const GUESTS: usize = 256;

    /// How long a guest may keep it to itself; then it is the runtime's.
    const SILENCE: Duration = Duration::from_secs(5);

    /// How long a guest may take to read its answer.
    const PARTING: Duration = Duration::from_secs(2);

    const ALIVE: &str = r#"{"status":"alive"}"#;
    const STILL: &str = r#"{"error":"the process does not turn: its log says what holds it, and a restart is in order","code":"still"}"#;
    const BUSY: &str = r#"{"error":"the process does not turn at this moment: try again","code":"busy"}"#;

    #[derive(Debug)]
    pub(super) struct Thread {
        stop: Arc<AtomicBool>,
        handle: Option<JoinHandle<()>>,
    }

    impl Drop for Thread {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            if let Some(handle) = self.handle.take() {
                handle.thread().unpark();
                // It never waits for anybody.
                let _ended = handle.join();
            }
        }
    }

    impl Sentry {
        /// Stands at this listener. Without a watchdog nobody knows when to step in, and nobody does.
        pub(crate) fn stand(listener: &tokio::net::TcpListener, pulse: &Pulse) -> Self {
            if !pulse.is_watched() {
                return Self::default();
            }
            Self::start(listener, pulse.clone()).unwrap_or_else(|error| {
                tracing::warn!(%error, "/live will not be answered while the process does not turn");
                Self::default()
            })
        }

        fn start(listener: &tokio::net::TcpListener, pulse: Pulse) -> io::Result<Self> {
            // Another handle of the same listener, which does not block.
            let listener = TcpListener::from(listener.as_fd().try_clone_to_owned()?);
            let (keep, kept) = mpsc::channel(KEPT);
            let stop = Arc::new(AtomicBool::new(false));
            let door =
                Door { listener, pulse, keep, stop: Arc::clone(&stop), places: GUESTS, guests: Vec::new() };
            let thread = std::thread::Builder::new().name("remuda-live".to_owned());
            let handle = thread.spawn(move || door.run())?;
            Ok(Self { kept: Some(kept), _thread: Some(Thread { stop, handle: Some(handle) }) })
        }
    }

    /// A connection that the sentry took.
    struct Guest {
        stream: TcpStream,
        peer: SocketAddr,
        since: Instant,
        /// It has its answer, and may read it.
        answered: bool,
    }

    /// What a guest wants.
    #[derive(Debug, PartialEq)]
    enum Wish {
        Live,
        Other,
        Unknown,
    }

    /// By the first bytes of a request.
    fn wish(head: &[u8]) -> Wish {
        let known: [&[u8]; 4] = [b"GET /live ", b"GET /live?", b"HEAD /live ", b"HEAD /live?"];
        if known.iter().any(|live| head.starts_with(live)) {
            return Wish::Live;
        }
        if known.iter().any(|live| live.starts_with(head)) { Wish::Unknown } else { Wish::Other }
    }

    struct Door {
        listener: TcpListener,
        pulse: Pulse,
        keep: mpsc::Sender<(TcpStream, SocketAddr)>,
        stop: Arc<AtomicBool>,
        places: usize,
        guests: Vec<Guest>,
    }

    impl Door {
        fn run(mut self) {
            while !self.stop.load(Ordering::Relaxed) {
                let silent = self.pulse.silent() >= SOON;
                if silent {
                    self.accept();
                }
                if self.guests.is_empty() && !silent {
                    std::thread::park_timeout(LOOK);
                } else {
                    self.attend(silent);
                    self.make_room();
                    std::thread::park_timeout(TURN);
                }
            }
        }

        /// Takes no more in one turn than there are places: everybody is looked at before they may have to go.
        fn accept(&mut self) {
            for _ in 0..self.places {
                let Ok((stream, peer)) = self.listener.accept() else { return };
                if stream.set_nonblocking(true).is_ok() {
                    self.guests.push(Guest { stream, peer, since: Instant::now(), answered: false });
                }
            }
        }

        /// Looks after every guest once. Those who want something else go to the runtime; when that turns again, all do.
        fn attend(&mut self, silent: bool) {
            for mut guest in std::mem::take(&mut self.guests) {
                if guest.answered {
                    if guest.since.elapsed() < PARTING && !has_left(&mut guest.stream) {
                        self.guests.push(guest);
                    }
                    continue;
                }
                let mut head = [0; 16];
                let wish = match guest.stream.peek(&mut head) {
                    Ok(0) => continue,
                    Ok(length) => wish(&head[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Wish::Unknown,
                    Err(_) => continue,
                };
                match wish {
                    Wish::Live => self.answer(guest),
                    Wish::Unknown if silent && guest.since.elapsed() < SILENCE => self.guests.push(guest),
                    Wish::Unknown | Wish::Other => self.pass_on(guest),
                }
            }
        }

        /// Sends guests away until all have a place: first those who say nothing, the oldest before the others, then those
        /// who have their answer.
        fn make_room(&mut self) {
            let mut surplus = self.guests.len().saturating_sub(self.places);
            for answered in [false, true] {
                self.guests.retain(|guest| {
                    let goes = surplus > 0 && guest.answered == answered;
                    surplus -= usize::from(goes);
                    !goes
                });
            }
        }

        fn answer(&mut self, mut guest: Guest) {
            let answer = if self.pulse.turns() {
                written("200 OK", ALIVE)
            } else {
                written("503 Service Unavailable", STILL)
            };
            self.part(&mut guest, &answer);
            self.guests.push(guest);
        }

        fn pass_on(&mut self, guest: Guest) {
            let Err(refused) = self.keep.try_send((guest.stream, guest.peer)) else { return };
            let (stream, peer) = refused.into_inner();
            let mut guest = Guest { stream, peer, since: guest.since, answered: false };
            self.part(&mut guest, &written("503 Service Unavailable", BUSY));
            if self.guests.len() < self.places {
                self.guests.push(guest);
            }
        }

        /// Says the last word. What was sent is read, and the connection closed later: else the answer might get lost.
        fn part(&self, guest: &mut Guest, answer: &str) {
            has_left(&mut guest.stream);
            // Short enough for an empty buffer.
            let _told = guest.stream.write_all(answer.as_bytes());
            let _closed = guest.stream.shutdown(Shutdown::Write);
            guest.answered = true;
            guest.since = Instant::now();
        }
    }

    /// Reads what is there, within bounds. Whether the other side has gone.
    fn has_left(stream: &mut TcpStream) -> bool {
        let mut buffer = [0; 4096];
        for _ in 0..4 {
            match stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn written(status: &str, body: &str) -> String {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nretry-after: 1\r\n\
             connection: close\r\n\r\n{body}"
        )
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        use remuda_pool::{Pool, PoolOptions, Watchdog, WatchdogOptions};

        /// Two places, and sixty guests who say nothing: one after the other they would keep them for minutes.
        #[test]
        fn silent_guests_keep_nobody_from_an_answer() {
            let pool = Pool::new(PoolOptions::default());
            // Nobody beats: the runtime stands still.
            let watchdog = Watchdog::start(&pool, WatchdogOptions::new(Duration::from_millis(200))).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            let (keep, kept) = mpsc::channel(KEPT);
            let stop = Arc::new(AtomicBool::new(false));
            let (pulse, guests) = (watchdog.pulse(), Vec::new());
            let door = Door { listener, pulse, keep, stop: Arc::clone(&stop), places: 2, guests };
            let handle = std::thread::spawn(move || door.run());
            let _thread = Thread { stop, handle: Some(handle) };

            let silent: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut probe = TcpStream::connect(address).unwrap();
            probe.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            probe.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut answer = String::new();
            probe.read_to_string(&mut answer).expect("an answer in time");
            assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
            // The oldest was sent away for it.
            let mut oldest = &silent[0];
            oldest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(oldest.read(&mut [0]).unwrap(), 0);
            drop(kept);
        }

        #[test]
        fn a_wish_is_known_by_its_first_bytes() {
            for (head, expected) in [
                ("GET /live HTTP/1.1", Wish::Live),
                ("HEAD /live?x HTTP", Wish::Live),
                ("GET /liv", Wish::Unknown),
                ("", Wish::Unknown),
                ("GET /lively HTTP", Wish::Other),
                ("POST /live HTTP/", Wish::Other),
                ("GET / HTTP/1.1", Wish::Other),
            ] {
                assert_eq!(wish(head.as_bytes()), expected, "{head:?}");
            }
        }
    }
}
