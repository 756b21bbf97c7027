//! How results are shown.

use std::fmt::Write as _;

/// One measured number.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// What it should be, in words, and whether it is.
    pub(crate) target: &'static str,
    pub(crate) met: Option<bool>,
}

impl Row {
    pub(crate) fn fact(what: &'static str, value: f64, unit: &'static str) -> Row {
        Row { what, value, unit, target: "", met: None }
    }

    pub(crate) fn goal(
        what: &'static str,
        value: f64,
        unit: &'static str,
        target: &'static str,
        met: bool,
    ) -> Row {
        Row { what, value, unit, target, met: Some(met) }
    }
}

pub(crate) fn text(rows: &[Row]) -> String {
    let wide = rows.iter().map(|row| row.what.len()).max().unwrap_or_default();
    let mut text = String::new();
    for row in rows {
        let verdict = match row.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:wide$}  {:>10.3} {:<6} {:<24} {verdict}",
            row.what, row.value, row.unit, row.target
        );
    }
    text
}

pub(crate) fn json(rows: &[Row]) -> serde_json::Value {
    rows.iter()
        .map(|row| {
            serde_json::json!({
                "what": row.what, "value": row.value, "unit": row.unit, "target": row.target, "met": row.met,
            })
        })
        .collect()
}

/// The middle value, and the one that 99 of 100 do not pass.
pub(crate) fn percentiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at =
        |share: f64| values.get(((values.len() as f64 - 1.0) * share) as usize).copied().unwrap_or_default();
    (at(0.5), at(0.99))
}
