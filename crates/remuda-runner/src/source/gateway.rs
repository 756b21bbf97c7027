//! The queue as a source, by way of a gateway: for a runner that knows a URL and a key, and no database.
//!
//! Any gateway behind the URL can answer any request: everything that must outlive a request is in their store. A
//! gateway that restarts is asked again for a while; what may have been done already is repeated as it was.

mod link;
mod outlet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use remuda_core::transition::Ending;
use remuda_core::{
    ApiKey, AttemptNo, Claim, Fence, Harm, Harmed, Installation, Lease, LeaseRef, OwnerId, Placement,
    Requirements, Sha256, WorkerId, WorkerSpec,
};
use remuda_pool::{Pool, Work};
use remuda_store::{Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, LeaseBeat};
use reqwest::Method;
use tokio::time::Instant;
use url::Url;

use self::link::{Ask, Backoff, Link, Trouble};
use self::outlet::Outlet;
use super::{ByteStream, Delivered, NewFile, Result, Source, SourceError};
use remuda_frames::Frame;
use remuda_sidecar as sidecar;

/// How long a request is repeated while no gateway answers. A runner has its own patience beyond that.
const PATIENCE: Duration = Duration::from_secs(15);

/// The same for a beat, which is soon followed by a better one.
const BEAT_PATIENCE: Duration = Duration::from_secs(3);

/// Leases depend on beats: one that got stuck on its way must leave time for another, by another way.
const BEAT_ANSWER: Duration = Duration::from_secs(5);

/// The pause after a claim that was answered before its time.
const EARLY: Duration = Duration::from_millis(50);

/// A file on its way may take hours, but it may not stand still for this long.
const STANDSTILL: Duration = Duration::from_secs(60);

/// An `object_info` has megabytes, and the way may be narrow.
const OBJECT_INFO: Duration = Duration::from_secs(60);

/// Tasks of a queue that a gateway keeps. See [`remuda_sidecar`].
///
/// Claims and beats are long polls of at most 25 seconds each. The answer to a claim can get lost after the gateway made
/// it; the runner then finds the lease among those of its worker, and adopts it. Live frames go in the background, a few batches in a
/// second, and are dropped when the gateway is slow.
#[derive(Debug)]
pub struct GatewaySource {
    link: Arc<Link>,
    outlet: Outlet,
    pool: Pool,
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
        Ok(Self { link, outlet, pool: Pool::default() })
    }

    /// Claims with large graphs are read on the threads of this pool.
    #[must_use]
    pub fn with_pool(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// Stops what runs in the background. Everything but live frames still works.
    pub async fn close(&self) {
        self.outlet.stop().await;
    }

    /// How long a lease of this server lasts. A worker whose own settings are more patient would lose its tasks.
    ///
    /// # Errors
    /// When the server does not answer, or refuses the key.
    pub async fn lease(&self) -> Result<Option<Duration>> {
        let found: sidecar::Installation = self.repeat(&self.link.get(&["installation"], &())?).await?;
        Ok(found.lease_ms.map(Duration::from_millis))
    }

    async fn repeat<T: serde::de::DeserializeOwned + Send + 'static>(&self, ask: &Ask) -> Result<T> {
        self.read(self.link.repeat(ask, PATIENCE).await?).await
    }

    async fn read<T: serde::de::DeserializeOwned + Send + 'static>(&self, answer: Bytes) -> Result<T> {
        // Not refused: every worker has one at a time.
        let work = Work::new("reading what the server says", "the server", answer.len()).patient();
        let link = Arc::clone(&self.link);
        let read = self.pool.run(work, move || link.read(&answer)).await;
        read.unwrap_or_else(|error| {
            Err(SourceError::Unavailable(format!("its answer was not read: {error}")))
        })
    }
}

#[async_trait]
impl Source for GatewaySource {
    /// Without the cluster key, which is not for workers.
    async fn installation(&self) -> Result<Installation> {
        let found: sidecar::Installation = self.repeat(&self.link.get(&["installation"], &())?).await?;
        Ok(Installation { id: found.id, cluster_key: String::new() })
    }

    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired> {
        let found: sidecar::Acquired =
            self.repeat(&self.link.post("acquire", &sidecar::Acquire { spec })?).await?;
        Ok(if found.yours { Acquired::Yes(found.worker) } else { Acquired::HeldBy(found.worker) })
    }

    async fn release_worker(&self, id: &WorkerId, fence: Fence) -> Result<()> {
        let ask = self.link.post("release", &sidecar::Release { worker: id.clone(), fence })?;
        self.link.repeat(&ask, PATIENCE).await.map(drop)
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        let body = json.as_bytes().to_vec().into();
        let path = ["object-info", &hash.to_string()];
        let ask = self.link.send_bytes(Method::PUT, &path, "application/json", body).waiting(OBJECT_INFO);
        self.link.repeat(&ask, PATIENCE).await.map(drop)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        let end = Instant::now() + request.wait;
        let mut backoff = Backoff::new(request.wait.min(PATIENCE));
        let mut body = sidecar::Claim {
            worker: request.worker,
            worker_fence: request.worker_fence,
            capabilities: request.capabilities,
            loaded: request.loaded,
            ahead: request.ahead,
            wait_ms: 0,
        };
        loop {
            let wait = end.saturating_duration_since(Instant::now()).min(sidecar::LONGEST_WAIT);
            body.wait_ms = sidecar::millis(wait);
            let ask = self.link.post("claim", &body)?.waiting(wait);
            match self.link.ask(&ask).await {
                Ok(nothing) if nothing.is_empty() => {
                    if Instant::now() >= end {
                        return Ok(None);
                    }
                    // A gateway that stops answers early; the next request should not be its last.
                    tokio::time::sleep(EARLY).await;
                }
                Ok(answer) => return Ok(Some(self.read::<sidecar::Claimed>(answer).await?.claim)),
                Err(Trouble::Unsent(why)) => {
                    if !backoff.pause().await {
                        return Err(SourceError::Unavailable(why));
                    }
                }
                // A task may have been claimed: to ask again at once could bring a second one.
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        let AdoptRequest { worker, worker_fence, known, .. } = request;
        let ask = self.link.post("adopt", &sidecar::Adopt { worker, worker_fence, known })?;
        Ok(self.repeat::<sidecar::Adopted>(&ask).await?.claims)
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        let ask = self.link.get(&["leases"], &sidecar::OfWorker { worker: worker.clone() })?;
        let found: sidecar::Leases = self.repeat(&ask).await?;
        Ok(found.leases)
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let wait = request.wait.min(sidecar::LONGEST_WAIT);
        let leases = request.leases.into_iter().map(finite).collect();
        let body = sidecar::Beat { leases, workers: request.workers, wait_ms: sidecar::millis(wait) };
        let ask = self.link.post("beat", &body)?.within(BEAT_ANSWER).waiting(wait);
        self.link.read(&self.link.repeat(&ask, BEAT_PATIENCE).await?)
    }

    async fn end(&self, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        self.outlet.flush().await;
        self.repeat(&self.link.post("end", &sidecar::End { lease, ending })?).await
    }

    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply> {
        self.repeat(&self.link.post("give-back", &sidecar::GiveBack { lease, learnt })?).await
    }

    async fn harmed(&self, lease: LeaseRef, harm: Harm) -> Result<Harmed> {
        self.repeat(&self.link.post("harm", &sidecar::Harm { lease, harm })?).await
    }

    async fn input(&self, lease: LeaseRef, placement: &Placement) -> Result<ByteStream> {
        let query = sidecar::InputQuery { fence: lease.fence, key: placement.key.clone() };
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
            sidecar::OutputQuery { fence: lease.fence, attempt, filename: file.filename, size: file.size };
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
            self.link.body(response).await
        };
        let answer = tokio::select! {
            answer = answer => answer?,
            () = standstill(&sent) => return Err(SourceError::Unavailable(self.link.silent(STANDSTILL))),
        };
        let delivered: sidecar::Delivered = self.link.read(&answer)?;
        let sent = sent.load(Ordering::Relaxed);
        if delivered.size != sent {
            return Err(SourceError::Unavailable(format!("{} of {sent} bytes arrived", delivered.size)));
        }
        Ok(Delivered { key: delivered.key, size: delivered.size, sha256: delivered.sha256 })
    }

    async fn discard(&self, lease: LeaseRef, attempt: AttemptNo) -> Result<()> {
        let query = sidecar::AttemptQuery { fence: lease.fence, attempt };
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
fn finite(beat: LeaseBeat) -> LeaseBeat {
    let progress = if beat.progress.is_finite() { beat.progress } else { 0.0 };
    LeaseBeat { progress, ..beat }
}
