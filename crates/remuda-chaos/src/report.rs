//! What a run says at its end: a table, and, when something is wrong, a folder with the evidence.

use crate::check::{Evidence, Verdict};
use crate::options::Options;
use anyhow::{Context, Result};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many violations are shown; all of them are in the folder.
const SHOWN: usize = 20;

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    scenario: String,
    seed: u64,
    tasks: usize,
    took: Duration,
    faults: BTreeMap<String, usize>,
    verdict: Verdict,
    /// Where the evidence is, when something is wrong.
    pub evidence: Option<PathBuf>,
}

impl Report {
    pub(crate) fn new(options: &Options, evidence: &Evidence, verdict: Verdict, took: Duration) -> Report {
        let mut faults = BTreeMap::new();
        for done in &evidence.faults {
            *faults.entry(done.fault.to_string()).or_default() += 1;
        }
        Report {
            scenario: options.scenario.to_string(),
            seed: options.seed,
            tasks: evidence.tasks.len(),
            took,
            faults,
            verdict,
            evidence: None,
        }
    }

    /// Whether everything was as it must be.
    pub fn is_clean(&self) -> bool {
        self.verdict.violations.is_empty()
    }

    /// The rows of the table, each a name and a value.
    fn rows(&self) -> Vec<(String, String)> {
        let verdict = &self.verdict;
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for repeat in &verdict.repeats {
            *reasons.entry(repeat.reason.to_string()).or_default() += 1;
        }
        let faults: usize = self.faults.values().sum();
        let mut rows = vec![
            ("tasks".to_owned(), self.tasks.to_string()),
            ("completed".to_owned(), verdict.completed.to_string()),
            ("failed, as planned".to_owned(), verdict.failed.to_string()),
            ("cancelled".to_owned(), verdict.cancelled.to_string()),
            ("**lost**".to_owned(), verdict.lost.to_string()),
            ("**executions beyond one, without a stated reason**".to_owned(), verdict.duplicates.to_string()),
            ("**set aside as harmful**".to_owned(), verdict.set_aside.to_string()),
            ("executions repeated, for a stated reason".to_owned(), counted(&reasons)),
            ("executions after an error of the task's own".to_owned(), verdict.retries.to_string()),
            ("adoptions".to_owned(), verdict.adoptions.to_string()),
            ("violations of any kind".to_owned(), verdict.violations.len().to_string()),
            ("faults".to_owned(), faults.to_string()),
        ];
        rows.extend(self.faults.iter().map(|(kind, count)| (format!("- {kind}"), count.to_string())));
        rows.push(("seconds".to_owned(), self.took.as_secs().to_string()));
        rows
    }

    /// Puts everything that helps to understand what is wrong into a folder.
    pub(crate) fn keep(&mut self, evidence: &Evidence, world: &Path, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let write = |name: &str, text: String| {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        write("report.md", self.to_string())?;
        let list = |lines: Vec<String>| lines.join("\n") + "\n";
        write("violations.txt", list(self.verdict.violations.iter().map(ToString::to_string).collect()))?;
        let repeats = self.verdict.repeats.iter();
        let repeats = repeats.map(|one| format!("{} attempt {}: {}", one.task, one.attempt, one.reason));
        write("repeats.txt", list(repeats.collect()))?;
        let faults = evidence.faults.iter();
        let faults =
            faults.map(|done| format!("{} to {}  {}: {:?}", done.from, done.to, done.on, done.fault));
        write("faults.txt", list(faults.collect()))?;
        for violation in &self.verdict.violations {
            let Some(task) = &violation.task else { continue };
            let Some(seen) = evidence.tasks.iter().find(|seen| seen.name() == *task) else { continue };
            write(&format!("task-{task}.txt"), format!("{violation}\n\n{seen:#?}\n"))?;
        }
        for entry in std::fs::read_dir(world)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "log")
                && let Some(name) = path.file_name()
            {
                std::fs::copy(&path, folder.join(name))?;
            }
        }
        self.evidence = Some(folder.to_owned());
        Ok(())
    }

    /// For programs.
    pub fn json(&self) -> String {
        let rows: serde_json::Map<_, _> =
            self.rows().into_iter().map(|(name, value)| (name, json!(value))).collect();
        json!({"scenario": self.scenario, "seed": self.seed, "clean": self.is_clean(), "rows": rows})
            .to_string()
    }
}

fn counted(reasons: &BTreeMap<String, usize>) -> String {
    let total: usize = reasons.values().sum();
    if total == 0 {
        return "0".to_owned();
    }
    let parts: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
    format!("{total} ({})", parts.join(", "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{}, seed {}", self.scenario, self.seed);
        let rows = self.rows();
        let width = |of: fn(&(String, String)) -> &str, first: usize| {
            rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0).max(first)
        };
        let (left, right) = (width(|row| &row.0, title.len()), width(|row| &row.1, 1));
        let mut text =
            format!("| {title:<left$} | {:>right$} |\n| {:-<left$} | {:->right$} |\n", "", "", ":");
        for (name, value) in rows {
            let _ = writeln!(text, "| {name:<left$} | {value:>right$} |");
        }
        f.write_str(&text)?;
        for violation in self.verdict.violations.iter().take(SHOWN) {
            writeln!(f, "violation: {violation}")?;
        }
        if self.verdict.violations.len() > SHOWN {
            writeln!(f, "… and {} more", self.verdict.violations.len() - SHOWN)?;
        }
        if let Some(evidence) = &self.evidence {
            writeln!(f, "evidence: {}", evidence.display())?;
        }
        Ok(())
    }
}
