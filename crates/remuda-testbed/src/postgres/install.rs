//! Where PostgreSQL is installed, and as whom it runs.

use super::error::Error;
use nix::unistd::{User, geteuid};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders with one folder per version, and what comes below the version. Debian does not put them into PATH.
const VERSIONED: &[(&str, &str)] =
    &[("/usr/lib/postgresql", "bin"), ("/usr/local/opt", "bin"), ("/opt/homebrew/opt", "bin")];

/// A PostgreSQL installation.
#[derive(Debug, Clone)]
pub(super) struct Install {
    bin: PathBuf,
    account: Account,
}

impl Install {
    pub(super) fn find() -> Result<Install, Error> {
        let bin = in_path()
            .or_else(newest)
            .ok_or(Error::Missing { program: "postgresql", package: "postgresql" })?;
        Ok(Install { bin, account: Account::find()? })
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// One of its programs, to be run in this folder as the right user.
    pub(super) fn program(&self, name: &str, folder: &Path) -> Command {
        self.account.command(&self.bin.join(name), folder)
    }
}

fn is_complete(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file())
}

fn in_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|folder| folder.is_absolute() && is_complete(folder))
}

fn newest() -> Option<PathBuf> {
    let mut found = Vec::new();
    for (parent, below) in VERSIONED {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let folder = entry.path().join(below);
            if is_complete(&folder) {
                found.push((version(&entry.file_name().to_string_lossy()), folder));
            }
        }
    }
    found.into_iter().max().map(|(_, folder)| folder)
}

/// `15` of `15` and of `postgresql@15`.
fn version(name: &str) -> u32 {
    name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0)
}

/// As whom servers run: PostgreSQL and PgBouncer refuse root.
#[derive(Debug, Clone)]
pub(super) struct Account {
    /// User and group, where they are not our own.
    other: Option<(u32, u32)>,
}

impl Account {
    pub(super) fn find() -> Result<Account, Error> {
        if !geteuid().is_root() {
            return Ok(Account { other: None });
        }
        let user = User::from_name("postgres").ok().flatten().ok_or(Error::NoUser)?;
        Ok(Account { other: Some((user.uid.as_raw(), user.gid.as_raw())) })
    }

    /// A program run as this account, away from our terminal and our signals.
    pub(super) fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        // The folder we are in may be closed to the other user.
        command.current_dir(folder).process_group(0).stdin(Stdio::null());
        if let Some((user, group)) = self.other {
            command.uid(user).gid(group);
        }
        command
    }

    /// Makes a folder of ours theirs.
    pub(super) fn own(&self, path: &Path) -> Result<(), Error> {
        let Some((user, group)) = self.other else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(user), Some(group))
            .map_err(Error::io(format!("give {} to the user postgres", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_are_numbers() {
        assert!(version("9") < version("15"));
        assert_eq!(version("postgresql@16"), 16);
    }
}
