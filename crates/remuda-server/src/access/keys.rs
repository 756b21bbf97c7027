//! The keys of the installation, as they were at most a second ago.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use remuda_core::{ApiKey, KeyRecord, Sha256};
use remuda_store::{Result, Store};

/// For so long a list is believed. Reading a new one may take a while too; both together stay below a second.
const FRESH: Duration = Duration::from_millis(400);

/// All keys, by hash.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    by_hash: HashMap<Sha256, KeyRecord>,
}

impl Keys {
    /// Whether no key was ever made. A revoked one counts: taking the last key back must not open the door.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// The record of a key that may be used.
    pub(crate) fn find(&self, presented: &ApiKey) -> Option<&KeyRecord> {
        let record = self.by_hash.get(&presented.hash())?;
        (presented.matches(&record.hash) && record.revoked_at.is_none()).then_some(record)
    }
}

#[derive(Debug)]
pub(crate) struct KeyCache {
    store: Arc<dyn Store>,
    known: Mutex<Option<(Instant, Arc<Keys>)>>,
}

impl KeyCache {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Mutex::default() }
    }

    /// The keys. While the store is away the last known ones hold: without a store no request gets far.
    pub(crate) async fn current(&self) -> Result<Arc<Keys>> {
        let stale = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *known {
                Some((read, keys)) if read.elapsed() < FRESH => return Ok(keys.clone()),
                Some((read, keys)) => {
                    // One request reads; those beside it go by what is known.
                    *read = Instant::now();
                    Some(keys.clone())
                }
                None => None,
            }
        };
        match (self.refresh().await, stale) {
            (Ok(keys), _) => Ok(keys),
            (Err(error), Some(keys)) if error.is_temporary() => Ok(keys),
            (Err(error), _) => Err(error),
        }
    }

    /// Reads them now: they were changed in this process.
    pub(crate) async fn refresh(&self) -> Result<Arc<Keys>> {
        let read = Instant::now();
        let records = self.store.keys().await?;
        let by_hash = records.into_iter().map(|record| (record.hash, record)).collect();
        let keys = Arc::new(Keys { by_hash });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // A slower reader that began earlier does not overwrite what is newer.
        *known = Some((read, keys.clone()));
        Ok(keys)
    }
}
