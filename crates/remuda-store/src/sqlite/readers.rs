//! A few connections that only read, each used by one query at a time: on a blocking thread, or, if it is about one thing,
//! where it is asked. Such a query is mostly answered from memory, in less time than a thread needs to wake up.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::fault::Outcome;
use super::open;
use crate::{Error, Result};

/// How many queries run at once.
const READERS: usize = 3;

/// A small query that took this long was not answered from memory …
const SLOW: Duration = Duration::from_millis(1);

/// … and this many after it go to blocking threads.
const AFTER_SLOW: u32 = 100;

/// The connections.
#[derive(Debug)]
pub(super) struct Readers {
    free: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
    /// How many of the next queries are not run where they are asked.
    wary: AtomicU32,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let connections = (0..READERS).map(|_| open::reader(path)).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            free: Arc::new(Mutex::new(connections)),
            permits: Arc::new(Semaphore::new(READERS)),
            wary: AtomicU32::new(0),
        })
    }

    /// Runs a query about one thing, which reads a few pages.
    pub(super) async fn look<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    {
        // Nothing here ever waits while all is well: whoever asks for thousands of things gives way now and then.
        tokio::task::coop::consume_budget().await;
        let wary = self.wary.load(Ordering::Relaxed);
        if wary > 0 {
            // Two at once may count as one.
            self.wary.store(wary - 1, Ordering::Relaxed);
            return self.read(query).await;
        }
        let Ok(permit) = self.permits.try_acquire() else { return self.read(query).await };
        let connection = lock(&self.free).pop().ok_or(Error::Closed)?;
        let begun = Instant::now();
        let answer = snapshot(&connection, query);
        lock(&self.free).push(connection);
        drop(permit);
        if begun.elapsed() >= SLOW {
            self.wary.store(AFTER_SLOW, Ordering::Relaxed);
        }
        answer.map_err(Error::from)
    }

    /// Runs a query in one snapshot of the database.
    pub(super) async fn read<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Error::Closed)?;
        let free = Arc::clone(&self.free);
        let work = move || {
            // As many connections as permits: one is free, unless the store was closed meanwhile.
            let connection = lock(&free).pop().ok_or(Error::Closed)?;
            let answer = snapshot(&connection, query);
            lock(&free).push(connection);
            drop(permit);
            answer.map_err(Error::from)
        };
        tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Closed))
    }

    /// Waits for the queries under way and closes the connections.
    pub(super) async fn close(&self) {
        let all = u32::try_from(READERS).unwrap_or(u32::MAX);
        if let Ok(permits) = self.permits.acquire_many(all).await {
            self.permits.close();
            permits.forget();
        }
        lock(&self.free).clear();
    }
}

fn snapshot<T>(connection: &Connection, query: impl FnOnce(&Connection) -> Outcome<T>) -> Outcome<T> {
    connection.prepare_cached("BEGIN")?.execute(())?;
    let answer = query(connection);
    // A transaction that only read has nothing to lose.
    connection.prepare_cached("ROLLBACK")?.execute(())?;
    answer
}

fn lock(connections: &Mutex<Vec<Connection>>) -> std::sync::MutexGuard<'_, Vec<Connection>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}
