//! Who polls which hosts.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use crate::proto::RegisterTaskWorkerRequest;

#[derive(Debug, Default)]
pub(super) struct Workers {
    /// By tenant and TaskDef, when each worker was last heard of.
    heard: HashMap<(String, String), BTreeMap<String, Instant>>,
    /// What a test has decided for a worker.
    decided: HashMap<String, Vec<usize>>,
    /// What is said of the cluster's health.
    healthy: Option<bool>,
}

impl Workers {
    /// The hosts of a worker that is heard of now.
    fn hosts_of(
        &mut self,
        tenant: &str,
        asked: &RegisterTaskWorkerRequest,
        (now, forget_after): (Instant, Duration),
        hosts: usize,
    ) -> Vec<usize> {
        let task = asked.task_def_id.as_ref().map(|id| id.name.clone()).unwrap_or_default();
        let group = self.heard.entry((tenant.to_owned(), task)).or_default();
        group.insert(asked.task_worker_id.clone(), now);
        group.retain(|_, heard| now.saturating_duration_since(*heard) <= forget_after);
        if let Some(decided) = self.decided.get(&asked.task_worker_id) {
            return decided.clone();
        }
        let place = group.keys().position(|id| *id == asked.task_worker_id).unwrap_or_default();
        deal(place, group.len(), hosts)
    }
}

/// Every host has a worker, and every worker a host: dealt in turn until both have run out.
fn deal(place: usize, workers: usize, hosts: usize) -> Vec<usize> {
    let turns = 0..workers.max(hosts);
    let mut mine: Vec<usize> =
        turns.filter(|turn| turn % workers == place).map(|turn| turn % hosts.max(1)).collect();
    mine.sort_unstable();
    mine.dedup();
    mine
}

impl Cluster {
    /// A heartbeat; the hosts are numbers, and the health as it is to be told.
    pub(crate) fn register(
        &self,
        tenant: &str,
        asked: &RegisterTaskWorkerRequest,
    ) -> (Vec<usize>, Option<bool>) {
        let time = (self.clock.now(), self.options.forget_after);
        let mut state = self.state();
        let hosts = state.workers.hosts_of(tenant, asked, time, self.options.hosts);
        let healthy = state.workers.healthy;
        drop(state);
        self.tell();
        (hosts, healthy)
    }

    pub(crate) fn assign(&self, worker: &str, hosts: Option<Vec<usize>>) {
        let decided = &mut self.state().workers.decided;
        match hosts {
            Some(hosts) => drop(decided.insert(worker.to_owned(), hosts)),
            None => drop(decided.remove(worker)),
        }
    }

    pub(crate) fn set_healthy(&self, healthy: Option<bool>) {
        self.state().workers.healthy = healthy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_a_worker_and_every_worker_a_host() {
        assert_eq!(deal(0, 1, 3), [0, 1, 2]);
        assert_eq!((deal(0, 2, 3), deal(1, 2, 3)), (vec![0, 2], vec![1]));
        assert_eq!((deal(0, 3, 2), deal(1, 3, 2), deal(2, 3, 2)), (vec![0], vec![1], vec![0]));
    }

    #[test]
    fn a_silent_worker_is_forgotten() {
        let (mut workers, start) = (Workers::default(), Instant::now());
        let asked = |id: &str| RegisterTaskWorkerRequest { task_worker_id: id.to_owned(), task_def_id: None };
        let forget = Duration::from_secs(15);
        let at = |seconds| (start + Duration::from_secs(seconds), forget);
        assert_eq!(workers.hosts_of("t", &asked("a"), at(0), 2), [0, 1]);
        assert_eq!(workers.hosts_of("t", &asked("b"), at(1), 2), [1]);
        assert_eq!(workers.hosts_of("t", &asked("a"), at(2), 2), [0]);
        assert_eq!(workers.hosts_of("other", &asked("c"), at(2), 2), [0, 1]);
        assert_eq!(workers.hosts_of("t", &asked("b"), at(18), 2), [0, 1]);
    }
}
