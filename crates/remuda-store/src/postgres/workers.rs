//! Workers and what runs on them: who drives which, and taking over what another process left.

use std::collections::{HashMap, HashSet};

use postgres_types::{Json, Type};
use remuda_core::acquire::{Acquisition, Applicant, Holdings, KnownWorker, acquire, is_free};
use remuda_core::{
    Claim, Fence, KeyId, Lease, LeaseRef, OwnerId, Registration, Status, Task, TaskId, Timestamp, Worker,
    WorkerId, WorkerSpec, transition,
};
use uuid::Uuid;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::registrations;
use super::rows::{self, get, lease_columns};
use super::save::{Save, Tidings};
use super::session::{Transaction, attempt};
use super::tasks::lock_all;
use crate::requests::Armful;
use crate::{Acquired, AdoptRequest, Error, Registrant, Result};

const LEASES_ON: &str =
    concat!("SELECT ", lease_columns!(), " FROM remuda.lease l WHERE l.worker = $1 ORDER BY l.task");

/// Leases of tasks that are locked, so that nobody but a beat can change them; not even that until we are done.
pub(super) async fn lock_leases(transaction: &Transaction, ids: &[Uuid]) -> Result<Vec<Lease>, Fault> {
    const LOCK: &str = concat!(
        "SELECT ",
        lease_columns!(),
        " FROM remuda.lease l WHERE l.task = ANY($1) ORDER BY l.task FOR UPDATE"
    );
    let rows = transaction.query(LOCK, &[(&ids, Type::UUID_ARRAY)]).await?;
    rows.iter().map(rows::lease).collect()
}

impl Inner {
    pub(super) async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        let read = async || {
            let rows = self.sessions.query(LEASES_ON, &[(&worker.as_str(), Type::TEXT)]).await?;
            rows.iter().map(rows::lease).collect()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>> {
        let held = async || {
            let statement = "SELECT 1 FROM remuda.worker WHERE id = $1 AND owner = $2 AND held";
            let params = Columns::default().with(Type::TEXT, worker.as_str()).with(Type::UUID, owner.0);
            let rows = self.sessions.query(statement, &params.params()).await?;
            if rows.is_empty() { Err(Error::Fenced.into()) } else { Ok(()) }
        };
        let held: Result<()> = attempt!(self.sessions, held());
        held?;
        self.leases(worker).await
    }

    pub(super) async fn adopt(&self, request: &AdoptRequest) -> Result<Vec<Claim>> {
        let done: Result<(Vec<Claim>, Tidings)> = attempt!(self.sessions, self.try_adopt(request));
        let (mut claims, tidings) = done?;
        self.announce(tidings);
        self.open_secrets(claims.iter_mut()).await;
        Ok(claims)
    }

    async fn try_adopt(&self, request: &AdoptRequest) -> Result<(Vec<Claim>, Tidings), Fault> {
        let transaction = self.sessions.begin().await?;
        let now = transaction.now;
        let worker = find_worker(&transaction, &request.worker, false).await?;
        let holds = |held: &Held| {
            held.held && held.worker.owner == request.owner && held.worker.fence == request.worker_fence
        };
        if !worker.as_ref().is_some_and(holds) {
            transaction.rollback().await?;
            return Err(Error::Fenced.into());
        }
        let settled = self.sessions.is_settled(&transaction).await?;
        let known: HashSet<LeaseRef> = request.known.iter().copied().collect();
        let takes = |lease: &Lease| {
            let known = known.contains(&lease.reference());
            lease.is_for(request.owner, &request.worker, known, settled && lease.until < now)
        };
        let found = transaction.query(LEASES_ON, &[(&request.worker.as_str(), Type::TEXT)]).await?;
        let found: Vec<Lease> = found.iter().map(rows::lease).collect::<Result<_, _>>()?;
        let ids: Vec<Uuid> = found.iter().filter(|lease| takes(lease)).map(|lease| lease.task.0).collect();
        if ids.is_empty() {
            transaction.rollback().await?;
            return Ok((Vec::new(), Tidings::default()));
        }
        let ids = armful(&transaction, ids).await?;
        let tasks = lock_all(&transaction, &ids).await?;
        // Again under the lock: its holder may have come back in between.
        let leases = lock_leases(&transaction, &ids).await?;
        let policy = &self.sessions.options().policy;
        let mut save = Save::default();
        let mut adopted: Vec<(Task, Lease)> = Vec::new();
        for mut lease in leases.into_iter().filter(takes) {
            let Some(task) = tasks.iter().find(|task| task.id == lease.task) else { continue };
            let mut task = task.clone();
            if task.status != Status::Running || task.fence != lease.fence {
                continue;
            }
            let event =
                transition::adopt(&mut task, &mut lease, now, policy, request.owner, request.gateway.clone());
            save.changed(Status::Running, &task, Some(event), now);
            save.adopted.push(lease.clone());
            save.inputs.push(task.id);
            adopted.push((task, lease));
        }
        if adopted.is_empty() {
            transaction.rollback().await?;
            return Ok((Vec::new(), Tidings::default()));
        }
        let tidings = save.tidings();
        let mut inputs = save.commit(transaction.into_session(), self.side_shard()).await?;
        let mut claims = Vec::new();
        for (task, lease) in adopted {
            let missing = || Error::Corrupt(format!("task {} has no input", task.id));
            let input = inputs.remove(&task.id).ok_or_else(missing)?;
            claims.push(Claim { task, input, lease, adopted: true });
        }
        Ok((claims, tidings))
    }

    pub(super) async fn acquire_worker(&self, spec: &WorkerSpec, owner: OwnerId) -> Result<Acquired> {
        attempt!(self.sessions, self.try_acquire(spec, owner, None))
    }

    pub(super) async fn register_worker(
        &self,
        spec: &WorkerSpec,
        owner: OwnerId,
        by: &Registrant,
    ) -> Result<Acquired> {
        attempt!(self.sessions, self.try_acquire(spec, owner, Some(by)))
    }

    async fn try_acquire(
        &self,
        spec: &WorkerSpec,
        owner: OwnerId,
        by: Option<&Registrant>,
    ) -> Result<Acquired, Fault> {
        let transaction = self.sessions.begin().await?;
        let now = transaction.now;
        if let Some(by) = by {
            registrations::lock_key(&transaction, by.key).await?;
        }
        let found = find_worker(&transaction, &spec.id, true).await?;
        let registration = match &found {
            Some(_) => registrations::find(&transaction, &spec.id).await?,
            None => Registration::Before,
        };
        let is_free = match &found {
            Some(found) => found.is_free(self, &transaction).await?,
            None => true,
        };
        let known = found.as_ref().map(|found| KnownWorker {
            worker: &found.worker,
            registration: &registration,
            is_free,
        });
        let applicant = Applicant { owner, key: by.map(|by| (by.key, &by.tenant)) };
        let policy = &self.sessions.options().policy;
        let (worker, demand) = match acquire(spec, &applicant, known, now, policy) {
            Acquisition::Granted { worker, demand } => (*worker, demand),
            Acquisition::Held => {
                transaction.rollback().await?;
                let held = found.map(|found| Acquired::HeldBy(found.worker));
                return held
                    .ok_or_else(|| Error::Corrupt("somebody holds what is not there".to_owned()).into());
            }
            Acquisition::Taken => {
                transaction.rollback().await?;
                return Err(Error::Taken { id: spec.id.to_string() }.into());
            }
        };
        if let Some(by) = by.filter(|_| !demand.is_none()) {
            let workers = registrations::count(&transaction, by.key).await?;
            let bytes = registrations::bytes(&transaction, by.key, &spec.id).await?;
            if let Err(excess) = demand.admit(Holdings { workers, bytes }, by.allowance()) {
                transaction.rollback().await?;
                return Err(Error::from(excess).into());
            }
        }
        registrations::note(&transaction, &spec.id, by.map(|by| by.key)).await?;
        if found.is_some() {
            update(&transaction, &worker).await?
        } else {
            insert(&transaction, &worker).await?
        }
        transaction.commit().await?;
        Ok(Acquired::Yes(worker))
    }

    pub(super) async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()> {
        let release = async || {
            let now = self.sessions.options().clock.as_ref().map(|clock| clock.now());
            let statement = "UPDATE remuda.worker SET held = false, until = least(until, coalesce($3, now())) \
                WHERE id = $1 AND fence = $2 AND owner = $4 AND held RETURNING id";
            let params = Columns::default()
                .with(Type::TEXT, id.as_str())
                .with(Type::INT8, fence.0)
                .with(Type::TIMESTAMPTZ, now)
                .with(Type::UUID, owner.0);
            let rows = self.sessions.query(statement, &params.params()).await?;
            if rows.is_empty() { Err(Error::Fenced.into()) } else { Ok(()) }
        };
        attempt!(self.sessions, release())
    }

    pub(super) async fn forget_worker(&self, id: &WorkerId) -> Result<()> {
        attempt!(self.sessions, self.try_forget_worker(id))
    }

    async fn try_forget_worker(&self, id: &WorkerId) -> Result<(), Fault> {
        let transaction = self.sessions.begin().await?;
        let Some(found) = find_worker(&transaction, id, true).await? else {
            transaction.rollback().await?;
            return Err(Error::NotFound { what: "worker", id: id.to_string() }.into());
        };
        if !found.is_free(self, &transaction).await? {
            transaction.rollback().await?;
            return Err(Error::Fenced.into());
        }
        for statement in
            ["DELETE FROM remuda.worker WHERE id = $1", "DELETE FROM remuda.registration WHERE worker = $1"]
        {
            transaction.execute(statement, &[(&id.as_str(), Type::TEXT)]).await?;
        }
        transaction.commit().await
    }

    pub(super) async fn workers(&self) -> Result<Vec<Worker>> {
        let read = async || {
            let statement = format!("SELECT {} FROM remuda.worker ORDER BY id", rows::WORKER);
            let rows = self.sessions.query(&statement, &[]).await?;
            rows.iter().map(rows::worker).collect()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>> {
        let read = async || {
            let statement = "SELECT worker, key FROM remuda.registration WHERE key IS NOT NULL";
            let rows = self.sessions.query(statement, &[]).await?;
            rows.iter().map(registrations::pair).collect()
        };
        attempt!(self.sessions, read())
    }

    /// Tasks among these that still run.
    pub(super) async fn lose(&self, ids: &[Uuid]) -> Result<(Vec<TaskId>, Tidings), Fault> {
        let transaction = self.sessions.begin().await?;
        let now = transaction.now;
        let policy = &self.sessions.options().policy;
        let tasks = lock_all(&transaction, ids).await?;
        let leases = lock_leases(&transaction, &each(&tasks, |task| task.id.0)).await?;
        let driven = driven(&transaction, &leases).await?;
        let mut save = Save::default();
        let mut lost = Vec::new();
        for mut task in tasks {
            let Some(lease) = leases.iter().find(|lease| lease.task == task.id) else { continue };
            let over = policy.is_lost(lease.until, driven.get(&lease.worker).copied(), now);
            if !over || task.status != Status::Running || task.fence != lease.fence {
                continue;
            }
            let ended = transition::lose(&mut task, now, policy);
            save.ended(&task, ended, now);
            lost.push(task.id);
        }
        if lost.is_empty() {
            transaction.rollback().await?;
            return Ok((lost, Tidings::default()));
        }
        let tidings = save.commit_in(transaction, self.side_shard()).await?;
        Ok((lost, tidings))
    }
}

/// The first of these tasks, as many as are taken over at once. The rest stays as it is: the caller asks until nothing more
/// comes.
async fn armful(transaction: &Transaction, mut ids: Vec<Uuid>) -> Result<Vec<Uuid>, Fault> {
    let statement = "SELECT task, octet_length(placements::text)::bigint + octet_length(workflow) + \
        coalesce(octet_length(extra), 0) FROM remuda.task_input WHERE task = ANY($1)";
    let rows = transaction.query(statement, &[(&ids, Type::UUID_ARRAY)]).await?;
    let pair = |row| Ok((get(row, 0)?, get(row, 1)?));
    let sizes: HashMap<Uuid, i64> = rows.iter().map(pair).collect::<Result<_, Fault>>()?;
    let mut armful = Armful::default();
    let size = |id: &Uuid| sizes.get(id).and_then(|size| u64::try_from(*size).ok()).unwrap_or(0);
    let taken = ids.iter().take_while(|id| armful.takes(size(id))).count();
    ids.truncate(taken);
    Ok(ids)
}

/// A worker, and whether somebody drives it.
#[derive(Debug)]
struct Held {
    worker: Worker,
    held: bool,
}

impl Held {
    /// Whether it is nobody's.
    async fn is_free(&self, inner: &Inner, transaction: &Transaction) -> Result<bool, Fault> {
        let until = self.worker.until;
        let late = self.held && until < transaction.now;
        let settled = late && inner.sessions.is_settled(transaction).await?;
        Ok(is_free(self.held, until, transaction.now, settled))
    }
}

async fn find_worker(transaction: &Transaction, id: &WorkerId, lock: bool) -> Result<Option<Held>, Fault> {
    let lock = if lock { " FOR UPDATE" } else { "" };
    let statement = format!("SELECT {}, held FROM remuda.worker WHERE id = $1{lock}", rows::WORKER);
    let rows = transaction.query(&statement, &[(&id.as_str(), Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Held { worker: rows::worker(row)?, held: get(row, 10)? }))
}

/// Until when the workers of these leases are somebody's. Those that were let go are nobody's.
async fn driven(transaction: &Transaction, leases: &[Lease]) -> Result<HashMap<WorkerId, Timestamp>, Fault> {
    let ids = each(leases, |lease| lease.worker.as_str());
    let statement = "SELECT id, until FROM remuda.worker WHERE id = ANY($1) AND held";
    let rows = transaction.query(statement, &[(&ids, Type::TEXT_ARRAY)]).await?;
    rows.iter().map(|row| Ok((rows::parse(row, 0)?, get(row, 1)?))).collect()
}

fn columns(worker: &Worker) -> Columns<'_> {
    Columns::default()
        .with(Type::TEXT, worker.spec.id.as_str())
        .with(Type::TEXT, worker.spec.endpoint.as_str())
        .with(Type::TEXT, worker.spec.name.as_deref())
        .with(Type::TEXT_ARRAY, each(&worker.spec.labels, String::as_str))
        .with(Type::JSON, Json(&worker.report))
        .with(Type::UUID, worker.owner.0)
        .with(Type::INT8, worker.fence.0)
        .with(Type::TIMESTAMPTZ, worker.until)
        .with(Type::TIMESTAMPTZ, worker.created_at)
        .with(Type::TIMESTAMPTZ, worker.last_active_at)
}

async fn insert(transaction: &Transaction, worker: &Worker) -> Result<(), Fault> {
    let statement = "INSERT INTO remuda.worker (id, endpoint, name, labels, report, owner, fence, until, created_at, \
        last_active_at, held) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, true)";
    transaction.execute(statement, &columns(worker).params()).await.map(|_| ())
}

async fn update(transaction: &Transaction, worker: &Worker) -> Result<(), Fault> {
    let statement = "UPDATE remuda.worker SET endpoint = $2, name = $3, labels = $4, report = $5, owner = $6, \
        fence = $7, until = $8, created_at = $9, last_active_at = $10, held = true WHERE id = $1";
    transaction.execute(statement, &columns(worker).params()).await.map(|_| ())
}
