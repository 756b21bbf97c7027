//! `cargo xtask bench`: the benchmarks, in release mode.
//!
//! They are programs rather than `[[bench]]`es: they start simulators, servers and databases, measure ratios
//! within one run and print one table, which no bench harness does.

use crate::run::{cargo, shown};
use anyhow::Result;
use clap::Args;

/// How to run the benchmarks.
#[derive(Args)]
pub(crate) struct Options {
    /// Passed on to the benchmark program: `--only NAME`, `--json`, `--quick`; `--help` after `--` shows all
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Builds everything that is measured, and runs the benchmark program, which starts the others.
pub(crate) fn run(options: &Options) -> Result<()> {
    let release = ["--release", "--locked", "--quiet"];
    for program in [["remuda", "--bin", "remuda"], ["comfyui", "--example", "bench"]] {
        shown(cargo().arg("build").args(release).arg("--package").args(program))?;
    }
    let program = ["--package", "remuda-bench", "--"];
    shown(cargo().arg("run").args(release).args(program).args(&options.arguments))
}
