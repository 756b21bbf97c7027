//! No package is compiled in two versions, except where somebody else holds the old one.
//!
//! The list below must be exact in both directions: a new duplicate is a question to answer, and an entry
//! that no longer applies hides the next one.

use super::Findings;
use super::repository::Repository;
use super::workspace::{Package, Workspace};
use std::collections::HashSet;

/// An old version line that we put up with.
struct Tolerated {
    name: &'static str,
    /// The compatible line: `0.22` stands for every `0.22.x`, `2` for every `2.x.y`.
    line: &'static str,
    /// Who holds it and what would end it.
    because: &'static str,
}

const TOLERATED: &[Tolerated] = &[
    old("base64", "0.22", "postgres-protocol 0.6; reqwest has moved on"),
    old("bitflags", "1", "defmt, an optional part of jiff and others for small machines; not compiled here"),
    old("block-buffer", "0.10", "digest 0.10"),
    old("const-oid", "0.9", "der 0.7, through which tokio-postgres-rustls reads certificates"),
    old("cpufeatures", "0.2", "sha1 0.10, which tungstenite uses for the websocket handshake"),
    old("crypto-common", "0.1", "digest 0.10"),
    old("digest", "0.10", "sha1 0.10, which tungstenite uses for the websocket handshake"),
    old("fallible-iterator", "0.2", "tokio-postgres; rusqlite has moved on"),
    old("foldhash", "0.1", "hashbrown 0.15"),
    old("getrandom", "0.2", "ring, listed by rustls for platforms without aws-lc; not compiled here"),
    old("getrandom", "0.3", "rand_core 0.9"),
    old("hashbrown", "0.15", "petgraph, through which tonic-prost-build orders messages; for tests only"),
    old("itertools", "0.14", "prost-derive; object_store has moved on"),
    old("miniz_oxide", "0.8", "png 0.18; flate2 has moved on"),
    old("quick-error", "1", "rusty-fork, which proptest uses; image-webp has moved on"),
    old("r-efi", "5", "getrandom 0.3 on UEFI; not compiled here"),
    old("rand", "0.9", "tungstenite 0.29"),
    old("rand_core", "0.9", "rand 0.9"),
    old("sha1", "0.10", "tungstenite, for the websocket handshake; s3s, a test server, has moved on"),
    old("spin", "0.9", "multer, which reads multipart forms for axum; crc-fast has moved on"),
    old("syn", "2", "tracing-attributes and zerocopy-derive; most derive crates have moved on"),
    old("unicode-width", "0.1", "miette, through which protox shows errors; for tests only"),
    old("wasi", "0.11", "getrandom 0.2 and mio on WASI; not compiled here"),
    old("windows-sys", "0.52", "ring on Windows; not compiled here"),
];

const fn old(name: &'static str, line: &'static str, because: &'static str) -> Tolerated {
    Tolerated { name, line, because }
}

pub(super) fn check(repository: &Repository) -> Findings {
    Findings {
        problems: problems(&repository.workspace, TOLERATED),
        seen: format!("{} tolerated", TOLERATED.len()),
        ..Findings::default()
    }
}

fn problems(workspace: &Workspace, tolerated: &[Tolerated]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut found = HashSet::new();
    for (name, mut versions) in workspace.by_name() {
        versions.sort_by_key(|package| order(&package.version));
        // The newest is the one to have; each older one needs a reason.
        versions.pop();
        for package in versions {
            let line = line(&package.version);
            if !tolerated.iter().any(|entry| entry.name == name && entry.line == line) {
                problems.push(new_duplicate(package, &line));
            }
            found.insert((name.to_owned(), line));
        }
    }
    let stale = |entry: &&Tolerated| !found.contains(&(entry.name.to_owned(), entry.line.to_owned()));
    for Tolerated { name, line, because } in tolerated.iter().filter(stale) {
        problems.push(format!("{name} {line} is no longer a duplicate: remove its entry ({because})"));
    }
    problems
}

fn new_duplicate(package: &Package, line: &str) -> String {
    let Package { name, version, used_by, .. } = package;
    let used_by = used_by.join(", ");
    format!(
        "{name} {version} is an older duplicate, used by {used_by}: get rid of it, \
         or add an entry for `{name}` `{line}` with the reason to xtask/src/tidy/duplicates.rs"
    )
}

/// The leading numbers that must be equal for two versions to be compatible: up to the first that is not 0.
fn line(version: &str) -> String {
    let numbers: Vec<&str> = core(version).split('.').collect();
    let end = numbers.iter().position(|number| *number != "0").map_or(numbers.len(), |first| first + 1);
    numbers[..end].join(".")
}

fn order(version: &str) -> Vec<u64> {
    core(version).split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

/// The version without pre-release and build metadata.
fn core(version: &str) -> &str {
    version.split(['-', '+']).next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(packages: &[(&str, &str)]) -> Workspace {
        let package = |(name, version): &(&str, &str)| Package {
            name: (*name).to_owned(),
            version: (*version).to_owned(),
            ..Package::default()
        };
        Workspace { packages: packages.iter().map(package).collect() }
    }

    #[test]
    fn only_older_lines_need_an_entry() {
        let duplicated = workspace(&[("a", "1.9.0"), ("a", "1.10.0"), ("b", "2.0.0")]);
        assert_eq!(problems(&duplicated, &[old("a", "1", "why")]).len(), 0);
        let found = problems(&duplicated, &[]);
        assert!(found.len() == 1 && found[0].starts_with("a 1.9.0 is an older duplicate"), "{found:?}");
    }

    #[test]
    fn an_entry_that_does_not_apply_is_a_problem() {
        let single = workspace(&[("a", "0.10.3")]);
        let found = problems(&single, &[old("a", "0.9", "why"), old("gone", "1", "why")]);
        assert_eq!(found.len(), 2, "{found:?}");
        // Neither is the newest version itself a duplicate.
        assert_eq!(problems(&single, &[old("a", "0.10", "why")]).len(), 1);
    }

    #[test]
    fn compatible_lines_are_those_of_cargo() {
        assert_eq!(line("1.2.3"), "1");
        assert_eq!(line("0.22.1"), "0.22");
        assert_eq!(line("0.0.7"), "0.0.7");
        assert_eq!(line("2.0.0-rc.1+build"), "2");
    }
}
