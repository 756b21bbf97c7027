//! What is known of the workers: their `object_info`, read from the store and parsed once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use comfyui::ObjectInfo;
use comfyui::object_info::has_model_ending;
use remuda_core::{Capabilities, Health, Requirements, Sha256, Timestamp, Worker, WorkerId};
use remuda_store::{Result, WorkerStore};

use super::readings::{self, Readings};

/// How long the list of workers is believed.
const FRESH: Duration = Duration::from_secs(1);

/// A worker as pre-flight sees it.
#[derive(Debug, Clone)]
pub(super) struct KnownWorker {
    pub(super) id: WorkerId,
    /// It is one of the installation's own: no key brought it.
    pub(super) own: bool,
    pub(super) labels: BTreeSet<String>,
    /// It is there, and has not yet said what it can do.
    pub(super) starting: bool,
    pub(super) hash: Option<Sha256>,
    /// What that stands for. With a hash and without this, nobody can say what the worker has.
    pub(super) info: Option<Arc<ObjectInfo>>,
    /// How long its text is.
    pub(super) weight: usize,
}

impl KnownWorker {
    /// Whether it may have anything: it has not yet said what it has, or nobody has read it.
    pub(super) fn is_unsure(&self) -> bool {
        self.starting || (self.hash.is_some() && self.info.is_none())
    }
}

#[derive(Debug)]
pub(super) struct Known {
    store: Arc<dyn WorkerStore>,
    list: Mutex<Option<(Instant, Arc<Vec<KnownWorker>>)>>,
    readings: Arc<Readings>,
}

impl Known {
    pub(super) fn new(store: Arc<dyn WorkerStore>) -> Self {
        let readings = Arc::new(Readings::new(Arc::clone(&store)));
        Self { store, list: Mutex::default(), readings }
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

    /// The workers as they are. What they have said and was not yet read is read meanwhile, but not waited for for long.
    pub(super) async fn workers_now(&self) -> Result<Arc<Vec<KnownWorker>>> {
        let read = Instant::now();
        let workers = self.store.workers().await?;
        let keys = self.store.registrants().await?;
        self.readings.want(readings::order(&workers, &keys, Timestamp::now()));
        self.readings.settle().await;
        let known = |worker: &Worker| {
            let own = !keys.contains_key(&worker.spec.id);
            self.known(worker, own)
        };
        let known: Vec<KnownWorker> = workers.iter().map(known).collect();
        let known = Arc::new(known);
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = Some((read, known.clone()));
        Ok(known)
    }

    fn known(&self, worker: &Worker, own: bool) -> KnownWorker {
        let hash = worker.report.object_info;
        let (info, weight) = hash.and_then(|hash| self.readings.get(hash)).unzip();
        KnownWorker {
            id: worker.spec.id.clone(),
            own,
            labels: worker.spec.labels.clone(),
            starting: info.is_none() && worker.report.health == Health::Starting,
            hash,
            info,
            weight: weight.unwrap_or(0),
        }
    }
}

/// Why none of these workers can run a task with these requirements; `None` when one can, or may yet say that it can. `found` is
/// what the worker `by` just found that it lacks: its description in the store may be older.
pub(super) fn nobody_has(
    workers: &[KnownWorker],
    requires: &Requirements,
    found: &Requirements,
    by: Option<&WorkerId>,
) -> Option<String> {
    let mut lacking = Vec::new();
    for worker in workers {
        if !requires.labels.is_subset(&worker.labels) {
            continue;
        }
        if by == Some(&worker.id) {
            lacking.push(format!("{} lacks {found}", worker.id));
            continue;
        }
        let Some(info) = &worker.info else {
            if worker.is_unsure() {
                return None;
            }
            continue;
        };
        let missing = requires.missing_on(&capabilities(worker.labels.clone(), info));
        if missing.is_empty() {
            return None;
        }
        lacking.push(format!("{} lacks {missing}", worker.id));
    }
    let message = format!("no worker can run it: {}", lacking.join("; "));
    (!lacking.is_empty()).then_some(message)
}

/// Whether a check would find the same with both.
pub(super) fn same_workers(one: &[KnownWorker], other: &[KnownWorker]) -> bool {
    let facts = |worker: &KnownWorker| (worker.hash, worker.info.is_some(), worker.starting);
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            one.id == other.id && one.labels == other.labels && facts(one) == facts(other)
        })
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
