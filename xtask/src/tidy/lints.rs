//! Every crate of ours takes the lints of the workspace; a new crate would otherwise have none.

use super::Findings;
use super::repository::Repository;

pub(super) fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let mut seen = 0;
    for member in repository.workspace.members() {
        seen += 1;
        match std::fs::read_to_string(&member.manifest) {
            Ok(manifest) if inherits_lints(&manifest) => {}
            Ok(_) => findings.problems.push(format!("{} lacks `[lints] workspace = true`", member.name)),
            Err(error) => {
                findings.problems.push(format!("{}: cannot read its manifest: {error}", member.name))
            }
        }
    }
    findings.seen = format!("{seen} manifests");
    findings
}

/// cargo metadata does not tell lints, and two lines do not need a TOML parser.
fn inherits_lints(manifest: &str) -> bool {
    let lines = manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let table = lines.skip_while(|line| *line != "[lints]").skip(1).take_while(|line| !line.starts_with('['));
    table.into_iter().any(|line| line.replace(' ', "") == "workspace=true")
}

#[cfg(test)]
mod tests {
    use super::inherits_lints;

    #[test]
    fn only_the_lints_table_counts() {
        assert!(inherits_lints("[package]\nname = \"a\"\n\n[lints]  # ours\nworkspace = true\n"));
        assert!(!inherits_lints("[lints]\n[dependencies]\nworkspace = true\n"));
        assert!(!inherits_lints("[package]\nversion.workspace = true\n"));
        assert!(!inherits_lints("[lints]\n# workspace = true\n"));
    }
}
