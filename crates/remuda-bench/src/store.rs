//! The stores that are measured, each as it is in production: durable, by default settings.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use remuda_core::OwnerId;
use remuda_store::{Options, PostgresStore, SqliteStore, Store};
use remuda_testbed::postgres::{self, Cluster};
use tokio_postgres::SimpleQueryMessage;
use uuid::Uuid;

use crate::usage;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

impl Kind {
    pub(crate) const ALL: [Kind; 2] = [Kind::Sqlite, Kind::Postgres];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Sqlite => "SQLite",
            Kind::Postgres => "PostgreSQL",
        })
    }
}

/// Where stores of one kind are made.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    Folder(&'a Path),
    Server(Box<Cluster>),
}

impl<'a> Place<'a> {
    /// `profiled`: PostgreSQL counts what its statements cost, see [`Place::profile`].
    pub(crate) async fn new(kind: Kind, folder: &'a Path, profiled: bool) -> Result<Place<'a>> {
        Ok(match kind {
            Kind::Sqlite => Place::Folder(folder),
            Kind::Postgres => {
                let options = postgres::Options { durable: true, ..postgres::Options::default() };
                let mut cluster = Box::new(Cluster::start(options).await?);
                if profiled {
                    execute(
                        &cluster.url(),
                        &["ALTER SYSTEM SET shared_preload_libraries = pg_stat_statements"],
                    )
                    .await?;
                    cluster.stop_hard().await?;
                    cluster.start_again().await?;
                    execute(&cluster.url(), &["CREATE EXTENSION pg_stat_statements"]).await?;
                }
                Place::Server(cluster)
            }
        })
    }

    /// A new, empty store, and its address.
    pub(crate) async fn open(&self, name: &str) -> Result<Open> {
        let owner = OwnerId(Uuid::new_v4());
        let options = Options::new(owner);
        let (store, address): (Arc<dyn Store>, String) = match self {
            Place::Folder(folder) => {
                let path = folder.join(format!("{name}.db"));
                let address = path.display().to_string();
                (Arc::new(SqliteStore::open(&path, options).await?), address)
            }
            Place::Server(cluster) => {
                let address = cluster.database().await?;
                (Arc::new(PostgresStore::connect(&address, options).await?), address)
            }
        };
        Ok(Open { store, owner, address })
    }

    /// Processor time so far, in microseconds: of this process, and of the database's where that is another.
    pub(crate) fn cpu_us(&self) -> Result<(f64, f64)> {
        let server = match self {
            Place::Folder(_) => 0.0,
            Place::Server(cluster) => {
                usage::family_cpu_us(cluster.process_id().context("PostgreSQL does not run")?)?
            }
        };
        Ok((usage::own_cpu_us()?, server))
    }

    /// What the database does by itself while a million tasks come in, and would otherwise do in mid-measurement.
    pub(crate) async fn settle(&self, open: &Open) -> Result<()> {
        if let Place::Folder(folder) = self {
            // What the kernel has not written yet would be written in mid-measurement.
            for entry in std::fs::read_dir(folder)? {
                std::fs::File::open(entry?.path())?.sync_all()?;
            }
            return Ok(());
        }
        // One at a time: neither runs inside the transaction that several statements would share.
        execute(&open.address, &["VACUUM (ANALYZE)", "CHECKPOINT"]).await.map(drop)
    }

    /// The statements that cost PostgreSQL most so far, a line each.
    pub(crate) async fn profile(&self) -> Result<Vec<String>> {
        let Place::Server(cluster) = self else { return Ok(Vec::new()) };
        execute(&cluster.url(), &[PROFILE]).await
    }
}

const PROFILE: &str = "SELECT format('%s ms in %s calls, %s rows, %s KiB of log: %s', round(total_exec_time), calls, \
    rows, round(wal_bytes / 1024), left(regexp_replace(query, '\\s+', ' ', 'g'), 150)) \
    FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 20";

/// Runs statements one after the other; the first column of what they return.
async fn execute(address: &str, statements: &[&str]) -> Result<Vec<String>> {
    let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await?;
    let work = async {
        let mut column = Vec::new();
        for statement in statements {
            for message in client.simple_query(statement).await? {
                if let SimpleQueryMessage::Row(row) = message {
                    column.push(row.get(0).unwrap_or_default().to_owned());
                }
            }
        }
        drop(client);
        Ok::<_, tokio_postgres::Error>(column)
    };
    let (done, _) = tokio::join!(work, connection);
    Ok(done?)
}

/// A store in use.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) owner: OwnerId,
    address: String,
}
