//! `cargo xtask chaos`: real processes, broken at random, in release mode.
//!
//! The program under test is built first and then called by its path: chaos uses it from outside only.

use crate::run::{cargo, root, shown};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// How to run it.
#[derive(Args)]
pub(crate) struct Options {
    /// Passed on to the program, such as --seed N, --tasks N, --minutes M, --scenario postgres; --help shows all
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Builds Remuda and the program that breaks it, and runs the latter.
pub(crate) fn run(options: &Options) -> Result<()> {
    shown(cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "remuda",
        "--package",
        "remuda-chaos",
    ]))?;
    let built = target().join("release");
    let mut chaos = Command::new(built.join("remuda-chaos"));
    chaos.current_dir(root()).arg("--remuda").arg(built.join("remuda")).args(&options.arguments);
    shown(&mut chaos)
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |given| root().join(given))
}
