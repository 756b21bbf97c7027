//! ComfyUI clients that others wrote, which the tests run against Remuda, ComfyUI's own web page, and the official
//! LittleHorse SDK, which shows that our double of a LittleHorse server is an honest one.
//!
//! They come from PyPI and npm in exactly the versions that the lists beside the tests name, below the target
//! folder, each Python client in an environment of its own because their dependencies contradict each other.
//! Nothing is installed again while its list stays the same.

use crate::run;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the lists are.
const LISTS: &str = "crates/remuda/tests/clients";
/// Folders with a `requirements.txt`.
const PYTHON: [&str; 4] = ["comfy-api-simplified", "comfykit", "comfy-cli", "frontend"];
/// The LittleHorse SDK, and the folder with its `requirements.txt`.
const LITTLEHORSE: (&str, &str) = ("littlehorse", "crates/littlehorse-double/tests/python");
/// The same with an HTTP client, for the worker that ours is compared with.
const BENCH: (&str, &str) = ("littlehorse-bench", "crates/remuda-bench/python");
/// A fuzzer of described APIs, which `cargo xtask attack fuzz` runs beside our own.
const SCHEMATHESIS: (&str, &str) = ("schemathesis", "crates/remuda-attack/python");
/// The folder with `package.json` and its lock.
const JAVASCRIPT: &str = "javascript";
/// Holds the list that was installed; the tests compare it, too.
const INSTALLED: &str = "installed.txt";

/// Installs what is not there in the wanted versions.
pub(crate) fn provide() -> Result<()> {
    let lists = run::root().join(LISTS);
    let home = target_folder()?.join("clients");
    for (name, folder) in python() {
        let list = run::root().join(folder).join("requirements.txt");
        install(&home.join(name), &list, |folder| environment(folder, &list))
            .with_context(|| format!("cannot have {name} from PyPI, which the tests call"))?;
    }
    let list = lists.join(JAVASCRIPT).join("package-lock.json");
    install(&home.join(JAVASCRIPT), &list, |folder| packages(folder, &lists.join(JAVASCRIPT)))
        .context("cannot have the JavaScript clients from npm, which the tests call")?;
    println!("present: {}, {}, {JAVASCRIPT} clients", PYTHON.join(", "), LITTLEHORSE.0);
    Ok(())
}

/// Installs the LittleHorse SDK for the benchmarks, and returns its Python.
pub(crate) fn provide_for_bench() -> Result<PathBuf> {
    let folder = target_folder()?.join("clients").join(BENCH.0);
    let list = run::root().join(BENCH.1).join("requirements.txt");
    install(&folder, &list, |folder| environment(folder, &list))?;
    Ok(folder.join("bin/python"))
}

/// Installs schemathesis, and returns its program.
pub(crate) fn provide_schemathesis() -> Result<PathBuf> {
    let folder = target_folder()?.join("clients").join(SCHEMATHESIS.0);
    let list = run::root().join(SCHEMATHESIS.1).join("requirements.txt");
    install(&folder, &list, |folder| environment(folder, &list))?;
    Ok(folder.join("bin/schemathesis"))
}

/// Every Python client and the folder with its list.
fn python() -> impl Iterator<Item = (&'static str, PathBuf)> {
    let clients = PYTHON.into_iter().map(|name| (name, Path::new(LISTS).join(name)));
    clients.chain([(LITTLEHORSE.0, PathBuf::from(LITTLEHORSE.1))])
}

/// Installs into an empty folder, unless the list is the one installed before.
pub(crate) fn install(folder: &Path, list: &Path, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let wanted = fs::read(list).with_context(|| format!("cannot read {}", list.display()))?;
    let installed = folder.join(INSTALLED);
    if fs::read(&installed).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    work(folder)?;
    // Last, so that an installation that was broken off is not taken for a whole one.
    fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))
}

pub(crate) fn environment(folder: &Path, list: &Path) -> Result<()> {
    run::shown(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"];
    run::shown(Command::new(folder.join("bin/python")).args(pip).arg("--requirement").arg(list))
}

fn packages(folder: &Path, from: &Path) -> Result<()> {
    for name in ["package.json", "package-lock.json"] {
        fs::copy(from.join(name), folder.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    let npm = ["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"];
    run::shown(Command::new("npm").args(npm).current_dir(folder))
}

/// Where cargo builds, which the user may have moved.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let metadata = ["metadata", "--format-version", "1", "--locked", "--no-deps"];
    let printed = run::captured(run::cargo().args(metadata))?;
    let metadata: Value = serde_json::from_slice(&printed).context("cargo metadata is not JSON")?;
    let folder = metadata.get("target_directory").and_then(Value::as_str);
    folder.map(PathBuf::from).context("cargo metadata has no `target_directory`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_names_exact_versions_and_no_address() {
        for (name, folder) in
            python().chain([BENCH, SCHEMATHESIS].map(|(name, folder)| (name, PathBuf::from(folder))))
        {
            let list = fs::read_to_string(run::root().join(folder).join("requirements.txt")).unwrap();
            for line in list.lines() {
                let (package, version) = line.split_once("==").unwrap_or_else(|| panic!("{name}: {line}"));
                assert!(!package.is_empty() && version.starts_with(|c: char| c.is_ascii_digit()), "{line}");
            }
        }
        let lock = fs::read(run::root().join(LISTS).join(JAVASCRIPT).join("package-lock.json")).unwrap();
        let lock: Value = serde_json::from_slice(&lock).unwrap();
        for (path, package) in lock["packages"].as_object().unwrap() {
            assert!(package.get("resolved").is_none(), "{path} names where it comes from");
            assert!(path.is_empty() || package.get("integrity").is_some(), "{path} has no hash");
        }
    }

    #[test]
    fn what_is_there_is_not_installed_again() {
        let folder = std::env::temp_dir().join(format!("remuda-xtask-{}", std::process::id()));
        let list = folder.join("list");
        fs::create_dir_all(&folder).unwrap();
        let mut installed = 0;
        for (content, expected) in [("a", 1), ("a", 1), ("b", 2), ("b", 2)] {
            fs::write(&list, content).unwrap();
            let count = |_: &Path| {
                installed += 1;
                Ok(())
            };
            install(&folder.join("it"), &list, count).unwrap();
            assert_eq!(installed, expected);
        }
        // What failed is tried again.
        fs::write(&list, "c").unwrap();
        install(&folder.join("it"), &list, |_| anyhow::bail!("no network")).unwrap_err();
        install(&folder.join("it"), &list, |_| anyhow::bail!("no network")).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }
}
