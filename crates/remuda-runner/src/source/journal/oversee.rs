//! Listening to what the employer says of a job under way.

use std::sync::Arc;

use remuda_core::{TaskId, Timestamp};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::desk::Verdict;
use super::office::{Office, bump};
use super::{Job, Next, Over};

/// Listens until the job ends, or until somebody else does. One whose time was over, and that has ended well since, is
/// listened for until its next delivery comes: that may have been lost on its way.
pub(super) async fn run(office: Arc<Office>, task: TaskId, stop: CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listen(&office, task) => office.look_away(task),
    }
}

async fn listen(office: &Arc<Office>, task: TaskId) {
    // The delivery that is over, and has another one to come.
    let mut superseded: Option<Arc<Job>> = None;
    loop {
        let known = office.desk().job(task);
        let job = match (known, superseded.take()) {
            (Some(job), before) => {
                superseded = before.filter(|before| before.attempt == job.attempt);
                job
            }
            (None, Some(before)) if office.desk().remembers(task, Instant::now()) => {
                superseded = Some(Arc::clone(&before));
                before
            }
            (None, before) => {
                before.iter().for_each(|job| office.employer.gone(job));
                return;
            }
        };
        let (key, attempt) = (&job.key, job.attempt);
        let over = match &superseded {
            None => office.employer.watch(&job).await,
            Some(job) => match office.employer.watch_next(job).await {
                Next::Over(over) => over,
                Next::Lost(next) => {
                    tracing::warn!(
                        key,
                        attempt = next.attempt,
                        "its next delivery was lost on its way; it is taken up as if it had come"
                    );
                    office.receive(*next);
                    return;
                }
            },
        };
        let verdict = office.desk().over(task, attempt, &over, Timestamp::now());
        match (verdict, &over) {
            (Verdict::Freed, _) => {
                if superseded.is_none() {
                    tracing::warn!(
                        key,
                        attempt,
                        "its time is over, and it will be delivered again: the render goes on for that"
                    );
                    bump(&office.moves);
                }
                superseded = Some(job);
            }
            // It has ended meanwhile.
            (Verdict::Ignore, Over::Superseded) if superseded.is_some() => {}
            (Verdict::Ignore, _) => {
                superseded.iter().for_each(|job| office.employer.gone(job));
                return;
            }
            (Verdict::Tell, Over::Unwanted(reason) | Over::Done(reason)) => {
                tracing::info!(key, attempt, reason, "nobody wants it any more: its prompt is cancelled");
                bump(&office.news);
                return;
            }
            (Verdict::Tell | Verdict::Gone, _) => {
                tracing::info!(key, attempt, ?over, "it is let go of");
                // Before its file goes: whoever is started next must not stop it either.
                if over == Over::Elsewhere {
                    office.let_go(task);
                }
                office.forget(task, Some(&job));
                bump(&office.news);
                return;
            }
        }
    }
}
