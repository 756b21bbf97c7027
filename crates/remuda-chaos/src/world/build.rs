//! Builds the installation of a scenario.

use super::part::Part;
use super::sim::Sim;
use crate::api::Api;
use crate::options::{Options, Scenario};
use anyhow::{Context, Result, bail};
use remuda_testbed::net::{Proxy, free_port, target};
use remuda_testbed::postgres::{self, Cluster};
use remuda_testbed::wait;
use reqwest::Method;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long servers may take to find each other's workers and keys.
const KNOWN: Duration = Duration::from_secs(180);

/// A connection that can be broken.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) name: String,
    pub(crate) proxy: Proxy,
}

/// The installation under test. Its kinds of parts are separate fields, so that each lane of faults can own one.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) servers: Vec<Part>,
    pub(crate) sidecars: Vec<Part>,
    pub(crate) sims: Vec<Sim>,
    pub(crate) database: Option<Cluster>,
    pub(crate) nets: Vec<Net>,
    pub(crate) api: Api,
    /// Where outputs are kept.
    pub(crate) files: PathBuf,
    /// Logs and data of everybody.
    pub(crate) folder: PathBuf,
    /// Removed at the end unless it is kept as evidence.
    temporary: Option<tempfile::TempDir>,
}

impl World {
    /// Starts everything, and returns when it is ready.
    pub(crate) async fn start(options: &Options) -> Result<World> {
        let temporary = tempfile::Builder::new().prefix("remuda-chaos-").tempdir()?;
        match World::build(options, temporary.path().to_owned()).await {
            Ok(mut world) => {
                world.temporary = Some(temporary);
                Ok(world)
            }
            // Whoever has to find out why needs the logs.
            Err(error) => {
                let folder = temporary.keep();
                Err(error.context(format!("logs and data are in {}", folder.display())))
            }
        }
    }

    async fn build(options: &Options, folder: PathBuf) -> Result<World> {
        let (servers, own_sims) = match options.scenario {
            Scenario::Postgres => (3, 3),
            Scenario::Sqlite => (1, 2),
        };
        let sidecars = options.sidecars;
        let mut sims = Vec::new();
        for number in 0..own_sims + sidecars {
            sims.push(sim(options, &folder, number)?);
        }
        let shared: Vec<String> = sims[..own_sims].iter().map(|sim| sim.url.clone()).collect();
        let (database, url) = match options.scenario {
            Scenario::Postgres => {
                // A crash of the server must not lose what it confirmed: that would be PostgreSQL's loss, not ours.
                let settings = postgres::Options { durable: true, ..postgres::Options::default() };
                let cluster = Cluster::start(settings).await?;
                let url = cluster.database().await?;
                (Some(cluster), Some(url))
            }
            Scenario::Sqlite => (None, None),
        };
        let files = folder.join("files");
        let mut nets = Vec::new();
        let mut fleet = Vec::new();
        let mut urls = Vec::new();
        for number in 1..=servers {
            let name = format!("server-{number}");
            let store = match &url {
                Some(url) => {
                    let proxy = Proxy::start(target(url)?).await?;
                    let through = proxy.through(url)?;
                    nets.push(Net { name: format!("{name} to PostgreSQL"), proxy });
                    through
                }
                None => format!("sqlite:{}", folder.join("remuda.db").display()),
            };
            let port = free_port()?;
            let at = format!("http://127.0.0.1:{port}");
            fleet.push(
                server(options, &folder, &name, port, &store, &files, &shared)
                    .ready_at(format!("{at}/ready")),
            );
            urls.push(at);
        }
        // One after the other: the first makes the schema and the installation.
        for sim in &mut sims {
            sim.part.start().await?;
        }
        for server in &mut fleet {
            server.start().await?;
        }
        let key = make_key(options, &folder, &["worker"])?;
        let mine = make_key(options, &folder, &["submit", "read", "admin"])?;
        let mut beside = Vec::new();
        for number in 0..sidecars {
            let name = format!("sidecar-{}", number + 1);
            let proxy = Proxy::start(target(&urls[number % urls.len()])?).await?;
            let server = format!("http://{}", proxy.address());
            nets.push(Net { name: format!("{name} to its server"), proxy });
            let comfyui = &sims[own_sims + number].url;
            beside.push(sidecar(options, &folder, &name, &server, &key, comfyui));
        }
        for sidecar in &mut beside {
            sidecar.start().await?;
        }
        let api = Api::new(urls, Some(mine))?;
        all_known(&api, servers, sims.len()).await?;
        Ok(World {
            servers: fleet,
            sidecars: beside,
            sims,
            database,
            nets,
            api,
            files,
            folder,
            temporary: None,
        })
    }

    /// Everything that belongs to Remuda.
    pub(crate) fn fleet(&mut self) -> impl Iterator<Item = &mut Part> {
        self.servers.iter_mut().chain(&mut self.sidecars)
    }

    /// Leaves the folder where it is.
    pub(crate) fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
    }
}

/// Waits until every server takes our key and knows every worker as one that is free.
async fn all_known(api: &Api, servers: usize, workers: usize) -> Result<()> {
    for server in 0..servers {
        wait::until("all workers to be free", KNOWN, async || {
            let answer = api
                .ask(server, Method::GET, "/api/v1/workers")
                .await
                .map_err(|error| format!("{error:#}"))?;
            let text = answer.text();
            let free = answer.status == 200 && text.matches(r#""status":"idle""#).count() == workers;
            if free { Ok(()) } else { Err(text) }
        })
        .await?;
    }
    Ok(())
}

fn sim(options: &Options, folder: &Path, number: usize) -> Result<Sim> {
    let port = free_port()?;
    let url = format!("http://127.0.0.1:{port}");
    let name = format!("comfyui-{}", number + 1);
    let listen = format!("127.0.0.1:{port}");
    let data = folder.join(&name).display().to_string();
    // Its process goes on when the simulated one dies, so that its counts do.
    let words = ["sim", "--listen", &listen, "--dir", &data, "--restart-after-ms", "400"];
    let seed = options.seed.wrapping_add(number as u64).to_string();
    let part = Part::new(&options.remuda, folder, &name, &words).and(["--seed".to_owned(), seed]);
    Sim::new(part.ready_at(format!("{url}/system_stats")), url)
}

fn server(
    options: &Options,
    folder: &Path,
    name: &str,
    port: u16,
    store: &str,
    files: &Path,
    comfyui: &[String],
) -> Part {
    let listen = format!("127.0.0.1:{port}");
    let data = folder.join(name).display().to_string();
    let files = format!("file:{}", files.display());
    let words = ["serve", "--listen", &listen, "--data", &data, "--store", store, "--files", &files];
    let comfyui = comfyui.iter().flat_map(|url| ["--comfyui".to_owned(), url.clone()]);
    tuned(Part::new(&options.remuda, folder, name, &words).and(comfyui), options)
}

fn sidecar(options: &Options, folder: &Path, name: &str, server: &str, key: &str, comfyui: &str) -> Part {
    let data = folder.join(name).display().to_string();
    let words = ["worker", "--source", "queue", "--server", server, "--comfyui", comfyui];
    let words = [&words[..], &["--data", &data, "--worker-id", name]].concat();
    tuned(Part::new(&options.remuda, folder, name, &words).with("REMUDA_API_KEY", key), options)
}

/// Times short enough for a run to see what happens after them.
fn tuned(part: Part, options: &Options) -> Part {
    part.with("REMUDA_LEASE", &format!("{}s", options.lease.as_secs())).with("REMUDA_DRAIN", "2s").with(
        "REMUDA_LOG_LEVEL",
        "info,remuda=debug,remuda_runner=debug,remuda_server=debug,remuda_store=debug",
    )
}

/// Makes a key through the first server, while it runs.
fn make_key(options: &Options, folder: &Path, scopes: &[&str]) -> Result<String> {
    let data = folder.join("server-1");
    let mut command = Command::new(&options.remuda);
    command.args(["keys", "make", "--json", "--data"]).arg(data);
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
