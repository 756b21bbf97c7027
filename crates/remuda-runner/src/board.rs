//! What this process holds: its leases and workers, and when each was last renewed.
//!
//! Runners and attempts write their state on it, the beat loop reads it, sends it to the source, and writes back what
//! came. Nobody else remembers a lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use remuda_core::{Claim, Fence, LeaseRef, Phase, WorkerId, WorkerReport};
use remuda_store::{BeatReply, LeaseBeat, WorkerBeat};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// A moment on two clocks. The first does not jump, the second goes on while the machine sleeps: only what is recent on
/// both is recent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    steady: Instant,
    wall: SystemTime,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.steady.elapsed()
    }

    fn is_within(self, time: Duration) -> bool {
        // A wall clock that was set back says nothing.
        self.steady.elapsed() < time && self.wall.elapsed().map_or(true, |elapsed| elapsed < time)
    }
}

/// The pause between two signs of life of the process itself.
pub(crate) const PULSE: Duration = Duration::from_millis(500);

/// What the holder of a lease should do about it. Each only ever becomes true.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// Its task was cancelled.
    pub(crate) cancel: bool,
    /// Give it back, if ComfyUI has not begun.
    pub(crate) back: bool,
    /// It is somebody else's.
    pub(crate) lost: bool,
}

#[derive(Debug)]
struct Held {
    worker: WorkerId,
    phase: Phase,
    progress: f64,
    renewed: Moment,
    signals: watch::Sender<Signals>,
}

#[derive(Debug)]
struct HeldWorker {
    fence: Fence,
    report: WorkerReport,
    renewed: Moment,
    /// The last report that came through.
    reported: Option<WorkerReport>,
    lost: bool,
}

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<LeaseRef, Held>,
    workers: BTreeMap<WorkerId, HeldWorker>,
}

/// All leases and workers of the process.
#[derive(Debug)]
pub(crate) struct Board {
    state: Mutex<State>,
    stale: Duration,
    /// Something was added that a beat under way does not know.
    pub(crate) changed: Notify,
    /// Somebody waits for the next beat.
    pub(crate) urgent: Notify,
    /// When this process last did anything at all.
    pulse: Mutex<Moment>,
    /// Counts beats that came back.
    beats: watch::Sender<u64>,
}

/// Holds a lease on the board; without it the lease is not renewed any more.
#[derive(Debug)]
pub(crate) struct Grip {
    board: Arc<Board>,
    pub(crate) lease: LeaseRef,
    pub(crate) signals: watch::Receiver<Signals>,
}

impl Drop for Grip {
    fn drop(&mut self) {
        self.board.state().leases.remove(&self.lease);
    }
}

/// The lease is somebody else's: stop, and touch nothing at ComfyUI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotOurs;

impl Board {
    pub(crate) fn new(stale: Duration) -> Self {
        Self {
            state: Mutex::default(),
            stale,
            changed: Notify::new(),
            urgent: Notify::new(),
            pulse: Mutex::new(Moment::now()),
            beats: watch::Sender::new(0),
        }
    }

    /// This process lives; to be called every [`PULSE`].
    pub(crate) fn pulse(&self) {
        *self.pulse.lock().unwrap_or_else(PoisonError::into_inner) = Moment::now();
    }

    /// From when on a lease counts whose claim, asked for at `asked`, was answered now.
    ///
    /// It was made at some time in between, a long poll ago or a moment ago. A process that was frozen meanwhile must take
    /// the first, and renew the lease before it acts; others may leave a margin for the way of the answer.
    pub(crate) fn claimed(&self, asked: Moment) -> Moment {
        let pulse = *self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let margin = self.stale / 4;
        if asked.is_within(margin) || !pulse.is_within(PULSE * 6) {
            return asked;
        }
        let before = |now: Moment| {
            Some(Moment { steady: now.steady.checked_sub(margin)?, wall: now.wall.checked_sub(margin)? })
        };
        before(Moment::now()).unwrap_or(asked)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a claim onto the board. `asked`: when the request for it began.
    pub(crate) fn hold(self: &Arc<Self>, claim: &Claim, asked: Moment) -> Grip {
        let lease = claim.lease.reference();
        let cancel = claim.task.cancel_at.is_some();
        let (sender, signals) = watch::channel(Signals { cancel, ..Signals::default() });
        let held = Held {
            worker: claim.lease.worker.clone(),
            phase: claim.lease.phase,
            progress: claim.lease.progress,
            renewed: asked,
            signals: sender,
        };
        self.state().leases.insert(lease, held);
        self.changed.notify_one();
        Grip { board: Arc::clone(self), lease, signals }
    }

    pub(crate) fn set_phase(&self, lease: LeaseRef, phase: Phase) {
        if let Some(held) = self.state().leases.get_mut(&lease) {
            held.phase = phase;
        }
    }

    pub(crate) fn set_progress(&self, lease: LeaseRef, progress: f64) {
        if let Some(held) = self.state().leases.get_mut(&lease) {
            held.progress = progress;
        }
    }

    /// What is held on a worker.
    pub(crate) fn leases_on(&self, worker: &WorkerId) -> Vec<LeaseRef> {
        let state = self.state();
        state.leases.iter().filter(|(_, held)| held.worker == *worker).map(|(lease, _)| *lease).collect()
    }

    /// Asks for everything on a worker that has not begun.
    pub(crate) fn call_back(&self, worker: &WorkerId) {
        for held in self.state().leases.values().filter(|held| held.worker == *worker) {
            held.signals.send_if_modified(|signals| !std::mem::replace(&mut signals.back, true));
        }
    }

    pub(crate) fn hold_worker(&self, id: WorkerId, fence: Fence, report: WorkerReport, asked: Moment) {
        let held = HeldWorker { fence, report, renewed: asked, reported: None, lost: false };
        self.state().workers.insert(id, held);
        self.urgent.notify_one();
    }

    pub(crate) fn drop_worker(&self, id: &WorkerId) {
        self.state().workers.remove(id);
    }

    /// Changes a worker's report. A change of what it is, not only of how it is, is sent soon.
    pub(crate) fn set_report(&self, id: &WorkerId, report: WorkerReport) {
        if let Some(held) = self.state().workers.get_mut(id) {
            let news = held.report.identity != report.identity
                || held.report.object_info != report.object_info
                || held.report.health.is_usable() != report.health.is_usable();
            held.report = report;
            if news {
                self.urgent.notify_one();
            }
        }
    }

    /// Another worker of this process with the same identity.
    pub(crate) fn twin(&self, id: &WorkerId, identity: &str) -> Option<WorkerId> {
        let state = self.state();
        // Of two the one with the smaller name works.
        let same = |held: &HeldWorker| held.report.identity.as_deref() == Some(identity) && !held.lost;
        state.workers.iter().find(|(other, held)| *other < id && same(held)).map(|(other, _)| other.clone())
    }

    /// Whether a worker is surely ours at this moment, and the source knows which ComfyUI it is.
    pub(crate) fn worker_is_sure(&self, id: &WorkerId) -> bool {
        self.state().workers.get(id).is_some_and(|held| {
            let identity = held.reported.as_ref().and_then(|report| report.identity.as_ref());
            !held.lost && held.renewed.is_within(self.stale) && identity == held.report.identity.as_ref()
        })
    }

    pub(crate) fn worker_is_lost(&self, id: &WorkerId) -> bool {
        self.state().workers.get(id).is_none_or(|held| held.lost)
    }

    /// Waits until the lease was renewed lately: only then may anything be done for it at ComfyUI.
    pub(crate) async fn confirm(&self, lease: LeaseRef) -> Result<(), NotOurs> {
        let mut beats = self.beats.subscribe();
        loop {
            {
                let state = self.state();
                let held = state.leases.get(&lease).ok_or(NotOurs)?;
                if held.signals.borrow().lost {
                    return Err(NotOurs);
                }
                if held.renewed.is_within(self.stale) {
                    return Ok(());
                }
            }
            self.urgent.notify_one();
            beats.changed().await.map_err(|_| NotOurs)?;
        }
    }

    /// Waits until the lease was renewed lately or is known to be lost: before a report.
    pub(crate) async fn settle(&self, lease: LeaseRef) {
        // A lost one is reported all the same: it may be lost because the report came through.
        let _ = self.confirm(lease).await;
    }

    /// Tells of every beat that came back.
    pub(crate) fn beats(&self) -> watch::Receiver<u64> {
        self.beats.subscribe()
    }

    /// What to say in a beat.
    pub(crate) fn snapshot(&self) -> (Vec<LeaseBeat>, Vec<WorkerBeat>) {
        let state = self.state();
        let leases = state.leases.iter().map(|(lease, held)| LeaseBeat {
            lease: *lease,
            phase: held.phase,
            progress: held.progress,
        });
        let workers = state.workers.iter().filter(|(_, held)| !held.lost).map(|(id, held)| WorkerBeat {
            id: id.clone(),
            fence: held.fence,
            report: held.report.clone(),
        });
        (leases.collect(), workers.collect())
    }

    /// Takes the answer to a beat that said `leases` and `workers` and began at `asked`. How many leases were lost.
    pub(crate) fn beaten(
        &self,
        asked: Moment,
        leases: &[LeaseBeat],
        workers: Vec<WorkerBeat>,
        reply: &BeatReply,
    ) -> u64 {
        let mut lost = 0;
        {
            let mut state = self.state();
            for beat in leases {
                let Some(held) = state.leases.get_mut(&beat.lease) else { continue };
                if reply.lost.contains(&beat.lease) {
                    lost += 1;
                    held.signals.send_if_modified(|signals| !std::mem::replace(&mut signals.lost, true));
                } else {
                    held.renewed = asked;
                }
            }
            for beat in workers {
                let Some(held) = state.workers.get_mut(&beat.id) else { continue };
                if held.fence != beat.fence {
                    continue;
                }
                if reply.lost_workers.contains(&beat.id) {
                    held.lost = true;
                } else {
                    held.renewed = asked;
                    held.reported = Some(beat.report);
                }
            }
            for news in &reply.news {
                let Some(held) = state.leases.get_mut(&news.lease) else { continue };
                held.signals.send_if_modified(|signals| {
                    let before = *signals;
                    signals.cancel |= news.cancel;
                    signals.back |= news.wanted;
                    *signals != before
                });
            }
        }
        self.beats.send_modify(|beats| *beats += 1);
        lost
    }

    /// Whether there is nothing to renew.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        state.leases.is_empty() && state.workers.values().all(|held| held.lost)
    }

    /// How many leases are held altogether.
    pub(crate) fn leases(&self) -> usize {
        self.state().leases.len()
    }

    /// The phase of every lease on a worker.
    pub(crate) fn phases_on(&self, worker: &WorkerId) -> Vec<(LeaseRef, Phase, f64)> {
        let state = self.state();
        let on = state.leases.iter().filter(|(_, held)| held.worker == *worker);
        on.map(|(lease, held)| (*lease, held.phase, held.progress)).collect()
    }
}
