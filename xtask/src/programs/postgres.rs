//! One private PostgreSQL for all test programs.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Names the server for the tests; whoever gives one keeps it.
const GIVEN: &str = "REMUDA_TEST_POSTGRES";
/// Says the address, and goes on until nobody listens any more.
const SAY_AND_WAIT: &str = "echo \"$REMUDA_TEST_POSTGRES\" && exec cat > /dev/null";

/// It runs as long as this does.
pub(super) struct Postgres {
    /// The keeper and the address; `None` if the caller of `cargo xtask` has one.
    own: Option<(Child, String)>,
}

impl Postgres {
    pub(super) fn start() -> Result<Self> {
        if std::env::var_os(GIVEN).is_some_and(|url| !url.is_empty()) {
            return Ok(Self { own: None });
        }
        // Built with the tests, beside the program that is running here.
        let wrapper = std::env::current_exe()?.with_file_name("with_postgres");
        let mut command = Command::new(&wrapper);
        command.args(["sh", "-c", SAY_AND_WAIT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", wrapper.display()))?;
        let mut url = String::new();
        if let Some(said) = child.stdout.take() {
            BufReader::new(said).read_line(&mut url).context("cannot hear where PostgreSQL is")?;
        }
        ensure!(!url.trim().is_empty(), "no private PostgreSQL for the tests ({})", child.wait()?);
        Ok(Self { own: Some((child, url.trim().to_owned())) })
    }

    /// What tells the tests of it.
    pub(super) fn variable(&self) -> Option<(&'static str, OsString)> {
        self.own.as_ref().map(|(_, url)| (GIVEN, url.into()))
    }

    /// Ends it, and waits until it has.
    pub(super) fn stop(self) -> Result<()> {
        let Some((mut child, _)) = self.own else { return Ok(()) };
        drop(child.stdin.take());
        let status = child.wait().context("cannot wait for the end of PostgreSQL")?;
        ensure!(status.success(), "PostgreSQL for the tests ended with {status}");
        Ok(())
    }
}
