//! What the people of the workflow read beside the task: few lines, whatever happens.

use std::time::Duration;

use tokio::time::Instant;

/// No more lines of progress than this; the beginning and the end are always told.
const MOST_LINES: usize = 150;

/// A line is not longer than this.
const LONGEST_LINE: usize = 500;

/// Between two lines of progress is at least this much time …
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// … and after this much a smaller step is told, too.
const LONG_PAUSE: Duration = Duration::from_secs(15);

/// What counts as a step, in percent.
const STEP: u8 = 10;

/// The log of one task.
#[derive(Debug, Default)]
pub(crate) struct TaskLog {
    lines: Vec<String>,
    /// The last percentage that was told, and when.
    told: Option<(u8, Instant)>,
    /// The last place in the queue that was told.
    ahead: Option<usize>,
}

impl TaskLog {
    /// One more line.
    pub(crate) fn line(&mut self, time: &str, text: &str) {
        let text = match text.char_indices().find(|(at, _)| *at >= LONGEST_LINE) {
            None => text.to_owned(),
            Some((at, _)) => format!("{} …", &text[..at]),
        };
        // What is said again and again, by a task that is tried and tried, must not grow without end.
        if self.lines.len() >= MOST_LINES * 2 {
            self.lines.remove(MOST_LINES);
        }
        self.lines.push(format!("[{time}] {text}"));
    }

    /// How many are before it; a line when that changed.
    pub(crate) fn queued(&mut self, time: &str, ahead: usize) {
        if self.ahead != Some(ahead) && self.lines.len() < MOST_LINES {
            self.ahead = Some(ahead);
            self.line(time, &format!("queued at ComfyUI, {ahead} before it"));
        }
    }

    /// How far it is; a line now and then. The text is made only for a line.
    pub(crate) fn progress(
        &mut self,
        now: Instant,
        fraction: f64,
        line: impl FnOnce(u8) -> (String, String),
    ) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 100")]
        let percent = (fraction.clamp(0.0, 1.0) * 100.0).floor() as u8;
        let due = match self.told {
            None => true,
            Some((last, at)) => {
                let since = now.saturating_duration_since(at);
                percent > last && since >= SHORTEST_PAUSE && (percent - last >= STEP || since >= LONG_PAUSE)
            }
        };
        if due && self.lines.len() < MOST_LINES {
            self.told = Some((percent, now));
            let (time, text) = line(percent);
            self.line(&time, &text);
        }
    }

    /// All of it, with one last line.
    pub(crate) fn with(&self, time: &str, last: &str) -> String {
        let lines = self.lines.iter().map(String::as_str);
        let last = format!("[{time}] {last}");
        lines.chain([last.as_str()]).collect::<Vec<_>>().join("\n")
    }

    #[cfg(test)]
    fn text(&self) -> String {
        self.lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    fn follow(log: &mut TaskLog, start: Instant, steps: impl Iterator<Item = (f64, f64)>) {
        for (seconds, fraction) in steps {
            log.progress(at(start, seconds), fraction, |percent| ("t".into(), format!("{percent} %")));
        }
    }

    #[test]
    fn progress_is_told_in_steps() {
        let (mut log, start) = (TaskLog::default(), Instant::now());
        // Ten frames a second for a minute.
        follow(&mut log, start, (0..600).map(|n| (f64::from(n) / 10.0, f64::from(n) / 600.0)));
        let percents: Vec<String> = (0..10).map(|n| format!("[t] {} %", n * 10)).collect();
        assert_eq!(log.text(), percents.join("\n"));
    }

    #[test]
    fn a_fast_render_tells_little_and_a_slow_one_something() {
        let (mut fast, start) = (TaskLog::default(), Instant::now());
        follow(&mut fast, start, (0..100).map(|n| (f64::from(n) / 100.0, f64::from(n) / 100.0)));
        assert_eq!(fast.text(), "[t] 0 %");
        let mut slow = TaskLog::default();
        follow(&mut slow, start, (0..60).map(|n| (f64::from(n), f64::from(n) / 600.0)));
        assert_eq!(slow.text().lines().count(), 4, "{}", slow.text());
    }

    #[test]
    fn places_in_the_queue_are_told_when_they_change() {
        let mut log = TaskLog::default();
        for ahead in [2, 2, 1, 1, 0] {
            log.queued("t", ahead);
        }
        assert_eq!(log.text().lines().count(), 3);
    }

    #[test]
    fn it_stays_small() {
        let mut log = TaskLog::default();
        for n in 0..10_000 {
            log.queued("t", n);
            log.line("t", &"x".repeat(10_000));
        }
        log.line("t", "the end");
        assert!(log.text().ends_with("the end"));
        assert!(log.text().len() < 2 * MOST_LINES * (LONGEST_LINE + 20), "{}", log.text().len());
    }
}
