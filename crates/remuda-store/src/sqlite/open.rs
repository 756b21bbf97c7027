//! Opening a file: lock, settings, migrations, identity.

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
    connection.execute_batch("BEGIN IMMEDIATE").map_err(explain)?;
    let done = seal_all(connection, secrets, envelope);
    connection.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).map_err(explain)?;
    done?;
    installation.cluster_key = key;
    Ok(installation)
}

/// Keeps the key between servers, if it is new, and seals what was written since the last start without being sealed.
fn seal_all(connection: &Connection, secrets: &Keyring, envelope: Option<Vec<u8>>) -> Result<()> {
    if let Some(envelope) = envelope {
        let sql = "INSERT INTO sealed_installation (one, cluster_key) VALUES (1, ?) \
                   ON CONFLICT DO UPDATE SET cluster_key = excluded.cluster_key";
        connection.execute(sql, (envelope,)).map_err(explain)?;
    }
    seal_before(connection, secrets)
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
/// went back to it for a while.
fn seal_before(connection: &Connection, secrets: &Keyring) -> Result<()> {
    let number = |sql| connection.query_row(sql, (), |row| row.get::<_, Option<i64>>(0)).map_err(explain);
    let sealed_to = number("SELECT sealed_to FROM sealed_installation")?;
    let Some(last) = number("SELECT max(no) FROM input_row")? else { return Ok(()) };
    let (mut after, mut count) = (sealed_to.unwrap_or(i64::MIN), 0);
    // One at a time: each may be as long as a request. What is in pieces was sealed before it was cut.
    let sql = "SELECT input_row.no, input_row.extra, task.id, task.finished_at IS NULL FROM input_row \
               JOIN task ON task.no = input_row.no WHERE input_row.extra IS NOT NULL AND input_row.no > ? \
               ORDER BY input_row.no LIMIT 1";
    let mut statement = connection.prepare(sql).map_err(explain)?;
    loop {
        let read = |row: &rusqlite::Row<'_>| {
            let id = TaskId(Uuid::from_bytes(row.get(2)?));
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, id, row.get::<_, bool>(3)?))
        };
        let next = statement.query_row((after,), read).optional().map_err(explain)?;
        let Some((no, extra, id, unfinished)) = next else { break };
        after = no;
        let Some((extra, envelope)) = secrets.seal_stored(id, &extra)? else { continue };
        connection.execute("UPDATE input_row SET extra = ? WHERE no = ?", (extra, no)).map_err(explain)?;
        if unfinished {
            let sql = "INSERT OR REPLACE INTO secret (no, sealed) VALUES (?, ?)";
            connection.execute(sql, (no, envelope)).map_err(explain)?;
        }
        count += 1;
    }
    connection.execute("UPDATE sealed_installation SET sealed_to = ?", (last,)).map_err(explain)?;
    if count > 0 {
        tracing::info!(tasks = count, "sealed what an earlier release had kept in plain text");
    }
    Ok(())
}
