//! The handle of a journal source.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::desk::Desk;
use super::folder::{Folder, Read};
use super::office::{Office, bump};
use super::{Employer, JournalOptions, ask, foreign};
use crate::source::{Result, SourceError};

/// A source that works for an [`Employer`].
///
/// Dropped without [`JournalSource::close`], it leaves everything as a killed process does: the next one that opens the
/// journal goes on.
#[derive(Debug)]
pub struct JournalSource {
    pub(super) office: Arc<Office>,
}

impl Drop for JournalSource {
    fn drop(&mut self) {
        self.office.stop.cancel();
    }
}

impl JournalSource {
    /// Opens the journal, and takes up the reports that were not sent. To be called within a Tokio runtime.
    pub async fn open(employer: Arc<dyn Employer>, options: JournalOptions) -> Result<Self> {
        let JournalOptions { folder, owner, slots, workers, sink } = options;
        let name = employer.name();
        let of = name.clone();
        let read = move || {
            let folder = Folder::open(&folder)?;
            let read = folder.read(&of)?;
            let let_go = folder.read_let_go();
            Ok::<_, SourceError>((folder, read, let_go))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (folder, Read { ours: mut records, others }, mut let_go) =
            read.map_err(|error| SourceError::Unavailable(error.to_string()))??;
        let (recognised, foreign) = foreign::sort(&*employer, others).await;
        records.extend(recognised);
        // What the journal has is answered for by that.
        let_go.retain(|lease| records.iter().chain(&foreign).all(|record| record.task != lease.task));
        let ids = workers.iter().map(|(id, _)| id.clone());
        let mut desk = Desk::new(name, owner, slots, ids, folder.starts());
        let_go.extend(foreign::spared(foreign, &mut desk));
        desk.restore_let_go(let_go.clone());
        let (found, now) = (records.len(), Instant::now());
        let mut astray = Vec::new();
        for record in records {
            let task = record.task;
            if desk.restore(record, now) {
                astray.push(task);
            }
        }
        let (under_way, unsaid) = (desk.under_way(), desk.unsaid());
        let office = Arc::new(Office::new(employer, folder, desk, workers, sink));
        if found > 0 {
            tracing::info!(
                under_way = under_way.len(),
                unsaid = unsaid.len(),
                "the journal has jobs from before; they are taken up"
            );
        }
        for lease in let_go {
            office.linger(lease);
        }
        for task in under_way {
            office.oversee(task);
        }
        for task in astray {
            office.look(task);
        }
        for task in unsaid {
            office.say_again(task);
        }
        office.tasks.spawn(ask::run(Arc::clone(&office)));
        Ok(Self { office })
    }

    /// Stops everything under way, because of this; the employer may try it again. Nothing new is asked for.
    pub fn call_off(&self, reason: &str) {
        self.office.desk().call_off(reason);
        self.say_all();
        bump(&self.office.news);
    }

    /// How many jobs are under way, and how many reports are still to be heard.
    pub fn counts(&self) -> (usize, usize) {
        self.office.desk().counts()
    }

    /// Sends what reports it can within this time; the rest stays in the journal, and is counted. Nothing new is asked
    /// for, and what no worker has is called off. What is at a worker stays there, for the next process.
    pub async fn close(&self, patience: Duration) -> usize {
        let office = &self.office;
        office.desk().close("the worker is stopping");
        self.say_all();
        bump(&office.urge);
        let mut moves = office.moves.subscribe();
        let heard = async { while self.counts().1 > 0 && moves.changed().await.is_ok() {} };
        // What was not heard in time is in the journal.
        let _ = tokio::time::timeout(patience, heard).await;
        let unheard = office.desk().said();
        for task in unheard {
            super::reports::keep(office, task).await;
        }
        office.stop.cancel();
        office.tasks.close();
        office.tasks.wait().await;
        self.counts().1
    }

    fn say_all(&self) {
        let unsaid = self.office.desk().unsaid();
        for task in unsaid {
            self.office.say(task);
        }
        bump(&self.office.moves);
    }
}
