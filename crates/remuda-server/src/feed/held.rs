//! A feed that is held back: what is committed can not be shown in the order of the commits while a transaction goes on that
//! began before it, whoever's it is. Whoever waits for a task must not wait for that as well.

use std::time::Duration;

use remuda_store::Result;
use tokio::time::Instant;

use crate::state::AppState;

/// After so long without moving on, the feed is held back. Transactions of our own are much shorter.
const STALLED: Duration = Duration::from_secs(3);

/// The shortest pause between two looks at the tasks that are followed.
const PAUSE: Duration = Duration::from_secs(1);

/// How many tasks are looked at at once.
const AT_ONCE: usize = 500;

/// Since when the feed is held back.
#[derive(Debug, Default)]
pub(super) struct Held {
    since: Option<Instant>,
    /// When the followed tasks were last looked at because of that.
    looked: Option<Instant>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    Look,
}

impl Held {
    /// After a look at the feed: whether something is held back, and whether anything was new.
    pub(super) async fn after(&mut self, state: &AppState, held: bool, moved: bool) {
        let step = self.next(Instant::now(), held, moved);
        let since = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        state.metrics.feed_held.set(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        if step == Step::Look
            && let Err(error) = look(state).await
        {
            tracing::debug!(%error, "the tasks that are waited for could not be looked at; trying on");
        }
    }

    /// The feed is not followed any more.
    pub(super) fn end(&mut self, state: &AppState) {
        *self = Self::default();
        state.metrics.feed_held.set(0);
    }

    fn next(&mut self, now: Instant, held: bool, moved: bool) -> Step {
        if !held || moved {
            if self.looked.take().is_some() {
                tracing::info!("the feed of events moves on");
            }
            self.since = held.then_some(now);
            return Step::Nothing;
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < STALLED
            || self.looked.is_some_and(|looked| now.duration_since(looked) < PAUSE)
        {
            return Step::Nothing;
        }
        if self.looked.replace(now).is_none() {
            tracing::warn!(
                "the feed of events is held back: a transaction in the database server has written something and goes on \
                 (pg_stat_activity shows it, backend_xid and xact_start)"
            );
        }
        Step::Look
    }
}

/// Tells how the followed tasks are: once for all who wait in this process.
async fn look(state: &AppState) -> Result<()> {
    for tasks in state.changes.followed().chunks(AT_ONCE) {
        for task in state.store.briefly(tasks).await? {
            state.changes.tell_version(task.id, task.version);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_for_long_is_looked_past_once_a_second() {
        let (mut held, begin) = (Held::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(held.next(at(0), true, false), Step::Nothing);
        assert_eq!(held.next(at(2900), true, false), Step::Nothing);
        // It moves on, although there is more behind it.
        assert_eq!(held.next(at(2950), true, true), Step::Nothing);
        assert_eq!(held.next(at(5900), true, false), Step::Nothing);
        let looks = (6000..=9000).step_by(100).filter(|ms| held.next(at(*ms), true, false) == Step::Look);
        assert_eq!(looks.collect::<Vec<_>>(), [6000, 7000, 8000, 9000]);
        assert_eq!(held.next(at(9100), false, true), Step::Nothing);
        assert!(held.since.is_none() && held.looked.is_none());
    }
}
