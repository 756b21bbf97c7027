//! What one durable write costs on this disk, in this run.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

/// One page of a database.
const PAGE: usize = 4096;
/// A write-ahead log is used again from its beginning about this often.
const PAGES: usize = 1000;

/// A file as a write-ahead log is: allocated, and overwritten page by page.
#[derive(Debug)]
pub(crate) struct Probe {
    file: std::fs::File,
    at: usize,
}

impl Probe {
    pub(crate) fn new(folder: &Path) -> Result<Probe> {
        let mut file = tempfile::tempfile_in(folder)?;
        for _ in 0..PAGES {
            file.write_all(&[7; PAGE])?;
        }
        file.sync_all()?;
        Ok(Probe { file, at: 0 })
    }

    /// Writes two pages, as a small commit does, and waits for the disk. In milliseconds.
    pub(crate) fn commit(&mut self) -> Result<f64> {
        let begun = Instant::now();
        self.at = (self.at + 2) % (PAGES - 2);
        self.file.seek(SeekFrom::Start((self.at * PAGE) as u64))?;
        self.file.write_all(&[(self.at % 251) as u8; 2 * PAGE])?;
        self.file.sync_data()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}
