//! Going on where another process, or this one before its restart, was stopped.

use std::sync::Arc;

use comfyui::{PromptId, Watch};
use remuda_core::FailureClass;
use tokio::time::Instant;

use super::attempt::{Attempt, Close, Step, close_for};
use super::event::Stage;
use super::look::locate;
use super::worker::Ready;
use crate::decide::adoption::{self, Sameness};

impl Attempt {
    /// Looks for the prompt, and follows it, sends it, or gives it up.
    pub(super) async fn resume(&mut self, ready: &Arc<Ready>) -> Step<Watch> {
        let lease = &self.claim.lease;
        let same = Sameness::of(self.known.as_deref(), &ready.identity);
        let id = PromptId::from(lease.prompt_id);
        let marker = self.marker(ready);
        let since = Instant::now();
        let mut absent = 0;
        let found = loop {
            match self.unless_lost(locate(ready.session.client(), &id, &marker)).await? {
                Ok(Some(id)) => break Some(id),
                // A request of the former owner may still be in ComfyUI's hands: absent is what stays absent.
                Ok(None) if absent > 0 => break None,
                Ok(None) => absent += 1,
                Err(error) if since.elapsed() > self.timing().unreachable => {
                    let message = format!("ComfyUI could not be asked for it: {error}");
                    return Err(Close::fail(FailureClass::Connection, message));
                }
                Err(_) => absent = 0,
            }
            self.unless_lost(tokio::time::sleep(self.timing().second_look)).await?;
        };
        match (adoption::decide(lease.phase, same, found.is_some()), found) {
            (adoption::Step::Follow, Some(id)) => {
                tracing::info!(task = %lease.task, worker = %self.worker.spec.id, prompt_id = %id, "adopted");
                self.prompt = Some(id.clone());
                self.stage(Stage::Sent).await;
                Ok(ready.session.watch_with(&id, self.watching()).await)
            }
            (adoption::Step::Lost(failure), _) => Err(Close::failed(*failure)),
            (adoption::Step::Send | adoption::Step::Follow, _) => {
                let signals = self.signals();
                if signals.lost || signals.cancel || signals.back {
                    return Err(close_for(signals));
                }
                tracing::info!(task = %lease.task, worker = %self.worker.spec.id, "adopted; it had not been sent");
                self.worker.shared.counters.resubmissions.one();
                self.send(ready).await
            }
        }
    }
}
