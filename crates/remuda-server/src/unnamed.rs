//! Removing the bytes of uploads that no tenant has.
//!
//! Bytes are kept once, whoever brings them, and whoever brings them again finds them there. So nobody may remove what another is
//! about to name. It goes in this order: whoever brings puts the bytes there, names them in the store, and then looks whether
//! they are there still. Whoever removes takes them away first, asks the store after that, and puts them back if they have a name by
//! now. One of the two always sees the other.

use remuda_core::Sha256;
use remuda_files::{FileKey, Files};
use remuda_store::DocumentStore;

use crate::janitor::SweepError;

/// Removes the bytes of a content, if no tenant has it; whether it did.
pub(crate) async fn remove(
    store: &dyn DocumentStore,
    files: &Files,
    content: Sha256,
) -> Result<bool, SweepError> {
    let is_unnamed = async || store.unknown_assets(vec![content]).await.map(|unknown| !unknown.is_empty());
    // What is named is not touched: somebody may be reading it.
    if !is_unnamed().await? {
        return Ok(false);
    }
    let Some(aside) = files.set_aside(&FileKey::asset(remuda_files::Sha256(content.0))).await? else {
        return Ok(false);
    };
    match is_unnamed().await {
        Ok(true) => aside.remove().await?,
        Ok(false) => {
            aside.put_back().await?;
            return Ok(false);
        }
        Err(error) => {
            aside.put_back().await?;
            return Err(error.into());
        }
    }
    Ok(true)
}
