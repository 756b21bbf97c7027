//! What tenants keep beside their tasks.

use async_trait::async_trait;
use remuda_core::{Sha256, TaskId, Tenant};

use super::PostgresStore;
use crate::{Asset, AssetUse, Document, DocumentInfo, DocumentStore, Result};

#[async_trait]
impl DocumentStore for PostgresStore {
    async fn add_asset(&self, asset: Asset) -> Result<()> {
        let _turn = self.inner.turn_to_write(&asset.tenant, 0).await?;
        self.inner.add_asset(&asset).await
    }

    async fn room(&self, tenant: &Tenant) -> Result<u64> {
        let _turn = self.inner.turn().await?;
        self.inner.room(tenant).await
    }

    async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>> {
        let _turn = self.inner.turn().await?;
        self.inner.asset(tenant, sha256).await
    }

    async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>> {
        let _turn = self.inner.turn().await?;
        self.inner.asset_named(tenant, filename).await
    }

    async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.assets(tenant, limit).await
    }

    async fn delete_asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<bool> {
        let _turn = self.inner.turn_to_write(tenant, 0).await?;
        self.inner.delete_asset(tenant, sha256).await
    }

    async fn withdraw_asset(&self, asset: &Asset) -> Result<bool> {
        let _turn = self.inner.turn_to_write(&asset.tenant, 0).await?;
        self.inner.withdraw_asset(asset).await
    }

    async fn asset_use(
        &self,
        tenant: &Tenant,
        sha256: Sha256,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<AssetUse> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.asset_use(tenant, sha256, after, limit).await
    }

    async fn unknown_assets(&self, contents: Vec<Sha256>) -> Result<Vec<Sha256>> {
        let _turn = self.inner.turn_of(None).await?;
        self.inner.unknown_assets(&contents).await
    }

    async fn document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.document(tenant, space, path).await
    }

    async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<Option<DocumentInfo>> {
        let _turn = self.inner.turn_to_write(tenant, bytes.len()).await?;
        self.inner.put_document(tenant, space, path, &bytes, replace).await
    }

    async fn documents(&self, tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.documents(tenant, space, prefix).await
    }

    async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool> {
        let _turn = self.inner.turn_to_write(tenant, 0).await?;
        self.inner.delete_document(tenant, space, path).await
    }
}
