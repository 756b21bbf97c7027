//! What the writer remembers of the file, so that it need not look.
//!
//! All of it is in the file and is read again when the store is opened and after a transaction that failed. What
//! is here grows with the number of workers, lanes and tenants, never with the number of tasks.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use remuda_core::admission::Bounds;
use remuda_core::quota::{Quota, Usage};
use remuda_core::schedule::TenantClock;
use remuda_core::{
    Fence, Lease, LeaseRef, OwnerId, Policy, Status, Task, TaskId, Tenant, Timestamp, WorkerId,
};
use rusqlite::Connection;

use super::fault::{Outcome, corrupt};
use super::feed;
use super::lanes::Lanes;
use super::reads;
use super::rows::{self, LeaseRow, Numbered, lease_columns, task_columns};
use crate::{Clock as _, DocumentLimits, Keyring, Options, SystemClock};

/// How much is kept of caches that grow with use.
const REMEMBERED: usize = 10_000;

/// How the store behaves.
#[derive(Debug)]
pub(super) struct Settings {
    options: Options,
    up: Mutex<Up>,
}

/// Since when, by both clocks.
#[derive(Debug, Clone, Copy)]
struct Up {
    since: Instant,
    since_moment: Timestamp,
    /// When the clocks were last compared.
    seen: Instant,
    seen_moment: Timestamp,
}

/// So far the machine's clock may be from one that only goes on, before it counts as set.
const SET: Duration = Duration::from_secs(5);

/// A silence of this process that is no reason to doubt anything, however short the leases are.
const SILENCE: Duration = Duration::from_secs(3);

impl Settings {
    pub(super) fn new(options: Options) -> Self {
        let (since, since_moment) = (Instant::now(), now(&options));
        let up = Up { since, since_moment, seen: since, seen_moment: since_moment };
        Self { options, up: Mutex::new(up) }
    }

    /// Whether the machine's clock was set, the machine slept, or this process stood still since the last question. Then
    /// nothing can be said of who is late: as after a start, the others have time to come back. Housekeeping asks every
    /// second, so a longer silence means that nobody could renew anything here.
    pub(super) fn was_set(&self, now: Timestamp) -> bool {
        if self.options.clock.is_some() {
            return false;
        }
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = (self.options.policy.lease / 3).max(SILENCE);
        let was_set = up.was_set(Instant::now(), now, silence);
        if was_set {
            tracing::debug!(
                "the clock was set, or this process stood still: others have time to renew what they hold"
            );
            (up.since, up.since_moment) = (up.seen, up.seen_moment);
        }
        was_set
    }

    pub(super) fn secrets(&self) -> &Keyring {
        &self.options.secrets
    }

    pub(super) fn documents(&self) -> DocumentLimits {
        self.options.documents
    }

    /// How much a tenant may have.
    pub(super) fn bounds(&self) -> Bounds {
        self.options.bounds()
    }

    /// How much of the store a tenant may have.
    pub(super) fn quota(&self) -> &Quota {
        &self.options.quota
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.options.policy
    }

    /// The process whose leases do not run out, because it holds the file.
    pub(super) fn owner(&self) -> OwnerId {
        self.options.owner
    }

    pub(super) fn now(&self) -> Timestamp {
        now(&self.options)
    }

    /// Whether the other owners had the time to come back.
    pub(super) fn settled(&self, now: Timestamp) -> bool {
        self.settled_for(now, Duration::ZERO)
    }

    /// Whether they have had it for this long.
    pub(super) fn settled_for(&self, now: Timestamp, span: Duration) -> bool {
        // A clock that was set back tells nothing, but who need not settle has settled.
        if self.options.settle.is_zero() {
            return true;
        }
        let wanted = self.options.settle + span;
        let up = *self.up.lock().unwrap_or_else(PoisonError::into_inner);
        if self.options.clock.is_none() {
            return up.since.elapsed() >= wanted;
        }
        let up = now.duration_since(up.since_moment);
        !up.is_negative() && up.unsigned_abs() >= wanted
    }
}

fn now(options: &Options) -> Timestamp {
    options.clock.as_ref().map_or_else(|| SystemClock.now(), |clock| clock.now())
}

impl Up {
    fn was_set(&mut self, seen: Instant, seen_moment: Timestamp, silence: Duration) -> bool {
        let passed = seen.saturating_duration_since(self.seen);
        let expected = self.seen_moment.checked_add(passed).unwrap_or(Timestamp::MAX);
        (self.seen, self.seen_moment) = (seen, seen_moment);
        passed > silence || seen_moment.duration_since(expected).unsigned_abs() > SET
    }
}

/// A running task and its lease.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) no: i64,
    pub(super) task: Task,
    pub(super) lease: Lease,
    pub(super) started_at: Timestamp,
}

/// Who drives a worker.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    pub(super) owner: OwnerId,
    pub(super) fence: Fence,
    /// It was not let go.
    pub(super) held: bool,
    pub(super) until: Timestamp,
}

/// A remembered value, and whether the file does not have it yet.
#[derive(Debug)]
pub(super) struct Kept<T> {
    pub(super) value: T,
    pub(super) changed: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) running: HashMap<TaskId, Held>,
    pub(super) drivers: HashMap<WorkerId, Driver>,
    pub(super) lanes: Lanes,
    pub(super) tenants: HashMap<Tenant, Kept<TenantClock>>,
    pub(super) shapes: HashMap<i64, Kept<Option<i64>>>,
    /// Differences to the counters in the file.
    pub(super) counts: HashMap<Tenant, [i64; Status::ALL.len()]>,
    /// What tenants have, as the file says.
    usage: HashMap<Tenant, Usage>,
    /// Differences to the bytes in the file.
    stored: HashMap<Tenant, i64>,
    pub(super) next_no: i64,
    /// The number of the next row of the feed.
    pub(super) next_feed: i64,
    /// Leases of this process from before it was started, until it takes them over.
    pub(super) inherited: HashSet<LeaseRef>,
    /// Workers that somebody took since the store was opened.
    pub(super) driven: HashSet<WorkerId>,
}

impl State {
    /// Reads everything that must be known, and forgets the rest.
    pub(super) fn reload(&mut self, db: &Connection) -> Outcome<()> {
        self.running = running(db)?;
        self.drivers = drivers(db)?;
        self.lanes.load(db, self.running.values().map(|held| (&held.task.tenant, &held.task.lane)))?;
        self.tenants.clear();
        self.shapes.clear();
        self.counts.clear();
        self.usage.clear();
        self.stored.clear();
        self.next_no =
            1 + db.query_row("SELECT coalesce(max(no), 0) FROM input_row", (), |row| row.get::<_, i64>(0))?;
        self.next_feed = feed::next(db)?;
        Ok(())
    }

    /// A task changed from one state to another, or came, or went.
    pub(super) fn count(&mut self, tenant: &Tenant, from: Option<Status>, to: Option<Status>) {
        if from == to {
            return;
        }
        let counts = match self.counts.get_mut(tenant) {
            Some(counts) => counts,
            None => self.counts.entry(tenant.clone()).or_default(),
        };
        let mut add = |status: Option<Status>, n| {
            if let Some(count) = status.and_then(|status| counts.get_mut(status as usize)) {
                *count += n;
            }
        };
        add(from, -1);
        add(to, 1);
    }

    /// What a tenant has in the store, with what this transaction changes.
    pub(super) fn usage(&mut self, db: &Connection, tenant: &Tenant) -> Outcome<Usage> {
        let in_file = match self.usage.get(tenant) {
            Some(known) => *known,
            None => {
                let found = reads::usage(db, tenant)?;
                self.usage.insert(tenant.clone(), found);
                found
            }
        };
        let counts = self.counts.get(tenant);
        let waiting = counts.and_then(|counts| counts.get(Status::Pending as usize)).copied().unwrap_or(0);
        let bytes = self.stored.get(tenant).copied().unwrap_or(0);
        Ok(Usage { waiting: in_file.waiting + waiting, bytes: in_file.bytes + bytes })
    }

    /// The tasks of a tenant take this many bytes more.
    pub(super) fn store_bytes(&mut self, tenant: &Tenant, bytes: i64) {
        if bytes != 0 {
            match self.stored.get_mut(tenant) {
                Some(stored) => *stored += bytes,
                None => _ = self.stored.insert(tenant.clone(), bytes),
            }
        }
    }

    /// The file was changed by a trigger.
    pub(super) fn read_usage_again(&mut self, tenant: &Tenant) {
        self.usage.remove(tenant);
    }

    /// Writes what changed, once for the whole transaction.
    pub(super) fn flush(&mut self, db: &Connection) -> Outcome<()> {
        for (tenant, counts) in &mut self.counts {
            for (status, n) in Status::ALL.into_iter().zip(counts) {
                if *n != 0 {
                    let sql = "INSERT INTO count (tenant, status, n) VALUES (?, ?, ?) \
                               ON CONFLICT DO UPDATE SET n = n + excluded.n";
                    db.prepare_cached(sql)?.execute((tenant.as_str(), status.as_str(), *n))?;
                    if status == Status::Pending
                        && let Some(usage) = self.usage.get_mut(tenant)
                    {
                        usage.waiting += *n;
                    }
                    *n = 0;
                }
            }
        }
        for (tenant, bytes) in self.stored.drain() {
            let sql = "INSERT INTO stored (tenant, bytes) VALUES (?, ?) \
                       ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes";
            db.prepare_cached(sql)?.execute((tenant.as_str(), bytes))?;
            if let Some(usage) = self.usage.get_mut(&tenant) {
                usage.bytes += bytes;
            }
        }
        for (tenant, kept) in self.tenants.iter_mut().filter(|(_, kept)| kept.changed) {
            let sql = "INSERT INTO tenant (tenant, weight, vfinish) VALUES (?, ?, ?) \
                       ON CONFLICT DO UPDATE SET vfinish = excluded.vfinish";
            let vfinish = rows::json_text(&kept.value.vfinish)?;
            db.prepare_cached(sql)?.execute((tenant.as_str(), kept.value.weight, vfinish))?;
            kept.changed = false;
        }
        for (shape, kept) in self.shapes.iter_mut().filter(|(_, kept)| kept.changed) {
            let sql = "INSERT INTO shape (shape, cost_ms) VALUES (?, ?) \
                       ON CONFLICT DO UPDATE SET cost_ms = excluded.cost_ms";
            db.prepare_cached(sql)?.execute((shape, kept.value))?;
            kept.changed = false;
        }
        self.lanes.flush(db)
    }

    /// Keeps the caches small. After a commit: nothing in them is unwritten.
    pub(super) fn trim(&mut self) {
        if self.tenants.len() > REMEMBERED {
            self.tenants.clear();
        }
        if self.shapes.len() > REMEMBERED {
            self.shapes.clear();
        }
        if self.counts.len() > REMEMBERED {
            self.counts.clear();
        }
        if self.usage.len() > REMEMBERED {
            self.usage.clear();
        }
    }
}

fn running(db: &Connection) -> Outcome<HashMap<TaskId, Held>> {
    let mut running = HashMap::new();
    let mut statement = db.prepare_cached(concat!("SELECT ", lease_columns!(), " FROM lease"))?;
    let mut found = statement.query(())?;
    let select = concat!("SELECT ", task_columns!(), " FROM task WHERE id = ?");
    let mut one = db.prepare_cached(select)?;
    while let Some(row) = found.next()? {
        let LeaseRow { no, lease, started_at } = rows::lease(row)?;
        let mut tasks = one.query((lease.task.0.as_bytes(),))?;
        let row =
            tasks.next()?.ok_or_else(|| corrupt("a lease", format!("there is no task {}", lease.task)))?;
        let Numbered { task, .. } = rows::task(row)?;
        running.insert(lease.task, Held { no, task, lease, started_at });
    }
    Ok(running)
}

fn drivers(db: &Connection) -> Outcome<HashMap<WorkerId, Driver>> {
    let mut drivers = HashMap::new();
    let mut statement = db.prepare_cached("SELECT id, owner, fence, held, until FROM worker")?;
    let mut found = statement.query(())?;
    while let Some(row) = found.next()? {
        let id = WorkerId::new(row.get::<_, String>(0)?).map_err(|error| corrupt("a worker", error))?;
        let driver = Driver {
            owner: OwnerId(rows::uuid(row, 1)?),
            fence: Fence(row.get(2)?),
            held: row.get(3)?,
            until: rows::moment(row.get(4)?)?,
        };
        drivers.insert(id, driver);
    }
    Ok(drivers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_noticed_once() {
        let (start, moment) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let mut up = Up { since: start, since_moment: moment, seen: start, seen_moment: moment };
        let hour = Duration::from_secs(3600);
        let day = 24 * hour;
        assert!(!up.was_set(start + hour, moment + hour, day), "an hour without a question is no jump");
        assert!(
            !up.was_set(start + hour, moment + hour + SET, day),
            "clocks are corrected by a little all the time"
        );
        assert!(up.was_set(start + hour, moment + 2 * hour, day), "forward");
        assert!(!up.was_set(start + hour, moment + 2 * hour, day));
        assert!(up.was_set(start + hour, moment + hour, day), "back");
        assert!(!up.was_set(start + hour, moment + hour, day));
    }
}
