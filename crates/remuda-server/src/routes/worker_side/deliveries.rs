//! What sidecars delivered: how much under each lease, and whether a result names exactly that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use remuda_core::{LeaseRef, OutputFile, OwnerId, Sha256};
use remuda_files::{FileKey, Files};
use sha2::Digest as _;
use tokio::time::Instant;

/// Leases of which deliveries are remembered. Each sidecar has one or two for each worker.
const MOST: usize = 10_000;

/// A larger file that was not delivered to this process is not read again for its hash; its size must be right.
const READ_AGAIN: u64 = 1 << 30;

/// One file that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) key: FileKey,
    pub(super) size: u64,
    pub(super) sha256: Sha256,
}

/// What arrived under one lease, by the number of the file.
#[derive(Debug)]
struct Under {
    /// Who delivered it.
    owner: OwnerId,
    files: HashMap<u32, Arrived>,
    /// The sizes of these files together.
    arrived: u64,
    /// What came so far of files that are on their way.
    coming: u64,
    touched: Instant,
}

impl Under {
    /// How many bytes there are, this file left out: what comes under its number replaces it.
    fn beside(&self, n: u32) -> u64 {
        let replaced = self.files.get(&n).map_or(0, |file| file.size);
        self.arrived.saturating_sub(replaced).saturating_add(self.coming)
    }
}

type Leases = HashMap<LeaseRef, Under>;

/// What arrived in this process. Another one, or the one before a restart, may have taken files of the same lease.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    under: Arc<Mutex<Leases>>,
}

fn lock(under: &Mutex<Leases>) -> MutexGuard<'_, Leases> {
    under.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a lease. The one that was not touched for longest makes room for a new one.
fn entry(under: &mut Leases, lease: LeaseRef, owner: OwnerId) -> &mut Under {
    if under.len() >= MOST
        && !under.contains_key(&lease)
        && let Some(oldest) = under.iter().min_by_key(|(_, one)| one.touched).map(|(lease, _)| *lease)
    {
        under.remove(&oldest);
    }
    let new = || Under { owner, files: HashMap::new(), arrived: 0, coming: 0, touched: Instant::now() };
    let entry = under.entry(lease).or_insert_with(new);
    entry.owner = owner;
    entry.touched = Instant::now();
    entry
}

/// A file on its way. What came of it is counted until it arrived, or is given up.
#[derive(Debug)]
pub(super) struct Coming {
    under: Arc<Mutex<Leases>>,
    lease: LeaseRef,
    owner: OwnerId,
    n: u32,
    /// How many bytes all files of the lease may have together.
    most: u64,
    came: AtomicU64,
    refused: AtomicBool,
}

impl Coming {
    /// Counts bytes before they are stored. `false`: all files of the lease together have as many as they may.
    pub(super) fn more(&self, bytes: u64) -> bool {
        let mut under = lock(&self.under);
        let entry = entry(&mut under, self.lease, self.owner);
        if entry.beside(self.n).saturating_add(bytes) > self.most {
            self.refused.store(true, Ordering::Relaxed);
            return false;
        }
        entry.coming = entry.coming.saturating_add(bytes);
        self.came.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Whether it was refused because of the others.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// It is there. What it replaces, when that had another name: it must go.
    pub(super) fn arrived(&self, file: Arrived) -> Option<FileKey> {
        let mut under = lock(&self.under);
        let entry = entry(&mut under, self.lease, self.owner);
        entry.coming = entry.coming.saturating_sub(self.came.swap(0, Ordering::Relaxed));
        entry.arrived = entry.arrived.saturating_add(file.size);
        let key = file.key.clone();
        let before = entry.files.insert(self.n, file)?;
        entry.arrived = entry.arrived.saturating_sub(before.size);
        Some(before.key).filter(|before| *before != key)
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let came = self.came.swap(0, Ordering::Relaxed);
        if let Some(entry) = lock(&self.under).get_mut(&self.lease) {
            entry.coming = entry.coming.saturating_sub(came);
        }
    }
}

impl Deliveries {
    fn under(&self) -> MutexGuard<'_, Leases> {
        lock(&self.under)
    }

    /// How many bytes arrived or are on their way under a lease, this file left out: what comes under its number replaces
    /// it.
    pub(super) fn bytes_beside(&self, lease: LeaseRef, n: u32) -> u64 {
        self.under().get(&lease).map_or(0, |under| under.beside(n))
    }

    /// A file begins to come, under a lease of which all files together may have this many bytes.
    pub(super) fn begin(&self, lease: LeaseRef, owner: OwnerId, n: u32, most: u64) -> Coming {
        let (came, refused) = (AtomicU64::new(0), AtomicBool::new(false));
        Coming { under: Arc::clone(&self.under), lease, owner, n, most, came, refused }
    }

    /// The lease is over.
    pub(super) fn forget(&self, lease: LeaseRef) {
        self.under().remove(&lease);
    }

    /// A process was told that it does not have the lease. Only what it delivered itself is forgotten.
    pub(super) fn lost(&self, lease: LeaseRef, owner: OwnerId) {
        let mut under = self.under();
        if under.get(&lease).is_some_and(|under| under.owner == owner) {
            under.remove(&lease);
        }
    }

    /// The files of a result that did not arrive here as the result says. Another process may know them.
    pub(super) fn unknown(&self, lease: LeaseRef, files: &[OutputFile]) -> Vec<usize> {
        let under = self.under();
        let arrived: HashMap<&str, &Arrived> = under
            .get(&lease)
            .into_iter()
            .flat_map(|under| under.files.values())
            .map(|file| (file.key.as_str(), file))
            .collect();
        let is_known = |file: &OutputFile| {
            let found = arrived.get(file.key.as_str());
            found.is_some_and(|found| {
                i64::try_from(found.size) == Ok(file.size) && found.sha256 == file.sha256
            })
        };
        files.iter().enumerate().filter(|(_, file)| !is_known(file)).map(|(n, _)| n).collect()
    }
}

/// Whether a file of a result is in the file store as the result says.
pub(super) async fn is_stored(files: &Files, file: &OutputFile) -> remuda_files::Result<bool> {
    let Ok(key) = FileKey::parse(&file.key) else { return Ok(false) };
    let size = files.size(&key).await?;
    let Some(size) = size.filter(|size| i64::try_from(*size) == Ok(file.size)) else { return Ok(false) };
    if size > READ_AGAIN {
        return Ok(true);
    }
    let mut content = files.get(&key, None).await?.stream;
    let mut hash = sha2::Sha256::new();
    while let Some(chunk) = content.next().await {
        hash.update(&chunk?);
    }
    Ok(Sha256(hash.finalize().into()) == file.sha256)
}

/// Whether a file was delivered under this lease: its key says so. Without this, a result could name any file there is.
pub(super) fn is_own(key: &str, lease: LeaseRef) -> bool {
    let folder = FileKey::outputs_of(lease.task.0);
    // A key that we did not make could lead out of the folder that it begins with.
    let Ok(parsed) = FileKey::parse(key) else { return false };
    let within = parsed.as_str().strip_prefix(folder.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let Some((attempt, name)) = within.and_then(|rest| rest.split_once('/')) else { return false };
    let own = attempt.split_once('-').is_some_and(|(attempt, fence)| {
        attempt.parse().is_ok_and(|number: u32| number.to_string() == attempt)
            && fence == lease.fence.to_string()
    });
    own && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use remuda_core::{Fence, TaskId};

    use super::*;

    #[test]
    fn a_result_has_no_files_but_its_own() {
        let lease = LeaseRef { task: TaskId::new(), fence: Fence(12) };
        let key = |task: TaskId, fence| FileKey::output(task.0, 3, fence, 0, "a.png").to_string();
        assert!(is_own(&key(lease.task, 12), lease));
        assert!(!is_own(&key(lease.task, 1), lease), "delivered under an older lease");
        assert!(!is_own(&key(lease.task, 2), lease));
        assert!(!is_own(&key(TaskId::new(), 12), lease), "of another task");
        let own = format!("outputs/{}", lease.task);
        let (other, old) = (TaskId::new(), format!("{own}/2-11/000-a.png"));
        let bad = [
            String::new(),
            "assets/aa/aaaa".to_owned(),
            "outputs".to_owned(),
            own.clone(),
            old,
            format!("{own}/3-12"),
            format!("{own}/3-12/"),
            format!("{own}/3-12/../../../assets/aa/aaaa"),
            format!("{own}/3-12/../../{other}/1-1/000-a.png"),
            format!("{own}/3-12/./000-a.png"),
            format!("{own}/3-12//000-a.png"),
            format!("{own}/3-12/folder/000-a.png"),
            format!("{own}/3-12/%2e%2e/a.png"),
            format!("{own}/3-12/..%2fa.png"),
            format!("{own}/3-12/..\\a.png"),
            format!("{own}/x-12/000-a.png"),
            format!("{own}/-12/000-a.png"),
            format!("{own}/03-12/000-a.png"),
            format!("{own}/+3-12/000-a.png"),
            format!("{own}/3-12/000-a\0.png"),
            format!("/{own}/3-12/000-a.png"),
            format!("{own}/3-12/.remuda-installation"),
        ];
        for key in bad {
            assert!(!is_own(&key, lease), "{key}");
        }
    }

    #[test]
    fn what_replaces_a_file_counts_once() {
        let deliveries = Deliveries::default();
        let lease = LeaseRef { task: TaskId::new(), fence: Fence(1) };
        let owner = OwnerId(uuid::Uuid::new_v4());
        let file = |name: &str, size| Arrived {
            key: FileKey::output(lease.task.0, 1, 1, 0, name),
            size,
            sha256: Sha256::of(name.as_bytes()),
        };
        let arrived = |n, file: Arrived| {
            let coming = deliveries.begin(lease, owner, n, 30);
            assert!(coming.more(file.size));
            coming.arrived(file)
        };
        assert_eq!(arrived(0, file("a", 10)), None);
        assert_eq!(arrived(0, file("a", 20)), None, "the same name is overwritten");
        assert_eq!(arrived(0, file("b", 5)), Some(file("a", 20).key), "another is removed");
        arrived(1, file("c", 7));
        assert_eq!((deliveries.bytes_beside(lease, 0), deliveries.bytes_beside(lease, 2)), (7, 12));
        deliveries.lost(lease, OwnerId(uuid::Uuid::new_v4()));
        assert_eq!(deliveries.bytes_beside(lease, 2), 12, "a stranger's word");
        deliveries.lost(lease, owner);
        assert_eq!(deliveries.bytes_beside(lease, 2), 0);
    }

    #[test]
    fn files_that_come_at_the_same_time_do_not_pass_the_limit_together() {
        let deliveries = Deliveries::default();
        let lease = LeaseRef { task: TaskId::new(), fence: Fence(1) };
        let owner = OwnerId(uuid::Uuid::new_v4());
        let [one, two] = [0, 1].map(|n| deliveries.begin(lease, owner, n, 100));
        assert!(one.more(60) && two.more(40));
        assert!(!two.more(1) && two.is_refused() && !one.is_refused());
        drop(two);
        assert_eq!(deliveries.bytes_beside(lease, 1), 60);
        assert!(one.more(40));
        drop(one);
        assert_eq!(deliveries.bytes_beside(lease, 1), 0);
    }
}
