//! What is known of all workers: their descriptions in the store, merged once for every set of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use remuda_core::{KeyId, Sha256, Worker, WorkerId};
use remuda_pool::{NotDone, Pool, Work};
use remuda_runner::Version;
use remuda_runner::preflight::MOST_TEXT;
use remuda_store::Store;
use tokio::sync::OnceCell;

use super::merge::{Description, Merged, SHARE, merge};
use crate::error::{ApiError, ApiResult};
use crate::wire::status_of;

/// The code of the error while no worker has said what it has.
pub(super) const NOBODY: &str = "no_worker_known";

/// Whether a worker may get tasks: its runner says so, and still says something.
pub(super) fn is_usable(worker: &Worker, now: Timestamp) -> bool {
    worker.report.health.is_usable() && status_of(worker, now).1
}

/// The version of a worker's ComfyUI.
pub(super) fn version(worker: &Worker) -> Option<Version> {
    worker.report.comfyui_version.as_deref()?.parse().ok()
}

/// One description and who has it, before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    hash: Sha256,
    workers: Vec<String>,
    /// The key that brought it; none when a worker of the installation has it, too.
    key: Option<KeyId>,
}

/// How much a description counts, and who has it.
#[derive(Debug, Default)]
struct Standing {
    /// A worker of the installation has it: no word of a process elsewhere takes its place.
    own: bool,
    usable: bool,
    newest: Option<Version>,
    key: Option<KeyId>,
    names: Vec<String>,
}

/// The descriptions of these workers, each once; what the installation's own, usable ones and newer versions say counts
/// more.
fn sources(workers: &[Worker], keys: &HashMap<WorkerId, KeyId>, now: Timestamp) -> Vec<Source> {
    let mut by_hash: BTreeMap<Sha256, Standing> = BTreeMap::new();
    for worker in workers {
        let Some(hash) = worker.report.object_info else { continue };
        let standing = by_hash.entry(hash).or_default();
        let key = keys.get(&worker.spec.id).copied();
        standing.own |= key.is_none();
        standing.key = standing.key.or(key);
        standing.usable |= is_usable(worker, now);
        standing.newest = standing.newest.max(version(worker));
        standing.names.push(worker.spec.id.to_string());
    }
    let mut sources: Vec<_> = by_hash.into_iter().collect();
    let counts = |of: &Standing| (of.own, of.usable, of.newest);
    sources.sort_by(|(_, one), (_, other)| {
        counts(other).cmp(&counts(one)).then_with(|| one.names.cmp(&other.names))
    });
    let source = |(hash, of): (Sha256, Standing)| {
        let key = of.key.filter(|_| !of.own);
        Source { hash, workers: of.names, key }
    };
    sources.into_iter().map(source).collect()
}

/// The last merge, and what it was made of.
#[derive(Debug)]
struct Made {
    sources: Vec<Source>,
    merged: OnceCell<Arc<Merged>>,
}

/// Keeps the merge of the last set of descriptions.
#[derive(Debug, Default)]
pub(super) struct Known {
    made: Mutex<Option<Arc<Made>>>,
}

impl Known {
    /// What all workers together have. 503 while none has said what it has: an empty answer would be a lie.
    pub(super) async fn merged(&self, store: &dyn Store, pool: &Pool) -> ApiResult<Arc<Merged>> {
        let (workers, keys) = (store.workers().await?, store.registrants().await?);
        let sources = sources(&workers, &keys, Timestamp::now());
        let made = {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            match &*made {
                Some(made) if made.sources == sources => made.clone(),
                _ => made.insert(Arc::new(Made { sources, merged: OnceCell::new() })).clone(),
            }
        };
        // Whoever comes in the meantime waits for the same.
        let merged = made.merged.get_or_try_init(|| read(store, pool, &made.sources)).await?;
        Ok(merged.clone())
    }
}

async fn read(store: &dyn Store, pool: &Pool, sources: &[Source]) -> ApiResult<Arc<Merged>> {
    let mut descriptions = Vec::with_capacity(sources.len());
    let mut size = 0;
    let mut of_keys: HashMap<KeyId, usize> = HashMap::new();
    for source in sources {
        let Some(json) = store.object_info(source.hash).await? else {
            tracing::warn!(hash = %source.hash, "the store has lost an object_info");
            continue;
        };
        let theirs = source.key.map(|key| of_keys.entry(key).or_default());
        let of_key = theirs.as_ref().map_or(0, |theirs| **theirs) + json.len();
        if size + json.len() > MOST_TEXT || (theirs.is_some() && of_key > MOST_TEXT / SHARE) {
            tracing::debug!(hash = %source.hash, "an object_info is left out: there is no room for it");
            continue;
        }
        size += json.len();
        if let Some(theirs) = theirs {
            *theirs = of_key;
        }
        descriptions.push(Description { workers: source.workers.clone(), key: source.key, json });
    }
    // Not refused: it is done once for all who wait.
    let work = Work::new("merging what workers have", "merged descriptions", size).patient();
    let (merged, errors) =
        pool.run(work, move || merge(&descriptions)).await.map_err(|error| match error {
            // Nothing that the caller sent.
            NotDone::Stalled | NotDone::Share => ApiError::busy("descriptions of workers"),
            error => error.into(),
        })?;
    for error in errors {
        tracing::warn!(%error, "an object_info in the store is not readable");
    }
    if merged.classes.is_empty() {
        let error = "no worker has said yet what it can do: try again in a moment";
        return Err(ApiError::new(http::StatusCode::SERVICE_UNAVAILABLE, NOBODY, error).retry_after(2));
    }
    Ok(Arc::new(merged))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use remuda_core::{Fence, Health, OwnerId, WorkerReport, WorkerSpec};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_a_process_elsewhere_says_comes_last() {
        let worker = |name: &str, version: &str, health| Worker {
            spec: WorkerSpec {
                id: WorkerId::new(name).unwrap(),
                endpoint: "http://gpu:8188".to_owned(),
                name: None,
                labels: BTreeSet::new(),
            },
            report: WorkerReport {
                health,
                comfyui_version: Some(version.to_owned()),
                object_info: Some(Sha256::of(version.as_bytes())),
                ..WorkerReport::default()
            },
            owner: OwnerId(Uuid::nil()),
            fence: Fence(1),
            until: Timestamp::MAX,
            created_at: Timestamp::UNIX_EPOCH,
            last_active_at: Timestamp::UNIX_EPOCH,
        };
        let workers = [
            worker("elsewhere-1", "99.0.0", Health::Healthy),
            worker("elsewhere-2", "0.10.0", Health::Healthy),
            worker("own-1", "0.10.0", Health::Healthy),
            worker("own-2", "0.9.0", Health::Unreachable),
        ];
        let key = KeyId(Uuid::nil());
        let keys = ["elsewhere-1", "elsewhere-2"].map(|name| (WorkerId::new(name).unwrap(), key)).into();
        let found = sources(&workers, &keys, Timestamp::UNIX_EPOCH);
        let found: Vec<_> = found.iter().map(|source| (source.workers[0].as_str(), source.key)).collect();
        assert_eq!(found, [("elsewhere-2", None), ("own-2", None), ("elsewhere-1", Some(key))]);
    }
}
