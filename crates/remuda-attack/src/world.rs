//! The installation that is attacked: real processes in a folder of their own.

use crate::options::Options;
use crate::stage::{Keys, SIDECAR, Setup, Stage};
use anyhow::{Context, Result, bail};
use remuda_testbed::net::free_port;
use remuda_testbed::process::Program;
use remuda_testbed::wait;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Leads both outputs into a file, and then is the program: signals reach it, and nothing has to be read.
/// Many connections need many files on both sides.
const LOGGED: &str = r#"ulimit -n "$(ulimit -Hn)"; log=$1; shift; exec "$@" >>"$log" 2>&1"#;
/// How often the memory of the server is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What has no flag: a server that ends soon, and a bound on the outputs of a task that can be reached in a moment.
const SETTINGS: [(&str, &str); 2] = [("REMUDA_DRAIN", "1s"), ("REMUDA_MAX_OUTPUT_TOTAL", "48MiB")];

/// How much one tenant's settings and user data may have in [`Setup::Narrow`], in MiB.
pub(crate) const DOCUMENTS_MIB: usize = 64;
/// How many descriptions of nodes one key may keep there.
pub(crate) const OBJECT_INFOS: usize = 40;
/// How large those may be together, in MiB.
pub(crate) const OBJECT_INFOS_MIB: usize = 24;
/// How many submissions, uploads and waiting requests there may be at once in [`Setup::Proxied`], of each.
pub(crate) const PERMITS: usize = 16;
/// How many requests a second a guest has there.
pub(crate) const RATE: usize = 50;

/// The settings of an installation that have no flag.
fn settings(setup: Setup) -> Vec<(&'static str, String)> {
    let mut all: Vec<_> = SETTINGS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    match setup {
        Setup::Narrow => all.extend([
            ("REMUDA_DOCUMENT_BYTES", format!("{DOCUMENTS_MIB}MiB")),
            ("REMUDA_MAX_OBJECT_INFOS", OBJECT_INFOS.to_string()),
            ("REMUDA_MAX_OBJECT_INFOS_SIZE", format!("{OBJECT_INFOS_MIB}MiB")),
        ]),
        Setup::Proxied => all.extend([
            ("REMUDA_SUBMISSIONS", PERMITS.to_string()),
            ("REMUDA_UPLOADS", PERMITS.to_string()),
            ("REMUDA_WAITING", PERMITS.to_string()),
            ("REMUDA_RATE", RATE.to_string()),
        ]),
        _ => {}
    }
    all
}

/// The installation.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) stage: Stage,
    pub(crate) server: Program,
    arguments: Vec<String>,
    /// ComfyUIs and sidecars.
    _others: Vec<Program>,
    memory: Memory,
    /// Of the processes before this one.
    peak_before: u64,
    capped_before: bool,
    turn: Duration,
    cap: u64,
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts everything, and returns when it is ready.
    pub(crate) async fn start(options: &Options, setup: Setup) -> Result<World> {
        let folder = tempfile::Builder::new().prefix("remuda-attack-").tempdir()?;
        let at = folder.path();
        let (data, log) = (at.join("server"), at.join("server.log"));
        // As an operator's `mkdir` would leave it: the server has to mend it.
        std::fs::create_dir(&data)?;
        let mut others = Vec::new();
        let sim = format!("127.0.0.1:{}", free_port()?);
        let words = ["sim", "--listen", &sim, "--dir"].map(str::to_owned);
        let words = words.into_iter().chain([at.join("comfyui").display().to_string()]);
        others.push(launch(&options.remuda, words, &at.join("comfyui.log"), &[])?);
        // The server takes two addresses of one ComfyUI for what they are: who lies needs one of its own behind it.
        let behind = match setup {
            Setup::Hostile => {
                let behind = format!("127.0.0.1:{}", free_port()?);
                let words = ["sim", "--listen", &behind, "--dir"].map(str::to_owned);
                let words = words.into_iter().chain([at.join("behind").display().to_string()]);
                others.push(launch(&options.remuda, words, &at.join("behind.log"), &[])?);
                behind
            }
            _ => sim.clone(),
        };
        let address = format!("127.0.0.1:{}", free_port()?);
        let port = free_port()?;
        let page = match setup {
            Setup::Page => Some(make_page(at)?),
            _ => None,
        };
        let arguments = arguments(setup, &address, &data, &sim, port, page.as_deref());
        let server = launch(&options.remuda, arguments.clone(), &log, &settings(setup))?;
        let memory = Memory::watch(server.id(), options.cap);
        let stage = Stage {
            server: address,
            setup,
            keys: Keys::default(),
            data,
            log,
            remuda: options.remuda.clone(),
            port,
            sim,
            behind,
            sidecar_owner: None,
            gateway_owner: None,
            page,
            seconds: options.under.as_secs_f64(),
            quick: options.quick,
            seed: options.seed,
        };
        let (turn, cap) = (options.turn, options.cap);
        let mut world = World {
            stage,
            server,
            arguments,
            _others: others,
            memory,
            peak_before: 0,
            capped_before: false,
            turn,
            cap,
            _folder: folder,
        };
        world.ready().await.map_err(|why| anyhow::anyhow!("{why}; its log: {}", world.log_tail()))?;
        if !matches!(setup, Setup::Open | Setup::Insecure) {
            world.make_keys()?;
        }
        if setup == Setup::Sidecar {
            world.start_sidecar()?;
        }
        world.stage.gateway_owner = owner_in(&world.stage.data).ok();
        world.worker_known().await?;
        if setup == Setup::Sidecar {
            let folder = world.folder().join("sidecar");
            world.stage.sidecar_owner = Some(owner_in(&folder).context("the sidecar has no owner file")?);
        }
        Ok(world)
    }

    fn folder(&self) -> &Path {
        self._folder.path()
    }

    fn make_keys(&mut self) -> Result<()> {
        let make = |name: &str, tenant: &str, scopes: &[&str]| {
            make_key(&self.stage.remuda, &self.stage.data, name, tenant, scopes)
        };
        self.stage.keys = Keys {
            bob: make("bob", "bob", &["submit", "read"])?,
            mallory: make("mallory", "mallory", &["submit", "read"])?,
            worker: make("mallory-worker", "mallory", &["worker"])?,
            sidecar: make("sidecar", "default", &["worker"])?,
            admin: make("admin", "default", &["submit", "read", "admin"])?,
        };
        Ok(())
    }

    fn start_sidecar(&mut self) -> Result<()> {
        let data = self.folder().join("sidecar").display().to_string();
        let (server, sim) = (self.stage.url(""), format!("http://{}", self.stage.sim));
        let words =
            ["worker", "--server", &server, "--comfyui", &sim, "--data", &data, "--worker-id", SIDECAR];
        let words = words.map(str::to_owned);
        let log = self.folder().join("sidecar.log");
        let key = [("REMUDA_API_KEY", self.stage.keys.sidecar.clone())];
        self._others.push(launch(&self.stage.remuda, words, &log, &key)?);
        Ok(())
    }

    /// Waits until `/ready` says so.
    pub(crate) async fn ready(&mut self) -> Result<(), String> {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(2)).build();
        let http = http.map_err(|error| error.to_string())?;
        let (url, server) = (self.stage.url("/ready"), &mut self.server);
        let ready = wait::until("the server to be ready", self.turn, async || {
            if let Ok(Some(status)) = server.exited() {
                return Ok::<_, String>(Err(format!("the server ended by itself ({status})")));
            }
            match http.get(&url).send().await {
                Ok(answer) if answer.status().is_success() => Ok(Ok(())),
                Ok(answer) => Err(answer.status().to_string()),
                Err(error) => Err(error.to_string()),
            }
        });
        ready.await.unwrap_or_else(|late| Err(late.to_string()))
    }

    /// Waits until a good ComfyUI is free.
    async fn worker_known(&self) -> Result<()> {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
        let url = self.stage.url("/api/v1/workers");
        wait::until("a worker to be free", self.turn, async || {
            let mut request = http.get(&url);
            if !self.stage.keys.admin.is_empty() {
                request = request.bearer_auth(&self.stage.keys.admin);
            }
            let text = match request.send().await {
                Ok(answer) => answer.text().await.unwrap_or_default(),
                Err(error) => error.to_string(),
            };
            if text.contains(r#""status":"idle""#) { Ok(()) } else { Err(text) }
        })
        .await?;
        Ok(())
    }

    /// Asks the server to end; the error is that it did not, or not well.
    pub(crate) async fn stop(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.server.exited() {
            return Err(format!("the server had ended by itself ({status})"));
        }
        self.server.term().map_err(|error| error.to_string())?;
        let ended = self.server.wait_exit(self.turn).await;
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("after SIGTERM the server ended with {status}")),
            Err(_) => {
                self.kill().await;
                Err(format!("SIGTERM did not end the server within {} s", self.turn.as_secs()))
            }
        }
    }

    pub(crate) async fn kill(&mut self) {
        // One that is gone already is what was wanted.
        let _ = self.server.kill_9();
        let _ = self.server.wait_exit(Duration::from_secs(10)).await;
    }

    /// Starts the server again on what it has stored, and waits until it is ready.
    pub(crate) async fn start_again(&mut self) -> Result<(), String> {
        self.launch_again()?;
        self.ready().await
    }

    /// Starts the server again, and does not wait for it.
    pub(crate) fn launch_again(&mut self) -> Result<(), String> {
        let settings = settings(self.stage.setup);
        let started = launch(&self.stage.remuda, self.arguments.clone(), &self.stage.log, &settings);
        self.server = started.map_err(|error| format!("{error:#}"))?;
        // What the process before had is not forgotten with it.
        (self.peak_before, self.capped_before) = (self.peak(), self.was_capped());
        self.memory = Memory::watch(self.server.id(), self.cap);
        Ok(())
    }

    /// The most memory that the server had, before and after every restart.
    pub(crate) fn peak(&self) -> u64 {
        self.peak_before.max(self.memory.peak.load(Ordering::Relaxed))
    }

    /// Whether it was killed for it, before or after a restart.
    pub(crate) fn was_capped(&self) -> bool {
        self.capped_before || self.memory.capped.load(Ordering::Relaxed)
    }

    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.stage.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Lines of the log that speak of a panic.
    pub(crate) fn panics(&self) -> Vec<String> {
        let text = std::fs::read(&self.stage.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let panics = text.lines().filter(|line| line.contains("panicked"));
        panics.take(3).map(|line| line.chars().take(300).collect()).collect()
    }
}

fn arguments(
    setup: Setup,
    address: &str,
    data: &Path,
    sim: &str,
    port: u16,
    page: Option<&Path>,
) -> Vec<String> {
    let mut words = vec!["serve", "--listen", address, "--max-output-size", "32MiB", "--sync-timeout", "20s"];
    let (sim, hostile) = (format!("http://{sim}"), format!("http://127.0.0.1:{port} hostile"));
    let (data, proxy) = (data.display().to_string(), crate::raw::FROM.to_string());
    words.extend(["--data", &data]);
    match setup {
        Setup::Plain | Setup::Open | Setup::Page | Setup::Narrow => words.extend(["--comfyui", &sim]),
        Setup::Hostile => words.extend(["--comfyui", &sim, "--comfyui", &hostile]),
        Setup::Insecure => words.extend(["--comfyui", &sim, "--insecure", "--cors-origin", "*"]),
        Setup::Proxied => words.extend(["--comfyui", &sim, "--trusted-proxy", &proxy]),
        Setup::Sidecar => {}
    }
    let page = page.map(|folder| folder.display().to_string());
    if let Some(page) = &page {
        words.extend(["--frontend", page]);
    }
    words.into_iter().map(str::to_owned).collect()
}

/// A folder with a page, a dotfile, and a link that leaves the folder.
fn make_page(at: &Path) -> Result<PathBuf> {
    let page = at.join("page");
    std::fs::create_dir(&page)?;
    std::fs::write(page.join("index.html"), "<!doctype html><title>page</title>")?;
    std::fs::write(page.join("app.js"), "1")?;
    std::fs::write(page.join(".env"), "SECRET-OF-THE-PAGE")?;
    std::fs::write(at.join("outside.txt"), "SECRET-OUTSIDE")?;
    std::os::unix::fs::symlink(at.join("outside.txt"), page.join("link.txt"))?;
    Ok(page)
}

fn launch(
    remuda: &Path,
    words: impl IntoIterator<Item = String>,
    log: &Path,
    variables: &[(&str, String)],
) -> Result<Program> {
    let shell = ["-c".to_owned(), LOGGED.to_owned(), "sh".to_owned(), log.display().to_string()];
    let words = shell.into_iter().chain([remuda.display().to_string()]).chain(words);
    Program::start("sh", words, variables.iter().map(|(name, value)| (*name, value.as_str())))
        .context("cannot start a process")
}

/// Makes a key through the running server.
pub(crate) fn make_key(
    remuda: &Path,
    data: &Path,
    name: &str,
    tenant: &str,
    scopes: &[&str],
) -> Result<String> {
    let mut command = Command::new(remuda);
    command.args(["keys", "make", "--json", "--name", name, "--tenant", tenant, "--data"]).arg(data);
    for scope in scopes {
        command.args(["--scope", scope]);
    }
    let output = command.output().context("cannot make a key")?;
    if !output.status.success() {
        bail!("cannot make a key: {}", String::from_utf8_lossy(&output.stderr));
    }
    let made: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(made["key"].as_str().context("a key was made and not shown")?.to_owned())
}

/// The id that a process keeps in its data directory.
fn owner_in(folder: &Path) -> Result<String> {
    let text = std::fs::read_to_string(folder.join("owner"))?;
    Ok(text.split_whitespace().next().context("an empty owner file")?.to_owned())
}

/// Watches the memory of one process, and kills it when it has too much: the machine must survive.
#[derive(Debug)]
struct Memory {
    peak: Arc<AtomicU64>,
    capped: Arc<AtomicBool>,
    _stop: DropGuard,
}

impl Memory {
    fn watch(process: u32, cap: u64) -> Memory {
        let (peak, capped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let stop = CancellationToken::new();
        let memory = Memory { peak: peak.clone(), capped: capped.clone(), _stop: stop.clone().drop_guard() };
        // A thread: a busy runtime would look too late. It ends with the process or with this value.
        std::thread::spawn(move || {
            while !stop.is_cancelled() {
                let Some((most, now)) = usage(process) else { return };
                peak.fetch_max(most, Ordering::Relaxed);
                if now > cap {
                    capped.store(true, Ordering::Relaxed);
                    // The process is a child that nobody else reaps: the number is still its own.
                    let _ = Command::new("kill").args(["-9", &process.to_string()]).status();
                    return;
                }
                std::thread::park_timeout(LOOK);
            }
        });
        memory
    }
}

/// VmHWM and VmRSS, in bytes; nothing when the process has ended.
fn usage(process: u32) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
    };
    Some((field("VmHWM:")?, field("VmRSS:")?))
}
