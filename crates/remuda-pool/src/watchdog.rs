//! A thread that notices when nothing turns any more, and says why.
//!
//! The thread that counts never does anything that can block it. What it has to say is written by another one, because a
//! log can stand still, too.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Clock, Pool, Pulse, Running, Turn};

/// How many messages may wait to be written. Any more are dropped.
const UNSAID: usize = 64;

/// How a watchdog behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchdogOptions {
    /// How long a runtime may stand still, in the process's own time, and how much processor time a computation may take:
    /// 10 s. A computation that waits for a processor has six times as long.
    pub limit: Duration,
    /// The pause between two looks. A process that was stopped for longer ran for no more than twice this.
    pub tick: Duration,
}

impl WatchdogOptions {
    /// With this limit, and looks that are frequent enough for it.
    pub fn new(limit: Duration) -> Self {
        let tick = (limit / 50).clamp(Duration::from_millis(10), Duration::from_millis(100));
        Self { limit, tick }
    }
}

impl Default for WatchdogOptions {
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

/// Watches a pool and a runtime until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    pulse: Pulse,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What has to be said.
#[derive(Debug)]
enum Word {
    Stalled(Running),
    Still(Duration, Vec<Running>, Vec<Turn>),
    TurnsAgain,
}

impl Watchdog {
    /// Begins to watch. [`Pulse::run`] must be spawned on the runtime that is meant.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(pool: &Pool, options: WatchdogOptions) -> io::Result<Self> {
        let pulse = Pulse::new(pool.clock(), options.limit);
        let stop = Arc::new(AtomicBool::new(false));
        let (words, said) = sync_channel(UNSAID);
        // It ends when the other one does, and is not waited for: a log that stands still must not hold up a stop.
        let _writer =
            std::thread::Builder::new().name("remuda-watchlog".to_owned()).spawn(move || say(&said))?;
        let watch = Watch {
            clock: pool.clock(),
            pool: pool.clone(),
            pulse: pulse.clone(),
            stop: Arc::clone(&stop),
            options,
            words,
        };
        let thread =
            std::thread::Builder::new().name("remuda-watchdog".to_owned()).spawn(move || watch.run())?;
        Ok(Self { pulse, stop, thread: Some(thread) })
    }

    /// Whether the runtime turns.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

struct Watch {
    clock: Clock,
    pool: Pool,
    pulse: Pulse,
    stop: Arc<AtomicBool>,
    options: WatchdogOptions,
    words: SyncSender<Word>,
}

impl Watch {
    fn run(self) {
        let WatchdogOptions { limit, tick } = self.options;
        let mut last = Instant::now();
        let mut still = false;
        self.pulse.beat();
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(tick);
            let now = Instant::now();
            self.clock.tick(now - last, tick);
            last = now;
            for running in self.pool.overdue(limit) {
                self.tell(Word::Stalled(running));
            }
            match (self.pulse.turns(), still) {
                (false, false) => {
                    let (running, turning) = (self.pool.running(), self.pool.turning());
                    self.tell(Word::Still(self.pulse.silent(), running, turning));
                }
                (true, true) => self.tell(Word::TurnsAgain),
                _ => {}
            }
            still = !self.pulse.turns();
        }
    }

    fn tell(&self, word: Word) {
        // Full when the log stands still. Then there is nobody to read this either.
        let _unsaid = self.words.try_send(word);
    }
}

fn say(words: &Receiver<Word>) {
    while let Ok(word) = words.recv() {
        match word {
            Word::Stalled(running) => {
                let task = running.task.map(|task| task.to_string());
                tracing::error!(
                    work = running.what,
                    tenant = running.tenant,
                    task,
                    ran_s = running.ran.as_secs_f64(),
                    "a computation does not come to an end; nobody waits for it any more"
                );
            }
            Word::Still(silent, running, turning) => {
                let beside: Vec<String> = running.iter().filter(|work| work.pooled).map(named).collect();
                tracing::error!(
                    silent_s = silent.as_secs_f64(),
                    held_by = held_by(&running, turning),
                    beside = beside.join(", "),
                    "the process does not turn: no request is answered and no lease renewed; /live says 503"
                );
            }
            Word::TurnsAgain => tracing::warn!("the process turns again"),
        }
    }
}

/// Computations on the runtime's threads, then the requests that those threads work on, the longest first.
fn held_by(running: &[Running], mut turning: Vec<Turn>) -> String {
    turning.sort_by_key(|turn| std::cmp::Reverse(turn.ran));
    let computations = running.iter().filter(|work| !work.pooled).map(named);
    let requests = turning.iter().map(|turn| format!("{} ({:.1} s)", turn.what, turn.ran.as_secs_f64()));
    let all: Vec<String> = computations.chain(requests).collect();
    if all.is_empty() { "nothing that has a name".to_owned() } else { all.join(", ") }
}

fn named(running: &Running) -> String {
    let task = running.task.map_or_else(String::new, |task| format!(" of task {task}"));
    format!("{}{task} (tenant {}, {:.1} s)", running.what, running.tenant, running.ran.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_the_runtime_is_named() {
        assert_eq!(held_by(&[], Vec::new()), "nothing that has a name");
        let turn = |what: &str, s| Turn { what: what.into(), ran: Duration::from_secs(s) };
        let running = |what, pooled| Running {
            what,
            tenant: "t".to_owned(),
            task: None,
            ran: Duration::from_secs(9),
            pooled,
        };
        let running = [running("editing a graph", false), running("reading a graph", true)];
        assert_eq!(
            held_by(&running, vec![turn("/queue", 0), turn("/prompt", 11)]),
            "editing a graph (tenant t, 9.0 s), /prompt (11.0 s), /queue (0.0 s)"
        );
    }
}
