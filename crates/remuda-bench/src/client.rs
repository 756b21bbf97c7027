//! The client's own benchmark, a program of the `comfyui` crate: its rows become ours.

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::process::Command;

use crate::programs;
use crate::table::Row;

const GROUP: &str = "client library, over a raw websocket client";

pub(crate) async fn measure(quick: bool) -> Result<Vec<Row>> {
    let mut command = Command::new(programs::beside("examples/bench")?);
    command.arg("--json").args(quick.then_some("--quick")).kill_on_drop(true);
    let output = command.output().await.context("cannot start the client's benchmark")?;
    // It fails when a target is missed, and its rows say so; without rows something else went wrong.
    let rows: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the client's benchmark: {}", String::from_utf8_lossy(&output.stderr)))?;
    let rows = rows.as_array().context("the client's benchmark printed no rows")?.iter();
    Ok(rows.map(row).collect())
}

fn row(value: &Value) -> Row {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Row {
        target: text("target"),
        met: value["met"].as_bool(),
        ..Row::fact(GROUP, text("what"), value["value"].as_f64().unwrap_or_default(), &text("unit"))
    }
}
