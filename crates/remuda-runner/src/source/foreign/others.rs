//! What the journal has from other queues than the one that is served: it is left alone, and so are its renders.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use remuda_core::Lease;
use tokio::time::Instant;

use super::ForeignQueue;
use super::deliveries::Deliveries;
use super::record::Record;

/// How long the queue is asked which of them are its own. The others wait for the next start.
const ASKING: Duration = Duration::from_secs(10);

/// How many questions are asked at once.
const QUESTIONS: usize = 8;

/// Sorts records under other names into those that are this queue's all the same, and those that are not.
pub(super) async fn sort(queue: &dyn ForeignQueue, others: Vec<Record>) -> (Vec<Record>, Vec<Record>) {
    let until = Instant::now() + ASKING;
    let asked = stream::iter(others).map(async |record| {
        let answer = queue.recognises(&record.queue, &record.delivery);
        let ours = tokio::time::timeout_at(until, answer).await.unwrap_or(false);
        (record, ours)
    });
    let answers: Vec<(Record, bool)> = asked.buffer_unordered(QUESTIONS).collect().await;
    let (ours, strange): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, ours)| *ours);
    let records = |answers: Vec<(Record, bool)>| answers.into_iter().map(|(record, _)| record).collect();
    (records(ours), records(strange))
}

/// What of them may render at workers: nobody stops it, and nothing is sent there until it has ended.
pub(super) fn spared(strange: Vec<Record>, deliveries: &mut Deliveries) -> Vec<Lease> {
    if strange.is_empty() {
        return Vec::new();
    }
    let found = strange.len();
    let mut leases = Vec::new();
    for record in strange {
        if let Some(lease) = deliveries.spare(&record) {
            tracing::warn!(
                of = record.queue,
                key = record.delivery.key,
                worker = %lease.worker,
                prompt_id = %lease.prompt_id,
                "a render of another server or tenant is spared; its worker gets nothing until it has ended"
            );
            leases.push(lease);
        }
    }
    tracing::warn!(
        found,
        spared = leases.len(),
        "the journal has tasks of another server or tenant; they are left alone until the worker works for that one again"
    );
    leases
}
