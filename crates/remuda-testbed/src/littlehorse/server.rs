//! One LittleHorse server and its Kafka, both private.

use super::error::Error;
use super::install::Install;
use super::properties::{self, KafkaPorts, ServerPorts};
use super::workflows::Workflows;
use crate::keeper::Keeper;
use crate::net::free_port;
use crate::process::Program;
use crate::wait;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// How long each of the two may take to come up, on a machine that does a lot besides.
const READY: Duration = Duration::from_secs(300);
/// How long an orderly end may take.
const ENDED: Duration = Duration::from_secs(120);
/// Kafka wants one; nobody else is in this cluster.
const CLUSTER_ID: &str = "MkU3OEVBNTcwNTJENDM2Qg";
/// Memory in megabytes.
const KAFKA_HEAP: u32 = 256;
const SERVER_HEAP: u32 = 384;

/// A LittleHorse cluster of one server, with everything in a temporary folder.
///
/// Its processes are killed and its folder is removed when the value is dropped, and when this process ends in whatever
/// way. Kafka listens on 127.0.0.1 only; the server cannot be told to, and listens everywhere on its three ports.
///
/// ```no_run
/// # async fn example() -> Result<(), remuda_testbed::littlehorse::Error> {
/// use remuda_testbed::littlehorse::{Input, LittleHorseServer, Workflow};
/// use std::time::Duration;
///
/// let mut server = LittleHorseServer::start().await?;
/// let workflows = server.workflows();
/// // … a worker registers the TaskDef `greet` at `server.port()`, then:
/// let greet = Workflow::of("greet", Input::Text);
/// workflows.put(&greet).await?;
/// workflows.run(&greet, "run-1", "Ada").await?;
/// server.restart().await?;
/// let run = workflows.ended("run-1", Duration::from_secs(30)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct LittleHorseServer {
    install: Install,
    folder: PathBuf,
    port: u16,
    ready_in: Duration,
    // In this order they go: the server first, the folder last.
    server: Option<Program>,
    kafka: Program,
    _keeper: Keeper,
}

impl LittleHorseServer {
    /// Starts Kafka and the server: 11 to 13 seconds, five of which the server sleeps.
    pub async fn start() -> Result<LittleHorseServer, Error> {
        let started = Instant::now();
        let install = Install::find()?;
        let folder = tempfile::Builder::new().prefix("remuda-lh-").tempdir();
        let folder = folder.map_err(Error::io("make a folder"))?;
        let keeper = Keeper::new("KILL", Some(folder.path())).map_err(Error::io("start a keeper"))?;
        // From here on the keeper removes it.
        let folder = folder.keep();
        let port = || free_port().map_err(Error::io("find a free port"));
        let kafka_ports = KafkaPorts { broker: port()?, controller: port()? };
        let ports = ServerPorts { api: port()?, internal: port()?, health: port()? };
        write(&folder.join(LOG), properties::LOG)?;
        write(&folder.join(KAFKA), &properties::kafka(kafka_ports, &folder.join("kafka")))?;
        write(&folder.join(SERVER), &properties::server(kafka_ports, ports, &folder.join("state")))?;

        format(&install, &folder).await?;
        let mut command = install.program("kafka.Kafka", KAFKA_HEAP, &folder.join(LOG));
        command.arg(folder.join(KAFKA));
        let kafka = Program::spawn(command)?;
        let mut cluster = LittleHorseServer {
            install,
            folder,
            port: ports.api,
            ready_in: Duration::ZERO,
            server: None,
            kafka,
            _keeper: keeper,
        };
        cluster.kafka_answers(kafka_ports.broker).await?;
        cluster.start_again().await?;
        cluster.ready_in = started.elapsed();
        Ok(cluster)
    }

    /// The port for clients and workers on 127.0.0.1. It stays the same through restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How long it took from nothing until the server answered.
    pub fn ready_in(&self) -> Duration {
        self.ready_in
    }

    /// For making workflows and looking at their runs, as the tenant `default`.
    pub fn workflows(&self) -> Workflows {
        Workflows::at(self.port)
    }

    /// Asks the server alone to end, and waits until it has. Kafka and the data stay.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.term()?;
        server.wait_exit(ENDED).await?;
        Ok(())
    }

    /// Kills the server alone. Kafka, the data, and what the server had promised stay.
    pub async fn kill(&mut self) -> Result<(), Error> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.kill_9()?;
        server.wait_exit(ENDED).await?;
        Ok(())
    }

    /// Stops the server and starts it again: about five seconds.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        self.start_again().await
    }

    /// Starts a stopped or killed server on the same port and data, and waits until it works; does nothing if one runs.
    /// After a kill this takes six seconds or more: that is how long Kafka waits for the dead one.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        if let Some(server) = &mut self.server
            && server.exited()?.is_none()
        {
            return Ok(());
        }
        let mut command = self.install.program("io.littlehorse.App", SERVER_HEAP, &self.folder.join(LOG));
        command.arg(self.folder.join(SERVER));
        let server = self.server.insert(Program::spawn(command)?);
        let workflows = Workflows::at(self.port);
        let works = wait::until("the LittleHorse server to work", READY, async || {
            if let Ok(Some(status)) = server.exited() {
                return Ok(Err(format!("{status}:{}", tail(server))));
            }
            // Its version it tells long before it can do anything.
            workflows.probe().await.map(Ok)
        });
        works.await?.map_err(|said| Error::Program { program: "the LittleHorse server", said })
    }

    async fn kafka_answers(&mut self, port: u16) -> Result<(), Error> {
        let kafka = &mut self.kafka;
        let answers = wait::until("Kafka to answer", READY, async || {
            if let Ok(Some(status)) = kafka.exited() {
                return Ok(Err(format!("{status}:{}", tail(kafka))));
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map(|_| Ok(()))
        });
        answers.await?.map_err(|said| Error::Program { program: "Kafka", said })
    }
}

/// Files below the folder.
const LOG: &str = "log4j2.properties";
const KAFKA: &str = "kafka.properties";
const SERVER: &str = "server.properties";

fn write(file: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(file, text).map_err(Error::io(format!("write {}", file.display())))
}

/// Kafka refuses a folder that was not made for it.
async fn format(install: &Install, folder: &Path) -> Result<(), Error> {
    let mut command = install.program("kafka.tools.StorageTool", KAFKA_HEAP, &folder.join(LOG));
    command.args(["format", "--cluster-id", CLUSTER_ID, "--config"]).arg(folder.join(KAFKA));
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await;
    let output = output.map_err(Error::io("start java"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Err(Error::Program { program: "the formatting of Kafka's folder", said })
}

/// The end of what a program has printed.
fn tail(program: &Program) -> String {
    let lines = program.output();
    let from = lines.len().saturating_sub(20);
    lines[from..].iter().map(|line| format!("\n  {line}")).collect()
}
