//! The store and the file store that the settings name.

use std::sync::Arc;

use anyhow::Context as _;
use remuda_core::{Installation, OwnerId};
use remuda_files::Files;
use remuda_store::{Counts, PostgresStore, SqliteStore, Store};

use super::secrets;
use super::timing::store_options;
use crate::config::{Settings, StoreUrl};

/// Opens the store, for this process.
pub(crate) async fn open_store(settings: &Settings, owner: OwnerId) -> anyhow::Result<Arc<dyn Store>> {
    let mut options = store_options(owner, settings.tasks.lease);
    options.secrets = secrets::keyring(settings)?;
    options.documents = settings.door.documents;
    options.max_lanes = settings.tasks.max_lanes;
    options.quota = settings.tasks.quota;
    Ok(match &settings.store.url {
        StoreUrl::Sqlite(path) => {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("cannot make the folder {}", folder.display()))?;
            }
            let store = SqliteStore::open(path, options).await;
            Arc::new(store.with_context(|| format!("cannot use the store {}", settings.store.url))?)
        }
        StoreUrl::Postgres(url) => {
            let store = PostgresStore::connect(url, options).await;
            Arc::new(store.with_context(|| format!("cannot use the store {}", settings.store.url))?)
        }
    })
}

/// Opens the file store and makes sure that it is this installation's. A directory next to a shared database must
/// be shared, too: without our mark in it, it is another machine's directory of the same name.
pub(crate) async fn open_files(
    settings: &Settings,
    store: &dyn Store,
    installation: &Installation,
) -> anyhow::Result<Files> {
    let location = &settings.files.url;
    let files = Files::open(location).with_context(|| format!("cannot use the file store {location}"))?;
    let shared = matches!(settings.store.url, StoreUrl::Postgres(_)) && location.is_directory();
    // The first process of an installation, with nothing in the store yet, says where the files are.
    let must_exist = shared && store.counts(None).await? != Counts::default();
    files.check_installation(installation.id, must_exist).await.with_context(|| {
        format!(
            "cannot use the file store {location}: all servers of one PostgreSQL must share it, see --files"
        )
    })?;
    Ok(files)
}
