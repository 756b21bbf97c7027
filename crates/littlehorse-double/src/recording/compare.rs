//! Where two transcripts differ.

use std::collections::BTreeSet;
use std::fmt;

use super::lines::{Lane, Line, Transcript};

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Where.
    pub lane: Lane,
    /// Which line of it, from 1.
    pub line: usize,
    /// What was recorded; nothing if something was said that should not have been.
    pub wanted: Option<Line>,
    /// What was said; nothing if something is missing.
    pub seen: Option<Line>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |line: &Option<Line>| line.as_ref().map_or("nothing".to_owned(), Line::to_string);
        writeln!(f, "{}, line {}:", self.lane, self.line)?;
        writeln!(f, "  recorded: {}", text(&self.wanted))?;
        write!(f, "  seen:     {}", text(&self.seen))
    }
}

/// Where what was seen is not what was recorded.
pub fn compare(wanted: &Transcript, seen: &Transcript) -> Vec<Difference> {
    let lanes: BTreeSet<&Lane> = wanted.lanes.keys().chain(seen.lanes.keys()).collect();
    let mut differences = Vec::new();
    for lane in lanes {
        let of = |transcript: &Transcript| transcript.lanes.get(lane).cloned().unwrap_or_default();
        let (wanted, seen) = (of(wanted), of(seen));
        for place in 0..wanted.len().max(seen.len()) {
            let (wanted, seen) = (wanted.get(place), seen.get(place));
            if wanted != seen {
                differences.push(Difference {
                    lane: lane.clone(),
                    line: place + 1,
                    wanted: wanted.cloned(),
                    seen: seen.cloned(),
                });
            }
        }
    }
    differences
}
