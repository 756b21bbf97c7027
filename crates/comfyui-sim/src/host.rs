//! What all parts of one simulator share, and one life of the simulated process.

use crate::config::{Profile, SimConfig};
use crate::engine::{Dirs, Engine};
use crate::faults::{Faults, ProcessFault};
use crate::http::Log;
use crate::hub::Sockets;
use crate::stats::Executions;
use crate::wire::Connections;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What stays the same through restarts and crashes.
#[derive(Debug)]
pub(crate) struct Host {
    /// Where the simulator listens, or would.
    pub(crate) addr: SocketAddr,
    pub(crate) base_dir: PathBuf,
    pub(crate) dirs: Dirs,
    pub(crate) faults: Faults,
    pub(crate) executions: Arc<Executions>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) tasks: TaskTracker,
    pub(crate) commands: mpsc::Sender<Command>,
    config: Mutex<Arc<SimConfig>>,
    life: Mutex<Option<Arc<Life>>>,
    settings: Mutex<()>,
}

/// What the supervisor is asked to do.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) deed: Deed,
    /// Told when it is done, with the time the process is down.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// The deeds themselves.
#[derive(Debug)]
pub(crate) enum Deed {
    /// As a fault would.
    Fault(ProcessFault),
    /// Ends a downtime.
    Revive,
    /// A new life, with counters at zero and no faults.
    Reset,
}

impl Host {
    pub(crate) fn new(
        addr: SocketAddr,
        base_dir: PathBuf,
        config: SimConfig,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        Self {
            addr,
            dirs: Dirs::below(&base_dir),
            base_dir,
            faults: Faults::new(config.seed),
            executions: Arc::default(),
            connections: Arc::default(),
            tasks: TaskTracker::new(),
            commands,
            config: Mutex::new(Arc::new(config)),
            life: Mutex::default(),
            settings: Mutex::default(),
        }
    }

    /// The running process, if there is one.
    pub(crate) fn life(&self) -> Option<Arc<Life>> {
        lock(&self.life).clone()
    }

    /// Held while the file of the settings is read and written.
    pub(crate) fn settings_turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.settings)
    }

    /// Behaves as another version from the next life on.
    pub(crate) fn set_profile(&self, profile: Profile) {
        let mut config = lock(&self.config);
        *config = Arc::new(SimConfig { profile, ..(**config).clone() });
    }

    /// Starts the process: empty queue, empty history, empty temp folder.
    pub(crate) fn start_life(&self) -> io::Result<()> {
        let config = lock(&self.config).clone();
        let dirs = &self.dirs;
        empty_temp(&dirs.temp)?;
        for dir in [&dirs.input, &dirs.output, &dirs.temp, &dirs.user] {
            std::fs::create_dir_all(dir)?;
        }
        let sockets = Arc::new(Sockets::default());
        let (engine, worker) = Engine::start(
            config.clone(),
            dirs.clone(),
            sockets.clone(),
            Arc::new(self.faults.clone()),
            self.executions.clone(),
        );
        let ended = CancellationToken::new();
        self.tasks.spawn(worker);
        self.tasks.spawn(ended.clone().run_until_cancelled_owned(sockets.clone().publish()));
        let log = Log::started(&config, self.addr);
        *lock(&self.life) = Some(Arc::new(Life { config, engine, sockets, ended, log }));
        Ok(())
    }

    /// Ends the process, if there is one. Connections are not touched.
    pub(crate) fn end_life(&self) {
        if let Some(life) = lock(&self.life).take() {
            life.end();
        }
    }
}

/// One ComfyUI process from its start to its end.
pub(crate) struct Life {
    pub(crate) config: Arc<SimConfig>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) ended: CancellationToken,
    pub(crate) log: Log,
}

impl Life {
    /// Stops everything in it.
    pub(crate) fn end(&self) {
        self.engine.stop();
        self.ended.cancel();
    }
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life").field("config", &self.config).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Empties the temp folder, as ComfyUI does when it starts, but only below a folder that a simulator made or took
/// over: `--dir` may name a project of somebody's, with a `temp` of its own.
fn empty_temp(temp: &Path) -> io::Result<()> {
    let marker = temp.with_file_name(".comfyui-sim");
    let holds_files = temp.exists() && std::fs::read_dir(temp)?.next().is_some();
    if holds_files && !marker.exists() {
        let text = format!(
            "{} holds files that no simulator made, and would be emptied; choose another folder",
            temp.display()
        );
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    if temp.exists() {
        std::fs::remove_dir_all(temp)?;
    }
    std::fs::create_dir_all(temp)?;
    std::fs::write(marker, "The simulator empties the folder temp here.\n")
}
