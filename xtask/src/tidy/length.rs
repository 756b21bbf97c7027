//! A file has one subject; a long one usually has two.

use super::Findings;
use super::repository::{File, Repository};

/// From here on somebody should look.
const LONG: usize = 500;
/// From here on it has to be split.
const TOO_LONG: usize = 800;
/// What a program wrote is not read from top to bottom.
const WRITTEN_BY_PROGRAMS: &str = "/generated.rs";
/// Folders whose files may be long: tables, and lists of cases.
const TABLES: &[&str] = &["data", "tests"];

pub(super) fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let (mut files, mut total) = (0, 0);
    for (file, text) in repository.with_ending(&[".rs"]) {
        if file.path.ends_with(WRITTEN_BY_PROGRAMS) {
            continue;
        }
        let lines = text.lines().count();
        files += 1;
        total += lines;
        match verdict(file, lines) {
            Verdict::Fine => {}
            Verdict::Long => findings.warnings.push(format!("{}: {lines} lines (aim: {LONG})", file.path)),
            Verdict::TooLong => {
                findings.problems.push(format!("{}: {lines} lines, split it (limit: {TOO_LONG})", file.path));
            }
        }
    }
    findings.seen = format!("{files} files, {total} lines");
    findings
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Fine,
    Long,
    TooLong,
}

fn verdict(file: &File, lines: usize) -> Verdict {
    let table = TABLES.iter().any(|folder| file.is_below(folder));
    match lines {
        0..=LONG => Verdict::Fine,
        TOO_LONG.. if lines > TOO_LONG && !table => Verdict::TooLong,
        _ => Verdict::Long,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_a_limit_and_tables_have_not() {
        let of = |path: &str, lines| verdict(&File::new(path, ""), lines);
        assert_eq!(of("crates/a/src/b.rs", 500), Verdict::Fine);
        assert_eq!(of("crates/a/src/b.rs", 800), Verdict::Long);
        assert_eq!(of("crates/a/src/b.rs", 801), Verdict::TooLong);
        assert_eq!(of("crates/a/src/data/b.rs", 2000), Verdict::Long);
        assert_eq!(of("crates/a/tests/b.rs", 2000), Verdict::Long);
        // A file is not a folder.
        assert_eq!(of("crates/a/src/tests.rs", 801), Verdict::TooLong);
    }
}
