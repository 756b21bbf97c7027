//! The statements that write, one for each table, each for any number of rows.

use postgres_types::{Json, Type};
use remuda_core::{Attempt, Lease, Task, TaskEvent, TaskInput};

use super::columns::{Columns, each};
use super::save::Save;

/// A statement with its parameters.
pub(super) type Statement<'a> = (&'static str, Columns<'a>);

const SELECT_INPUTS: &str = "SELECT task, workflow, placements, requires FROM remuda.task_input \
    WHERE task = ANY($1)";

/// Whether a statement is the one that reads inputs.
pub(super) fn is_inputs(statement: Option<&Statement<'_>>) -> bool {
    statement.is_some_and(|(text, _)| *text == SELECT_INPUTS)
}

/// Everything that there is to write, in the order in which tables are locked.
pub(super) fn statements(save: &Save, shard: i16) -> Vec<Statement<'_>> {
    let mut all = Vec::new();
    if !save.new_tenants.is_empty() {
        all.push(new_tenants(save));
    }
    if !save.new_lanes.is_empty() {
        all.push(new_lanes(save));
    }
    if !save.new_tasks.is_empty() {
        let tasks: Vec<&Task> = save.new_tasks.values().map(|(task, _)| task).collect();
        all.push(insert_tasks(&tasks));
        all.push(insert_inputs(save.new_tasks.values()));
    }
    if !save.idems.is_empty() {
        all.push(insert_idems(save));
    }
    if !save.tasks.is_empty() {
        let tasks: Vec<&Task> = save.tasks.values().collect();
        all.push(update_tasks(&tasks));
    }
    if !save.gone_leases.is_empty() {
        all.push(delete_leases(save));
    }
    if !save.new_leases.is_empty() {
        all.push(insert_leases(&save.new_leases));
    }
    if !save.adopted.is_empty() {
        all.push(update_leases(&save.adopted));
    }
    if !save.wanted.is_empty() {
        all.push(want_leases(save));
    }
    if !save.new_attempts.is_empty() {
        all.push(insert_attempts(&save.new_attempts));
    }
    if !save.closed.is_empty() {
        all.push(close_attempts(save));
    }
    if !save.owners.is_empty() {
        all.push(hand_over_attempts(save));
    }
    if !save.events.is_empty() {
        all.push(insert_events(&save.events));
    }
    if !save.sweeps.is_empty() {
        all.push(insert_sweeps(save));
    }
    if !save.inputs.is_empty() {
        let ids = each(&save.inputs, |id| id.0);
        all.push((SELECT_INPUTS, Columns::default().with(Type::UUID_ARRAY, ids)));
    }
    if !save.counts.is_empty() {
        all.push(count(save, shard));
    }
    all
}

fn new_lanes(save: &Save) -> Statement<'_> {
    let lanes = || save.new_lanes.values();
    let columns = Columns::default()
        .with(Type::TEXT_ARRAY, each(lanes(), |lane| lane.id.as_str()))
        .with(Type::JSON_ARRAY, each(lanes(), |lane| Json(&lane.requires)));
    (
        "INSERT INTO remuda.lane (id, requires, v) SELECT u.id, u.requires, 0 FROM unnest($1, $2) AS u(id, requires) \
         ON CONFLICT (id) DO NOTHING",
        columns,
    )
}

fn insert_tasks<'a>(tasks: &[&'a Task]) -> Statement<'a> {
    let each =
        |value: fn(&'a Task) -> &'a str| -> Vec<&'a str> { tasks.iter().map(|task| value(task)).collect() };
    macro_rules! column {
        ($value:expr) => {
            tasks.iter().map($value).collect::<Vec<_>>()
        };
    }
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, column!(|t| t.id.0))
        .with(Type::TEXT_ARRAY, each(|t| t.tenant.as_str()))
        .with(Type::TEXT_ARRAY, column!(|t| t.workflow_id.as_deref()))
        .with(Type::INT2_ARRAY, column!(|t| i16::from(t.priority.get())))
        .with(Type::TEXT_ARRAY, each(|t| t.status.as_str()))
        .with(Type::TEXT_ARRAY, column!(|t| t.reason.map(remuda_core::PendingReason::as_str)))
        .with(Type::TEXT_ARRAY, each(|t| t.lane.as_str()))
        .with(Type::INT8_ARRAY, column!(|t| t.affinity))
        .with(Type::INT8_ARRAY, column!(|t| t.shape))
        .with(Type::INT8_ARRAY, column!(|t| t.cost_ms))
        .with(Type::INT8_ARRAY, column!(|t| t.rank))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.created_at))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.run_at))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.deadline))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.started_at))
        .with(Type::INT4_ARRAY, column!(|t| t.timeout_s))
        .with(Type::INT4_ARRAY, column!(|t| t.max_retries))
        .with(Type::INT4_ARRAY, column!(|t| t.attempt))
        .with(Type::INT8_ARRAY, column!(|t| t.fence.0))
        .with(Type::INT8_ARRAY, column!(|t| t.version))
        .with(Type::TEXT_ARRAY, column!(|t| t.worker.as_ref().map(remuda_core::WorkerId::as_str)))
        .with(Type::JSON_ARRAY, column!(|t| t.metadata.as_ref().map(Json)))
        .with(Type::UUID_ARRAY, column!(|t| t.retry_of.map(|id| id.0)));
    (
        "INSERT INTO remuda.task (id, tenant, workflow_id, priority, status, reason, lane, affinity, shape, cost_ms, \
         rank, created_at, run_at, deadline, started_at, timeout_s, max_retries, attempt, fence, version, worker, \
         metadata, retry_of, failures, losses) \
         SELECT u.*, 0, 0 FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, \
         $18, $19, $20, $21, $22, $23) AS u",
        columns,
    )
}

fn insert_inputs<'a>(tasks: impl Iterator<Item = &'a (Task, TaskInput)> + Clone) -> Statement<'a> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(tasks.clone(), |(task, _)| task.id.0))
        .with(Type::TEXT_ARRAY, each(tasks.clone(), |(_, input)| input.workflow.get()))
        .with(Type::JSON_ARRAY, each(tasks.clone(), |(_, input)| Json(&input.placements)))
        .with(Type::JSON_ARRAY, each(tasks, |(_, input)| Json(&input.requires)));
    (
        "INSERT INTO remuda.task_input (task, workflow, placements, requires) \
         SELECT * FROM unnest($1, $2, $3, $4)",
        columns,
    )
}

fn insert_idems(save: &Save) -> Statement<'_> {
    let idems = &save.idems;
    let columns = Columns::default()
        .with(Type::TEXT_ARRAY, each(idems, |idem| idem.tenant.as_str()))
        .with(Type::TEXT_ARRAY, each(idems, |idem| idem.idempotency.key.as_str()))
        .with(Type::BYTEA_ARRAY, each(idems, |idem| &idem.idempotency.request.0[..]))
        .with(Type::UUID_ARRAY, each(idems, |idem| idem.task.0))
        .with(Type::TIMESTAMPTZ_ARRAY, each(idems, |idem| idem.at));
    (
        "INSERT INTO remuda.idem (tenant, key, request, task, created_at) SELECT * FROM unnest($1, $2, $3, $4, $5)",
        columns,
    )
}

/// All that may change of a task. Its row is locked.
fn update_tasks<'a>(tasks: &[&'a Task]) -> Statement<'a> {
    macro_rules! column {
        ($value:expr) => {
            tasks.iter().map($value).collect::<Vec<_>>()
        };
    }
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, column!(|t| t.id.0))
        .with(Type::TEXT_ARRAY, column!(|t| t.status.as_str()))
        .with(Type::TEXT_ARRAY, column!(|t| t.reason.map(remuda_core::PendingReason::as_str)))
        .with(Type::TEXT_ARRAY, column!(|t: &&'a Task| t.lane.as_str()))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.run_at))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.started_at))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.finished_at))
        .with(Type::INT4_ARRAY, column!(|t| t.failures))
        .with(Type::INT4_ARRAY, column!(|t| t.losses))
        .with(Type::INT4_ARRAY, column!(|t| t.attempt))
        .with(Type::INT8_ARRAY, column!(|t| t.fence.0))
        .with(Type::INT8_ARRAY, column!(|t| t.version))
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.cancel_at))
        .with(Type::TEXT_ARRAY, column!(|t: &&'a Task| t.worker.as_ref().map(remuda_core::WorkerId::as_str)))
        .with(
            Type::TEXT_ARRAY,
            column!(|t: &&'a Task| t.avoid_worker.as_ref().map(remuda_core::WorkerId::as_str)),
        )
        .with(Type::TIMESTAMPTZ_ARRAY, column!(|t| t.avoid_until))
        .with(Type::JSON_ARRAY, column!(|t: &&'a Task| t.error.as_ref().map(Json)))
        .with(Type::JSON_ARRAY, column!(|t: &&'a Task| t.result.as_ref().map(Json)));
    (
        "UPDATE remuda.task AS t SET status = u.status, reason = u.reason, lane = u.lane, run_at = u.run_at, \
         started_at = u.started_at, finished_at = u.finished_at, failures = u.failures, losses = u.losses, \
         attempt = u.attempt, fence = u.fence, version = u.version, cancel_at = u.cancel_at, worker = u.worker, \
         avoid_worker = u.avoid_worker, avoid_until = u.avoid_until, error = u.error, result = u.result \
         FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) AS \
         u(id, status, reason, lane, run_at, started_at, finished_at, failures, losses, attempt, fence, version, \
         cancel_at, worker, avoid_worker, avoid_until, error, result) WHERE t.id = u.id",
        columns,
    )
}

fn delete_leases(save: &Save) -> Statement<'_> {
    let ids = each(&save.gone_leases, |id| id.0);
    (
        "DELETE FROM remuda.lease AS l USING unnest($1) AS u(task) WHERE l.task = u.task",
        Columns::default().with(Type::UUID_ARRAY, ids),
    )
}

fn insert_leases(leases: &[Lease]) -> Statement<'_> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(leases, |l| l.task.0))
        .with(Type::INT8_ARRAY, each(leases, |l| l.fence.0))
        .with(Type::INT4_ARRAY, each(leases, |l| l.attempt))
        .with(Type::UUID_ARRAY, each(leases, |l| l.owner.0))
        .with(Type::TEXT_ARRAY, each(leases, |l| l.worker.as_str()))
        .with(Type::UUID_ARRAY, each(leases, |l| l.prompt_id))
        .with(Type::TIMESTAMPTZ_ARRAY, each(leases, |l| l.until))
        .with(Type::TEXT_ARRAY, each(leases, |l| l.phase.as_str()))
        .with(Type::TEXT_ARRAY, each(leases, |l| l.gateway.as_deref()));
    (
        "INSERT INTO remuda.lease (task, fence, attempt, owner, worker, prompt_id, until, phase, gateway, progress, \
         wanted) SELECT u.*, 0, false FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9) AS u",
        columns,
    )
}

fn update_leases(leases: &[Lease]) -> Statement<'_> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(leases, |l| l.task.0))
        .with(Type::INT8_ARRAY, each(leases, |l| l.fence.0))
        .with(Type::UUID_ARRAY, each(leases, |l| l.owner.0))
        .with(Type::TIMESTAMPTZ_ARRAY, each(leases, |l| l.until))
        .with(Type::TEXT_ARRAY, each(leases, |l| l.gateway.as_deref()));
    (
        "UPDATE remuda.lease AS l SET fence = u.fence, owner = u.owner, until = u.until, gateway = u.gateway \
         FROM unnest($1, $2, $3, $4, $5) AS u(task, fence, owner, until, gateway) WHERE l.task = u.task",
        columns,
    )
}

fn want_leases(save: &Save) -> Statement<'_> {
    let ids = each(&save.wanted, |id| id.0);
    (
        "UPDATE remuda.lease SET wanted = true WHERE task = ANY($1) AND phase = 'ahead'",
        Columns::default().with(Type::UUID_ARRAY, ids),
    )
}

fn insert_attempts(attempts: &[Attempt]) -> Statement<'_> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(attempts, |a| a.task.0))
        .with(Type::INT4_ARRAY, each(attempts, |a| a.n))
        .with(Type::UUID_ARRAY, each(attempts, |a| a.owner.0))
        .with(Type::TEXT_ARRAY, each(attempts, |a| a.worker.as_str()))
        .with(Type::UUID_ARRAY, each(attempts, |a| a.prompt_id))
        .with(Type::TIMESTAMPTZ_ARRAY, each(attempts, |a| a.started_at));
    (
        "INSERT INTO remuda.attempt (task, n, owner, worker, prompt_id, started_at) \
         SELECT * FROM unnest($1, $2, $3, $4, $5, $6)",
        columns,
    )
}

fn close_attempts(save: &Save) -> Statement<'_> {
    let closed = &save.closed;
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(closed, |c| c.task.0))
        .with(Type::INT4_ARRAY, each(closed, |c| c.n))
        .with(Type::TIMESTAMPTZ_ARRAY, each(closed, |c| c.ended_at))
        .with(Type::TEXT_ARRAY, each(closed, |c| c.outcome.as_str()))
        .with(Type::JSON_ARRAY, each(closed, |c| c.failure.as_ref().map(Json)))
        .with(Type::INT8_ARRAY, each(closed, |c| c.gpu_ms));
    (
        "UPDATE remuda.attempt AS a SET ended_at = u.ended_at, outcome = u.outcome, failure = u.failure, \
         gpu_ms = u.gpu_ms FROM unnest($1, $2, $3, $4, $5, $6) AS u(task, n, ended_at, outcome, failure, gpu_ms) \
         WHERE a.task = u.task AND a.n = u.n",
        columns,
    )
}

fn hand_over_attempts(save: &Save) -> Statement<'_> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(&save.owners, |(task, _, _)| task.0))
        .with(Type::INT4_ARRAY, each(&save.owners, |(_, n, _)| *n))
        .with(Type::UUID_ARRAY, each(&save.owners, |(_, _, owner)| owner.0));
    (
        "UPDATE remuda.attempt AS a SET owner = u.owner FROM unnest($1, $2, $3) AS u(task, n, owner) \
         WHERE a.task = u.task AND a.n = u.n",
        columns,
    )
}

fn insert_events(events: &[TaskEvent]) -> Statement<'_> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(events, |e| e.task.0))
        .with(Type::INT8_ARRAY, each(events, |e| e.n))
        .with(Type::TIMESTAMPTZ_ARRAY, each(events, |e| e.at))
        .with(Type::TEXT_ARRAY, each(events, |e| e.kind.as_str()))
        .with(Type::JSON_ARRAY, each(events, |e| Json(&e.data)));
    (
        "INSERT INTO remuda.task_event (task, n, at, kind, data) SELECT * FROM unnest($1, $2, $3, $4, $5)",
        columns,
    )
}

fn insert_sweeps(save: &Save) -> Statement<'_> {
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(save.sweeps.keys(), |task| task.0))
        .with(Type::TIMESTAMPTZ_ARRAY, each(save.sweeps.values(), |at| *at));
    (
        "INSERT INTO remuda.sweep (task, at) SELECT * FROM unnest($1, $2) ON CONFLICT (task) DO NOTHING",
        columns,
    )
}

fn new_tenants(save: &Save) -> Statement<'_> {
    let columns =
        Columns::default().with(Type::TEXT_ARRAY, each(&save.new_tenants, |tenant| tenant.as_str()));
    (
        "INSERT INTO remuda.tenant (tenant, vfinish, weight) SELECT u.tenant, array_fill(0::bigint, ARRAY[10]), 1000 \
         FROM unnest($1) AS u(tenant) ON CONFLICT (tenant) DO NOTHING",
        columns,
    )
}

fn count(save: &Save, shard: i16) -> Statement<'_> {
    let deltas = |place: usize| each(save.counts.values(), |deltas| deltas[place]);
    let columns = Columns::default()
        .with(Type::INT2, shard)
        .with(Type::TEXT_ARRAY, each(save.counts.keys(), |tenant| tenant.as_str()))
        .with(Type::INT8_ARRAY, deltas(0))
        .with(Type::INT8_ARRAY, deltas(1))
        .with(Type::INT8_ARRAY, deltas(2))
        .with(Type::INT8_ARRAY, deltas(3))
        .with(Type::INT8_ARRAY, deltas(4));
    (
        "INSERT INTO remuda.counter AS c (tenant, shard, pending, running, completed, failed, cancelled) \
         SELECT u.tenant, $1, u.pending, u.running, u.completed, u.failed, u.cancelled \
         FROM unnest($2, $3, $4, $5, $6, $7) AS u(tenant, pending, running, completed, failed, cancelled) \
         ON CONFLICT (tenant, shard) DO UPDATE SET pending = c.pending + excluded.pending, \
         running = c.running + excluded.running, completed = c.completed + excluded.completed, \
         failed = c.failed + excluded.failed, cancelled = c.cancelled + excluded.cancelled",
        columns,
    )
}
