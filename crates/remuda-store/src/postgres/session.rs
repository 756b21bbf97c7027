//! Connections: one from the pool for each piece of work, thrown away when the work did not come to its end.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use postgres_types::{ToSql, Type};
use rand::RngExt as _;
use remuda_core::Timestamp;
use tokio::time::Instant;
use tokio_postgres::{Row, SimpleQueryMessage};

use super::address::{Address, CONNECT};
use super::fault::{Fault, silent};
use crate::{Error, Options, Result};

/// One piece of work is done within this time, or the server counts as away.
const WORK: Duration = Duration::from_secs(9);
/// How often work is tried again when other transactions are in its way.
const TRIES: u32 = 8;
/// Opens every transaction. A process that is stopped in the middle of one must not hold its locks for ever, and a
/// statement must end before its caller gives up.
const BEGIN: &str = "BEGIN; SET LOCAL statement_timeout = 8000; \
    SET LOCAL idle_in_transaction_session_timeout = 10000; SELECT (extract(epoch FROM now()) * 1000000)::bigint";
/// For statements that are seldom and not planned beforehand: their plans must not depend on what the server believes
/// of the sizes of tables, nor wait for a compiler.
pub(super) const PLANS: &str = "SET LOCAL jit = off; SET LOCAL enable_seqscan = off";

/// Where connections come from, and since when the server answers without a gap.
#[derive(Debug)]
pub(super) struct Sessions {
    pool: Pool,
    up: Mutex<Option<Up>>,
    options: Options,
}

#[derive(Debug, Clone, Copy)]
struct Up {
    since: Instant,
    /// The same by the clock that tests can turn.
    by_clock: Option<Timestamp>,
    /// When something was last asked.
    seen: Instant,
}

/// A silence of this process that is no reason to doubt anything, however short the leases are.
const SILENCE: Duration = Duration::from_secs(3);

/// A parameter and its type.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

impl Sessions {
    pub(super) fn new(address: &Address, options: Options, size: usize) -> Result<Self> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config.clone(), address.tls.clone(), recycling);
        let timeouts = Timeouts { wait: Some(CONNECT), create: Some(CONNECT), recycle: Some(CONNECT) };
        let pool = Pool::builder(manager)
            .max_size(size)
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| silent(format!("no pool of connections: {error}")))?;
        Ok(Self { pool, up: Mutex::new(None), options })
    }

    /// How the store was asked to behave.
    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// A connection, fresh or used before.
    pub(super) async fn session(&self) -> Result<Session, Fault> {
        match self.pool.get().await {
            Ok(object) => Ok(Session { object: Some(object), busy: false }),
            Err(PoolError::Backend(error)) => Err(error.into()),
            Err(PoolError::Closed) => Err(Error::Closed.into()),
            Err(other) => Err(silent(format!("no connection to the database: {other}")).into()),
        }
    }

    /// One statement that is its own transaction.
    pub(super) async fn query(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let mut session = self.session().await?;
        session.busy = true;
        let rows = session.client()?.query_typed(statement, params).await?;
        session.busy = false;
        Ok(rows)
    }

    /// Opens a transaction.
    pub(super) async fn begin(&self) -> Result<Transaction, Fault> {
        let mut session = self.session().await?;
        session.busy = true;
        let client = session.client()?;
        let (now, set) = tokio::join!(biased; begin(client, &self.options), client.batch_execute(PLANS));
        let now = now?;
        set?;
        Ok(Transaction { session, now })
    }

    /// A session for work that opens its transaction itself, together with its first statements.
    pub(super) async fn unopened(&self) -> Result<Session, Fault> {
        let mut session = self.session().await?;
        session.busy = true;
        Ok(session)
    }

    /// Does work within its time, and remembers whether the server answered.
    pub(super) async fn bounded<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.notice_silence();
        let done = match tokio::time::timeout(WORK, work).await {
            Ok(done) => done,
            Err(_) => Err(silent(format!("no answer within {} s", WORK.as_secs())).into()),
        };
        let mut up = self.up.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &done {
            Err(Fault::Is(Error::Unavailable { .. })) => *up = None,
            _ if up.is_none() => {
                let by_clock = self.options.clock.as_ref().map(|clock| clock.now());
                let now = Instant::now();
                *up = Some(Up { since: now, by_clock, seen: now });
            }
            _ => {}
        }
        done
    }

    /// The pulse asks every second. After a longer silence this process stood still (stopped, or on a machine that slept), and
    /// with it every sidecar that speaks through it: as after an outage, they have time to come back.
    fn notice_silence(&self) {
        if self.options.clock.is_some() {
            return;
        }
        let silence = (self.options.policy.lease / 3).max(SILENCE);
        let mut up = self.up.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(up) = up.as_mut() {
            let now = Instant::now();
            if now.duration_since(up.seen) > silence {
                up.since = now;
            }
            up.seen = now;
        }
    }

    /// Whether the server was up, and we with it, for so long that every owner could renew what it holds.
    pub(super) async fn is_settled(&self, transaction: &Transaction) -> Result<bool, Fault> {
        self.is_settled_for(transaction, Duration::ZERO).await
    }

    /// Whether it has been settled for this long.
    pub(super) async fn is_settled_for(
        &self,
        transaction: &Transaction,
        span: Duration,
    ) -> Result<bool, Fault> {
        if self.options.settle.is_zero() {
            return Ok(true);
        }
        let settle = self.options.settle + span;
        let up = *self.up.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(up) = up else { return Ok(false) };
        if let Some(since) = up.by_clock {
            return Ok(has_passed(since, transaction.now, settle));
        }
        if up.since.elapsed() < settle {
            return Ok(false);
        }
        let row = transaction.query("SELECT pg_postmaster_start_time()", &[]).await?;
        let Some(row) = row.first() else { return Ok(false) };
        Ok(has_passed(super::rows::get(row, 0)?, transaction.now, settle))
    }

    /// Lets go of all connections.
    pub(super) fn close(&self) {
        self.pool.close();
    }

    /// Whether [`Sessions::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }
}

fn has_passed(since: Timestamp, now: Timestamp, span: Duration) -> bool {
    since.checked_add(span).is_ok_and(|end| end <= now)
}

/// Repeats work while other transactions are in its way.
#[derive(Debug, Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// Pauses before the next try, or gives up.
    pub(super) async fn again(&mut self, fault: Fault) -> Result<(), Fault> {
        let Fault::Again(error) = &fault else { return Err(fault) };
        self.0 += 1;
        if self.0 >= TRIES {
            return Err(fault);
        }
        tracing::debug!(error = %error, "tries again, another transaction was in the way");
        let pause = rand::rng().random_range(0..u64::from(self.0) * 10);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        Ok(())
    }
}

/// Does `$work`, bounded in time and repeated while others are in its way.
macro_rules! attempt {
    ($sessions:expr, $work:expr) => {{
        let mut tries = $crate::postgres::session::Tries::default();
        loop {
            match $sessions.bounded($work).await {
                Ok(done) => break Ok(done),
                Err(fault) => match tries.again(fault).await {
                    Ok(()) => {}
                    Err(fault) => break Err($crate::Error::from(fault)),
                },
            }
        }
    }};
}
pub(super) use attempt;

/// A connection from the pool. It goes back only when nothing is under way on it.
#[derive(Debug)]
pub(super) struct Session {
    object: Option<Object>,
    busy: bool,
}

impl Session {
    /// The connection itself.
    pub(super) fn client(&self) -> Result<&tokio_postgres::Client, Fault> {
        // Only `Drop` takes it out.
        self.object.as_deref().map(|wrapper| &**wrapper).ok_or_else(|| Error::Closed.into())
    }

    /// The work is done and the transaction closed: the connection can be used again.
    pub(super) fn done(mut self) {
        self.busy = false;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(object) = self.object.take()
            && self.busy
        {
            // Nobody knows what state it is in.
            drop(Object::take(object));
        }
    }
}

/// Opens a transaction and tells the time.
pub(super) async fn begin(
    client: &tokio_postgres::Client,
    options: &Options,
) -> Result<Timestamp, tokio_postgres::Error> {
    let mut now = Timestamp::UNIX_EPOCH;
    for message in client.simple_query(BEGIN).await? {
        if let SimpleQueryMessage::Row(row) = message {
            let micros = row.get(0).and_then(|text| text.parse().ok());
            now = micros.and_then(|micros| Timestamp::from_microsecond(micros).ok()).unwrap_or(now);
        }
    }
    Ok(options.clock.as_ref().map_or(now, |clock| clock.now()))
}

/// An open transaction. Dropped without [`Transaction::commit`] it is rolled back with its connection.
#[derive(Debug)]
pub(super) struct Transaction {
    session: Session,
    /// The moment of everything that happens in it.
    pub(super) now: Timestamp,
}

impl Transaction {
    pub(super) fn client(&self) -> Result<&tokio_postgres::Client, Fault> {
        self.session.client()
    }

    pub(super) async fn query(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        Ok(self.client()?.query_typed(statement, params).await?)
    }

    pub(super) async fn execute(&self, statement: &str, params: &[Param<'_>]) -> Result<u64, Fault> {
        Ok(self.client()?.execute_typed(statement, params).await?)
    }

    pub(super) async fn commit(self) -> Result<(), Fault> {
        self.client()?.batch_execute("COMMIT").await?;
        self.session.done();
        Ok(())
    }

    /// Nothing was changed: closes it and keeps the connection.
    pub(super) async fn rollback(self) -> Result<(), Fault> {
        self.client()?.batch_execute("ROLLBACK").await?;
        self.session.done();
        Ok(())
    }

    /// For those who close it themselves.
    pub(super) fn into_session(self) -> Session {
        self.session
    }
}
