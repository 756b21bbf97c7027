//! API keys.

use async_trait::async_trait;
use remuda_core::{KeyId, KeyRecord};

use super::PostgresStore;
use crate::{KeyStore, Result};

#[async_trait]
impl KeyStore for PostgresStore {
    async fn add_key(&self, key: KeyRecord) -> Result<()> {
        self.inner.open()?;
        self.inner.add_key(&key).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>> {
        let _turn = self.inner.turn().await?;
        self.inner.keys().await
    }

    async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord> {
        self.inner.open()?;
        self.inner.revoke_key(id).await
    }
}
