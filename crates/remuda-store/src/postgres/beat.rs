//! Renewing leases and workers, and waiting for news of them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use postgres_types::{Json, Type};
use remuda_core::{Fence, LeaseRef, OwnerId, TaskId, Timestamp, WorkerId};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::get;
use super::session::attempt;
use crate::{BeatReply, BeatRequest, LeaseBeat, LeaseNews, Result};

/// More leases than this are not remembered; news of them may be told twice.
const REMEMBERED: usize = 100_000;

/// How long a task that an idle worker wanted is kept from busy ones.
const HEAD_START: Duration = Duration::from_secs(1);

/// Beats that wait for news, and what was told already.
#[derive(Debug, Default)]
pub(super) struct Beats {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    waiters: HashMap<u64, Waiter>,
    /// The newest of each process.
    newest: HashMap<OwnerId, u64>,
    told: HashMap<LeaseRef, (bool, bool)>,
    /// Tasks given back because an idle worker wanted them.
    returned: HashMap<TaskId, Instant>,
}

#[derive(Debug)]
struct Waiter {
    tasks: HashSet<TaskId>,
    wake: Arc<Wake>,
}

/// Ends the sleep of one that waits.
#[derive(Debug, Default)]
struct Wake {
    notify: Notify,
    /// A newer one of the same process is there: whoever asks again does not wait for the answer before.
    superseded: AtomicBool,
}

impl Wake {
    fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }
}

/// A beat that waits. Dropped, it does not.
#[derive(Debug)]
struct Waiting<'a> {
    id: u64,
    owner: OwnerId,
    beats: &'a Beats,
    wake: Arc<Wake>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.beats.state();
        state.waiters.remove(&self.id);
        if state.newest.get(&self.owner) == Some(&self.id) {
            state.newest.remove(&self.owner);
        }
    }
}

impl Beats {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wait_for(&self, owner: OwnerId, tasks: HashSet<TaskId>) -> Waiting<'_> {
        let wake = Arc::<Wake>::default();
        let mut state = self.state();
        state.next_id += 1;
        let id = state.next_id;
        if let Some(before) = state.newest.insert(owner, id)
            && let Some(before) = state.waiters.remove(&before)
        {
            before.wake.superseded.store(true, Ordering::Release);
            before.wake.notify.notify_one();
        }
        state.waiters.insert(id, Waiter { tasks, wake: Arc::clone(&wake) });
        Waiting { id, owner, beats: self, wake }
    }

    /// There may be news of the leases of these tasks.
    pub(super) fn wake(&self, tasks: &[TaskId]) {
        if tasks.is_empty() {
            return;
        }
        for waiter in self.state().waiters.values() {
            if tasks.iter().any(|task| waiter.tasks.contains(task)) {
                waiter.wake.notify.notify_one();
            }
        }
    }

    /// The store closes.
    pub(super) fn wake_all(&self) {
        for waiter in self.state().waiters.values() {
            waiter.wake.notify.notify_one();
        }
    }

    /// Whether anybody waits.
    pub(super) fn has_waiters(&self) -> bool {
        !self.state().waiters.is_empty()
    }

    fn waited_for(&self) -> HashSet<TaskId> {
        self.state().waiters.values().flat_map(|waiter| waiter.tasks.iter().copied()).collect()
    }

    /// Whether some of these news were not told before.
    fn is_new(&self, news: &[LeaseNews]) -> bool {
        let state = self.state();
        news.iter().any(|one| state.told.get(&one.lease) != Some(&(one.cancel, one.wanted)))
    }

    fn told(&self, reply: &BeatReply) {
        let mut state = self.state();
        if state.told.len() > REMEMBERED {
            state.told.clear();
        }
        for one in &reply.news {
            state.told.insert(one.lease, (one.cancel, one.wanted));
        }
        for lost in &reply.lost {
            state.told.remove(lost);
        }
    }

    /// A lease is given back. When that was asked for on behalf of an idle worker, busy ones must not take it again
    /// before that worker, maybe in another process, had its chance.
    pub(super) fn give_back(&self, lease: LeaseRef) {
        let mut state = self.state();
        if state.told.get(&lease).is_some_and(|(_, wanted)| *wanted) {
            state.returned.retain(|_, at| at.elapsed() < HEAD_START);
            state.returned.insert(lease.task, Instant::now());
        }
    }

    /// Tasks that are for idle workers only.
    pub(super) fn reserved(&self) -> HashSet<TaskId> {
        let state = self.state();
        let young = state.returned.iter().filter(|(_, at)| at.elapsed() < HEAD_START);
        young.map(|(task, _)| *task).collect()
    }

    /// A lease is over.
    pub(super) fn forget(&self, lease: LeaseRef) {
        self.state().told.remove(&lease);
    }
}

/// For many at once what [`remuda_core::Lease::renew`] does for one.
const RENEW: &str = "WITH u AS (SELECT * FROM unnest($1, $2, $3, $4) AS u(task, fence, phase, progress)), \
    mine AS (SELECT l.task FROM remuda.lease l JOIN u ON u.task = l.task AND u.fence = l.fence WHERE l.owner = $7 \
    ORDER BY l.task FOR UPDATE OF l) \
    UPDATE remuda.lease AS l SET until = coalesce($5, now()) + $6 * interval '1 microsecond', phase = u.phase, \
    progress = u.progress, \
    rendering_since = CASE WHEN u.phase = 'rendering' THEN coalesce(l.rendering_since, $5, now()) \
    ELSE l.rendering_since END, wanted = l.wanted AND u.phase NOT IN ('rendering', 'collecting') \
    FROM u JOIN mine ON mine.task = u.task WHERE l.task = u.task AND l.fence = u.fence \
    RETURNING l.task, l.fence, l.wanted, \
    (SELECT t.cancel_at IS NOT NULL FROM remuda.task t WHERE t.id = l.task)";

const RENEW_WORKERS: &str = "WITH u AS (SELECT * FROM unnest($1, $2, $3) AS u(id, fence, report)), \
    mine AS (SELECT w.id FROM remuda.worker w JOIN u ON u.id = w.id AND u.fence = w.fence WHERE w.owner = $4 \
    AND w.held ORDER BY w.id FOR UPDATE OF w) \
    UPDATE remuda.worker AS w SET report = u.report, until = coalesce($5, now()) + $6 * interval '1 microsecond', \
    last_active_at = coalesce($5, now()) FROM u JOIN mine ON mine.id = u.id \
    WHERE w.id = u.id AND w.fence = u.fence RETURNING w.id";

const NEWS: &str = "SELECT l.task, l.fence, l.wanted, t.cancel_at IS NOT NULL FROM remuda.lease l \
    JOIN remuda.task t ON t.id = l.task WHERE l.task = ANY($1) AND (l.wanted OR t.cancel_at IS NOT NULL)";

fn news(row: &tokio_postgres::Row) -> Result<LeaseNews, Fault> {
    let lease = LeaseRef { task: TaskId(get(row, 0)?), fence: Fence(get(row, 1)?) };
    Ok(LeaseNews { lease, wanted: get(row, 2)?, cancel: get::<Option<bool>>(row, 3)?.unwrap_or(false) })
}

impl Inner {
    /// Renews, then waits for news.
    pub(super) async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let deadline = Instant::now() + request.wait;
        // Registered before looking, so that nothing that comes in between is missed.
        let tasks = request.leases.iter().map(|beat| beat.lease.task).collect();
        let waiting = self.beats.wait_for(request.owner, tasks);
        let renewed: Result<BeatReply> = attempt!(self.sessions, self.renew(&request));
        let mut reply = renewed?;
        let done = |reply: &BeatReply| !reply.lost.is_empty() || !reply.lost_workers.is_empty();
        while !done(&reply) && !self.beats.is_new(&reply.news) && !self.stop.is_cancelled() {
            let woken = tokio::time::timeout_at(deadline, waiting.wake.notify.notified()).await;
            if woken.is_err() {
                break;
            }
            if waiting.wake.is_superseded() {
                // What it is told counts as untold, because perhaps nobody hears it any more.
                return Ok(reply);
            }
            let found: Result<Vec<LeaseNews>> = attempt!(self.sessions, self.read_news(&request));
            reply.news = found?;
        }
        self.beats.told(&reply);
        Ok(reply)
    }

    async fn renew(&self, request: &BeatRequest) -> Result<BeatReply, Fault> {
        let mut reply = BeatReply::default();
        let options = self.sessions.options();
        let now: Option<Timestamp> = options.clock.as_ref().map(|clock| clock.now());
        let lease = f64::from(u32::try_from(options.policy.lease.as_millis()).unwrap_or(u32::MAX)) * 1000.0;
        if !request.leases.is_empty() {
            let beats = &request.leases;
            let columns = Columns::default()
                .with(Type::UUID_ARRAY, each(beats, |beat| beat.lease.task.0))
                .with(Type::INT8_ARRAY, each(beats, |beat| beat.lease.fence.0))
                .with(Type::TEXT_ARRAY, each(beats, |beat| beat.phase.as_str()))
                .with(Type::FLOAT8_ARRAY, each(beats, LeaseBeat::share))
                .with(Type::TIMESTAMPTZ, now)
                .with(Type::FLOAT8, lease)
                .with(Type::UUID, request.owner.0);
            let rows = self.sessions.query(RENEW, &columns.params()).await?;
            let all = rows.iter().map(news).collect::<Result<Vec<_>, _>>()?;
            let held: HashSet<LeaseRef> = all.iter().map(|one| one.lease).collect();
            reply.lost = beats.iter().map(|beat| beat.lease).filter(|lease| !held.contains(lease)).collect();
            reply.news = all.into_iter().filter(|one| one.cancel || one.wanted).collect();
        }
        if !request.workers.is_empty() {
            let workers = &request.workers;
            let columns = Columns::default()
                .with(Type::TEXT_ARRAY, each(workers, |beat| beat.id.as_str()))
                .with(Type::INT8_ARRAY, each(workers, |beat| beat.fence.0))
                .with(Type::JSON_ARRAY, each(workers, |beat| Json(&beat.report)))
                .with(Type::UUID, request.owner.0)
                .with(Type::TIMESTAMPTZ, now)
                .with(Type::FLOAT8, lease);
            let rows = self.sessions.query(RENEW_WORKERS, &columns.params()).await?;
            let held: HashSet<String> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
            let lost = |id: &WorkerId| !held.contains(id.as_str());
            reply.lost_workers = workers.iter().map(|beat| beat.id.clone()).filter(lost).collect();
        }
        Ok(reply)
    }

    async fn read_news(&self, request: &BeatRequest) -> Result<Vec<LeaseNews>, Fault> {
        let held: HashSet<LeaseRef> = request.leases.iter().map(|beat| beat.lease).collect();
        let ids = each(&request.leases, |beat| beat.lease.task.0);
        let columns = Columns::default().with(Type::UUID_ARRAY, ids);
        let rows = self.sessions.query(NEWS, &columns.params()).await?;
        let all = rows.iter().map(news).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().filter(|one| held.contains(&one.lease)).collect())
    }

    /// Looks for news of all leases that somebody waits for, and wakes those who have some.
    pub(super) async fn look_for_news(&self) {
        let ids: Vec<_> = self.beats.waited_for().into_iter().map(|task| task.0).collect();
        let look = async {
            let columns = Columns::default().with(Type::UUID_ARRAY, ids.as_slice());
            let rows = self.sessions.query(NEWS, &columns.params()).await?;
            rows.iter().map(news).collect::<Result<Vec<_>, Fault>>()
        };
        match self.sessions.bounded(look).await {
            Ok(news) if self.beats.is_new(&news) => {
                let tasks: Vec<TaskId> = news.iter().map(|one| one.lease.task).collect();
                self.beats.wake(&tasks);
            }
            Ok(_) => {}
            Err(fault) => tracing::debug!(?fault, "could not look for news of leases"),
        }
    }
}
