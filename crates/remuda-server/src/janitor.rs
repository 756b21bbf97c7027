//! Housekeeping: tasks whose moment has come, files that nobody needs, records that are old enough.
//!
//! Every process tidies, because a delayed task must not wait for a leader. Files and old records are the work of one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rand::RngExt as _;
use remuda_core::{OwnerId, Sha256, Task, TaskId};
use remuda_files::{FileKey, Files};
use remuda_store::{DocumentStore, HousekeepingStore, RunnerStore, Store, WorkerStore};
use tokio_util::sync::CancellationToken;

use crate::unnamed;

/// The name of the leader's office.
const OFFICE: &str = "janitor";

/// After how many tasks is cleaned up at once.
const BATCH: u32 = 100;

/// How often descriptions of nodes are looked through.
const DESCRIPTIONS: Duration = Duration::from_secs(3600);

/// An upload that was not written to for this long was given up.
const STALE_UPLOAD: Duration = Duration::from_secs(24 * 3600);

/// The folders of uploads.
const FOLDERS: u16 = 256;

/// How many contents are looked for in the store together.
const CONTENTS: usize = 500;

/// How the housekeeping is done.
#[derive(Debug, Clone)]
pub struct JanitorOptions {
    /// What is over, and whose office this is.
    pub store: Arc<dyn HousekeepingStore>,
    /// Workers, and what their ComfyUIs said.
    pub workers: Arc<dyn WorkerStore>,
    /// What is under way on them.
    pub runners: Arc<dyn RunnerStore>,
    /// Which uploads have a name.
    pub documents: Arc<dyn DocumentStore>,
    /// Outputs and uploads.
    pub files: Files,
    /// This process.
    pub owner: OwnerId,
    /// How long ended tasks are kept; `None` for ever.
    pub retention: Option<Duration>,
    /// A worker is forgotten after this long without a process that drives it: 1 hour.
    pub silence: Duration,
    /// A description of nodes is removed after this long without a worker that uses it: 30 days.
    pub descriptions: Duration,
    /// How often tasks are looked after, at least: 1 s.
    pub tidy_every: Duration,
    /// How often files and old records are: 15 s.
    pub sweep_every: Duration,
    /// In this time all uploads are looked through once for those that no tenant has. 1 day.
    pub uploads_every: Duration,
    /// An upload that no tenant has stays so long: somebody may be about to name it. 1 day.
    pub unnamed: Duration,
    /// How long after the end of their task files go that nobody uses: what was being written in that moment may still
    /// arrive. 10 s.
    pub linger: Duration,
}

impl JanitorOptions {
    /// With the defaults: ended tasks stay for seven days.
    pub fn new(store: Arc<dyn Store>, files: Files, owner: OwnerId) -> Self {
        Self {
            workers: store.clone(),
            runners: store.clone(),
            documents: store.clone(),
            store,
            files,
            owner,
            retention: Some(Duration::from_secs(7 * 86_400)),
            silence: Duration::from_secs(3600),
            descriptions: Duration::from_secs(30 * 86_400),
            tidy_every: Duration::from_secs(1),
            sweep_every: Duration::from_secs(15),
            uploads_every: Duration::from_secs(24 * 3600),
            unnamed: Duration::from_secs(24 * 3600),
            linger: Duration::from_secs(10),
        }
    }
}

/// Does the housekeeping until it is told to stop.
#[derive(Debug)]
pub struct Janitor {
    options: JanitorOptions,
    /// When descriptions of nodes were last looked through.
    described: Mutex<Option<Instant>>,
    /// Which folder of uploads was looked through last, and when.
    looked_through: Mutex<(u8, Instant)>,
}

impl Janitor {
    /// One janitor per process.
    pub fn new(options: JanitorOptions) -> Self {
        // Elsewhere after each start, so that one who starts often comes everywhere.
        let first = rand::rng().random_range(0..=u8::MAX);
        Self { options, described: Mutex::default(), looked_through: Mutex::new((first, Instant::now())) }
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::join!(self.tidy(&shutdown), self.sweep(&shutdown));
    }

    async fn tidy(&self, shutdown: &CancellationToken) {
        let JanitorOptions { store, tidy_every, .. } = &self.options;
        let mut failing = false;
        loop {
            let mut pause = tidy_every.mul_f64(rand::rng().random_range(0.8..1.2));
            match store.tidy().await {
                Ok(tidied) => {
                    failing = false;
                    for task in &tidied.lost {
                        tracing::warn!(%task, "a task's process did not report any more, and nobody took it over");
                    }
                    if tidied.expired > 0 {
                        tracing::info!(
                            count = tidied.expired,
                            "tasks whose deadline passed while they waited have failed"
                        );
                    }
                    if let Some(next) = tidied.next {
                        let until = next.duration_since(Timestamp::now());
                        pause = pause.min(Duration::try_from(until).unwrap_or(Duration::ZERO));
                        // A moment that is near and never comes must not make this loop spin.
                        pause = pause.max(Duration::from_millis(5));
                    }
                }
                Err(remuda_store::Error::Closed) => return,
                // Once, not every second of an outage.
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "housekeeping of tasks failed; trying again");
                }
                Err(_) => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn sweep(&self, shutdown: &CancellationToken) {
        let JanitorOptions { store, owner, sweep_every, .. } = &self.options;
        loop {
            let pause = sweep_every.mul_f64(rand::rng().random_range(0.8..1.2));
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
            match store.lead(OFFICE, *owner, *sweep_every * 4).await {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(remuda_store::Error::Closed) => return,
                Err(error) => {
                    tracing::debug!(%error, "no word on who sweeps");
                    continue;
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                swept = self.sweep_once() => {
                    if let Err(error) = swept {
                        tracing::warn!(%error, "cleaning up failed; trying again later");
                    }
                }
            }
        }
        // So that another can go on at once; if it cannot be told, it finds out.
        if let Err(error) = store.resign(OFFICE, *owner).await {
            tracing::debug!(%error, "the office could not be handed over");
        }
    }

    /// Removes what happened long ago from the feed, and workers that are gone; files of attempts whose results are not used, then
    /// tasks that are old enough with their files, then uploads that were given up. What needs no files is done also while they
    /// are away.
    pub async fn sweep_once(&self) -> Result<(), SweepError> {
        let trimmed = self.trim_feed().await;
        let forgotten = self.forget_workers().await;
        let described = self.forget_descriptions().await;
        self.sweep_files().await?;
        trimmed.and(forgotten).and(described)
    }

    /// Removes files that nobody uses, and tasks that are old enough.
    async fn sweep_files(&self) -> Result<(), SweepError> {
        let JanitorOptions { store, files, retention, linger, .. } = &self.options;
        let before = Timestamp::now().checked_sub(*linger).unwrap_or(Timestamp::MIN);
        loop {
            // As many as fit: results may be large.
            let mut tasks = store.unswept(BATCH).await?;
            tasks.retain(|task| task.finished_at.is_none_or(|end| end <= before));
            for task in &tasks {
                files.delete_all_but(&FileKey::outputs_of(task.id.0), &used_folders(task)).await?;
            }
            let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
            if ids.is_empty() {
                break;
            }
            store.swept(&ids).await?;
        }
        while let Some(age) = *retention {
            let ids = store.outdated(age, BATCH).await?;
            for id in &ids {
                // Files first: a record without files can be found again, files without a record cannot.
                files.delete_all(&FileKey::outputs_of(id.0)).await?;
            }
            let forgotten = store.forget(&ids).await?;
            if forgotten > 0 {
                tracing::info!(count = forgotten, "ended tasks were removed at the end of their retention");
            }
            if ids.len() < BATCH as usize {
                break;
            }
        }
        files.sweep_temporary(STALE_UPLOAD).await?;
        self.sweep_uploads().await
    }

    /// Removes uploads that no tenant has: their server died, or the file store was away, before that could be done at once. A few
    /// folders at a time, so that all are looked through within a day.
    async fn sweep_uploads(&self) -> Result<(), SweepError> {
        let JanitorOptions { documents, files, uploads_every, unnamed: age, .. } = &self.options;
        let (last, due) = {
            let mut looked_through = self.looked_through.lock().unwrap_or_else(PoisonError::into_inner);
            let pause = *uploads_every / u32::from(FOLDERS);
            let passed = looked_through.1.elapsed().as_nanos().checked_div(pause.as_nanos());
            let due = u16::try_from(passed.unwrap_or(u128::MAX)).unwrap_or(FOLDERS).min(FOLDERS);
            let last = looked_through.0;
            if due > 0 {
                // Of 256 folders the last one is the one before the first.
                *looked_through = (last.wrapping_add(due.to_le_bytes()[0]), Instant::now());
            }
            (last, due)
        };
        let mut removed = 0;
        for n in 1..=due {
            let contents = files.contents(last.wrapping_add(n.to_le_bytes()[0]), *age).await?;
            for some in contents.chunks(CONTENTS) {
                let some = some.iter().map(|content| Sha256(content.0)).collect();
                for content in documents.unknown_assets(some).await? {
                    removed += u32::from(unnamed::remove(&**documents, files, content).await?);
                }
            }
        }
        if removed > 0 {
            tracing::info!(count = removed, "removed uploads that no tenant has");
        }
        Ok(())
    }

    /// Removes what happened long ago from the feed.
    async fn trim_feed(&self) -> Result<(), SweepError> {
        let Some(age) = self.options.retention else { return Ok(()) };
        let removed = self.options.store.trim_feed(age).await?;
        if removed > 0 {
            tracing::debug!(
                count = removed,
                "what happened was removed from the feed at the end of its retention"
            );
        }
        Ok(())
    }

    /// Removes what ComfyUIs said of their nodes and no worker says any more. Once an hour is often enough.
    async fn forget_descriptions(&self) -> Result<(), SweepError> {
        let due = {
            let mut last = self.described.lock().unwrap_or_else(PoisonError::into_inner);
            let due = last.is_none_or(|last| last.elapsed() >= DESCRIPTIONS);
            if due {
                *last = Some(Instant::now());
            }
            due
        };
        if due {
            let removed = self.options.workers.forget_object_info(self.options.descriptions).await?;
            if removed > 0 {
                tracing::info!(count = removed, "removed descriptions of nodes that no worker uses");
            }
        }
        Ok(())
    }

    /// Forgets workers that nobody has driven for long. One that comes back registers again.
    async fn forget_workers(&self) -> Result<(), SweepError> {
        let JanitorOptions { workers, runners, silence, .. } = &self.options;
        let now = Timestamp::now();
        for worker in workers.workers().await?.iter() {
            let silent = Duration::try_from(now.duration_since(worker.until)).unwrap_or(Duration::ZERO);
            let id = &worker.spec.id;
            // Attempts that may be under way in its ComfyUI are found by its name.
            if silent <= *silence || !runners.leases(id).await?.is_empty() {
                continue;
            }
            match workers.forget_worker(id).await {
                Ok(()) => tracing::info!(worker = %id, "forgot a worker that nobody drives any more"),
                // It has come back just now, or another was faster.
                Err(remuda_store::Error::Fenced | remuda_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// What went wrong while cleaning up. Nothing is forgotten whose files may still be there.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The queue.
    #[error(transparent)]
    Store(#[from] remuda_store::Error),
    /// The file store.
    #[error(transparent)]
    Files(#[from] remuda_files::Error),
}

/// The folders of attempts from which a task's result has files. The others hold what nobody uses.
fn used_folders(task: &Task) -> BTreeSet<String> {
    let prefix = format!("{}/", FileKey::outputs_of(task.id.0));
    let keys = task.result.iter().flat_map(|result| &result.files).map(|file| file.key.as_str());
    let below = keys.filter_map(|key| key.strip_prefix(&prefix)?.split('/').next());
    below.map(str::to_owned).collect()
}
