//! API keys.

use async_trait::async_trait;
use remuda_core::{KeyId, KeyRecord};

use super::super::reads;
use super::SqliteStore;
use crate::{KeyStore, Result};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn add_key(&self, key: KeyRecord) -> Result<()> {
        self.write(move |batch| batch.add_key(&key)).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>> {
        self.read(reads::keys).await
    }

    async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord> {
        self.write(move |batch| batch.revoke_key(id)).await
    }
}
