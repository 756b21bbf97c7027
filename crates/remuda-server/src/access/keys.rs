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

    /// Whether who came in with this key, or without one, would still be let in.
    fn admit(&self, key: Option<&Sha256>) -> bool {
        match key {
            Some(hash) => self.by_hash.get(hash).is_some_and(|record| record.revoked_at.is_none()),
            None => self.is_empty(),
        }
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
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    keys: Arc<Keys>,
    /// When the reading of these keys began.
    read: Instant,
    /// When a reading last began, of these keys or of newer ones.
    asked: Instant,
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
                Some(known) if known.asked.elapsed() < FRESH => return Ok(known.keys.clone()),
                Some(known) => {
                    // One request reads; those beside it go by what is known.
                    known.asked = Instant::now();
                    Some(known.keys.clone())
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

    /// Whether who came in with this key, or without one, would still be let in: for what stays open for long. While the
    /// store is away nobody is sent out.
    pub(crate) async fn still_admit(&self, key: Option<&Sha256>) -> bool {
        self.current().await.map_or(true, |keys| keys.admit(key))
    }

    /// Reads them now: they were changed in this process.
    pub(crate) async fn refresh(&self) -> Result<Arc<Keys>> {
        let read = Instant::now();
        let records = self.store.keys().await?;
        let by_hash = records.into_iter().map(|record| (record.hash, record)).collect();
        let keys = Arc::new(Keys { by_hash });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(keep(&mut known, read, keys))
    }
}

/// The newer of what is known and what was read just now. A slower reader that began earlier overwrites nothing.
fn keep(known: &mut Option<Known>, read: Instant, keys: Arc<Keys>) -> Arc<Keys> {
    let asked = match known {
        Some(newer) if newer.read > read => return newer.keys.clone(),
        Some(older) => older.asked.max(read),
        None => read,
    };
    *known = Some(Known { keys: keys.clone(), read, asked });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_does_not_bring_older_keys_back() {
        let (older, newer) = (Arc::new(Keys::default()), Arc::new(Keys::default()));
        let began = Instant::now();
        let later = began + Duration::from_millis(5);
        let mut known = None;
        keep(&mut known, later, newer.clone());
        assert!(Arc::ptr_eq(&keep(&mut known, began, older), &newer));
        assert!(known.is_some_and(|known| Arc::ptr_eq(&known.keys, &newer) && known.read == later));
    }
}
