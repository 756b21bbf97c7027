//! Deleting files that tenants brought.

use remuda_core::{Sha256, TaskId};
use remuda_store::AssetUse;

use super::{ServiceError, ServiceResult};
use crate::access::Caller;
use crate::state::AppState;
use crate::unnamed;

/// How many waiting tasks are looked at together.
const PAGE: u32 = 1000;

/// Deletes a file of the caller's tenant, under all its names. A task that has not ended keeps its files.
///
/// A task that comes in while it is looked for may still name the file; then it fails, and says that the file is not there.
pub(crate) async fn delete_asset(state: &AppState, caller: &Caller, sha256: Sha256) -> ServiceResult<()> {
    if state.store.asset(&caller.tenant, sha256).await?.is_none() {
        return Err(ServiceError::NoAsset(sha256));
    }
    if let Some(task) = reader(state, caller, sha256).await? {
        return Err(ServiceError::AssetInUse { task });
    }
    if !state.store.delete_asset(&caller.tenant, sha256).await? {
        return Err(ServiceError::NoAsset(sha256));
    }
    // It is deleted. Its bytes go also when nobody waits for that any more, or later if the file store is away.
    let shared = state.clone();
    let bytes = state.tasks.spawn(async move {
        if let Err(error) = unnamed::remove(&*shared.store, &shared.files, sha256).await {
            tracing::warn!(asset = %sha256, %error, "the bytes of a deleted asset are removed later");
        }
    });
    if let Err(error) = bytes.await {
        tracing::warn!(asset = %sha256, %error, "the bytes of a deleted asset are removed later");
    }
    Ok(())
}

/// A task of the caller's tenant that has not ended and reads this file.
async fn reader(state: &AppState, caller: &Caller, sha256: Sha256) -> ServiceResult<Option<TaskId>> {
    let mut after = None;
    loop {
        // One turn for each page: others come in between.
        let _reading = state.permits.list().await?;
        match state.store.asset_use(&caller.tenant, sha256, after, PAGE).await? {
            AssetUse::By(task) => return Ok(Some(task)),
            AssetUse::After(task) => after = Some(task),
            AssetUse::Unused => return Ok(None),
        }
    }
}
