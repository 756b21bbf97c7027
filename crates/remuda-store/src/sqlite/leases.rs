//! The end of attempts, and who takes them over.

use std::collections::HashSet;
use std::collections::hash_map::Entry;

use remuda_core::transition::{self, Ending};
use remuda_core::{LeaseRef, OwnerId, Requirements, Standing};
use rusqlite::OptionalExtension as _;

use super::batch::{Batch, Was};
use super::claims::RawClaim;
use super::fault::Outcome;
use super::pieces::Laid;
use super::reads;
use super::rows::{Numbered, micros};
use super::state::{Driver, Held};
use crate::requests::Armful;
use crate::{AdoptRequest, EndReply, Error};

impl Batch<'_> {
    /// An attempt ended, as its holder says.
    pub(super) fn end(
        &mut self,
        owner: OwnerId,
        lease: LeaseRef,
        ending: Ending,
        laid: Option<&Laid>,
    ) -> Outcome<EndReply> {
        let mut held = match self.take(owner, lease)? {
            Ok(held) => held,
            Err(found) => {
                let discarded = ending.result().is_some() && !self.left_result(found.no)?;
                return Ok(EndReply::again(found.task.status, discarded));
            }
        };
        let was = Was::from(&held.task);
        let ended =
            transition::end(&mut held.task, self.now, self.settings.policy(), ending, rand::random::<f64>());
        if let Some(gpu_ms) = ended.gpu_ms {
            self.learn(held.task.shape, gpu_ms)?;
        }
        let status = held.task.status;
        self.insert_result(held.no, &held.task, laid)?;
        self.close(held, &was, &ended)?;
        Ok(EndReply { status, discarded: ended.discarded, repeated: false })
    }

    /// A task goes back before ComfyUI began.
    pub(super) fn give_back(
        &mut self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<&Requirements>,
    ) -> Outcome<EndReply> {
        let mut held = match self.take(owner, lease)? {
            Ok(held) => held,
            Err(found) => return Ok(EndReply::again(found.task.status, false)),
        };
        let was = Was::from(&held.task);
        let requires = learnt.map(|learnt| {
            // The lane of a task that has not ended is known.
            let known = self.state.lanes.get(&held.task.lane).map(|lane| (*lane.requires).clone());
            known.unwrap_or_default().and(learnt)
        });
        let ended = transition::give_back(&mut held.task, self.now, requires.as_ref());
        if let Some(requires) = &requires {
            self.state.lanes.ensure(self.db, &held.task.lane, requires)?;
        }
        let status = held.task.status;
        self.close(held, &was, &ended)?;
        Ok(EndReply { status, discarded: ended.discarded, repeated: false })
    }

    /// The task behind a lease that its caller still has, to be closed; or the task as a report of the same owner that came
    /// before left it.
    fn take(&mut self, owner: OwnerId, lease: LeaseRef) -> Outcome<Result<Held, Numbered>> {
        if let Entry::Occupied(held) = self.state.running.entry(lease.task) {
            let holder = held.get().lease.owner;
            return match Standing::of(&held.get().task, Some(holder), owner, lease) {
                Standing::Holds => Ok(Ok(held.remove())),
                Standing::Held | Standing::Fenced => Err(Error::Fenced.into()),
            };
        }
        let Some(found) = self.load_row(lease.task)? else { return Err(Error::Fenced.into()) };
        match Standing::of(&found.task, self.had(&found)?, owner, lease) {
            Standing::Held => Ok(Err(found)),
            Standing::Holds | Standing::Fenced => Err(Error::Fenced.into()),
        }
    }

    /// Whose the last attempt of a task was that does not run.
    fn had(&self, found: &Numbered) -> Outcome<Option<OwnerId>> {
        let sql = "SELECT owner FROM attempt WHERE no = ? AND n = ?";
        let owner = |row: &rusqlite::Row<'_>| Ok(OwnerId(uuid::Uuid::from_bytes(row.get(0)?)));
        Ok(self.db.prepare_cached(sql)?.query_row((found.no, found.task.attempt), owner).optional()?)
    }

    /// Whether a task left a result.
    fn left_result(&self, no: i64) -> Outcome<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM result_row WHERE no = ?)";
        Ok(self.db.prepare_cached(sql)?.query_row((no,), |row| row.get(0))?)
    }

    /// Takes over what runs on a worker.
    pub(super) fn adopt(&mut self, request: &AdoptRequest) -> Outcome<Vec<RawClaim>> {
        self.check_driver(&request.worker, request.owner, request.worker_fence)?;
        let settled = self.settings.settled(self.now);
        let known: HashSet<LeaseRef> = request.known.iter().copied().collect();
        let takes = |held: &Held| {
            let lease = &held.lease;
            let known = known.contains(&lease.reference());
            lease.is_for(request.owner, &request.worker, known, settled && self.ran_out(held))
        };
        let taken = self.state.running.values().filter(|held| takes(held));
        let mut taken: Vec<_> = taken.map(|held| (held.started_at, held.task.id, held.no)).collect();
        taken.sort_unstable();
        let (mut claims, mut armful) = (Vec::new(), Armful::default());
        for (_, id, no) in taken {
            // The rest stays as it is: the caller asks until nothing more comes.
            if !armful.takes(reads::numbered_size(self.db, no)?.unwrap_or(0)) {
                break;
            }
            let Some(mut held) = self.state.running.get(&id).cloned() else { continue };
            let input = self.input(held.no)?;
            let before = held.lease.reference();
            let foreign = held.lease.owner != request.owner;
            let was = Was::from(&held.task);
            let policy = self.settings.policy();
            let gateway = request.gateway.clone();
            let event =
                transition::adopt(&mut held.task, &mut held.lease, self.now, policy, request.owner, gateway);
            self.update_lease(held.no, &held.lease)?;
            self.save(held.no, &was, &held.task, &event)?;
            self.state.inherited.remove(&before);
            if foreign {
                self.effects.lost.push(before);
            }
            claims.push(RawClaim::adopted(held.task.clone(), input, held.lease.clone()));
            self.state.running.insert(held.task.id, held);
        }
        Ok(claims)
    }

    /// Whatever the others hold runs out as if it had just been renewed: after a start, or when the clock was set.
    pub(super) fn renew_others(&mut self) -> Outcome<()> {
        let until = self.after(self.settings.policy().lease);
        let owner = self.settings.owner();
        for sql in
            ["UPDATE lease SET until = ? WHERE owner <> ?", "UPDATE worker SET until = ? WHERE owner <> ?"]
        {
            self.db.prepare_cached(sql)?.execute((micros(until), owner.0.as_bytes()))?;
        }
        for held in self.state.running.values_mut().filter(|held| held.lease.owner != owner) {
            held.lease.until = until;
        }
        for driver in self.state.drivers.values_mut().filter(|driver| driver.owner != owner) {
            driver.until = until;
        }
        Ok(())
    }

    /// Whether others may take it. What this process holds does not run out while it holds the file, but what
    /// it left behind before it was started, and does not take up again, does.
    pub(super) fn ran_out(&self, held: &Held) -> bool {
        if held.lease.owner == self.settings.owner() {
            return self.state.inherited.contains(&held.lease.reference());
        }
        held.lease.until < self.now
    }

    /// Nobody renewed these leases and nobody adopted them.
    pub(super) fn lose(&mut self) -> Outcome<Vec<remuda_core::TaskId>> {
        let adoption = self.settings.policy().adoption;
        // Nothing could be adopted before it was settled, so from then on there is time for that.
        if !self.settings.settled_for(self.now, adoption) {
            return Ok(Vec::new());
        }
        let late = |held: &&Held| {
            let worker = &held.lease.worker;
            if held.lease.owner == self.settings.owner() {
                // Of workers that nobody drives any more. On the others the task is still looked for.
                return self.ran_out(held) && !self.state.driven.contains(worker);
            }
            let driver = self.state.drivers.get(worker).filter(|driver| driver.held);
            // What this process drives is its own while it holds the file.
            let own =
                |driver: &Driver| driver.owner == self.settings.owner() && self.state.driven.contains(worker);
            let driven = driver.map(|driver| if own(driver) { self.now } else { driver.until });
            self.settings.policy().is_lost(held.lease.until, driven, self.now)
        };
        let late: Vec<(OwnerId, LeaseRef)> = self
            .state
            .running
            .values()
            .filter(late)
            .map(|held| (held.lease.owner, held.lease.reference()))
            .collect();
        let mut lost = Vec::with_capacity(late.len());
        for (owner, lease) in late {
            let Ok(mut held) = self.take(owner, lease)? else { continue };
            let was = Was::from(&held.task);
            let ended = transition::lose(&mut held.task, self.now, self.settings.policy());
            lost.push(held.task.id);
            self.effects.lost.push(held.lease.reference());
            self.close(held, &was, &ended)?;
        }
        Ok(lost)
    }
}
