//! `cargo xtask bench`: the benchmarks, in release mode.
//!
//! They are an example of the `comfyui` crate rather than a `[[bench]]`: they start a simulator, measure
//! ratios within one run and print a table, which no bench harness does.

use crate::run::{cargo, shown};
use anyhow::Result;
use clap::Args;

/// How to run the benchmarks.
#[derive(Args)]
pub(crate) struct Options {
    /// Passed on to the benchmark program; `--help` after `--` shows what it takes
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Builds and runs the benchmark program.
pub(crate) fn run(options: &Options) -> Result<()> {
    let program = ["run", "--release", "--locked", "--package", "comfyui", "--example", "bench", "--"];
    shown(cargo().args(program).args(&options.arguments))
}
