//! Carrying out what the tracker asks.

use std::time::Duration;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::files::FileRef;
use crate::history::HistoryEntry;
use crate::ids::PromptId;
use crate::jobs::{JobStatus, JobsQuery};
use crate::outputs::OutputFile;
use crate::queue::Whereabouts;
use crate::watch::tracker::{Ask, Snapshot};

/// An answer to an [`Ask`].
pub(crate) enum Answer {
    Survey(Result<Snapshot>),
    History(PromptId, Result<Option<HistoryEntry>>),
    Look(PromptId, Result<Whereabouts>),
    SameServer(PromptId, Result<Option<u64>>),
    Files(PromptId, Vec<OutputFile>),
}

/// Asks the server one thing, within a limit of time.
pub(crate) async fn question(client: Client, limit: Duration, ask: Ask, files: Vec<OutputFile>) -> Answer {
    let client = client.counting_waits();
    let within = Within { client: &client, limit, what: &ask };
    match ask.clone() {
        // The latter two are not questions; the service deals with them.
        Ask::Survey | Ask::FreshClientId | Ask::Ping => Answer::Survey(within.ask(survey(&client)).await),
        Ask::History(id) => {
            let entry = within.ask(client.history(&id)).await;
            Answer::History(id, entry)
        }
        Ask::Look(id) => {
            let place = within.ask(client.find(&id)).await;
            Answer::Look(id, place)
        }
        Ask::SameServer(id) => {
            let oldest = within.ask(oldest_memory(&client)).await;
            Answer::SameServer(id, oldest)
        }
        Ask::Files(id) => Answer::Files(id, missing_files(&client, files, limit).await),
    }
}

/// A limit of time for an answer.
struct Within<'a> {
    client: &'a Client,
    limit: Duration,
    what: &'a Ask,
}

impl Within<'_> {
    /// What the client has to wait until it may read a large answer is not the server's time.
    async fn ask<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let mut answer = std::pin::pin!(answer);
        let (mut left, mut waited) = (self.limit, self.client.waited());
        loop {
            if let Ok(answer) = tokio::time::timeout(left, &mut answer).await {
                return answer;
            }
            left = self.client.waited().saturating_sub(waited);
            waited += left;
            if left.is_zero() {
                return Err(Error::TimedOut { what: format!("{:?}", self.what), after: self.limit });
            }
        }
    }
}

/// The ids in the queue, by the cheapest route this version has.
async fn survey(client: &Client) -> Result<Snapshot> {
    if client.capabilities().await?.jobs {
        let query =
            JobsQuery { status: vec![JobStatus::Pending, JobStatus::Running], ..JobsQuery::default() };
        match client.jobs(&query).await {
            Ok(page) => {
                let mut snapshot = Snapshot::default();
                let mut pending = Vec::new();
                for job in page.jobs {
                    snapshot.clock_ms = snapshot.clock_ms.max(job.create_time.unwrap_or_default() as u64);
                    match job.status {
                        JobStatus::Running => snapshot.running.push(job.id),
                        _ => pending.push((job.priority.unwrap_or(f64::NAN), job.id)),
                    }
                }
                pending.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
                snapshot.pending = pending.into_iter().map(|(_, id)| id).collect();
                return Ok(snapshot);
            }
            // One odd entry breaks the list for everybody: ask the older route.
            Err(Error::Status { .. } | Error::Protocol { .. } | Error::Unsupported { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let queue = client.queue().await?;
    Ok(Snapshot {
        clock_ms: 0,
        pending: queue.in_order().into_iter().map(|item| item.prompt_id.clone()).collect(),
        running: queue.running.into_iter().map(|item| item.prompt_id).collect(),
    })
}

/// When the oldest entry of the history began to run, by the server's clock.
async fn oldest_memory(client: &Client) -> Result<Option<u64>> {
    // Where `offset` is ignored, only the whole history shows its oldest entry.
    let first = client.capabilities().await?.history_offset;
    let page = if first {
        client.history_page(Some(1), Some(0)).await?
    } else {
        client.history_page(None, None).await?
    };
    Ok(page.values().find_map(|entry| {
        let messages = &entry.status.as_ref()?.messages;
        messages.iter().find_map(crate::ws::Message::timestamp)
    }))
}

/// Those that are surely not there. Not being able to look is not the same as missing.
async fn missing_files(client: &Client, files: Vec<OutputFile>, limit: Duration) -> Vec<OutputFile> {
    let deadline = tokio::time::Instant::now() + limit;
    let mut missing = Vec::new();
    for file in files {
        let reference = FileRef::from(&file);
        match tokio::time::timeout_at(deadline, client.file_exists(&reference)).await {
            Ok(Ok(false)) => missing.push(file),
            Ok(Ok(true)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, file = file.filename, "could not look for a cached file")
            }
            Err(_) => break,
        }
    }
    missing
}
