//! From a claim to a prompt in ComfyUI's queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use comfyui::outputs::FileType;
use comfyui::{Error, FileRef, PromptId, PromptRequest, Upload, Watch, Workflow};
use remuda_core::{FailureClass, Phase, Placement, Timestamp};
use tokio::time::Instant;

use super::attempt::{Attempt, Close, Step, close_for};
use super::event::{Stage, Word};
use super::inspect::chain;
use super::look::locate;
use super::worker::Ready;
use crate::decide::edits::{self, FOLDER, Placed};
use crate::decide::graph::{self, Verdict};
use crate::decide::submission::{self, NotSent};
use crate::decide::{marker, offer};
use crate::preflight;
use crate::source::SourceError;

/// So long a ComfyUI that cannot be reached is tried before the task goes back.
const TRIES: Duration = Duration::from_secs(5);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

impl Attempt {
    /// Checks, places, edits and submits.
    pub(super) async fn send(&mut self, ready: &Arc<Ready>) -> Step<Watch> {
        let workflow = Workflow::from_raw(self.claim.input.workflow.clone())
            .map_err(|error| Close::fail(FailureClass::Validation, error.to_string()))?;
        self.check(ready, &workflow).await?;
        let placed = self.place_all(ready).await?;
        let edited = edits::edit(&workflow, self.claim.task.id, &placed)
            .map_err(|error| Close::fail(FailureClass::Validation, error.to_string()))?;
        let request = PromptRequest::new(edited)
            .with_id(self.claim.lease.prompt_id)
            .marker(marker::KEY, self.marker(ready).to_value());
        self.submit(ready, request).await
    }

    /// Refuses what would kill, and gives back what this worker lacks.
    async fn check(&self, ready: &Ready, workflow: &Workflow) -> Step<()> {
        match graph::judge(workflow, &ready.info, &ready.offer) {
            Verdict::Send => return Ok(()),
            Verdict::Refuse(failure) => return Err(Close::failed(*failure)),
            Verdict::Lacks(_) => {}
        }
        // The description may be older than what is missing.
        let answer = self.unless_called(ready.session.client().object_info_bytes()).await?;
        let Ok(answer) = answer else { return Err(Close::GiveBack(None)) };
        let described = tokio::task::spawn_blocking(move || offer::describe(&answer)).await;
        let Ok(Ok(now)) = described else { return Err(Close::GiveBack(None)) };
        if now.hash != ready.hash {
            self.tell(Word::Outdated).await;
        }
        let offer = preflight::capabilities(self.worker.spec.labels.clone(), &now.info);
        match graph::judge(workflow, &now.info, &offer) {
            Verdict::Send => Ok(()),
            Verdict::Refuse(failure) => Err(Close::failed(*failure)),
            Verdict::Lacks(lacks) => {
                tracing::info!(task = %self.claim.task.id, worker = %self.worker.spec.id, %lacks, "given back: the worker lacks something");
                Err(Close::GiveBack(Some(Box::new(lacks))))
            }
        }
    }

    /// Puts every file that the task needs into ComfyUI's input folder.
    async fn place_all(&self, ready: &Ready) -> Step<Vec<Placed>> {
        let mut placed = Vec::new();
        let mut names: HashMap<String, String> = HashMap::new();
        for placement in &self.claim.input.placements {
            let key = format!("{} {}", placement.sha256, placement.filename);
            let name = match names.get(&key) {
                Some(name) => name.clone(),
                None => self.unless_called(self.place(ready, placement)).await??,
            };
            names.insert(key, name.clone());
            placed.push(Placed { node_id: placement.node_id.clone(), input: placement.input.clone(), name });
        }
        Ok(placed)
    }

    /// Places one file; the name by which the graph must call it.
    async fn place(&self, ready: &Ready, placement: &Placement) -> Step<String> {
        let (client, shared) = (ready.session.client(), &self.worker.shared);
        let filename = edits::placed_name(&placement.sha256, &placement.filename);
        let file = FileRef { filename, subfolder: FOLDER.to_owned(), file_type: FileType::Input };
        let name = file.in_workflow();
        if self.worker.is_placed(&name) {
            return Ok(name);
        }
        let since = Instant::now();
        loop {
            let error = match client.file_exists(&file).await {
                Ok(true) => {
                    self.worker.remember_placed(&name);
                    return Ok(name);
                }
                Ok(false) => match shared.ask(shared.source.input(self.lease(), placement)).await {
                    Ok(bytes) => {
                        let upload = Upload::from_stream(&file.filename, None, bytes).subfolder(FOLDER);
                        match client.upload(upload).await {
                            // The name that ComfyUI gave it counts.
                            Ok(there) => {
                                let there = there.in_workflow();
                                self.worker.remember_placed(&there);
                                return Ok(there);
                            }
                            Err(error) => error,
                        }
                    }
                    Err(SourceError::Fenced) => return Err(Close::NotOurs),
                    Err(SourceError::Refused(why)) => {
                        let message = format!("its input {} cannot be had: {why}", placement.filename);
                        return Err(Close::fail(FailureClass::Validation, message));
                    }
                    // The file store is away: the task waits with its lease as long as it may.
                    Err(SourceError::Unavailable(why)) => {
                        tracing::warn!(task = %self.claim.task.id, %why, "an input cannot be read now");
                        if since.elapsed() > self.timing().delivery_patience {
                            return Err(Close::GiveBack(None));
                        }
                        tokio::time::sleep(self.timing().retry).await;
                        continue;
                    }
                },
                Err(error) => error,
            };
            match &error {
                Error::Status { status, .. } if status.is_client_error() => {
                    let message = format!("ComfyUI did not take the input {}: {error}", placement.filename);
                    return Err(Close::fail(FailureClass::Validation, message));
                }
                _ if since.elapsed() > TRIES => {
                    tracing::warn!(worker = %self.worker.spec.id, error = chain(&error), "given back: an input cannot be placed");
                    return Err(Close::GiveBack(None));
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn submit(&mut self, ready: &Arc<Ready>, request: PromptRequest) -> Step<Watch> {
        let since = Instant::now();
        let ahead = self.claim.lease.phase == Phase::Ahead;
        loop {
            self.confirm().await?;
            let signals = self.signals();
            if signals.lost || signals.cancel || signals.back {
                return Err(close_for(signals));
            }
            if self.claim.task.deadline.is_some_and(|deadline| deadline <= Timestamp::now()) {
                return Err(Close::fail(
                    FailureClass::Timeout,
                    "its deadline passed before it could be sent",
                ));
            }
            self.board().set_phase(self.lease(), if ahead { Phase::Ahead } else { Phase::Submitted });
            let error = match ready.session.submit(request.clone()).await {
                Ok(watch) => {
                    self.prompt = Some(watch.prompt_id().clone());
                    self.stage(Stage::Sent).await;
                    return Ok(watch);
                }
                Err(error) => error,
            };
            match submission::judge(&error) {
                NotSent::Refused(failure) => return Err(Close::failed(*failure)),
                NotSent::NotReached(why) if since.elapsed() > TRIES => {
                    tracing::warn!(worker = %self.worker.spec.id, %why, "given back: ComfyUI cannot be reached");
                    return Err(Close::GiveBack(None));
                }
                NotSent::NotReached(_) => self.unless_called(tokio::time::sleep(PAUSE)).await?,
                NotSent::Doubt(why) => return self.search(ready, &why).await,
            }
        }
    }

    /// The answer to the submission was lost: the prompt may be there, or come in a moment. It is never sent twice.
    async fn search(&mut self, ready: &Ready, why: &str) -> Step<Watch> {
        let id = PromptId::from(self.claim.lease.prompt_id);
        let marker = self.marker(ready);
        let since = Instant::now();
        tracing::warn!(task = %self.claim.task.id, %why, "no answer to the submission: looking for the prompt");
        loop {
            let found = self.unless_lost(locate(ready.session.client(), &id, &marker)).await?;
            if let Ok(Some(id)) = found {
                self.prompt = Some(id.clone());
                self.stage(Stage::Sent).await;
                return Ok(ready.session.watch(&id).await);
            }
            if since.elapsed() > self.timing().unreachable {
                // Should it come yet, the sweep stops it.
                let message = format!("ComfyUI did not answer the submission, and does not know it: {why}");
                return Err(Close::fail(FailureClass::Connection, message));
            }
            self.unless_lost(tokio::time::sleep(PAUSE * 2)).await?;
        }
    }
}
