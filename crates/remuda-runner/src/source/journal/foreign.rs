//! What the journal has from other employers: it is left alone, and so are its renders.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use remuda_core::Lease;
use tokio::time::Instant;

use super::Employer;
use super::desk::Desk;
use super::record::Record;

/// So long the employer is asked which of them are its own. The others wait for the next start.
const ASKING: Duration = Duration::from_secs(10);

/// So many questions at once.
const QUESTIONS: usize = 8;

/// Sorts records under other names into those that are this employer's all the same, and those that are not.
pub(super) async fn sort(employer: &dyn Employer, others: Vec<Record>) -> (Vec<Record>, Vec<Record>) {
    let until = Instant::now() + ASKING;
    let asked = stream::iter(others).map(async |record| {
        let answer = employer.recognises(&record.employer, &record.job);
        let ours = tokio::time::timeout_at(until, answer).await.unwrap_or(false);
        (record, ours)
    });
    let answers: Vec<(Record, bool)> = asked.buffer_unordered(QUESTIONS).collect().await;
    let (ours, foreign): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, ours)| *ours);
    let records = |answers: Vec<(Record, bool)>| answers.into_iter().map(|(record, _)| record).collect();
    (records(ours), records(foreign))
}

/// What of them may render at workers: nobody stops it, and nothing is sent there until it has ended.
pub(super) fn spared(foreign: Vec<Record>, desk: &mut Desk) -> Vec<Lease> {
    if foreign.is_empty() {
        return Vec::new();
    }
    let found = foreign.len();
    let mut leases = Vec::new();
    for record in foreign {
        if let Some(lease) = desk.spare(&record) {
            tracing::warn!(
                employer = record.employer,
                key = record.job.key,
                worker = %lease.worker,
                prompt_id = %lease.prompt_id,
                "a render of another server or tenant is spared; its worker gets nothing until it has ended"
            );
            leases.push(lease);
        }
    }
    tracing::warn!(
        foreign = found,
        spared = leases.len(),
        "the journal has jobs of another server or tenant; they are left alone until the worker works for that one again"
    );
    leases
}
