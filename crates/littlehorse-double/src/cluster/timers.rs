//! What happens by itself: attempts that take too long, and attempts that begin after a pause.

use std::collections::BTreeMap;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Cluster, RunKey};
use crate::proto::ReportTaskRun;

#[derive(Debug, Default)]
pub(super) struct Timers {
    set: BTreeMap<(Instant, u64), Timer>,
    count: u64,
}

#[derive(Debug)]
pub(super) enum Timer {
    /// This attempt has had its time.
    Timeout(RunKey, i32),
    /// This attempt can be handed out now.
    Begin(RunKey, i32),
    /// This report of a tenant's worker is read now.
    Apply(String, Box<ReportTaskRun>),
}

impl Timers {
    pub(super) fn set(&mut self, when: Instant, timer: Timer) {
        self.count += 1;
        self.set.insert((when, self.count), timer);
    }

    fn due(&mut self, now: Instant) -> Option<Timer> {
        let first = self.set.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    fn next(&self) -> Option<Instant> {
        self.set.first_key_value().map(|((when, _), _)| *when)
    }
}

impl Cluster {
    /// Lets things happen when they are due, until it is stopped.
    pub(crate) async fn keep_time(&self, stop: CancellationToken) {
        loop {
            let woken = self.timer_set.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            self.fire();
            let next = self.state().timers.next().map(|when| self.clock.real(when));
            let due = async {
                match next {
                    Some(when) => sleep_until(when).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut woken => {}
                () = due => {}
            }
        }
    }

    fn fire(&self) {
        let mut fired = false;
        loop {
            let mut state = self.state();
            let Some(timer) = state.timers.due(self.clock.now()) else { break };
            match timer {
                Timer::Timeout(key, attempt) => self.time_out(&mut state, &key, attempt),
                Timer::Begin(key, attempt) => self.begin(&mut state, &key, attempt),
                Timer::Apply(tenant, report) => {
                    drop(state);
                    self.apply(&tenant, *report);
                }
            }
            fired = true;
        }
        if fired {
            self.tell();
        }
    }

    /// Looks at the timers again: one was set, or time was moved.
    pub(crate) fn look_at_timers(&self) {
        self.timer_set.notify_one();
    }
}
