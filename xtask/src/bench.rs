//! `cargo xtask bench`: the benchmarks, in release mode.
//!
//! They are programs rather than `[[bench]]`es: they start simulators, servers and databases, measure ratios
//! within one run and print one table, which no bench harness does.

use crate::clients;
use crate::run::{cargo, shown};
use anyhow::Result;
use clap::Args;

/// Tells the benchmark program where the Python with the LittleHorse SDK is.
const PYTHON: &str = "REMUDA_BENCH_PYTHON";

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
    let mut bench = cargo();
    bench.arg("run").args(release).args(program).args(&options.arguments);
    if wants_sdk(&options.arguments) {
        match clients::provide_for_bench() {
            Ok(python) => drop(bench.env(PYTHON, python)),
            // The benchmark program says what it leaves out, or that it cannot do what was asked for.
            Err(error) => eprintln!("the official LittleHorse SDK cannot be had from PyPI: {error:#}"),
        }
    }
    shown(&mut bench)
}

/// Whether the LittleHorse worker is measured: unless something else is named.
fn wants_sdk(arguments: &[String]) -> bool {
    let only = arguments.iter().any(|argument| argument.starts_with("--only"));
    !only || arguments.iter().any(|argument| argument.trim_start_matches("--only=") == "littlehorse")
}

#[cfg(test)]
mod tests {
    use super::wants_sdk;

    #[test]
    fn the_sdk_is_installed_when_it_is_measured() {
        let wants = |line: &str| wants_sdk(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert!(wants("") && wants("--quick --json"));
        assert!(wants("--only littlehorse") && wants("--only gap --only=littlehorse"));
        assert!(!wants("--only gap") && !wants("--only=gap --quick"));
    }
}
