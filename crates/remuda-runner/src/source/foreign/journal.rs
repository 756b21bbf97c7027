//! The journal: a folder with one file for each task under way, and who we are.
//!
//! A file is replaced whole. What is written before a prompt goes out is not forced to the disk: it must survive a killed
//! process, and a machine that loses power loses its ComfyUI as well. A report that nobody has heard is.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use remuda_core::{Lease, TaskId, WorkerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::record::{Record, VERSION};
use crate::source::{Result, SourceError};

/// Who we are, kept over restarts.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Identity {
    installation: Uuid,
    /// Counts the starts: the fence of this process.
    starts: i64,
    /// What the identity file of each worker said last.
    #[serde(default)]
    workers: BTreeMap<WorkerId, String>,
}

/// What a journal has.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Tasks of this queue.
    pub(super) ours: Vec<Record>,
    /// Tasks under the names of others.
    pub(super) others: Vec<Record>,
}

/// A journal, for as long as its lock is held.
#[derive(Debug)]
pub(super) struct Journal {
    records: PathBuf,
    identity: PathBuf,
    let_go: PathBuf,
    /// Held while files are written, so that an older state never replaces a newer one.
    known: Mutex<Identity>,
    /// Held, not read: closing it would let another process in.
    _lock: File,
}

fn trouble(what: &str, path: &Path, error: &io::Error) -> SourceError {
    SourceError::Refused(format!("{what} {}: {error}", path.display()))
}

impl Journal {
    /// Makes the folder, and keeps other processes out of it.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let records = folder.join("journal");
        private_folder(&records).map_err(|error| trouble("cannot make the folder", &records, &error))?;
        let path = folder.join("lock");
        let lock = private_file().truncate(false).open(&path);
        let lock = lock.map_err(|error| trouble("cannot write", &path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let folder = folder.display();
                return Err(SourceError::Refused(format!("another process uses the journal in {folder}")));
            }
            Err(TryLockError::Error(error)) => return Err(trouble("cannot lock", &path, &error)),
        }
        let identity = folder.join("identity.json");
        let mut known = read_identity(&identity)?;
        known.starts += 1;
        let let_go = folder.join("let-go.json");
        let this = Self { records, identity, let_go, known: Mutex::new(known.clone()), _lock: lock };
        this.write_identity(&known).map_err(|error| trouble("cannot write", &this.identity, &error))?;
        Ok(this)
    }

    pub(super) fn installation(&self) -> Uuid {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).installation
    }

    pub(super) fn starts(&self) -> i64 {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).starts
    }

    /// What the identity file of a worker said last.
    pub(super) fn identity_of(&self, worker: &WorkerId) -> Option<String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).workers.get(worker).cloned()
    }

    /// Remembers what the identity file of a worker says.
    pub(super) fn remember(&self, worker: &WorkerId, identity: &str) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.workers.get(worker).is_some_and(|before| before == identity) {
            return Ok(());
        }
        known.workers.insert(worker.clone(), identity.to_owned());
        let written = self.write_identity(&known);
        if written.is_err() {
            known.workers.remove(worker);
        }
        written
    }

    fn write_identity(&self, identity: &Identity) -> io::Result<()> {
        replace(&self.identity, &serde_json::to_vec_pretty(identity)?, true)
    }

    fn path_of(&self, task: TaskId) -> PathBuf {
        self.records.join(format!("{task}.json"))
    }

    /// Writes what is known of a task, or removes its file when nothing is. `look` is called when no other write can come
    /// between.
    pub(super) fn save(
        &self,
        task: TaskId,
        durable: bool,
        look: impl FnOnce() -> Option<Record>,
    ) -> io::Result<()> {
        let _turn = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match look() {
            Some(record) => replace(&self.path_of(task), &serde_json::to_vec(&record)?, durable),
            None => match fs::remove_file(self.path_of(task)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Writes which renders were let go of: somebody else may have them, and a later process must not stop them.
    pub(super) fn keep_let_go(&self, look: impl FnOnce() -> Vec<Lease>) -> io::Result<()> {
        let _turn = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        replace(&self.let_go, &serde_json::to_vec(&look())?, false)
    }

    /// Which renders were let go of. A list that cannot be read is set aside.
    pub(super) fn read_let_go(&self) -> Vec<Lease> {
        let read = fs::read(&self.let_go).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        match read {
            Ok(leases) => leases,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                set_aside(&self.let_go, &error);
                Vec::new()
            }
        }
    }

    /// Everything that the journal has. A file that cannot be read is set aside.
    pub(super) fn read(&self, queue: &str) -> Result<Read> {
        let files =
            fs::read_dir(&self.records).map_err(|error| trouble("cannot read", &self.records, &error))?;
        let mut read = Read::default();
        for file in files {
            let path = file.map_err(|error| trouble("cannot read", &self.records, &error))?.path();
            match path.extension().and_then(|ending| ending.to_str()) {
                Some("json") => {}
                // A process was killed while it wrote.
                Some("tmp") => {
                    let _ = fs::remove_file(&path);
                    continue;
                }
                _ => continue,
            }
            match read_record(&path) {
                Ok(record) if is_of(&record, queue) => read.ours.push(record),
                Ok(record) => read.others.push(record),
                Err(error) => set_aside(&path, &error),
            }
        }
        Ok(read)
    }
}

/// Whether a record is of the queue of this name.
fn is_of(record: &Record, queue: &str) -> bool {
    let rest = record.queue.strip_prefix(queue);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

fn read_record(path: &Path) -> io::Result<Record> {
    let record: Record = serde_json::from_slice(&fs::read(path)?)?;
    if record.version != VERSION {
        return Err(io::Error::other(format!("its version is {}", record.version)));
    }
    Ok(record)
}

/// A file that cannot be read blocks no start, and is kept for people.
fn set_aside(path: &Path, error: &io::Error) {
    let aside = path.with_extension("unreadable");
    tracing::error!(file = %path.display(), %error, "a file of the journal cannot be read; it is set aside");
    if let Err(error) = fs::rename(path, &aside) {
        tracing::error!(file = %path.display(), %error, "it cannot be renamed");
    }
}

fn read_identity(path: &Path) -> Result<Identity> {
    let fresh = || Identity { installation: Uuid::new_v4(), starts: 0, workers: BTreeMap::new() };
    match fs::read(path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(identity) => Ok(identity),
            Err(error) => {
                set_aside(path, &error.into());
                Ok(fresh())
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(fresh()),
        Err(error) => Err(trouble("cannot read", path, &error)),
    }
}

/// What is in the journal is for the user who runs the worker, and for nobody else.
fn private_folder(path: &Path) -> io::Result<()> {
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(path)
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create(true);
    options
}

/// Replaces a file whole.
fn replace(path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = private_file().truncate(true).open(&temporary)?;
    file.write_all(bytes)?;
    if durable {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&temporary, path)?;
    if durable && let Some(folder) = path.parent() {
        // Without it the name may still be the old one after a power cut.
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;
    use crate::source::foreign::{Delivery, DeliveryEnding};

    fn record(queue: &str, key: &str) -> Record {
        let workflow = RawValue::from_string(r#"{"1": {"seed": 18446744073709551615}}"#.into()).unwrap();
        let delivery = Delivery {
            key: key.into(),
            attempt: 3,
            prompt_id: Uuid::new_v4(),
            second_prompt_id: Uuid::new_v4(),
            workflow,
            again: false,
            timeout_s: Some(60),
            files: Vec::new(),
            folder: None,
            cookie: json!({"host": "a"}),
            sent_as: None,
            refused: None,
            earlier: Vec::new(),
        };
        Record {
            version: VERSION,
            queue: queue.into(),
            task: delivery.task(),
            worker: None,
            attempt: 1,
            phase: remuda_core::Phase::Rendering,
            rendering_since: None,
            delivery: Arc::new(delivery),
            ending: Some(Arc::new(DeliveryEnding::CalledOff { reason: "why".into(), retry: true })),
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_the_rest_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let (ours, theirs, gone) = (record("a", "1"), record("ab", "2"), record("a", "3"));
        let longer = record("a b", "4");
        for record in [&ours, &theirs, &gone, &longer] {
            journal.save(record.task, true, || Some(record.clone())).unwrap();
        }
        journal.save(gone.task, false, || None).unwrap();
        journal.save(gone.task, false, || None).unwrap();
        let records = dir.path().join("journal");
        fs::write(records.join("broken.json"), "{\"version\": 1, ").unwrap();
        fs::write(records.join("later.json"), "{\"version\": 2}").unwrap();
        fs::write(records.join("half.tmp"), "{").unwrap();
        let all = journal.read("a").unwrap();
        let read: Vec<_> = all.ours.iter().filter(|record| record.queue == "a").collect();
        assert_eq!((read.len(), all.ours.len()), (1, 2), "a longer name is ours as well");
        assert_eq!(all.others.iter().map(|record| record.task).collect::<Vec<_>>(), [theirs.task]);
        assert_eq!(read[0].task, ours.task);
        assert_eq!(read[0].delivery.workflow.get(), ours.delivery.workflow.get(), "to the last digit");
        assert!(matches!(read[0].ending.as_deref(), Some(DeliveryEnding::CalledOff { retry: true, .. })));
        assert!(records.join("broken.unreadable").exists() && records.join("later.unreadable").exists());
        assert!(!records.join("half.tmp").exists());
        assert_eq!(journal.read("ab").unwrap().ours.len(), 1);
    }

    #[test]
    fn an_installation_is_kept_and_has_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let worker = WorkerId::new("w").unwrap();
        let first = Journal::open(dir.path()).unwrap();
        first.remember(&worker, "that one").unwrap();
        let refused = Journal::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("another process uses the journal"), "{refused}");
        let (installation, starts) = (first.installation(), first.starts());
        drop(first);
        let second = Journal::open(dir.path()).unwrap();
        assert_eq!((second.installation(), second.starts()), (installation, starts + 1));
        assert_eq!(second.identity_of(&worker).as_deref(), Some("that one"));
        drop(second);
        fs::write(dir.path().join("identity.json"), "").unwrap();
        assert_ne!(
            Journal::open(dir.path()).unwrap().installation(),
            installation,
            "and it starts all the same"
        );
    }
}
