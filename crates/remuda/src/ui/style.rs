//! Words and numbers as people like to read them.

use std::time::Duration;

use console::{StyledObject, style};

/// A status in its colour.
pub(crate) fn status(name: &str) -> StyledObject<String> {
    let text = style(name.to_owned());
    match name {
        "completed" | "idle" | "healthy" => text.green(),
        "running" | "busy" => text.cyan(),
        "failed" | "error" => text.red(),
        "cancelled" | "stopped" => text.dim(),
        _ => text.yellow(),
    }
}

/// How long ago, in the one unit that matters.
pub(crate) fn ago(moment: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let passed = now.duration_since(moment).as_secs();
    match passed {
        ..0 => format!("in {}", unit(passed.saturating_neg())),
        0 => "now".to_owned(),
        _ => format!("{} ago", unit(passed)),
    }
}

fn unit(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A duration with two digits after the point.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}

/// A size in powers of 1024.
pub(crate) fn bytes(size: u64) -> String {
    indicatif::BinaryBytes(size).to_string()
}

/// The end of an id: the part that differs between ids made in one second.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(id.len().saturating_sub(12)..).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_one_unit() {
        let now = jiff::Timestamp::from_second(1_000_000).unwrap();
        for (second, told) in
            [(999_999, "1 s ago"), (1_000_000, "now"), (1_000_120, "in 2 min"), (990_000, "2 h ago")]
        {
            assert_eq!(ago(jiff::Timestamp::from_second(second).unwrap(), now), told);
        }
    }
}
