//! Listening to what the employer says of a job under way.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{TaskId, Timestamp};
use tokio_util::sync::CancellationToken;

use super::Over;
use super::desk::Verdict;
use super::office::{Office, bump};
use crate::herd::jitter;

/// The pause before the employer is asked again about a job whose next delivery is to come.
const PAUSE: Duration = Duration::from_secs(5);

/// Listens until the job ends, or until somebody else does.
pub(super) async fn run(office: Arc<Office>, task: TaskId, stop: CancellationToken) {
    let listen = async {
        let mut told = None;
        loop {
            let Some(job) = office.desk().job(task) else { return };
            let over = office.employer.watch(&job).await;
            let verdict = office.desk().over(task, job.attempt, &over, Timestamp::now());
            let key = &job.key;
            match (verdict, &over) {
                (Verdict::Ignore, _) => return,
                (Verdict::Freed, _) => {
                    if told.replace(job.attempt) != Some(job.attempt) {
                        tracing::warn!(
                            key,
                            attempt = job.attempt,
                            "its time is over, and it will be delivered again: the render goes on for that"
                        );
                        bump(&office.moves);
                    }
                    tokio::time::sleep(jitter(PAUSE)).await;
                }
                (Verdict::Tell, Over::Unwanted(reason)) => {
                    tracing::info!(
                        key,
                        attempt = job.attempt,
                        reason,
                        "nobody wants it any more: its prompt is cancelled"
                    );
                    bump(&office.news);
                    return;
                }
                (Verdict::Tell | Verdict::Gone, _) => {
                    tracing::info!(key, attempt = job.attempt, ?over, "it is let go of");
                    // Before its file goes: whoever is started next must not stop it either.
                    if over == Over::Elsewhere {
                        office.let_go(task);
                    }
                    office.forget(task);
                    bump(&office.news);
                    return;
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listen => {}
    }
}
