//! `cargo xtask attack`: attacks on a real process from outside, in release mode, and the short form of it that is part of
//! the tests.
//!
//! The program under test is built first and then called by its path: the attacker uses it from outside only.

use crate::clients;
use crate::programs::{USUAL, build};
use crate::run::{cargo, root, shown};
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// How to run it.
#[derive(Args)]
pub(crate) struct Options {
    /// Passed on to the program, such as --only NAME, --list, --quick, --json, --markdown, --seed N, or `fuzz --requests N`;
    /// --help shows all
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Builds Remuda and the program that attacks it, and runs the latter.
pub(crate) fn run(options: &Options) -> Result<()> {
    shown(cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "remuda",
        "--package",
        "remuda-attack",
    ]))?;
    let attack = |arguments: &[String]| {
        let built = target().join("release");
        let mut attack = Command::new(built.join("remuda-attack"));
        attack.current_dir(root()).arg("--remuda").arg(built.join("remuda")).args(arguments);
        if arguments.iter().any(|argument| argument == "fuzz") {
            let program = clients::provide_schemathesis().context("cannot have schemathesis from PyPI")?;
            attack.arg("--schemathesis").arg(program);
        }
        shown(&mut attack)
    };
    attack(&options.arguments)
}

/// The short form: the debug build that the tests have made, and looser times.
pub(crate) fn quick() -> Result<()> {
    // The very build of the tests: any other choice of packages would compile half of the dependencies again.
    build(USUAL)?;
    let built = target().join("debug");
    let attack = |arguments: &[&str]| {
        let mut attack = Command::new(built.join("remuda-attack"));
        attack.current_dir(root()).arg("--remuda").arg(built.join("remuda")).args(arguments);
        shown(&mut attack)
    };
    attack(&["--quick", "--seed", "1"])?;
    attack(&["fuzz", "--quick", "--seed", "1", "--requests", "3000"])
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |given| root().join(given))
}
