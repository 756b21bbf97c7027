//! What all parts of the store share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postgres_types::Type;
use remuda_core::{Claim, Installation, LaneId, Requirements, TaskId, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, broadcast, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::address::Address;
use super::beat::Beats;
use super::columns::{Columns, each};
use super::fault::{Fault, silent};
use super::lanes::Lanes;
use super::ledger::{self, Ledger};
use super::outbox::Outbox;
use super::queue::{Answer, Queue, Work};
use super::rows::get;
use super::save::Tidings;
use super::session::{Sessions, attempt};
use super::usages::Usages;
use super::{batch, feed, listen, outbox, poll, schema};
use crate::lines::Lines;
use crate::turns::{self, Party, Turn, Turns};
use crate::{Change, ClaimRequest, Error, Options, Result};

/// How many batches are under way at once.
const BATCHES: i16 = 2;
/// Connections for batches, beats and reads. Managed databases give few to each client.
const CONNECTIONS: usize = 10;
/// How many of them are for reads at most, so that beats and batches never wait behind lists.
const READS: usize = 5;
/// How many of one tenant's lists and counts are read at once, so that others find a connection.
const READS_OF_ONE: usize = 2;
/// How many of one tenant's small writes that are no part of a batch are under way at once: those of documents lock one row.
const WRITES_OF_ONE: usize = 1;
/// How many of them are under way at once, of all tenants.
const WRITES: usize = 2;
/// A caller whose work was not done within this time hears that the database does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many changes a slow reader may be behind.
const CHANGES: usize = 4096;

/// A place in the line of a tenant, and a turn.
pub(super) type Reading<'a> = (Option<OwnedSemaphorePermit>, SemaphorePermit<'a>);
/// The same for a write, and a turn among what is large.
pub(super) type Writing<'a> = (OwnedSemaphorePermit, Turn, SemaphorePermit<'a>);

/// The store.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) sessions: Sessions,
    /// Whether the server says on which timeline it writes.
    pub(super) says_timeline: bool,
    pub(super) queue: Arc<Queue>,
    pub(super) lanes: Lanes,
    pub(super) ledger: Ledger,
    pub(super) usages: Usages,
    pub(super) beats: Beats,
    pub(super) outbox: Outbox,
    pub(super) changes: broadcast::Sender<Change>,
    pub(super) installation: Installation,
    /// Tells our own notifications from those of others.
    pub(super) process: Uuid,
    reads: Semaphore,
    lines: Lines,
    writes: Semaphore,
    writing: Lines,
    /// Fewer large writes than batches are under way, so that what is short finds one that is free.
    turns: Turns,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Inner {
    /// Connects, brings the schema up to date, and starts what runs beside the callers.
    pub(super) async fn start(url: &str, options: Options) -> Result<Arc<Self>> {
        let address = Address::parse(url)?;
        let sessions = Sessions::new(&address, options, CONNECTIONS)?;
        let installation = schema::prepare(&sessions).await?;
        let says_timeline = feed::says_timeline(&sessions).await?;
        let inner = Arc::new(Self {
            sessions,
            says_timeline,
            queue: Arc::default(),
            lanes: Lanes::default(),
            ledger: Ledger::default(),
            usages: Usages::default(),
            beats: Beats::default(),
            outbox: Outbox::default(),
            changes: broadcast::Sender::new(CHANGES),
            installation,
            process: Uuid::new_v4(),
            reads: Semaphore::new(READS),
            lines: Lines::new(READS_OF_ONE),
            writes: Semaphore::new(WRITES),
            writing: Lines::new(WRITES_OF_ONE),
            turns: Turns::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        inner.load_lanes().await?;
        for slot in 0..BATCHES {
            inner.tasks.spawn(batch::worker(Arc::clone(&inner), slot));
        }
        inner.tasks.spawn(ledger::run(Arc::clone(&inner)));
        inner.tasks.spawn(outbox::run(Arc::clone(&inner)));
        inner.tasks.spawn(poll::run(Arc::clone(&inner)));
        inner.tasks.spawn(listen::run(Arc::clone(&inner), address));
        inner.tasks.close();
        Ok(inner)
    }

    /// Where this process counts, in one of its transactions that may be open at the same time.
    pub(super) fn shard(&self, slot: i16) -> i16 {
        let owner = self.sessions.options().owner.0.as_u128() % 16;
        i16::try_from(owner).unwrap_or(0) * 4 + slot
    }

    /// The shard of everything that is not a batch.
    pub(super) fn side_shard(&self) -> i16 {
        self.shard(BATCHES)
    }

    /// Refuses work once the store is closed.
    pub(super) fn open(&self) -> Result<()> {
        if self.sessions.is_closed() || self.stop.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Waits for the turn of a read.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        self.open()?;
        match tokio::time::timeout(PATIENCE, self.reads.acquire()).await {
            Ok(turn) => turn.map_err(|_| Error::Closed),
            Err(_) => Err(silent("too many reads wait for the database")),
        }
    }

    /// Waits for the turn of a read of what a tenant has stored, which may be much.
    pub(super) async fn turn_of(&self, tenant: Option<&Tenant>) -> Result<Reading<'_>> {
        let Some(tenant) = tenant else { return Ok((None, self.turn().await?)) };
        let line = tokio::time::timeout(PATIENCE, self.lines.wait(tenant)).await;
        let line = line.map_err(|_| silent("too many reads of one tenant wait for the database"))??;
        Ok((Some(line), self.turn().await?))
    }

    /// Waits for the turn of a read of what belongs to a task, which may be much. `None`: there is no such task.
    pub(super) async fn turn_for(&self, id: TaskId) -> Result<Option<Reading<'_>>> {
        let turn = self.turn().await?;
        let Some(tenant) = self.whose(id).await? else { return Ok(None) };
        drop(turn);
        self.turn_of(Some(&tenant)).await.map(Some)
    }

    /// Waits for the turn of a write that is no part of a batch. Many of one tenant must not have all connections, above all
    /// not while they wait for each other.
    pub(super) async fn turn_to_write(&self, tenant: &Tenant, bytes: usize) -> Result<Writing<'_>> {
        self.open()?;
        let wait = async {
            let line = self.writing.wait(tenant).await?;
            let turn = self.turns.take(tenant, bytes).await?;
            let write = self.writes.acquire().await.map_err(|_| Error::Closed)?;
            Ok((line, turn, write))
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.map_err(|_| silent("too many writes wait for the database"))?
    }

    /// The same for a write to a task.
    pub(super) async fn turn_to_change(&self, id: TaskId) -> Result<Option<Writing<'_>>> {
        let turn = self.turn().await?;
        let Some(tenant) = self.whose(id).await? else { return Ok(None) };
        drop(turn);
        self.turn_to_write(&tenant, 0).await.map(Some)
    }

    /// Waits for the turn of something large.
    pub(super) async fn turn_for_large(&self, party: Party, bytes: usize) -> Result<Turn> {
        self.open()?;
        let turn = tokio::time::timeout(PATIENCE, self.turns.take(party, bytes)).await;
        turn.map_err(|_| silent("too many large requests wait for the database"))?
    }

    /// Has something written with the next batch.
    pub(super) async fn write(&self, work: Work) -> Result<Answer> {
        let _turn = match self.party(&work).await? {
            Some((party, bytes)) => self.turn_for_large(party, bytes).await?,
            None => None,
        };
        let answer = self.queue.push(work)?;
        answered(tokio::time::timeout(PATIENCE, answer).await)
    }

    /// Whose turn it is to have something large written.
    async fn party(&self, work: &Work) -> Result<Option<(Party, usize)>> {
        let bytes = work.size();
        if bytes <= turns::SHORT {
            return Ok(None);
        }
        let party = match work {
            Work::Submit(new) => Some(Party::from(&new.tenant)),
            Work::End(_, lease, _) | Work::GiveBack(_, lease, _) => {
                self.whose(lease.task).await?.map(Party::Tenant)
            }
        };
        Ok(Some((party.unwrap_or(Party::House), bytes)))
    }

    /// Waits for a task for a worker.
    pub(super) async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        let wait = request.wait;
        let mut ticket = self.queue.park(request)?;
        let first = tokio::time::timeout(wait, &mut ticket.answer).await;
        let delivery = match first {
            Ok(answer) => answered(Ok(answer))?,
            Err(_) if ticket.withdraw() => None,
            // It is being looked for at this moment.
            Err(_) => answered(tokio::time::timeout(PATIENCE, &mut ticket.answer).await)?,
        };
        Ok(delivery.and_then(super::queue::Delivery::accept))
    }

    /// Tells everybody what was committed.
    pub(super) fn announce(&self, tidings: Tidings) {
        self.announce_here(&tidings);
        self.outbox.add(tidings);
    }

    /// Tells those in this process.
    pub(super) fn announce_here(&self, tidings: &Tidings) {
        for change in &tidings.changes {
            // Nobody may be listening.
            let _ = self.changes.send(change.clone());
        }
        if !tidings.ready.is_empty() {
            self.queue.ready(&tidings.ready, &self.lanes);
        }
        self.beats.wake(&tidings.news);
    }

    /// Looks which lanes have tasks that have not ended, reads those that are not known, and forgets the others.
    pub(super) async fn load_lanes(&self) -> Result<()> {
        let look = self.lanes.begin_look();
        let used: Result<BTreeSet<LaneId>> = attempt!(self.sessions, self.used_lanes());
        let used = used?;
        self.learn_lanes(&used).await?;
        let over = self.lanes.keep(&used, look);
        self.ledger.forget_lanes(&over);
        Ok(())
    }

    /// Reads those of these lanes that are not known.
    pub(super) async fn learn_lanes(&self, lanes: &BTreeSet<LaneId>) -> Result<()> {
        let unknown = self.lanes.unknown(lanes);
        if unknown.is_empty() {
            return Ok(());
        }
        let read: Result<Vec<_>> = attempt!(self.sessions, self.read_lanes(&unknown));
        self.lanes.learn(read?);
        Ok(())
    }

    /// From one to the next in the index, however many tasks are in each.
    async fn used_lanes(&self) -> Result<BTreeSet<LaneId>, Fault> {
        const USED: &str = "WITH RECURSIVE u AS ((SELECT t.tenant, t.lane FROM remuda.task t \
            WHERE t.finished_at IS NULL ORDER BY t.tenant, t.lane LIMIT 1) UNION ALL \
            SELECT n.tenant, n.lane FROM u CROSS JOIN LATERAL (SELECT t.tenant, t.lane FROM remuda.task t \
            WHERE t.finished_at IS NULL AND (t.tenant, t.lane) > (u.tenant, u.lane) \
            ORDER BY t.tenant, t.lane LIMIT 1) n) SELECT DISTINCT lane FROM u";
        let rows = self.sessions.query(USED, &[]).await?;
        rows.iter().map(|row| Ok(LaneId::from_stored(get(row, 0)?))).collect()
    }

    async fn read_lanes(&self, lanes: &BTreeSet<LaneId>) -> Result<Vec<(LaneId, Arc<Requirements>)>, Fault> {
        let columns = Columns::default().with(Type::TEXT_ARRAY, each(lanes, LaneId::as_str));
        let statement = "SELECT id, requires, v FROM remuda.lane WHERE id = ANY($1)";
        let rows = self.sessions.query(statement, &columns.params()).await?;
        rows.iter()
            .map(|row| {
                let postgres_types::Json(requires) = get(row, 1)?;
                let id = LaneId::from_stored(get(row, 0)?);
                self.ledger.came(id.clone(), get(row, 2)?);
                Ok((id, Arc::new(requires)))
            })
            .collect()
    }

    /// Finishes what was begun and lets go.
    pub(super) async fn close(&self) {
        self.queue.close();
        self.stop.cancel();
        self.beats.wake_all();
        self.tasks.wait().await;
        self.settle_accounts().await;
        self.sessions.close();
    }
}

type Waited<T> = Result<Result<Result<T>, oneshot::error::RecvError>, tokio::time::error::Elapsed>;

fn answered<T>(answer: Waited<T>) -> Result<T> {
    match answer {
        Ok(Ok(answer)) => answer,
        // The worker is gone: the store was closed.
        Ok(Err(_)) => Err(Error::Closed),
        Err(_) => Err(silent(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}
