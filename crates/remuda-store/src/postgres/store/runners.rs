//! What those do who run tasks: claims, leases, ends.

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Claim, Fence, Harm, Harmed, Installation, Lease, LeaseRef, OwnerId, Requirements, TaskId, WorkerId,
};

use super::super::queue::{Answer, Work};
use super::PostgresStore;
use crate::{AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, Error, Result, RunnerStore};

#[async_trait]
impl RunnerStore for PostgresStore {
    async fn installation(&self) -> Result<Installation> {
        self.inner.open()?;
        Ok(self.inner.installation.clone())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        self.inner.claim(request).await
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        self.inner.open()?;
        self.inner.beat(request).await
    }

    async fn end(&self, owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        self.ended(lease, Work::End(owner, lease, Box::new(ending))).await
    }

    async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> Result<EndReply> {
        self.inner.beats.give_back(lease);
        self.ended(lease, Work::GiveBack(owner, lease, learnt)).await
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        self.inner.open()?;
        self.inner.adopt(&request).await
    }

    async fn note_harm(&self, task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed> {
        self.inner.open()?;
        self.inner.note_harm(task, holder, harm).await
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        self.inner.open()?;
        self.inner.leases(worker).await
    }

    async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>> {
        self.inner.open()?;
        self.inner.leases_for(owner, worker).await
    }
}

impl PostgresStore {
    async fn ended(&self, lease: LeaseRef, work: Work) -> Result<EndReply> {
        let answer = self.inner.write(work).await?;
        self.inner.beats.forget(lease);
        match answer {
            Answer::Ended(reply) => Ok(reply),
            Answer::Submitted(_) => Err(Error::Corrupt("an end was answered as a submission".to_owned())),
        }
    }
}
