//! Who may drive a worker.

use crate::{
    Fence, Health, KeyId, OwnerId, Policy, Registration, Tenant, Timestamp, Worker, WorkerReport, WorkerSpec,
};

/// A process that wants to drive a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applicant<'a> {
    /// Which.
    pub owner: OwnerId,
    /// The key that it showed and whose it is, when it is a process elsewhere.
    pub key: Option<(KeyId, &'a Tenant)>,
}

/// What is known of the worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownWorker<'a> {
    /// As it is kept.
    pub worker: &'a Worker,
    /// On whose word it is known.
    pub registration: &'a Registration,
    /// Whether nobody holds it: see [`is_free`].
    pub is_free: bool,
}

/// Whether the process may have the worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Acquisition {
    /// It may, and this is what is to be kept.
    Granted {
        /// The worker in its hands.
        worker: Box<Worker>,
        /// What its key must have room for.
        demand: Demand,
    },
    /// Another process drives it.
    Held,
    /// The name is another key's, or the installation's.
    Taken,
}

/// What a registration takes of what its key may have. A worker that a key has may come again as it was, however many it has by
/// now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// It is a further worker.
    pub further: bool,
    /// What the worker is registered with, if that is new: see [`WorkerSpec::bytes`].
    pub bytes: Option<u64>,
}

/// What a key has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holdings {
    /// How many workers.
    pub workers: u64,
    /// How many bytes the other ones are registered with.
    pub bytes: u64,
}

/// What a key may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// How many workers.
    pub workers: u64,
    /// How many bytes of labels, names and endpoints all of them may be registered with.
    pub bytes: u64,
}

/// What a key would have too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// Workers.
    Workers,
    /// Labels, names and endpoints of workers.
    Labels,
}

impl Demand {
    /// Whether there is no need to know what the key has.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a key that has this much may have the worker, too.
    pub fn admit(&self, has: Holdings, most: Allowance) -> Result<(), Excess> {
        if self.further && has.workers >= most.workers {
            return Err(Excess::Workers);
        }
        if self.bytes.is_some_and(|bytes| has.bytes.saturating_add(bytes) > most.bytes) {
            return Err(Excess::Labels);
        }
        Ok(())
    }
}

/// Whether a worker is nobody's: it was let go, or its holder does not report any more, and had the time to come back after the
/// store was away (`settled`).
pub fn is_free(held: bool, until: Timestamp, now: Timestamp, settled: bool) -> bool {
    !held || (until < now && settled)
}

/// Whether a process may have a worker. A name that the installation uses is its own: a process elsewhere that took it before
/// has to give way.
pub fn acquire(
    spec: &WorkerSpec,
    by: &Applicant<'_>,
    known: Option<KnownWorker<'_>>,
    now: Timestamp,
    policy: &Policy,
) -> Acquisition {
    let registration = known.map_or(&Registration::Before, |known| known.registration);
    if by.key.is_some_and(|(key, tenant)| !registration.admits(key, tenant)) {
        return Acquisition::Taken;
    }
    let gives_way = by.key.is_none() && matches!(registration, Registration::Key { .. });
    if known.is_some_and(|known| !known.is_free && known.worker.owner != by.owner && !gives_way) {
        return Acquisition::Held;
    }
    let own = |key| matches!(registration, Registration::Key { id, .. } if *id == key);
    let further = by.key.is_some_and(|(key, _)| !own(key));
    let before = known.map(|known| known.worker);
    let grows = before.is_none_or(|before| spec.bytes() > before.spec.bytes());
    let bytes = (further || (by.key.is_some() && grows)).then_some(spec.bytes() as u64);
    let demand = Demand { further, bytes };
    // What was known of the ComfyUI is kept until its runner knows better.
    let report = before.map_or_else(WorkerReport::default, |before| WorkerReport {
        health: Health::Starting,
        object_info: before.report.object_info,
        identity: before.report.identity.clone(),
        ..WorkerReport::default()
    });
    let worker = Box::new(Worker {
        spec: spec.clone(),
        report,
        owner: by.owner,
        fence: before.map_or(Fence(1), |before| before.fence.next()),
        until: now.checked_add(policy.lease).unwrap_or(Timestamp::MAX),
        created_at: before.map_or(now, |before| before.created_at),
        last_active_at: now,
    });
    Acquisition::Granted { worker, demand }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::{Sha256, WorkerId};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn owner(n: u128) -> OwnerId {
        OwnerId(Uuid::from_u128(n))
    }

    fn spec() -> WorkerSpec {
        let id = WorkerId::new("w").unwrap();
        WorkerSpec { id, endpoint: "http://w".to_owned(), name: None, labels: ["a".to_owned()].into() }
    }

    fn ask(by: Applicant<'_>, known: Option<(OwnerId, bool, Registration)>) -> Acquisition {
        let report = WorkerReport {
            health: Health::Busy,
            object_info: Some(Sha256::of(b"x")),
            reason: Some("y".to_owned()),
            ..WorkerReport::default()
        };
        let before = NOW.checked_sub(Duration::from_secs(60)).unwrap();
        let worker = |owner| Worker {
            spec: WorkerSpec { endpoint: String::new(), ..spec() },
            report,
            owner,
            fence: Fence(7),
            until: NOW,
            created_at: before,
            last_active_at: before,
        };
        let known = known.map(|(owner, is_free, registration)| (worker(owner), is_free, registration));
        let known = known.as_ref().map(|(worker, is_free, registration)| KnownWorker {
            worker,
            registration,
            is_free: *is_free,
        });
        acquire(&spec(), &by, known, NOW, &Policy::default())
    }

    #[test]
    fn a_worker_is_given_to_who_may_have_it() {
        let (tenant, other) = (Tenant::default_tenant(), Tenant::new("other").unwrap());
        let [mine, foreign] = [1, 2].map(|n| KeyId(Uuid::from_u128(n)));
        let here = |n| Applicant { owner: owner(n), key: None };
        let with = |n, key| Applicant { owner: owner(n), key: Some((key, &tenant)) };
        let key = |id, revoked| Registration::Key { id, tenant: Some(tenant.clone()), revoked };
        let of_other = Registration::Key { id: foreign, tenant: Some(other), revoked: true };
        let (free, held) = (true, false);
        // Who asks; whose it is, whether nobody holds it, on whose word; whether it is given, and as a further one of the key.
        let cases = [
            (here(1), None, Ok(false)),
            (with(1, mine), None, Ok(true)),
            (here(1), Some((owner(2), held, Registration::Here)), Err(Acquisition::Held)),
            (here(1), Some((owner(2), free, Registration::Here)), Ok(false)),
            (here(1), Some((owner(1), held, Registration::Here)), Ok(false)),
            (here(1), Some((owner(2), held, Registration::Before)), Err(Acquisition::Held)),
            (here(1), Some((owner(2), held, key(foreign, false))), Ok(false)),
            (with(1, mine), Some((owner(2), free, Registration::Here)), Err(Acquisition::Taken)),
            (with(1, mine), Some((owner(2), held, Registration::Before)), Err(Acquisition::Held)),
            (with(1, mine), Some((owner(2), free, Registration::Before)), Ok(true)),
            (with(1, mine), Some((owner(2), held, key(mine, false))), Err(Acquisition::Held)),
            (with(1, mine), Some((owner(1), held, key(mine, false))), Ok(false)),
            (with(1, mine), Some((owner(2), free, key(mine, false))), Ok(false)),
            (with(1, mine), Some((owner(1), free, key(foreign, false))), Err(Acquisition::Taken)),
            (with(1, mine), Some((owner(2), free, key(foreign, true))), Ok(true)),
            (with(1, mine), Some((owner(2), free, of_other)), Err(Acquisition::Taken)),
        ];
        for (n, (by, known, expected)) in cases.into_iter().enumerate() {
            let found = match ask(by, known) {
                Acquisition::Granted { worker, demand } => {
                    assert_eq!(worker.owner, by.owner);
                    // What was known of the worker has another endpoint than what is asked for.
                    let bytes = by.key.map(|_| spec().bytes() as u64);
                    assert_eq!(demand, Demand { further: demand.further, bytes }, "case {n}");
                    Ok(demand.further)
                }
                refused => Err(refused),
            };
            assert_eq!(found, expected, "case {n}");
        }
    }

    #[test]
    fn who_takes_a_worker_over_knows_what_it_has_and_not_how_it_is() {
        let new = |known| match ask(Applicant { owner: owner(1), key: None }, known) {
            Acquisition::Granted { worker, .. } => *worker,
            refused => panic!("{refused:?}"),
        };
        let first = new(None);
        assert_eq!((first.fence, first.created_at, &first.report), (Fence(1), NOW, &WorkerReport::default()));
        assert_eq!(first.until, NOW.checked_add(Policy::default().lease).unwrap());
        let next = new(Some((owner(2), true, Registration::Here)));
        assert_eq!((next.fence, &next.spec, next.last_active_at), (Fence(8), &spec(), NOW));
        assert!(next.created_at < NOW);
        assert_eq!((next.report.health, next.report.reason), (Health::Starting, None));
        assert_eq!(next.report.object_info, Some(Sha256::of(b"x")));
    }

    #[test]
    fn a_key_has_so_many_workers_and_labels() {
        let most = Allowance { workers: 2, bytes: 100 };
        let admit = |further, bytes, workers, of_others| {
            Demand { further, bytes }.admit(Holdings { workers, bytes: of_others }, most)
        };
        assert_eq!(admit(true, Some(40), 1, 60), Ok(()));
        assert_eq!(admit(true, Some(41), 2, 60), Err(Excess::Workers));
        assert_eq!(admit(true, Some(41), 1, 60), Err(Excess::Labels));
        assert_eq!(admit(false, Some(41), 9, 60), Err(Excess::Labels), "it comes again with more");
        assert_eq!(admit(false, Some(40), 9, 60), Ok(()), "it is none more");
        assert_eq!(admit(false, None, 9, 999), Ok(()), "as it was");
        assert!(Demand::default().is_none() && !Demand { further: true, bytes: None }.is_none());
    }

    #[test]
    fn who_has_a_worker_may_have_it_again_as_it_was() {
        let tenant = Tenant::default_tenant();
        let (mine, foreign) = (KeyId(Uuid::from_u128(1)), KeyId(Uuid::from_u128(2)));
        let known = Worker {
            spec: spec(),
            report: WorkerReport::default(),
            owner: owner(1),
            fence: Fence(1),
            until: NOW,
            created_at: NOW,
            last_active_at: NOW,
        };
        let demand = |spec: &WorkerSpec, key, id| {
            let registration = Registration::Key { id, tenant: Some(tenant.clone()), revoked: true };
            let known = KnownWorker { worker: &known, registration: &registration, is_free: true };
            let by = Applicant { owner: owner(1), key: Some((key, &tenant)) };
            match acquire(spec, &by, Some(known), NOW, &Policy::default()) {
                Acquisition::Granted { demand, .. } => demand,
                refused => panic!("{refused:?}"),
            }
        };
        let bytes = spec().bytes() as u64;
        assert!(demand(&spec(), mine, mine).is_none());
        assert_eq!(demand(&spec(), mine, foreign), Demand { further: true, bytes: Some(bytes) });
        let more = WorkerSpec { name: Some("x".to_owned()), ..spec() };
        assert_eq!(demand(&more, mine, mine), Demand { further: false, bytes: Some(bytes + 1) });
    }

    #[test]
    fn a_worker_is_free_when_it_was_let_go_or_ran_out() {
        let later = NOW.checked_add(Duration::from_secs(1)).unwrap();
        assert!(is_free(false, later, NOW, false));
        assert!(is_free(true, NOW, later, true));
        assert!(!is_free(true, NOW, NOW, true), "not yet");
        assert!(!is_free(true, NOW, later, false), "its holder may still come back");
    }
}
