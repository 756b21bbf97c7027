//! What is known of harm that tasks did to this process, until somebody who counts has heard it.
//!
//! A server has a store that counts, and tells it everything when it starts. A worker beside a ComfyUI can tell its server
//! only of tasks that it holds, and a worker for somebody else's queue has nobody to tell: they keep the book.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Mark;

/// What the file is called in a data directory.
pub const BOOK_FILE: &str = "harm.json";

/// How many incidents are kept; the oldest go first.
const MOST: usize = 1000;

/// What became of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncidentKind {
    /// It died.
    Death,
    /// It went on, but the computation did not end in time.
    Stall,
}

/// A computation on a task's graph that did harm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// The task.
    pub task: Uuid,
    /// What became of the process.
    pub kind: IncidentKind,
    /// What was computed.
    pub what: String,
    /// When it began, in microseconds since 1970.
    pub at_us: i64,
}

impl From<Mark> for Incident {
    fn from(mark: Mark) -> Self {
        Self { task: mark.task, kind: IncidentKind::Death, what: mark.what, at_us: mark.at_us }
    }
}

/// Incidents, in memory and in a file of the data directory. Cheap to clone. The default has no file.
#[derive(Debug, Clone, Default)]
pub struct HarmBook(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    path: Option<PathBuf>,
    incidents: Mutex<Vec<Incident>>,
}

impl HarmBook {
    /// The book of a data directory. A file that cannot be understood is an empty one: it is not worth a start.
    pub fn open(data: &Path) -> io::Result<Self> {
        let path = data.join(BOOK_FILE);
        let incidents = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "what is known of harmful tasks cannot be read");
                Vec::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Inner { path: Some(path), incidents: Mutex::new(incidents) })))
    }

    /// Adds incidents, durably.
    pub fn add(&self, new: impl IntoIterator<Item = Incident>) -> io::Result<()> {
        self.change(|incidents| {
            for incident in new {
                if !incidents.contains(&incident) {
                    incidents.push(incident);
                }
            }
            let excess = incidents.len().saturating_sub(MOST);
            incidents.drain(..excess);
        })
    }

    /// Everything that is known of a task, oldest first.
    pub fn of(&self, task: Uuid) -> Vec<Incident> {
        self.lock().iter().filter(|incident| incident.task == task).cloned().collect()
    }

    /// Everything.
    pub fn all(&self) -> Vec<Incident> {
        self.lock().clone()
    }

    /// Somebody who counts has heard of it, or it is of no more interest.
    pub fn forget(&self, gone: impl Fn(&Incident) -> bool) -> io::Result<()> {
        self.change(|incidents| incidents.retain(|incident| !gone(incident)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Incident>> {
        self.0.incidents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Incident>)) -> io::Result<()> {
        let mut incidents = self.lock();
        let before = incidents.clone();
        change(&mut incidents);
        let Some(path) = self.0.path.as_deref().filter(|_| before != *incidents) else { return Ok(()) };
        let text = serde_json::to_vec(&*incidents).map_err(io::Error::other)?;
        let fresh = path.with_extension("json.new");
        private(&fresh)?.write_all(&text)?;
        std::fs::rename(&fresh, path)
    }
}

/// A new file that only its owner may read.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_are_kept_until_they_are_heard() {
        let dir = tempfile::tempdir().unwrap();
        let one = Incident {
            task: Uuid::from_u128(1),
            kind: IncidentKind::Stall,
            what: "editing a graph".to_owned(),
            at_us: 7,
        };
        let other = Incident { task: Uuid::from_u128(2), ..one.clone() };
        let book = HarmBook::open(dir.path()).unwrap();
        book.add([one.clone(), other.clone(), one.clone()]).unwrap();
        let book = HarmBook::open(dir.path()).unwrap();
        assert_eq!(book.all(), [one.clone(), other.clone()]);
        assert_eq!(book.of(other.task), [other]);
        book.forget(|incident| incident.task == one.task).unwrap();
        assert_eq!(HarmBook::open(dir.path()).unwrap().all().len(), 1);
        std::fs::write(dir.path().join(BOOK_FILE), "rubbish").unwrap();
        assert!(HarmBook::open(dir.path()).unwrap().all().is_empty());
    }
}
