//! How results are shown.

use std::fmt::Write as _;

/// One measured number.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Which measurement it belongs to.
    pub(crate) group: &'static str,
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// What it should be, in words, and whether it is.
    pub(crate) target: String,
    pub(crate) met: Option<bool>,
}

impl Row {
    pub(crate) fn fact(group: &'static str, what: impl Into<String>, value: f64, unit: &str) -> Row {
        Row { group, what: what.into(), value, unit: unit.to_owned(), target: String::new(), met: None }
    }

    /// A number that should be at most this much.
    pub(crate) fn at_most(
        group: &'static str,
        what: impl Into<String>,
        value: f64,
        unit: &str,
        most: f64,
    ) -> Row {
        let target = format!("at most {}", number(most));
        Row { target, met: Some(value <= most), ..Row::fact(group, what, value, unit) }
    }

    /// A number that should be at least this much.
    pub(crate) fn at_least(
        group: &'static str,
        what: impl Into<String>,
        value: f64,
        unit: &str,
        least: f64,
    ) -> Row {
        let target = format!("at least {}", number(least));
        Row { target, met: Some(value >= least), ..Row::fact(group, what, value, unit) }
    }
}

/// Digits that mean something: none behind the point of a large number.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(crate) fn text(rows: &[Row]) -> String {
    let wide = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    let mut group = "";
    for row in rows {
        if row.group != group {
            group = row.group;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n{group}");
        }
        let verdict = match row.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let line = format!(
            "  {:wide$}  {:>9} {:<8} {:<18} {verdict}",
            row.what,
            number(row.value),
            row.unit,
            row.target
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

pub(crate) fn json(rows: &[Row]) -> serde_json::Value {
    rows.iter()
        .map(|row| {
            serde_json::json!({
                "group": row.group, "what": row.what, "value": row.value, "unit": row.unit,
                "target": row.target, "met": row.met,
            })
        })
        .collect()
}

/// Measured values in order.
#[derive(Debug)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn new(mut values: Vec<f64>) -> Sample {
        values.sort_by(f64::total_cmp);
        Sample(values)
    }

    /// The value that this share of all does not pass.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1) as f64;
        self.0.get((last * share).round() as usize).copied().unwrap_or_default()
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.at(0.99)
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    pub(crate) fn largest(&self) -> f64 {
        self.at(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_knows_its_middle_and_its_end() {
        let sample = Sample::new((0..=100).rev().map(f64::from).collect());
        assert_eq!(
            (sample.median(), sample.p99(), sample.largest(), sample.mean()),
            (50.0, 99.0, 100.0, 50.0)
        );
        assert_eq!(Sample::new(Vec::new()).median(), 0.0);
    }

    #[test]
    fn a_row_is_judged_by_its_target() {
        let rows = [Row::at_most("g", "small", 3.0, "ms", 2.5), Row::at_least("g", "large", 5.0, "/s", 5.0)];
        assert_eq!(rows.each_ref().map(|row| row.met), [Some(false), Some(true)]);
        let text = text(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].contains("at most 2.50") && lines[2].ends_with("MISSED"), "{text}");
        assert!(lines[3].ends_with("met"), "{text}");
    }
}
