//! Making the tables, and bringing them up to date.
//!
//! Processes that start at the same moment take turns by the lock on one row. A release only adds to the schema,
//! so an older program may go on using it; `min_binary` says how old it may be.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::Installation;
use tokio_postgres::Client;
use uuid::Uuid;

use super::fault::Fault;
use super::rows::get;
use super::session::{Sessions, attempt};
use crate::{Error, Result};

/// A step from one version of the schema to the next.
struct Migration {
    statements: &'static str,
    /// What a program must know to use the schema after this step.
    min_binary: i64,
}

/// All steps; the version of the schema is how many of them were taken.
const MIGRATIONS: &[Migration] = &[
    Migration { statements: include_str!("migrations/0001.sql"), min_binary: 1 },
    Migration { statements: include_str!("migrations/0002.sql"), min_binary: 1 },
    Migration { statements: include_str!("migrations/0003.sql"), min_binary: 1 },
    Migration { statements: include_str!("migrations/0004.sql"), min_binary: 1 },
    Migration { statements: include_str!("migrations/0005.sql"), min_binary: 1 },
    Migration { statements: include_str!("migrations/0006.sql"), min_binary: 1 },
];

/// A fresh, empty schema. `IF NOT EXISTS` does not protect two who do it at once; the loser tries again.
const GROUND: &str = "CREATE SCHEMA IF NOT EXISTS remuda; \
    CREATE TABLE IF NOT EXISTS remuda.schema (one boolean PRIMARY KEY DEFAULT true CHECK (one), \
    version bigint NOT NULL, min_binary bigint NOT NULL); \
    INSERT INTO remuda.schema (version, min_binary) VALUES (0, 0) ON CONFLICT DO NOTHING";

/// How long another process may take to migrate.
const PATIENCE: &str = "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '120s'";

/// Brings the schema up to date and says which installation it is.
pub(super) async fn prepare(sessions: &Sessions) -> Result<Installation> {
    // Most often everything is there, and the program may not even be allowed to create anything.
    let version: Result<Option<i64>> = attempt!(sessions, version(sessions));
    if version?.is_none_or(|version| version < known()) {
        migrate(sessions).await?;
    }
    let told: Result<()> = attempt!(sessions, is_here(sessions));
    told?;
    super::feed::mend(sessions).await?;
    let plain: Result<Installation> = attempt!(sessions, installation(sessions));
    super::secrets::installation(sessions, plain?).await
}

fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// What this process held before keys were part of owners is nobody else's to inherit.
async fn is_here(sessions: &Sessions) -> Result<(), Fault> {
    let owner = sessions.options().owner;
    let there = "SELECT 1 FROM remuda.former_owner WHERE owner = $1";
    if sessions.query(there, &[(&owner.0, Type::UUID)]).await?.is_empty() {
        return Ok(());
    }
    let statement = "DELETE FROM remuda.former_owner WHERE owner = $1";
    sessions.query(statement, &[(&owner.0, Type::UUID)]).await.map(|_| ())
}

/// `None` when there is no schema.
async fn version(sessions: &Sessions) -> Result<Option<i64>, Fault> {
    let there = sessions.query("SELECT to_regclass('remuda.schema') IS NOT NULL", &[]).await?;
    if !there.first().map(|row| get(row, 0)).transpose()?.unwrap_or(false) {
        return Ok(None);
    }
    let rows = sessions.query("SELECT version, min_binary FROM remuda.schema", &[]).await?;
    rows.first().map(|row| check(get(row, 0)?, get(row, 1)?)).transpose()
}

fn check(found: i64, needs: i64) -> Result<i64, Fault> {
    if needs > known() {
        return Err(Error::TooNew { found, needs, known: known() }.into());
    }
    Ok(found)
}

async fn migrate(sessions: &Sessions) -> Result<()> {
    let mut tries = 0;
    loop {
        let done = tokio::time::timeout(Duration::from_secs(150), try_migrate(sessions)).await;
        match done {
            Ok(Ok(())) => return Ok(()),
            // Another process made the same thing at the same moment.
            Ok(Err(Fault::Again(_) | Fault::Refused(_))) if tries < 20 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(Err(fault)) => return Err(fault.into()),
            Err(_) => return Err(super::fault::silent("the schema could not be brought up to date in time")),
        }
    }
}

async fn try_migrate(sessions: &Sessions) -> Result<(), Fault> {
    let session = sessions.unopened().await?;
    let client = session.client()?;
    client.batch_execute(GROUND).await?;
    client.batch_execute(&format!("BEGIN; {PATIENCE}")).await?;
    let row = client.query_typed_one("SELECT version, min_binary FROM remuda.schema FOR UPDATE", &[]).await?;
    let found = check(get(&row, 0)?, get(&row, 1)?)?;
    let taken = usize::try_from(found).unwrap_or(0);
    for (index, step) in MIGRATIONS.iter().enumerate().skip(taken) {
        client.batch_execute(step.statements).await?;
        let version = i64::try_from(index + 1).unwrap_or(i64::MAX);
        client
            .execute_typed(
                "UPDATE remuda.schema SET version = $1, min_binary = greatest(min_binary, $2)",
                &[(&version, Type::INT8), (&step.min_binary, Type::INT8)],
            )
            .await?;
        tracing::info!(schema.version = version, "made the schema of the database");
    }
    found_installation(client).await?;
    client.batch_execute("COMMIT").await?;
    session.done();
    Ok(())
}

async fn found_installation(client: &Client) -> Result<(), Fault> {
    let key = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    client
        .execute_typed(
            "INSERT INTO remuda.installation (id, cluster_key, created_at) VALUES ($1, $2, now()) \
             ON CONFLICT (one) DO NOTHING",
            &[(&Uuid::new_v4(), Type::UUID), (&key, Type::TEXT)],
        )
        .await?;
    Ok(())
}

async fn installation(sessions: &Sessions) -> Result<Installation, Fault> {
    let rows = sessions.query("SELECT id, cluster_key FROM remuda.installation", &[]).await?;
    let row = rows.first().ok_or_else(|| Error::Corrupt("the installation has no id".to_owned()))?;
    Ok(Installation { id: get(row, 0)?, cluster_key: get(row, 1)? })
}
