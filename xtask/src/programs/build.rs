//! Building the test programs, and what cargo says they are.

use crate::run::{cargo, describe};
use crate::term;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program with tests in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// `lib`, `bin`, `test` or `example`.
    pub(crate) kind: String,
    /// The name of the target.
    pub(crate) target: String,
    pub(super) path: PathBuf,
    /// Where cargo would start it: the folder of its package.
    pub(super) folder: PathBuf,
}

impl Program {
    /// For people, and for the table of manners: `remuda::walk`, `remuda` for the tests in a library, `remuda bin xtask`.
    pub(crate) fn name(&self) -> String {
        match self.kind.as_str() {
            "lib" => self.package.clone(),
            "test" => format!("{}::{}", self.package, self.target),
            kind => format!("{} {kind} {}", self.package, self.target),
        }
    }

    /// How to run it alone.
    pub(super) fn again(&self) -> String {
        match self.kind.as_str() {
            "lib" => format!("cargo test -p {} --lib", self.package),
            kind => format!("cargo test -p {} --{kind} {}", self.package, self.target),
        }
    }

    /// From one message of cargo, if it is about a test program.
    fn from_message(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let path = PathBuf::from(message["executable"].as_str()?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        // The folders of our crates are named like them; the id of a package has changed its form before.
        let package = folder.file_name()?.to_str()?.to_owned();
        let target = &message["target"];
        let (kind, name) = (target["kind"][0].as_str()?.to_owned(), target["name"].as_str()?.to_owned());
        Some(Self { package, kind, target: name, path, folder })
    }
}

/// What `cargo test` runs. `--all-targets` without the benches: one with its own `main` would run at full length. They are
/// still compiled, by clippy.
pub(crate) const USUAL: &[&str] = &["--lib", "--bins", "--tests", "--examples"];

/// Builds these targets of all packages, and the programs that they call. Never of fewer packages: others would choose other features,
/// and half of the dependencies would be compiled again.
pub(crate) fn build(targets: &[&str]) -> Result<Vec<Program>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked", "--no-run"]).args(targets);
    println!("{}", term::dim(&format!("$ {}", describe(&command))));
    term::flush();
    let printed = artifacts(command.arg("--message-format=json-render-diagnostics"))?;
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs: BTreeSet<Program> =
        messages.filter_map(|message| Program::from_message(&message)).collect();
    if programs.is_empty() {
        bail!("cargo has built no test program");
    }
    Ok(programs.into_iter().collect())
}

/// What it prints for programs; what it says to people goes where ours goes.
fn artifacts(command: &mut Command) -> Result<String> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut printed = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut printed).context("cannot read what cargo says")?;
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("`{}` failed ({status})", describe(command));
    }
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(kind: &str, name: &str) -> Value {
        json!({
            "reason": "compiler-artifact", "manifest_path": "/r/crates/remuda/Cargo.toml", "executable": "/r/target/x",
            "profile": {"test": true}, "target": {"kind": [kind], "name": name},
        })
    }

    #[test]
    fn a_program_is_what_has_tests_and_can_be_run() {
        let named = |kind, name| Program::from_message(&message(kind, name)).map(|program| program.name());
        assert_eq!(named("test", "walk").unwrap(), "remuda::walk");
        assert_eq!(named("lib", "remuda").unwrap(), "remuda");
        assert_eq!(named("bin", "remuda").unwrap(), "remuda bin remuda");
        let mut other = message("bin", "remuda");
        other["profile"]["test"] = false.into();
        assert_eq!(Program::from_message(&other), None);
        other = message("lib", "remuda");
        other["executable"] = Value::Null;
        assert_eq!(Program::from_message(&other), None);
        assert_eq!(Program::from_message(&json!({"reason": "build-finished"})), None);
    }

    #[test]
    fn it_says_how_to_run_it_alone() {
        let again = |kind, name| Program::from_message(&message(kind, name)).unwrap().again();
        assert_eq!(again("test", "walk"), "cargo test -p remuda --test walk");
        assert_eq!(again("lib", "remuda"), "cargo test -p remuda --lib");
        assert_eq!(again("bin", "remuda"), "cargo test -p remuda --bin remuda");
    }
}
