//! The server under replay: the simulator, or a real ComfyUI when `REPLAY_SERVER` names a command that runs one.
//!
//! The command is called as `$REPLAY_SERVER VERSION PORT BASE_DIR [ARGS of main.py]...` and must stay in the
//! foreground until it is ended by SIGTERM or SIGINT. That is how the harness itself is checked.

use comfyui_sim::{SimConfig, Simulator};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use tempfile::TempDir;

/// A server with a folder of its own.
pub struct Server {
    pub address: SocketAddr,
    base: TempDir,
    version: String,
    args: Vec<String>,
    running: Running,
}

enum Running {
    Simulator(Simulator),
    Process(Child),
    Down,
}

impl Server {
    /// Prepares the folder with `seed` and starts.
    pub async fn start(version: &str, args: &[String], seed: impl FnOnce(&Path)) -> Self {
        let base = TempDir::with_prefix("replay-").expect("a temporary folder");
        seed(base.path());
        let mut server = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            base,
            version: version.to_owned(),
            args: args.to_vec(),
            running: Running::Down,
        };
        server.start_again().await;
        server
    }

    /// The folder above `input`, `output` and `temp`.
    pub fn base(&self) -> PathBuf {
        self.base.path().to_owned()
    }

    /// Starts, or starts again after an end, on the same folder.
    pub async fn start_again(&mut self) {
        match (&self.running, std::env::var("REPLAY_SERVER")) {
            (Running::Simulator(simulator), _) => simulator.revive().await,
            (_, Ok(command)) => self.start_process(&command).await,
            (_, Err(_)) => {
                let simulator = Simulator::start(self.config()).await.expect("the simulator starts");
                self.address = simulator.addr();
                self.running = Running::Simulator(simulator);
            }
        }
    }

    fn config(&self) -> SimConfig {
        let mut config = SimConfig {
            profile: self.version.parse().expect("a recorded version is simulated"),
            base_dir: Some(self.base()),
            frontend: Some(self.frontend()),
            ..SimConfig::default()
        };
        // The recorded server had no models at all.
        config.models.values_mut().for_each(Vec::clear);
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--enable-cors-header" => config.cors = args.next().cloned(),
                "--enable-compress-response-body" => config.compress = true,
                other => panic!("no setting for {other}"),
            }
        }
        config
    }

    /// The recorded server had ComfyUI's frontend installed.
    fn frontend(&self) -> PathBuf {
        let folder = self.base().join("frontend");
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        std::fs::write(folder.join("index.html"), "<!doctype html><title>replay</title>")
            .expect("the temporary folder can be written");
        folder
    }

    async fn start_process(&mut self, command: &str) {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        self.address = listener.local_addr().expect("a bound port");
        drop(listener);
        let child = Command::new(command)
            .arg(&self.version)
            .arg(self.address.port().to_string())
            .arg(self.base.path())
            .args(&self.args)
            .spawn()
            .expect("the command in REPLAY_SERVER runs");
        self.running = Running::Process(child);
        for _ in 0..600 {
            let asked =
                crate::http::send(self.address, "GET", "/prompt", &[], None, Duration::from_secs(2)).await;
            if asked.is_ok_and(|answer| answer.status == 200) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the server did not start");
    }

    /// SIGTERM: ends at once.
    pub async fn terminate(&mut self) {
        self.end("TERM").await;
    }

    /// SIGINT: ends when the running node has ended. A client sees no difference to a crash but the delay.
    pub async fn interrupt(&mut self) {
        self.end("INT").await;
    }

    async fn end(&mut self, signal: &str) {
        match &mut self.running {
            Running::Simulator(simulator) => simulator.crash().await,
            Running::Process(child) => {
                let _ = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
                for _ in 0..300 {
                    if !matches!(child.try_wait(), Ok(None)) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                self.running = Running::Down;
            }
            Running::Down => {}
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Running::Process(child) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
