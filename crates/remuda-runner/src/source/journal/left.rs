//! Reports that a process before has left, while nothing else can be taken up: there is no ComfyUI yet.

use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use remuda_core::TaskId;

use super::folder::Folder;
use super::reports::{LONGEST_PAUSE, LONGEST_TRY, PAUSE, tell_unheard};
use super::{Employer, Job, JobEnding};
use crate::herd::jitter;
use crate::source::{Result, SourceError};

/// The reports that a process before has left. The journal is locked until it is dropped.
#[derive(Debug)]
pub struct LeftReports {
    folder: Folder,
    reports: Vec<(TaskId, Arc<Job>, Arc<JobEnding>)>,
}

impl LeftReports {
    /// Opens the journal and reads what is left to be said. Everything else in it is left alone.
    pub async fn open(folder: &Path, employer: &dyn Employer) -> Result<Self> {
        let (folder, name) = (folder.to_owned(), employer.name());
        let read = move || {
            let folder = Folder::open(&folder)?;
            let records = folder.read(&name)?.ours.into_iter();
            let reports =
                records.filter_map(|record| Some((record.task, record.job, record.ending?))).collect();
            Ok::<_, SourceError>(Self { folder, reports })
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| SourceError::Unavailable(error.to_string()))?
    }

    /// Says everything until it was heard. Dropped before, the rest stays in the journal.
    pub async fn say(&self, employer: &dyn Employer) {
        let said = self.reports.iter().map(|(task, job, ending)| async {
            say(employer, job, ending).await;
            let task = *task;
            if let Err(error) = self.folder.save(task, false, || None) {
                tracing::warn!(%task, %error, "the journal cannot be written");
            }
        });
        said.collect::<FuturesUnordered<_>>().collect::<Vec<()>>().await;
    }
}

async fn say(employer: &dyn Employer, job: &Job, ending: &JobEnding) {
    let (mut pause, mut tries) = (PAUSE, 0_u32);
    loop {
        let why = match tokio::time::timeout(LONGEST_TRY, employer.report(job, ending)).await {
            Ok(Ok(reported)) => {
                tracing::info!(key = job.key, attempt = job.attempt, ?reported, "its end was heard at last");
                return;
            }
            Ok(Err(SourceError::Unavailable(why))) => why,
            Ok(Err(error)) => {
                tracing::error!(key = job.key, attempt = job.attempt, %error, "its end was refused; it is not said again");
                return;
            }
            Err(_) => format!("no answer within {} s", LONGEST_TRY.as_secs()),
        };
        tries = tries.saturating_add(1);
        tell_unheard(job, tries, &why);
        tokio::time::sleep(jitter(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
