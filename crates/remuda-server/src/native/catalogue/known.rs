//! What is known of all workers: their descriptions in the store, merged once for every set of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use comfyui::Version;
use jiff::Timestamp;
use remuda_core::{KeyId, Sha256, Worker, WorkerId};
use remuda_pool::{NotDone, Pool, Work};
use remuda_preflight::MOST_TEXT;
use remuda_store::Store;

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
    merged: Arc<Merged>,
}

/// Keeps the merge of the last set of descriptions. One is made at a time, and not too often: workers that change their
/// descriptions again and again would have them merged for ever. Meanwhile the last one counts.
#[derive(Debug, Default)]
pub(super) struct Known {
    last: Arc<Mutex<Option<Made>>>,
    turn: Arc<tokio::sync::Mutex<Pace>>,
}

impl Known {
    /// What all workers together have, as it was some seconds ago at the most. 503 while none has said what it has: an
    /// empty answer would be a lie.
    pub(super) async fn merged(&self, store: &Arc<dyn Store>, pool: &Pool) -> ApiResult<Arc<Merged>> {
        let (workers, keys) = (store.workers().await?, store.registrants().await?);
        let sources = sources(&workers, &keys, Timestamp::now());
        if sources.is_empty() {
            return Err(nobody());
        }
        if let Some(merged) = self.last(Some(&sources)) {
            return Ok(merged);
        }
        let turn = Arc::clone(&self.turn);
        let mut pace = match Arc::clone(&turn).try_lock_owned() {
            Ok(pace) => pace,
            Err(_) => match self.last(None) {
                Some(merged) => return Ok(merged),
                None => turn.lock_owned().await,
            },
        };
        // Whoever had the turn before may have made the same.
        if let Some(merged) = self.last(Some(&sources)) {
            return Ok(merged);
        }
        if let Some(wait) = pace.wait(Instant::now()) {
            if let Some(merged) = self.last(None) {
                return Ok(merged);
            }
            tokio::time::sleep(wait).await;
        }
        // It goes on when its caller leaves: callers that come and go would have it begun again and again.
        let (store, pool, last) = (Arc::clone(store), pool.clone(), Arc::clone(&self.last));
        let made = tokio::spawn(async move {
            let begun = Instant::now();
            let merged = read(&*store, &pool, &sources).await;
            pace.spent(begun, Instant::now());
            if let Ok(merged) = &merged {
                let made = Made { sources, merged: Arc::clone(merged) };
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
            }
            merged
        });
        made.await.unwrap_or_else(|error| Err(ApiError::internal(error.to_string())))
    }

    /// The last merge, if it was made of these.
    fn last(&self, sources: Option<&[Source]>) -> Option<Arc<Merged>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let made = last.as_ref()?;
        sources.is_none_or(|sources| made.sources == sources).then(|| Arc::clone(&made.merged))
    }
}

/// How often merges are made: about one in a second, and for at most a fifth of the time. Some may follow at once.
#[derive(Debug, Default)]
struct Pace {
    /// Until then those that were made are paid for.
    due: Option<Instant>,
}

impl Pace {
    const EACH: Duration = Duration::from_secs(1);
    const BURST: Duration = Duration::from_secs(8);

    /// How long the next one has to wait.
    fn wait(&self, now: Instant) -> Option<Duration> {
        let early = self.due?.saturating_duration_since(now).saturating_sub(Self::BURST);
        (!early.is_zero()).then_some(early)
    }

    fn spent(&mut self, begun: Instant, now: Instant) {
        let from = self.due.map_or(begun, |due| due.max(begun));
        self.due = Some(from + Self::EACH + 5 * now.saturating_duration_since(begun));
    }
}

fn nobody() -> ApiError {
    let error = "no worker has said yet what it can do: try again in a moment";
    ApiError::new(http::StatusCode::SERVICE_UNAVAILABLE, NOBODY, error).retry_after(2)
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
        return Err(nobody());
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

    #[test]
    fn descriptions_that_change_all_the_time_are_merged_seldom() {
        let (mut pace, begun) = (Pace::default(), Instant::now());
        let mut now = begun;
        let mut merges = 0;
        while now < begun + Duration::from_secs(100) {
            if pace.wait(now).is_none() {
                merges += 1;
                pace.spent(now, now + Duration::from_millis(600));
                now += Duration::from_millis(600);
            } else {
                now += Duration::from_millis(50);
            }
        }
        assert!((20..=30).contains(&merges), "{merges}");
        assert!(pace.wait(now + Duration::from_secs(4)).is_none(), "a change after a pause is seen at once");
    }
}
