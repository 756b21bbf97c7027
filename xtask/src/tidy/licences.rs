//! Every package we depend on has a licence that we accept, and comes from crates.io.

use super::repository::Repository;
use super::workspace::Package;
use super::{Findings, spdx};

/// Licences that ask for no more than a notice. An `OR` in a manifest needs only one of them.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Zlib",
    // Data tables of Unicode, below the crates for internationalised names.
    "Unicode-3.0",
    // The list of root certificates (webpki-root-certs): data, no conditions on use.
    "CDLA-Permissive-2.0",
];

const OURS: &str = "Apache-2.0 OR MIT";

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check(repository: &Repository) -> Findings {
    let packages = &repository.workspace.packages;
    Findings {
        problems: packages.iter().flat_map(problems).collect(),
        seen: format!("{} packages", packages.len()),
        ..Findings::default()
    }
}

fn problems(package: &Package) -> Vec<String> {
    let name = format!("{} {}", package.name, package.version);
    let mut problems = Vec::new();
    match package.licence.as_deref() {
        None => problems.push(format!("{name} names no licence")),
        Some(OURS) if package.is_member => {}
        Some(other) if package.is_member => {
            problems.push(format!("{name} is ours and must be `{OURS}`, not `{other}`"))
        }
        Some(licence) => match spdx::satisfied(licence, &|one| ALLOWED.contains(&one)) {
            Ok(true) => {}
            Ok(false) => problems.push(format!("{name} has licence `{licence}`, which is not allowed")),
            Err(error) => {
                problems.push(format!("{name} has licence `{licence}`, which cannot be read: {error}"))
            }
        },
    }
    // A package of the registry could be replaced by anybody who controls another source.
    match package.source.as_deref() {
        None if package.is_member => {}
        Some(CRATES_IO) => {}
        other => {
            problems.push(format!("{name} comes from {}, not from crates.io", other.unwrap_or("a path")))
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(licence: Option<&str>, source: Option<&str>, is_member: bool) -> usize {
        let package = Package {
            licence: licence.map(str::to_owned),
            source: source.map(str::to_owned),
            is_member,
            ..Package::default()
        };
        problems(&package).len()
    }

    #[test]
    fn licence_and_source_are_both_needed() {
        assert_eq!(of(Some("MIT OR GPL-3.0-only"), Some(CRATES_IO), false), 0);
        assert_eq!(of(Some("GPL-3.0-only"), Some(CRATES_IO), false), 1);
        assert_eq!(of(Some("MIT OR"), Some(CRATES_IO), false), 1);
        assert_eq!(of(None, Some(CRATES_IO), false), 1);
        assert_eq!(of(Some("MIT"), Some("git+https://example.org/fork"), false), 1);
        assert_eq!(of(Some("MIT"), None, false), 1);
        assert_eq!(of(Some(OURS), None, true), 0);
        assert_eq!(of(Some("MIT"), None, true), 1);
    }
}
