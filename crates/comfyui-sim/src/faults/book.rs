//! The book: which faults there are, and whose turn it is.

use super::dice::Dice;
use super::{Fault, FaultKind};
use crate::Profile;
use crate::engine::{ExecutionFaults, PromptFaults};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Names one fault of one simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FaultId(u64);

impl fmt::Display for FaultId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One fault and how it has fared.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultReport {
    /// Which one.
    pub id: FaultId,
    /// The fault as it was added.
    pub fault: Fault,
    /// How many times it struck.
    pub hits: u32,
    /// Whether it can strike again.
    pub active: bool,
}

/// The faults of one simulator: a cheap handle that adds, lists and removes them.
///
/// Faults survive restarts and crashes of the simulated ComfyUI, as bad luck does.
#[derive(Debug, Clone)]
pub struct Faults {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    seed: u64,
    state: Mutex<State>,
    /// Counts changes, so that sockets and the supervisor look again.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: FaultId,
    fault: Fault,
    added: Instant,
    hits: u32,
    dice: Dice,
    /// Cancelled when the fault leaves the book.
    gone: CancellationToken,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl Entry {
    fn active(&self, now: Instant) -> bool {
        let in_time = self.fault.lasting.is_none_or(|duration| now.duration_since(self.added) < duration);
        in_time && self.fault.times.is_none_or(|times| self.hits < times)
    }

    /// Takes one chance. A lost throw of the dice does not count as a hit.
    fn strike(&mut self) -> bool {
        let hit = match self.fault.probability {
            Some(probability) => self.dice.roll() < probability,
            None => true,
        };
        self.hits = self.hits.saturating_add(u32::from(hit));
        hit
    }
}

/// What happens to one request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) delay: Duration,
    pub(crate) before: Option<Before>,
    pub(crate) after: Option<After>,
    /// What befalls the process once the request has been processed.
    pub(crate) process: Vec<ProcessFault>,
}

/// Instead of processing the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Hang,
    Reset,
    Error(u16),
    HalfOpen,
    Endless(u16, u64),
    GzipBomb(u64),
}

/// Instead of sending the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Lose,
    Error(u16),
    Garbage,
    Cut,
    ObjectInfo(u64),
    History(u64),
    Trickle(Duration),
}

/// What befalls a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketFault {
    pub(crate) kind: SocketFaultKind,
    pub(crate) after_frames: u64,
}

/// How a socket goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketFaultKind {
    Mute,
    Drop,
    HalfOpen,
    Flood { frames: u64, bytes: u64 },
}

/// What befalls the process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ProcessFault {
    /// The door is shut until this fault is gone from the book, or the time is over.
    Refuse {
        id: FaultId,
        lasting: Option<Duration>,
    },
    Restart {
        down: Duration,
    },
    Crash {
        down: Option<Duration>,
    },
    Version(Profile),
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { inner: Arc::new(Inner { seed, state: Mutex::default(), changes: watch::Sender::new(0) }) }
    }

    /// Adds a fault. Those about the process happen soon after this returns; who wants to wait for them uses
    /// [`Simulator::restart`](crate::Simulator::restart) and its like.
    pub fn add(&self, fault: Fault) -> FaultId {
        let mut state = self.state();
        let id = FaultId(state.next);
        state.next += 1;
        let seed = fault.seed.unwrap_or(self.inner.seed.wrapping_add(id.0));
        state.entries.push(Entry {
            id,
            fault,
            added: Instant::now(),
            hits: 0,
            dice: Dice::new(seed),
            gone: CancellationToken::new(),
        });
        drop(state);
        self.changed();
        id
    }

    /// Takes a fault out of the book; what it did is not undone, but a closed port opens again. Says whether it was there.
    pub fn remove(&self, id: FaultId) -> bool {
        let mut state = self.state();
        let before = state.entries.len();
        state.entries.retain(|entry| entry.id != id);
        let removed = state.entries.len() < before;
        drop(state);
        self.changed();
        removed
    }

    /// Takes all faults out of the book.
    pub fn clear(&self) {
        self.state().entries.clear();
        self.changed();
    }

    /// All faults in the order they were added, the spent ones too.
    pub fn list(&self) -> Vec<FaultReport> {
        let now = Instant::now();
        let report = |entry: &Entry| FaultReport {
            id: entry.id,
            fault: entry.fault.clone(),
            hits: entry.hits,
            active: entry.active(now),
        };
        self.state().entries.iter().map(report).collect()
    }

    /// How many times a fault struck; 0 for one that is not in the book.
    pub fn hits(&self, id: FaultId) -> u32 {
        let state = self.state();
        state.entries.iter().find(|entry| entry.id == id).map_or(0, |entry| entry.hits)
    }

    /// Decides what happens to a request. Of several faults with the same effect the oldest has its way, and
    /// only faults that have their way are counted: a request that is not processed spends no fault that
    /// would come afterwards.
    pub(crate) fn plan(&self, method: &str, path: &str) -> Plan {
        let mut plan = Plan::default();
        let now = Instant::now();
        let mut state = self.state();
        let mut meant: Vec<&mut Entry> = state
            .entries
            .iter_mut()
            .filter(|entry| entry.active(now))
            .filter(|entry| entry.fault.on.as_ref().is_none_or(|on| on.matches(method, path)))
            .collect();
        for entry in &mut meant {
            if let FaultKind::Slow { delay } = entry.fault.kind
                && entry.strike()
            {
                plan.delay += delay;
            } else if plan.before.is_none()
                && let Some(before) = before(entry)
            {
                plan.before = entry.strike().then_some(before);
            }
        }
        if plan.before.is_some() {
            return plan;
        }
        for entry in &mut meant {
            if let Some(after) = after(entry, path)
                && plan.after.is_none()
            {
                plan.after = entry.strike().then_some(after);
            } else if entry.fault.on.is_some()
                && let Some(process) = process_fault(entry)
            {
                plan.process.extend(entry.strike().then_some(process));
            }
        }
        plan
    }

    /// What befalls a socket now. `asked` remembers the faults that this socket has been asked about, so that
    /// none of them hits it twice.
    pub(crate) fn socket(&self, asked: &mut HashSet<FaultId>) -> Option<SocketFault> {
        let now = Instant::now();
        let mut found = None;
        for entry in &mut self.state().entries {
            let (kind, after_frames) = match entry.fault.kind {
                FaultKind::MuteWebsocket { after_frames } => (SocketFaultKind::Mute, after_frames),
                FaultKind::DropWebsocket { after_frames } => (SocketFaultKind::Drop, after_frames),
                FaultKind::HalfOpenWebsocket { after_frames } => (SocketFaultKind::HalfOpen, after_frames),
                FaultKind::FloodWebsocket { frames, bytes } => (SocketFaultKind::Flood { frames, bytes }, 0),
                _ => continue,
            };
            if found.is_none() && entry.active(now) && asked.insert(entry.id) && entry.strike() {
                found = Some(SocketFault { kind, after_frames });
            }
        }
        found
    }

    /// The faults about the process that wait for no request. Each comes out once.
    pub(crate) fn take_process(&self) -> Vec<ProcessFault> {
        let now = Instant::now();
        let mut taken = Vec::new();
        for entry in &mut self.state().entries {
            if entry.fault.on.is_none()
                && entry.hits == 0
                && entry.active(now)
                && let Some(fault) = process_fault(entry)
            {
                entry.hits = 1;
                taken.push(fault);
            }
        }
        taken
    }

    /// Whether a fault is still in the book.
    pub(crate) fn contains(&self, id: FaultId) -> bool {
        self.state().entries.iter().any(|entry| entry.id == id)
    }

    /// Whether an upload finds the disk full.
    pub(crate) fn disk_full(&self) -> bool {
        let now = Instant::now();
        self.state()
            .entries
            .iter_mut()
            .any(|entry| entry.fault.kind == FaultKind::DiskFull && entry.active(now) && entry.strike())
    }

    /// Reports every change of the book.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    fn changed(&self) {
        self.inner.changes.send_modify(|count| *count += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step under this lock can leave the book half changed, so a panic elsewhere does not spoil it.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecutionFaults for Faults {
    fn for_prompt(&self, _prompt_id: &str) -> PromptFaults {
        let mut faults = PromptFaults::default();
        let now = Instant::now();
        for entry in &mut self.state().entries {
            let about_prompts = matches!(
                entry.fault.kind,
                FaultKind::ZombieWorker
                    | FaultKind::OutOfMemory
                    | FaultKind::DiskFull
                    | FaultKind::FilesGone
                    | FaultKind::StuckNode
                    | FaultKind::CrashInNode
                    | FaultKind::SlowNodes { .. }
            );
            if !about_prompts || !entry.active(now) || !entry.strike() {
                continue;
            }
            match entry.fault.kind {
                FaultKind::ZombieWorker => faults.worker_dies = true,
                FaultKind::OutOfMemory => faults.out_of_memory = true,
                FaultKind::DiskFull => faults.disk_full = true,
                FaultKind::FilesGone => faults.files_gone = true,
                FaultKind::StuckNode => faults.hang = Some(entry.gone.child_token()),
                FaultKind::CrashInNode => faults.crash = true,
                FaultKind::SlowNodes { factor } => {
                    faults.slow_factor = Some(faults.slow_factor.unwrap_or(1.0) * factor);
                }
                _ => {}
            }
        }
        faults
    }
}

fn before(entry: &Entry) -> Option<Before> {
    match entry.fault.kind {
        FaultKind::Hang => Some(Before::Hang),
        FaultKind::Reset => Some(Before::Reset),
        FaultKind::Error { status } => Some(Before::Error(status)),
        FaultKind::HalfOpen => Some(Before::HalfOpen),
        FaultKind::Endless { status, bytes } => Some(Before::Endless(status, bytes)),
        FaultKind::GzipBomb { bytes } => Some(Before::GzipBomb(bytes)),
        _ => None,
    }
}

fn after(entry: &Entry, path: &str) -> Option<After> {
    let path = path.strip_prefix("/api").unwrap_or(path);
    match entry.fault.kind {
        FaultKind::LoseAnswer => Some(After::Lose),
        FaultKind::ErrorAfter { status } => Some(After::Error(status)),
        FaultKind::Garbage => Some(After::Garbage),
        FaultKind::CutAnswer => Some(After::Cut),
        FaultKind::Trickle { delay } => Some(After::Trickle(delay)),
        FaultKind::HugeObjectInfo { nodes } if path == "/object_info" => Some(After::ObjectInfo(nodes)),
        FaultKind::HugeHistory { bytes } if path.starts_with("/history") => Some(After::History(bytes)),
        _ => None,
    }
}

fn process_fault(entry: &Entry) -> Option<ProcessFault> {
    match entry.fault.kind {
        FaultKind::Refuse => Some(ProcessFault::Refuse { id: entry.id, lasting: entry.fault.lasting }),
        FaultKind::Restart { down } => Some(ProcessFault::Restart { down }),
        FaultKind::Crash { down } => Some(ProcessFault::Crash { down }),
        FaultKind::Version { profile } => Some(ProcessFault::Version(profile)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_fault_strikes_so_many_times_and_only_its_route() {
        let faults = Faults::new(0);
        let id = faults.add(Fault::error(500).on("POST /prompt").times(2));
        assert_eq!(faults.plan("GET", "/prompt"), Plan::default());
        for _ in 0..2 {
            assert_eq!(faults.plan("POST", "/prompt").before, Some(Before::Error(500)));
        }
        assert_eq!(faults.plan("POST", "/prompt"), Plan::default());
        assert_eq!(faults.hits(id), 2);
        assert!(!faults.list()[0].active);
    }

    #[test]
    fn the_older_of_two_alike_goes_first_and_the_other_waits() {
        let faults = Faults::new(0);
        faults.add(Fault::hang().times(1));
        faults.add(Fault::reset().times(1));
        faults.add(Fault::slow(Duration::from_millis(5)));
        let first = faults.plan("GET", "/queue");
        assert_eq!((first.before, first.delay), (Some(Before::Hang), Duration::from_millis(5)));
        assert_eq!(faults.plan("GET", "/queue").before, Some(Before::Reset));
        faults.add(Fault::reset().times(1));
        faults.add(Fault::lose_answer().times(1));
        assert_eq!(faults.plan("GET", "/queue").after, None, "there is no answer to lose");
        assert_eq!(faults.plan("GET", "/queue").after, Some(After::Lose));
    }

    #[test]
    fn chance_is_repeatable_and_about_right() {
        let run = || {
            let faults = Faults::new(42);
            faults.add(Fault::error(500).probability(0.25));
            (0..1000).map(|_| faults.plan("GET", "/queue").before.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
        let hits = run().into_iter().filter(|hit| *hit).count();
        assert!((200..300).contains(&hits), "{hits}");
    }

    #[test]
    fn process_faults_come_out_once_or_with_their_request() {
        let faults = Faults::new(0);
        faults.add(Fault::crash());
        faults.add(Fault::restart().on("POST /prompt").times(1));
        assert_eq!(faults.take_process(), [ProcessFault::Crash { down: None }]);
        assert_eq!(faults.take_process(), []);
        let restart = ProcessFault::Restart { down: Duration::ZERO };
        assert_eq!(faults.plan("POST", "/prompt").process, [restart]);
        assert_eq!(faults.plan("POST", "/prompt").process, []);
    }

    #[test]
    fn a_socket_is_hit_once_by_each_fault() {
        let faults = Faults::new(0);
        faults.add(Fault::mute_websocket().after_frames(3));
        let (mut one, mut other) = (HashSet::new(), HashSet::new());
        let expected = SocketFault { kind: SocketFaultKind::Mute, after_frames: 3 };
        assert_eq!(faults.socket(&mut one), Some(expected));
        assert_eq!(faults.socket(&mut one), None);
        assert_eq!(faults.socket(&mut other), Some(expected));
    }

    #[test]
    fn prompts_are_hit_in_turn_and_a_removed_fault_lets_go() {
        let faults = Faults::new(0);
        faults.add(Fault::zombie_worker());
        faults.add(Fault::slow_nodes(2.0));
        faults.add(Fault::slow_nodes(3.0));
        let stuck = faults.add(Fault::stuck_node());
        let first = faults.for_prompt("a");
        assert!(first.worker_dies && !first.crash && !first.out_of_memory);
        assert_eq!(first.slow_factor, Some(6.0));
        assert!(!faults.for_prompt("b").worker_dies, "one worker dies only once");
        let token = first.hang.unwrap();
        assert!(!token.is_cancelled());
        assert!(faults.remove(stuck));
        assert!(token.is_cancelled());
    }

    #[test]
    fn a_fault_ends_with_its_time() {
        let faults = Faults::new(0);
        faults.add(Fault::hang().lasting(Duration::ZERO));
        assert_eq!(faults.plan("GET", "/queue"), Plan::default());
    }
}
