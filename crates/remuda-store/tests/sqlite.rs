//! The conformance suite and the model test on SQLite.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod model;

use std::sync::Arc;

use async_trait::async_trait;
use model::{Life, Place, config};
use proptest_state_machine::prop_state_machine;
use remuda_store::conformance::Fixture;
use remuda_store::{Options, Result, SqliteStore, Store};

#[derive(Debug)]
struct Folder(tempfile::TempDir);

#[async_trait]
impl Fixture for Folder {
    async fn open(&self, options: Options) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(SqliteStore::open(&self.0.path().join("remuda.db"), options).await?))
    }

    fn is_shared(&self) -> bool {
        false
    }
}

async fn folder() -> Folder {
    Folder(tempfile::tempdir().expect("a folder can be made"))
}

remuda_store::conformance_tests!(folder);

struct Sqlite;

impl Place for Sqlite {
    async fn fixture() -> impl Fixture {
        folder().await
    }
}

prop_state_machine! {
    #![proptest_config(config(24))]

    #[test]
    fn whatever_happens_the_queue_keeps_its_promises(sequential 20..100 => Life<Sqlite>);
}
