//! What tenants keep beside their tasks.

use std::fmt;

use async_trait::async_trait;
use remuda_core::{Sha256, TaskId, Tenant};

use crate::{Asset, AssetUse, Document, DocumentInfo, Result};

/// What tenants keep beside their tasks: uploaded files, settings and user data.
#[async_trait]
pub trait DocumentStore: fmt::Debug + Send + Sync + 'static {
    /// How many bytes a tenant may still bring before it has all that one may have.
    async fn room(&self, tenant: &Tenant) -> Result<u64>;

    /// Keeps what is known of an uploaded file. [`crate::Error::OverLimit`] when its content is new and there is no room for it, or
    /// when it has a thousand names and this is another one.
    async fn add_asset(&self, asset: Asset) -> Result<()>;

    /// An uploaded file of a tenant, by its content.
    async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>>;

    /// The newest uploaded file of a tenant with this name.
    async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>>;

    /// The newest uploaded file of a tenant under each name, by name; at most `limit`.
    async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>>;

    /// Forgets an uploaded file of a tenant under all its names; whether there was one. Its bytes count no more.
    async fn delete_asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<bool>;

    /// Forgets that an uploaded file came under this name, if it did not come again since; whether it did. With its last name its
    /// bytes count no more.
    async fn withdraw_asset(&self, asset: &Asset) -> Result<bool>;

    /// Looks for a task of a tenant that has not ended and reads this content: at `limit` tasks that wait, after `after` in the
    /// order of their ids, and at all that run.
    async fn asset_use(
        &self,
        tenant: &Tenant,
        sha256: Sha256,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<AssetUse>;

    /// Which of these contents no tenant has.
    async fn unknown_assets(&self, contents: Vec<Sha256>) -> Result<Vec<Sha256>>;

    /// A document of a tenant.
    async fn document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>>;

    /// Writes a document; its times are the store's. Without `replace` an existing one stays, and the answer is `None`.
    async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<Option<DocumentInfo>>;

    /// The documents of a collection whose paths begin so, by path.
    async fn documents(&self, tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>>;

    /// Removes a document; whether there was one.
    async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool>;
}
