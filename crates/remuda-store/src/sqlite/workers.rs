//! Who drives which worker.

use std::time::Duration;

use remuda_core::acquire::{Acquisition, Applicant, Holdings, KnownWorker, acquire, is_free};
use remuda_core::{Fence, OwnerId, Registration, Timestamp, Worker, WorkerId, WorkerSpec};
use rusqlite::params;

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::rows::{self, json_text, micros};
use super::state::Driver;
use crate::{Acquired, Error, Registrant};

impl Batch<'_> {
    /// Registers a worker and takes its lease, if it can be had. `by`: for a process elsewhere, with a key.
    pub(super) fn acquire_worker(
        &mut self,
        spec: &WorkerSpec,
        owner: OwnerId,
        by: Option<&Registrant>,
    ) -> Outcome<Acquired> {
        let known = self.worker(&spec.id)?;
        let registration = match &known {
            Some(_) => self.registration(&spec.id)?,
            None => Registration::Before,
        };
        let is_free = self.state.drivers.get(&spec.id).is_none_or(|driver| self.is_free(driver));
        let found = known.as_ref().map(|worker| KnownWorker { worker, registration: &registration, is_free });
        let applicant = Applicant { owner, key: by.map(|by| (by.key, &by.tenant)) };
        let (worker, demand) = match acquire(spec, &applicant, found, self.now, self.settings.policy()) {
            Acquisition::Granted { worker, demand } => (*worker, demand),
            Acquisition::Held => {
                let held = known.map(Acquired::HeldBy);
                return held.ok_or_else(|| corrupt("a worker", "somebody holds what is not there"));
            }
            Acquisition::Taken => return Err(Error::Taken { id: spec.id.to_string() }.into()),
        };
        if let Some(by) = by.filter(|_| !demand.is_none()) {
            let (workers, bytes) = (self.registered(by.key)?, self.registered_bytes(by.key, &spec.id)?);
            demand.admit(Holdings { workers, bytes }, by.allowance()).map_err(Error::from)?;
        }
        self.register(&spec.id, by.map(|by| by.key))?;
        self.drive(worker)
    }

    /// Gives a worker to the process in it.
    fn drive(&mut self, worker: Worker) -> Outcome<Acquired> {
        let sql = "INSERT INTO worker (id, spec, report, owner, fence, held, until, created_at, last_active_at) \
                   VALUES (?, ?, ?, ?, ?, TRUE, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET spec = excluded.spec, \
                   report = excluded.report, owner = excluded.owner, fence = excluded.fence, held = TRUE, \
                   until = excluded.until, last_active_at = excluded.last_active_at";
        let (spec_text, report) = (json_text(&worker.spec)?, json_text(&worker.report)?);
        self.db.prepare_cached(sql)?.execute(params![
            worker.spec.id.as_str(),
            spec_text,
            report,
            worker.owner.0.as_bytes(),
            worker.fence.0,
            micros(worker.until),
            micros(worker.created_at),
            micros(worker.last_active_at),
        ])?;
        let Worker { owner, fence, until, .. } = worker;
        self.state.drivers.insert(worker.spec.id.clone(), Driver { owner, fence, held: true, until });
        self.state.driven.insert(worker.spec.id.clone());
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
        let own = driver.owner == self.settings.owner();
        let until = if own { Timestamp::MAX } else { driver.until };
        is_free(driver.held, until, self.now, self.settings.settled(self.now))
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
