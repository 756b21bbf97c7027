//! Runs the attacker, which is a process of its own.

use crate::catalogue::Attack;
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context, Result};
use std::process::Stdio;
use tokio::process::Command;

/// With the lowest priority, and with as many connections as the machine allows.
const NICED: &str = r#"ulimit -n "$(ulimit -Hn)"; exec nice -n 19 "$@""#;

/// What came of an attack.
#[derive(Debug)]
pub(crate) enum Made {
    /// It came to its end, and this should not have been possible.
    Whole(Vec<String>),
    /// It took too long. It did what it could, and nobody knows what it would still have found.
    BrokenOff,
}

/// Makes an attack with the lowest priority.
pub(crate) async fn attacker(options: &Options, attack: &Attack, stage: &Stage) -> Result<Made> {
    let file = tempfile::NamedTempFile::new()?;
    stage.write(file.path())?;
    let mut command = Command::new("sh");
    command.args(["-c", NICED, "sh"]).arg(&options.attacker).arg("--attacker").arg(attack.name);
    command.arg("--stage").arg(file.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(options.longest, command.output()).await;
    let Ok(output) = output else { return Ok(Made::BrokenOff) };
    let output = output.context("cannot start the attacker")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let violations = serde_json::from_str(last)
        .with_context(|| format!("the attacker failed: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(Made::Whole(violations))
}
