//! The lanes of tasks that have not ended.
//!
//! Whoever submits chooses what a task requires, and so how many lanes there are. A lane is remembered from its first
//! unfinished task to the end of its last, and a claim looks only into the few whose first tasks are next: neither
//! grows with what was ever asked for. A lane's name is made of its requirements, so whatever was found out about a name
//! stays true when the lane is forgotten and comes back.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use remuda_core::{Capabilities, Lane, LaneId, Requirements, Tenant};
use rusqlite::{Connection, OptionalExtension as _};

use super::fault::Outcome;
use super::rows::{self, json_text};

/// For how many different offers of workers it is remembered which lanes they fit.
const OFFERS: usize = 256;

/// What is known of the first task in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    Empty,
    Rank(i64),
    /// The first one left: the next has this rank or a later one, if there is one.
    From(i64),
}

impl Head {
    fn rank(self) -> Option<i64> {
        match self {
            Self::Empty => None,
            Self::Rank(rank) | Self::From(rank) => Some(rank),
        }
    }
}

#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) requires: Arc<Requirements>,
    v: i64,
    head: Head,
    /// How many unfinished tasks are in it.
    tasks: u64,
}

/// Which lanes an offer fits.
#[derive(Debug)]
struct Fit {
    /// Held, so that its address is no other's.
    offer: Arc<Capabilities>,
    lanes: HashSet<LaneId>,
}

/// What readers know of the lanes: what each asks for. Shared with the writer.
#[derive(Debug, Default, Clone)]
pub(super) struct Shared {
    known: Arc<RwLock<HashMap<LaneId, Arc<Requirements>>>>,
}

impl Shared {
    /// What a lane asks for.
    pub(super) fn requires(&self, id: &LaneId) -> Option<Arc<Requirements>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Up to this many of the lanes from which every worker is served that satisfies `needs`, and whether these are all.
    pub(super) fn within(&self, needs: &Requirements, most: usize) -> (Vec<LaneId>, bool) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = known.iter().filter(|(_, requires)| needs.include(requires)).map(|(id, _)| id);
        let some = lanes.by_ref().take(most).cloned().collect();
        (some, lanes.next().is_none())
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Lane> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let lane = |(id, requires): (&LaneId, &Arc<Requirements>)| Lane {
            id: id.clone(),
            requires: (**requires).clone(),
        };
        let mut all: Vec<Lane> = known.iter().map(lane).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    fn put(&self, id: LaneId, requires: Arc<Requirements>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(id, requires);
    }

    fn remove(&self, id: &LaneId) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// What the writer knows of them.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    known: HashMap<LaneId, LaneState>,
    /// Those in which something may be queued, by their first tasks.
    ready: BTreeSet<(i64, LaneId)>,
    /// How many unfinished tasks of a tenant are in each.
    tenants: HashMap<Tenant, HashMap<LaneId, u64>>,
    /// Those that came further than the file says.
    changed: HashSet<LaneId>,
    /// By the address of the offer.
    fits: HashMap<usize, Fit>,
    pub(super) shared: Shared,
}

impl Lanes {
    /// Reads the lanes of all unfinished tasks; `running` are those under a lease.
    pub(super) fn load<'a>(
        &mut self,
        db: &Connection,
        running: impl Iterator<Item = (&'a Tenant, &'a LaneId)>,
    ) -> Outcome<()> {
        let shared = std::mem::take(&mut self.shared);
        *self = Self { shared, ..Self::default() };
        let mut tenants: HashMap<Tenant, HashMap<LaneId, u64>> = HashMap::new();
        for (tenant, lane) in running {
            *tenants.entry(tenant.clone()).or_default().entry(lane.clone()).or_default() += 1;
        }
        let sql = "SELECT tenant, lane, count(*) FROM task WHERE status = 'pending' GROUP BY tenant, lane";
        let mut statement = db.prepare_cached(sql)?;
        let mut found = statement.query(())?;
        while let Some(row) = found.next()? {
            let tenant = Tenant::new(row.get::<_, String>(0)?)
                .map_err(|error| super::fault::corrupt("a tenant", error))?;
            let (lane, n) = (LaneId::from_stored(row.get(1)?), row.get::<_, i64>(2)?);
            *tenants.entry(tenant).or_default().entry(lane).or_default() += u64::try_from(n).unwrap_or(0);
        }
        let mut known = HashMap::new();
        for (id, tasks) in tenants.values().flatten() {
            if !self.known.contains_key(id) {
                let Some((requires, v)) = stored(db, id)? else {
                    tracing::warn!(lane = %id, "tasks wait in a lane that the store does not have");
                    continue;
                };
                let requires = Arc::new(requires);
                known.insert(id.clone(), Arc::clone(&requires));
                let lane = LaneState { requires, v, head: Head::Empty, tasks: 0 };
                self.known.insert(id.clone(), lane);
                let head = first(db, id)?;
                self.set_head(id, head);
            }
            if let Some(lane) = self.known.get_mut(id) {
                lane.tasks += tasks;
            }
        }
        self.tenants = tenants;
        *self.shared.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    pub(super) fn get(&self, id: &LaneId) -> Option<&LaneState> {
        self.known.get(id)
    }

    /// A lane is known from the first task in it on.
    pub(super) fn ensure(&mut self, db: &Connection, id: &LaneId, requires: &Requirements) -> Outcome<()> {
        if self.known.contains_key(id) {
            return Ok(());
        }
        let sql = "SELECT v FROM lane WHERE id = ?";
        let v = db.prepare_cached(sql)?.query_row((id.as_str(),), |row| row.get(0)).optional()?;
        if v.is_none() {
            let sql = "INSERT INTO lane (id, requires, v) VALUES (?, ?, 0)";
            db.prepare_cached(sql)?.execute((id.as_str(), json_text(requires)?))?;
        }
        let requires = Arc::new(requires.clone());
        for fit in self.fits.values_mut().filter(|fit| requires.satisfied_by(&fit.offer)) {
            fit.lanes.insert(id.clone());
        }
        self.shared.put(id.clone(), Arc::clone(&requires));
        let lane = LaneState { requires, v: v.unwrap_or(0), head: Head::Empty, tasks: 0 };
        self.known.insert(id.clone(), lane);
        Ok(())
    }

    /// In how many lanes a tenant has tasks, and whether this is one of them. What asks for nothing is always possible, and does
    /// not count.
    pub(super) fn of_tenant(&self, tenant: &Tenant, id: &LaneId) -> (u64, bool) {
        let any = LaneId::any();
        let Some(lanes) = self.tenants.get(tenant) else { return (0, *id == any) };
        let count = lanes.len() - usize::from(lanes.contains_key(&any));
        (count as u64, *id == any || lanes.contains_key(id))
    }

    /// A task that has not ended came into a lane.
    pub(super) fn enter(&mut self, tenant: &Tenant, id: &LaneId) {
        let lanes = match self.tenants.get_mut(tenant) {
            Some(lanes) => lanes,
            None => self.tenants.entry(tenant.clone()).or_default(),
        };
        match lanes.get_mut(id) {
            Some(tasks) => *tasks += 1,
            None => _ = lanes.insert(id.clone(), 1),
        }
        if let Some(lane) = self.known.get_mut(id) {
            lane.tasks += 1;
        }
    }

    /// A task in a lane ended, or went to another. With its last task a lane is forgotten.
    pub(super) fn leave(&mut self, db: &Connection, tenant: &Tenant, id: &LaneId) -> Outcome<()> {
        if let Some(lanes) = self.tenants.get_mut(tenant)
            && let Some(tasks) = lanes.get_mut(id)
        {
            *tasks = tasks.saturating_sub(1);
            if *tasks == 0 {
                lanes.remove(id);
            }
            if lanes.is_empty() {
                self.tenants.remove(tenant);
            }
        }
        let Some(lane) = self.known.get_mut(id) else { return Ok(()) };
        lane.tasks = lane.tasks.saturating_sub(1);
        // The one that most tasks wait in would come and go all the time.
        if lane.tasks > 0 || *id == LaneId::any() {
            return Ok(());
        }
        self.set_head(id, Head::Empty);
        if let Some(lane) = self.known.remove(id)
            && self.changed.remove(id)
        {
            db.prepare_cached("UPDATE lane SET v = ? WHERE id = ?")?.execute((lane.v, id.as_str()))?;
        }
        for fit in self.fits.values_mut() {
            fit.lanes.remove(id);
        }
        self.shared.remove(id);
        self.remove_row(db, id)
    }

    /// Removes the row of a lane that no unfinished task is in and no stored task came with.
    pub(super) fn remove_row(&self, db: &Connection, id: &LaneId) -> Outcome<()> {
        if *id == LaneId::any() || self.known.contains_key(id) {
            return Ok(());
        }
        let sql = "DELETE FROM lane WHERE id = ?1 AND NOT EXISTS \
                   (SELECT 1 FROM input_row WHERE input_row.lane = ?1 AND input_row.lane <> 'any')";
        db.prepare_cached(sql)?.execute((id.as_str(),))?;
        Ok(())
    }

    /// A task is queued in a lane.
    pub(super) fn queued(&mut self, id: &LaneId, rank: i64) {
        let Some(lane) = self.known.get(id) else { return };
        match lane.head {
            Head::From(from) if from < rank => {}
            Head::Rank(first) if first <= rank => {}
            Head::Empty | Head::Rank(_) | Head::From(_) => self.set_head(id, Head::Rank(rank)),
        }
    }

    /// A task is queued there no longer.
    pub(super) fn unqueued(&mut self, id: &LaneId, rank: i64) {
        if let Some(lane) = self.known.get(id)
            && matches!(lane.head, Head::Rank(first) if first >= rank)
        {
            self.set_head(id, Head::From(rank));
        }
    }

    /// This is known of the first task of a lane.
    pub(super) fn set_head(&mut self, id: &LaneId, head: Head) {
        let Some(lane) = self.known.get_mut(id) else { return };
        let before = std::mem::replace(&mut lane.head, head);
        if before.rank() != head.rank() {
            if let Some(rank) = before.rank() {
                self.ready.remove(&(rank, id.clone()));
            }
            if let Some(rank) = head.rank() {
                self.ready.insert((rank, id.clone()));
            }
        }
    }

    /// The rank of the first task in a lane, or what it was when there was one.
    pub(super) fn front(&mut self, db: &Connection, id: &LaneId) -> Outcome<i64> {
        self.look(db, id)?;
        match self.known.get(id) {
            Some(LaneState { head: Head::Rank(rank), .. }) => Ok(*rank),
            Some(lane) => Ok(lane.v),
            None => {
                let sql = "SELECT v FROM lane WHERE id = ?";
                let v = db.prepare_cached(sql)?.query_row((id.as_str(),), |row| row.get(0)).optional()?;
                Ok(v.unwrap_or(0))
            }
        }
    }

    /// Looks for the first task of a lane, if the one before has left.
    fn look(&mut self, db: &Connection, id: &LaneId) -> Outcome<()> {
        if self.known.get(id).is_some_and(|lane| matches!(lane.head, Head::From(_))) {
            let head = first(db, id)?;
            self.set_head(id, head);
        }
        Ok(())
    }

    /// Something of this rank was claimed.
    pub(super) fn came(&mut self, id: &LaneId, rank: i64) {
        if let Some(lane) = self.known.get_mut(id)
            && lane.v < rank
        {
            lane.v = rank;
            self.changed.insert(id.clone());
        }
    }

    /// Whether this offer may be served from this lane.
    pub(super) fn fits(&self, offer: &Arc<Capabilities>, id: &LaneId) -> bool {
        match self.fits.get(&address(offer)) {
            Some(fit) => fit.lanes.contains(id),
            None => self.known.get(id).is_some_and(|lane| lane.requires.satisfied_by(offer)),
        }
    }

    /// The lanes that an offer may be served from, with something in them: those with the earliest first tasks, in their
    /// order, after `skip` of them. No more than `most`.
    pub(super) fn next(
        &mut self,
        db: &Connection,
        offer: &Arc<Capabilities>,
        skip: usize,
        most: usize,
    ) -> Outcome<Vec<LaneId>> {
        self.note_offer(offer);
        loop {
            let Some(fit) = self.fits.get(&address(offer)) else { return Ok(Vec::new()) };
            // Whichever are fewer: there may be many lanes for workers that are not there, or with nothing to do now.
            let lanes: Vec<LaneId> = if fit.lanes.len() < self.ready.len() {
                let head = |id: &LaneId| Some((self.known.get(id)?.head.rank()?, id.clone()));
                let mut heads: Vec<(i64, LaneId)> = fit.lanes.iter().filter_map(head).collect();
                heads.sort_unstable();
                heads.into_iter().skip(skip).take(most).map(|(_, id)| id).collect()
            } else {
                let fitting = self.ready.iter().filter(|(_, id)| fit.lanes.contains(id));
                fitting.skip(skip).take(most).map(|(_, id)| id.clone()).collect()
            };
            let vague =
                |id: &&LaneId| self.known.get(*id).is_some_and(|lane| matches!(lane.head, Head::From(_)));
            let vague: Vec<LaneId> = lanes.iter().filter(vague).cloned().collect();
            if vague.is_empty() {
                return Ok(lanes);
            }
            for id in &vague {
                self.look(db, id)?;
            }
        }
    }

    fn note_offer(&mut self, offer: &Arc<Capabilities>) {
        if self.fits.contains_key(&address(offer)) {
            return;
        }
        if self.fits.len() >= OFFERS {
            // What nobody else holds does not come again.
            self.fits.retain(|_, fit| Arc::strong_count(&fit.offer) > 1);
        }
        if self.fits.len() >= OFFERS {
            self.fits.clear();
        }
        let fits = self.known.iter().filter(|(_, lane)| lane.requires.satisfied_by(offer));
        let lanes = fits.map(|(id, _)| id.clone()).collect();
        self.fits.insert(address(offer), Fit { offer: Arc::clone(offer), lanes });
    }

    /// Writes how far lanes came.
    pub(super) fn flush(&mut self, db: &Connection) -> Outcome<()> {
        for id in self.changed.drain() {
            let v = self.known.get(&id).map(|lane| lane.v);
            db.prepare_cached("UPDATE lane SET v = ? WHERE id = ? AND v < ?1")?.execute((v, id.as_str()))?;
        }
        Ok(())
    }
}

fn address(offer: &Arc<Capabilities>) -> usize {
    Arc::as_ptr(offer).addr()
}

/// What the file has of a lane: what it asks for, and how far it came.
pub(super) fn stored(db: &Connection, id: &LaneId) -> Outcome<Option<(Requirements, i64)>> {
    let mut statement = db.prepare_cached("SELECT requires, v FROM lane WHERE id = ?")?;
    let mut found = statement.query((id.as_str(),))?;
    found.next()?.map(|row| Ok((rows::requires(row, 0)?, row.get(1)?))).transpose()
}

fn first(db: &Connection, id: &LaneId) -> Outcome<Head> {
    let sql = "SELECT rank FROM task WHERE reason = 'queued' AND lane = ? ORDER BY rank LIMIT 1";
    let rank = db.prepare_cached(sql)?.query_row((id.as_str(),), |row| row.get(0)).optional()?;
    Ok(rank.map_or(Head::Empty, Head::Rank))
}
