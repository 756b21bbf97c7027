//! Running other programs: always from the repository's root, always saying what is run.

use crate::term;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository: the folder above this crate.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The cargo that runs us, so that a `+toolchain` given once holds for everything.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Shows the command, runs it with our own input and output, and fails if it fails.
///
/// The output is inherited rather than read and repeated: what cargo prints arrives unchanged, at once,
/// and in colour where cargo itself would use it.
pub(crate) fn shown(command: &mut Command) -> Result<()> {
    let line = describe(command);
    println!("{}", term::dim(&format!("$ {line}")));
    term::flush();
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs quietly and returns what was printed; its error output is part of our error.
pub(crate) fn captured(command: &mut Command) -> Result<Vec<u8>> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed ({}): {}", output.status, said.trim());
    }
    Ok(output.stdout)
}

/// Where a program would be found, if it is installed.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The command as one would type it, with the variables set for it in front.
pub(crate) fn describe(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.display(), quoted(&value?.to_string_lossy())))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    let words = words.map(|word| quoted(&word.to_string_lossy()));
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_described_command_can_be_typed_again() {
        let mut command = Command::new("/usr/bin/cargo");
        command.arg("doc").arg("it's").arg("").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(describe(&command), r"RUSTDOCFLAGS='-D warnings' cargo doc 'it'\''s' ''");
    }

    #[test]
    fn the_root_is_where_the_lock_file_is() {
        assert!(root().join("Cargo.lock").is_file());
    }
}
