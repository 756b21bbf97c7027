//! Who drives which worker.

use std::time::Duration;

use remuda_core::{Fence, Health, OwnerId, Timestamp, Worker, WorkerId, WorkerReport, WorkerSpec};
use rusqlite::params;

use super::batch::Batch;
use super::fault::Outcome;
use super::rows::{self, json_text, micros};
use super::state::Driver;
use crate::{Acquired, Error};

impl Batch<'_> {
    /// Registers a worker and takes its lease, if it can be had.
    pub(super) fn acquire_worker(&mut self, spec: &WorkerSpec, owner: OwnerId) -> Outcome<Acquired> {
        let known = self.worker(&spec.id)?;
        let driver = self.state.drivers.get(&spec.id);
        let free = driver.is_none_or(|driver| driver.owner == owner || self.is_free(driver));
        if let (Some(worker), false) = (&known, free) {
            return Ok(Acquired::HeldBy(worker.clone()));
        }
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
        self.db.prepare_cached("DELETE FROM worker WHERE id = ?")?.execute((id.as_str(),))?;
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
