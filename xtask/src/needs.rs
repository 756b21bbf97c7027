//! What the tests need beside the Rust toolchain, and how it gets here.
//!
//! Tests decode what the simulator writes with ffmpeg, use a private PostgreSQL, straight and through PgBouncer,
//! and run clients of others in Python, Node and Chromium. On a fresh Debian machine with root rights, as in CI,
//! these are installed; everywhere else one line says what is missing, because installing software is then the
//! owner's decision.

use crate::{clients, run};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that tests call, and the Debian package that holds it.
pub(crate) struct Need {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

const NEEDS: &[Need] = &[
    Need { program: "ffmpeg", package: "ffmpeg" },
    Need { program: "ffprobe", package: "ffmpeg" },
    Need { program: "initdb", package: "postgresql" },
    Need { program: "pgbouncer", package: "pgbouncer" },
    Need { program: PYTHON, package: "python3-venv" },
    Need { program: "node", package: "nodejs" },
    Need { program: "npm", package: "npm" },
    Need { program: "chromium", package: "chromium" },
];

/// On Debian it may be there without the part that makes environments.
const PYTHON: &str = "python3";
/// Debian has a folder per version of PostgreSQL, and does not put them into PATH.
const VERSIONS_OF_POSTGRESQL: &str = "/usr/lib/postgresql";
/// Programs of Debian that are only in the PATH of root.
const SYSTEM: &str = "/usr/sbin";

/// Makes sure that everything the tests call is there, or says what is not.
pub(crate) fn provide() -> Result<()> {
    have(NEEDS)?;
    let present: Vec<&str> = NEEDS.iter().map(|need| need.program).collect();
    println!("present: {}", present.join(", "));
    clients::provide()
}

/// Installs what is missing of these, where that is ours to do.
pub(crate) fn have(needs: &[Need]) -> Result<()> {
    if !missing(needs).is_empty() && may_install() {
        run::shown(apt_get().args(["update", "-qq"]))?;
        let install = ["install", "-qq", "-y", "--no-install-recommends"];
        run::shown(apt_get().args(install).args(packages(&missing(needs))))?;
    }
    let missing = missing(needs);
    if !missing.is_empty() {
        let programs = missing.iter().map(|need| need.program).collect::<Vec<_>>().join(", ");
        let packages = packages(&missing).join(" ");
        bail!(
            "the tests need {programs}; install what is missing, on Debian with `apt-get install {packages}`"
        );
    }
    Ok(())
}

fn missing(needs: &[Need]) -> Vec<&Need> {
    needs.iter().filter(|need| !is_there(need.program)).collect()
}

fn is_there(program: &str) -> bool {
    if program == PYTHON {
        return run::captured(Command::new(PYTHON).args(["-c", "import ensurepip, venv"])).is_ok();
    }
    let versions = std::fs::read_dir(VERSIONS_OF_POSTGRESQL).into_iter().flatten().flatten();
    let mut aside = versions.map(|version| version.path().join("bin")).chain([PathBuf::from(SYSTEM)]);
    run::which(program).is_some() || aside.any(|folder| folder.join(program).is_file())
}

fn packages(needs: &[&Need]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = needs.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn may_install() -> bool {
    is_root() && Path::new("/etc/debian_version").exists() && run::which("apt-get").is_some()
}

fn is_root() -> bool {
    // The standard library does not tell the user id, and one call is not worth a dependency.
    run::captured(Command::new("id").arg("-u")).is_ok_and(|printed| printed.trim_ascii() == b"0")
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
