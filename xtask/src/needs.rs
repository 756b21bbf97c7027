//! What the tests need beside the Rust toolchain, and how it gets here.
//!
//! Tests decode what the simulator writes with ffmpeg. On a fresh Debian machine with root rights, as in
//! CI, it is installed; everywhere else one line says what is missing, because installing software is
//! then the owner's decision.

use crate::run;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// A program that tests call, and the Debian package that holds it.
struct Need {
    program: &'static str,
    package: &'static str,
}

const NEEDS: &[Need] = &[
    Need {
        program: "ffmpeg",
        package: "ffmpeg",
    },
    Need {
        program: "ffprobe",
        package: "ffmpeg",
    },
];

/// Makes sure that everything the tests call is there, or says what is not.
pub(crate) fn provide() -> Result<()> {
    let missing: Vec<&Need> = NEEDS
        .iter()
        .filter(|need| run::which(need.program).is_none())
        .collect();
    if missing.is_empty() {
        let there: Vec<&str> = NEEDS.iter().map(|need| need.program).collect();
        println!("present: {}", there.join(", "));
        return Ok(());
    }
    let programs = missing
        .iter()
        .map(|need| need.program)
        .collect::<Vec<_>>()
        .join(", ");
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    if !may_install() {
        bail!(
            "the tests need {programs}: install it, on Debian with `apt-get install {}`",
            packages.join(" ")
        );
    }
    run::shown(apt_get().args(["update", "-qq"]))?;
    run::shown(
        apt_get()
            .args(["install", "-qq", "-y", "--no-install-recommends"])
            .args(&packages),
    )
    .with_context(|| format!("the tests need {programs}"))
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
