//! What all workers for somebody else's queue share: they wait for a ComfyUI before they ask for tasks, say what is left to be
//! said meanwhile, and end without losing what renders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::WorkerId;
use remuda_files::Files;
use remuda_runner::source::foreign::{ForeignOptions, ForeignQueue, ForeignSource, UnsentReports};
use remuda_runner::{Herd, WorkerConfig};
use tokio::time::Instant;

use super::lifecycle::{Around, Connection};

/// How long it may take, after the drain, until a ComfyUI that answers has stopped what is called off and the queue has heard
/// it.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A ComfyUI that does not answer within this time then is not waited for.
const LAST_QUESTION: Duration = Duration::from_secs(2);

/// How long reports that were not heard yet are tried at the end. They are in the journal in any case.
const LAST_REPORTS: Duration = Duration::from_secs(3);

/// … when the queue is known to be away.
const LAST_TRY: Duration = Duration::from_millis(500);

/// How the ComfyUIs are asked.
type Clients = BTreeMap<WorkerId, comfyui::Client>;

/// How a foreign queue is worked for.
pub(super) struct Terms {
    /// The folder of its journal, within the data directory.
    pub(super) folder: &'static str,
    /// How many tasks may be under way at once.
    pub(super) slots: usize,
    /// Where outputs are delivered to, if they are.
    pub(super) sink: Option<Files>,
    /// How long a start waits for a ComfyUI to answer …
    pub(super) patience: Duration,
    /// … and the pause between two looks.
    pub(super) pause: Duration,
}

/// A foreign queue that is worked for.
pub(super) struct ForeignConnection {
    pub(super) source: Arc<ForeignSource>,
    queue: Arc<dyn ForeignQueue>,
    clients: Clients,
}

/// Opens a queue once a ComfyUI answers: one that was asked before would deliver, and its timeouts would run in vain.
/// `reporting` is the same queue without the asking: what ended before needs no ComfyUI to be told.
pub(super) async fn connect<Q: ForeignQueue>(
    around: &Around,
    terms: Terms,
    reporting: impl FnOnce() -> Q,
    open: impl AsyncFnOnce() -> anyhow::Result<Q>,
) -> anyhow::Result<ForeignConnection> {
    let Around { settings, owner, workers, .. } = around;
    let Terms { folder, slots, sink, patience, pause } = terms;
    let folder = settings.server.data.join(folder);
    if !is_there(workers).await {
        let queue = reporting();
        let unsent = UnsentReports::open(&folder, &queue).await?;
        let told = async {
            unsent.say(&queue).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            waited = wait_for_comfyui(workers, patience, pause) => waited?,
            () = told => {}
        }
    }
    let queue: Arc<dyn ForeignQueue> = Arc::new(open().await?);
    let clients: Clients =
        workers.iter().map(|worker| (worker.spec.id.clone(), worker.client.clone())).collect();
    let workers = clients.clone().into_iter().collect();
    let options = ForeignOptions { folder, owner: owner.id, slots, workers, sink };
    let source = Arc::new(ForeignSource::open(Arc::clone(&queue), options).await?);
    Ok(ForeignConnection { source, queue, clients })
}

impl Connection for ForeignConnection {
    async fn end(self, herd: &Herd, drain: Duration) {
        let Self { source, queue, clients } = self;
        tokio::join!(queue.close(), end_all(herd, &source, &clients, drain));
        let unsent = source.close(if queue.is_away() { LAST_TRY } else { LAST_REPORTS }).await;
        if unsent > 0 {
            tracing::warn!(unsent, "some reports did not arrive; they are sent after the next start");
        }
    }
}

/// Lets what renders end within the drain, and then stops it. What is at a ComfyUI that does not answer stays as it is, for
/// the next start.
async fn end_all(herd: &Herd, source: &ForeignSource, clients: &Clients, drain: Duration) {
    let all = herd.stop(drain + LAST_WORDS);
    if tokio::time::timeout(drain, all).await.is_ok() {
        return;
    }
    source.call_off("the worker is stopping");
    tokio::select! {
        () = herd.stop(LAST_WORDS) => {}
        () = none_answers(herd, clients) => herd.stop(Duration::ZERO).await,
    }
}

/// Returns when no ComfyUI that has something of ours answers.
async fn none_answers(herd: &Herd, clients: &Clients) {
    loop {
        let asked = Instant::now();
        let workers = herd.status().workers.into_iter().filter(|worker| !worker.leases.is_empty());
        let asks = workers.filter_map(|worker| clients.get(&worker.spec.id)).map(async |client| {
            matches!(tokio::time::timeout(LAST_QUESTION, client.system_stats()).await, Ok(Ok(_)))
        });
        if !futures_util::future::join_all(asks).await.contains(&true) {
            return;
        }
        tokio::time::sleep_until(asked + LAST_QUESTION).await;
    }
}

/// Whether a ComfyUI answers at once.
async fn is_there(workers: &[WorkerConfig]) -> bool {
    for worker in workers {
        let answer = tokio::time::timeout(Duration::from_secs(1), worker.client.system_stats()).await;
        if matches!(answer, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

/// Waits until one of the ComfyUIs answers.
async fn wait_for_comfyui(
    workers: &[WorkerConfig],
    patience: Duration,
    pause: Duration,
) -> anyhow::Result<()> {
    let since = Instant::now();
    let mut told = false;
    let mut reason = String::new();
    loop {
        for worker in workers {
            let left = patience.saturating_sub(since.elapsed()).max(Duration::from_secs(1));
            match tokio::time::timeout(left, worker.client.system_stats()).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => reason = error.to_string(),
                // What was said before says more.
                Err(_) if reason.is_empty() => reason = "no answer".to_owned(),
                Err(_) => {}
            }
        }
        let names: Vec<&str> = workers.iter().map(|worker| worker.spec.endpoint.as_str()).collect();
        let names = names.join(", ");
        if since.elapsed() >= patience {
            anyhow::bail!("no ComfyUI answered at {names} within {} s: {reason}", patience.as_secs());
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!(comfyui = names, reason, "ComfyUI does not answer yet; waiting for it");
        }
        tokio::time::sleep(pause.max(Duration::from_millis(100))).await;
    }
}
