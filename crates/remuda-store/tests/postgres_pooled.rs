//! The conformance suite through a pooler that gives every transaction another connection, as hosted databases do.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;

use async_trait::async_trait;
use remuda_store::conformance::Fixture;
use remuda_store::{Options, PostgresStore, Result, Store};
use remuda_testbed::postgres::{Cluster, Pooler};

#[derive(Debug)]
struct Pooled {
    url: String,
    _pooler: Pooler,
}

#[async_trait]
impl Fixture for Pooled {
    async fn open(&self, options: Options) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(PostgresStore::connect(&self.url, options).await?))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

async fn pooled() -> Pooled {
    let server = Cluster::shared().await.expect("a server can be started");
    let pooler = Pooler::start(server).await.expect("a pooler can be started");
    let url = server.database().await.expect("a database can be made");
    Pooled { url: pooler.through(&url).expect("it is an address"), _pooler: pooler }
}

remuda_store::conformance_tests!(pooled);
