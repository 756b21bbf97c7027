//! What is known of all workers: their descriptions in the store, merged once for every set of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use remuda_core::{Sha256, Worker};
use remuda_pool::{Pool, Work};
use remuda_runner::Version;
use remuda_store::Store;
use tokio::sync::OnceCell;

use super::merge::{Description, Merged, merge};
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
}

/// The descriptions of these workers, each once; what usable ones and newer versions say counts more.
fn sources(workers: &[Worker], now: Timestamp) -> Vec<Source> {
    let mut by_hash: BTreeMap<Sha256, (bool, Option<Version>, Vec<String>)> = BTreeMap::new();
    for worker in workers {
        let Some(hash) = worker.report.object_info else { continue };
        let (usable, newest, names) = by_hash.entry(hash).or_default();
        *usable |= is_usable(worker, now);
        *newest = (*newest).max(version(worker));
        names.push(worker.spec.id.to_string());
    }
    let mut sources: Vec<_> = by_hash.into_iter().collect();
    sources.sort_by(|(_, one), (_, other)| {
        (other.0, other.1).cmp(&(one.0, one.1)).then_with(|| one.2.cmp(&other.2))
    });
    sources.into_iter().map(|(hash, (_, _, workers))| Source { hash, workers }).collect()
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
        let sources = sources(&store.workers().await?, Timestamp::now());
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
    for source in sources {
        match store.object_info(source.hash).await? {
            Some(json) => descriptions.push(Description { workers: source.workers.clone(), json }),
            None => tracing::warn!(hash = %source.hash, "the store has lost an object_info"),
        }
    }
    let size = descriptions.iter().map(|description| description.json.len()).sum();
    // Not refused: it is done once for all who wait.
    let work = Work::new("merging what workers have", "merged descriptions", size).patient();
    let (merged, errors) = pool.run(work, move || merge(&descriptions)).await?;
    for error in errors {
        tracing::warn!(%error, "an object_info in the store is not readable");
    }
    if merged.classes.is_empty() {
        let error = "no worker has said yet what it can do: try again in a moment";
        return Err(ApiError::new(http::StatusCode::SERVICE_UNAVAILABLE, NOBODY, error).retry_after(2));
    }
    Ok(Arc::new(merged))
}
