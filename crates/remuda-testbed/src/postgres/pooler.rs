//! A transaction pooler before a server, as hosted databases have one.

use super::cluster::tail;
use super::error::Error;
use super::install::Account;
use super::server::Server;
use crate::keeper::Keeper;
use crate::net::{AddressError, at_port, free_port, target};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);
/// Few, so that clients really share server connections.
const SERVER_CONNECTIONS: u16 = 4;
/// The first version that can follow named prepared statements; from 1.24 on it does so unless told not to.
const FOLLOWS_STATEMENTS: (u32, u32) = (1, 21);

/// PgBouncer in transaction mode, with no support for named prepared statements.
///
/// Each transaction may run on another server connection, so what belongs to a session does not hold: `LISTEN`, advisory
/// locks of a session, `SET` without `LOCAL`, temporary tables, and statements prepared by name. Software that works
/// through this one works behind the poolers of hosted databases.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use remuda_testbed::postgres::{Cluster, Pooler};
///
/// let server = Cluster::shared().await?;
/// let pooler = Pooler::start(server).await?;
/// let url = pooler.through(&server.database().await?)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    process: Child,
    keeper: Keeper,
}

impl Pooler {
    /// Starts a pooler for all databases of a server.
    pub async fn start(server: &Server) -> Result<Pooler, Error> {
        let program = find().ok_or(Error::Missing { program: "pgbouncer", package: "pgbouncer" })?;
        let account = Account::find()?;
        let folder = tempfile::Builder::new()
            .prefix("remuda-pooler-")
            .tempdir()
            .map_err(Error::io("make a folder"))?;
        // It has nothing to lose. Other signals mean other things from version to version, and whoever starts the tests in the
        // background may have them ignored.
        let mut keeper = Keeper::new("KILL", Some(folder.path())).map_err(Error::io("start a keeper"))?;
        // From here on the keeper removes it.
        let folder = folder.keep();
        account.own(&folder)?;

        let port = free_port().map_err(Error::io("find a free port"))?;
        let settings = settings(&server.url(), port, version(&program).await?)?;
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, settings).map_err(Error::io("write the settings of pgbouncer"))?;
        let log = folder.join("log");
        let output = std::fs::File::create(&log).map_err(Error::io("open a log"))?;

        let mut command = account.command(&program, &folder);
        command.arg(&file).stdout(Stdio::null()).stderr(Stdio::from(output));
        let process = command.spawn().map_err(Error::io("start pgbouncer"))?;
        let watched = keeper.watch(i64::from(process.id()));
        let mut pooler = Pooler { port, process, keeper };
        watched.map_err(Error::io("tell the keeper"))?;
        let through = pooler.through(&server.url()).map_err(address)?;
        pooler.ready(&Server::at(&through)?, &folder, &log).await?;
        Ok(pooler)
    }

    /// The address of a database of the server, led through the pooler.
    pub fn through(&self, url: &str) -> Result<String, AddressError> {
        at_port(url, self.port)
    }

    async fn ready(&mut self, through: &Server, folder: &Path, log: &Path) -> Result<(), Error> {
        let deadline = Instant::now() + READY;
        while let Err(last) = through.execute("connect", "SELECT 1").await {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return Err(Error::Program { program: "pgbouncer", said: tail(log) });
            }
            if Instant::now() > deadline {
                return Err(Error::NotReady {
                    program: "pgbouncer",
                    folder: folder.to_owned(),
                    seconds: READY.as_secs(),
                    last: last.to_string(),
                    log: tail(log),
                });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.keeper.release();
        // The keeper has it killed if it does not end by itself.
        let _ = self.process.wait();
    }
}

fn address(error: AddressError) -> Error {
    Error::Address { url: error.url, why: error.why }
}

/// Debian keeps it where only root's PATH leads.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("pgbouncer")).find(|file| file.is_file())
}

/// `(1, 18)` of `PgBouncer 1.18.0`.
async fn version(program: &Path) -> Result<(u32, u32), Error> {
    let output = tokio::process::Command::new(program).arg("--version").kill_on_drop(true).output().await;
    let output = output.map_err(Error::io("ask pgbouncer for its version"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    parse_version(&said).ok_or(Error::Program { program: "pgbouncer --version", said })
}

fn parse_version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.lines().next()?.split_whitespace().last()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn settings(server: &str, port: u16, version: (u32, u32)) -> Result<String, Error> {
    let target = target(server).map_err(address)?;
    let (host, server_port) = target.rsplit_once(':').unwrap_or((&target, "5432"));
    let config: tokio_postgres::Config = server.parse().map_err(|error: tokio_postgres::Error| {
        Error::Address { url: server.to_owned(), why: error.to_string() }
    })?;
    let user = config.get_user().unwrap_or("postgres");
    let password =
        config.get_password().map(|word| format!(" password={}", quoted(&String::from_utf8_lossy(word))));
    let password = password.unwrap_or_default();
    let statements = if version >= FOLLOWS_STATEMENTS { "max_prepared_statements = 0\n" } else { "" };
    Ok(format!(
        "[databases]\n\
         * = host={host} port={server_port} user={}{password}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = {SERVER_CONNECTIONS}\n\
         max_client_conn = 500\n\
         ignore_startup_parameters = extra_float_digits\n\
         {statements}",
        quoted(user)
    ))
}

/// A value in one of PgBouncer's connection strings.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_followed_by_no_version() {
        assert_eq!(parse_version("PgBouncer 1.18.0\nlibevent 2.1.12-stable\n"), Some((1, 18)));
        let of = |version| settings("postgres://me:it's@db:7000/x", 1, version).unwrap();
        assert!(of((1, 24)).contains("max_prepared_statements = 0"));
        // Earlier ones do not know the setting, and end on an unknown one.
        assert!(!of((1, 18)).contains("max_prepared"));
        assert!(
            of((1, 18)).contains("* = host=db port=7000 user='me' password='it''s'\n"),
            "{}",
            of((1, 18))
        );
    }
}
