//! What can be said of a graph before it is queued: refused, or which workers can run it and with which files.
//!
//! [`Preflight`] knows the last `object_info` of every worker from the store. A graph is refused when it is none,
//! when it would kill a ComfyUI, and when every worker that is known lacks a node or a model of it; a graph that
//! only some workers can run gets the requirements that keep it away from the others.

mod fingerprint;
#[cfg(test)]
mod growth;
mod handed;
mod limits;
mod loaders;
mod paths;
mod placements;
mod readings;
mod refusal;
pub mod uploads;
mod verdict;
mod weight;
mod words;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use comfyui::{Workflow, lenient};
use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, LeaseRef, OwnerId, Placement, Requirements, Task, Tenant};
use remuda_pool::{Kept, NotDone, Pool, Work};
use remuda_store::{EndReply, Result as StoreResult, Store};
use serde_json::value::RawValue;

pub use limits::{GraphLimits, setting as limit_setting};
pub use readings::{MOST_SIDECAR_VALUES, MOST_TEXT, MOST_VALUES};
pub use refusal::{Place, PreflightError, Refusal, RefusalKind};
pub use words::Words;
pub use workers::capabilities;

use verdict::Case;
use workers::{Known, same_workers};

/// The folder of a worker, below its input and output folders, in which everything is that we put there.
pub const FOLDER: &str = "remuda";

/// The longest body of a request, unless it is said otherwise.
const LONGEST: u64 = 32 << 20;

/// Texts up to this length are not counted: they grow to less than twelve times as much.
const SHORT: usize = 1 << 20;

/// What is to be checked.
#[derive(Debug, Clone)]
pub struct Question {
    /// Whose files the graph may name.
    pub tenant: Tenant,
    /// The graph, as it came.
    pub workflow: Box<RawValue>,
    /// `extra_data`, which goes to ComfyUI with the graph.
    pub extra_data: Option<Box<RawValue>>,
    /// Files for inputs, by `node.input`: `asset:<sha256>` or the name of an uploaded file.
    pub inputs: BTreeMap<String, String>,
    /// Files that were found for an earlier task with the same graph: they stay, whatever their names mean by now.
    pub pinned: Vec<Placement>,
    /// What the submitter asks of a worker.
    pub requires: Requirements,
    /// Only these output nodes are to run.
    pub targets: Option<Vec<String>>,
    /// Refuse also what is wrong only as far as ComfyUI's own nodes go, whose rules are known: values outside their
    /// range or list. Without it a worker has the last word on them.
    pub strict: bool,
    /// Kept until no computation on the graph runs any more, also when nobody waits for the answer.
    pub held: Option<Kept>,
}

/// A graph that may be queued.
#[derive(Debug, Clone)]
pub struct Cleared {
    /// The graph, byte for byte.
    pub workflow: Box<RawValue>,
    /// `extra_data`, as it came.
    pub extra_data: Option<Box<RawValue>>,
    /// Files that must be at the worker first.
    pub placements: Vec<Placement>,
    /// What the submitter asks for, and what at least one known worker lacks.
    pub requires: Requirements,
    /// Which models it uses, as one number.
    pub affinity: Option<i64>,
    /// Its classes and sizes, as one number.
    pub shape: i64,
    /// What the submitter should know.
    pub warnings: Vec<String>,
    /// The output nodes that will run, as far as workers told.
    pub outputs: Vec<String>,
    /// What is wrong with nodes on the way to outputs that will not run, in ComfyUI's words.
    pub node_errors: serde_json::Map<String, serde_json::Value>,
}

/// Checks graphs against the workers that a store knows. One per process: it remembers what it has read.
#[derive(Debug)]
pub struct Preflight {
    store: Arc<dyn Store>,
    known: Known,
    pool: Pool,
    limits: GraphLimits,
    /// How long a graph and its `extra_data` may be, as ComfyUI writes them.
    longest: u64,
    /// Labels that all tasks of a tenant require.
    bound: BTreeMap<Tenant, BTreeSet<String>>,
}

impl Preflight {
    /// For the workers of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (limits, bound) = (GraphLimits::default(), BTreeMap::new());
        Self {
            known: Known::new(store.clone()),
            store,
            pool: Pool::default(),
            limits,
            longest: LONGEST,
            bound,
        }
    }

    /// Large graphs are checked on the threads of this pool.
    #[must_use]
    pub fn with_pool(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// Graphs may be this large.
    #[must_use]
    pub fn within(mut self, limits: GraphLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Graphs may be this long together with their `extra_data`, as ComfyUI writes them.
    #[must_use]
    pub fn longest(mut self, bytes: u64) -> Self {
        self.longest = bytes;
        self
    }

    /// Binds tenants to workers with these labels, whatever their tasks ask for.
    #[must_use]
    pub fn bound(mut self, labels: BTreeMap<Tenant, BTreeSet<String>>) -> Self {
        self.bound = labels;
        self
    }

    /// Takes a task back that a worker could not begin.
    ///
    /// With `learnt`, what the worker lacks, the task waits for one that has it; when no known worker has, it would wait
    /// for ever, and fails with a word about what is missing.
    pub async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> StoreResult<EndReply> {
        if let Some(learnt) = &learnt
            && let Some(task) = self.store.task(lease.task).await?
            && task.fence == lease.fence
            && !task.status.is_terminal()
        {
            let asked = self.store.requires(&task.lane).await?;
            let requires = asked.unwrap_or_default().and(learnt);
            if requires.size() > Requirements::LONGEST {
                // Nobody who means well lacks as much as this, and the task would come back to the same worker without it.
                let message = format!("{} lacks more of what the task needs than can be kept", worker(&task));
                let failure = Failure::new(FailureClass::Validation, message);
                return self.store.end(owner, lease, Ending::Failed { failure, partial: None }).await;
            }
            if let Some(message) = self.nobody_has(&task, requires, learnt.clone()).await? {
                let failure = Failure::new(FailureClass::Validation, message);
                return self.store.end(owner, lease, Ending::Failed { failure, partial: None }).await;
            }
        }
        self.store.give_back(owner, lease, learnt).await
    }

    /// Why no known worker can run the task; `None` when one can, or nobody can say.
    async fn nobody_has(
        &self,
        task: &Task,
        requires: Requirements,
        found: Requirements,
    ) -> StoreResult<Option<String>> {
        let workers = self.known.workers_now().await?;
        // Every description is read whole.
        let texts = workers.iter().map(|worker| worker.weight).fold(0, usize::saturating_add);
        let work = Work::new("looking for a worker", task.tenant.as_str(), texts).patient();
        let by = task.worker.clone();
        let look = move || workers::nobody_has(&workers, &requires, &found, by.as_ref());
        Ok(self.pool.run(work, look).await.unwrap_or_else(|error| {
            tracing::warn!(%error, task = %task.id, "nobody knows whether a worker can run it; it waits for one");
            None
        }))
    }

    /// Checks one graph.
    pub async fn check(&self, question: Question) -> Result<Cleared, PreflightError> {
        let Question {
            tenant,
            workflow: raw,
            extra_data,
            inputs,
            pinned,
            mut requires,
            targets,
            strict,
            held,
        } = question;
        if let Some(labels) = self.bound.get(&tenant) {
            requires.labels.extend(labels.iter().cloned());
        }
        let begun = Instant::now();
        // Not refused: whoever asks was admitted with its request, and only so many are.
        let mut work = Work::new(
            "checking a graph",
            tenant.as_str(),
            raw.get().len() + extra_data.as_ref().map_or(0, |extra| extra.get().len()),
        )
        .patient();
        if let Some(held) = held {
            work = work.holding(held);
        }
        let limits = self.limits.workflow();
        let longest = self.longest;
        let read = move || {
            check_length(&raw, extra_data.as_deref(), longest)?;
            Ok::<_, Refusal>((Workflow::from_raw_within(raw, &limits)?, extra_data))
        };
        let (workflow, extra_data) = self.pool.run(work.clone(), read).await??;
        check_targets(targets.as_deref().unwrap_or_default(), &self.limits)?;
        let workers = self.known.workers().await?;
        let case = Arc::new(Case { workflow, asked: requires, targets, strict });
        let mut judged = self.judge(&work, &case, workers.clone()).await?;
        if judged.is_err() || judged.as_ref().is_ok_and(|verdict| verdict.unsure) {
            // The list may be a second old, and a worker that can run it may just have come.
            let now = self.known.workers_since(begun).await?;
            if !same_workers(&workers, &now) {
                judged = self.judge(&work, &case, now).await?;
            }
        }
        let verdict = judged?;
        let requires = verdict.needed(&case.asked)?;
        let (taken, uploads) = (Arc::clone(&case), verdict.upload_inputs.clone());
        let limits = self.limits.clone();
        let name = move || placements::Named::of(&taken.workflow, &inputs, pinned, &uploads, &limits);
        let named = self.pool.run(work.clone(), name).await??;
        // On the runtime: a store that is slow is no computation that takes too long.
        let known = placements::look_up_all(&self.store, &tenant, named.different()).await?;
        let (taken, uploads) = (Arc::clone(&case), verdict.upload_inputs.clone());
        let allowed = self.limits.allowed_paths.clone();
        let looked = move || {
            let workflow = &taken.workflow;
            let placements = named.placed(&known)?;
            paths::check(workflow, &uploads, &placements, &allowed)?;
            Ok::<_, Refusal>((fingerprint::affinity(workflow), fingerprint::shape(workflow), placements))
        };
        let (affinity, shape, placements) = self.pool.run(work, looked).await??;
        // No computation has it any more: it is taken out, not copied.
        let workflow = match Arc::try_unwrap(case) {
            Ok(case) => case.workflow,
            Err(case) => case.workflow.clone(),
        };
        Ok(Cleared {
            placements,
            requires,
            affinity,
            shape,
            warnings: verdict.warnings,
            outputs: verdict.outputs,
            node_errors: verdict.node_errors,
            workflow: workflow.into_raw(),
            extra_data,
        })
    }

    async fn judge(
        &self,
        work: &Work,
        case: &Arc<Case>,
        workers: Arc<Vec<workers::KnownWorker>>,
    ) -> Result<Result<verdict::Verdict, Refusal>, NotDone> {
        let weight = weight::weight(case, &workers, work.bytes());
        let case = Arc::clone(case);
        self.pool.run(work.clone().on(weight), move || verdict::judge(&case, &workers)).await
    }
}

/// A ComfyUI repeats what it was sent in its queue and its history, in ASCII. What becomes larger there than a request may be
/// would look like an answer without end, from every worker that gets it.
fn check_length(graph: &RawValue, extra: Option<&RawValue>, longest: u64) -> Result<(), Refusal> {
    let extra = extra.map_or("{}", RawValue::get);
    if graph.get().len() + extra.len() <= SHORT {
        return Ok(());
    }
    let length = lenient::ascii_length(graph.get()) + lenient::ascii_length(extra);
    if length as u64 <= longest {
        return Ok(());
    }
    let message = format!(
        "the graph and its extra_data take {length} bytes the way ComfyUI writes them, in ASCII, and {longest} are allowed"
    );
    Err(Refusal::too_large("server.body_limit", message))
}

fn worker(task: &Task) -> &str {
    task.worker.as_ref().map_or("the worker", remuda_core::WorkerId::as_str)
}

fn check_targets(targets: &[String], limits: &GraphLimits) -> Result<(), Refusal> {
    if targets.len() > limits.targets {
        let message =
            format!("the request names {} targets, and {} are allowed", targets.len(), limits.targets);
        return Err(Refusal::too_large("graph.targets", message));
    }
    if targets.iter().any(|target| target.len() > limits.name_length) {
        let message = format!("the request names a target that is longer than {} bytes", limits.name_length);
        return Err(Refusal::too_large("graph.name_length", message));
    }
    Ok(())
}
