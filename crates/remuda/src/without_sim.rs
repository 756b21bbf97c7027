//! What stands in the place of `remuda sim` and `remuda demo` in a program that was built without the simulator.

use crate::commands::BadInput;
use std::ffi::OsString;
use std::process::ExitCode;

/// Said wherever a simulator was asked for.
pub(crate) const ABSENT: &str = "this program was built without the simulator, which `remuda demo`, `remuda sim` and --sim need: \
                                 build it with the feature `sim`, which is on unless --no-default-features is given";

/// Whatever was given: it is the command that is missing, not a flag of it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    _given: Vec<OsString>,
}

/// Says how to get it.
pub(crate) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    Err(BadInput(ABSENT.to_owned()).into())
}
