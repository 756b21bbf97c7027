//! The keys of the installation, as they were at most a second ago.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use remuda_core::{ApiKey, KeyRecord, Sha256};
use remuda_store::{KeyStore, Result};
use tokio_util::sync::CancellationToken;

/// How long a list is believed. Reading a new one may take a while too; both together stay below a second.
const FRESH: Duration = Duration::from_millis(400);

/// How often the list is looked at while somebody depends on it.
const LOOK: Duration = Duration::from_millis(150);

/// All keys, by hash.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    by_hash: HashMap<Sha256, Known>,
    /// Cancelled when the first key is there: from then on nobody is let in without one.
    no_keys: CancellationToken,
}

/// A key, and what ends with it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) record: KeyRecord,
    revoked: CancellationToken,
}

impl Keys {
    /// What was read just now. Whoever came in with a key that is not to be used any more is told.
    fn read(records: Vec<KeyRecord>, before: Option<&Self>) -> Self {
        let token = |record: &KeyRecord| {
            let known = before.and_then(|before| before.by_hash.get(&record.hash));
            known.map(|known| known.revoked.clone()).unwrap_or_default()
        };
        let no_keys = before.map(|before| before.no_keys.clone()).unwrap_or_default();
        let known =
            records.into_iter().map(|record| (record.hash, Known { revoked: token(&record), record }));
        let now = Self { by_hash: known.collect(), no_keys };
        for known in now.by_hash.values().filter(|known| known.record.revoked_at.is_some()) {
            known.revoked.cancel();
        }
        for (hash, known) in before.iter().flat_map(|before| &before.by_hash) {
            if !now.by_hash.contains_key(hash) {
                known.revoked.cancel();
            }
        }
        if !now.is_empty() {
            now.no_keys.cancel();
        }
        now
    }

    /// Whether no key was ever made. A revoked one counts: taking the last key back must not open the door.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// A key that may be used.
    pub(crate) fn find(&self, presented: &ApiKey) -> Option<&Known> {
        let known = self.by_hash.get(&presented.hash())?;
        (presented.matches(&known.record.hash) && known.record.revoked_at.is_none()).then_some(known)
    }
}

/// How long somebody may stay who was let in: until the key is revoked, or, without one, until there are keys. The list of
/// keys is looked at as long as somebody holds one of these.
#[derive(Debug)]
pub(crate) struct Admission {
    over: CancellationToken,
    held: Arc<AtomicUsize>,
}

impl Admission {
    /// What is cancelled when it is over.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.over
    }

    /// Waits until it is over.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct KeyCache {
    store: Arc<dyn KeyStore>,
    known: Mutex<Option<Latest>>,
    /// How many depend on the list.
    held: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Latest {
    keys: Arc<Keys>,
    /// When the reading of these keys began.
    read: Instant,
    /// When a reading last began, of these keys or of newer ones.
    asked: Instant,
}

impl KeyCache {
    pub(crate) fn new(store: Arc<dyn KeyStore>) -> Self {
        Self { store, known: Mutex::default(), held: Arc::default() }
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

    /// For who came in with this key.
    pub(crate) fn admit(&self, known: &Known) -> Arc<Admission> {
        self.admission(&known.revoked)
    }

    /// For who came in without a key, because there is none.
    pub(crate) fn admit_without(&self, keys: &Keys) -> Arc<Admission> {
        self.admission(&keys.no_keys)
    }

    fn admission(&self, over: &CancellationToken) -> Arc<Admission> {
        self.held.fetch_add(1, Ordering::Relaxed);
        Arc::new(Admission { over: over.clone(), held: self.held.clone() })
    }

    /// Looks at the keys as long as requests, streams or sockets depend on them, until `stop`: a key may be revoked by
    /// another process. While the store is away nobody is sent out.
    pub(crate) async fn watch(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            if self.held.load(Ordering::Relaxed) == 0 {
                continue;
            }
            if let Some(Err(error)) = stop.run_until_cancelled(self.current()).await {
                tracing::debug!(%error, "the keys could not be read");
            }
        }
    }

    /// Reads them now: they were changed in this process.
    pub(crate) async fn refresh(&self) -> Result<Arc<Keys>> {
        let read = Instant::now();
        let records = self.store.keys().await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(keep(&mut known, read, records))
    }
}

/// The newer of what is known and what was read just now. A slower reader that began earlier overwrites nothing.
fn keep(known: &mut Option<Latest>, read: Instant, records: Vec<KeyRecord>) -> Arc<Keys> {
    let (asked, before) = match known {
        Some(newer) if newer.read > read => return newer.keys.clone(),
        Some(older) => (older.asked.max(read), Some(older.keys.clone())),
        None => (read, None),
    };
    let keys = Arc::new(Keys::read(records, before.as_deref()));
    *known = Some(Latest { keys: keys.clone(), read, asked });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use remuda_core::{KeyId, Scope, Tenant, Timestamp};

    fn record(key: &ApiKey, revoked: bool) -> KeyRecord {
        let now = Timestamp::UNIX_EPOCH;
        KeyRecord {
            id: KeyId(uuid::Uuid::nil()),
            name: String::new(),
            tenant: Tenant::default_tenant(),
            scopes: [Scope::Read].into(),
            hash: key.hash(),
            created_at: now,
            revoked_at: revoked.then_some(now),
        }
    }

    #[test]
    fn a_slow_reader_does_not_bring_older_keys_back() {
        let began = Instant::now();
        let later = began + Duration::from_millis(5);
        let mut known = None;
        let newer = keep(&mut known, later, Vec::new());
        assert!(Arc::ptr_eq(&keep(&mut known, began, Vec::new()), &newer));
        assert!(known.is_some_and(|known| Arc::ptr_eq(&known.keys, &newer) && known.read == later));
    }

    #[test]
    fn who_came_in_is_told_when_the_key_goes() {
        let (kept, revoked, removed) =
            (ApiKey::presented("rmd_a"), ApiKey::presented("rmd_b"), ApiKey::presented("rmd_c"));
        let mut known = None;
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let none = keep(&mut known, at(0), Vec::new());
        assert!(!none.no_keys.is_cancelled());
        let all = [&kept, &revoked, &removed].map(|key| record(key, false)).to_vec();
        let first = keep(&mut known, at(10), all);
        assert!(none.no_keys.is_cancelled());
        let token = |key| first.find(key).unwrap().revoked.clone();
        let tokens = [token(&kept), token(&revoked), token(&removed)];
        let second = keep(&mut known, at(20), vec![record(&kept, false), record(&revoked, true)]);
        assert_eq!(tokens.map(|token| token.is_cancelled()), [false, true, true]);
        assert!(second.find(&revoked).is_none() && second.find(&kept).is_some());
    }
}
