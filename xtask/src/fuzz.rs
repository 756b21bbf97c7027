//! `cargo xtask fuzz`: the fuzz targets of `fuzz/`, each for a stated time.
//!
//! That folder is a workspace of its own: its build needs a sanitizer and must not touch ours. The
//! sanitizer is an unstable option of the compiler; `RUSTC_BOOTSTRAP` lets the stable one take it, so that
//! nobody needs a second toolchain.

use crate::{run, term};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::process::Command;
use std::time::Instant;

/// How to fuzz.
#[derive(Args)]
pub(crate) struct Options {
    /// How long to run each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Run only these targets
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// Builds and runs the targets, one after the other; stops at the first that finds something.
pub(crate) fn run(options: &Options) -> Result<()> {
    if run::which("cargo-fuzz").is_none() {
        bail!(
            "cargo-fuzz is missing: install it with `cargo install cargo-fuzz --locked` (about two minutes)"
        );
    }
    let listed = String::from_utf8(run::captured(cargo_fuzz().arg("list"))?)?;
    let targets: Vec<&str> = match options.targets.as_slice() {
        [] => listed.lines().collect(),
        chosen => chosen.iter().map(String::as_str).collect(),
    };
    if let Some(unknown) = targets
        .iter()
        .find(|target| !listed.lines().any(|known| known == **target))
    {
        bail!(
            "there is no fuzz target `{unknown}`; there are: {}",
            listed.lines().collect::<Vec<_>>().join(", ")
        );
    }
    for target in targets {
        term::heading(target, &format!("fuzzed for {} s", options.seconds));
        let started = Instant::now();
        let limit = format!("-max_total_time={}", options.seconds);
        // A single input that takes this long is a hang, which is a finding as well.
        let command = ["run", target, "--", &limit, "-timeout=10", "-print_final_stats=1"];
        run::shown(cargo_fuzz().args(command)).with_context(|| format!("fuzz target {target}"))?;
        println!(
            "{} {target} in {}, build included",
            term::green("ok:"),
            term::time(started.elapsed())
        );
    }
    Ok(())
}

fn cargo_fuzz() -> Command {
    let mut command = run::cargo();
    command
        .current_dir(run::root().join("fuzz"))
        .arg("fuzz")
        .env("RUSTC_BOOTSTRAP", "1");
    command
}
