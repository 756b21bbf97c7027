//! Reports that a process before has left, while nothing else can be taken up: there is no ComfyUI yet.

use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use remuda_core::TaskId;

use super::journal::Journal;
use super::reporter::{LONGEST_PAUSE, LONGEST_TRY, PAUSE, tell_unheard};
use super::{Delivery, DeliveryEnding, ForeignQueue};
use crate::herd::jitter;
use crate::source::{Result, SourceError};

/// The reports that a process before has left. The journal is locked until it is dropped.
#[derive(Debug)]
pub struct UnsentReports {
    journal: Journal,
    reports: Vec<(TaskId, Arc<Delivery>, Arc<DeliveryEnding>)>,
}

impl UnsentReports {
    /// Opens the journal and reads what is left to be said. Everything else in it is left alone.
    pub async fn open(folder: &Path, queue: &dyn ForeignQueue) -> Result<Self> {
        let (folder, name) = (folder.to_owned(), queue.name());
        let read = move || {
            let journal = Journal::open(&folder)?;
            let records = journal.read(&name)?.ours.into_iter();
            let reports =
                records.filter_map(|record| Some((record.task, record.delivery, record.ending?))).collect();
            Ok::<_, SourceError>(Self { journal, reports })
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| SourceError::Unavailable(error.to_string()))?
    }

    /// Says everything until it was heard. Dropped before, the rest stays in the journal.
    pub async fn say(&self, queue: &dyn ForeignQueue) {
        let said = self.reports.iter().map(|(task, delivery, ending)| async {
            say(queue, delivery, ending).await;
            let task = *task;
            if let Err(error) = self.journal.save(task, false, || None) {
                tracing::warn!(%task, %error, "the journal cannot be written");
            }
        });
        said.collect::<FuturesUnordered<_>>().collect::<Vec<()>>().await;
    }
}

async fn say(queue: &dyn ForeignQueue, delivery: &Delivery, ending: &DeliveryEnding) {
    let (mut pause, mut tries) = (PAUSE, 0_u32);
    loop {
        let why = match tokio::time::timeout(LONGEST_TRY, queue.report(delivery, ending)).await {
            Ok(Ok(reported)) => {
                tracing::info!(
                    key = delivery.key,
                    attempt = delivery.attempt,
                    ?reported,
                    "its end was heard at last"
                );
                return;
            }
            Ok(Err(SourceError::Unavailable(why))) => why,
            Ok(Err(error)) => {
                tracing::error!(key = delivery.key, attempt = delivery.attempt, %error, "its report was refused; it is not sent again");
                return;
            }
            Err(_) => format!("no answer within {} s", LONGEST_TRY.as_secs()),
        };
        tries = tries.saturating_add(1);
        tell_unheard(delivery, tries, &why);
        tokio::time::sleep(jitter(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
