//! The loop of a runner: one closed set of events in, one look at what is due after each.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comfyui::{PromptId, Session, SessionOptions};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use remuda_core::{Fence, Health, LeaseRef, OwnerId, TaskId, WorkerReport};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event::{Event, Fate, Stage, Tombstone, Word};
use super::worker::{Ready, Worker};
use crate::WorkerConfig;
use crate::decide::health::Condition;
use crate::decide::wish::Wish;
use crate::herd::{Shared, WorkerState};

/// How long a worker that is not driven any more is waited for.
const RETIRED_PATIENCE: Duration = Duration::from_secs(10);

/// An attempt under way, as its runner sees it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    pub(super) affinity: Option<i64>,
}

/// What a runner is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To work.
    Drive,
    /// To end what is under way.
    Retire,
}

/// Drives one worker.
pub(crate) struct Runner {
    pub(super) purpose: Purpose,
    pub(super) worker: Arc<Worker>,
    pub(super) session_options: SessionOptions,
    pub(super) stop: CancellationToken,
    pub(super) state: watch::Sender<WorkerState>,
    pub(super) ready: watch::Sender<Option<Arc<Ready>>>,
    pub(super) session: Option<Session>,
    socket: Option<watch::Receiver<bool>>,
    beats: watch::Receiver<u64>,
    /// The worker's lease.
    pub(super) hold: Option<Fence>,
    pub(super) held_by: Option<OwnerId>,
    /// What is reported of the worker.
    pub(super) report: WorkerReport,
    /// What its identity file said last, by this or a former holder.
    pub(super) known_identity: Option<String>,
    pub(super) condition: Condition,
    pub(super) tombstone: Option<Tombstone>,
    pub(super) draining: bool,
    abandoned: bool,

    pub(super) attempts: JoinSet<Fate>,
    names: HashMap<Id, LeaseRef>,
    pub(super) slots: HashMap<LeaseRef, Slot>,
    pub(super) words: mpsc::Sender<Word>,
    inbox: mpsc::Receiver<Word>,
    pub(super) loaded: Option<i64>,

    pub(super) claim: Option<(Wish, BoxFuture<'static, Event>)>,
    pub(super) doing: FuturesUnordered<BoxFuture<'static, Event>>,
    pub(super) due: Due,
    pub(super) late_seen: HashSet<PromptId>,
    pub(super) strays: HashSet<LeaseRef>,
    pub(super) probes_failed: u32,
}

/// What is under way, and what is due when.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) acquiring: bool,
    pub(super) acquire_at: Instant,
    pub(super) adopting: bool,
    pub(super) adopted: bool,
    pub(super) adopt_at: Instant,
    pub(super) inspecting: bool,
    /// `None`: it was looked over, and nothing happened since.
    pub(super) inspect_at: Option<Instant>,
    pub(super) probing: bool,
    pub(super) probe_at: Instant,
    pub(super) sweeping: bool,
    pub(super) sweep_at: Instant,
    /// Whether the queue was swept since the worker was taken over: before that nothing is claimed.
    pub(super) swept: bool,
    pub(super) claim_at: Instant,
}

impl Runner {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: WorkerConfig,
        purpose: Purpose,
        stop: CancellationToken,
    ) -> (Self, watch::Receiver<WorkerState>) {
        let WorkerConfig { spec, client, session } = config;
        let (ready, ready_receiver) = watch::channel(None);
        let (words, inbox) = mpsc::channel(64);
        let state = WorkerState {
            spec: spec.clone(),
            driven: false,
            held_by: None,
            report: WorkerReport::default(),
            leases: Vec::new(),
        };
        let (state, state_receiver) = watch::channel(state);
        let now = Instant::now();
        let condition = Condition::new(shared.options.quarantine.clone());
        let beats = shared.board.beats();
        let patience = match purpose {
            Purpose::Drive => shared.options.timing.unreachable,
            // Mostly it is gone for good.
            Purpose::Retire => shared.options.timing.unreachable.min(RETIRED_PATIENCE),
        };
        let worker = Worker {
            shared,
            spec,
            client,
            patience,
            ready: ready_receiver,
            placed: Mutex::default(),
            left: Mutex::default(),
        };
        let runner = Self {
            purpose,
            worker: Arc::new(worker),
            session_options: session,
            stop,
            state,
            ready,
            session: None,
            socket: None,
            beats,
            hold: None,
            held_by: None,
            report: WorkerReport::default(),
            known_identity: None,
            condition,
            tombstone: None,
            draining: false,
            abandoned: false,
            attempts: JoinSet::new(),
            names: HashMap::new(),
            slots: HashMap::new(),
            words,
            inbox,
            loaded: None,
            claim: None,
            doing: FuturesUnordered::new(),
            due: Due {
                acquiring: false,
                acquire_at: now,
                adopting: false,
                adopted: false,
                adopt_at: now,
                inspecting: false,
                inspect_at: Some(now),
                probing: false,
                probe_at: now,
                sweeping: false,
                sweep_at: now,
                swept: false,
                claim_at: now,
            },
            late_seen: HashSet::new(),
            strays: HashSet::new(),
            probes_failed: 0,
        };
        (runner, state_receiver)
    }

    /// Runs until it is stopped.
    pub(crate) async fn run(mut self) {
        loop {
            self.advance();
            self.show();
            if self.abandoned || (self.slots.is_empty() && (self.draining || self.is_retired())) {
                break;
            }
            let event = self.next().await;
            self.take(event);
        }
        self.finish().await;
    }

    /// The next thing that happens.
    async fn next(&mut self) -> Event {
        let due = self.next_due();
        let socket = async {
            if let Some(socket) = &mut self.socket
                && socket.changed().await.is_ok()
            {
                return *socket.borrow_and_update();
            }
            std::future::pending().await
        };
        let claimed = async {
            match &mut self.claim {
                Some((_, claim)) => claim.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.worker.shared.abandon.cancelled() => Event::Abandon,
            () = self.stop.cancelled(), if !self.draining => Event::Stop,
            Some(word) = self.inbox.recv() => Event::Word(word),
            Some(ended) = self.attempts.join_next_with_id() => match ended {
                Ok((id, fate)) => Event::Ended(self.name_of(id), fate),
                Err(error) => {
                    tracing::error!(worker = %self.worker.spec.id, %error, "an attempt ended abnormally; its lease is left to be adopted");
                    Event::Ended(self.name_of(error.id()), Fate::Gone)
                }
            },
            Some(event) = self.doing.next() => event,
            event = claimed => event,
            up = socket => Event::Socket(up),
            Ok(()) = self.beats.changed() => Event::Beaten,
            () = tokio::time::sleep_until(due) => Event::Tick,
        }
    }

    /// Whether everything that was under way is known, and nothing else is to come.
    fn is_retired(&self) -> bool {
        let known = (self.hold.is_some() && self.due.adopted) || self.held_by.is_some();
        self.purpose == Purpose::Retire && known
    }

    fn name_of(&mut self, id: Id) -> LeaseRef {
        let nobody = LeaseRef { task: TaskId(uuid::Uuid::nil()), fence: Fence(0) };
        self.names.remove(&id).unwrap_or(nobody)
    }

    pub(super) fn remember(&mut self, id: Id, lease: LeaseRef, slot: Slot) {
        self.names.insert(id, lease);
        self.slots.insert(lease, slot);
    }

    pub(super) fn follow_socket(&mut self, session: &Session) {
        if self.socket.is_none() {
            let mut socket = session.connection();
            socket.mark_unchanged();
            self.socket = Some(socket);
        }
    }

    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.worker.shared
    }

    /// Whether ComfyUI has something of ours to render.
    fn is_busy(&self) -> bool {
        self.slots.values().any(|slot| slot.stage != Stage::Delivering)
    }

    /// Writes down how the worker is.
    fn show(&mut self) {
        let (health, reason) = self.condition.judge(Instant::now(), self.is_busy());
        let current = self.slots.iter().filter(|(_, slot)| slot.stage == Stage::Rendering);
        let current = current.map(|(lease, _)| lease.task).min();
        let before = self.report.health;
        self.report.health = health;
        self.report.reason = reason;
        self.report.current_task = current;
        let well = |health: Health| health.is_usable() || health == Health::Starting;
        if well(before) && !well(health) && health != Health::Draining {
            tracing::warn!(worker = %self.worker.spec.id, health = %health, reason = self.report.reason, "a worker gets no tasks for now");
        } else if !well(before) && well(health) {
            tracing::info!(worker = %self.worker.spec.id, "a worker is healthy again");
        }
        if self.hold.is_some() {
            self.shared().board.set_report(&self.worker.spec.id, self.report.clone());
        }
        let (driven, held_by) = (self.hold.is_some(), self.held_by);
        self.state.send_if_modified(|state| {
            let same = state.driven == driven && state.held_by == held_by && state.report == self.report;
            state.driven = driven;
            state.held_by = held_by;
            state.report.clone_from(&self.report);
            !same
        });
    }

    /// Lets go of what has no leases, and closes the socket.
    async fn finish(&mut self) {
        self.claim = None;
        self.doing.clear();
        if !self.abandoned {
            self.let_go().await;
        }
        // Dropping them is what a killed process does to them.
        self.attempts.shutdown().await;
        if let Some(session) = &self.session {
            session.close().await;
        }
    }
}
