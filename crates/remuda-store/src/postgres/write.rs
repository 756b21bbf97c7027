//! The statements that write, each for any number of rows.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use postgres_types::{Json, Type};
use remuda_core::{FeedPack, Lease, PendingReason, Task, TaskId, TaskInput, WorkerId};

use super::columns::{Columns, JsonText, each};
use super::save::{STORED, Save};

/// A statement with its parameters.
pub(super) type Statement<'a> = (&'static str, Columns<'a>);

/// How many parameters `remuda.save_3` has.
const PARAMETERS: usize = 82;

/// What most transactions write is one call, whose statements the server has planned already.
static SAVE: LazyLock<String> = LazyLock::new(|| {
    let numbers: Vec<String> = (1..=PARAMETERS).map(|n| format!("${n}")).collect();
    format!("SELECT * FROM remuda.save_3({})", numbers.join(", "))
});

/// Everything that there is to write, in the order in which tables are locked.
pub(super) fn statements(save: &Save, shard: i16) -> Vec<Statement<'_>> {
    let mut all = Vec::new();
    if !save.new_tenants.is_empty() {
        all.push(new_tenants(save));
    }
    if !save.new_lanes.is_empty() {
        all.push(new_lanes(save));
    }
    if !save.idems.is_empty() {
        all.push(insert_idems(save));
    }
    if !save.adopted.is_empty() {
        all.push(update_leases(&save.adopted));
    }
    if !save.wanted.is_empty() {
        all.push(want_leases(save));
    }
    if !save.sweeps.is_empty() {
        all.push(insert_sweeps(save));
    }
    let envelopes = || save.new_tasks.iter().filter_map(|(id, (_, input))| Some((id, envelope(input)?)));
    if envelopes().next().is_some() {
        all.push(insert_secrets(envelopes()));
    }
    // It reads, too.
    if save.is_large() {
        all.push((SAVE.as_str(), everything(save, shard)));
    }
    // After the tasks, whose rows say how many they have.
    if !save.new_errands.is_empty() {
        all.push(insert_errands(save));
    }
    all
}

/// The parameters of `remuda.save_3`.
fn everything(save: &Save, shard: i16) -> Columns<'_> {
    let columns = new_tasks(Columns::default(), save.new_tasks.values());
    let columns = changed_tasks(columns, save.tasks.values(), &save.left);
    let over = &save.closed;
    let leases = &save.new_leases;
    let events = &save.events;
    let deltas = |place: usize| each(save.counts.values(), |deltas| deltas[place]);
    columns
        .with(Type::UUID_ARRAY, each(over, |c| c.task.0))
        .with(Type::TIMESTAMPTZ_ARRAY, each(over, |c| c.ended_at))
        .with(Type::TEXT_ARRAY, each(over, |c| c.outcome.as_str()))
        .with(Type::JSON_ARRAY, each(over, |c| c.failure.as_ref().map(Json)))
        .with(Type::INT8_ARRAY, each(over, |c| c.gpu_ms))
        .with(Type::UUID_ARRAY, each(leases, |(l, _)| l.task.0))
        .with(Type::INT8_ARRAY, each(leases, |(l, _)| l.fence.0))
        .with(Type::INT4_ARRAY, each(leases, |(l, _)| l.attempt))
        .with(Type::UUID_ARRAY, each(leases, |(l, _)| l.owner.0))
        .with(Type::TEXT_ARRAY, each(leases, |(l, _)| l.worker.as_str()))
        .with(Type::UUID_ARRAY, each(leases, |(l, _)| l.prompt_id))
        .with(Type::TIMESTAMPTZ_ARRAY, each(leases, |(l, _)| l.until))
        .with(Type::TEXT_ARRAY, each(leases, |(l, _)| l.phase.as_str()))
        .with(Type::TEXT_ARRAY, each(leases, |(l, _)| l.gateway.as_deref()))
        .with(Type::TIMESTAMPTZ_ARRAY, each(leases, |(_, started_at)| *started_at))
        .with(Type::UUID_ARRAY, each(events, |e| e.task.0))
        .with(Type::INT8_ARRAY, each(events, |e| e.n))
        .with(Type::TIMESTAMPTZ_ARRAY, each(events, |e| e.at))
        .with(Type::TEXT_ARRAY, each(events, |e| e.kind.as_str()))
        .with(Type::JSON_ARRAY, each(events, |e| Json(&e.data)))
        .with(Type::INT2, shard)
        .with(Type::TEXT_ARRAY, each(save.counts.keys(), |tenant| tenant.as_str()))
        .with(Type::INT8_ARRAY, deltas(0))
        .with(Type::INT8_ARRAY, deltas(1))
        .with(Type::INT8_ARRAY, deltas(2))
        .with(Type::INT8_ARRAY, deltas(3))
        .with(Type::INT8_ARRAY, deltas(4))
        .with(Type::INT8_ARRAY, deltas(STORED))
        .with(Type::UUID_ARRAY, each(&save.inputs, |id| id.0))
        .with(Type::TEXT_ARRAY, each(save.feed.keys(), |tenant| tenant.as_str()))
        .with(Type::TIMESTAMPTZ, events.last().map(|event| event.at))
        .with(Type::BYTEA_ARRAY, each(save.feed.values(), FeedPack::as_bytes))
}

fn new_tasks<'a>(
    columns: Columns<'a>,
    both: impl Iterator<Item = &'a (Task, TaskInput)> + Clone,
) -> Columns<'a> {
    let new: &Vec<&Task> = &both.clone().map(|(task, _)| task).collect();
    let stored: Vec<i64> =
        both.clone().map(|(task, input)| input.stored_bytes(task.metadata.as_ref())).collect();
    let inputs: &Vec<&TaskInput> = &both.map(|(_, input)| input).collect();
    columns
        .with(Type::UUID_ARRAY, values(new, |t| t.id.0))
        .with(Type::TEXT_ARRAY, values(new, |t| t.tenant.as_str()))
        .with(Type::TEXT_ARRAY, values(new, |t| t.workflow_id.as_deref()))
        .with(Type::INT2_ARRAY, values(new, |t| i16::from(t.priority.get())))
        .with(Type::TEXT_ARRAY, values(new, |t| t.status.as_str()))
        .with(Type::TEXT_ARRAY, values(new, |t| t.reason.map(PendingReason::as_str)))
        .with(Type::TEXT_ARRAY, values(new, |t| t.lane.as_str()))
        .with(Type::INT8_ARRAY, values(new, |t| t.affinity))
        .with(Type::INT8_ARRAY, values(new, |t| t.shape))
        .with(Type::INT8_ARRAY, values(new, |t| t.cost_ms))
        .with(Type::INT8_ARRAY, values(new, |t| t.rank))
        .with(Type::TIMESTAMPTZ_ARRAY, values(new, |t| t.created_at))
        .with(Type::TIMESTAMPTZ_ARRAY, values(new, |t| t.run_at))
        .with(Type::TIMESTAMPTZ_ARRAY, values(new, |t| t.deadline))
        .with(Type::TIMESTAMPTZ_ARRAY, values(new, |t| t.started_at))
        .with(Type::INT4_ARRAY, values(new, |t| t.timeout_s))
        .with(Type::INT4_ARRAY, values(new, |t| t.max_retries))
        .with(Type::INT4_ARRAY, values(new, |t| t.attempt))
        .with(Type::INT8_ARRAY, values(new, |t| t.fence.0))
        .with(Type::INT8_ARRAY, values(new, |t| t.version))
        .with(Type::TEXT_ARRAY, values(new, |t| t.worker.as_ref().map(WorkerId::as_str)))
        .with(Type::JSON_ARRAY, values(new, |t| t.metadata.as_ref().map(Json)))
        .with(Type::UUID_ARRAY, values(new, |t| t.retry_of.map(|id| id.0)))
        .with(Type::TEXT_ARRAY, values(new, |t| t.origin.as_ref().map(|o| o.dialect.as_str())))
        .with(Type::TEXT_ARRAY, values(new, |t| t.origin.as_ref().and_then(|o| o.external_id.as_deref())))
        .with(Type::TEXT_ARRAY, values(new, |t| t.origin.as_ref().and_then(|o| o.client.as_deref())))
        .with(Type::INT8_ARRAY, stored)
        .with(Type::TEXT_ARRAY, values(inputs, |input| input.workflow.get()))
        .with(Type::JSON_ARRAY, values(inputs, |input| Json(&input.placements)))
        .with(Type::JSON_ARRAY, values(inputs, |input| Json(&input.requires)))
        .with(Type::TEXT_ARRAY, values(inputs, |input| input.extra.as_deref().map(JsonText)))
}

/// All that may change of a task. Its row is locked. `left`: what the results of those that end count as.
fn changed_tasks<'a>(
    columns: Columns<'a>,
    tasks: impl Iterator<Item = &'a Task>,
    left: &BTreeMap<TaskId, i64>,
) -> Columns<'a> {
    let now: &Vec<&Task> = &tasks.collect();
    columns
        .with(Type::UUID_ARRAY, values(now, |t| t.id.0))
        .with(Type::TEXT_ARRAY, values(now, |t| t.status.as_str()))
        .with(Type::TEXT_ARRAY, values(now, |t| t.reason.map(PendingReason::as_str)))
        .with(Type::TEXT_ARRAY, values(now, |t| t.lane.as_str()))
        .with(Type::TIMESTAMPTZ_ARRAY, values(now, |t| t.run_at))
        .with(Type::TIMESTAMPTZ_ARRAY, values(now, |t| t.started_at))
        .with(Type::TIMESTAMPTZ_ARRAY, values(now, |t| t.finished_at))
        .with(Type::INT4_ARRAY, values(now, |t| t.failures))
        .with(Type::INT4_ARRAY, values(now, |t| t.losses))
        .with(Type::INT4_ARRAY, values(now, |t| t.attempt))
        .with(Type::INT8_ARRAY, values(now, |t| t.fence.0))
        .with(Type::INT8_ARRAY, values(now, |t| t.version))
        .with(Type::TIMESTAMPTZ_ARRAY, values(now, |t| t.cancel_at))
        .with(Type::TEXT_ARRAY, values(now, |t| t.worker.as_ref().map(WorkerId::as_str)))
        .with(Type::TEXT_ARRAY, values(now, |t| t.avoid_worker.as_ref().map(WorkerId::as_str)))
        .with(Type::TIMESTAMPTZ_ARRAY, values(now, |t| t.avoid_until))
        .with(Type::JSON_ARRAY, values(now, |t| t.error.as_ref().map(Json)))
        .with(Type::JSON_ARRAY, values(now, |t| t.result.as_ref().map(Json)))
        .with(Type::INT8_ARRAY, values(now, |t| left.get(&t.id).copied().unwrap_or(0)))
}

fn values<'a, R, T>(rows: &[&'a R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(|row| value(row)).collect()
}

fn envelope(input: &TaskInput) -> Option<&[u8]> {
    input.extra.as_ref()?.envelope.as_deref()
}

fn insert_secrets<'a>(envelopes: impl Iterator<Item = (&'a TaskId, &'a [u8])>) -> Statement<'a> {
    let (ids, sealed): (Vec<_>, Vec<_>) = envelopes.map(|(id, sealed)| (id.0, sealed)).unzip();
    let columns = Columns::default().with(Type::UUID_ARRAY, ids).with(Type::BYTEA_ARRAY, sealed);
    ("INSERT INTO remuda.secret (task, sealed) SELECT * FROM unnest($1, $2)", columns)
}

fn insert_errands(save: &Save) -> Statement<'_> {
    let mut rows = Vec::new();
    for (task, (tenant, errands)) in &save.new_errands {
        for (n, errand) in (0_i32..).zip(errands) {
            rows.push((task.0, tenant.as_str(), n, errand));
        }
    }
    let columns = Columns::default()
        .with(Type::UUID_ARRAY, each(&rows, |row| row.0))
        .with(Type::TEXT_ARRAY, each(&rows, |row| row.1))
        .with(Type::INT4_ARRAY, each(&rows, |row| row.2))
        .with(Type::TEXT_ARRAY, each(&rows, |row| JsonText(row.3)))
        .with(Type::TEXT_ARRAY, each(&rows, |row| row.3.upon().as_str()));
    (
        "WITH new AS (INSERT INTO remuda.errand (task, tenant, n, errand, upon) \
         SELECT * FROM unnest($1, $2, $3, $4, $5) RETURNING task) \
         UPDATE remuda.task AS t SET errands = u.errands \
         FROM (SELECT task, count(*)::integer AS errands FROM new GROUP BY task ORDER BY task) u WHERE t.id = u.task",
        columns,
    )
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
