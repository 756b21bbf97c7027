//! Long texts, in pieces.
//!
//! A text that is as long as a request may be takes the writer a fifth of a second, and everybody else would wait for it. So it
//! is written before the row that names it, in pieces, each in a transaction of its own, and others are served in between. A
//! text whose row never came, or is gone, is removed the same way.
//!
//! ```text
//!  lay_down ─▶ piece ─▶ piece ─▶ … ─▶ row (names the text)          the text counts
//!      └ given up, refused, killed ──────────────▶ left over ─▶ removed, a few pieces at a time
//! ```

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::mpsc;

use super::command::Command;
use super::fault::Outcome;

/// What is longer is written in pieces of this length, but for the rest of their last characters.
pub(super) const PIECE: usize = 256 << 10;

/// How many bits of the id of a piece are its place in the text.
const PLACES: u32 = 16;

/// The place where what came beside a graph begins.
const BESIDE: i64 = 1 << (PLACES - 1);

/// How many pieces are removed in one transaction.
const REMOVED: usize = 8;

/// Part of a long text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A graph, or a result.
    First,
    /// What came beside a graph.
    Beside,
}

impl Part {
    /// Where its pieces are, and where they end.
    fn places(self, text: i64) -> (i64, i64) {
        let begin = text << PLACES;
        match self {
            Self::First => (begin, begin + BESIDE),
            Self::Beside => (begin + BESIDE, (text + 1) << PLACES),
        }
    }
}

/// All long texts of a file.
#[derive(Debug)]
pub(super) struct Texts {
    next: AtomicI64,
    left_over: Mutex<Vec<i64>>,
    writer: mpsc::WeakSender<Command>,
}

/// A text that was laid down, or is being laid down. Unless a row names it by then, it is left over when this is dropped.
#[derive(Debug)]
pub(super) struct Laid {
    pub(super) text: i64,
    texts: Arc<Texts>,
}

impl Drop for Laid {
    fn drop(&mut self) {
        // Also one that a row names: that is found before anything is removed.
        self.texts.leave(self.text);
        self.texts.look_again();
    }
}

impl Texts {
    /// Those of this file. What an earlier process left over is found here.
    pub(super) fn open(db: &Connection, writer: mpsc::WeakSender<Command>) -> Outcome<Self> {
        let mut left_over = Vec::new();
        let mut next = 1;
        let sql = "SELECT id FROM piece WHERE id >= ? ORDER BY id LIMIT 1";
        let mut statement = db.prepare(sql)?;
        while let Some(id) = statement.query_row((next << PLACES,), |row| row.get::<_, i64>(0)).optional()? {
            let text = id >> PLACES;
            if !is_named(db, text)? {
                left_over.push(text);
            }
            next = text + 1;
        }
        Ok(Self { next: AtomicI64::new(next), left_over: Mutex::new(left_over), writer })
    }

    /// A new text, without pieces so far.
    pub(super) fn begin(self: &Arc<Self>) -> Arc<Laid> {
        Arc::new(Laid { text: self.next.fetch_add(1, Ordering::Relaxed), texts: Arc::clone(self) })
    }

    /// A row that named this text is gone, or about to go.
    pub(super) fn leave(&self, text: i64) {
        self.left_over().push(text);
    }

    /// The writer should remove what is left over.
    pub(super) fn look_again(&self) {
        if let Some(writer) = self.writer.upgrade() {
            // With a full channel the writer is about to look anyway.
            let _busy = writer.try_send(Command::Nudge);
        }
    }

    /// What is left over stays until the next start.
    pub(super) fn give_up(&self) {
        self.left_over().clear();
    }

    fn left_over(&self) -> MutexGuard<'_, Vec<i64>> {
        self.left_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes some pieces of what is left over. Whether there are more.
    pub(super) fn remove_some(&self, db: &Connection) -> Outcome<bool> {
        loop {
            let Some(text) = self.left_over().last().copied() else { return Ok(false) };
            if is_named(db, text)? || remove(db, text)? < REMOVED {
                // Others may have been left since: it is not the last any more.
                self.left_over().retain(|left| *left != text);
            } else {
                return Ok(true);
            }
        }
    }
}

fn is_named(db: &Connection, text: i64) -> Outcome<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM input_row WHERE text = ?1) \
               OR EXISTS (SELECT 1 FROM result_row WHERE text = ?1)";
    Ok(db.prepare_cached(sql)?.query_row((text,), |row| row.get(0))?)
}

fn remove(db: &Connection, text: i64) -> Outcome<usize> {
    let (begin, end) = (Part::First.places(text).0, Part::Beside.places(text).1);
    let sql =
        "DELETE FROM piece WHERE id IN (SELECT id FROM piece WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)";
    let most = i64::try_from(REMOVED).unwrap_or(i64::MAX);
    Ok(db.prepare_cached(sql)?.execute((begin, end, most))?)
}

/// Cuts a text into pieces, each with the place where it begins and ends.
pub(super) fn cut(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0_usize;
    std::iter::from_fn(move || {
        let begin = at;
        at = text.ceil_char_boundary(begin.saturating_add(PIECE));
        (begin < text.len()).then_some((begin, at))
    })
}

/// Writes one piece of a text; `n` is its place.
pub(super) fn write(db: &Connection, text: i64, part: Part, n: usize, piece: &str) -> Outcome<()> {
    let id = part.places(text).0 + i64::try_from(n).unwrap_or(i64::MAX);
    // Again after a transaction that failed for another's fault.
    db.prepare_cached("INSERT OR REPLACE INTO piece (id, piece) VALUES (?, ?)")?.execute((id, piece))?;
    Ok(())
}

/// How many bytes a part has.
pub(super) fn size(db: &Connection, text: i64, part: Part) -> Outcome<usize> {
    let sql = "SELECT coalesce(sum(octet_length(piece)), 0) FROM piece WHERE id >= ? AND id < ?";
    let size: i64 = db.prepare_cached(sql)?.query_row(part.places(text), |row| row.get(0))?;
    Ok(usize::try_from(size).unwrap_or(0))
}

/// Puts a part together again. `None`: there is nothing of it.
pub(super) fn read(db: &Connection, text: i64, part: Part) -> Outcome<Option<String>> {
    let mut whole = String::with_capacity(size(db, text, part)?);
    let mut statement = db.prepare_cached("SELECT piece FROM piece WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut found = statement.query(part.places(text))?;
    while let Some(row) = found.next()? {
        whole.push_str(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
    }
    Ok((!whole.is_empty()).then_some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text_and_end_where_characters_end() {
        for text in ["", "a", &"a".repeat(PIECE), &"é".repeat(PIECE), &format!("a{}", "🐎".repeat(PIECE))]
        {
            let pieces: Vec<&str> = cut(text).map(|(begin, end)| &text[begin..end]).collect();
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() < PIECE + 4));
            assert!(pieces.len() <= text.len().div_ceil(PIECE), "of {} bytes", text.len());
        }
    }
}
