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
    async fn within<T>(limit: Duration, what: &Ask, answer: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::TimedOut { what: format!("{what:?}"), after: limit }),
        }
    }
    match ask.clone() {
        Ask::Survey | Ask::FreshClientId => Answer::Survey(within(limit, &ask, survey(&client)).await),
        Ask::History(id) => {
            let entry = within(limit, &ask, client.history(&id)).await;
            Answer::History(id, entry)
        }
        Ask::Look(id) => {
            let place = within(limit, &ask, client.find(&id)).await;
            Answer::Look(id, place)
        }
        Ask::SameServer(id) => {
            let oldest = within(limit, &ask, oldest_memory(&client)).await;
            Answer::SameServer(id, oldest)
        }
        Ask::Files(id) => {
            let missing = within(limit, &ask, missing_files(&client, files)).await;
            // Not being able to look is not the same as missing.
            Answer::Files(id, missing.unwrap_or_default())
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
        pending: queue.in_order().into_iter().map(|item| item.prompt_id.clone()).collect(),
        running: queue.running.into_iter().map(|item| item.prompt_id).collect(),
    })
}

/// When the oldest entry of the history began to run, by the server's clock.
async fn oldest_memory(client: &Client) -> Result<Option<u64>> {
    let page = client.history_page(Some(1), Some(0)).await?;
    Ok(page.values().find_map(|entry| {
        let messages = &entry.status.as_ref()?.messages;
        messages.iter().find_map(crate::ws::Message::timestamp)
    }))
}

async fn missing_files(client: &Client, files: Vec<OutputFile>) -> Result<Vec<OutputFile>> {
    let mut missing = Vec::new();
    for file in files {
        if !client.file_exists(&FileRef::from(&file)).await? {
            missing.push(file);
        }
    }
    Ok(missing)
}
