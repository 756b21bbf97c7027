//! `cargo xtask fuzz`: the fuzz targets of `fuzz/`, each for a stated time.
//!
//! That folder is a workspace of its own: its build needs a sanitizer and must not touch ours. The
//! sanitizer is an unstable option of the compiler; `RUSTC_BOOTSTRAP` lets the stable one take it, so that
//! nobody needs a second toolchain.

mod seeds;

use crate::{run, term};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;
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
    take_over_lock()?;
    let listed = String::from_utf8(run::captured(cargo_fuzz().arg("list"))?)?;
    let known: Vec<&str> = listed.lines().collect();
    let chosen: Vec<&str> = options.targets.iter().map(String::as_str).collect();
    if let Some(unknown) = chosen.iter().find(|target| !known.contains(target)) {
        bail!("there is no fuzz target `{unknown}`; there are: {}", known.join(", "));
    }
    for target in if chosen.is_empty() { known } else { chosen } {
        fuzz(target, options.seconds)?;
    }
    Ok(())
}

/// Lints the targets, which are no part of the workspace and would otherwise stop compiling unnoticed.
pub(crate) fn check() -> Result<()> {
    take_over_lock()?;
    let mut clippy = run::cargo();
    clippy.args(["clippy", "--manifest-path", "fuzz/Cargo.toml", "--all-targets", "--", "-D", "warnings"]);
    // Nothing is linked, so the fuzzing library need not be built; its build script only has to believe that
    // there is one. With the target folder of the product, its dependencies are there already.
    clippy.env("CUSTOM_LIBFUZZER_PATH", "/nowhere/libfuzzer.a");
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        clippy.env("CARGO_TARGET_DIR", run::root().join("target"));
    }
    run::shown(&mut clippy)
}

fn fuzz(target: &str, seconds: u32) -> Result<()> {
    term::heading(target, &format!("fuzzed for {seconds} s"));
    let started = Instant::now();
    let seeds = seeds::plant(target, &folder().join("corpus").join(target))?;
    println!("{seeds} seeds");
    let limit = format!("-max_total_time={seconds}");
    // A single input that takes ten seconds is a hang, which is a finding as well. Without progress and function
    // names, the few lines at the end can be read.
    let command = [
        "run",
        target,
        "--",
        &limit,
        "-timeout=10",
        "-verbosity=0",
        "-print_funcs=0",
        "-print_final_stats=1",
    ];
    run::shown(cargo_fuzz().args(command)).with_context(|| format!("fuzz target {target}"))?;
    println!("{} {target} in {}, build included", term::green("ok:"), term::time(started.elapsed()));
    Ok(())
}

fn folder() -> PathBuf {
    run::root().join("fuzz")
}

fn cargo_fuzz() -> Command {
    let mut command = run::cargo();
    command.current_dir(folder()).arg("fuzz").env("RUSTC_BOOTSTRAP", "1");
    command
}

/// Starts from the product's lock file, so that what is fuzzed is what is shipped; cargo adds the rest.
fn take_over_lock() -> Result<()> {
    let lock = run::root().join("Cargo.lock");
    std::fs::copy(lock, folder().join("Cargo.lock")).context("cannot copy Cargo.lock into fuzz/")?;
    Ok(())
}
