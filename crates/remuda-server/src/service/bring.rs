//! Files that tenants bring: room for them before they are read, and keeping them.
//!
//! What a tenant has is in the store, and what it is bringing at this moment is here. So uploads that come side by side do not
//! share one look at the room that is left. At several servers they may; then the store has the last word, and what it refuses
//! is removed again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use jiff::Timestamp;
use remuda_core::{Sha256, Tenant};
use remuda_files::{BoxError, Staged};
use remuda_pool::NotDone;
use remuda_store::Asset;

use super::{ServiceError, ServiceResult};
use crate::share::TurnedAway;
use crate::state::{AppState, Shared};
use crate::unnamed;

/// How often a file is looked for that somebody may be about to put back …
const LOOKS: u32 = 20;

/// … and the time between two looks.
const BETWEEN: Duration = Duration::from_millis(50);

/// How many bytes each tenant is bringing at this moment. Who brings nothing is not in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bringing(Arc<Mutex<HashMap<Tenant, u64>>>);

impl Bringing {
    fn all(&self) -> MutexGuard<'_, HashMap<Tenant, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one file that a tenant brings. It is taken as the file comes, and given back when this is dropped: what was kept is
/// counted by the store then.
#[derive(Debug)]
pub(crate) struct UploadRoom {
    bringing: Bringing,
    tenant: Tenant,
    /// How many bytes the tenant may bring beside what it has.
    whole: u64,
    /// How long this file may be, in bytes. Known before it is read.
    pub(crate) longest: u64,
    /// It is the tenant that has no more room, and not the file that is longer than any may be.
    pub(crate) is_left: bool,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// There was no more.
    refused: bool,
}

/// Looks how much room there is for a file of a tenant.
pub(crate) async fn upload_room(state: &Shared, tenant: &Tenant) -> ServiceResult<UploadRoom> {
    let (whole, most) = (state.store.room(tenant).await?, state.limits.asset);
    Ok(UploadRoom::of(state.bringing.clone(), tenant, whole, most))
}

impl UploadRoom {
    fn of(bringing: Bringing, tenant: &Tenant, whole: u64, most: u64) -> Self {
        let others = bringing.all().get(tenant).copied().unwrap_or(0);
        let left = whole.saturating_sub(others);
        Self {
            bringing,
            tenant: tenant.clone(),
            whole,
            longest: left.min(most),
            is_left: left < most,
            taken: Mutex::default(),
        }
    }

    /// Nothing that is longer than this, whoever brings it.
    pub(crate) fn no_more_than(mut self, most: u64) -> Self {
        if self.longest > most {
            (self.longest, self.is_left) = (most, false);
        }
        self
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for so many bytes in all, if there is any beside what else the tenant is bringing.
    pub(crate) fn cover(&self, bytes: u64) -> ServiceResult<()> {
        let mut taken = self.taken();
        let more = bytes.saturating_sub(taken.bytes);
        if more == 0 {
            return Ok(());
        }
        let mut all = self.bringing.all();
        let under_way = all.get(&self.tenant).copied().unwrap_or(0).saturating_add(more);
        if under_way > self.whole {
            taken.refused = true;
            return Err(ServiceError::NoRoom);
        }
        all.insert(self.tenant.clone(), under_way);
        taken.bytes += more;
        Ok(())
    }

    /// A file as it comes, which ends with an error where there is no more room for it.
    pub(crate) fn counted(
        &self,
        pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send,
    ) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
        let mut came = 0_u64;
        pieces.map(move |piece| {
            let piece = piece?;
            came = came.saturating_add(piece.len() as u64);
            self.cover(came)?;
            Ok(piece)
        })
    }

    /// What is said when a file could not be read to its end.
    pub(crate) fn not_kept(&self, error: remuda_files::Error) -> ServiceError {
        match error {
            remuda_files::Error::Source(_) if self.taken().refused => ServiceError::NoRoom,
            remuda_files::Error::TooLarge { .. } => self.refusal(),
            other => other.into(),
        }
    }

    /// What is said of a file that is longer than there is room for.
    pub(crate) fn refusal(&self) -> ServiceError {
        if self.is_left { ServiceError::NoRoom } else { ServiceError::TooLong(self.longest) }
    }
}

impl Drop for UploadRoom {
    fn drop(&mut self) {
        let bytes = self.taken().bytes;
        let mut all = self.bringing.all();
        if let Some(under_way) = all.get_mut(&self.tenant) {
            *under_way = under_way.saturating_sub(bytes);
            if *under_way == 0 {
                all.remove(&self.tenant);
            }
        }
    }
}

/// A file that was read to its end.
#[derive(Debug)]
pub(crate) struct Brought {
    /// Its bytes. Nobody sees them yet.
    pub(crate) staged: Staged,
    /// Its place in the tenant's room.
    pub(crate) room: UploadRoom,
}

impl Brought {
    /// Its content.
    pub(crate) fn sha256(&self) -> Sha256 {
        Sha256(self.staged.stored().sha256.0)
    }
}

/// Keeps a file that was brought, under this name. It is done to its end, whether or not somebody waits for it: then the file is
/// there and counted, or neither.
pub(crate) async fn keep(
    state: &AppState,
    brought: Brought,
    filename: String,
    mime: String,
) -> ServiceResult<Asset> {
    let state = state.clone();
    let tasks = state.tasks.clone();
    let kept = tasks.spawn(async move { keep_now(&state, brought, filename, mime).await }).await;
    kept.unwrap_or_else(|error| Err(TurnedAway::NotDone(NotDone::Panicked(error.to_string())).into()))
}

async fn keep_now(
    state: &AppState,
    brought: Brought,
    filename: String,
    mime: String,
) -> ServiceResult<Asset> {
    let Brought { staged, room } = brought;
    let (key, stored) = staged.keep().await?;
    let asset = Asset {
        tenant: room.tenant.clone(),
        sha256: Sha256(stored.sha256.0),
        key: key.to_string(),
        filename,
        mime,
        size: i64::try_from(stored.size).unwrap_or(i64::MAX),
        created_at: Timestamp::now(),
    };
    match state.store.add_asset(asset.clone()).await {
        Ok(()) => {}
        Err(refused @ remuda_store::Error::OverLimit { .. }) => {
            if let Err(error) = unnamed::remove(&*state.store, &state.files, asset.sha256).await {
                tracing::warn!(files.key = %key, %error, "what was refused is removed later");
            }
            return Err(refused.into());
        }
        // Perhaps it was done. A file that no row names is removed later.
        Err(error) => return Err(error.into()),
    }
    // Whoever removes the same content, which nobody had until now, may have taken it away before the row was there. One who sees the
    // row puts it back. One who had looked before does not; then nobody has the content, and everybody who named it since takes back
    // his own name, and only that: others may have been told that theirs is kept.
    for _ in 0..LOOKS {
        if state.files.size(&key).await?.is_some() {
            return Ok(asset);
        }
        tokio::time::sleep(BETWEEN).await;
    }
    state.store.withdraw_asset(&asset).await?;
    Err(ServiceError::TakenAway)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_counts_until_it_is_over() {
        let bringing = Bringing::default();
        let (a, b) = (Tenant::new("a").unwrap(), Tenant::new("b").unwrap());
        let room = |tenant: &Tenant| UploadRoom::of(bringing.clone(), tenant, 100, 80);
        let (first, second) = (room(&a), room(&a));
        assert_eq!((first.longest, first.is_left), (80, false));
        first.cover(50).unwrap();
        first.cover(60).unwrap();
        first.cover(10).unwrap();
        second.cover(40).unwrap();
        assert!(matches!(second.cover(41), Err(ServiceError::NoRoom)));
        assert!(matches!(second.not_kept(remuda_files::Error::Source("cut".into())), ServiceError::NoRoom));
        assert!(matches!(first.refusal(), ServiceError::TooLong(80)));
        let third = room(&a);
        assert_eq!((third.longest, third.is_left), (0, true));
        room(&b).cover(80).unwrap();
        drop(first);
        second.cover(100).unwrap();
        drop((second, third));
        assert!(bringing.all().is_empty());
    }
}
