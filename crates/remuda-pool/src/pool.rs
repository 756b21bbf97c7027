//! A few threads for what would hold up the runtime.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::line::Line;
use crate::roll::Roll;
use crate::turns::Turns;
use crate::{Clock, Marks, NotDone, Running, Turn, Work};

/// A thread that finds nothing to do for this long ends. The next work makes another.
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
    turns: Turns,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    line: Line<Box<dyn Job>>,
    tenants: HashMap<String, Threads>,
    threads: usize,
    idle: usize,
    /// Threads whose work nobody waits for any more. Below zero for a moment when such work ends before the watchdog has
    /// come to count it.
    stuck: isize,
    closed: bool,
}

/// The threads that work for one tenant. One of them may be below zero for a moment, for the same reason as above; the sum
/// is always right.
#[derive(Debug, Default)]
struct Threads {
    /// Somebody waits for what they do.
    live: isize,
    stuck: isize,
}

impl State {
    /// Notes what became of a tenant's threads.
    fn count(&mut self, tenant: &str, live: isize, stuck: isize) {
        let threads = match self.tenants.get_mut(tenant) {
            Some(threads) => threads,
            None => self.tenants.entry(tenant.to_owned()).or_default(),
        };
        threads.live += live;
        threads.stuck += stuck;
        if (threads.live, threads.stuck) == (0, 0) {
            self.tenants.remove(tenant);
        }
        self.stuck += stuck;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many threads may work for one tenant, those that are stuck included. As many stuck threads are replaced as two
    /// tenants may have.
    fn most_of_a_tenant(&self) -> isize {
        isize::try_from(self.options.threads.max(2)).unwrap_or(isize::MAX)
    }

    /// Whether a tenant may have another thread. One is always left to the others.
    fn may_have_another(&self, threads: Option<&Threads>) -> bool {
        let most = isize::try_from((self.options.threads - 1).max(1)).unwrap_or(isize::MAX);
        threads.is_none_or(|threads| {
            threads.live < most && threads.live + threads.stuck < self.most_of_a_tenant()
        })
    }

    /// Whether everything that a tenant may have is stuck. Nobody knows when that ends.
    fn is_stuck(&self, state: &State, tenant: &str) -> bool {
        state.tenants.get(tenant).is_some_and(|threads| threads.stuck >= self.most_of_a_tenant())
    }

    /// A thread that is stuck is replaced, but not for ever.
    fn most_threads(&self, state: &State) -> usize {
        let replaced = 2 * self.options.threads.max(2);
        self.options.threads + usize::try_from(state.stuck).unwrap_or(0).min(replaced)
    }

    /// Starts a thread if there is work for one more, and there may be one.
    fn grow(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.idle < state.line.waiting() && state.threads < self.most_threads(state) {
            let theirs = Arc::clone(self);
            let thread = std::thread::Builder::new().name("remuda-pool".to_owned()).stack_size(STACK);
            thread.spawn(move || work_on(&theirs))?;
            state.threads += 1;
        }
        Ok(())
    }
}

impl Pool {
    /// A pool without threads; they come with the work.
    pub fn new(options: PoolOptions) -> Self {
        let options = PoolOptions { threads: options.threads.max(1), ..options };
        let line = Line::new(options.queue);
        let tenants = HashMap::new();
        let state = State { line, tenants, threads: 0, idle: 0, stuck: 0, closed: false };
        let shared = Shared {
            options,
            roll: Roll::default(),
            turns: Turns::default(),
            state: Mutex::new(state),
            wake: Condvar::new(),
        };
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

    /// Polls a future of the runtime under this name, so that the watchdog can tell what holds a thread.
    pub fn turn<T>(&self, what: &Arc<str>, poll: impl FnOnce() -> T) -> T {
        let Shared { roll, turns, .. } = &**self.shared();
        turns.during(&roll.clock, what, poll)
    }

    /// Everything that is polled at this moment under a name.
    pub fn turning(&self) -> Vec<Turn> {
        let Shared { roll, turns, .. } = &**self.shared();
        turns.now(&roll.clock)
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
    /// When it was refused, or did not come to an end. Work that the caller does not wait for any more is not begun, and
    /// forgotten.
    pub async fn run<T, F>(&self, work: Work, compute: F) -> Result<T, NotDone>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if self.is_small(&work) {
            return Ok(self.here(&work, compute));
        }
        let (tenant, patient) = (work.tenant.clone(), work.patient);
        // Before the channel, so that it is dropped after it.
        let mut place = Place { shared: self.shared(), tenant: None };
        let (reply, answer) = oneshot::channel();
        let (stall, stalled) = oneshot::channel();
        let job = Box::new(Computation { work, compute, reply, stall });
        self.push(tenant.clone(), patient, job)?;
        place.tenant = Some(tenant);
        let answer = tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(NotDone::Closed)),
            Ok(()) = stalled => Err(NotDone::Stalled),
        };
        place.tenant = None;
        answer
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
        if shared.is_stuck(&state, &tenant) {
            return Err(NotDone::Share);
        }
        if !patient {
            state.line.room(&tenant)?;
        }
        state.line.push(tenant.clone(), job);
        if let Err(error) = shared.grow(&mut state)
            && state.threads == 0
        {
            tracing::warn!(%error, "no thread can be started for long computations");
            let refused = state.line.take(&tenant, |_| true);
            drop(state);
            refused.into_iter().for_each(|job| job.refuse(NotDone::Busy));
            return Err(NotDone::Busy);
        }
        drop(state);
        shared.wake.notify_one();
        Ok(())
    }

    /// What takes more processor time than this, or six times as long, each once. Their callers hear of it, and others get
    /// threads in their place.
    pub(crate) fn overdue(&self, limit: Duration) -> Vec<Running> {
        let shared = self.shared();
        let overdue = shared.roll.overdue(limit);
        for running in overdue.iter().filter(|running| running.pooled) {
            let mut state = shared.lock();
            state.count(&running.tenant, -1, 1);
            // It would wait for as long as what is stuck goes on, which may be for ever.
            let hopeless = match shared.is_stuck(&state, &running.tenant) {
                true => state.line.take(&running.tenant, |_| true),
                false => Vec::new(),
            };
            // What waits already brings no thread with it. Without one, it waits for the next work.
            let _without = shared.grow(&mut state);
            drop(state);
            hopeless.into_iter().for_each(|job| job.refuse(NotDone::Share));
            shared.wake.notify_one();
        }
        overdue
    }
}

/// The place of work in the line. What is dropped with it was given up by its caller, and holds nothing any more.
struct Place<'a> {
    shared: &'a Shared,
    tenant: Option<String>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(tenant) = &self.tenant else { return };
        // Not dropped under the lock: it may be large.
        let gone = self.shared.lock().line.take(tenant, |job| job.is_gone());
        drop(gone);
    }
}

/// A thread of the pool.
fn work_on(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.closed || state.threads > shared.most_threads(&state) {
            break;
        }
        let State { line, tenants, .. } = &mut *state;
        match line.pop(|tenant| shared.may_have_another(tenants.get(tenant))) {
            Some((_, job)) if job.is_gone() => {}
            Some((tenant, job)) => {
                state.count(&tenant, 1, 0);
                drop(state);
                let told = job.go(&shared.roll);
                state = shared.lock();
                match told {
                    true => state.count(&tenant, 0, -1),
                    false => state.count(&tenant, -1, 0),
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
    /// Says why it is not done.
    fn refuse(self: Box<Self>, why: NotDone);
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

    fn refuse(self: Box<Self>, why: NotDone) {
        // Nobody may wait any more.
        let _gone = self.reply.send(Err(why));
    }

    fn go(self: Box<Self>, roll: &Roll) -> bool {
        // The work goes last, with what it keeps: nothing of the computation is left then.
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
