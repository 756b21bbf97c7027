//! Stopping exactly one prompt.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Error, Repeat, Result};
use crate::history::HistoryEntry;
use crate::ids::PromptId;
use crate::queue::Whereabouts;

/// What an interrupt did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// The server was told to stop that prompt, if it runs. It stops at its next node or step, and may still succeed.
    Sent,
    /// This version ignores the id and would stop whatever runs, so nothing was sent.
    WouldHitOthers,
}

/// What to do on versions before 0.3.57, whose interrupt ignores the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OldInterrupt {
    /// Never send it: the prompt runs to its end.
    #[default]
    Never,
    /// Send it when the prompt is the running one and nothing else is queued. A prompt that somebody submits, and that
    /// starts, between that look and the interrupt would be hit.
    WhenAlone,
}

/// How a cancellation ended.
#[derive(Debug, Clone)]
pub enum Cancelled {
    /// It was waiting and was taken out; it never ran.
    Removed,
    /// It ended; the entry says whether by the interrupt, by an error, or in success all the same.
    Ended(Box<HistoryEntry>),
    /// The server does not know it.
    NotFound,
    /// It was still there when the time was over: a node does not look at the flag, the server does not answer, or this version cannot stop it without hitting others.
    StillRunning,
}

/// Where a prompt was seen while it was being stopped.
#[derive(Default)]
struct Seen {
    pending: bool,
    running: bool,
}

impl Client {
    /// Tells the server to stop this prompt if it is the running one. **Never** stops another.
    ///
    /// # Errors
    /// As any call.
    pub async fn interrupt(&self, id: &PromptId) -> Result<Interrupt> {
        self.interrupt_with(id, OldInterrupt::Never).await
    }

    /// As [`Client::interrupt`], with a choice for versions before 0.3.57.
    ///
    /// # Errors
    /// As any call.
    pub async fn interrupt_with(&self, id: &PromptId, old: OldInterrupt) -> Result<Interrupt> {
        // Asked anew: another version behind the same address would take the id for nothing and stop whatever runs.
        self.forget_capabilities();
        let by_id = self.capabilities().await?.interrupt_by_id;
        if !by_id {
            if old == OldInterrupt::Never {
                return Ok(Interrupt::WouldHitOthers);
            }
            let queue = self.queue().await?;
            let alone = queue.pending.is_empty()
                && queue.running.len() == 1
                && queue.running.iter().all(|item| item.prompt_id == *id);
            if !alone {
                return Ok(Interrupt::WouldHitOthers);
            }
        }
        // The flag concerns one id, so saying it twice is harmless; on old versions a repeat could hit the next prompt.
        let call = self.post(&["interrupt"]).json(&json!({ "prompt_id": id }))?;
        let call = if by_id { call.repeatable() } else { call };
        call.done().await?;
        Ok(Interrupt::Sent)
    }

    /// Stops a prompt wherever it is, and waits until the server shows it stopped, at most `bound`.
    ///
    /// Cancelling is two calls and a wait: an interrupt that arrives in the moment a prompt starts is forgotten by the
    /// server, so it is repeated until the history entry appears.
    ///
    /// # Errors
    /// As any call.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sim = comfyui_sim::Simulator::start(Default::default()).await?;
    /// # let client = comfyui::Client::new(&sim.url())?;
    /// use comfyui::{Cancelled, PromptRequest, Workflow};
    /// let slow = r#"{"1": {"class_type": "RigProgress", "inputs": {"steps": 500, "step_ms": 20, "preview": "none", "preview_size": 64, "seed": 1}},
    ///               "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}}"#;
    /// let accepted = client.submit(&PromptRequest::new(Workflow::parse(slow)?)).await?;
    /// let how = client.cancel(&accepted.prompt_id, std::time::Duration::from_secs(10)).await?;
    /// assert!(matches!(how, Cancelled::Removed | Cancelled::Ended(_)));
    /// # sim.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(&self, id: &PromptId, bound: Duration) -> Result<Cancelled> {
        self.cancel_with(id, bound, OldInterrupt::Never).await
    }

    /// As [`Client::cancel`], with a choice for versions before 0.3.57.
    ///
    /// # Errors
    /// As any call.
    pub async fn cancel_with(&self, id: &PromptId, bound: Duration, old: OldInterrupt) -> Result<Cancelled> {
        // Within the bound this loop is the only one that repeats.
        let stopping = self.without_retries();
        let deadline = Instant::now() + bound.min(Duration::from_secs(365 * 24 * 3600));
        let mut seen = Seen::default();
        let mut wait = Duration::from_millis(20);
        let mut trouble = None;
        loop {
            match tokio::time::timeout_at(deadline, stopping.stop_step(id, old, &mut seen)).await {
                Ok(Ok(Some(how))) => return Ok(how),
                Ok(Ok(None)) => trouble = None,
                Ok(Err(error)) if error.repeat() == Repeat::Useless => return Err(error),
                Ok(Err(error)) => trouble = Some(error),
                Err(_) => return trouble.map_or(Ok(Cancelled::StillRunning), Err),
            }
            tokio::time::sleep_until(deadline.min(Instant::now() + wait)).await;
            wait = (wait * 2).min(Duration::from_millis(500));
        }
    }

    /// Looks where it is and does what stops it there; `None` when it is still there.
    async fn stop_step(
        &self,
        id: &PromptId,
        old: OldInterrupt,
        seen: &mut Seen,
    ) -> Result<Option<Cancelled>> {
        match self.find(id).await? {
            Whereabouts::Ended(entry) => return Ok(Some(Cancelled::Ended(entry))),
            Whereabouts::Pending => {
                seen.pending = true;
                if !self.cancel_job(id).await? {
                    self.delete_pending(std::slice::from_ref(id)).await?;
                }
            }
            Whereabouts::Running => {
                seen.running = true;
                if !self.cancel_job(id).await?
                    && self.interrupt_with(id, old).await? == Interrupt::WouldHitOthers
                    && old == OldInterrupt::Never
                {
                    return Ok(Some(Cancelled::StillRunning));
                }
            }
            // One that ran, and whose entry was deleted by somebody else, was not removed by us.
            Whereabouts::Absent if seen.pending && !seen.running => return Ok(Some(Cancelled::Removed)),
            Whereabouts::Absent => return Ok(Some(Cancelled::NotFound)),
        }
        Ok(None)
    }

    /// The atomic way of versions after 0.7.0. `false` when this one does not have it.
    async fn cancel_job(&self, id: &PromptId) -> Result<bool> {
        #[derive(Deserialize)]
        struct Answer {
            cancelled: bool,
        }
        if !self.capabilities().await?.may_cancel_jobs() {
            return Ok(false);
        }
        match self.post(&["api", "jobs", id.as_str(), "cancel"]).read::<Answer>().await {
            Ok(answer) => Ok(answer.cancelled),
            Err(Error::Status { status: StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the worker to unload models, and with `free_memory` to forget cached results, after the current prompt.
    ///
    /// # Errors
    /// As any call.
    pub async fn free(&self, unload_models: bool, free_memory: bool) -> Result<()> {
        let body = json!({ "unload_models": unload_models, "free_memory": free_memory });
        self.post(&["free"]).json(&body)?.repeatable().done().await
    }
}
