//! `remuda sim`: a ComfyUI without a GPU.

use anyhow::Context;
use comfyui_sim::faults::Fault;
use comfyui_sim::{Condition, Profile, SimConfig, Simulator};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::stop::Stop;
use tokio::net::TcpListener;

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port to answer on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8188")]
    listen: SocketAddr,
    /// ComfyUI version to behave as: 0.3.30, 0.3.64 or 0.7.0.
    #[arg(long, value_name = "VERSION", default_value_t = Profile::default())]
    version: Profile,
    /// How long one sampler step takes.
    #[arg(long, value_name = "MS", default_value_t = millis(SimConfig::default().step))]
    step_ms: u64,
    /// How long it takes to load a checkpoint that is not the one used last.
    #[arg(long, value_name = "MS", default_value_t = millis(SimConfig::default().model_load))]
    model_load_ms: u64,
    /// Folder for input, output, temp and user; a temporary one if absent.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Something that goes wrong, as KIND[,KEY=VALUE]...; may be given several times.
    ///
    /// For example --fault "lose_answer,on=POST /prompt,times=1" or --fault mute_websocket,after_frames=5
    /// or --fault "error,status=503,on=GET /history/*,probability=0.1,seed=7".
    ///
    /// Requests: slow (delay_ms), hang, reset, error (status), half_open, lose_answer, error_after (status), garbage,
    /// cut_answer. Sockets: mute_websocket, drop_websocket, half_open_websocket (after_frames). Process: refuse,
    /// restart (down_ms), crash (down_ms), version (version). Prompts: zombie_worker, out_of_memory, disk_full,
    /// files_gone, stuck_node, crash_in_node, slow_nodes (factor). All: on, times, probability, seed, for_ms.
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<Fault>,
    /// Seed of everything that is left to chance.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder of ComfyUI's own web page (the static folder of comfyui-frontend-package).
    #[arg(long, value_name = "DIR")]
    frontend: Option<PathBuf>,
    /// Let pages of this origin in, or of any origin without a value.
    #[arg(long, value_name = "ORIGIN", num_args = 0..=1, default_missing_value = "*")]
    enable_cors_header: Option<String>,
    /// Start again this long after the simulated process died; without it the program ends with it.
    #[arg(long, value_name = "MS")]
    restart_after_ms: Option<u64>,
    /// Print the first line as JSON.
    #[arg(long)]
    json: bool,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Runs until it is told to stop, or the simulated process dies.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Before anything else, so that no signal is missed between the start and the wait.
    let mut stop = Stop::listen()?;
    let config = SimConfig {
        profile: args.version,
        base_dir: args.dir,
        step: Duration::from_millis(args.step_ms),
        model_load: Duration::from_millis(args.model_load_ms),
        seed: args.seed,
        cors: args.enable_cors_header,
        frontend: args.frontend,
        ..SimConfig::default()
    };
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}, choose another with --listen", args.listen))?;
    let sim = Simulator::start_on(listener, config).await?;
    for fault in args.faults {
        sim.faults().add(fault);
    }
    announce(&sim, args.version, args.json)?;
    let code = loop {
        tokio::select! {
            () = stop.requested() => break ExitCode::SUCCESS,
            () = sim.wait_for(Condition::Down) => {}
        }
        let Some(pause) = args.restart_after_ms else {
            writeln!(
                std::io::stderr(),
                "the simulated ComfyUI died; --restart-after-ms would start it again"
            )?;
            break ExitCode::FAILURE;
        };
        tokio::select! {
            () = stop.requested() => break ExitCode::SUCCESS,
            () = tokio::time::sleep(Duration::from_millis(pause)) => sim.revive().await,
        }
    };
    sim.shutdown().await;
    Ok(code)
}

fn announce(sim: &Simulator, version: Profile, json: bool) -> anyhow::Result<()> {
    let (url, dir) = (sim.url(), sim.base_dir().display());
    let mut out = std::io::stdout().lock();
    if json {
        let line = serde_json::json!({"url": url, "version": version.version(), "dir": dir.to_string()});
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "A simulated ComfyUI {version} answers at {url} (files in {dir}). Ctrl-C stops it.")?;
    }
    out.flush()?;
    Ok(())
}
