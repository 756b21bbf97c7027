//! What runners see of somebody else's queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, future::ready, stream};
use remuda_core::transition::{self, Ending};
use remuda_core::{
    AttemptNo, Claim, Fence, Installation, Lease, LeaseRef, NewTask, Placement, Requirements, Sha256, Status,
    Timestamp, Worker, WorkerId, WorkerReport, WorkerSpec,
};
use remuda_files::FileKey;
use remuda_store::{Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply};
use tokio::time::Instant;

use super::desk::{Finished, Taken};
use super::office::{Office, bump};
use super::{Job, JobFile, JournalSource, reports};
use crate::source::{ByteStream, Delivered, Manners, NewFile, Result, Source, SourceError};
use remuda_frames::Frame;

/// So long a runner waits for the first try to say how its attempt ended. What takes longer goes on without it.
const FIRST_TRY: Duration = Duration::from_secs(3);

/// A job without a limit of its own may render so long.
const NO_LIMIT: i32 = 365 * 24 * 3600;

/// A claim that waits; dropped, it does not any more.
struct Waiting<'a> {
    office: &'a Office,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.office.desk().leave(self.number);
        bump(&self.office.moves);
    }
}

/// A job as runners know tasks.
fn claim_of(taken: Taken, now: Timestamp) -> Claim {
    let Taken { job, lease, adopted, cancel } = taken;
    let mut new = NewTask::new(job.workflow.clone());
    new.id = lease.task;
    new.timeout_s = job.timeout_s.map_or(NO_LIMIT, |limit| i32::try_from(limit).unwrap_or(NO_LIMIT));
    new.max_retries = 0;
    new.input.placements = job.files.iter().map(JobFile::placement).collect();
    let (mut task, _) = transition::submit(&new, now, 0, 0);
    task.status = Status::Running;
    task.reason = None;
    task.attempt = lease.attempt;
    task.fence = lease.fence;
    task.started_at = Some(now);
    task.worker = Some(lease.worker.clone());
    task.cancel_at = cancel.then_some(now);
    Claim { task, input: new.input, lease, adopted }
}

fn from_files(error: remuda_files::Error) -> SourceError {
    use remuda_files::Error;
    match error {
        // The stream from ComfyUI broke, or the sink is away or full.
        Error::Source(_) | Error::Unavailable { .. } | Error::Full { .. } | Error::Other { .. } => {
            SourceError::Unavailable(error.to_string())
        }
        _ => SourceError::Refused(error.to_string()),
    }
}

impl JournalSource {
    fn check(&self, fence: Fence) -> Result<()> {
        if fence == Fence(self.office.starts) { Ok(()) } else { Err(SourceError::Fenced) }
    }

    /// Hands a job to a runner: it is in the journal before.
    fn hand_out(&self, taken: Taken, now: Timestamp) -> Result<Claim> {
        let lease = taken.lease.reference();
        if let Err(error) = self.office.save(lease.task) {
            if !taken.adopted {
                self.office.desk().untake(lease, Instant::now());
                return Err(SourceError::Unavailable(format!("the journal cannot be written: {error}")));
            }
            // It is at ComfyUI in any case.
            tracing::warn!(task = %lease.task, %error, "the journal cannot be written");
        }
        self.office.employer.begun(&taken.job, &taken.lease.worker, taken.adopted);
        Ok(claim_of(taken, now))
    }

    /// Where the outputs of a lease are delivered to; none, if it is not ours any more.
    fn outputs_of(&self, lease: LeaseRef) -> Result<Option<FileKey>> {
        let Some((prompt, job)) = self.office.desk().held(lease) else { return Ok(None) };
        match &job.folder {
            None => Ok(Some(FileKey::outputs_of(prompt))),
            Some(folder) => folder.outputs_of(prompt).map(Some).map_err(from_files),
        }
    }

    /// Deletes the files of a job that is forgotten: nobody will hear of them.
    async fn throw_away(&self, lease: LeaseRef, folder: Option<FileKey>) {
        let (Some(sink), Some(folder)) = (&self.office.sink, folder) else { return };
        // Delivered again since, it may have the same files.
        if self.office.desk().job(lease.task).is_some() {
            return;
        }
        if let Err(error) = sink.delete_all(&folder).await {
            tracing::warn!(task = %lease.task, %folder, %error, "files that nobody wants could not be deleted");
        }
    }

    /// Says how a job ended. Whether it was heard at the first try or not, it is in good hands then.
    async fn say(&self, lease: LeaseRef) {
        let Some(first) = self.office.say(lease.task) else { return };
        bump(&self.office.moves);
        if tokio::time::timeout(FIRST_TRY, first).await.is_err() {
            reports::keep(&self.office, lease.task).await;
        }
    }

    /// What follows from an end; `job` as it was before.
    async fn finish(
        &self,
        lease: LeaseRef,
        job: Option<Arc<Job>>,
        finished: Finished,
        status: Status,
    ) -> Result<EndReply> {
        let (status, repeated) = match finished {
            Finished::Fenced => return Err(SourceError::Fenced),
            Finished::Repeated => (status, true),
            Finished::Report => {
                self.say(lease).await;
                (status, false)
            }
            Finished::Forget | Finished::Discard => {
                self.office.forget(lease.task, job.as_deref());
                (status, false)
            }
            // Whoever watches over it goes on.
            Finished::Left => {
                self.office.note(lease.task);
                bump(&self.office.moves);
                (status, false)
            }
            Finished::Again => {
                self.office.note(lease.task);
                bump(&self.office.moves);
                (Status::Pending, false)
            }
        };
        Ok(EndReply { status, discarded: false, repeated })
    }
}

#[async_trait]
impl Source for JournalSource {
    async fn installation(&self) -> Result<Installation> {
        Ok(Installation { id: self.office.installation, cluster_key: String::new() })
    }

    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired> {
        let now = Timestamp::now();
        let report =
            WorkerReport { identity: self.office.folder.identity_of(&spec.id), ..WorkerReport::default() };
        Ok(Acquired::Yes(Worker {
            spec,
            report,
            owner: self.office.desk().owner(),
            fence: Fence(self.office.starts),
            until: Timestamp::MAX,
            created_at: now,
            last_active_at: now,
        }))
    }

    async fn release_worker(&self, _: &WorkerId, fence: Fence) -> Result<()> {
        self.check(fence)
    }

    async fn save_object_info(&self, _: Sha256, _: &str) -> Result<()> {
        // Nobody asks for it: the employer hands out what it likes.
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        self.check(request.worker_fence)?;
        let office = &self.office;
        let begun = Instant::now();
        let until = begun + request.wait;
        let mut moves = office.moves.subscribe();
        let number = office.desk().enter(request.worker, request.ahead, begun);
        let _waiting = Waiting { office, number };
        bump(&office.moves);
        loop {
            moves.borrow_and_update();
            let now = Timestamp::now();
            let taken = office.desk().take(number, now);
            if let Some(taken) = taken {
                // Nothing is waited for from here on: a claim that is dropped has taken nothing.
                return self.hand_out(taken, now).map(Some);
            }
            tokio::select! {
                biased;
                changed = moves.changed() => if changed.is_err() { return Ok(None) },
                () = tokio::time::sleep_until(until) => return Ok(None),
            }
        }
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        self.check(request.worker_fence)?;
        let now = Timestamp::now();
        let taken = self.office.desk().adopt(&request.worker, &request.known, now);
        taken.into_iter().map(|taken| self.hand_out(taken, now)).collect()
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        Ok(self.office.desk().leases(worker, Timestamp::now()))
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let office = &self.office;
        let until = Instant::now() + request.wait;
        let mut news = office.news.subscribe();
        let mut lost_workers = Vec::new();
        for beat in &request.workers {
            if beat.fence != Fence(office.starts) {
                lost_workers.push(beat.id.clone());
            } else if let Some(identity) = &beat.report.identity {
                let written = office.folder.remember(&beat.id, identity);
                written.map_err(|error| {
                    SourceError::Unavailable(format!("the journal cannot be written: {error}"))
                })?;
            }
        }
        loop {
            news.borrow_and_update();
            let now = Instant::now();
            let beaten = office.desk().beat(&request, Timestamp::now(), now);
            for task in beaten.began {
                office.note(task);
            }
            if beaten.news || !lost_workers.is_empty() || now >= until {
                return Ok(BeatReply { lost_workers, ..beaten.reply });
            }
            tokio::select! {
                changed = news.changed() => if changed.is_err() { return Ok(beaten.reply) },
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn end(&self, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        let delivered = self.outputs_of(lease).ok().flatten();
        let status = match &ending {
            Ending::Completed { .. } => Status::Completed,
            Ending::Failed { .. } => Status::Failed,
            Ending::Cancelled => Status::Cancelled,
        };
        let job = self.office.desk().job(lease.task);
        let finished = self.office.desk().end(lease, ending, Instant::now());
        let reply = self.finish(lease, job, finished, status).await;
        if finished == Finished::Discard {
            self.throw_away(lease, delivered).await;
        }
        reply
    }

    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply> {
        let job = self.office.desk().job(lease.task);
        let finished = self.office.desk().give_back(lease, learnt.as_ref(), Instant::now());
        let status = if learnt.is_some() { Status::Failed } else { Status::Pending };
        self.finish(lease, job, finished, status).await
    }

    async fn input(&self, lease: LeaseRef, placement: &Placement) -> Result<ByteStream> {
        let (_, job) = self.office.desk().held(lease).ok_or(SourceError::Fenced)?;
        match job.files.iter().find(|file| file.is_for(placement)) {
            Some(file) => Ok(stream::once(ready(Ok(file.bytes.clone()))).boxed()),
            None => Err(SourceError::Refused(format!("{} is not kept here", placement.filename))),
        }
    }

    async fn deliver(
        &self,
        lease: LeaseRef,
        _: AttemptNo,
        file: NewFile,
        bytes: ByteStream,
    ) -> Result<Delivered> {
        let Some(sink) = &self.office.sink else {
            return Err(SourceError::Refused("there is no sink".to_owned()));
        };
        let folder = self.outputs_of(lease)?.ok_or(SourceError::Fenced)?;
        let name = format!("{}-{}", file.n, file.filename);
        let key = folder.join_name(&name).map_err(from_files)?;
        let stored = sink.put(&key, bytes, None).await.map_err(from_files)?;
        Ok(Delivered { key: key.to_string(), size: stored.size, sha256: Sha256(stored.sha256.0) })
    }

    async fn discard(&self, lease: LeaseRef, _: AttemptNo) -> Result<()> {
        // Files of a job that was, or will be, delivered again may be those of another process: they have the same names.
        if !self.office.desk().may_discard(lease) {
            return Ok(());
        }
        let (Some(sink), Some(folder)) = (&self.office.sink, self.outputs_of(lease)?) else { return Ok(()) };
        sink.delete_all(&folder).await.map(drop).map_err(from_files)
    }

    fn manners(&self) -> Manners {
        Manners { own_folder: false, collect: self.office.sink.is_some(), forget: false }
    }

    fn sent(&self, lease: LeaseRef) {
        let job = self.office.desk().job(lease.task);
        if let Some(job) = job {
            self.office.employer.sent(&job);
        }
    }

    fn queued(&self, lease: LeaseRef, ahead: usize) {
        let job = self.office.desk().job(lease.task);
        if let Some(job) = job {
            self.office.employer.queued(&job, ahead);
        }
    }

    fn frame(&self, frame: Frame) {
        let job = self.office.desk().job(frame.task);
        if let Some(job) = job {
            self.office.employer.frame(&job, &frame);
        }
    }
}
