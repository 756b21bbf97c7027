//! Which owner a sidecar is: its key and the id that it tells, together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use remuda_core::{KeyId, OwnerId};
use remuda_store::Store;
use tokio::time::Instant;

/// After an upgrade from the schema in which the id alone was the owner, a sidecar has this long to come back and keep what
/// it held. Its leases ran out long before that.
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// How long an answer of the store is believed.
const FRESH: Duration = Duration::from_secs(60);

/// How many answers are kept for one key. More processes than this seldom share one.
const MOST: usize = 1_000;

/// The owner of each id that one key tells, and when the store said so.
type Answers = HashMap<OwnerId, (OwnerId, Instant)>;

/// What the store said of sidecars.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: Mutex<HashMap<KeyId, Answers>>,
}

impl Owners {
    /// The owner that a process is which shows this key and tells this id. Most are made of both; one that held leases
    /// before keys were part of owners goes on under its id alone.
    pub(super) async fn of(
        &self,
        store: &dyn Store,
        key: KeyId,
        told: OwnerId,
    ) -> remuda_store::Result<OwnerId> {
        let known = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&key).and_then(|known| known.get(&told)).copied()
        };
        if let Some((owner, read)) = known
            && read.elapsed() < FRESH
        {
            return Ok(owner);
        }
        let read = Instant::now();
        let inherits = store.inherit(told, key, GRACE).await?;
        let owner = if inherits { told } else { OwnerId::elsewhere(key, told) };
        if inherits && known.is_none() {
            tracing::info!(%key, %owner, "a sidecar keeps what it held before the upgrade");
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        remember(known.entry(key).or_default(), told, (owner, read));
        Ok(owner)
    }
}

/// Whoever tells many ids forgets its own; what is known of other keys stays.
fn remember(known: &mut Answers, told: OwnerId, answer: (OwnerId, Instant)) {
    if known.len() >= MOST && !known.contains_key(&told) {
        known.retain(|_, (_, read)| read.elapsed() < FRESH);
        if known.len() >= MOST {
            // The older half, so that this is not done for every one.
            let mut moments: Vec<Instant> = known.values().map(|(_, read)| *read).collect();
            let (_, middle, _) = moments.select_nth_unstable(MOST / 2);
            let middle = *middle;
            known.retain(|_, (_, read)| *read > middle);
        }
    }
    known.insert(told, answer);
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_key_that_tells_many_ids_is_remembered_in_bounded_memory() {
        let mut known = HashMap::new();
        for _ in 0..5 * MOST {
            let told = OwnerId(Uuid::new_v4());
            remember(&mut known, told, (told, Instant::now()));
            assert!(known.contains_key(&told) && known.len() <= MOST);
        }
    }
}
