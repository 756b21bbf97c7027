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

use super::deliveries::{Finished, Taken};
use super::shared::{Shared, bump};
use super::{AttachedFile, Delivery, ForeignSource, reporter};
use crate::source::{ByteStream, Delivered, Manners, NewFile, Result, Source, SourceError, from_files};
use remuda_frames::Frame;

/// How long a runner waits for the first try to say how its attempt ended. What takes longer goes on without it.
const FIRST_TRY: Duration = Duration::from_secs(3);

/// How long a task without a limit of its own may render.
const NO_LIMIT: i32 = 365 * 24 * 3600;

/// A claim that waits; dropped, it does not any more.
struct Waiting<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.deliveries().leave(self.number);
        bump(&self.shared.moves);
    }
}

/// A delivery as runners know tasks.
fn claim_of(taken: Taken, now: Timestamp) -> Claim {
    let Taken { delivery, lease, adopted, cancel } = taken;
    let mut new = NewTask::new(delivery.workflow.clone());
    new.id = lease.task;
    new.timeout_s = delivery.timeout_s.map_or(NO_LIMIT, |limit| i32::try_from(limit).unwrap_or(NO_LIMIT));
    new.max_retries = 0;
    new.input.placements = delivery.files.iter().map(AttachedFile::placement).collect();
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

impl ForeignSource {
    fn check(&self, fence: Fence) -> Result<()> {
        if fence == Fence(self.shared.starts) { Ok(()) } else { Err(SourceError::Fenced) }
    }

    /// Hands a task to a runner: it is in the journal before.
    fn hand_out(&self, taken: Taken, now: Timestamp) -> Result<Claim> {
        let lease = taken.lease.reference();
        if let Err(error) = self.shared.save(lease.task) {
            if !taken.adopted {
                self.shared.deliveries().untake(lease, Instant::now());
                return Err(SourceError::Unavailable(format!("the journal cannot be written: {error}")));
            }
            // It is at ComfyUI in any case.
            tracing::warn!(task = %lease.task, %error, "the journal cannot be written");
        }
        self.shared.queue.begun(&taken.delivery, &taken.lease.worker, taken.adopted);
        Ok(claim_of(taken, now))
    }

    /// Where the outputs of a lease are delivered to; none, if it is not ours any more.
    fn outputs_of(&self, lease: LeaseRef) -> Result<Option<FileKey>> {
        let Some((prompt, delivery)) = self.shared.deliveries().held(lease) else { return Ok(None) };
        match &delivery.folder {
            None => Ok(Some(FileKey::outputs_of(prompt))),
            Some(folder) => folder.outputs_of(prompt).map(Some).map_err(from_files),
        }
    }

    /// Deletes the files of a task that is forgotten: nobody will hear of them.
    async fn throw_away(&self, lease: LeaseRef, folder: Option<FileKey>) {
        let (Some(sink), Some(folder)) = (&self.shared.sink, folder) else { return };
        // Delivered again since, it may have the same files.
        if self.shared.deliveries().delivery(lease.task).is_some() {
            return;
        }
        if let Err(error) = sink.delete_all(&folder).await {
            tracing::warn!(task = %lease.task, %folder, %error, "files that nobody wants could not be deleted");
        }
    }

    /// Says how a task ended. Whether it was heard at the first try or not, it is in good hands then.
    async fn say(&self, lease: LeaseRef) {
        let Some(first) = self.shared.say(lease.task) else { return };
        bump(&self.shared.moves);
        if tokio::time::timeout(FIRST_TRY, first).await.is_err() {
            reporter::keep(&self.shared, lease.task).await;
        }
    }

    /// What follows from an end; `task` as it was before.
    async fn finish(
        &self,
        lease: LeaseRef,
        delivery: Option<Arc<Delivery>>,
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
                self.shared.forget(lease.task, delivery.as_deref());
                (status, false)
            }
            // Whoever watches over it goes on.
            Finished::Left => {
                self.shared.note(lease.task);
                bump(&self.shared.moves);
                (status, false)
            }
            Finished::Again => {
                self.shared.note(lease.task);
                bump(&self.shared.moves);
                (Status::Pending, false)
            }
        };
        Ok(EndReply { status, discarded: false, repeated })
    }
}

#[async_trait]
impl Source for ForeignSource {
    async fn installation(&self) -> Result<Installation> {
        Ok(Installation { id: self.shared.installation, cluster_key: String::new() })
    }

    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired> {
        let now = Timestamp::now();
        let report =
            WorkerReport { identity: self.shared.journal.identity_of(&spec.id), ..WorkerReport::default() };
        Ok(Acquired::Yes(Worker {
            spec,
            report,
            owner: self.shared.deliveries().owner(),
            fence: Fence(self.shared.starts),
            until: Timestamp::MAX,
            created_at: now,
            last_active_at: now,
        }))
    }

    async fn release_worker(&self, _: &WorkerId, fence: Fence) -> Result<()> {
        self.check(fence)
    }

    async fn save_object_info(&self, _: Sha256, _: &str) -> Result<()> {
        // Nobody asks for it: the queue hands out what it likes.
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        self.check(request.worker_fence)?;
        let shared = &self.shared;
        let begun = Instant::now();
        let until = begun + request.wait;
        let mut moves = shared.moves.subscribe();
        let number = shared.deliveries().enter(request.worker, request.ahead, begun);
        let _waiting = Waiting { shared, number };
        bump(&shared.moves);
        loop {
            moves.borrow_and_update();
            let now = Timestamp::now();
            let taken = shared.deliveries().take(number, now);
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
        let taken = self.shared.deliveries().adopt(&request.worker, &request.known, now);
        taken.into_iter().map(|taken| self.hand_out(taken, now)).collect()
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        Ok(self.shared.deliveries().leases(worker, Timestamp::now()))
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let shared = &self.shared;
        let until = Instant::now() + request.wait;
        let mut news = shared.news.subscribe();
        let mut lost_workers = Vec::new();
        for beat in &request.workers {
            if beat.fence != Fence(shared.starts) {
                lost_workers.push(beat.id.clone());
            } else if let Some(identity) = &beat.report.identity {
                let written = shared.journal.remember(&beat.id, identity);
                written.map_err(|error| {
                    SourceError::Unavailable(format!("the journal cannot be written: {error}"))
                })?;
            }
        }
        loop {
            news.borrow_and_update();
            let now = Instant::now();
            let beaten = shared.deliveries().beat(&request, Timestamp::now(), now);
            for task in beaten.began {
                shared.note(task);
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
        let delivery = self.shared.deliveries().delivery(lease.task);
        let finished = self.shared.deliveries().end(lease, ending, Instant::now());
        let reply = self.finish(lease, delivery, finished, status).await;
        if finished == Finished::Discard {
            self.throw_away(lease, delivered).await;
        }
        reply
    }

    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply> {
        let delivery = self.shared.deliveries().delivery(lease.task);
        let finished = self.shared.deliveries().give_back(lease, learnt.as_ref(), Instant::now());
        let status = if learnt.is_some() { Status::Failed } else { Status::Pending };
        self.finish(lease, delivery, finished, status).await
    }

    async fn input(&self, lease: LeaseRef, placement: &Placement) -> Result<ByteStream> {
        let (_, delivery) = self.shared.deliveries().held(lease).ok_or(SourceError::Fenced)?;
        match delivery.files.iter().find(|file| file.is_for(placement)) {
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
        let Some(sink) = &self.shared.sink else {
            return Err(SourceError::Refused("there is no sink".to_owned()));
        };
        let folder = self.outputs_of(lease)?.ok_or(SourceError::Fenced)?;
        let name = format!("{}-{}", file.n, file.filename);
        let key = folder.join_name(&name).map_err(from_files)?;
        let stored = sink.put(&key, bytes, None).await.map_err(from_files)?;
        Ok(Delivered { key: key.to_string(), size: stored.size, sha256: Sha256(stored.sha256.0) })
    }

    async fn discard(&self, lease: LeaseRef, _: AttemptNo) -> Result<()> {
        // Files of a task that was, or will be, delivered again may be those of another process: they have the same names.
        if !self.shared.deliveries().may_discard(lease) {
            return Ok(());
        }
        let (Some(sink), Some(folder)) = (&self.shared.sink, self.outputs_of(lease)?) else { return Ok(()) };
        sink.delete_all(&folder).await.map(drop).map_err(from_files)
    }

    fn manners(&self) -> Manners {
        Manners { own_folder: false, collect: self.shared.sink.is_some(), forget: false }
    }

    fn sent(&self, lease: LeaseRef) {
        let delivery = self.shared.deliveries().delivery(lease.task);
        if let Some(delivery) = delivery {
            self.shared.queue.sent(&delivery);
        }
    }

    fn queued(&self, lease: LeaseRef, ahead: usize) {
        let delivery = self.shared.deliveries().delivery(lease.task);
        if let Some(delivery) = delivery {
            self.shared.queue.queued(&delivery, ahead);
        }
    }

    fn frame(&self, frame: Frame) {
        let delivery = self.shared.deliveries().delivery(frame.task);
        if let Some(delivery) = delivery {
            self.shared.queue.frame(&delivery, &frame);
        }
    }
}
