//! A few threads for what would hold up the runtime.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::line::Line;
use crate::roll::Roll;
use crate::{Clock, Marks, NotDone, Running, Work};

/// A thread that finds nothing to do for so long ends. The next work makes another.
const IDLE: Duration = Duration::from_secs(10);

/// Recursion over a deep document may need more than the usual two megabytes.
const STACK: usize = 8 << 20;

/// How a pool behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Threads: one for each core, but at least 2 and at most 4. Nobody's tasks may take all of them.
    pub threads: usize,
    /// How much work may wait: 256, of one tenant a quarter of that.
    pub queue: usize,
    /// Work on no more bytes than this is done where it is asked for: 16 KiB, well below a millisecond.
    pub inline: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self { threads: cores.clamp(2, 4), queue: 256, inline: 16 << 10 }
    }
}

/// A few threads for what would hold up the runtime. Cheap to clone; the threads end with the last of its handles.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.line.clear();
        self.0.wake.notify_all();
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(PoolOptions::default())
    }
}

#[derive(Debug)]
struct Shared {
    options: PoolOptions,
    roll: Roll,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    line: Line<Box<dyn Job>>,
    /// How many threads each tenant has.
    running: HashMap<String, usize>,
    threads: usize,
    idle: usize,
    /// Threads whose work nobody waits for any more. Below zero for a moment when such work ends before the watchdog has
    /// come to count it.
    stuck: isize,
    closed: bool,
}

impl State {
    /// What a tenant had gives its place to others.
    fn release(&mut self, tenant: &str) {
        if let Some(count) = self.running.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(tenant);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread that is stuck is replaced, but not for ever.
    fn most_threads(&self, state: &State) -> usize {
        self.options.threads + usize::try_from(state.stuck).unwrap_or(0).min(2 * self.options.threads)
    }
}

impl Pool {
    /// A pool without threads; they come with the work.
    pub fn new(options: PoolOptions) -> Self {
        let options = PoolOptions { threads: options.threads.max(1), ..options };
        let line = Line::new(options.queue);
        let running = HashMap::new();
        let state = State { line, running, threads: 0, idle: 0, stuck: 0, closed: false };
        let shared =
            Shared { options, roll: Roll::default(), state: Mutex::new(state), wake: Condvar::new() };
        Self(Arc::new(Handle(Arc::new(shared))))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// From now on work on stored tasks is marked in this file. The first file counts.
    pub fn mark_in(&self, marks: Marks) {
        let _known_before = self.shared().roll.marks.set(marks);
    }

    /// For tests of the whole program: does this within every computation. Not part of what is shipped.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn fault_in(&self, fault: impl Fn(&'static str, Option<uuid::Uuid>) + Send + Sync + 'static) {
        let _known_before = self.shared().roll.fault.set(crate::roll::Fault(Box::new(fault)));
    }

    /// The time that the pool counts with; a watchdog drives it.
    pub fn clock(&self) -> Clock {
        self.shared().roll.clock.clone()
    }

    /// Everything that is computed at this moment.
    pub fn running(&self) -> Vec<Running> {
        self.shared().roll.running()
    }

    /// How much waits.
    pub fn waiting(&self) -> usize {
        self.shared().lock().line.waiting()
    }

    /// Whether the work is done where it is asked for.
    pub fn is_small(&self, work: &Work) -> bool {
        work.bytes <= self.shared().options.inline
    }

    /// Does the work: here when it is small, else on a thread of the pool when its turn comes.
    ///
    /// # Errors
    /// When it was refused, or did not come to an end. Work that the caller does not wait for any more is not begun.
    pub async fn run<T, F>(&self, work: Work, compute: F) -> Result<T, NotDone>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if self.is_small(&work) {
            return Ok(self.here(&work, compute));
        }
        let (reply, answer) = oneshot::channel();
        let (stall, stalled) = oneshot::channel();
        let (tenant, patient) = (work.tenant.clone(), work.patient);
        let job = Box::new(Computation { work, compute, reply, stall });
        self.push(tenant, patient, job)?;
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(NotDone::Closed)),
            Ok(()) = stalled => Err(NotDone::Stalled),
        }
    }

    /// Does the work here and now, under its name.
    pub fn here<T>(&self, work: &Work, compute: impl FnOnce() -> T) -> T {
        let _entered = self.shared().roll.enter(work, None);
        compute()
    }

    fn push(&self, tenant: String, patient: bool, job: Box<dyn Job>) -> Result<(), NotDone> {
        let shared = self.shared();
        let mut state = shared.lock();
        if state.closed {
            return Err(NotDone::Closed);
        }
        if !patient {
            state.line.room(&tenant)?;
        }
        state.line.push(tenant, job);
        if state.idle < state.line.waiting() && state.threads < shared.most_threads(&state) {
            let theirs = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("remuda-pool".to_owned()).stack_size(STACK);
            match thread.spawn(move || work_on(&theirs)) {
                Ok(_) => state.threads += 1,
                // Others will get to it.
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    tracing::warn!(%error, "no thread can be started for long computations");
                    return Err(NotDone::Busy);
                }
            }
        }
        drop(state);
        shared.wake.notify_one();
        Ok(())
    }

    /// What takes more processor time than this, or six times as long, each once. Their callers hear of it, and others get threads in their place.
    pub(crate) fn overdue(&self, limit: Duration) -> Vec<Running> {
        let overdue = self.shared().roll.overdue(limit);
        for running in overdue.iter().filter(|running| running.pooled) {
            let mut state = self.shared().lock();
            state.stuck += 1;
            state.release(&running.tenant);
            self.shared().wake.notify_one();
        }
        overdue
    }
}

/// A thread of the pool.
fn work_on(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.closed || state.threads > shared.most_threads(&state) {
            break;
        }
        let most = (shared.options.threads - 1).max(1);
        let State { line, running, .. } = &mut *state;
        match line.pop(|tenant| running.get(tenant).is_none_or(|&count| count < most)) {
            Some((_, job)) if job.is_gone() => {}
            Some((tenant, job)) => {
                *running.entry(tenant.clone()).or_default() += 1;
                drop(state);
                let told = job.go(&shared.roll);
                state = shared.lock();
                if told {
                    state.stuck -= 1;
                } else {
                    state.release(&tenant);
                }
                // Work of a tenant that was passed over may go now.
                shared.wake.notify_one();
            }
            None => {
                state.idle += 1;
                let (woken, timeout) =
                    shared.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                if timeout.timed_out() && state.line.waiting() == 0 {
                    break;
                }
            }
        }
    }
    state.threads -= 1;
}

trait Job: Send + std::fmt::Debug {
    /// Whether nobody waits for it any more.
    fn is_gone(&self) -> bool;
    /// Does it, and answers. Whether its caller was told before that it takes too long.
    fn go(self: Box<Self>, roll: &Roll) -> bool;
}

struct Computation<T, F> {
    work: Work,
    compute: F,
    reply: oneshot::Sender<Result<T, NotDone>>,
    stall: oneshot::Sender<()>,
}

impl<T, F> std::fmt::Debug for Computation<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Computation").field(&self.work).finish()
    }
}

impl<T: Send, F: FnOnce() -> T + Send> Job for Computation<T, F> {
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    fn go(self: Box<Self>, roll: &Roll) -> bool {
        let Self { work, compute, reply, stall } = *self;
        let entered = roll.enter(&work, Some(stall));
        // What it borrowed is gone with it: nothing half done can be seen.
        let outcome = catch_unwind(AssertUnwindSafe(compute));
        let told = entered.leave();
        // Nobody may wait any more.
        let _gone = reply.send(outcome.map_err(|panic| NotDone::Panicked(text_of(&*panic))));
        told
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
