//! A private PostgreSQL cluster that can be killed, restarted and frozen.

use super::error::Error;
use super::install::Install;
use super::server::Server;
use crate::keeper::Keeper;
use crate::net::free_port;
use crate::signal;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to come up; recovery after a crash included.
const READY: Duration = Duration::from_secs(240);
/// How long an immediate stop may take before it is forced.
const STOPPED: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// How often another port is tried when somebody took ours in between.
const PORTS: usize = 5;

/// What kind of cluster to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether a commit survives a crash of the machine, as in production; without it tests are faster.
    /// A crash of the server alone ([`Cluster::stop_hard`]) loses commits only where this is off.
    pub durable: bool,
    /// How many clients the server takes at once.
    pub max_connections: u16,
    /// The port on 127.0.0.1; a free one if none is given.
    pub port: Option<u16>,
}

impl Default for Options {
    fn default() -> Self {
        Options { durable: false, max_connections: 200, port: None }
    }
}

/// A PostgreSQL server of its own, with its data in a temporary folder.
///
/// It is killed and its folder removed when the value is dropped, also by a panic, and when the process ends in any
/// other way.
///
/// ```no_run
/// # use remuda_testbed::postgres::{Cluster, Options};
/// # use std::time::Duration;
/// # async fn example() -> Result<(), remuda_testbed::postgres::Error> {
/// let mut cluster = Cluster::start(Options { durable: true, ..Options::default() }).await?;
/// let url = cluster.database().await?;
/// // … connect to it, commit something, then:
/// cluster.stop_hard().await?;
/// cluster.start_again().await?;
/// // … it is still there.
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Cluster {
    install: Install,
    options: Options,
    folder: PathBuf,
    port: u16,
    server: Server,
    postmaster: Option<Child>,
    keeper: Keeper,
}

impl Cluster {
    /// Makes a cluster and starts it: one to two seconds.
    pub async fn start(options: Options) -> Result<Cluster, Error> {
        let install = Install::find()?;
        let folder =
            tempfile::Builder::new().prefix("remuda-pg-").tempdir().map_err(Error::io("make a folder"))?;
        let keeper = Keeper::new("QUIT", Some(folder.path())).map_err(Error::io("start a keeper"))?;
        // From here on the keeper removes it.
        let folder = folder.keep();
        install.account().own(&folder)?;
        let port = choose(&options)?;
        let server = Server::at(&address(port))?;
        let mut cluster = Cluster { install, options, folder, port, server, postmaster: None, keeper };
        cluster.make_data().await?;
        cluster.start_first().await?;
        Ok(cluster)
    }

    /// The address of the maintenance database `postgres`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server alone, to be handed to those who need databases and may not stop it.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The address of a fresh, empty database.
    pub async fn database(&self) -> Result<String, Error> {
        self.server.database().await
    }

    /// The number of the server's first process, the parent of all its others.
    pub fn process_id(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Child::id)
    }

    /// Whether the server's process is there.
    pub fn is_running(&mut self) -> bool {
        let runs = self.postmaster.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !runs && self.postmaster.take().is_some() {
            // It has ended by itself, and its number may belong to another from now on.
            let _ = self.keeper.watch(0);
        }
        runs
    }

    /// Stops the server at once, as a crash would: no checkpoint, no good-bye to clients. The data stay.
    /// Does nothing if it does not run.
    pub async fn stop_hard(&mut self) -> Result<(), Error> {
        self.thaw()?;
        let Some(child) = self.postmaster.as_mut() else { return Ok(()) };
        let stop = Error::io("stop postgresql");
        let failed = match end(child).await {
            Ok(()) => self.keeper.watch(0).err(),
            Err(error) => Some(error),
        };
        self.postmaster = None;
        failed.map_or(Ok(()), |error| Err(stop(error)))
    }

    /// Starts a stopped server again on the same port and data; does nothing if it runs.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        if self.is_running() {
            return Ok(());
        }
        self.launch()?;
        self.ready().await
    }

    /// Stops the server as [`stop_hard`](Cluster::stop_hard) does, and starts it again after a while.
    pub async fn stop_for(&mut self, time: Duration) -> Result<(), Error> {
        self.stop_hard().await?;
        tokio::time::sleep(time).await;
        self.start_again().await
    }

    /// Stops the server as [`stop_hard`](Cluster::stop_hard) does, and lets it take over from itself, as a standby does from the
    /// server before it: it writes on another timeline from then on.
    pub async fn take_over(&mut self) -> Result<(), Error> {
        self.stop_hard().await?;
        let signal = self.data().join("standby.signal");
        std::fs::write(&signal, b"").map_err(Error::io("make a standby"))?;
        self.install.account().own(&signal)?;
        self.start_again().await?;
        self.server.execute("promote a standby", "SELECT pg_promote()").await
    }

    /// Stops the server's processes in their tracks: connections stay open and nothing answers any more.
    pub fn freeze(&self) -> Result<(), Error> {
        let Some(postmaster) = self.process_id() else { return Ok(()) };
        // The postmaster first: once it is stopped it starts no more children.
        send(postmaster, Signal::SIGSTOP)?;
        send_children(postmaster, Signal::SIGSTOP)
    }

    /// Lets frozen processes go on.
    pub fn thaw(&self) -> Result<(), Error> {
        let Some(postmaster) = self.process_id() else { return Ok(()) };
        // The postmaster last: while it buries children that have ended, the list of them skips others.
        send(postmaster, Signal::SIGSTOP)?;
        let sent = send_children(postmaster, Signal::SIGCONT);
        send(postmaster, Signal::SIGCONT)?;
        sent
    }

    async fn make_data(&self) -> Result<(), Error> {
        let mut initdb = self.install.program("initdb", &self.folder);
        initdb.arg("-D").arg(self.data());
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let output = tokio::process::Command::from(initdb).kill_on_drop(true).output().await;
        let output = output.map_err(Error::io("start initdb"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Program { program: "initdb", said });
        }
        Ok(())
    }

    /// Between choosing a port and taking it somebody else can take it.
    async fn start_first(&mut self) -> Result<(), Error> {
        for _ in 1..PORTS {
            self.launch()?;
            match self.ready().await {
                Err(Error::Program { said, .. })
                    if self.options.port.is_none() && said.contains("could not bind") =>
                {
                    self.port = choose(&self.options)?;
                    self.server = Server::at(&address(self.port))?;
                }
                other => return other,
            }
        }
        self.launch()?;
        self.ready().await
    }

    fn launch(&mut self) -> Result<(), Error> {
        let log = self.folder.join("log");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(Error::io("open a log"))?;
        let errors = log.try_clone().map_err(Error::io("open a log"))?;
        let mut command = self.install.program("postgres", &self.folder);
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        for setting in self.settings() {
            command.args(["-c", &setting]);
        }
        let child = command.stdout(Stdio::from(log)).stderr(Stdio::from(errors)).spawn();
        let child = self.postmaster.insert(child.map_err(Error::io("start postgresql"))?);
        self.keeper.watch(i64::from(child.id())).map_err(Error::io("tell the keeper"))
    }

    fn settings(&self) -> Vec<String> {
        // Only TCP: the path of a socket could be too long for one.
        let mut settings =
            vec!["listen_addresses=127.0.0.1".to_owned(), "unix_socket_directories=".to_owned()];
        settings.push(format!("max_connections={}", self.options.max_connections));
        if !self.options.durable {
            let fast = ["fsync=off", "synchronous_commit=off", "full_page_writes=off"];
            settings.extend(fast.map(str::to_owned));
        }
        settings
    }

    async fn ready(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + READY;
        loop {
            let last = match self.server.execute("connect", "SELECT 1").await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !self.is_running() {
                return Err(Error::Program { program: "postgresql", said: tail(&self.folder.join("log")) });
            }
            if Instant::now() > deadline {
                return Err(Error::NotReady {
                    program: "postgresql",
                    folder: self.folder.clone(),
                    seconds: READY.as_secs(),
                    last: last.to_string(),
                    log: tail(&self.folder.join("log")),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.release();
        if let Some(mut child) = self.postmaster.take() {
            // The keeper has it killed if it does not end by itself.
            let _ = child.wait();
        }
    }
}

fn choose(options: &Options) -> Result<u16, Error> {
    options.port.map_or_else(free_port, Ok).map_err(Error::io("find a free port"))
}

fn address(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

fn send(pid: u32, which: Signal) -> Result<(), Error> {
    signal::send(pid, which).map_err(Error::io("signal postgresql"))
}

fn send_children(postmaster: u32, which: Signal) -> Result<(), Error> {
    let children = signal::children(postmaster).map_err(Error::io("list the processes of postgresql"))?;
    children.into_iter().try_for_each(|child| send(child, which))
}

/// `SIGQUIT` is PostgreSQL's immediate shutdown: the postmaster ends its children and goes.
async fn end(child: &mut Child) -> std::io::Result<()> {
    signal::send(child.id(), Signal::SIGQUIT)?;
    let deadline = Instant::now() + STOPPED;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// The end of a log, for an error message.
pub(super) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
