//! How commands speak: tables, colours and bars for people, JSON for programs.

mod progress;
mod style;
mod table;

pub(crate) use progress::TaskBar;
pub(crate) use style::{ago, bytes, seconds, short_id, status};
pub(crate) use table::Table;

use std::io::{self, Write};

use serde::Serialize;

/// Writes one JSON document and a line end.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Writes a line of a command's result.
pub(crate) fn line(text: impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(())
}

/// Writes a line beside a command's result: what is going on, what to do next.
pub(crate) fn note(text: impl std::fmt::Display) {
    // A closed stderr is no reason to fail.
    drop(writeln!(io::stderr().lock(), "{text}"));
}
