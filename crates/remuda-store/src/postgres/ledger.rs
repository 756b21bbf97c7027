//! How much each tenant has used up, what shapes cost and how far lanes have come: the numbers behind ranks.
//!
//! Every submission needs them and moves them, so a row in the database that all of them lock would let only one
//! batch of a tenant through at a time. They are kept here instead, and brought together with what other processes
//! counted several times a second. A crash loses a moment of accounts, never a task.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use postgres_types::Type;
use remuda_core::schedule::{TenantClock, UNKNOWN_COST_MS, learn_cost};
use remuda_core::{LaneId, Priority, Tenant};
use tokio::sync::Notify;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::{self, get};

/// Between two settlements with the database.
const PAUSE: Duration = Duration::from_millis(50);
/// What was not compared with the database for this long is read again before it is used.
const STALE: Duration = Duration::from_secs(1);
/// More entries than this are not kept.
const KEPT: usize = 20_000;

/// The accounts of this process.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    tenants: HashMap<Tenant, Account>,
    shapes: HashMap<i64, Cost>,
    lanes: HashMap<LaneId, i64>,
    /// What the database does not know yet.
    open: Open,
}

#[derive(Debug)]
struct Account {
    clock: TenantClock,
    read: Instant,
}

#[derive(Debug)]
struct Cost {
    ms: Option<i64>,
    read: Instant,
}

#[derive(Debug, Default)]
struct Open {
    /// What tenants used since the last settlement, as clocks that began at zero.
    charges: BTreeMap<Tenant, TenantClock>,
    /// What tasks of these shapes took, first to last.
    measured: BTreeMap<i64, Vec<i64>>,
    lanes: BTreeMap<LaneId, i64>,
}

impl Open {
    fn is_empty(&self) -> bool {
        self.charges.is_empty() && self.measured.is_empty() && self.lanes.is_empty()
    }
}

fn later(clock: &mut TenantClock, other: &TenantClock) {
    for (moment, other) in clock.vfinish.iter_mut().zip(other.vfinish) {
        *moment = (*moment).max(other);
    }
    clock.weight = other.weight;
}

/// A clock that another process moved, moved by our own charges too.
fn settle(stored: &TenantClock, ours: &TenantClock, charge: &TenantClock) -> TenantClock {
    let mut settled = stored.clone();
    let moments = settled.vfinish.iter_mut().zip(ours.vfinish).zip(charge.vfinish);
    for ((moment, ours), charge) in moments {
        let start = ours.saturating_sub(charge);
        *moment = (*moment).max(start).saturating_add(charge);
    }
    settled
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Those tenants and shapes that must be read before they are used.
    pub(super) fn missing<'a>(
        &self,
        tenants: &BTreeSet<&'a Tenant>,
        shapes: &BTreeSet<i64>,
    ) -> (Vec<&'a Tenant>, Vec<i64>) {
        let state = self.state();
        let old_account = |tenant: &&&Tenant| {
            state.tenants.get(**tenant).is_none_or(|account| account.read.elapsed() > STALE)
        };
        let old_cost = |shape: &&i64| state.shapes.get(*shape).is_none_or(|cost| cost.read.elapsed() > STALE);
        let tenants = tenants.iter().filter(old_account).copied().collect();
        (tenants, shapes.iter().filter(old_cost).copied().collect())
    }

    /// What was read. A tenant or shape that is not in the database has nothing.
    pub(super) fn learn(
        &self,
        asked: (&[&Tenant], &[i64]),
        clocks: &BTreeMap<Tenant, TenantClock>,
        costs: &HashMap<i64, i64>,
    ) {
        let mut state = self.state();
        let read = Instant::now();
        for tenant in asked.0 {
            let stored = clocks.get(*tenant).cloned().unwrap_or_default();
            let account = state
                .tenants
                .entry((*tenant).clone())
                .or_insert_with(|| Account { clock: stored.clone(), read });
            later(&mut account.clock, &stored);
            account.read = read;
        }
        for shape in asked.1 {
            // What was measured here and not settled yet is newer.
            if !state.open.measured.contains_key(shape) {
                state.shapes.insert(*shape, Cost { ms: costs.get(shape).copied(), read });
            }
        }
    }

    /// What a task of this shape is expected to cost.
    pub(super) fn cost(&self, shape: i64) -> i64 {
        self.state().shapes.get(&shape).and_then(|cost| cost.ms).unwrap_or(UNKNOWN_COST_MS)
    }

    /// The rank of a new task of a tenant, which pays for it.
    pub(super) fn enter(&self, tenant: &Tenant, head: i64, priority: Priority, cost_ms: i64) -> i64 {
        let mut state = self.state();
        let account = state
            .tenants
            .entry(tenant.clone())
            .or_insert_with(|| Account { clock: TenantClock::default(), read: Instant::now() });
        let rank = account.clock.enter(head, priority, cost_ms);
        let weight = account.clock.weight;
        let charge = state.open.charges.entry(tenant.clone());
        let charge = charge.or_insert_with(|| TenantClock { weight, ..TenantClock::default() });
        charge.enter(0, priority, cost_ms);
        drop(state);
        self.wake.notify_one();
        rank
    }

    /// A task of this shape took this long.
    pub(super) fn measured(&self, shape: i64, ms: i64) {
        let mut state = self.state();
        let cost = state.shapes.entry(shape).or_insert_with(|| Cost { ms: None, read: Instant::now() });
        cost.ms = Some(learn_cost(cost.ms, ms));
        state.open.measured.entry(shape).or_default().push(ms);
        drop(state);
        self.wake.notify_one();
    }

    /// How far a lane has come.
    pub(super) fn v(&self, lane: &LaneId) -> i64 {
        self.state().lanes.get(lane).copied().unwrap_or(0)
    }

    /// A lane came so far, as the database says.
    pub(super) fn came(&self, lane: LaneId, v: i64) {
        let mut state = self.state();
        let known = state.lanes.entry(lane).or_insert(v);
        *known = (*known).max(v);
    }

    /// These lanes are not known any more. How far they came is in the database, or on its way.
    pub(super) fn forget_lanes(&self, lanes: &[LaneId]) {
        if lanes.is_empty() {
            return;
        }
        let mut state = self.state();
        for lane in lanes {
            state.lanes.remove(lane);
        }
    }

    /// Tasks of these ranks were claimed.
    pub(super) fn advance(&self, to: BTreeMap<LaneId, i64>) {
        if to.is_empty() {
            return;
        }
        let mut state = self.state();
        for (lane, v) in to {
            let known = state.lanes.entry(lane.clone()).or_insert(i64::MIN);
            if *known < v {
                *known = v;
                state.open.lanes.insert(lane, v);
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    fn take(&self) -> (Open, BTreeMap<Tenant, TenantClock>) {
        let mut state = self.state();
        let open = std::mem::take(&mut state.open);
        let clock = |tenant: &Tenant| state.tenants.get(tenant).map(|account| account.clock.clone());
        let clocks =
            open.charges.keys().filter_map(|tenant| Some((tenant.clone(), clock(tenant)?))).collect();
        (open, clocks)
    }

    /// It could not be written: it is open again.
    fn reopen(&self, open: Open) {
        let mut state = self.state();
        for (tenant, charge) in open.charges {
            let sum = state
                .open
                .charges
                .entry(tenant)
                .or_insert_with(|| TenantClock { weight: charge.weight, ..TenantClock::default() });
            for (sum, charge) in sum.vfinish.iter_mut().zip(charge.vfinish) {
                *sum = sum.saturating_add(charge);
            }
        }
        if state.open.measured.len() < KEPT {
            for (shape, mut measured) in open.measured {
                let since = state.open.measured.entry(shape).or_default();
                measured.append(since);
                // The oldest ones hardly count any more.
                let old = measured.len().saturating_sub(32);
                *since = measured.split_off(old);
            }
        }
        for (lane, v) in open.lanes {
            let known = state.open.lanes.entry(lane).or_insert(v);
            *known = (*known).max(v);
        }
    }

    /// What the database says now, our own included.
    fn settled(&self, clocks: BTreeMap<Tenant, TenantClock>, costs: &BTreeMap<i64, i64>) {
        let mut state = self.state();
        let read = Instant::now();
        if state.tenants.len() > KEPT {
            state.tenants.retain(|_, account| account.read.elapsed() < STALE);
        }
        if state.shapes.len() > KEPT {
            state.shapes.retain(|_, cost| cost.read.elapsed() < STALE);
        }
        for (tenant, stored) in clocks {
            if let Some(account) = state.tenants.get_mut(&tenant) {
                later(&mut account.clock, &stored);
                account.read = read;
            }
        }
        for (shape, ms) in costs {
            if !state.open.measured.contains_key(shape) {
                state.shapes.insert(*shape, Cost { ms: Some(*ms), read });
            }
        }
    }
}

/// Settles accounts until the store is closed, and once more then.
pub(super) async fn run(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = inner.ledger.wake.notified() => {}
        }
        inner.settle_accounts().await;
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

const LOCK_CLOCKS: &str =
    "SELECT tenant, vfinish, weight FROM remuda.tenant WHERE tenant = ANY($1) ORDER BY tenant FOR UPDATE";
const LOCK_SHAPES: &str =
    "SELECT shape, cost_ms FROM remuda.shape WHERE shape = ANY($1) ORDER BY shape FOR UPDATE";
const SET_CLOCKS: &str = "INSERT INTO remuda.tenant AS t (tenant, vfinish, weight) \
    SELECT u.tenant, u.vfinish::bigint[], u.weight FROM unnest($1, $2, $3) AS u(tenant, vfinish, weight) \
    ON CONFLICT (tenant) DO UPDATE SET vfinish = excluded.vfinish";
const SET_SHAPES: &str = "INSERT INTO remuda.shape (shape, cost_ms) SELECT * FROM unnest($1, $2) \
    ON CONFLICT (shape) DO UPDATE SET cost_ms = excluded.cost_ms";
const SET_LANES: &str = "WITH u AS (SELECT l.id, u.v FROM unnest($1, $2) AS u(id, v) JOIN remuda.lane l ON l.id = u.id \
    WHERE l.v < u.v ORDER BY l.id FOR UPDATE OF l) UPDATE remuda.lane AS l SET v = u.v FROM u WHERE l.id = u.id";

impl Inner {
    /// Brings the accounts of this process and the database's together.
    pub(super) async fn settle_accounts(&self) {
        let (open, ours) = self.ledger.take();
        if open.is_empty() {
            return;
        }
        match self.sessions.bounded(self.write_accounts(&open, &ours)).await {
            Ok((clocks, costs)) => self.ledger.settled(clocks, &costs),
            Err(fault) => {
                tracing::debug!(?fault, "could not write the accounts of tenants, tries again");
                self.ledger.reopen(open);
            }
        }
    }

    async fn write_accounts(
        &self,
        open: &Open,
        ours: &BTreeMap<Tenant, TenantClock>,
    ) -> Result<(BTreeMap<Tenant, TenantClock>, BTreeMap<i64, i64>), Fault> {
        let transaction = self.sessions.begin().await?;
        // Losing it in a crash of the server does no harm, so nobody waits for the disk.
        transaction.execute("SET LOCAL synchronous_commit = off", &[]).await?;
        let mut clocks = BTreeMap::new();
        if !open.charges.is_empty() {
            let names = each(open.charges.keys(), |tenant| tenant.as_str());
            let mut stored = HashMap::new();
            for row in transaction.query(LOCK_CLOCKS, &[(&names, Type::TEXT_ARRAY)]).await? {
                stored.insert(get::<String>(&row, 0)?, rows::clock_at(&row, 1)?);
            }
            for (tenant, charge) in &open.charges {
                let Some(ours) = ours.get(tenant) else { continue };
                let clock =
                    stored.get(tenant.as_str()).map_or_else(|| ours.clone(), |s| settle(s, ours, charge));
                clocks.insert(tenant.clone(), clock);
            }
            let array = |clock: &TenantClock| {
                let moments: Vec<String> = clock.vfinish.iter().map(i64::to_string).collect();
                format!("{{{}}}", moments.join(","))
            };
            let columns = Columns::default()
                .with(Type::TEXT_ARRAY, each(clocks.keys(), |tenant| tenant.as_str()))
                .with(Type::TEXT_ARRAY, each(clocks.values(), array))
                .with(Type::INT8_ARRAY, each(clocks.values(), |clock| clock.weight));
            transaction.execute(SET_CLOCKS, &columns.params()).await?;
        }
        let mut costs = BTreeMap::new();
        if !open.measured.is_empty() {
            let shapes = each(open.measured.keys(), |shape| *shape);
            for row in transaction.query(LOCK_SHAPES, &[(&shapes, Type::INT8_ARRAY)]).await? {
                costs.insert(get::<i64>(&row, 0)?, get::<i64>(&row, 1)?);
            }
            for (shape, measured) in &open.measured {
                for ms in measured {
                    let cost = learn_cost(costs.get(shape).copied(), *ms);
                    costs.insert(*shape, cost);
                }
            }
            let columns = Columns::default()
                .with(Type::INT8_ARRAY, each(costs.keys(), |shape| *shape))
                .with(Type::INT8_ARRAY, each(costs.values(), |cost| *cost));
            transaction.execute(SET_SHAPES, &columns.params()).await?;
        }
        if !open.lanes.is_empty() {
            let columns = Columns::default()
                .with(Type::TEXT_ARRAY, each(open.lanes.keys(), |lane| lane.as_str()))
                .with(Type::INT8_ARRAY, each(open.lanes.values(), |v| *v));
            transaction.execute(SET_LANES, &columns.params()).await?;
        }
        transaction.commit().await?;
        Ok((clocks, costs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(moment: i64) -> TenantClock {
        TenantClock { vfinish: [moment; Priority::LEVELS], weight: 1000 }
    }

    #[test]
    fn what_two_processes_charge_adds_up_and_jumps_do_not() {
        let tenant = Tenant::default_tenant();
        let ledger = Ledger::default();
        // Idle for long: it begins where the queue is, and pays for two tasks.
        assert_eq!(ledger.enter(&tenant, 1_000_000, Priority::default(), 10), 1_000_000);
        assert_eq!(ledger.enter(&tenant, 1_000_000, Priority::default(), 10), 1_000_010);
        let (open, ours) = ledger.take();
        let settled = settle(&clock(1_000_007), &ours[&tenant], &open.charges[&tenant]);
        assert_eq!(settled.vfinish[0], 1_000_027);
        let settled = settle(&clock(3), &ours[&tenant], &open.charges[&tenant]);
        assert_eq!(settled.vfinish[0], 1_000_020);
        // Not written: the next settlement has it all.
        ledger.reopen(open);
        ledger.enter(&tenant, 0, Priority::default(), 5);
        assert_eq!(ledger.take().0.charges[&tenant].vfinish[0], 25);
    }
}
