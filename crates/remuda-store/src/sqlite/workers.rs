//! Who drives which worker.

use std::time::Duration;

use remuda_core::{
    Fence, Health, OwnerId, Registration, Timestamp, Worker, WorkerId, WorkerReport, WorkerSpec,
};
use rusqlite::params;

use super::batch::Batch;
use super::fault::Outcome;
use super::rows::{self, json_text, micros};
use super::state::Driver;
use crate::{Acquired, Error, Registrant};

impl Batch<'_> {
    /// Registers a worker and takes its lease, if it can be had.
    pub(super) fn acquire_worker(&mut self, spec: &WorkerSpec, owner: OwnerId) -> Outcome<Acquired> {
        let known = self.worker(&spec.id)?;
        // A name that the installation uses is its own: a process elsewhere that took it before has to give way.
        let own = matches!(self.registration(&spec.id)?, Registration::Before | Registration::Here);
        if let Some(worker) = known.as_ref().filter(|_| own && !self.is_free_for(&spec.id, owner)) {
            return Ok(Acquired::HeldBy(worker.clone()));
        }
        self.register(&spec.id, None)?;
        self.drive(spec, owner, known)
    }

    /// The same for a process elsewhere, with a key.
    pub(super) fn register_worker(
        &mut self,
        spec: &WorkerSpec,
        owner: OwnerId,
        by: &Registrant,
    ) -> Outcome<Acquired> {
        let known = self.worker(&spec.id)?;
        let registration = match &known {
            Some(_) => self.registration(&spec.id)?,
            None => Registration::Before,
        };
        if !registration.admits(by.key, &by.tenant) {
            return Err(Error::Taken { id: spec.id.to_string() }.into());
        }
        if let Some(worker) = known.as_ref().filter(|_| !self.is_free_for(&spec.id, owner)) {
            return Ok(Acquired::HeldBy(worker.clone()));
        }
        let own = matches!(registration, Registration::Key { id, .. } if id == by.key);
        if !own && self.registered(by.key)? >= i64::from(by.most) {
            return Err(Error::TooMany { what: "workers" }.into());
        }
        // A worker that it has may come again as it was.
        let grows = known.as_ref().is_none_or(|known| spec.bytes() > known.spec.bytes());
        if (!own || grows) && self.registered_bytes(by.key, &spec.id)? + spec.bytes() as u64 > by.bytes {
            return Err(Error::TooMany { what: Registrant::LABELS }.into());
        }
        self.register(&spec.id, Some(by.key))?;
        self.drive(spec, owner, known)
    }

    fn is_free_for(&self, id: &WorkerId, owner: OwnerId) -> bool {
        let driver = self.state.drivers.get(id);
        driver.is_none_or(|driver| driver.owner == owner || self.is_free(driver))
    }

    /// Gives a worker to a process that may have it.
    fn drive(&mut self, spec: &WorkerSpec, owner: OwnerId, known: Option<Worker>) -> Outcome<Acquired> {
        let until = self.after(self.settings.policy().lease);
        let worker = match known {
            Some(known) => Worker {
                spec: spec.clone(),
                report: WorkerReport {
                    health: Health::Starting,
                    object_info: known.report.object_info,
                    identity: known.report.identity,
                    ..WorkerReport::default()
                },
                owner,
                fence: known.fence.next(),
                until,
                created_at: known.created_at,
                last_active_at: self.now,
            },
            None => Worker {
                spec: spec.clone(),
                report: WorkerReport::default(),
                owner,
                fence: Fence(1),
                until,
                created_at: self.now,
                last_active_at: self.now,
            },
        };
        let sql = "INSERT INTO worker (id, spec, report, owner, fence, held, until, created_at, last_active_at) \
                   VALUES (?, ?, ?, ?, ?, TRUE, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET spec = excluded.spec, \
                   report = excluded.report, owner = excluded.owner, fence = excluded.fence, held = TRUE, \
                   until = excluded.until, last_active_at = excluded.last_active_at";
        let (spec_text, report) = (json_text(&worker.spec)?, json_text(&worker.report)?);
        self.db.prepare_cached(sql)?.execute(params![
            spec.id.as_str(),
            spec_text,
            report,
            owner.0.as_bytes(),
            worker.fence.0,
            micros(until),
            micros(worker.created_at),
            micros(worker.last_active_at),
        ])?;
        let driver = Driver { owner, fence: worker.fence, held: true, until };
        self.state.drivers.insert(spec.id.clone(), driver);
        self.state.driven.insert(spec.id.clone());
        self.effects.drivers = true;
        Ok(Acquired::Yes(worker))
    }

    /// Lets go of a worker.
    pub(super) fn release_worker(&mut self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Outcome<()> {
        let driver = self.state.drivers.get_mut(id);
        let driver = driver.filter(|driver| driver.held && driver.fence == fence && driver.owner == owner);
        let Some(driver) = driver else {
            return Err(Error::Fenced.into());
        };
        driver.held = false;
        driver.until = self.now;
        let sql = "UPDATE worker SET held = FALSE, until = ? WHERE id = ?";
        self.db.prepare_cached(sql)?.execute((micros(self.now), id.as_str()))?;
        self.effects.drivers = true;
        Ok(())
    }

    /// Forgets a worker that nobody holds.
    pub(super) fn forget_worker(&mut self, id: &WorkerId) -> Outcome<()> {
        let Some(driver) = self.state.drivers.get(id) else {
            return Err(Error::NotFound { what: "worker", id: id.to_string() }.into());
        };
        if !self.is_free(driver) {
            return Err(Error::Fenced.into());
        }
        for sql in ["DELETE FROM worker WHERE id = ?", "DELETE FROM registration WHERE worker = ?"] {
            self.db.prepare_cached(sql)?.execute((id.as_str(),))?;
        }
        self.state.drivers.remove(id);
        self.state.driven.remove(id);
        self.effects.drivers = true;
        Ok(())
    }

    /// Nobody holds it, or its holder does not report any more. This process holds the file, so it does.
    fn is_free(&self, driver: &Driver) -> bool {
        let ran_out = driver.owner != self.settings.owner() && driver.until < self.now;
        !driver.held || (ran_out && self.settings.settled(self.now))
    }

    fn worker(&self, id: &WorkerId) -> Outcome<Option<Worker>> {
        let sql =
            "SELECT spec, report, owner, fence, until, created_at, last_active_at FROM worker WHERE id = ?";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((id.as_str(),))?;
        found.next()?.map(rows::worker).transpose()
    }

    /// A moment from now.
    pub(super) fn after(&self, delay: Duration) -> Timestamp {
        self.now.checked_add(delay).unwrap_or(Timestamp::MAX)
    }
}
