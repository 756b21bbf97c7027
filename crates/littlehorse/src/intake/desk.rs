//! Where calls that want a task meet streams that bring one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::core::{Core, Step, StreamId, WaiterId};
use super::{Health, IntakeOptions, stream};
use crate::client::{Client, Host};
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::proto;

type Waiter = oneshot::Sender<Delivery>;

/// What all tasks of an intake share.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) client: Client,
    pub(super) options: IntakeOptions,
    pub(super) health: watch::Sender<Health>,
    /// Ends everything.
    pub(super) stop: CancellationToken,
    pub(super) tracker: TaskTracker,
    /// A heartbeat is due now.
    pub(super) hurry: Notify,
    /// The time to plan again has changed.
    clock: Notify,
    /// A stream has ended.
    quieter: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    core: Core<Waiter, Delivery>,
    lanes: HashMap<StreamId, Lane>,
    /// Why the last stream of an assigned host broke.
    reasons: HashMap<Host, String>,
}

/// The sending side of a stream.
#[derive(Debug)]
struct Lane {
    requests: Option<mpsc::Sender<proto::PollTaskRequest>>,
    drain: Arc<Notify>,
    let_go: CancellationToken,
}

/// What became of a wish.
#[derive(Debug)]
pub(super) enum Wanted {
    /// A task was already here.
    Here(Box<Delivery>),
    /// It is asked for.
    Waiting(WaiterId),
}

impl Desk {
    pub(super) fn new(client: Client, options: IntakeOptions, health: watch::Sender<Health>) -> Self {
        let core = Core::new(options.soon);
        Self {
            client,
            options,
            health,
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
            hurry: Notify::new(),
            clock: Notify::new(),
            quieter: Notify::new(),
            state: Mutex::new(State { core, lanes: HashMap::new(), reasons: HashMap::new() }),
        }
    }

    /// Somebody wants a task.
    pub(super) fn want(self: &Arc<Self>, waiter: Waiter) -> Result<Wanted> {
        let mut state = self.lock();
        if state.core.is_closed() {
            return Err(Error::Closed);
        }
        if let Some(delivery) = state.core.first_in_line() {
            return Ok(Wanted::Here(Box::new(delivery)));
        }
        let id = state.core.want(waiter);
        self.act(&mut state);
        Ok(Wanted::Waiting(id))
    }

    /// Somebody wants it no more, or has got it too late.
    pub(super) fn unwant(self: &Arc<Self>, id: WaiterId, got: Option<Delivery>) {
        let mut state = self.lock();
        state.core.unwant(id, Instant::now());
        if let Some(delivery) = got {
            let next = state.core.given_back(delivery);
            hand_over(&mut state, next);
        }
        self.act(&mut state);
    }

    /// Somebody had it, and has not begun with it.
    pub(super) fn put_back(self: &Arc<Self>, delivery: Delivery) -> Option<Delivery> {
        let mut state = self.lock();
        if state.core.is_closed() {
            return Some(delivery);
        }
        let next = state.core.given_back(delivery);
        hand_over(&mut state, next);
        self.act(&mut state);
        None
    }

    /// A stream was answered.
    pub(super) fn answered(self: &Arc<Self>, stream: StreamId, host: &Host, answer: proto::PollTaskResponse) {
        let now = Instant::now();
        let mut state = self.lock();
        match answer.result {
            Some(task) => {
                let next = state.core.arrived(stream, Delivery { task, host: host.clone(), at: now }, now);
                hand_over(&mut state, next);
            }
            None => state.core.empty(stream, now),
        }
        self.act(&mut state);
    }

    /// A stream is no more; `why` if it broke.
    pub(super) fn ended(self: &Arc<Self>, stream: StreamId, host: &Host, why: &str) {
        let mut state = self.lock();
        state.lanes.remove(&stream);
        if state.core.ended(stream, Instant::now(), rand::random()) {
            if state.core.failures(host) == 1 {
                tracing::warn!(task = %self.options.task, %host, reason = %why, "the stream of tasks broke; it is opened again");
            } else {
                tracing::debug!(task = %self.options.task, %host, reason = %why, "the stream of tasks broke again");
            }
            state.reasons.insert(host.clone(), why.to_owned());
            self.hurry.notify_one();
        }
        self.act(&mut state);
        let trouble = state.trouble();
        drop(state);
        if let Some(why) = trouble {
            // What a heartbeat met is told rather than this.
            self.health.send_if_modified(|shown| {
                let news = !matches!(shown, Health::Unhealthy(_));
                if news {
                    *shown = Health::Unhealthy(why);
                }
                news
            });
        }
        self.quieter.notify_one();
    }

    /// The server has assigned these hosts.
    pub(super) fn assign(self: &Arc<Self>, hosts: Vec<Host>) {
        let mut state = self.lock();
        let (new, gone) = state.core.assign(hosts);
        for host in new {
            tracing::info!(task = %self.options.task, %host, "tasks are asked for at this host");
        }
        for host in gone {
            tracing::info!(task = %self.options.task, %host, "this host is not ours any more");
            self.client.forget(&host);
            state.reasons.remove(&host);
        }
        self.act(&mut state);
    }

    /// Why tasks of an assigned host do not come, if it fails again and again.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble()
    }

    /// Shows how the worker stands with the cluster.
    pub(super) fn show(&self, health: Health) {
        self.health.send_if_modified(|shown| {
            let changed = *shown != health;
            *shown = health;
            changed
        });
    }

    /// The assigned hosts.
    pub(super) fn hosts(&self) -> Vec<Host> {
        self.lock().core.assigned().cloned().collect()
    }

    pub(super) async fn close(self: &Arc<Self>) -> Vec<Delivery> {
        {
            let mut state = self.lock();
            // Dropping what they wait on tells them.
            drop(state.core.close());
            self.act(&mut state);
        }
        let quiet = async {
            loop {
                let quieter = self.quieter.notified();
                if self.lock().core.is_quiet() {
                    return;
                }
                quieter.await;
            }
        };
        // Not an error: a server does not end a stream that is half-closed.
        let _ = timeout(self.options.closing, quiet).await;
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        self.lock().core.leftovers()
    }

    /// Carries out what the core wants done.
    fn act(self: &Arc<Self>, state: &mut State) {
        for step in state.core.plan(Instant::now()) {
            match step {
                Step::Open(id, host) => self.open(state, id, host),
                Step::Ask(id) => {
                    let requests = state.lanes.get(&id).and_then(|lane| lane.requests.as_ref());
                    // It has room: the request before was answered. If it is closed, its task tells so in a moment.
                    let _ = requests.map(|requests| requests.try_send(self.request()));
                }
                Step::HalfClose(id) => {
                    if let Some(lane) = state.lanes.get_mut(&id) {
                        lane.requests = None;
                        lane.drain.notify_one();
                    }
                }
                Step::Drop(id) => {
                    if let Some(lane) = state.lanes.remove(&id) {
                        lane.let_go.cancel();
                    }
                }
            }
        }
        if state.core.wake_at().is_some() {
            self.clock.notify_one();
        }
    }

    fn open(self: &Arc<Self>, state: &mut State, id: StreamId, host: Host) {
        // The answer to the call comes with the first task: the first request has to be in the stream before.
        let (requests, receiver) = mpsc::channel(1);
        let _ = requests.try_send(self.request());
        let drain = Arc::new(Notify::new());
        let let_go = self.stop.child_token();
        let lane = Lane { requests: Some(requests), drain: Arc::clone(&drain), let_go: let_go.clone() };
        state.lanes.insert(id, lane);
        self.tracker.spawn(stream::read(Arc::clone(self), id, host, receiver, drain, let_go));
    }

    fn request(&self) -> proto::PollTaskRequest {
        let config = self.client.config();
        proto::PollTaskRequest {
            task_def_id: Some(proto::TaskDefId { name: self.options.task.clone() }),
            client_id: config.worker_id.clone(),
            task_worker_version: Some(config.worker_version.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn trouble(&self) -> Option<String> {
        let host = self.core.trouble(Instant::now())?;
        Some(self.reasons.get(host).cloned().unwrap_or_else(|| format!("{host} fails")))
    }
}

/// Gives a task to the first call that still waits.
fn hand_over(state: &mut State, mut next: Option<(Waiter, Delivery)>) {
    while let Some((waiter, delivery)) = next {
        next = match waiter.send(delivery) {
            Ok(()) => None,
            Err(delivery) => state.core.given_back(delivery),
        };
    }
}

/// Plans again when the core says that it is time.
pub(super) async fn keep_time(desk: Arc<Desk>) {
    loop {
        let at = {
            let mut state = desk.lock();
            let now = Instant::now();
            if state.core.wake_at().is_some_and(|at| at <= now) {
                desk.act(&mut state);
            }
            state.core.wake_at()
        };
        let far = Instant::now() + Duration::from_secs(3600);
        tokio::select! {
            () = desk.stop.cancelled() => return,
            () = sleep_until(at.unwrap_or(far)) => {}
            () = desk.clock.notified() => {}
        }
    }
}
