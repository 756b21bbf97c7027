//! The queue as a source, by way of a gateway: for a runner that knows a URL and a key, and no database.
//!
//! Any gateway behind the URL can answer any request: everything that must outlive a request is in their store. A
//! gateway that restarts is asked again for a while; what may have been done already is repeated as it was.

mod link;
mod outlet;
mod receipts;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use remuda_core::transition::Ending;
use remuda_core::{
    ApiKey, AttemptNo, Claim, Fence, Installation, Lease, LeaseRef, OwnerId, Placement, Requirements, Sha256,
    WorkerId, WorkerSpec,
};
use remuda_store::{Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, LeaseBeat};
use reqwest::Method;
use tokio::time::Instant;
use url::Url;

use self::link::{Ask, Backoff, Link, Trouble};
use self::outlet::Outlet;
use self::receipts::{Receipt, Receipts};
use super::{ByteStream, Delivered, NewFile, Result, Source, SourceError};
use crate::frames::Frame;
use crate::wire;

/// How long a request is repeated while no gateway answers. A runner has its own patience beyond that.
const PATIENCE: Duration = Duration::from_secs(15);

/// The same for a beat, which is soon followed by a better one.
const BEAT_PATIENCE: Duration = Duration::from_secs(3);

/// A file on its way may take hours, but it may not stand still for so long.
const STANDSTILL: Duration = Duration::from_secs(60);

/// An `object_info` has megabytes, and the way may be narrow.
const OBJECT_INFO: Duration = Duration::from_secs(60);

/// Tasks of a queue that a gateway keeps. See [`crate::wire`].
///
/// Claims and beats are long polls of at most 25 seconds each. Live frames go in the background, a few batches in a
/// second, and are dropped when the gateway is slow.
#[derive(Debug)]
pub struct GatewaySource {
    link: Arc<Link>,
    owner: OwnerId,
    receipts: Receipts,
    outlet: Outlet,
}

impl GatewaySource {
    /// A source behind the gateway at `server`, for the process `owner`. Nothing is asked yet.
    ///
    /// Without a key only a gateway on this machine answers, and only one where no key was made yet. To be called
    /// within a Tokio runtime.
    ///
    /// # Errors
    /// [`SourceError::Refused`] when the address or the key cannot be one.
    pub fn new(server: &Url, key: Option<&ApiKey>, owner: OwnerId) -> Result<Self> {
        let link = Arc::new(Link::new(server, key, owner).map_err(SourceError::Refused)?);
        let outlet = Outlet::start(Arc::clone(&link));
        Ok(Self { link, owner, receipts: Receipts::default(), outlet })
    }

    /// Stops what runs in the background. Everything but live frames still works.
    pub async fn close(&self) {
        self.outlet.stop().await;
    }

    async fn repeat<T: serde::de::DeserializeOwned>(&self, ask: &Ask) -> Result<T> {
        self.link.read(&self.link.repeat(ask, PATIENCE).await?)
    }

    /// Gives back what was claimed by requests whose answers did not come. See [`receipts`].
    async fn settle(&self, worker: &WorkerId, receipt: &Receipt) {
        let Some(_alone) = receipt.to_settle() else { return };
        if let Err(error) = self.try_settle(worker, receipt).await {
            // Tried again with the next claim or beat.
            tracing::debug!(%worker, %error, "claims that did not arrive could not be given back yet");
        }
    }

    async fn try_settle(&self, worker: &WorkerId, receipt: &Receipt) -> Result<()> {
        let asked = Instant::now();
        let ask = self.link.get(&["leases"], &wire::OfWorker { worker: worker.clone() })?;
        let found: wire::Leases = self.link.read(&self.link.ask(&ask).await?)?;
        for lease in receipt.missing(found.leases, self.owner) {
            let body = wire::GiveBack { lease: lease.reference(), learnt: None };
            match self.link.ask(&self.link.post("give-back", &body)?).await {
                Ok(_) | Err(Trouble::Refused(SourceError::Fenced)) => {
                    tracing::info!(task = %lease.task, %worker, "gave back a task whose claim did not arrive");
                }
                Err(trouble) => return Err(trouble.into()),
            }
        }
        receipt.settled(asked);
        Ok(())
    }

    async fn ended(&self, ask: Ask, task: remuda_core::TaskId) -> Result<EndReply> {
        let reply = self.repeat(&ask).await;
        if matches!(reply, Ok(_) | Err(SourceError::Fenced)) {
            self.receipts.over(task);
        }
        reply
    }
}

#[async_trait]
impl Source for GatewaySource {
    /// Without the cluster key, which is not for workers.
    async fn installation(&self) -> Result<Installation> {
        let found: wire::Installation = self.repeat(&self.link.get(&["installation"], &())?).await?;
        Ok(Installation { id: found.id, cluster_key: String::new() })
    }

    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired> {
        let receipt = self.receipts.of(&spec.id);
        receipt.complete(false);
        let found: wire::Acquired = self.repeat(&self.link.post("acquire", &wire::Acquire { spec })?).await?;
        Ok(if found.yours { Acquired::Yes(found.worker) } else { Acquired::HeldBy(found.worker) })
    }

    async fn release_worker(&self, id: &WorkerId, fence: Fence) -> Result<()> {
        self.settle(id, &self.receipts.of(id)).await;
        let ask = self.link.post("release", &wire::Release { worker: id.clone(), fence })?;
        self.link.repeat(&ask, PATIENCE).await?;
        self.receipts.forget(id);
        Ok(())
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        let body = json.as_bytes().to_vec().into();
        let path = ["object-info", &hash.to_string()];
        let ask = self.link.send_bytes(Method::PUT, &path, "application/json", body).waiting(OBJECT_INFO);
        self.link.repeat(&ask, PATIENCE).await.map(drop)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        let receipt = self.receipts.of(&request.worker);
        self.settle(&request.worker, &receipt).await;
        let _turn = receipt.turn().await;
        let end = Instant::now() + request.wait;
        let mut backoff = Backoff::new(request.wait.min(PATIENCE));
        let mut body = wire::Claim {
            worker: request.worker,
            worker_fence: request.worker_fence,
            capabilities: request.capabilities,
            loaded: request.loaded,
            ahead: request.ahead,
            wait_ms: 0,
        };
        loop {
            let wait = end.saturating_duration_since(Instant::now()).min(wire::LONGEST_WAIT);
            body.wait_ms = wire::millis(wait);
            let ask = self.link.post("claim", &body)?.waiting(wait);
            let sending = receipt.sending();
            match self.link.ask(&ask).await {
                Ok(nothing) if nothing.is_empty() => {
                    sending.answered();
                    if Instant::now() >= end {
                        return Ok(None);
                    }
                    // A gateway that stops answers early; the next request should not be its last.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(answer) => {
                    let claimed: wire::Claimed = self.link.read(&answer)?;
                    receipt.arrived(&claimed.claim.lease);
                    sending.answered();
                    return Ok(Some(claimed.claim));
                }
                Err(Trouble::Unsent(why)) => {
                    sending.answered();
                    if !backoff.pause().await {
                        return Err(SourceError::Unavailable(why));
                    }
                }
                // To ask again at once could bring two tasks; the next claim begins by clearing this up.
                Err(Trouble::Doubtful(why)) => return Err(SourceError::Unavailable(why)),
                Err(Trouble::Refused(error)) => {
                    sending.answered();
                    return Err(error);
                }
            }
        }
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        let receipt = self.receipts.of(&request.worker);
        let _turn = receipt.turn().await;
        // What is adopted by a request without an answer may be rendering.
        receipt.complete(false);
        let AdoptRequest { worker, worker_fence, known, .. } = request;
        let ask = self.link.post("adopt", &wire::Adopt { worker, worker_fence, known })?;
        let adopted: wire::Adopted = self.repeat(&ask).await?;
        adopted.claims.iter().for_each(|claim| receipt.arrived(&claim.lease));
        receipt.complete(true);
        Ok(adopted.claims)
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        let ask = self.link.get(&["leases"], &wire::OfWorker { worker: worker.clone() })?;
        let found: wire::Leases = self.repeat(&ask).await?;
        Ok(found.leases)
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let settle = async {
            for worker in &request.workers {
                self.settle(&worker.id, &self.receipts.of(&worker.id)).await;
            }
        };
        let wait = request.wait.min(wire::LONGEST_WAIT);
        let leases = request.leases.iter().map(finite).collect();
        let body = wire::Beat { leases, workers: request.workers.clone(), wait_ms: wire::millis(wait) };
        let ask = self.link.post("beat", &body)?.waiting(wait);
        let (answer, ()) = tokio::join!(self.link.repeat(&ask, BEAT_PATIENCE), settle);
        let reply: BeatReply = self.link.read(&answer?)?;
        reply.lost.iter().for_each(|lease| self.receipts.over(lease.task));
        reply.lost_workers.iter().for_each(|worker| self.receipts.forget(worker));
        Ok(reply)
    }

    async fn end(&self, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        self.ended(self.link.post("end", &wire::End { lease, ending })?, lease.task).await
    }

    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply> {
        self.ended(self.link.post("give-back", &wire::GiveBack { lease, learnt })?, lease.task).await
    }

    async fn input(&self, lease: LeaseRef, placement: &Placement) -> Result<ByteStream> {
        let query = wire::InputQuery { fence: lease.fence, key: placement.key.clone() };
        let ask = self.link.get(&["tasks", &lease.task.to_string(), "input"], &query)?;
        let mut backoff = Backoff::new(PATIENCE);
        let response = loop {
            match self.link.open(&ask).await {
                Ok(response) => break response,
                Err(Trouble::Refused(error)) => return Err(error),
                Err(trouble) if !backoff.pause().await => return Err(trouble.into()),
                Err(_) => {}
            }
        };
        let bytes = response.bytes_stream().map_err(std::io::Error::other).boxed();
        let stream = futures_util::stream::try_unfold(bytes, async |mut bytes| {
            let standstill =
                || std::io::Error::new(std::io::ErrorKind::TimedOut, "the download stands still");
            let next = tokio::time::timeout(STANDSTILL, bytes.try_next()).await;
            Ok(next.map_err(|_| standstill())??.map(|chunk| (chunk, bytes)))
        });
        Ok(stream.boxed())
    }

    /// One try: the stream cannot be had twice. After an error the file must be fetched from ComfyUI again.
    async fn deliver(
        &self,
        lease: LeaseRef,
        attempt: AttemptNo,
        file: NewFile,
        bytes: ByteStream,
    ) -> Result<Delivered> {
        let query =
            wire::OutputQuery { fence: lease.fence, attempt, filename: file.filename, size: file.size };
        let path = ["tasks", &lease.task.to_string(), "outputs", &file.n.to_string()];
        let url = link::with_query(self.link.url(&path), &query)?;
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let counted = bytes.inspect_ok(move |chunk| {
            count.fetch_add(u64::try_from(chunk.len()).unwrap_or_default(), Ordering::Relaxed);
        });
        let request = self
            .link
            .request(Method::PUT, url)
            .header("content-type", "application/octet-stream")
            .body(reqwest::Body::wrap_stream(counted));
        let answer = async {
            let response = request.send().await.map_err(|error| self.link.unanswered(&error))?;
            let response = self.link.check(response).await?;
            response.bytes().await.map_err(|error| self.link.unanswered(&error))
        };
        let answer = tokio::select! {
            answer = answer => answer?,
            () = standstill(&sent) => return Err(SourceError::Unavailable(self.link.silent(STANDSTILL))),
        };
        let delivered: wire::Delivered = self.link.read(&answer)?;
        let sent = sent.load(Ordering::Relaxed);
        if delivered.size != sent {
            return Err(SourceError::Unavailable(format!("{} of {sent} bytes arrived", delivered.size)));
        }
        Ok(Delivered { key: delivered.key, size: delivered.size, sha256: delivered.sha256 })
    }

    async fn discard(&self, lease: LeaseRef, attempt: AttemptNo) -> Result<()> {
        let query = wire::AttemptQuery { fence: lease.fence, attempt };
        let path = ["tasks", &lease.task.to_string(), "outputs"];
        let ask = self.link.delete(&path, &query)?;
        self.link.repeat(&ask, PATIENCE).await.map(drop)
    }

    fn frame(&self, frame: Frame) {
        self.outlet.put(frame);
    }
}

/// Returns when nothing was sent for too long. The end of a large file, made durable by the gateway, takes a while too.
async fn standstill(sent: &AtomicU64) {
    let mut before = sent.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(STANDSTILL).await;
        let now = sent.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// JSON has no numbers that are none.
fn finite(beat: &LeaseBeat) -> LeaseBeat {
    let progress = if beat.progress.is_finite() { beat.progress } else { 0.0 };
    LeaseBeat { progress, ..beat.clone() }
}
