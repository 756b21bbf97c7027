//! What the terminal output looks like: headings, times, and colour only where somebody sees it.

use std::io::{IsTerminal, Write};
use std::sync::LazyLock;
use std::time::Duration;

/// Colour is for people: never into a file or a CI log, and never against <https://no-color.org>.
static COLOUR: LazyLock<bool> = LazyLock::new(|| {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && std::io::stderr().is_terminal() && !refused
});

fn paint(code: &str, text: &str) -> String {
    if *COLOUR { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

pub(crate) fn bold(text: &str) -> String {
    paint("1", text)
}

pub(crate) fn dim(text: &str) -> String {
    paint("2", text)
}

pub(crate) fn red(text: &str) -> String {
    paint("1;31", text)
}

pub(crate) fn green(text: &str) -> String {
    paint("32", text)
}

pub(crate) fn yellow(text: &str) -> String {
    paint("33", text)
}

/// Opens a step. Flushed, because the child process writes to the same place right after.
pub(crate) fn heading(name: &str, purpose: &str) {
    println!("\n{} {}", bold(&format!("=== {name}:")), bold(purpose));
    flush();
}

/// Hands everything printed so far to the terminal or log before somebody else writes there.
pub(crate) fn flush() {
    // A closed output is no reason to stop testing; the exit code still tells the result.
    let _ = std::io::stdout().flush();
}

/// `0.4 s`, `75.3 s`, `3 min 07 s`.
pub(crate) fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 100 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_reads_well_at_every_size() {
        assert_eq!(time(Duration::from_millis(449)), "0.4 s");
        assert_eq!(time(Duration::from_millis(99_900)), "99.9 s");
        assert_eq!(time(Duration::from_secs(187)), "3 min 07 s");
    }
}
