//! The source is away, slow, or does what it was asked and does not say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    AttemptNo, Claim, Fence, Installation, Lease, LeaseRef, OwnerId, Placement, Requirements, Sha256, Status,
    WorkerId, WorkerSpec,
};
use remuda_frames::Frame;
use remuda_runner::Herd;
use remuda_runner::source::{ByteStream, Delivered, NewFile, Result, Source, SourceError};
use remuda_store::{
    Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, Clock, EndReply, ManualClock,
};

use remuda_testbed::postgres::{self, Cluster};

use super::rig::*;

/// How a source misbehaves.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(u8)]
enum Mood {
    Well,
    /// Every request fails, nothing is done.
    Away,
    /// Every request is done, and its answer lost.
    Forgetful,
    /// Nothing is answered.
    Silent,
}

/// A source with moods.
#[derive(Debug)]
struct Moody {
    inner: Arc<dyn Source>,
    mood: AtomicU8,
    /// Every so manyth write is done and its answer lost, whatever the mood.
    forgets: u64,
    calls: AtomicU64,
}

impl Moody {
    fn new(inner: Arc<dyn Source>, forgets: u64) -> Arc<Self> {
        Arc::new(Self { inner, mood: AtomicU8::new(Mood::Well as u8), forgets, calls: AtomicU64::new(0) })
    }

    fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    fn mood(&self) -> Mood {
        [Mood::Well, Mood::Away, Mood::Forgetful, Mood::Silent][usize::from(self.mood.load(Ordering::SeqCst))]
    }

    async fn through<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let lost = || Err(SourceError::Unavailable("the answer was lost".into()));
        match self.mood() {
            Mood::Away => return Err(SourceError::Unavailable("away".into())),
            Mood::Silent => std::future::pending().await,
            Mood::Well | Mood::Forgetful => {}
        }
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = request.await;
        match self.mood() {
            Mood::Well if self.forgets > 0 && call.is_multiple_of(self.forgets) => lost(),
            Mood::Well => answer,
            Mood::Silent => std::future::pending().await,
            Mood::Away | Mood::Forgetful => lost(),
        }
    }
}

#[async_trait]
impl Source for Moody {
    async fn installation(&self) -> Result<Installation> {
        self.through(self.inner.installation()).await
    }
    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired> {
        self.through(self.inner.acquire_worker(spec)).await
    }
    async fn release_worker(&self, id: &WorkerId, fence: Fence) -> Result<()> {
        self.through(self.inner.release_worker(id, fence)).await
    }
    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        self.through(self.inner.save_object_info(hash, json)).await
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        self.through(self.inner.claim(request)).await
    }
    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        self.through(self.inner.adopt(request)).await
    }
    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        self.through(self.inner.leases(worker)).await
    }
    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        self.through(self.inner.beat(request)).await
    }
    async fn end(&self, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        self.through(self.inner.end(lease, ending)).await
    }
    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply> {
        self.through(self.inner.give_back(lease, learnt)).await
    }
    async fn input(&self, lease: LeaseRef, placement: &Placement) -> Result<ByteStream> {
        self.through(self.inner.input(lease, placement)).await
    }
    async fn deliver(
        &self,
        lease: LeaseRef,
        attempt: AttemptNo,
        file: NewFile,
        bytes: ByteStream,
    ) -> Result<Delivered> {
        self.through(self.inner.deliver(lease, attempt, file, bytes)).await
    }
    async fn discard(&self, lease: LeaseRef, attempt: AttemptNo) -> Result<()> {
        self.through(self.inner.discard(lease, attempt)).await
    }
    fn frame(&self, frame: Frame) {
        self.inner.frame(frame);
    }
}

/// How long a process believes in its leases without a beat.
const STALE: Duration = Duration::from_secs(4);

fn herd(rig: &Rig, owner: OwnerId, sim: &comfyui_sim::Simulator, forgets: u64) -> (Herd, Arc<Moody>) {
    let source = Moody::new(rig.source(owner), forgets);
    let mut options = options(owner);
    options.timing.stale = STALE;
    // How long a silent source is waited for.
    options.timing.source = Duration::from_secs(5);
    options.timing.transfer = Duration::from_secs(5);
    let herd = Herd::start(source.clone(), options);
    herd.add(worker(sim));
    (herd, source)
}

#[tokio::test]
async fn a_render_goes_on_while_the_source_is_away_and_is_reported_after() {
    for mood in [Mood::Away, Mood::Silent, Mood::Forgetful] {
        let (rig, sim) = (Rig::new().await, sim().await);
        let (herd, source) = herd(&rig, rig.owner, &sim, 0);
        let ids = [rig.submit(&long(1.0)).await, rig.submit(&picture()).await];
        rig.rendering(&sim, 1).await;
        source.set(mood);
        let client = comfyui::Client::new(&sim.url()).unwrap();
        until("ComfyUI to be done", async || client.queue_remaining().await.unwrap() == 0).await;
        tokio::time::sleep(STALE + Duration::from_secs(1)).await;
        let later = rig.submit(&picture()).await;
        source.set(Mood::Well);
        for id in ids.into_iter().chain([later]) {
            let task = rig.completed(id).await;
            assert_eq!((task.attempt, task.losses), (1, 0), "{mood:?}");
        }
        assert_eq!(sim.stats().executions_total, 3, "{mood:?}");
        herd.stop(BOUND).await;
        sim.shutdown().await;
    }
}

#[tokio::test]
async fn answers_that_are_lost_at_random_lose_and_double_nothing() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let (herd, _source) = herd(&rig, rig.owner, &sim, 3);
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(rig.submit(&picture()).await);
    }
    for id in ids {
        let task = rig.completed(id).await;
        assert_eq!((task.losses, task.failures), (0, 0));
    }
    assert_eq!(sim.stats().executions_total, 12);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_lost_lease_is_left_alone() {
    let clock = Arc::new(ManualClock::default());
    let given: Arc<dyn Clock> = clock.clone();
    let rig = Rig::with(|options| options.clock = Some(given)).await;
    let sim = sim().await;
    // Neither is the process that has the store open: their leases run out.
    let (first, second) = (OwnerId(uuid::Uuid::new_v4()), OwnerId(uuid::Uuid::new_v4()));
    let (herd, source) = herd(&rig, first, &sim, 0);
    let held = hold(&sim);
    let id = rig.submit(&picture()).await;
    rig.rendering(&sim, 1).await;
    // As if this process were frozen, and another one took worker and task over meanwhile.
    source.set(Mood::Silent);
    clock.advance(Duration::from_secs(31));
    let other = rig.herd_of(second, &[&sim]);
    until("the other to adopt it", async || other.status().counters.adoptions == 1).await;
    source.set(Mood::Well);
    until("the first to know", async || herd.status().counters.leases_lost > 0).await;
    held.release();
    let task = rig.completed(id).await;
    assert_eq!((task.status, sim.stats().executions_total), (Status::Completed, 1));
    herd.stop(BOUND).await;
    other.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_database_that_is_away_for_longer_than_the_leases_costs_no_render() {
    let mut cluster = Cluster::start(postgres::Options { durable: true, ..postgres::Options::default() })
        .await
        .expect("a cluster");
    let url = cluster.database().await.expect("a database");
    let rig = Rig::on_postgres(&url, |options| {
        options.policy.lease = Duration::from_secs(8);
        options.policy.adoption = Duration::from_secs(4);
        options.settle = Duration::from_secs(15);
    })
    .await;
    let sims = [sim().await, sim().await];
    let mut herds = Vec::new();
    for owner in rig.owners() {
        let mut options = options(owner);
        options.timing.stale = Duration::from_secs(5);
        // A question to a database that is gone is not waited for.
        options.timing.source = Duration::from_secs(5);
        let herd = Herd::start(rig.source(owner), options);
        // Each drives one, and would take over the other's.
        sims.iter().for_each(|sim| assert!(herd.add(worker(sim))));
        herds.push(herd);
    }
    let mut ids = vec![rig.submit(&long(16.0)).await, rig.submit(&long(16.0)).await];
    for sim in &sims {
        rig.rendering(sim, 1).await;
    }
    ids.push(rig.submit(&picture()).await);
    ids.push(rig.submit(&long(2.0)).await);
    cluster.stop_for(Duration::from_secs(13)).await.expect("stopped and started");
    for id in ids {
        let task = rig.completed(id).await;
        assert_eq!((task.losses, task.failures), (0, 0), "{:?}", rig.store.attempts(id, 1000).await);
    }
    let runs: u64 = sims.iter().map(|sim| sim.stats().executions_total).sum();
    assert_eq!(runs, 4);
    for herd in herds {
        herd.stop(BOUND).await;
    }
    for sim in sims {
        sim.shutdown().await;
    }
}
