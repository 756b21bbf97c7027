//! Opening a file: lock, settings, migrations, identity.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use rand::Rng as _;
use remuda_core::{Installation, Sha256, TaskId};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use uuid::Uuid;

use super::fault::explain;
use super::private;
use crate::keyring::ClusterKey;
use crate::{Error, Keyring, Result};

/// Marks a SQLite file as ours: "rmda".
const APPLICATION_ID: i32 = 0x726d_6461;

/// How long a statement waits when a foreign program holds the file.
const BUSY: Duration = Duration::from_secs(5);

/// How many inputs of an earlier release are looked at for secrets in one transaction.
const SEALED_AT_ONCE: usize = 10_000;

/// A change of the schema. A release only adds, and takes away one release later, so that the program before can go
/// on with the file; `min_binary` says since when it could not.
struct Migration {
    version: i64,
    min_binary: i64,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, min_binary: 1, sql: include_str!("migrations/0001.sql") },
    Migration { version: 2, min_binary: 1, sql: include_str!("migrations/0002.sql") },
    Migration { version: 3, min_binary: 1, sql: include_str!("migrations/0003.sql") },
    Migration { version: 4, min_binary: 1, sql: include_str!("migrations/0004.sql") },
    Migration { version: 5, min_binary: 1, sql: include_str!("migrations/0005.sql") },
    Migration { version: 6, min_binary: 1, sql: include_str!("migrations/0006.sql") },
    Migration { version: 7, min_binary: 1, sql: include_str!("migrations/0007.sql") },
];

/// The newest schema that this program knows.
const KNOWN: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The connection that writes, on a file with the newest schema.
pub(super) fn writer(path: &Path, secrets: &Keyring) -> Result<(Connection, Installation)> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    private::store(path).map_err(|error| Error::Unavailable {
        message: format!("could not open {}: {error}", path.display()),
        source: Some(Box::new(error)),
    })?;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| cannot_open(path, error))?;
    let prepared = prepare(&connection, path, secrets);
    prepared.map(|installation| (connection, installation))
}

/// A connection that reads.
pub(super) fn reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| cannot_open(path, error))?;
    let settings = || {
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.pragma_update(None, "cache_size", -2048)
    };
    settings().map_err(explain)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn cannot_open(path: &Path, error: rusqlite::Error) -> Error {
    match explain(error) {
        Error::Unavailable { message, source } => {
            Error::Unavailable { message: format!("could not open {}: {message}", path.display()), source }
        }
        other => other,
    }
}

fn prepare(connection: &Connection, path: &Path, secrets: &Keyring) -> Result<Installation> {
    let not_ours = |error| match explain(error) {
        Error::Corrupt(message) => {
            Error::Corrupt(format!("{} is not a Remuda store: {message}", path.display()))
        }
        other => other,
    };
    let tables: i64 = connection
        .busy_timeout(BUSY)
        .and_then(|()| connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0)))
        .map_err(not_ours)?;
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(not_ours)?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(Error::Corrupt(format!("{} is a SQLite file of another program", path.display())));
    }
    configure(connection, tables == 0).map_err(explain)?;
    migrate(connection)?;
    let mut installation = installation(connection).map_err(explain)?;
    let sealed: Option<Vec<u8>> = connection
        .query_row("SELECT cluster_key FROM sealed_installation", (), |row| row.get(0))
        .optional()
        .map_err(explain)?;
    let (key, envelope) = match secrets.cluster_key(installation.id, sealed.as_deref())? {
        ClusterKey::Plain => return Ok(installation),
        ClusterKey::Known(key) => (key, None),
        ClusterKey::Seal(key, envelope) => (key, Some(envelope)),
    };
    if let Some(envelope) = envelope {
        let sql = "INSERT INTO sealed_installation (one, cluster_key) VALUES (1, ?) \
                   ON CONFLICT DO UPDATE SET cluster_key = excluded.cluster_key";
        connection.execute(sql, (envelope,)).map_err(explain)?;
    }
    seal_before(connection, secrets)?;
    installation.cluster_key = key;
    Ok(installation)
}

fn configure(connection: &Connection, new: bool) -> rusqlite::Result<()> {
    if new {
        // All take effect only before the first table.
        connection.pragma_update(None, "page_size", 4096)?;
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    // Only for large rows: otherwise the writer copies the log back before, between two transactions.
    connection.pragma_update(None, "wal_autocheckpoint", 6000)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // What is deleted is overwritten where that costs no further page: sealed secrets above all.
    connection.pragma_update(None, "secure_delete", "FAST")?;
    connection.pragma_update(None, "cache_size", -16384)?;
    // Rows that belong together are written and removed together by the code; checking it costs a look each time.
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(())
}

fn migrate(connection: &Connection) -> Result<()> {
    // One transaction: a program that is killed in the middle leaves the schema that was.
    connection.execute_batch("BEGIN IMMEDIATE").map_err(explain)?;
    let done = migrate_within(connection);
    connection.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).map_err(explain)?;
    done
}

fn migrate_within(connection: &Connection) -> Result<()> {
    let schema =
        "CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL, min_binary INTEGER NOT NULL) STRICT";
    connection.execute_batch(schema).map_err(explain)?;
    let found: Option<(i64, i64)> = connection
        .query_row("SELECT version, min_binary FROM schema", (), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
        .map_err(explain)?;
    let (version, needs) = found.unwrap_or((0, 0));
    if needs > KNOWN {
        return Err(Error::TooNew { found: version, needs, known: KNOWN });
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > version) {
        connection.execute_batch(migration.sql).map_err(explain)?;
        connection.execute_batch("DELETE FROM schema").map_err(explain)?;
        let params = (migration.version, migration.min_binary);
        connection
            .execute("INSERT INTO schema (version, min_binary) VALUES (?, ?)", params)
            .map_err(explain)?;
    }
    Ok(())
}

fn installation(connection: &Connection) -> rusqlite::Result<Installation> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Installation { id: Uuid::from_bytes(row.get(0)?), cluster_key: row.get(1)? })
    };
    let select = "SELECT id, cluster_key FROM installation";
    if let Some(known) = connection.query_row(select, (), read).optional()? {
        return Ok(known);
    }
    let mut random = [0_u8; 32];
    rand::rng().fill_bytes(&mut random);
    let new = Installation { id: Uuid::new_v4(), cluster_key: Sha256(random).to_string() };
    let params = (new.id.as_bytes(), &new.cluster_key);
    connection.execute("INSERT INTO installation (id, cluster_key) VALUES (?, ?)", params)?;
    Ok(new)
}

/// Seals what the release before kept in plain text: before the store had its first secret key, or since, when somebody
/// went back to it for a while. A part at a time, so that a start which is broken off has not been in vain.
fn seal_before(connection: &Connection, secrets: &Keyring) -> Result<()> {
    let mut count = 0;
    loop {
        connection.execute_batch("BEGIN IMMEDIATE").map_err(explain)?;
        let done = seal_some(connection, secrets);
        connection.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).map_err(explain)?;
        let (sealed, more) = done?;
        count += sealed;
        if !more {
            break;
        }
    }
    if count > 0 {
        tracing::info!(tasks = count, "sealed what an earlier release had kept in plain text");
    }
    Ok(())
}

/// Looks at some inputs that this release did not write. How many were sealed, and whether there are more.
fn seal_some(connection: &Connection, secrets: &Keyring) -> Result<(usize, bool)> {
    let sealed_to: Option<i64> = connection
        .query_row("SELECT sealed_to FROM sealed_installation", (), |row| row.get(0))
        .map_err(explain)?;
    // One at a time: each may be as long as a request.
    let sql = "SELECT no, extra FROM input_row INDEXED BY input_unsealed \
               WHERE sealed IS NULL AND extra IS NOT NULL AND no > ? ORDER BY no LIMIT 1";
    let mut statement = connection.prepare(sql).map_err(explain)?;
    let (mut after, mut secret) = (sealed_to.unwrap_or(i64::MIN), HashSet::new());
    let mut looked = 0;
    while looked < SEALED_AT_ONCE {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
        let Some((no, extra)) = statement.query_row((after,), read).optional().map_err(explain)? else {
            break;
        };
        (after, looked) = (no, looked + 1);
        // Under any name: it is only asked whether there is something to seal.
        if secrets.seal_stored(TaskId(Uuid::nil()), &extra)?.is_some() {
            secret.insert(no);
        }
    }
    for (no, id, unfinished) in tasks_of(connection, &secret).map_err(explain)? {
        let extra = "SELECT extra FROM input_row WHERE no = ?";
        let extra: String = connection.query_row(extra, (no,), |row| row.get(0)).map_err(explain)?;
        let Some((extra, envelope)) = secrets.seal_stored(id, &extra)? else { continue };
        let sql = "UPDATE input_row SET extra = ?, sealed = 1 WHERE no = ?";
        connection.execute(sql, (extra, no)).map_err(explain)?;
        if unfinished {
            let sql = "INSERT OR REPLACE INTO secret (no, sealed) VALUES (?, ?)";
            connection.execute(sql, (no, envelope)).map_err(explain)?;
        }
    }
    if looked > 0 {
        connection.execute("UPDATE sealed_installation SET sealed_to = ?", (after,)).map_err(explain)?;
    }
    Ok((secret.len(), looked == SEALED_AT_ONCE))
}

/// The tasks with these numbers: number, id, and whether it has not ended. Tasks are not found by their numbers, so all are
/// looked through, once for many.
fn tasks_of(connection: &Connection, numbers: &HashSet<i64>) -> rusqlite::Result<Vec<(i64, TaskId, bool)>> {
    let mut found = Vec::new();
    if numbers.is_empty() {
        return Ok(found);
    }
    let mut statement = connection.prepare("SELECT no, id, finished_at IS NULL FROM task")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let no = row.get(0)?;
        if numbers.contains(&no) {
            found.push((no, TaskId(Uuid::from_bytes(row.get(1)?)), row.get(2)?));
        }
    }
    Ok(found)
}
