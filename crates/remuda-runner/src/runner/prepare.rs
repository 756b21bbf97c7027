//! From a claim to a prompt in ComfyUI's queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use comfyui::outputs::FileType;
use comfyui::workflow::{EditError, WorkflowError};
use comfyui::{Error, FileRef, PromptId, PromptRequest, Upload, Watch, Workflow};
use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, Phase, Placement, Timestamp};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::attempt::{Attempt, Close, Step, close_for};
use super::event::{Stage, Unwell, Word};
use super::inspect::{chain, describe};
use super::look::locate;
use super::worker::Ready;
use crate::decide::edits::{self, Placed};
use crate::decide::graph::{self, Verdict};
use crate::decide::submission::{self, NotSent};
use crate::decide::{extra, marker};
use crate::source::SourceError;
use remuda_preflight::FOLDER;

/// How long a ComfyUI that cannot be reached, or takes nothing, is tried before the attempt counts as lost.
const TRIES: Duration = Duration::from_secs(5);

/// A prompt whose submission was not answered, and that ComfyUI does not know for this long, did not come.
const ABSENT: Duration = Duration::from_secs(15);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

impl Attempt {
    /// Checks, places, edits and submits.
    pub(super) async fn send(&mut self, ready: &Arc<Ready>) -> Step<Watch> {
        if let Some(name) = self.claim.input.extra.as_ref().and_then(|extra| extra.sealed.first()) {
            // Without it a paid node would fail, or worse, run for somebody else.
            return Err(Close::fail(
                FailureClass::Connection,
                format!(
                    "extra_data.{name} could not be opened here: all servers need the same --secret-key-file"
                ),
            ));
        }
        let bytes = self.claim.input.workflow.get().len();
        // Taken, not copied: it may be as long as a request, and nobody else needs it.
        let raw = std::mem::replace(&mut self.claim.input.workflow, RawValue::NULL.to_owned());
        let read = || {
            let workflow = Workflow::from_raw(raw)?;
            let nodes = workflow.nodes().len();
            Ok::<_, WorkflowError>((workflow, nodes))
        };
        let read = self.compute("reading a graph", bytes, read).await?;
        let (workflow, nodes) =
            read.map_err(|error| Close::fail(FailureClass::Validation, error.to_string()))?;
        self.nodes = Some(nodes);
        self.check(ready, &workflow).await?;
        let own_folder = self.worker.shared.source.manners().own_folder;
        let folder_of = own_folder.then_some(self.claim.task.id);
        let mut source = Some(workflow);
        // Once more, if a file that was believed to be there is not; then nothing is believed.
        while let Some(whole) = source.take() {
            let (placed, believed) = self.place_all(ready).await?;
            // Lent, not copied: it may be as long as a request. An attempt that does not get it back is over.
            let beside = self.claim.input.extra.take();
            let bytes = bytes + beside.as_ref().map_or(0, |extra| extra::size(extra));
            let edit = move || {
                let edited = edits::edit(&whole, folder_of, &placed)?;
                let request = extra::add(PromptRequest::new(edited), beside.as_deref());
                Ok::<_, EditError>((request, whole, beside))
            };
            let (request, whole, beside) = self
                .compute("editing a graph", bytes, edit)
                .await?
                .map_err(|error| Close::fail(FailureClass::Validation, error.to_string()))?;
            if !believed.is_empty() {
                (source, self.claim.input.extra) = (Some(whole), beside);
            } else {
                drop((whole, beside));
            }
            let request = request
                .with_id(self.claim.lease.prompt_id)
                .marker(marker::KEY, self.marker(ready).to_value())
                // Before anything is sent the lease is looked at; between two tries of one submission, too.
                .resend_within(self.timing().stale / 4);
            match self.submit(ready, request).await? {
                Ok(watch) => return Ok(watch),
                // A file that was placed for another task may have been deleted since.
                Err(failure) if failure.class == FailureClass::Validation && !believed.is_empty() => {
                    tracing::info!(task = %self.claim.task.id, worker = %self.worker.spec.id, why = failure.message, "refused: its inputs are placed again");
                    self.worker.forget_placed(&believed);
                }
                Err(failure) => return Err(Close::failed(*failure)),
            }
        }
        Err(self.trouble("its graph was not kept for another try".to_owned()))
    }

    /// The worker does not do its part, and nothing of the attempt is there: a loss, which is counted, so that the same
    /// worker does not get the same task for ever. Who was called away meanwhile follows the call.
    fn trouble(&self, message: String) -> Close {
        let signals = self.signals();
        if signals.lost || signals.cancel || signals.back {
            return close_for(signals);
        }
        Close::fail(FailureClass::Connection, message)
    }

    fn patience(&self) -> Duration {
        TRIES.min(self.timing().unreachable)
    }

    /// Refuses what would kill, and gives back what this worker lacks.
    async fn check(&self, ready: &Arc<Ready>, workflow: &Workflow) -> Step<()> {
        let bytes = workflow.as_str().len();
        let (whole, known) = (workflow.clone(), Arc::clone(ready));
        let judge = move || graph::judge(&whole, &known.info, &known.offer);
        match self.compute("checking a graph", bytes, judge).await? {
            Verdict::Send => return Ok(()),
            Verdict::Refuse(failure) => return Err(Close::failed(*failure)),
            Verdict::Lacks(_) => {}
        }
        // The description may be older than what is missing.
        let since = Instant::now();
        let answer = loop {
            match self.unless_called(ready.session.client().object_info_bytes()).await? {
                Ok(answer) => break answer,
                Err(error) if error.is_too_large() => return Err(self.excess(&error).await),
                Err(error) if since.elapsed() > self.patience() => {
                    let why = chain(&error);
                    return Err(self.trouble(format!("ComfyUI could not be asked what it has: {why}")));
                }
                Err(_) => self.unless_called(tokio::time::sleep(PAUSE)).await?,
            }
        };
        let now = match describe(&self.worker.shared.options.pool, answer).await {
            Ok(now) => now,
            Err(Unwell { why, .. }) => {
                return Err(self.trouble(format!("what ComfyUI says it has cannot be read: {why}")));
            }
        };
        if now.hash != ready.hash {
            self.tell(Word::Outdated).await;
        }
        let offer = remuda_preflight::capabilities(self.worker.spec.labels.clone(), &now.info);
        let whole = workflow.clone();
        let judge = move || graph::judge(&whole, &now.info, &offer);
        match self.compute("checking a graph", bytes, judge).await? {
            Verdict::Send => Ok(()),
            Verdict::Refuse(failure) => Err(Close::failed(*failure)),
            Verdict::Lacks(lacks) => {
                tracing::info!(task = %self.claim.task.id, worker = %self.worker.spec.id, %lacks, "given back: the worker lacks something");
                Err(Close::GiveBack(Some(Box::new(lacks))))
            }
        }
    }

    /// Puts every file that the task needs into ComfyUI's input folder. With them the names of those that are believed
    /// to be there from before, without having been asked for.
    async fn place_all(&self, ready: &Ready) -> Step<(Vec<Placed>, Vec<String>)> {
        let mut placed = Vec::new();
        let mut believed = Vec::new();
        let mut names: HashMap<String, String> = HashMap::new();
        for placement in &self.claim.input.placements {
            let key = format!("{} {}", placement.sha256, placement.filename);
            let name = match names.get(&key) {
                Some(name) => name.clone(),
                None => {
                    let file = input_file(placement);
                    let name = file.in_workflow();
                    if self.worker.is_placed(&name) {
                        believed.push(name.clone());
                        name
                    } else {
                        self.unless_called(self.place(ready, placement, file)).await??
                    }
                }
            };
            names.insert(key, name.clone());
            placed.push(Placed { node_id: placement.node_id.clone(), input: placement.input.clone(), name });
        }
        Ok((placed, believed))
    }

    /// Places one file; the name by which the graph must call it.
    async fn place(&self, ready: &Ready, placement: &Placement, file: FileRef) -> Step<String> {
        let (client, shared) = (ready.session.client(), &self.worker.shared);
        let name = file.in_workflow();
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
                error if error.is_too_large() => return Err(self.excess(error).await),
                // The file itself is not welcome. Any other refusal is one of the worker, or of a proxy in front of it.
                Error::Status { status, .. } if matches!(status.as_u16(), 400 | 413 | 415 | 422) => {
                    let message = format!("ComfyUI did not take the input {}: {error}", placement.filename);
                    return Err(Close::fail(FailureClass::Validation, message));
                }
                _ if since.elapsed() > self.patience() => {
                    let why = chain(&error);
                    let message =
                        format!("the input {} could not be placed at ComfyUI: {why}", placement.filename);
                    return Err(self.trouble(message));
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// The worker answered with more than it may, and the task was not sent: the worker is put aside, and the task goes
    /// elsewhere.
    async fn excess(&self, error: &Error) -> Close {
        let why = chain(error);
        self.tell(Word::Excess(why.clone())).await;
        self.trouble(why)
    }

    /// Submits; the inner error is a refusal of the graph.
    async fn submit(
        &mut self,
        ready: &Arc<Ready>,
        request: PromptRequest,
    ) -> Step<Result<Watch, Box<Failure>>> {
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
            let error = match ready.session.submit_with(request.clone(), self.watching()).await {
                Ok(watch) => {
                    self.prompt = Some(watch.prompt_id().clone());
                    self.worker.shared.source.sent(self.lease());
                    self.stage(Stage::Sent).await;
                    return Ok(Ok(watch));
                }
                Err(error) => error,
            };
            if error.is_too_large() {
                // It may be queued all the same: whoever is asked next would answer with as much.
                self.tell(Word::Excess(chain(&error))).await;
            }
            match submission::judge(&error) {
                NotSent::Refused(failure) => return Ok(Err(failure)),
                NotSent::NotReached { why, status } if since.elapsed() > self.patience() => {
                    let mut trouble = self.trouble(format!("ComfyUI did not take the prompt: {why}"));
                    if let (Close::End(ending), Some(status)) = (&mut trouble, status)
                        && let Ending::Failed { failure, .. } = ending.as_mut()
                    {
                        failure.details = Some(serde_json::json!({ "status": status }).into());
                    }
                    return Err(trouble);
                }
                NotSent::NotReached { .. } => self.unless_called(tokio::time::sleep(PAUSE)).await?,
                NotSent::Doubt(why) => return self.search(ready, &why).await.map(Ok),
            }
        }
    }

    /// The answer to the submission was lost: the prompt may be there, or come in a moment. It is never sent twice.
    async fn search(&mut self, ready: &Ready, why: &str) -> Step<Watch> {
        let id = PromptId::from(self.claim.lease.prompt_id);
        let marker = self.marker(ready);
        let since = Instant::now();
        let mut absent: Option<Instant> = None;
        tracing::warn!(task = %self.claim.task.id, %why, "no answer to the submission: looking for the prompt");
        loop {
            let found = self.unless_lost(locate(ready.session.client(), &id, &marker)).await?;
            match found {
                Ok(Some(id)) => {
                    self.prompt = Some(id.clone());
                    self.worker.shared.source.sent(self.lease());
                    self.stage(Stage::Sent).await;
                    return Ok(ready.session.watch_with(&id, self.watching()).await);
                }
                Ok(None) => {
                    absent.get_or_insert_with(Instant::now);
                }
                // One that does not answer may have it, and is waited for longer.
                Err(_) => absent = None,
            }
            let absent = absent.is_some_and(|since| since.elapsed() > ABSENT);
            if absent || since.elapsed() > self.timing().unreachable {
                // Should it come yet, the sweep stops it.
                let message = format!("ComfyUI did not answer the submission, and does not know it: {why}");
                return Err(Close::fail(FailureClass::Connection, message));
            }
            self.unless_lost(tokio::time::sleep(PAUSE * 2)).await?;
        }
    }
}

/// Where an input goes.
fn input_file(placement: &Placement) -> FileRef {
    let filename = edits::placed_name(&placement.sha256, &placement.filename);
    FileRef { filename, subfolder: FOLDER.to_owned(), file_type: FileType::Input }
}
