//! What a task says while it runs, as the people of the workflow read it.

use std::collections::VecDeque;

/// How many bytes are kept of the beginning, and as many of the end.
const KEPT: usize = 256 * 1024;

/// Lines with their times. Bounded: of a long log the beginning and the end are kept.
#[derive(Debug, Default)]
pub(super) struct Log {
    head: String,
    tail: VecDeque<String>,
    tail_bytes: usize,
    left_out: usize,
}

impl Log {
    /// One more line.
    pub(super) fn add(&mut self, at: jiff::Timestamp, text: &str) {
        let mut line = format!("[{at}] ");
        let end = (0..=text.len().min(KEPT / 4)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        line.push_str(&text[..end]);
        if end < text.len() {
            line.push_str(&format!("… ({} more bytes)", text.len() - end));
        }
        if self.tail.is_empty() && self.head.len() + line.len() < KEPT {
            if !self.head.is_empty() {
                self.head.push('\n');
            }
            self.head.push_str(&line);
            return;
        }
        self.tail_bytes += line.len() + 1;
        self.tail.push_back(line);
        while self.tail_bytes > KEPT {
            let Some(line) = self.tail.pop_front() else { return };
            self.tail_bytes -= line.len() + 1;
            self.left_out += 1;
        }
    }

    /// All of it, if anything was said.
    pub(super) fn text(&self) -> Option<String> {
        if self.head.is_empty() && self.tail.is_empty() {
            return None;
        }
        let mut text = self.head.clone();
        if self.left_out > 0 {
            text.push_str(&format!("\n… ({} lines left out)", self.left_out));
        }
        for line in &self.tail {
            text.push('\n');
            text.push_str(line);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_times() {
        let mut log = Log::default();
        assert_eq!(log.text(), None);
        let at = "2026-11-15T07:00:03.983083Z".parse().unwrap();
        log.add(at, "submitted");
        log.add(at, "done");
        assert_eq!(
            log.text().unwrap(),
            "[2026-11-15T07:00:03.983083Z] submitted\n[2026-11-15T07:00:03.983083Z] done"
        );
    }

    #[test]
    fn of_a_long_log_the_beginning_and_the_end_are_kept() {
        let mut log = Log::default();
        for n in 0..100_000 {
            log.add(jiff::Timestamp::UNIX_EPOCH, &format!("line {n}"));
        }
        log.add(jiff::Timestamp::UNIX_EPOCH, &"ä".repeat(KEPT));
        let text = log.text().unwrap();
        assert!(text.len() < 2 * KEPT + 100, "{} bytes", text.len());
        assert!(text.starts_with("[1970-01-01T00:00:00Z] line 0\n"));
        assert!(text.contains("lines left out)\n"));
        assert!(text.contains("line 99999\n"));
        assert!(text.ends_with("more bytes)"));
    }
}
