//! What a program prints, line by line: the latest lines are kept, and waiting readers are told.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// How many lines are kept, of both outputs together.
const KEPT: usize = 2_000;
/// What is kept of one line; the rest is read and dropped.
const LONGEST: usize = 16 * 1024;

/// The output of one program, shared by the threads that read it and those who wait for a line.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    kept: Arc<Mutex<Kept>>,
    /// How many lines there were.
    count: watch::Sender<u64>,
    /// How many outputs are still read.
    open: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    /// The number of the first kept line.
    first: u64,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { kept: Arc::default(), count: watch::Sender::new(0), open: watch::Sender::new(0) }
    }

    /// Reads an output to its end on a thread of its own.
    ///
    /// A thread and not a task, so that a program can outlive the runtime it was started in. It ends with the
    /// output, that is with the last process that writes there.
    pub(super) fn read(&self, output: impl Read + Send + 'static) -> std::io::Result<()> {
        let lines = self.clone();
        let reader = std::thread::Builder::new().name("output".to_owned());
        self.open.send_modify(|open| *open += 1);
        reader.spawn(move || {
            let mut output = BufReader::new(output);
            while let Ok(Some(line)) = next(&mut output) {
                lines.push(line);
            }
            lines.open.send_modify(|open| *open -= 1);
        })?;
        Ok(())
    }

    /// Whether all that was printed has been read.
    pub(super) fn is_whole(&self) -> bool {
        *self.open.borrow() == 0
    }

    /// Waits until all that was printed has been read.
    pub(super) async fn whole(&self) {
        // The sender is ours: it cannot be gone.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    fn push(&self, line: String) {
        let mut kept = self.lock();
        if kept.lines.len() == KEPT {
            kept.lines.pop_front();
            kept.first += 1;
        }
        kept.lines.push_back(line);
        let count = kept.first + kept.lines.len() as u64;
        drop(kept);
        // Two threads may get here in the wrong order; a smaller count would hide a line.
        self.count.send_if_modified(|known| {
            let grows = count > *known;
            *known = count.max(*known);
            grows
        });
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first kept line from number `from` on that contains the text, else the number to go on from.
    pub(super) fn find(&self, text: &str, from: u64) -> Result<String, u64> {
        let kept = self.lock();
        let skip = from.saturating_sub(kept.first) as usize;
        let found = kept.lines.iter().skip(skip).find(|line| line.contains(text));
        found.cloned().ok_or(kept.first + kept.lines.len() as u64)
    }

    /// Is told when there are further lines. Take it before looking.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.lock().lines.iter().cloned().collect()
    }

    /// The last few lines, for an error message.
    pub(super) fn tail(&self, count: usize) -> String {
        let kept = self.lock();
        let skip = kept.lines.len().saturating_sub(count);
        kept.lines.iter().skip(skip).map(|line| format!("\n  {line}")).collect()
    }
}

/// One line without its end, cut at [`LONGEST`]; nothing at the end of the output.
fn next(output: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut any = false;
    loop {
        let available = output.fill_buf()?;
        if available.is_empty() {
            return Ok(any.then(|| text(line)));
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&part[..part.len().min(LONGEST - line.len())]);
        let used = part.len() + usize::from(end.is_some());
        output.consume(used);
        if end.is_some() {
            return Ok(Some(text(line)));
        }
    }
}

fn text(line: Vec<u8>) -> String {
    String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_the_oldest_forgotten() {
        let long = "x".repeat(LONGEST + 5);
        let mut output = BufReader::with_capacity(100, std::io::Cursor::new(format!("{long}\r\nb\nno end")));
        assert_eq!(next(&mut output).unwrap().unwrap().len(), LONGEST);
        assert_eq!(next(&mut output).unwrap().unwrap(), "b");
        assert_eq!(next(&mut output).unwrap().unwrap(), "no end");
        assert!(next(&mut output).unwrap().is_none());

        let lines = Lines::new();
        (0..KEPT + 3).for_each(|number| lines.push(format!("line {number}.")));
        assert_eq!(lines.all().len(), KEPT);
        assert_eq!(lines.find("line 2.", 0), Err(KEPT as u64 + 3));
        assert_eq!(lines.find("line 3.", 0).unwrap(), "line 3.");
        // Numbers count all lines, also the forgotten ones.
        assert!(lines.find("line 3.", 4).is_err());
        assert_eq!(lines.find("line 4.", 4).unwrap(), "line 4.");
    }
}
