//! What is known of the workers: their `object_info`, read from the store and parsed once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
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

#[derive(Debug)]
pub(super) struct Known {
    store: Arc<dyn Store>,
    list: Mutex<Option<(Instant, Arc<Vec<KnownWorker>>)>>,
    parsed: Mutex<HashMap<Sha256, Parsed>>,
}

impl Known {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, list: Mutex::default(), parsed: Mutex::default() }
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
            let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
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
            let parsed = {
                let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
                if !parsed.contains_key(&hash) && parsed.len() >= MOST {
                    continue;
                }
                parsed.entry(hash).or_default().clone()
            };
            // A description takes long to read and much memory: requests that come at the same time wait for one reading.
            let read = parsed.get_or_try_init(|| self.read(hash)).await;
            match read {
                Ok(_) | Err(NotRead::Absent) => {}
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
