//! One attempt, from its claim to its report.

use std::sync::Arc;

use comfyui::{PromptId, WatchOptions};
use remuda_core::transition::Ending;
use remuda_core::{Claim, Failure, FailureClass, LeaseRef, Phase, Requirements};
use tokio::sync::mpsc;

use super::event::{Fate, Stage, Tombstone, Word};
use super::worker::{Ready, Worker};
use crate::board::{Board, Grip, NotOurs, Signals};
use crate::decide::marker::Marker;
use crate::decide::outcome::{self, Judged};
use crate::options::Timing;

/// How an attempt is closed.
#[derive(Debug)]
pub(super) enum Close {
    /// With this report.
    End(Box<Ending>),
    /// It did not begin; another worker, or this one later, may have it.
    GiveBack(Option<Box<Requirements>>),
    /// Its lease is somebody else's: nothing is said and nothing is touched.
    NotOurs,
    /// The source has ended it, because of what it did to us. Nothing of it is at ComfyUI.
    SetAside,
    /// Nothing is known of its end: the lease is left for adoption.
    Leave,
}

impl Close {
    pub(super) fn failed(failure: Failure) -> Self {
        Self::End(Box::new(Ending::Failed { failure, partial: None }))
    }

    pub(super) fn fail(class: FailureClass, message: impl Into<String>) -> Self {
        Self::failed(Failure::new(class, message))
    }
}

impl From<NotOurs> for Close {
    fn from(_: NotOurs) -> Self {
        Self::NotOurs
    }
}

/// A step of an attempt, or the close that came first.
pub(super) type Step<T> = Result<T, Close>;

/// One attempt.
pub(super) struct Attempt {
    pub(super) worker: Arc<Worker>,
    pub(super) claim: Claim,
    pub(super) grip: Grip,
    /// What was known of the worker's identity when the attempt was adopted.
    pub(super) known: Option<String>,
    pub(super) words: mpsc::Sender<Word>,
    /// How many nodes the graph has, once it was read.
    pub(super) nodes: Option<usize>,
    /// The id under which ComfyUI has it, once it has.
    pub(super) prompt: Option<PromptId>,
    /// Whether ComfyUI began to work on it.
    pub(super) began: bool,
    /// Whether it was told to leave ComfyUI's queue.
    pub(super) recalled: bool,
}

impl Attempt {
    pub(super) fn new(
        worker: Arc<Worker>,
        claim: Claim,
        grip: Grip,
        known: Option<String>,
        words: mpsc::Sender<Word>,
    ) -> Self {
        Self { worker, claim, grip, known, words, nodes: None, prompt: None, began: false, recalled: false }
    }

    /// Goes the whole way.
    pub(super) async fn run(mut self) -> Fate {
        let close = match self.work().await {
            Ok(close) | Err(close) => close,
        };
        self.close(close).await
    }

    async fn work(&mut self) -> Step<Close> {
        self.answer_for_harm().await?;
        let ready = self.ready().await?;
        let watch = if self.claim.adopted { self.resume(&ready).await? } else { self.send(&ready).await? };
        let outcome = self.follow(&ready, watch).await?;
        match outcome::judge(outcome) {
            Judged::Good(success) => self.collect(&ready, *success).await,
            Judged::Bad(bad) => {
                if bad.free {
                    self.free(&ready).await;
                }
                if bad.dead {
                    self.bury(bad.failure.message.clone()).await;
                }
                match bad.left {
                    Some(left) => self.collect_part(&ready, bad.failure, &left).await,
                    None => Ok(Close::failed(bad.failure)),
                }
            }
            Judged::Unwatched => Ok(Close::Leave),
        }
    }

    /// Waits until the worker can be asked. A fresh claim comes only when it can.
    async fn ready(&mut self) -> Step<Arc<Ready>> {
        let mut ready = self.worker.ready.clone();
        let patience = self.worker.patience;
        let wait = async { ready.wait_for(Option::is_some).await.ok().and_then(|ready| ready.clone()) };
        match self.unless_lost(tokio::time::timeout(patience, wait)).await? {
            Ok(Some(ready)) => Ok(ready),
            Ok(None) => Err(Close::Leave),
            Err(_) => {
                let message = format!("ComfyUI could not be reached for {} s", patience.as_secs());
                Err(Close::fail(FailureClass::Connection, message))
            }
        }
    }

    pub(super) fn lease(&self) -> LeaseRef {
        self.grip.lease
    }

    pub(super) fn timing(&self) -> &Timing {
        &self.worker.shared.options.timing
    }

    pub(super) fn board(&self) -> &Board {
        &self.worker.shared.board
    }

    /// How its prompt is watched: for a client that speaks ComfyUI itself, with everything that ComfyUI says.
    pub(super) fn watching(&self) -> WatchOptions {
        let origin = self.claim.task.origin.as_ref();
        let raw = origin.is_some_and(|origin| origin.dialect.hears_comfyui());
        WatchOptions { raw, ..WatchOptions::default() }
    }

    pub(super) fn marker(&self, ready: &Ready) -> Marker {
        Marker::of(&self.claim.lease, ready.installation)
    }

    /// Waits until the lease is surely ours: before every act at ComfyUI.
    pub(super) async fn confirm(&self) -> Step<()> {
        Ok(self.board().confirm(self.lease()).await?)
    }

    pub(super) fn signals(&self) -> Signals {
        *self.grip.signals.borrow()
    }

    /// A step that can be left at any point, because nothing is at ComfyUI yet: every signal ends it.
    pub(super) async fn unless_called<T>(&self, step: impl Future<Output = T>) -> Step<T> {
        let mut signals = self.grip.signals.clone();
        let called = signals.wait_for(|signals| signals.lost || signals.cancel || signals.back);
        tokio::select! {
            biased;
            Ok(signals) = called => Err(close_for(*signals)),
            value = step => Ok(value),
        }
    }

    /// A step that only the loss of the lease ends.
    pub(super) async fn unless_lost<T>(&self, step: impl Future<Output = T>) -> Step<T> {
        let mut signals = self.grip.signals.clone();
        tokio::select! {
            biased;
            Ok(_) = signals.wait_for(|signals| signals.lost) => Err(Close::NotOurs),
            value = step => Ok(value),
        }
    }

    pub(super) async fn stage(&self, stage: Stage) {
        self.tell(Word::Stage(self.lease(), stage)).await;
    }

    pub(super) async fn tell(&self, word: Word) {
        // Without a runner there is nobody to care.
        let _ = self.words.send(word).await;
    }

    /// ComfyUI works on it.
    pub(super) async fn begin(&mut self) {
        if !std::mem::replace(&mut self.began, true) {
            self.board().set_phase(self.lease(), Phase::Rendering);
            self.stage(Stage::Rendering).await;
        }
    }

    /// The worker runs nothing any more, as this prompt in its queue shows.
    pub(super) async fn bury(&self, why: String) {
        if let Some(prompt) = self.prompt.clone() {
            self.tell(Word::Dead(Tombstone { prompt, why })).await;
        }
    }

    async fn free(&self, ready: &Ready) {
        let freed =
            tokio::time::timeout(self.timing().stopping, ready.session.client().free(true, true)).await;
        if !matches!(freed, Ok(Ok(()))) {
            tracing::warn!(worker = %self.worker.spec.id, "ComfyUI could not be told to free its memory");
        }
    }
}

/// What a signal means before anything was sent.
pub(super) fn close_for(signals: Signals) -> Close {
    if signals.lost {
        Close::NotOurs
    } else if signals.cancel {
        Close::End(Box::new(Ending::Cancelled))
    } else {
        Close::GiveBack(None)
    }
}
