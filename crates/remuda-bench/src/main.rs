//! What Remuda costs, as ratios and numbers within one run. `cargo xtask bench` runs it; docs/benchmarks.md says how
//! each number is made and what came out.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod against;
mod client;
mod floor;
mod gap;
mod latency;
mod littlehorse;
mod machine;
mod memory;
mod native;
mod probe;
mod programs;
mod queue;
mod start;
mod store;
mod table;
mod usage;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use table::Row;

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// The client library alone, by its own benchmark.
    Client,
    /// Tasks per second at the store, SQLite and PostgreSQL, with few and with many waiting.
    Queue,
    /// What a task takes longer through `remuda serve` than straight to ComfyUI.
    Latency,
    /// The same for ComfyUI's own API: `/prompt` and `/ws`.
    Native,
    /// How long a GPU waits between two queued tasks.
    Gap,
    /// What a task of LittleHorse costs beside its render: our worker and the official Python SDK.
    #[value(name = "littlehorse")]
    LittleHorse,
    /// Memory of `remuda serve`.
    Memory,
    /// From the start of the program until it is ready.
    Start,
}

/// Benchmarks of Remuda.
#[derive(Debug, Parser)]
struct Arguments {
    /// Measure this only; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<Group>,
    /// Fewer rounds and smaller sizes: shows that everything works, proves nothing.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// How many tasks wait in the large queue [default: 1000000, with --quick 20000].
    #[arg(long, value_name = "N")]
    waiting: Option<u64>,
    /// Which store to measure the queue on.
    #[arg(long, value_name = "STORE")]
    store: Option<store::Kind>,
    /// Say afterwards which statements cost PostgreSQL most; measures a little less than without.
    #[arg(long)]
    profile: bool,
    /// Measure this build beside another one: the path of its `remuda`. Nothing else is measured then
    #[arg(long, value_name = "PROGRAM")]
    against: Option<std::path::PathBuf>,
    /// Be the other end of a connection to this port: what the measurements start for themselves.
    #[arg(long, value_name = "PORT", hide = true)]
    echo: Option<u16>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(port) = arguments.echo {
        floor::echo(port)?;
        return Ok(ExitCode::SUCCESS);
    }
    let quick = arguments.quick;
    let alone = arguments.only.is_empty() && arguments.against.is_none();
    let wanted = |group| alone || arguments.only.contains(&group);
    let machine = machine::Machine::look();
    let mut rows: Vec<Row> = Vec::new();

    if let Some(other) = &arguments.against {
        eprintln!("measuring against {} …", other.display());
        let plan = if quick { (100, 2) } else { (1_500, 9) };
        let plan = against::Plan { rounds: plan.0, windows: plan.1 };
        rows.extend(against::measure(folder()?.path(), other, plan).await?);
    }
    if wanted(Group::Client) {
        eprintln!("measuring the client …");
        rows.extend(client::measure(quick).await?);
    }
    if wanted(Group::Start) {
        eprintln!("measuring the start …");
        rows.extend(start::measure(folder()?.path(), if quick { 5 } else { 30 }).await?);
    }
    if wanted(Group::Latency) {
        eprintln!("measuring added latency …");
        rows.extend(latency::measure(folder()?.path(), if quick { 100 } else { 1_000 }).await?);
    }
    if wanted(Group::Native) {
        eprintln!("measuring ComfyUI's own API …");
        rows.extend(native::measure(folder()?.path(), if quick { 100 } else { 1_000 }).await?);
    }
    if wanted(Group::Gap) {
        eprintln!("measuring idle gaps …");
        rows.extend(gap::measure(folder()?.path(), if quick { 50 } else { 300 }).await?);
    }
    if wanted(Group::LittleHorse) {
        match littlehorse::python() {
            Some(python) => {
                eprintln!("measuring the LittleHorse worker …");
                let rounds = if quick { 30 } else { 600 };
                rows.extend(littlehorse::measure(folder()?.path(), &python, rounds).await?);
            }
            None if arguments.only.is_empty() => {
                eprintln!("the LittleHorse worker is NOT measured: the official SDK is not installed");
            }
            None => anyhow::bail!("the official SDK is not installed; `cargo xtask bench` does it"),
        }
    }
    if wanted(Group::Memory) {
        eprintln!("measuring memory …");
        rows.extend(memory::waiting(folder()?.path(), if quick { 1_000 } else { 10_000 }).await?);
        rows.extend(memory::output(folder()?.path(), if quick { 100_000_000 } else { 2_000_000_000 }).await?);
        rows.extend(memory::sync(folder()?.path(), if quick { 30_000_000 } else { 300_000_000 }).await?);
    }
    if wanted(Group::Queue) {
        let waiting = arguments.waiting.unwrap_or(if quick { 20_000 } else { 1_000_000 });
        let plan = queue::Plan { waiting, windows: if quick { 2 } else { 5 }, profiled: arguments.profile };
        for kind in store::Kind::ALL {
            if arguments.store.is_none_or(|only| only == kind) {
                eprintln!("measuring the queue on {kind} …");
                rows.extend(queue::measure(kind, folder()?.path(), plan).await?);
            }
        }
    }

    let machine = machine.after();
    if arguments.json {
        println!("{}", serde_json::json!({"machine": machine.json(), "rows": table::json(&rows)}));
    } else {
        print!("{}\n{}", machine.text(), table::text(&rows));
    }
    let missed = rows.iter().filter(|row| row.met == Some(false)).count();
    if missed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{missed} targets missed");
    Ok(ExitCode::FAILURE)
}

/// A place for the data of one measurement, gone after it: some are gigabytes.
fn folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("remuda-bench-").tempdir()
}
