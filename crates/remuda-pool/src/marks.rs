//! A record in a file for every computation on a stored task, for as long as it takes.
//!
//! The records are written without fsync: the page cache outlives the process, and a machine that lost its power is not
//! the task's fault. That costs microseconds and no commit.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// What the file is called in a data directory.
pub const MARKS_FILE: &str = "marks";

/// The length of a record: state, length of the name, task, moment, name.
const RECORD: usize = 128;
const NAME: usize = 26;

/// A computation that was under way when the process died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The task whose graph it was.
    pub task: Uuid,
    /// What was computed.
    pub what: String,
    /// When it began, in microseconds since 1970.
    pub at_us: i64,
}

/// The file with the records. Only one process may have it open: its owner's lock sees to that.
#[derive(Debug)]
pub struct Marks {
    file: File,
    broken: AtomicBool,
}

impl Marks {
    /// Opens the file of a data directory, empties it, and returns what a former process left in it.
    pub fn open(data: &Path) -> io::Result<(Self, Vec<Mark>)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        let mut file = options.open(data.join(MARKS_FILE))?;
        let mut bytes = Vec::new();
        // Longer than any file of ours is not one of ours.
        (&mut file).take(1 << 20).read_to_end(&mut bytes)?;
        let left = bytes.chunks(RECORD).filter_map(read).collect();
        Ok((Self { file, broken: AtomicBool::new(false) }, left))
    }

    /// What a former process left has been heard.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Writes the record of a slot.
    pub(crate) fn set(&self, slot: usize, task: Uuid, what: &str) {
        let at_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let mark = Mark { task, what: what.to_owned(), at_us: i64::try_from(at_us).unwrap_or(i64::MAX) };
        self.write(slot, &written(&mark));
    }

    /// Empties the record of a slot.
    pub(crate) fn unset(&self, slot: usize) {
        self.write(slot, &[0]);
    }

    fn write(&self, slot: usize, bytes: &[u8]) {
        let offset = u64::try_from(slot * RECORD).unwrap_or(0);
        let written = write_at(&self.file, bytes, offset);
        if let Err(error) = written
            && !self.broken.swap(true, Ordering::Relaxed)
        {
            // A full disk: nothing is lost but the memory of a death that may never come.
            tracing::warn!(%error, "the data directory cannot take marks of running computations");
        }
    }
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, offset).map(drop)
}

fn written(mark: &Mark) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let mut length = mark.what.len().min(RECORD - NAME);
    while !mark.what.is_char_boundary(length) {
        length -= 1;
    }
    record[0] = 1;
    record[1] = u8::try_from(length).unwrap_or(0);
    record[2..18].copy_from_slice(mark.task.as_bytes());
    record[18..NAME].copy_from_slice(&mark.at_us.to_le_bytes());
    record[NAME..NAME + length].copy_from_slice(&mark.what.as_bytes()[..length]);
    record
}

/// A record that is whole and not empty.
fn read(record: &[u8]) -> Option<Mark> {
    let (&state, &length) = (record.first()?, record.get(1)?);
    if state != 1 {
        return None;
    }
    let task = Uuid::from_slice(record.get(2..18)?).ok()?;
    let at_us = i64::from_le_bytes(record.get(18..NAME)?.try_into().ok()?);
    let what = record.get(NAME..NAME + usize::from(length))?;
    Some(Mark { task, what: String::from_utf8_lossy(what).into_owned(), at_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_under_way_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let (marks, left) = Marks::open(dir.path()).unwrap();
        assert!(left.is_empty());
        let (done, under_way) = (Uuid::from_u128(1), Uuid::from_u128(2));
        marks.set(0, done, "checking a graph");
        marks.set(3, under_way, "editing a graph");
        marks.unset(0);
        drop(marks);
        let (marks, left) = Marks::open(dir.path()).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].task, left[0].what.as_str()), (under_way, "editing a graph"));
        assert!(left[0].at_us > 1_600_000_000_000_000);
        marks.clear().unwrap();
        assert!(Marks::open(dir.path()).unwrap().1.is_empty());
    }

    #[test]
    fn rubbish_is_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        for rubbish in [vec![1], vec![1, 255, 3], vec![7; 4096], vec![0; 10_000]] {
            std::fs::write(dir.path().join(MARKS_FILE), rubbish).unwrap();
            assert!(Marks::open(dir.path()).unwrap().1.is_empty());
        }
        let long = Mark { task: Uuid::nil(), what: "ä".repeat(400), at_us: -1 };
        let again = read(&written(&long)).unwrap();
        assert!(long.what.starts_with(&again.what) && again.what.len() > 90);
    }
}
