//! From a prompt in ComfyUI's queue to its end.

use std::time::Duration;

use comfyui::{Cancelled, Event, GaveUp, OldInterrupt, Outcome, Raw, Watch, Workflow};
use remuda_core::transition::Ending;
use remuda_core::{FailureClass, Timestamp};
use remuda_pool::Work;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::attempt::{Attempt, Close, Step};
use super::look::{AfterRemoval, after_removal};
use super::worker::Ready;
use crate::board::Signals;
use crate::decide::progress::Meter;
use remuda_frames::{Frame, FrameKind};

/// How often a prompt that stays in the queue is taken out again.
const REMOVALS: u32 = 5;

/// The pause between two looks at a queue that should have changed.
const PAUSE: Duration = Duration::from_millis(200);

/// Farther away than any timeout.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl Attempt {
    /// How many nodes the graph has. From here on nobody needs it; it may be large, and a render long.
    async fn count_nodes(&mut self) -> usize {
        self.claim.input.extra = None;
        if let Some(nodes) = self.nodes {
            return nodes;
        }
        let graph = std::mem::replace(&mut self.claim.input.workflow, RawValue::NULL.to_owned());
        let (task, bytes) = (&self.claim.task, graph.get().len());
        let count = move || Workflow::from_raw(graph).map_or(1, |graph| graph.nodes().len());
        let work = Work::new("counting nodes", task.tenant.as_str(), bytes).of_task(task.id.0).patient();
        // Only the progress needs it: no reason to leave a prompt alone that is at ComfyUI.
        self.worker.shared.options.pool.run(work, count).await.unwrap_or(1)
    }

    /// Follows the prompt to its end, unless it must be stopped, given back or left.
    pub(super) async fn follow(&mut self, ready: &Ready, mut watch: Watch) -> Step<Outcome> {
        let nodes = self.count_nodes().await;
        let task = &self.claim.task;
        let mut meter = Meter::new(task.id, self.claim.lease.attempt, nodes);
        let deadline = task.deadline.map(moment);
        let timeout = Duration::from_secs(task.timeout_s.max(1).unsigned_abs().into());
        // An adopted one has been rendering for a while; whose clock said so is not known, so this is rough.
        let mut began_at = self.claim.lease.rendering_since.map(|since| {
            let elapsed = Timestamp::now().duration_since(since).unsigned_abs();
            let elapsed = if Timestamp::now() < since { Duration::ZERO } else { elapsed };
            Instant::now().checked_sub(elapsed).unwrap_or_else(Instant::now)
        });
        let mut kept = false;
        loop {
            let render_end = began_at.filter(|_| self.began).map(|began| began + timeout);
            let limit = [render_end, deadline].into_iter().flatten().min();
            let began = self.began;
            let mut signals = self.grip.signals.clone();
            let called = async {
                let called =
                    |signals: &Signals| signals.lost || signals.cancel || (signals.back && !began && !kept);
                signals.wait_for(called).await.map(|signals| *signals)
            };
            tokio::select! {
                biased;
                Ok(called) = called => {
                    if called.lost {
                        return Err(Close::NotOurs);
                    }
                    if called.cancel {
                        let patience = self.timing().stop_patience;
                        self.stop(ready, patience).await?;
                        return Err(Close::End(Box::new(Ending::Cancelled)));
                    }
                    if self.recall(ready).await? {
                        return Err(Close::GiveBack(None));
                    }
                    kept = true;
                }
                event = watch.next() => match event {
                    None => return Ok(Outcome::GaveUp(GaveUp::SessionClosed)),
                    // It left the queue because we said so, and the answer came too late.
                    Some(Event::Finished(Outcome::Deleted)) if self.recalled => {
                        return Err(Close::GiveBack(None));
                    }
                    Some(Event::Finished(outcome)) => return Ok(outcome),
                    Some(Event::Raw(raw)) => self.pass_on(raw),
                    Some(Event::Queued { ahead: Some(ahead) }) => {
                        self.worker.shared.source.queued(self.lease(), ahead);
                    }
                    Some(event) => {
                        let works = matches!(
                            event,
                            Event::Started | Event::Node { .. } | Event::Progress { .. } | Event::Nodes(_)
                        );
                        if works {
                            began_at.get_or_insert_with(Instant::now);
                            self.begin().await;
                        }
                        if let Some(frame) = meter.take(Instant::now(), &event) {
                            self.worker.shared.source.frame(frame);
                        }
                        self.board().set_progress(self.lease(), meter.fraction());
                    }
                },
                () = tokio::time::sleep_until(limit.unwrap_or_else(|| Instant::now() + NEVER)) => {
                    return Err(self.overtime(ready, deadline, timeout).await?);
                }
            }
        }
    }

    /// What ComfyUI said goes as it is to clients that speak ComfyUI themselves.
    fn pass_on(&self, raw: Raw) {
        let what = match raw {
            Raw::Text { kind, data } => FrameKind::Message { kind, data },
            Raw::Binary { event, payload } => FrameKind::Binary { event, bytes: payload },
        };
        let frame = Frame { task: self.claim.task.id, attempt: self.claim.lease.attempt, what };
        self.worker.shared.source.frame(frame);
    }

    /// It took too long: it is really stopped.
    async fn overtime(&mut self, ready: &Ready, deadline: Option<Instant>, timeout: Duration) -> Step<Close> {
        let message = if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            "its deadline passed before it was done".to_owned()
        } else {
            format!("it rendered longer than {} s", timeout.as_secs())
        };
        let patience = self.timing().stopping * 2;
        self.stop(ready, patience).await?;
        Ok(Close::fail(FailureClass::Timeout, message))
    }

    /// Stops exactly this prompt and waits until ComfyUI shows it stopped. One that does not stop shows that the worker is
    /// stuck; what waits behind it goes elsewhere.
    async fn stop(&mut self, ready: &Ready, patience: Duration) -> Step<()> {
        let Some(prompt) = self.prompt.clone() else { return Ok(()) };
        let client = ready.session.client();
        let since = Instant::now();
        loop {
            self.confirm().await?;
            let bound = self.timing().stopping;
            let stopped = client.cancel_with(&prompt, bound, OldInterrupt::WhenAlone);
            match self.unless_lost(stopped).await? {
                Ok(Cancelled::Removed | Cancelled::Ended(_) | Cancelled::NotFound) => return Ok(()),
                Ok(Cancelled::StillRunning) if since.elapsed() >= patience => {
                    self.bury(format!("prompt {prompt} was stopped and still runs")).await;
                    return Ok(());
                }
                // When it answers again the sweep finds what is left.
                Err(error) if since.elapsed() >= patience.min(self.timing().unreachable) => {
                    tracing::warn!(prompt_id = %prompt, %error, "a prompt could not be stopped");
                    return Ok(());
                }
                Ok(Cancelled::StillRunning) | Err(_) => {}
            }
            self.unless_lost(tokio::time::sleep(PAUSE)).await?;
        }
    }

    /// Takes the prompt out of ComfyUI's queue, if it has not begun. Only when the queue, and then the history, show it
    /// gone it may be given back.
    async fn recall(&mut self, ready: &Ready) -> Step<bool> {
        let Some(prompt) = self.prompt.clone() else { return Ok(true) };
        let client = ready.session.client();
        for _ in 0..REMOVALS {
            self.confirm().await?;
            self.recalled = true;
            let removed = async {
                client.delete_pending(std::slice::from_ref(&prompt)).await?;
                after_removal(client, &prompt).await
            };
            match self.unless_lost(removed).await? {
                Ok(AfterRemoval::Gone) => return Ok(true),
                Ok(AfterRemoval::Began) => return Ok(false),
                Ok(AfterRemoval::Waiting) => {}
                Err(error) => {
                    tracing::debug!(prompt_id = %prompt, %error, "a prompt could not be taken back");
                }
            }
            self.unless_lost(tokio::time::sleep(PAUSE)).await?;
        }
        Ok(false)
    }
}

/// A moment of the calendar as one of the clock that does not jump.
fn moment(at: Timestamp) -> Instant {
    let now = Timestamp::now();
    let ahead = at.duration_since(now);
    if ahead.is_negative() { Instant::now() } else { Instant::now() + ahead.unsigned_abs().min(NEVER) }
}
