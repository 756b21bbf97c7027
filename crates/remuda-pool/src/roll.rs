//! Everything that is computed at this moment, by name.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::effort::Effort;
use crate::{Clock, Marks, Work};

/// How many computations are known at once. More than there are threads; one that finds no place just has no name.
const SLOTS: usize = 64;

/// A computation that gets no processor is given up after this many times the limit.
const WITHOUT_PROCESSOR: u32 = 6;

/// A computation under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// What it is.
    pub what: &'static str,
    /// Whose.
    pub tenant: String,
    /// On which task's graph, if it is stored.
    pub task: Option<Uuid>,
    /// For how long of the process's own time.
    pub ran: Duration,
    /// Whether it has a thread of the pool, and holds nothing else.
    pub pooled: bool,
}

#[derive(Debug)]
struct Entry {
    work: Work,
    began: Duration,
    effort: Option<Effort>,
    stall: Option<oneshot::Sender<()>>,
    pooled: bool,
    told: bool,
}

impl Entry {
    /// Time on the clock counts where the system does not tell how much of it the thread had.
    fn is_overdue(&self, now: Duration, limit: Duration) -> bool {
        let ran = now.saturating_sub(self.began);
        if ran < limit {
            return false;
        }
        match self.effort.as_ref().and_then(Effort::spent) {
            Some(spent) => spent >= limit || ran >= limit.saturating_mul(WITHOUT_PROCESSOR),
            None => true,
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    taken: AtomicBool,
    entry: Mutex<Option<Entry>>,
}

impl Slot {
    fn entry(&self) -> MutexGuard<'_, Option<Entry>> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list. A slot is taken without a lock that anybody else may hold for long.
#[derive(Debug)]
pub(crate) struct Roll {
    slots: Box<[Slot]>,
    next: AtomicUsize,
    pub(crate) clock: Clock,
    pub(crate) marks: OnceLock<Marks>,
    /// For tests of the whole program: done within every computation, under its mark.
    #[cfg(debug_assertions)]
    pub(crate) fault: OnceLock<Fault>,
}

/// What a test does within a computation, by its name and task.
#[cfg(debug_assertions)]
pub(crate) struct Fault(pub(crate) Box<dyn Fn(&'static str, Option<Uuid>) + Send + Sync>);

#[cfg(debug_assertions)]
impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fault")
    }
}

impl Default for Roll {
    fn default() -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(SLOTS).collect();
        Self {
            slots,
            next: AtomicUsize::new(0),
            clock: Clock::default(),
            marks: OnceLock::new(),
            #[cfg(debug_assertions)]
            fault: OnceLock::new(),
        }
    }
}

impl Roll {
    /// Something begins. With `stall` it has a thread of the pool, and its caller wants to know if it does not end.
    pub(crate) fn enter(&self, work: &Work, stall: Option<oneshot::Sender<()>>) -> Entered<'_> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let free = (0..SLOTS).map(|n| first.wrapping_add(n) % SLOTS).find(|&n| {
            let taken = &self.slots[n].taken;
            taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        let Some(slot) = free else { return Entered { roll: self, slot: None, marked: false } };
        let marked = match (work.task, self.marks.get()) {
            (Some(task), Some(marks)) => {
                marks.set(slot, task, work.what);
                true
            }
            _ => false,
        };
        let (began, pooled) = (self.clock.ran(), stall.is_some());
        // What is done on the spot is too small for this to matter.
        let effort = if pooled { Effort::begin() } else { None };
        let entry = Entry { work: work.clone(), began, effort, stall, pooled, told: false };
        *self.slots[slot].entry() = Some(entry);
        let entered = Entered { roll: self, slot: Some(slot), marked };
        #[cfg(debug_assertions)]
        if let Some(Fault(fault)) = self.fault.get() {
            fault(work.what, work.task);
        }
        entered
    }

    /// Everything under way.
    pub(crate) fn running(&self) -> Vec<Running> {
        let now = self.clock.ran();
        let taken = self.slots.iter().filter(|slot| slot.taken.load(Ordering::Relaxed));
        taken.filter_map(|slot| slot.entry().as_ref().map(|entry| shown(entry, now))).collect()
    }

    /// What has used more processor time than this, or has run for six times as long, each once. Its caller is told.
    pub(crate) fn overdue(&self, limit: Duration) -> Vec<Running> {
        let now = self.clock.ran();
        let mut overdue = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.taken.load(Ordering::Relaxed)) {
            let mut entry = slot.entry();
            let Some(entry) = entry.as_mut() else { continue };
            if entry.told || !entry.is_overdue(now, limit) {
                continue;
            }
            entry.told = true;
            if let Some(stall) = entry.stall.take() {
                // Nobody may wait for it any more.
                let _gone = stall.send(());
            }
            overdue.push(shown(entry, now));
        }
        overdue
    }
}

fn shown(entry: &Entry, now: Duration) -> Running {
    let Entry { work, began, pooled, .. } = entry;
    Running {
        what: work.what,
        tenant: work.tenant.clone(),
        task: work.task,
        ran: now.saturating_sub(*began),
        pooled: *pooled,
    }
}

/// A computation under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    roll: &'a Roll,
    slot: Option<usize>,
    marked: bool,
}

impl Entered<'_> {
    /// It is over. Whether its caller was told that it would never be.
    pub(crate) fn leave(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        let Some(slot) = self.slot.take() else { return false };
        if self.marked
            && let Some(marks) = self.roll.marks.get()
        {
            marks.unset(slot);
        }
        let entry = self.roll.slots[slot].entry().take();
        self.roll.slots[slot].taken.store(false, Ordering::Release);
        entry.is_some_and(|entry| entry.told)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
