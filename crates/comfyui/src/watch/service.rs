//! The task behind a [`crate::Session`]: one loop over commands, frames, answers and time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch as cell};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::error::Error;
use crate::ids::{ClientId, PromptId};
use crate::watch::SessionOptions;
use crate::watch::mailbox::Mailbox;
use crate::watch::questions::{Answer, question};
use crate::watch::tracker::{Ask, Tracker};
use crate::ws::{Connection, ConnectionEvent, ROOM, Timing};

/// Questions under way at once. More would only queue up in the server's single event loop.
const QUESTIONS: usize = 16;

/// What a session asks of its task.
pub(crate) enum Command {
    Watch {
        id: PromptId,
        mailbox: Arc<Mailbox>,
        limit: Option<Duration>,
        /// The client id it is about to be submitted under; `None` when it is there already.
        owner: Option<ClientId>,
        done: oneshot::Sender<()>,
    },
    Accepted {
        sent: PromptId,
        got: PromptId,
    },
}

fn timing(options: &SessionOptions) -> Timing {
    Timing {
        greeting: options.greeting,
        ping: options.ping,
        silence: options.silence,
        backoff: Duration::from_millis(50),
        longest_backoff: options.longest_backoff,
    }
}

/// The state of that task.
pub(crate) struct Service {
    client: Client,
    tracker: Tracker,
    timing: Timing,
    look_timeout: Duration,
    client_id: cell::Sender<ClientId>,
    up: cell::Sender<bool>,
    waiting: Vec<Ask>,
    questions: JoinSet<Answer>,
    ping: Arc<Notify>,
    ungreeted: u32,
    was_down: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The running socket task.
struct Link {
    events: mpsc::Receiver<ConnectionEvent>,
    stop: DropGuard,
}

impl Service {
    pub(crate) fn new(
        client: &Client,
        options: &SessionOptions,
        client_id: cell::Sender<ClientId>,
        up: cell::Sender<bool>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Service {
        let tracker = Tracker::new(options.clone(), client_id.borrow().clone());
        Service {
            // The tracker has a schedule of its own: no retries beneath it.
            client: client.without_retries(),
            tracker,
            timing: timing(options),
            look_timeout: options.look_timeout,
            client_id,
            up,
            waiting: Vec::new(),
            questions: JoinSet::new(),
            ping: Arc::new(Notify::new()),
            ungreeted: 0,
            was_down: false,
            tasks,
            stop,
        }
    }

    /// Runs until the session is closed or its last handle is gone.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut link = self.connect();
        loop {
            let due = self.tracker.next_due();
            let wait = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Commands first: a watch must be known before the frames of its prompt are looked at.
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                Some(answer) = self.questions.join_next() => match answer {
                    Ok(answer) => self.answer(answer).await,
                    Err(error) => {
                        tracing::error!(%error, "a question to the server ended abnormally");
                        self.tracker.questions_lost(Instant::now());
                    }
                },
                Some(event) = link.events.recv() => if let Some(fresh) = self.event(event).await {
                    link = fresh;
                },
                () = wait => {}
            }
            let asks = self.tracker.tick(Instant::now());
            self.ask(asks);
            if self.take_fresh_id() {
                link = self.connect();
            }
        }
        drop(link.stop);
        self.tracker.close();
        self.questions.shutdown().await;
    }

    fn connect(&self) -> Link {
        let (sender, events) = mpsc::channel(1024);
        let stop = self.stop.child_token();
        let connection = Connection {
            client: self.client.clone(),
            client_id: self.client_id.borrow().clone(),
            timing: self.timing,
            events: sender,
            ping: Arc::clone(&self.ping),
            room: Arc::new(Semaphore::new(ROOM as usize)),
            stop: stop.clone(),
        };
        self.tasks.spawn(connection.run());
        Link { events, stop: stop.drop_guard() }
    }

    fn command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Watch { id, mailbox, limit, owner, done } => {
                self.tracker.register(now, id, mailbox, limit, owner);
                let _ = done.send(());
            }
            Command::Accepted { sent, got } => self.tracker.accepted(now, &sent, &got),
        }
    }

    /// Takes one report of the socket; a new link when the old one must be replaced.
    async fn event(&mut self, event: ConnectionEvent) -> Option<Link> {
        let now = Instant::now();
        match event {
            ConnectionEvent::Up => {
                self.ungreeted = 0;
                if std::mem::take(&mut self.was_down) {
                    // Another version may answer at this address now.
                    self.client.forget_capabilities();
                }
                self.up.send_replace(true);
                self.tracker.link_up(now);
            }
            ConnectionEvent::Down => {
                self.was_down = true;
                self.up.send_replace(false);
                self.tracker.link_down(now);
            }
            ConnectionEvent::Ungreeted => {
                self.tracker.link_down(now);
                self.ungreeted += 1;
                // Once more under the same name; a second silence means that the server forgot it.
                if self.ungreeted >= 2 {
                    self.rotate_client_id();
                }
                return Some(self.connect());
            }
            ConnectionEvent::Pong => self.tracker.heard(now),
            ConnectionEvent::Message(message, raw, _room) => {
                let asks = self.tracker.message(now, message, Some(&raw));
                self.ask(asks);
            }
        }
        None
    }

    fn rotate_client_id(&mut self) {
        let fresh = ClientId::random();
        tracing::warn!(url = self.client.url(), old = %*self.client_id.borrow(), new = %fresh, "frames no longer reach the client id");
        self.client_id.send_replace(fresh.clone());
        self.tracker.client_id_changed(fresh);
        self.ungreeted = 0;
    }

    /// Whether the tracker asked for a fresh client id.
    fn take_fresh_id(&mut self) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|ask| *ask != Ask::FreshClientId);
        let asked = self.waiting.len() < before;
        if asked {
            self.rotate_client_id();
            self.up.send_replace(false);
            self.tracker.link_down(Instant::now());
        }
        asked
    }

    fn ask(&mut self, mut asks: Vec<Ask>) {
        if asks.contains(&Ask::Ping) {
            self.ping.notify_one();
            asks.retain(|ask| *ask != Ask::Ping);
        }
        self.waiting.extend(asks);
        while self.questions.len() < QUESTIONS {
            let Some(next) = self.waiting.iter().position(|ask| *ask != Ask::FreshClientId) else {
                return;
            };
            let ask = self.waiting.remove(next);
            let files = match &ask {
                Ask::Files(id) => self.tracker.files_to_check(id),
                _ => Vec::new(),
            };
            self.questions.spawn(question(self.client.clone(), self.look_timeout, ask, files));
        }
    }

    async fn answer(&mut self, answer: Answer) {
        let now = Instant::now();
        let asks = match answer {
            Answer::Survey(Ok(snapshot)) => {
                self.tracker.surveyed(now, &snapshot);
                Vec::new()
            }
            Answer::History(id, Ok(entry)) => self.tracker.history(now, &id, entry),
            Answer::Look(id, Ok(place)) => self.tracker.looked(now, &id, place),
            Answer::SameServer(id, Ok(oldest)) => {
                self.tracker.remembers(&id, oldest);
                Vec::new()
            }
            Answer::Files(id, missing) => {
                self.tracker.files_missing(&id, missing);
                Vec::new()
            }
            // It answers, but cannot list its history: a process that was just started could.
            Answer::SameServer(
                id,
                Err(Error::Status { .. } | Error::Protocol { .. } | Error::TooLarge { .. }),
            ) => {
                self.tracker.remembers(&id, Some(0));
                Vec::new()
            }
            // The entry will not become smaller.
            Answer::History(id, Err(Error::TooLarge { what, limit, unit }))
            | Answer::Look(id, Err(Error::TooLarge { what, limit, unit }))
                if is_entry(&what) =>
            {
                tracing::warn!(url = self.client.url(), prompt_id = %id, limit, unit, "the end of the prompt cannot be read: its entry in the history is too large");
                self.tracker.unreadable(&id, what, limit, unit);
                Vec::new()
            }
            Answer::Survey(Err(error)) => {
                tracing::debug!(url = self.client.url(), %error, "the queue could not be looked at");
                self.tracker.failed(now, None);
                Vec::new()
            }
            Answer::History(id, Err(error))
            | Answer::Look(id, Err(error))
            | Answer::SameServer(id, Err(error)) => {
                tracing::debug!(url = self.client.url(), prompt_id = %id, %error, "the prompt could not be looked up");
                self.tracker.failed(now, Some(&id));
                Vec::new()
            }
        };
        self.ask(asks);
    }
}

/// Whether it is the prompt's own entry in the history that was asked for, and not another answer of the server.
fn is_entry(what: &str) -> bool {
    what.contains("/history/")
}
