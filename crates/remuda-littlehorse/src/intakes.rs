//! The tasks that are served, each with an intake of its own: they share the slots, and take turns.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use littlehorse::{Delivery as Scheduled, Error, Health, Host, Intake};
use tokio::time::Instant;

/// A task that had work waiting the last time is asked alone for this long. Both asked at once would both deliver, and one
/// of the deliveries would wait here while its timeout runs.
const SOON: Duration = Duration::from_millis(50);

/// Which task a delivery is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The graph alone.
    Plain,
    /// The graph and options.
    WithOptions,
}

/// One intake, or two.
#[derive(Debug)]
pub(crate) struct Intakes {
    plain: Intake,
    with_options: Option<Intake>,
    turns: Mutex<Turns>,
}

impl Intakes {
    pub(crate) fn new(plain: Intake, with_options: Option<Intake>) -> Self {
        Self { plain, with_options, turns: Mutex::default() }
    }

    /// How the worker stands with the cluster: the worst of what its tasks say.
    pub(crate) fn health(&self) -> Health {
        let plain = self.plain.health().borrow().clone();
        let other = self.with_options.as_ref().map(|intake| intake.health().borrow().clone());
        other.map_or_else(|| plain.clone(), |other| worse(plain.clone(), other))
    }

    /// Waits until the worker stands so with the cluster.
    pub(crate) async fn until(&self, is: impl Fn(&Health) -> bool) {
        let mut plain = self.plain.health();
        let mut other = self.with_options.as_ref().map(Intake::health);
        while !is(&self.health()) {
            let changed = async {
                match &mut other {
                    Some(other) => other.changed().await,
                    None => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                changed = plain.changed() => changed,
                changed = changed => changed,
            };
            if changed.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The hosts that are assigned to the worker, for whichever task. Any of them takes its reports.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        let mut hosts = self.plain.hosts();
        for host in self.with_options.iter().flat_map(Intake::hosts) {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }

    /// Waits for a task of either kind. A call that is dropped takes nothing.
    pub(crate) async fn take(&self) -> Result<(Scheduled, Kind), Error> {
        let Some(with_options) = &self.with_options else {
            return Ok((self.plain.take().await?, Kind::Plain));
        };
        let of = |kind| match kind {
            Kind::Plain => &self.plain,
            Kind::WithOptions => with_options,
        };
        let (first, alone) = self.turns().next();
        let second = other(first);
        let begun = Instant::now();
        let mut asked = begun;
        let taken = {
            // What the one that loses was given goes back to its intake, and is the first to be taken there.
            let one = pin!(of(first).take());
            let two = pin!(async {
                if alone {
                    tokio::time::sleep(SOON).await;
                    self.turns().had_nothing(first);
                    asked = Instant::now();
                }
                of(second).take().await
            });
            tokio::select! {
                biased;
                taken = one => (taken?, first),
                taken = two => (taken?, second),
            }
        };
        let since = if taken.1 == first { begun } else { asked };
        self.turns().delivered(taken.1, since.elapsed() < SOON);
        Ok(taken)
    }

    /// Puts back a task that was taken and is not begun; returns it once nobody asks any more.
    pub(crate) fn put_back(&self, scheduled: Scheduled, kind: Kind) -> Option<Scheduled> {
        match (&self.with_options, kind) {
            (Some(with_options), Kind::WithOptions) => with_options.put_back(scheduled),
            _ => self.plain.put_back(scheduled),
        }
    }

    /// Stops asking; what still arrived meanwhile is returned.
    pub(crate) async fn close(&self) -> Vec<Scheduled> {
        let rest = async {
            match &self.with_options {
                Some(intake) => intake.close().await,
                None => Vec::new(),
            }
        };
        let (mut all, rest) = tokio::join!(self.plain.close(), rest);
        all.extend(rest);
        all
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn other(kind: Kind) -> Kind {
    match kind {
        Kind::Plain => Kind::WithOptions,
        Kind::WithOptions => Kind::Plain,
    }
}

fn worse(one: Health, two: Health) -> Health {
    let badness = |health: &Health| match health {
        Health::Healthy => 0,
        Health::Starting => 1,
        Health::Rebalancing => 2,
        Health::Unhealthy(_) => 3,
    };
    if badness(&two) > badness(&one) { two } else { one }
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Turns {
    last: Option<Kind>,
    /// Which ones had work waiting when they were asked the last time.
    plain: bool,
    with_options: bool,
}

impl Turns {
    /// Who is asked first, and whether the other one is asked only when nothing comes soon.
    fn next(&mut self) -> (Kind, bool) {
        let first = self.last.map_or(Kind::Plain, other);
        (first, *self.waiting(first))
    }

    fn delivered(&mut self, kind: Kind, soon: bool) {
        self.last = Some(kind);
        *self.waiting(kind) = soon;
    }

    fn had_nothing(&mut self, kind: Kind) {
        *self.waiting(kind) = false;
    }

    fn waiting(&mut self, kind: Kind) -> &mut bool {
        match kind {
            Kind::Plain => &mut self.plain,
            Kind::WithOptions => &mut self.with_options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks this often, with this work waiting; who delivered, and how often both were asked at once.
    fn ask(turns: &mut Turns, times: usize, work: [bool; 2]) -> (Vec<Kind>, usize) {
        let has = |kind| work[usize::from(kind == Kind::WithOptions)];
        let mut both = 0;
        let delivered = (0..times).map(|_| {
            let (first, alone) = turns.next();
            let late = alone && !has(first);
            if late {
                turns.had_nothing(first);
            }
            both += usize::from(!alone || late);
            let kind = if has(first) { first } else { other(first) };
            turns.delivered(kind, true);
            kind
        });
        (delivered.collect(), both)
    }

    #[test]
    fn the_worst_of_all_tasks_is_told() {
        let away = Health::Unhealthy("away".into());
        for (one, two, worst) in [
            (Health::Healthy, Health::Healthy, Health::Healthy),
            (Health::Healthy, away.clone(), away.clone()),
            (away.clone(), Health::Rebalancing, away),
            (Health::Healthy, Health::Starting, Health::Starting),
            (Health::Starting, Health::Rebalancing, Health::Rebalancing),
        ] {
            assert_eq!(worse(one, two), worst);
        }
    }

    #[test]
    fn two_that_have_work_take_turns_and_are_not_asked_at_once() {
        let mut turns = Turns::default();
        let (delivered, both) = ask(&mut turns, 6, [true, true]);
        let pair = [Kind::Plain, Kind::WithOptions];
        assert_eq!(delivered, [pair, pair, pair].concat());
        assert_eq!(both, 2, "only at the beginning, when nobody knows");
    }

    #[test]
    fn one_that_has_work_alone_is_not_kept_waiting_by_the_other() {
        let mut turns = Turns::default();
        ask(&mut turns, 4, [true, true]);
        // The first round finds out; then both are asked at once, always.
        let (delivered, both) = ask(&mut turns, 5, [false, true]);
        assert_eq!(delivered, [Kind::WithOptions; 5]);
        assert_eq!(both, 5);
        assert!(!turns.plain);
    }

    #[test]
    fn a_task_that_came_late_says_nothing_of_the_next() {
        let mut turns = Turns::default();
        turns.delivered(Kind::WithOptions, false);
        turns.delivered(Kind::Plain, false);
        assert_eq!(turns.next(), (Kind::WithOptions, false));
    }
}
