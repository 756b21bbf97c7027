//! The handle of a foreign source, and its options.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::{OwnerId, WorkerId};
use remuda_files::Files;
use tokio::time::Instant;

use super::deliveries::Deliveries;
use super::journal::{Journal, Read};
use super::shared::{Shared, bump};
use super::{ForeignQueue, feeder, others};
use crate::source::{Result, SourceError};

/// How a foreign source works.
#[derive(Debug)]
pub struct ForeignOptions {
    /// Where the journal is kept; made when it is not there. One process at a time.
    pub folder: PathBuf,
    /// The process.
    pub owner: OwnerId,
    /// How many tasks may be under way at once, over all workers.
    pub slots: usize,
    /// All workers, to look for a task that may have been begun before.
    pub workers: Vec<(WorkerId, comfyui::Client)>,
    /// Where outputs are delivered to; without it they stay at ComfyUI and are only named.
    pub sink: Option<Files>,
}

/// A source that works for a [`ForeignQueue`].
///
/// Dropped without [`ForeignSource::close`], it leaves everything as a killed process does: the next one that opens the
/// journal goes on.
#[derive(Debug)]
pub struct ForeignSource {
    pub(super) shared: Arc<Shared>,
}

impl Drop for ForeignSource {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl ForeignSource {
    /// Opens the journal, and takes up the reports that were not sent. To be called within a Tokio runtime.
    pub async fn open(queue: Arc<dyn ForeignQueue>, options: ForeignOptions) -> Result<Self> {
        let ForeignOptions { folder, owner, slots, workers, sink } = options;
        let name = queue.name();
        let of = name.clone();
        let read = move || {
            let journal = Journal::open(&folder)?;
            let read = journal.read(&of)?;
            let let_go = journal.read_let_go();
            Ok::<_, SourceError>((journal, read, let_go))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (journal, Read { ours: mut records, others: elsewhere }, mut let_go) =
            read.map_err(|error| SourceError::Unavailable(error.to_string()))??;
        let (recognised, strange) = others::sort(&*queue, elsewhere).await;
        records.extend(recognised);
        // What the journal has is answered for by that.
        let_go.retain(|lease| records.iter().chain(&strange).all(|record| record.task != lease.task));
        let ids = workers.iter().map(|(id, _)| id.clone());
        let mut deliveries = Deliveries::new(name, owner, slots, ids, journal.starts());
        let_go.extend(others::spared(strange, &mut deliveries));
        deliveries.restore_let_go(let_go.clone());
        let (found, now) = (records.len(), Instant::now());
        let mut astray = Vec::new();
        for record in records {
            let task = record.task;
            if deliveries.restore(record, now) {
                astray.push(task);
            }
        }
        let (under_way, unsaid) = (deliveries.under_way(), deliveries.unsaid());
        let shared = Arc::new(Shared::new(queue, journal, deliveries, workers, sink));
        if found > 0 {
            tracing::info!(
                under_way = under_way.len(),
                unsaid = unsaid.len(),
                "the journal has tasks from before; they are taken up"
            );
        }
        for lease in let_go {
            shared.linger(lease);
        }
        for task in under_way {
            shared.watch_over(task);
        }
        for task in astray {
            shared.look(task);
        }
        for task in unsaid {
            shared.say_again(task);
        }
        shared.tasks.spawn(feeder::run(Arc::clone(&shared)));
        Ok(Self { shared })
    }

    /// Stops everything under way, because of this; the queue may try it again. Nothing new is asked for.
    pub fn call_off(&self, reason: &str) {
        self.shared.deliveries().call_off(reason);
        self.say_all();
        bump(&self.shared.news);
    }

    /// How many tasks are under way, and how many reports are still to be heard.
    pub fn counts(&self) -> (usize, usize) {
        self.shared.deliveries().counts()
    }

    /// Sends what reports it can within this time; the rest stays in the journal, and is counted. Nothing new is asked
    /// for, and what no worker has is called off. What is at a worker stays there, for the next process.
    pub async fn close(&self, patience: Duration) -> usize {
        let shared = &self.shared;
        shared.deliveries().close("the worker is stopping");
        self.say_all();
        bump(&shared.urge);
        let mut moves = shared.moves.subscribe();
        let heard = async { while self.counts().1 > 0 && moves.changed().await.is_ok() {} };
        // What was not heard in time is in the journal.
        let _ = tokio::time::timeout(patience, heard).await;
        let unheard = shared.deliveries().said();
        for task in unheard {
            super::reporter::keep(shared, task).await;
        }
        shared.stop.cancel();
        shared.tasks.close();
        shared.tasks.wait().await;
        self.counts().1
    }

    fn say_all(&self) {
        let unsaid = self.shared.deliveries().unsaid();
        for task in unsaid {
            self.shared.say(task);
        }
        bump(&self.shared.moves);
    }
}
