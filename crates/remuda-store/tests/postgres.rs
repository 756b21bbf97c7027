//! The conformance suite and the model test on PostgreSQL.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod model;

use std::sync::Arc;

use async_trait::async_trait;
use model::{Life, Place, config};
use proptest_state_machine::prop_state_machine;
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

struct Postgres;

impl Place for Postgres {
    async fn fixture() -> impl Fixture {
        database().await
    }
}

prop_state_machine! {
    #![proptest_config(config(8))]

    #[test]
    fn whatever_happens_the_queue_keeps_its_promises(sequential 20..100 => Life<Postgres>);
}
