//! What is known of the workers: their `object_info`, read from the store and parsed once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comfyui::ObjectInfo;
use comfyui::object_info::has_model_ending;
use remuda_core::{Capabilities, Health, Sha256, Worker, WorkerId};
use remuda_store::{Result, Store};
use tokio::sync::OnceCell;

/// For so long the list of workers is believed.
const FRESH: Duration = Duration::from_secs(1);

/// So many different descriptions are kept; a parsed one takes megabytes. Workers beyond count as not known.
const MOST: usize = 64;

/// A worker as pre-flight sees it.
#[derive(Debug, Clone)]
pub(super) struct KnownWorker {
    pub(super) id: WorkerId,
    pub(super) labels: BTreeSet<String>,
    /// It is there, and has not yet said what it can do.
    pub(super) starting: bool,
    pub(super) hash: Option<Sha256>,
    pub(super) info: Option<Arc<ObjectInfo>>,
}

/// A description that is read once, whoever asks meanwhile; empty inside when it is not readable.
type Parsed = Arc<OnceCell<Option<Arc<ObjectInfo>>>>;

/// The descriptions that were read, and those that are being read.
#[derive(Debug, Default)]
struct Readings(Mutex<HashMap<Sha256, Parsed>>);

impl Readings {
    fn lock(&self) -> MutexGuard<'_, HashMap<Sha256, Parsed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that a description is read, if there is room for it. A description takes long to read and much memory:
    /// requests that come at the same time wait for one reading.
    async fn ensure<E, F>(&self, hash: Sha256, read: impl FnOnce() -> F) -> std::result::Result<(), E>
    where
        F: Future<Output = std::result::Result<Option<Arc<ObjectInfo>>, E>>,
    {
        let parsed = {
            let mut known = self.lock();
            if !known.contains_key(&hash) && known.len() >= MOST {
                return Ok(());
            }
            known.entry(hash).or_default().clone()
        };
        parsed.get_or_try_init(read).await.map(|_| ())
    }
}

#[derive(Debug)]
pub(super) struct Known {
    store: Arc<dyn Store>,
    list: Mutex<Option<(Instant, Arc<Vec<KnownWorker>>)>>,
    parsed: Readings,
}

impl Known {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, list: Mutex::default(), parsed: Readings::default() }
    }

    /// The workers, as they were at most a second ago.
    pub(super) async fn workers(&self) -> Result<Arc<Vec<KnownWorker>>> {
        {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((read, workers)) = &*list
                && read.elapsed() < FRESH
            {
                return Ok(workers.clone());
            }
        }
        self.workers_now().await
    }

    /// The workers as they were at this moment, or later.
    pub(super) async fn workers_since(&self, moment: Instant) -> Result<Arc<Vec<KnownWorker>>> {
        {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((read, workers)) = &*list
                && *read >= moment
            {
                return Ok(workers.clone());
            }
        }
        self.workers_now().await
    }

    /// The workers as they are.
    pub(super) async fn workers_now(&self) -> Result<Arc<Vec<KnownWorker>>> {
        let read = Instant::now();
        let workers = self.store.workers().await?;
        self.parse_new(&workers).await?;
        let known: Vec<KnownWorker> = {
            let mut parsed = self.parsed.lock();
            let used: BTreeSet<Sha256> =
                workers.iter().filter_map(|worker| worker.report.object_info).collect();
            parsed.retain(|hash, _| used.contains(hash));
            workers.into_iter().map(|worker| known(worker, &parsed)).collect()
        };
        let known = Arc::new(known);
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = Some((read, known.clone()));
        Ok(known)
    }

    async fn parse_new(&self, workers: &[Worker]) -> Result<()> {
        let hashes: BTreeSet<Sha256> =
            workers.iter().filter_map(|worker| worker.report.object_info).collect();
        for hash in hashes {
            match self.parsed.ensure(hash, || self.read(hash)).await {
                Ok(()) | Err(NotRead::Absent) => {}
                Err(NotRead::Store(error)) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read(&self, hash: Sha256) -> std::result::Result<Option<Arc<ObjectInfo>>, NotRead> {
        let Some(json) = self.store.object_info(hash).await.map_err(NotRead::Store)? else {
            return Err(NotRead::Absent);
        };
        let read = tokio::task::spawn_blocking(move || ObjectInfo::from_slice(json.as_bytes())).await;
        match read {
            Ok(Ok(info)) => Ok(Some(Arc::new(info))),
            Ok(Err(error)) => {
                tracing::warn!(%hash, %error, "an object_info in the store is not readable");
                Ok(None)
            }
            // Only a runtime that ends cancels such work.
            Err(error) => {
                tracing::debug!(%error, "reading an object_info was cut short");
                Err(NotRead::Absent)
            }
        }
    }
}

/// Why a description could not be read now.
enum NotRead {
    /// It is not in the store, or nobody had time for it.
    Absent,
    Store(remuda_store::Error),
}

/// Whether a check would find the same with both.
pub(super) fn same_workers(one: &[KnownWorker], other: &[KnownWorker]) -> bool {
    let facts = |worker: &KnownWorker| (worker.hash, worker.info.is_some(), worker.starting);
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            one.id == other.id && one.labels == other.labels && facts(one) == facts(other)
        })
}

fn known(worker: Worker, parsed: &HashMap<Sha256, Parsed>) -> KnownWorker {
    let hash = worker.report.object_info;
    let info = hash.and_then(|hash| parsed.get(&hash)?.get()?.clone());
    KnownWorker {
        id: worker.spec.id,
        labels: worker.spec.labels,
        starting: info.is_none() && worker.report.health == Health::Starting,
        hash,
        info,
    }
}

/// What a worker with these labels and this `object_info` offers: the other side of the requirements that a check
/// gives out.
pub fn capabilities(labels: BTreeSet<String>, info: &ObjectInfo) -> Capabilities {
    let mut nodes = BTreeSet::new();
    let mut models = BTreeSet::new();
    for node in info.iter() {
        nodes.insert(node.class.clone());
        let choices = node.inputs.iter().filter_map(|input| input.choices()).flatten();
        let files = choices.filter_map(|choice| choice.as_str()).filter(|name| has_model_ending(name));
        models.extend(files.map(str::to_owned));
    }
    Capabilities { labels, nodes, models }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_burst_reads_a_description_once() {
        let (readings, count) = (Readings::default(), AtomicUsize::new(0));
        let read = || async {
            count.fetch_add(1, Ordering::Relaxed);
            // Everybody has asked before the first reading is done.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            Ok::<_, Infallible>(Some(Arc::new(ObjectInfo::default())))
        };
        let hash = Sha256::of(b"x");
        futures_util::future::join_all((0..50).map(|_| readings.ensure(hash, read))).await;
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(readings.lock().get(&hash).is_some_and(|parsed| parsed.get().is_some()));
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_tried_again() {
        let readings = Readings::default();
        let hash = Sha256::of(b"x");
        assert!(readings.ensure(hash, || async { Err(()) }).await.is_err());
        assert!(readings.ensure(hash, || async { Ok::<_, ()>(None) }).await.is_ok());
    }
}
