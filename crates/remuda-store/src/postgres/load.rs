//! What a batch reads before it decides: locked where it will be written, all in one round trip.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postgres_types::{Json, Type};
use remuda_core::quota::{Quota, Usage};
use remuda_core::schedule::{Ahead, Candidate, avoids};
use remuda_core::{
    Fence, LaneId, NewTask, OwnerId, Requirements, Sha256, Task, TaskId, Tenant, Timestamp, WorkerId,
};
use tokio_postgres::{Client, Row};

use super::columns::{Columns, each};
use super::fault::Fault;
use super::ledger::Ledger;
use super::rows::{self, get, living_texts, task_columns};
use super::session;
use super::usages::Usages;
use crate::{Error, Options};

/// What has to be read.
#[derive(Debug, Default)]
pub(super) struct Needs<'a> {
    /// Tasks that end.
    pub(super) tasks: BTreeSet<TaskId>,
    /// Submissions that may have been made before.
    pub(super) existing: BTreeSet<TaskId>,
    keys: BTreeSet<(&'a str, &'a str)>,
    pub(super) shapes: BTreeSet<i64>,
    pub(super) tenants: BTreeSet<&'a Tenant>,
    /// Of which of them it is not known well enough what they have.
    pub(super) usage: BTreeSet<&'a Tenant>,
    /// Lanes that tasks come into.
    pub(super) lanes: BTreeSet<LaneId>,
    /// Whose tasks come into them, where they ask for something.
    entries: BTreeSet<(&'a Tenant, LaneId)>,
    /// Workers that claim.
    pub(super) workers: BTreeSet<&'a str>,
    /// The lanes they claim from.
    pub(super) claim_lanes: BTreeSet<LaneId>,
    /// How many tasks of each.
    pub(super) depth: i64,
}

impl<'a> Needs<'a> {
    /// A task comes in.
    pub(super) fn submit(&mut self, new: &'a NewTask, usages: &Usages, quota: &Quota) {
        let key = new.idempotency.as_ref().map(|idempotency| (new.tenant.as_str(), idempotency.key.as_str()));
        self.keys.extend(key);
        self.shapes.insert(new.shape);
        self.tenants.insert(&new.tenant);
        if self.usage.contains(&new.tenant) || usages.is_unsure(&new.tenant, quota) {
            // Whoever has all that one may have still hears of a task that was taken in before.
            self.existing.insert(new.id);
            self.usage.insert(&new.tenant);
        }
        let lane = new.input.requires.lane();
        if lane != LaneId::any() {
            // Whoever has all the lanes that it may have still hears of a task that was taken in before.
            self.existing.insert(new.id);
            self.entries.insert((&new.tenant, lane.clone()));
        }
        self.lanes.insert(lane);
    }
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) now: Timestamp,
    /// Those that end. Like all tasks that are read here, they come without what they left when they have ended before.
    pub(super) tasks: HashMap<TaskId, Task>,
    /// Those of them that have left a result.
    pub(super) left: BTreeSet<TaskId>,
    /// Who holds those tasks, or had them last.
    pub(super) owners: HashMap<TaskId, OwnerId>,
    pub(super) existing: HashMap<TaskId, Task>,
    pub(super) idems: HashMap<(String, String), (Sha256, Task)>,
    /// The ranks of the first tasks of the lanes that tasks come into.
    pub(super) heads: HashMap<LaneId, i64>,
    /// In which lanes tenants have unfinished tasks, of those that tasks come into …
    pub(super) used: BTreeSet<(Tenant, LaneId)>,
    /// … and in how many they have some at all.
    pub(super) lane_counts: HashMap<Tenant, u64>,
    /// What tenants have, of those that it was read of.
    pub(super) usage: HashMap<Tenant, Usage>,
    /// Tenants that the database does not know.
    pub(super) new_tenants: BTreeSet<Tenant>,
    pub(super) holders: HashMap<String, (OwnerId, Fence)>,
    pub(super) candidates: Vec<Task>,
    pub(super) ahead: Vec<Ahead>,
}

impl Loaded {
    /// Whether some lane may have more than was read of it.
    pub(super) fn is_full(&self, depth: i64) -> bool {
        let mut counts: HashMap<&LaneId, i64> = HashMap::new();
        for task in &self.candidates {
            *counts.entry(&task.lane).or_default() += 1;
        }
        counts.values().any(|count| *count >= depth)
    }
}

const EXISTING: &str = concat!(
    "SELECT ",
    task_columns!("t", "x"),
    " FROM remuda.task t",
    living_texts!(),
    " WHERE t.id = ANY($1)"
);

const IDEMS: &str = concat!(
    "SELECT i.tenant, i.key, i.request, ",
    task_columns!("t", "x"),
    " FROM unnest($1, $2) AS u(tenant, key) JOIN remuda.idem i ON i.tenant = u.tenant AND i.key = u.key \
     JOIN remuda.task t ON t.id = i.task",
    living_texts!()
);

const SHAPES: &str = "SELECT shape, cost_ms FROM remuda.shape WHERE shape = ANY($1)";

const CLOCKS: &str = "SELECT tenant, vfinish, weight FROM remuda.tenant WHERE tenant = ANY($1)";

const HEADS: &str = "SELECT u.lane, (SELECT t.rank FROM remuda.task t WHERE t.lane = u.lane AND t.reason = 'queued' \
    ORDER BY t.rank, 9 - t.priority, t.id LIMIT 1), (SELECT l.v FROM remuda.lane l WHERE l.id = u.lane) \
    FROM unnest($1) AS u(lane)";

const NEXT: &str = "SELECT u.lane FROM unnest($1) AS u(lane) CROSS JOIN LATERAL (SELECT t.rank FROM remuda.task t \
    WHERE t.lane = u.lane AND t.reason = 'queued' ORDER BY t.rank, 9 - t.priority, t.id LIMIT 1) t ORDER BY t.rank, u.lane";

const USED: &str = "SELECT u.tenant, u.lane FROM unnest($1, $2) AS u(tenant, lane) WHERE EXISTS (SELECT 1 \
    FROM remuda.task t WHERE t.tenant = u.tenant AND t.lane = u.lane AND t.finished_at IS NULL)";

/// From one lane to the next in the index, until there are too many.
const LANE_COUNTS: &str = "SELECT u.tenant, (WITH RECURSIVE w AS ((SELECT t.lane, 1 AS n FROM remuda.task t \
    WHERE t.tenant = u.tenant AND t.finished_at IS NULL ORDER BY t.lane LIMIT 1) UNION ALL \
    SELECT n.lane, w.n + 1 FROM w CROSS JOIN LATERAL (SELECT t.lane FROM remuda.task t WHERE t.tenant = u.tenant \
    AND t.finished_at IS NULL AND t.lane > w.lane ORDER BY t.lane LIMIT 1) n WHERE w.n <= $2) \
    SELECT count(*) FROM w WHERE w.lane <> 'any') FROM unnest($1) AS u(tenant)";

pub(super) const USAGE: &str = "SELECT tenant, sum(pending)::bigint, sum(stored)::bigint FROM remuda.counter \
    WHERE tenant = ANY($1) GROUP BY tenant";

const HOLDERS: &str = "SELECT id, owner, fence FROM remuda.worker WHERE id = ANY($1) AND held";

const LOAD: &str = concat!(
    "SELECT ",
    task_columns!("t", "x"),
    ", t.result IS NOT NULL FROM remuda.load_1($1, $2, $3) t",
    living_texts!()
);

const OWNERS: &str = "SELECT o.task_of, o.owner_of FROM remuda.owners_1($1) o";

const AHEAD: &str = "SELECT l.task, l.worker, l.wanted, t.lane, t.rank, t.priority, t.affinity, t.run_at, \
    t.avoid_worker, t.avoid_until, t.cancel_at IS NOT NULL FROM remuda.lease l JOIN remuda.task t ON t.id = l.task WHERE l.phase = 'ahead' \
    ORDER BY t.rank, 9 - t.priority, t.id LIMIT 256";

async fn ask(
    client: &Client,
    wanted: bool,
    statement: &str,
    columns: Columns<'_>,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    if !wanted {
        return Ok(Vec::new());
    }
    client.query_typed(statement, &columns.params()).await
}

fn lane_column(lanes: &BTreeSet<LaneId>) -> Columns<'_> {
    Columns::default().with(Type::TEXT_ARRAY, each(lanes, LaneId::as_str))
}

fn locked<'a>(ends: &BTreeSet<TaskId>, lanes: &'a BTreeSet<LaneId>, depth: i64) -> Columns<'a> {
    Columns::default()
        .with(Type::UUID_ARRAY, each(ends, |id| id.0))
        .with(Type::TEXT_ARRAY, each(lanes, LaneId::as_str))
        .with(Type::INT8, depth)
}

/// Opens the transaction and reads everything. Each statement is sent before the answer to the one before it came.
pub(super) async fn load(
    client: &Client,
    options: &Options,
    ledger: &Ledger,
    usages: &Usages,
    needs: &Needs<'_>,
) -> Result<Loaded, Fault> {
    let (tenants, shapes) = ledger.missing(&needs.tenants, &needs.shapes);
    let claims = !needs.claim_lanes.is_empty() && !needs.workers.is_empty();
    // The first candidate of a lane is its head.
    let lanes: BTreeSet<LaneId> =
        needs.lanes.iter().filter(|lane| !claims || !needs.claim_lanes.contains(*lane)).cloned().collect();
    let existing = Columns::default().with(Type::UUID_ARRAY, each(&needs.existing, |id| id.0));
    let keys = Columns::default()
        .with(Type::TEXT_ARRAY, each(&needs.keys, |(tenant, _)| *tenant))
        .with(Type::TEXT_ARRAY, each(&needs.keys, |(_, key)| *key));
    let shape_column = Columns::default().with(Type::INT8_ARRAY, shapes.as_slice());
    let tenant_column = Columns::default().with(Type::TEXT_ARRAY, each(&tenants, |tenant| tenant.as_str()));
    let workers = Columns::default().with(Type::TEXT_ARRAY, each(&needs.workers, |worker| *worker));
    let none = BTreeSet::new();
    let claimed = if claims { &needs.claim_lanes } else { &none };
    let locked = locked(&needs.tasks, claimed, needs.depth);
    let ended = Columns::default().with(Type::UUID_ARRAY, each(&needs.tasks, |id| id.0));
    let entries = Columns::default()
        .with(Type::TEXT_ARRAY, each(&needs.entries, |(tenant, _)| tenant.as_str()))
        .with(Type::TEXT_ARRAY, each(&needs.entries, |(_, lane)| lane.as_str()));
    let entering: BTreeSet<&Tenant> = needs.entries.iter().map(|(tenant, _)| *tenant).collect();
    let counted = Columns::default()
        .with(Type::TEXT_ARRAY, each(&entering, |tenant| tenant.as_str()))
        .with(Type::INT8, i64::try_from(options.max_lanes).unwrap_or(i64::MAX));
    let enters = !needs.entries.is_empty();
    let spenders = Columns::default().with(Type::TEXT_ARRAY, each(&needs.usage, |tenant| tenant.as_str()));
    let (now, locked, owners, holders, existing, idems, costs, heads, clocks, used, counts, usage) = tokio::join!(
        biased;
        session::begin(client, options),
        ask(client, claims || !needs.tasks.is_empty(), LOAD, locked),
        // After the tasks were locked: from then on nobody else takes a lease on them over.
        ask(client, !needs.tasks.is_empty(), OWNERS, ended),
        ask(client, !needs.workers.is_empty(), HOLDERS, workers),
        ask(client, !needs.existing.is_empty(), EXISTING, existing),
        ask(client, !needs.keys.is_empty(), IDEMS, keys),
        ask(client, !shapes.is_empty(), SHAPES, shape_column),
        ask(client, !lanes.is_empty(), HEADS, lane_column(&lanes)),
        ask(client, !tenants.is_empty(), CLOCKS, tenant_column),
        ask(client, enters, USED, entries),
        ask(client, enters, LANE_COUNTS, counted),
        ask(client, !needs.usage.is_empty(), USAGE, spenders),
    );
    let mut loaded = Loaded { now: now?, ..Loaded::default() };
    for row in locked? {
        let task = rows::task(&row)?;
        // Those that end come first. One of them can be a candidate too, when its report is late.
        if needs.tasks.contains(&task.id) && !loaded.tasks.contains_key(&task.id) {
            if get(&row, rows::TASK_COLUMNS)? {
                loaded.left.insert(task.id);
            }
            loaded.tasks.insert(task.id, task);
        } else {
            loaded.candidates.push(task);
        }
    }
    for row in owners? {
        loaded.owners.insert(TaskId(get(&row, 0)?), OwnerId(get(&row, 1)?));
    }
    for row in holders? {
        loaded.holders.insert(get(&row, 0)?, (OwnerId(get(&row, 1)?), Fence(get(&row, 2)?)));
    }
    loaded.existing = rows::tasks(&existing?)?.into_iter().map(|task| (task.id, task)).collect();
    for row in idems? {
        let task = rows::task_at(&row, 3)?;
        loaded.idems.insert((get(&row, 0)?, get(&row, 1)?), (rows::hash(&row, 2)?, task));
    }
    for task in &loaded.candidates {
        let first = loaded.heads.entry(task.lane.clone()).or_insert(task.rank);
        *first = task.rank.min(*first);
    }
    for row in heads? {
        let first: Option<i64> = get(&row, 1)?;
        let lane = LaneId::from_stored(get(&row, 0)?);
        if let Some(v) = get::<Option<i64>>(&row, 2)? {
            ledger.came(lane.clone(), v);
        }
        loaded.heads.extend(first.map(|first| (lane, first)));
    }
    for row in used? {
        loaded.used.insert((tenant_at(&row)?, LaneId::from_stored(get(&row, 1)?)));
    }
    for row in counts? {
        let count: i64 = get(&row, 1)?;
        loaded.lane_counts.insert(tenant_at(&row)?, u64::try_from(count).unwrap_or(0));
    }
    for row in usage? {
        loaded.usage.insert(tenant_at(&row)?, Usage { waiting: get(&row, 1)?, bytes: get(&row, 2)? });
    }
    for tenant in &needs.usage {
        // Whoever has no counters has nothing.
        usages.learn(tenant, *loaded.usage.entry((*tenant).clone()).or_default());
    }
    let costs = costs?.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<_, Fault>>()?;
    let mut known = BTreeMap::new();
    for row in clocks? {
        known.insert(tenant_at(&row)?, rows::clock_at(&row, 1)?);
    }
    ledger.learn((&tenants, &shapes), &known, &costs);
    let unknown = tenants.into_iter().filter(|tenant| !known.contains_key(*tenant));
    loaded.new_tenants = unknown.cloned().collect();
    Ok(loaded)
}

fn tenant_at(row: &Row) -> Result<Tenant, Fault> {
    let tenant: String = get(row, 0)?;
    Ok(Tenant::new(tenant).map_err(|error| Error::Corrupt(error.to_string()))?)
}

/// Those of these lanes in which something is ready, in the order of their first tasks.
pub(super) async fn next(client: &Client, lanes: &BTreeSet<LaneId>) -> Result<Vec<LaneId>, Fault> {
    let rows = client.query_typed(NEXT, &lane_column(lanes).params()).await?;
    rows.iter().map(|row| Ok(LaneId::from_stored(get(row, 0)?))).collect()
}

/// What waits in the queues of workers behind other tasks, in the order of the queue.
pub(super) async fn ahead(client: &Client, now: Timestamp) -> Result<Vec<Ahead>, Fault> {
    client.query_typed(AHEAD, &[]).await?.iter().map(|row| ahead_row(row, now)).collect()
}

fn ahead_row(row: &Row, now: Timestamp) -> Result<Ahead, Fault> {
    let corrupt = |error: &dyn std::fmt::Display| Error::Corrupt(error.to_string());
    let priority: i16 = get(row, 5)?;
    let name = |name: String| WorkerId::new(name).map_err(|error| corrupt(&error));
    let avoid = get::<Option<String>>(row, 8)?.map(name).transpose()?;
    let candidate = Candidate {
        id: TaskId(get(row, 0)?),
        lane: LaneId::from_stored(get(row, 3)?),
        rank: get(row, 4)?,
        priority: remuda_core::Priority::new(i64::from(priority)).map_err(|error| corrupt(&error))?,
        affinity: get(row, 6)?,
        avoid: avoids(avoid, get(row, 9)?, now),
        since: get(row, 7)?,
    };
    Ok(Ahead { candidate, worker: name(get(row, 1)?)?, wanted: get(row, 2)?, cancelled: get(row, 10)? })
}

/// Looks deeper into the lanes: what is in front may not be for these workers.
pub(super) async fn candidates(
    client: &Client,
    lanes: &BTreeSet<LaneId>,
    depth: i64,
) -> Result<Vec<Task>, Fault> {
    let columns = locked(&BTreeSet::new(), lanes, depth);
    rows::tasks(&client.query_typed(LOAD, &columns.params()).await?)
}

/// What a lane asks for.
pub(super) async fn requires(client: &Client, lane: &LaneId) -> Result<Requirements, Fault> {
    let columns = Columns::default().with(Type::TEXT, lane.as_str());
    let rows =
        client.query_typed("SELECT requires FROM remuda.lane WHERE id = $1", &columns.params()).await?;
    let Some(row) = rows.first() else { return Ok(Requirements::default()) };
    let Json(requires) = get::<Json<Requirements>>(row, 0)?;
    Ok(requires)
}
