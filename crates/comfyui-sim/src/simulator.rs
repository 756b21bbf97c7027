//! The handle of one simulator.

use crate::config::{Profile, SimConfig};
use crate::faults::{Faults, ProcessFault};
use crate::host::{Command, Deed, Host};
use crate::stats::{Stats, Timeline};
use crate::supervisor::{Condition, Supervisor};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Why a simulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No port could be had.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address that was asked for.
        addr: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The folders could not be made.
    #[error("cannot prepare the folder {}: {source}", .dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The configured frontend has no `index.html`.
    #[error("{} holds no frontend: there is no index.html in it", .0.display())]
    Frontend(PathBuf),
}

/// A running ComfyUI that is none.
///
/// Dropping it stops it; [`shutdown`](Self::shutdown) also waits until nothing of it is left.
///
/// ```
/// use comfyui_sim::{SimConfig, Simulator, faults::Fault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Simulator::start(SimConfig::default()).await?;
/// let answer = reqwest::get(format!("{}/system_stats", sim.url())).await?;
/// assert_eq!(answer.headers()["server"], "Python/3.11 aiohttp/3.14.5");
///
/// sim.faults().add(Fault::error(500).on("GET /queue").times(1));
/// let queue = format!("{}/queue", sim.url());
/// assert_eq!(reqwest::get(&queue).await?.status(), 500);
/// assert_eq!(reqwest::get(&queue).await?.status(), 200);
/// sim.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Simulator {
    host: Arc<Host>,
    stop: CancellationToken,
    condition: watch::Receiver<Condition>,
    /// Goes with the simulator.
    temporary: Option<tempfile::TempDir>,
}

impl Simulator {
    /// Starts one on a free port of 127.0.0.1.
    pub async fn start(config: SimConfig) -> Result<Self, StartError> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(addr).await.map_err(|source| StartError::Listen { addr, source })?;
        Self::start_on(listener, config).await
    }

    /// Starts one on a port of the caller's choice.
    pub async fn start_on(listener: TcpListener, config: SimConfig) -> Result<Self, StartError> {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let addr = listener.local_addr().map_err(|source| StartError::Listen { addr: nowhere, source })?;
        if let Some(frontend) = &config.frontend
            && !frontend.join("index.html").is_file()
        {
            return Err(StartError::Frontend(frontend.clone()));
        }
        let (base_dir, temporary) = base_dir(&config)?;
        let (commands, receiver) = mpsc::channel(16);
        let host = Arc::new(Host::new(addr, base_dir, config, commands));
        host.start_life().map_err(|source| StartError::Folder { dir: host.base_dir.clone(), source })?;
        let (condition, watched) = watch::channel(Condition::Up);
        let stop = CancellationToken::new();
        let supervisor = Supervisor::new(host.clone(), listener, receiver, condition, stop.clone());
        host.tasks.spawn(supervisor.run());
        Ok(Self { host, stop, condition: watched, temporary })
    }

    /// Where it answers, such as `http://127.0.0.1:45123`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.host.addr)
    }

    /// The address behind [`url`](Self::url). It stays the same through restarts.
    pub fn addr(&self) -> SocketAddr {
        self.host.addr
    }

    /// The folder that holds `input`, `output`, `temp` and `user`.
    pub fn base_dir(&self) -> &Path {
        &self.host.base_dir
    }

    /// What was executed so far, all lives together.
    pub fn stats(&self) -> Stats {
        self.host.executions.snapshot()
    }

    /// When the latest executions were, all lives together.
    pub fn timeline(&self) -> Timeline {
        self.host.executions.timeline()
    }

    /// The faults, to add, list and remove.
    pub fn faults(&self) -> Faults {
        self.host.faults.clone()
    }

    /// Whether it is up, and if not, how it is down.
    pub fn condition(&self) -> Condition {
        *self.condition.borrow()
    }

    /// Waits until it is in a certain condition; returns at once when it is, and when it has been shut down.
    pub async fn wait_for(&self, wanted: Condition) {
        let mut condition = self.condition.clone();
        // An error means that the supervisor is gone, and nothing will change any more.
        let _ = condition.wait_for(|now| *now == wanted || *now == Condition::Stopped).await;
    }

    /// Ends the process and starts it again: queue, history, counter, cache and temp files are gone, input and
    /// output files stay. Returns when it answers again.
    pub async fn restart(&self) {
        self.restart_after(Duration::ZERO).await;
    }

    /// As [`restart`](Self::restart), with the port closed for some time in between.
    pub async fn restart_after(&self, down: Duration) {
        self.ask(Deed::Fault(ProcessFault::Restart { down })).await;
    }

    /// Restarts as another version of ComfyUI.
    pub async fn restart_as(&self, profile: Profile) {
        self.ask(Deed::Fault(ProcessFault::Version(profile))).await;
    }

    /// Kills the process: all connections are reset, the port refuses new ones, until [`revive`](Self::revive).
    pub async fn crash(&self) {
        self.ask(Deed::Fault(ProcessFault::Crash { down: None })).await;
    }

    /// Starts the process after a crash, or opens the port again. Changes nothing when all is well.
    pub async fn revive(&self) {
        self.ask(Deed::Revive).await;
    }

    /// A fresh start: no faults, counters at zero, and everything that a restart forgets. Files stay.
    pub async fn reset(&self) {
        self.ask(Deed::Reset).await;
    }

    /// Stops everything and waits for it. Temporary folders are removed.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        self.host.tasks.close();
        self.host.tasks.wait().await;
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = temporary.close()
        {
            tracing::debug!(%error, "temporary folder not removed");
        }
    }

    async fn ask(&self, deed: Deed) {
        let (done, finished) = oneshot::channel();
        let command = Command { deed, done: Some(done) };
        if self.host.commands.send(command).await.is_ok() {
            // An error means that the simulator stopped first.
            let _ = finished.await;
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop.cancel();
        self.host.tasks.close();
    }
}

fn base_dir(config: &SimConfig) -> Result<(PathBuf, Option<tempfile::TempDir>), StartError> {
    let failed = |dir: &Path| {
        let dir = dir.to_owned();
        move |source| StartError::Folder { dir, source }
    };
    match &config.base_dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(failed(dir))?;
            // Paths in answers and checks of names need it absolute.
            Ok((dir.canonicalize().map_err(failed(dir))?, None))
        }
        None => {
            let system = std::env::temp_dir();
            let temporary =
                tempfile::Builder::new().prefix("comfyui-sim-").tempdir().map_err(failed(&system))?;
            let dir = temporary.path().canonicalize().map_err(failed(&system))?;
            Ok((dir, Some(temporary)))
        }
    }
}
