//! What those do who run tasks: claims, leases, ends.

use std::sync::Arc;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Claim, Fence, Harm, Harmed, Installation, Lease, LeaseRef, OwnerId, Requirements, TaskId, WorkerId,
};
use tokio::sync::oneshot;

use super::super::beats::Beat;
use super::super::claims::Waiting;
use super::super::command::Command;
use super::super::{pieces, reads};
use super::SqliteStore;
use crate::{AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, Result, RunnerStore, turns};

#[async_trait]
impl RunnerStore for SqliteStore {
    async fn installation(&self) -> Result<Installation> {
        Ok(self.installation.clone())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        let (reply, answer) = oneshot::channel();
        let (id, wait) = (self.next_id(), request.wait);
        self.send(Command::Claim(Waiting::new(id, request, reply))).await?;
        let ticket = self.patiently(answer, wait, Command::ClaimOver(id)).await?;
        match ticket {
            Some(ticket) => ticket.accept(&self.readers, self.settings.secrets()).await.map(Some),
            None => Ok(None),
        }
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let (reply, answer) = oneshot::channel();
        let (id, wait) = (self.next_id(), request.wait);
        let beat = Beat { id, request, lost: Vec::new(), lost_workers: Vec::new(), reply };
        self.send(Command::Beat(beat)).await?;
        self.patiently(answer, wait, Command::BeatOver(id)).await
    }

    async fn end(&self, owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        let size = ending.result().map_or(0, turns::size_of_result);
        let ending = Arc::new(ending);
        let (laid, turn) = match size > pieces::PIECE {
            true => (Some(self.lay_down_result(lease.task, &ending).await?), None),
            false if size > turns::SHORT => {
                (None, self.turns.take(self.party(lease.task).await?, size).await?)
            }
            false => (None, None),
        };
        self.write(move |batch| {
            let _in_line = &turn;
            batch.end(owner, lease, (*ending).clone(), laid.as_deref())
        })
        .await
    }

    async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> Result<EndReply> {
        self.write(move |batch| batch.give_back(owner, lease, learnt.as_ref())).await
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        let mut adopted = Vec::new();
        for mut claim in self.write(move |batch| batch.adopt(&request)).await? {
            let input = claim.read(&self.readers, self.settings.secrets()).await?;
            adopted.push(claim.with(input));
        }
        Ok(adopted)
    }

    async fn note_harm(&self, task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed> {
        self.write(move |batch| batch.note_harm(task, holder, &harm)).await
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        let worker = worker.clone();
        self.read(move |db| reads::leases(db, &worker)).await
    }

    async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>> {
        let worker = worker.clone();
        self.read(move |db| reads::leases_for(db, owner, &worker)).await
    }
}
