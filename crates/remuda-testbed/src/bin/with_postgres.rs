//! Runs a command with a private PostgreSQL, whose address is in `REMUDA_TEST_POSTGRES`:
//!
//! ```console
//! $ cargo run -p remuda-testbed -- cargo test -p remuda-store
//! ```
//!
//! The server is gone when the command has ended. Several test programs then share one server.

#![allow(clippy::print_stderr, reason = "a program for the terminal")]

use remuda_testbed::postgres::{Cluster, Error, GIVEN};
use std::process::{Command, ExitCode};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("which command? usage: with_postgres COMMAND [ARGUMENT]...");
        return ExitCode::from(2);
    };
    let url = match server().await {
        Ok(url) => url,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match Command::new(&program).args(words).env(GIVEN, url).status() {
        Ok(status) => {
            status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code.clamp(0, 255) as u8))
        }
        Err(error) => {
            eprintln!("error: cannot start {}: {error}", program.display());
            ExitCode::FAILURE
        }
    }
}

async fn server() -> Result<String, Error> {
    Ok(Cluster::shared().await?.url())
}
