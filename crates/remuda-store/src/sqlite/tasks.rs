//! Submitting, cancelling and hastening tasks.

use remuda_core::admission::{self, Admission, Met, Refusal};
use remuda_core::quota::Usage;
use remuda_core::schedule::{TenantClock, UNKNOWN_COST_MS, learn_cost};
use remuda_core::{LaneId, NewTask, Task, TaskId, Tenant, transition};
use rusqlite::{OptionalExtension as _, params};

use super::batch::{Batch, Was};
use super::fault::{Outcome, corrupt};
use super::pieces::Laid;
use super::reads;
use super::rows::{Numbered, json_text, opt_json_text};
use super::state::Kept;
use crate::{Change, Error, Submitted};

impl Batch<'_> {
    /// Takes a task in. Everything that can be wrong with it is found before the first write.
    /// `bytes`: what it counts as. One that was taken in before and has ended comes without what it left.
    pub(super) fn submit(&mut self, new: &NewTask, laid: Option<&Laid>, bytes: i64) -> Outcome<Submitted> {
        let lane = new.input.requires.lane();
        // The same id is found when the row is written, and looked for only by those who would be refused.
        let admission = match self.admit(new, &lane, bytes, None)? {
            Err(_) => self.admit_known(new, &lane, bytes)?,
            admitted => admitted,
        };
        if let Admission::Before(id) = admission.map_err(Error::from)? {
            return Ok(Submitted::Before(self.made_before(id)?));
        }
        let head = self.state.lanes.front(self.db, &lane)?;
        let cost_ms = self.cost(new.shape)?.unwrap_or(UNKNOWN_COST_MS);
        let rank = self.clock(&new.tenant)?.value.clone().enter(head, new.priority, cost_ms);
        let (task, event) = transition::submit(new, self.now, rank, cost_ms);
        let placements =
            (!new.input.placements.is_empty()).then(|| json_text(&new.input.placements)).transpose()?;
        let (workflow, extra) = match laid {
            Some(_) => ("", None),
            None => (new.input.workflow.get(), opt_json_text(new.input.extra.as_ref())?),
        };

        let no = self.state.next_no;
        if !self.insert_task(no, &task, bytes)? {
            return match self.admit_known(new, &lane, bytes)?.map_err(Error::from)? {
                Admission::Before(id) => Ok(Submitted::Before(self.made_before(id)?)),
                Admission::New => Err(corrupt("a task", "it is there and is not")),
            };
        }
        self.state.next_no += 1;
        self.state.lanes.ensure(self.db, &lane, &new.input.requires)?;
        self.state.lanes.enter(&task.tenant, &lane);
        self.entered(&task);
        let kept = self.clock(&new.tenant)?;
        kept.value.enter(head, new.priority, cost_ms);
        kept.changed = true;
        let sql = "INSERT INTO input_row (no, lane, placements, workflow, extra, text, sealed) VALUES (?, ?, ?, ?, ?, ?, 1)";
        let text = laid.map(|laid| laid.text);
        self.db.prepare_cached(sql)?.execute((no, lane.as_str(), placements, workflow, extra, text))?;
        if let Some(envelope) = new.input.extra.as_ref().and_then(|extra| extra.envelope.as_ref()) {
            let sql = "INSERT INTO secret (no, sealed) VALUES (?, ?)";
            self.db.prepare_cached(sql)?.execute((no, envelope))?;
        }
        self.insert_errands(new)?;
        self.happened(no, &task, &event)?;
        self.changed(Change::of(&task));
        if let Some(idempotency) = &new.idempotency {
            let sql = "INSERT INTO idem (tenant, key, request, task) VALUES (?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute(params![
                new.tenant.as_str(),
                idempotency.key,
                idempotency.request.0,
                new.id.0.as_bytes(),
            ])?;
        }
        Ok(Submitted::New(task))
    }

    /// Whether a task is taken in. `by_id`: whose the task with its id is, if that is known.
    fn admit(
        &mut self,
        new: &NewTask,
        lane: &LaneId,
        bytes: i64,
        by_id: Option<&Tenant>,
    ) -> Outcome<Result<Admission, Refusal>> {
        let by_key = match &new.idempotency {
            Some(idempotency) => reads::submitted(self.db, &new.tenant, &idempotency.key)?,
            None => None,
        };
        let bounds = self.settings.bounds();
        let has = match bounds.quota.is_none() {
            true => Usage::default(),
            false => self.state.usage(self.db, &new.tenant)?,
        };
        let (lanes, in_lane) = self.state.lanes.of_tenant(&new.tenant, lane);
        Ok(admission::admit(new, bytes, &Met { by_key, by_id, has, lanes, in_lane }, &bounds))
    }

    /// The same, with what there is under its id.
    fn admit_known(
        &mut self,
        new: &NewTask,
        lane: &LaneId,
        bytes: i64,
    ) -> Outcome<Result<Admission, Refusal>> {
        let whose = reads::whose(self.db, new.id)?;
        self.admit(new, lane, bytes, whose.as_ref())
    }

    /// A task that a submission made before.
    fn made_before(&self, id: TaskId) -> Outcome<Task> {
        let found =
            self.load(id)?.ok_or_else(|| corrupt("a task", "its submission is known, and it is not"))?;
        Ok(found.task)
    }

    /// Whether a tenant may have this much more in the store.
    pub(super) fn may_have(&mut self, tenant: &Tenant, more: Usage) -> Outcome<Result<(), Error>> {
        let quota = self.settings.quota();
        if quota.is_none() {
            return Ok(Ok(()));
        }
        Ok(quota.admit(self.state.usage(self.db, tenant)?, more).map_err(Error::from))
    }

    fn clock(&mut self, tenant: &Tenant) -> Outcome<&mut Kept<TenantClock>> {
        if !self.state.tenants.contains_key(tenant) {
            let sql = "SELECT weight, vfinish FROM tenant WHERE tenant = ?";
            let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
            let found = self.db.prepare_cached(sql)?.query_row((tenant.as_str(),), read).optional()?;
            let value = match found {
                Some((weight, text)) => {
                    let vfinish = serde_json::from_str(&text).map_err(|error| corrupt("a tenant", error))?;
                    TenantClock { vfinish, weight }
                }
                None => TenantClock::default(),
            };
            self.state.tenants.insert(tenant.clone(), Kept { value, changed: false });
        }
        self.state.tenants.get_mut(tenant).ok_or_else(|| corrupt("a tenant", "it was forgotten"))
    }

    /// What tasks of this shape were found to cost.
    fn cost(&mut self, shape: i64) -> Outcome<Option<i64>> {
        if let Some(kept) = self.state.shapes.get(&shape) {
            return Ok(kept.value);
        }
        let sql = "SELECT cost_ms FROM shape WHERE shape = ?";
        let value = self.db.prepare_cached(sql)?.query_row((shape,), |row| row.get(0)).optional()?;
        self.state.shapes.insert(shape, Kept { value, changed: false });
        Ok(value)
    }

    /// Another measurement of it.
    pub(super) fn learn(&mut self, shape: i64, measured_ms: i64) -> Outcome<()> {
        let value = Some(learn_cost(self.cost(shape)?, measured_ms));
        self.state.shapes.insert(shape, Kept { value, changed: true });
        Ok(())
    }

    /// Asks for the end of a task.
    pub(super) fn cancel(&mut self, id: TaskId) -> Outcome<Task> {
        let Numbered { no, mut task } = self.found(id)?;
        let was = Was::from(&task);
        match transition::cancel(&mut task, self.now) {
            Err(not_possible) => Err(Error::Finished(not_possible.0).into()),
            Ok(None) => Ok(task),
            Ok(Some(event)) => {
                self.save(no, &was, &task, &event)?;
                if let Some(held) = self.state.running.get_mut(&id) {
                    held.task = task.clone();
                    self.effects.news = true;
                }
                Ok(task)
            }
        }
    }

    /// Lets a waiting task run as soon as possible.
    pub(super) fn hasten(&mut self, id: TaskId) -> Outcome<Task> {
        let Numbered { mut task, .. } = self.found(id)?;
        if task.status.is_terminal() {
            return Err(Error::Finished(task.status).into());
        }
        let was = Was::from(&task);
        if transition::release(&mut task, self.now) {
            self.update_task(&was, &task)?;
            self.changed(Change::of(&task));
        }
        Ok(task)
    }

    /// A task that must be there.
    pub(super) fn found(&self, id: TaskId) -> Outcome<Numbered> {
        let missing = || Error::NotFound { what: "task", id: id.to_string() };
        Ok(self.load(id)?.ok_or_else(missing)?)
    }
}
