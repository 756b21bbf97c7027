//! What tenants keep beside their tasks.

use async_trait::async_trait;
use remuda_core::{Sha256, TaskId, Tenant};

use super::super::{documents, reads};
use super::SqliteStore;
use crate::{Asset, AssetUse, Document, DocumentInfo, DocumentStore, Result};

#[async_trait]
impl DocumentStore for SqliteStore {
    async fn add_asset(&self, asset: Asset) -> Result<()> {
        self.write(move |batch| batch.add_asset(&asset)).await
    }

    async fn room(&self, tenant: &Tenant) -> Result<u64> {
        let (tenant, quota) = (tenant.clone(), *self.settings.quota());
        Ok(quota.room(self.look(move |db| reads::usage(db, &tenant)).await?))
    }

    async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>> {
        let tenant = tenant.clone();
        self.look(move |db| reads::asset(db, &tenant, sha256)).await
    }

    async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>> {
        let (tenant, filename) = (tenant.clone(), filename.to_owned());
        self.look(move |db| reads::asset_named(db, &tenant, &filename)).await
    }

    async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>> {
        let whose = tenant.clone();
        self.read_of(Some(tenant), move |db| reads::assets(db, &whose, limit)).await
    }

    async fn delete_asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<bool> {
        let tenant = tenant.clone();
        self.write(move |batch| batch.delete_asset(&tenant, sha256)).await
    }

    async fn withdraw_asset(&self, asset: &Asset) -> Result<bool> {
        let asset = asset.clone();
        self.write(move |batch| batch.withdraw_asset(&asset)).await
    }

    async fn asset_use(
        &self,
        tenant: &Tenant,
        sha256: Sha256,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<AssetUse> {
        let whose = tenant.clone();
        self.read_of(Some(tenant), move |db| reads::asset_use(db, &whose, sha256, after, limit)).await
    }

    async fn unknown_assets(&self, contents: Vec<Sha256>) -> Result<Vec<Sha256>> {
        self.read_of(None, move |db| reads::unknown_assets(db, &contents)).await
    }

    async fn document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>> {
        let (whose, space, path) = (tenant.clone(), space.to_owned(), path.to_owned());
        self.read_of(Some(tenant), move |db| documents::document(db, &whose, &space, &path)).await
    }

    async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<Option<DocumentInfo>> {
        let turn = self.turns.take(tenant, bytes.len()).await?;
        let (tenant, space, path) = (tenant.clone(), space.to_owned(), path.to_owned());
        self.write(move |batch| {
            let _in_line = &turn;
            batch.put_document(&tenant, &space, &path, &bytes, replace)
        })
        .await
    }

    async fn documents(&self, tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>> {
        let (tenant, space, prefix) = (tenant.clone(), space.to_owned(), prefix.to_owned());
        self.read_of(Some(&tenant.clone()), move |db| documents::documents(db, &tenant, &space, &prefix))
            .await
    }

    async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool> {
        let (tenant, space, path) = (tenant.clone(), space.to_owned(), path.to_owned());
        self.write(move |batch| batch.delete_document(&tenant, &space, &path)).await
    }
}
