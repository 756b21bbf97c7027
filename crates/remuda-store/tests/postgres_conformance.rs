//! The conformance suite on PostgreSQL.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;

use async_trait::async_trait;
use remuda_store::conformance::Fixture;
use remuda_store::{Options, PostgresStore, Result, Store};

#[derive(Debug)]
struct Database(String);

#[async_trait]
impl Fixture for Database {
    async fn open(&self, options: Options) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(PostgresStore::connect(&self.0, options).await?))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

async fn database() -> Database {
    Database(remuda_testbed::postgres::database().await.expect("a database can be made"))
}

remuda_store::conformance_tests!(database);
