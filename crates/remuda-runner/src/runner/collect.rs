//! From an end at ComfyUI to files in the file store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comfyui::outputs::{FileType, OutputFile as Left, Outputs};
use comfyui::{Client, Error, ExecutionFailure, FileRef, Success};
use futures_util::{StreamExt, stream};
use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, JsonText, OutputFile, Phase, Sha256, TaskResult};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::attempt::{Attempt, Close, Step};
use super::event::Stage;
use super::inspect::chain;
use super::worker::Ready;
use crate::source::{self, ByteStream, Delivered, NewFile, SourceError};

/// The first pause after a delivery that failed; it doubles up to ten seconds.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Attempt {
    /// Delivers every file that the prompt left, while ComfyUI already works on the next.
    pub(super) async fn collect(&mut self, ready: &Ready, success: Success) -> Step<Close> {
        self.board().set_progress(self.lease(), 1.0);
        let mut files = Vec::new();
        let limits = &self.worker.shared.options.results;
        let (found, size) = (success.outputs.files().count(), success.entry.raw_outputs.get().len());
        if found > limits.files {
            return Err(too_large(&format!(
                "it left {found} files; graph.output_files allows {}",
                limits.files
            )));
        }
        if size > limits.bytes {
            let message = format!(
                "what it left is {size} bytes of JSON; tasks.max_result_size allows {}",
                limits.bytes
            );
            return Err(too_large(&message));
        }
        self.deliver_all(ready, &success.outputs, &mut files).await?;
        let outputs = success.entry.raw_outputs.into();
        let execution_ms = success.duration_ms.and_then(|ms| i64::try_from(ms).ok());
        let node_errors = Some(&success.node_errors).filter(|errors| !errors.is_empty());
        let node_errors =
            node_errors.and_then(|errors| serde_json::to_value(errors).ok()).map(JsonText::from);
        let result = TaskResult { files, outputs, execution_ms, node_errors };
        Ok(Close::End(Box::new(Ending::Completed { result, gpu_ms: execution_ms })))
    }

    /// Delivers what branches of a failed prompt have left, as far as it can be had: it failed in any case.
    pub(super) async fn collect_part(
        &mut self,
        ready: &Ready,
        failure: Failure,
        left: &ExecutionFailure,
    ) -> Step<Close> {
        let mut files = Vec::new();
        let limits = &self.worker.shared.options.results;
        if left.outputs.files().count() > limits.files || left.raw_outputs.get().len() > limits.bytes {
            tracing::warn!(task = %self.claim.task.id, "what a failed task left is too large and is not kept");
            return Ok(Close::failed(failure));
        }
        match self.deliver_all(ready, &left.outputs, &mut files).await {
            Err(Close::End(ending)) if matches!(*ending, Ending::Failed { .. }) => {
                tracing::warn!(task = %self.claim.task.id, "not everything that it left could be stored");
            }
            Err(close) => return Err(close),
            Ok(()) => {}
        }
        let outputs = left.raw_outputs.clone().into();
        let execution_ms = left.duration_ms.and_then(|ms| i64::try_from(ms).ok());
        let partial = TaskResult { files, outputs, execution_ms, node_errors: None };
        Ok(Close::End(Box::new(Ending::Failed { failure, partial: Some(Box::new(partial)) })))
    }

    async fn deliver_all(&self, ready: &Ready, outputs: &Outputs, files: &mut Vec<OutputFile>) -> Step<()> {
        self.board().set_phase(self.lease(), Phase::Collecting);
        self.stage(Stage::Delivering).await;
        if !self.worker.shared.source.manners().collect {
            files.extend(
                (0..).zip(outputs.files().filter(|file| is_result(file))).map(|(n, left)| named(n, left)),
            );
            return Ok(());
        }
        for left in outputs.files().filter(|file| is_result(file)) {
            let n = i32::try_from(files.len()).unwrap_or(i32::MAX);
            let delivered = tokio::select! {
                biased;
                close = self.cancelled() => {
                    self.discard().await;
                    return Err(close);
                }
                delivered = self.deliver(ready.session.client(), n, left) => delivered?,
            };
            self.worker.shared.counters.files_delivered.one();
            self.worker.shared.counters.bytes_delivered.add(delivered.size);
            files.push(output_file(n, left, delivered));
        }
        Ok(())
    }

    /// Waits for the loss of the lease or the end of the task.
    async fn cancelled(&self) -> Close {
        let mut signals = self.grip.signals.clone();
        let called = signals.wait_for(|signals| signals.lost || signals.cancel).await.map(|signals| *signals);
        match called {
            Ok(signals) if !signals.lost => Close::End(Box::new(Ending::Cancelled)),
            // Off the board is lost, too.
            _ => Close::NotOurs,
        }
    }

    /// One file, however often it takes.
    async fn deliver(&self, client: &Client, n: i32, left: &Left) -> Step<Delivered> {
        let file = FileRef::from(left);
        let since = Instant::now();
        let mut pause = PAUSE;
        loop {
            let (why, patience, class) = match self.try_deliver(client, n, &file).await {
                Ok(delivered) => return Ok(delivered),
                Err(Trouble::Close(close)) => return Err(close),
                Err(Trouble::Source(why)) => (why, self.timing().delivery_patience, FailureClass::Delivery),
                Err(Trouble::Worker(why)) => (why, self.timing().unreachable, FailureClass::Connection),
            };
            if since.elapsed() >= patience {
                let message =
                    format!("its result was there, and {} could not be stored: {why}", file.filename);
                return Err(Close::fail(class, message));
            }
            tracing::warn!(task = %self.claim.task.id, file = file.filename, %why, "a file could not be delivered; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_deliver(&self, client: &Client, n: i32, file: &FileRef) -> Result<Delivered, Trouble> {
        let download = match client.view(file).await {
            Ok(download) => download,
            Err(Error::NotFound { .. }) => {
                let message = format!("{} vanished at ComfyUI before it could be fetched", file.filename);
                return Err(Trouble::Close(Close::fail(FailureClass::Lost, message)));
            }
            Err(error) if error.is_too_large() => return Err(file_too_large(file, &error)),
            Err(error) => return Err(Trouble::Worker(chain(&error))),
        };
        let size = download.len;
        // The source sees only a stream that broke; whose fault it was is remembered here.
        let broke: Arc<Mutex<Option<Error>>> = Arc::default();
        let note = Arc::clone(&broke);
        let moved = Arc::new(Notify::new());
        let moves = Arc::clone(&moved);
        let stream: ByteStream = stream::try_unfold(download, move |mut download| {
            let note = Arc::clone(&note);
            moves.notify_one();
            async move {
                match download.chunk().await {
                    Ok(chunk) => Ok(chunk.map(|chunk| (chunk, download))),
                    Err(error) => {
                        let why = chain(&error);
                        *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        Err(std::io::Error::other(why))
                    }
                }
            }
        })
        .boxed();
        let new = NewFile { n, filename: file.filename.clone(), size };
        let delivered =
            self.worker.shared.source.deliver(self.lease(), self.claim.lease.attempt, new, stream);
        let delivered = unless_stuck(delivered, &moved, self.timing().transfer).await;
        let broke = broke.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (delivered, broke) {
            (Ok(delivered), _) if size.is_some_and(|size| size != delivered.size) => Err(Trouble::Worker(
                format!("{} bytes came, and ComfyUI had announced another number", delivered.size),
            )),
            (Ok(delivered), _) => Ok(delivered),
            (Err(SourceError::Fenced), _) => Err(Trouble::Close(Close::NotOurs)),
            (Err(_), Some(error)) if error.is_too_large() => Err(file_too_large(file, &error)),
            (Err(_), Some(error)) => Err(Trouble::Worker(chain(&error))),
            (Err(SourceError::Unavailable(why)), None) => Err(Trouble::Source(why)),
            (Err(SourceError::Refused(why)), None) => {
                let message = format!("its result was there, and {} was not taken: {why}", file.filename);
                Err(Trouble::Close(Close::fail(FailureClass::Delivery, message)))
            }
        }
    }

    /// Removes what was delivered; what is left is swept up later.
    pub(super) async fn discard(&self) {
        let shared = &self.worker.shared;
        if let Err(error) = shared.ask(shared.source.discard(self.lease(), self.claim.lease.attempt)).await {
            tracing::debug!(task = %self.claim.task.id, %error, "files of a discarded result stay for now");
        }
    }
}

/// The task's own result cannot be kept. It would be as large the next time.
fn too_large(what: &str) -> Close {
    Close::fail(FailureClass::Delivery, format!("its result is too large: {what}"))
}

fn file_too_large(file: &FileRef, error: &Error) -> Trouble {
    Trouble::Close(too_large(&format!("{}: {error} (tasks.max_output_size)", file.filename)))
}

/// A transfer that may take long, but must not stand still.
async fn unless_stuck<T>(
    transfer: impl Future<Output = source::Result<T>>,
    moved: &Notify,
    limit: Duration,
) -> source::Result<T> {
    let stuck = async { while tokio::time::timeout(limit, moved.notified()).await.is_ok() {} };
    tokio::select! {
        done = transfer => done,
        () = stuck => Err(SourceError::Unavailable(format!("the transfer stood still for {limit:?}"))),
    }
}

/// Why a file was not delivered.
enum Trouble {
    /// The source, or its files, are away.
    Source(String),
    /// ComfyUI is away.
    Worker(String),
    /// Trying again is of no use.
    Close(Close),
}

/// Saved files and previews; not what a node only read.
fn is_result(file: &Left) -> bool {
    matches!(file.file_type, FileType::Output | FileType::Temp)
}

/// A file that stays where it is. Some nodes write a part of the folder before the name: it belongs to its path.
fn named(n: i32, left: &Left) -> OutputFile {
    let mut file = output_file(n, left, Delivered { key: String::new(), size: 0, sha256: Sha256([0; 32]) });
    if let Some((folder, _)) = left.filename.rsplit_once('/') {
        let parts = [file.subfolder.trim_end_matches('/'), folder.trim_matches('/')];
        file.subfolder = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    }
    file
}

fn output_file(n: i32, left: &Left, delivered: Delivered) -> OutputFile {
    let filename = left.filename.rsplit('/').next().unwrap_or(&left.filename).to_owned();
    OutputFile {
        n,
        key: delivered.key,
        filename,
        subfolder: left.subfolder.clone(),
        node_id: left.node_id.clone(),
        output: left.key.clone(),
        file_type: left.file_type.as_str().to_owned(),
        mime: left.mime.to_owned(),
        size: i64::try_from(delivered.size).unwrap_or(i64::MAX),
        sha256: delivered.sha256,
    }
}
