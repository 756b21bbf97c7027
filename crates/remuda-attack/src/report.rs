//! What came out: a table for people, JSON for programs, Markdown for the documentation.

use crate::judge::{Measured, Spread};
use serde::Serialize;
use std::fmt::Write;

/// One attack and how it went.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The attack.
    pub name: &'static str,
    /// What was tried.
    pub what: &'static str,
    /// Whether numbers were taken.
    pub is_load: bool,
    /// The numbers.
    pub measured: Measured,
    /// What should not have been possible; nothing if the door held.
    pub violations: Vec<String>,
    /// Whether it was broken off because it took too long: then nothing but the numbers counts.
    pub broken_off: bool,
    /// How long it took, start and stop of the server included.
    pub took_s: f64,
}

/// What came out of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where chance began.
    pub seed: u64,
    /// Whether it was the short form.
    pub quick: bool,
    /// The attacks.
    pub lines: Vec<Line>,
}

/// The head of the table.
pub const HEAD: &str =
    "attack                      verdict    memory    quiet p99   under p50       p99       max     /live";

impl Line {
    /// Whether the door held.
    pub fn held(&self) -> bool {
        self.violations.is_empty()
    }

    /// One line of the table, and one more for each violation.
    pub fn shown(&self, colour: bool) -> String {
        // Padded before it is painted: colour codes must not count as width.
        let (word, code) = if self.held() { ("held    ", "32") } else { ("VIOLATED", "31") };
        let verdict = if colour { format!("\u{1b}[{code}m{word}\u{1b}[0m") } else { word.to_owned() };
        let Measured { quiet, under, live, peak, .. } = &self.measured;
        let mut text = format!("{:<27} {verdict} {:>6} MiB", self.name, peak >> 20);
        if self.is_load {
            let ms = |value: f64| format!("{value:.1} ms");
            let _ = write!(
                text,
                " {:>11} {:>11} {:>9} {:>9} {:>9}",
                ms(quiet.p99),
                ms(under.p50),
                ms(under.p99),
                ms(under.max),
                ms(live.max)
            );
        }
        for violation in &self.violations {
            let _ = write!(text, "\n    {violation}");
        }
        if self.broken_off {
            text.push_str("\n    broken off because it took too long: judged by its numbers only");
        }
        text
    }
}

impl Report {
    /// Whether every door held.
    pub fn is_clean(&self) -> bool {
        self.lines.iter().all(Line::held)
    }

    /// The table of the documentation.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| attack | what is tried | peak memory | second tenant, quiet p99 | p50 under attack | p99 | worst | worst `/live` | verdict |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for line in &self.lines {
            let Measured { quiet, under, live, peak, .. } = &line.measured;
            let ms = |spread: &Spread, value: f64| match spread.count {
                0 => String::new(),
                _ => format!("{value:.0} ms"),
            };
            let verdict = if line.held() { "held" } else { "**violated**" };
            let _ = writeln!(
                text,
                "| `{}` | {} | {} MiB | {} | {} | {} | {} | {} | {verdict} |",
                line.name,
                line.what,
                peak >> 20,
                ms(quiet, quiet.p99),
                ms(under, under.p50),
                ms(under, under.p99),
                ms(under, under.max),
                ms(live, live.max),
            );
        }
        text
    }

    /// One sentence.
    pub fn summary(&self) -> String {
        let violated = self.lines.iter().filter(|line| !line.held()).count();
        format!("{} attacks, {violated} violations, seed {}", self.lines.len(), self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_seen_in_every_form() {
        let line = Line {
            name: "x",
            what: "something",
            is_load: true,
            measured: Measured { peak: 5 << 20, ..Measured::default() },
            violations: vec!["the door was open".to_owned()],
            broken_off: true,
            took_s: 1.0,
        };
        assert!(line.shown(false).contains("VIOLATED") && line.shown(false).contains("the door was open"));
        assert!(line.shown(false).contains("broken off"));
        let report = Report { seed: 1, quick: true, lines: vec![line] };
        assert!(!report.is_clean() && report.markdown().contains("**violated**"));
        assert!(report.summary().contains("1 violations"));
    }

    #[test]
    fn every_attack_has_its_row_in_the_documentation() {
        let page = include_str!("../../../docs/security.md");
        for attack in crate::catalogue::CATALOGUE {
            let row = format!("\n| `{}` | {} | ", attack.name, attack.what);
            assert!(page.contains(&row), "{} is not in the table, or as something else", attack.name);
        }
    }
}
