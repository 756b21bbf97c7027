//! API keys.

use std::fmt;

use async_trait::async_trait;
use remuda_core::{KeyId, KeyRecord};

use crate::Result;

/// API keys.
#[async_trait]
pub trait KeyStore: fmt::Debug + Send + Sync + 'static {
    /// Keeps a new key.
    async fn add_key(&self, key: KeyRecord) -> Result<()>;

    /// All keys, also revoked ones, oldest first.
    async fn keys(&self) -> Result<Vec<KeyRecord>>;

    /// Makes a key useless from now on.
    async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord>;
}
