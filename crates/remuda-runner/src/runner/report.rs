//! Saying how an attempt ended, until it was heard.

use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, Phase};
use remuda_store::EndReply;

use super::attempt::{Attempt, Close};
use super::event::{Fate, Stage};
use crate::herd::jitter;
use crate::source::{Result, SourceError};

/// The first pause after a report that was not heard; it doubles up to five seconds.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long the history entry of a completed prompt stays, so that others can go with it.
const LEFT: Duration = Duration::from_millis(200);

impl Attempt {
    /// Reports, and then cleans up behind the prompt.
    pub(super) async fn close(self, close: Close) -> Fate {
        let counters = &self.worker.shared.counters;
        let (reply, fate) = match close {
            Close::Leave => return Fate::Gone,
            Close::NotOurs => {
                tracing::warn!(task = %self.claim.task.id, worker = %self.worker.spec.id, "the lease is somebody else's; stopped following it");
                return Fate::Gone;
            }
            Close::SetAside => {
                tracing::error!(task = %self.claim.task.id, worker = %self.worker.spec.id, "set aside: work on its graph harmed this process too often");
                counters.failed.one();
                return Fate::Gone;
            }
            Close::GiveBack(learnt) => {
                let learnt = learnt.map(|learnt| *learnt);
                let source = &self.worker.shared.source;
                (self.report(|| source.give_back(self.lease(), learnt.clone())).await, Fate::Gone)
            }
            Close::End(ending) => {
                self.stage(Stage::Delivering).await;
                let fate = match &*ending {
                    Ending::Completed { .. } => Fate::Completed,
                    Ending::Failed { failure, .. } => Fate::Failed {
                        class: failure.class,
                        alone: self.began || self.claim.lease.phase != Phase::Ahead,
                        why: failure.message.clone(),
                    },
                    Ending::Cancelled => Fate::Gone,
                };
                (self.end(*ending).await, fate)
            }
        };
        match reply {
            Some(reply) => {
                tracing::debug!(task = %self.claim.task.id, status = %reply.status, repeated = reply.repeated, "reported");
                match &fate {
                    Fate::Completed => counters.completed.one(),
                    Fate::Failed { .. } => counters.failed.one(),
                    Fate::Gone if reply.status == remuda_core::Status::Pending => counters.given_back.one(),
                    // Nobody has what it needs.
                    Fate::Gone if reply.status == remuda_core::Status::Failed => counters.failed.one(),
                    Fate::Gone => counters.cancelled.one(),
                }
                if reply.discarded {
                    self.discard().await;
                }
                self.clean_up(&fate).await;
                fate
            }
            None => {
                counters.fenced_reports.one();
                self.discard().await;
                Fate::Gone
            }
        }
    }

    async fn end(&self, ending: Ending) -> Option<EndReply> {
        let source = &self.worker.shared.source;
        if let Ending::Failed { failure, .. } = &ending {
            tracing::info!(task = %self.claim.task.id, worker = %self.worker.spec.id, class = %failure.class, why = beginning(&failure.message), "an attempt failed");
        }
        self.report(|| source.end(self.lease(), ending.clone())).await
    }

    /// Repeats a report until it was heard; `None` when the lease is somebody else's.
    ///
    /// After an outage the lease is renewed first: the report of one that ran out, and was taken, would be in vain.
    async fn report<F>(&self, report: impl Fn() -> F) -> Option<EndReply>
    where
        F: Future<Output = Result<EndReply>>,
    {
        let shared = &self.worker.shared;
        let mut pause = PAUSE;
        let mut refused = false;
        loop {
            self.board().settle(self.lease()).await;
            match shared.ask(report()).await {
                Ok(reply) => return Some(reply),
                Err(SourceError::Fenced) => return None,
                Err(SourceError::Unavailable(why)) => {
                    tracing::warn!(task = %self.claim.task.id, %why, "a report did not arrive; it is kept");
                }
                Err(SourceError::Refused(why)) if !refused => {
                    refused = true;
                    tracing::error!(task = %self.claim.task.id, %why, "a report was refused");
                    let message = format!("its result was there, and its report was refused: {why}");
                    let failure = Failure::new(FailureClass::Delivery, message);
                    let ending = Ending::Failed { failure, partial: None };
                    if let Ok(reply) = shared.ask(shared.source.end(self.lease(), ending)).await {
                        return Some(reply);
                    }
                }
                Err(SourceError::Refused(_)) => {}
            }
            tokio::time::sleep(jitter(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Deletes the history entry of our prompt, now that its end is recorded, unless somebody may look for it. Nothing
    /// else is touched. After a good end there is no hurry: entries of prompts that follow each other closely go with one
    /// request, and nobody waits for it.
    async fn clean_up(&self, fate: &Fate) {
        let Some(prompt) = &self.prompt else { return };
        if !self.worker.shared.source.manners().forget {
            return;
        }
        let first = self.worker.leave(prompt.clone());
        if *fate == Fate::Completed {
            if !first {
                return;
            }
            tokio::time::sleep(LEFT).await;
        }
        let left = self.worker.take_left();
        if left.is_empty() {
            return;
        }
        let delete = self.worker.client.delete_history(&left);
        if !matches!(tokio::time::timeout(self.timing().stopping, delete).await, Ok(Ok(()))) {
            tracing::debug!(prompts = ?left, "their history entries stay");
        }
    }
}

/// As much of a message as belongs into a log: its sender chooses how long it is, and how often it comes.
fn beginning(message: &str) -> &str {
    const LOGGED: usize = 300;
    let end = (0..=LOGGED.min(message.len())).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    &message[..end]
}
