//! The simulator in a process of its own: this program started once more in another role.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use comfyui_sim::{SimConfig, Simulator};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::Failure;

/// First argument of the program in this role.
pub(crate) const ROLE: &str = "--be-the-server";

/// Serves until standard input ends.
pub(crate) async fn run(folder: PathBuf) -> Result<(), Failure> {
    let config = SimConfig {
        base_dir: Some(folder),
        node: Duration::ZERO,
        step: Duration::ZERO,
        ..SimConfig::default()
    };
    let simulator = Simulator::start(config).await?;
    println!("{}", simulator.url());
    let mut nothing = Vec::new();
    tokio::io::stdin().read_to_end(&mut nothing).await?;
    simulator.shutdown().await;
    Ok(())
}

/// The process, seen from the benchmark.
pub(crate) struct Process {
    child: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl Process {
    pub(crate) async fn start() -> Result<Process, Failure> {
        let folder = tempfile::tempdir()?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ROLE)
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let url = BufReader::new(output).lines().next_line().await?.ok_or("the server did not start")?;
        Ok(Process { child, url, folder })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        self.child.wait().await?;
        Ok(())
    }
}
