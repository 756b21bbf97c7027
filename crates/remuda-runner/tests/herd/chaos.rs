//! Everything at once: processes die and come back, sockets and answers get lost, and every graph runs once.

use std::time::Duration;

use comfyui_sim::faults::Fault;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use remuda_core::OwnerId;
use remuda_runner::Herd;

use super::rig::*;

#[tokio::test]
async fn killed_processes_and_lost_answers_lose_and_double_nothing() {
    let rig = Rig::new().await;
    // A process beside the one that has the file open: its leases run out.
    let sidecar = OwnerId(uuid::Uuid::new_v4());
    chaos(&rig, &[rig.owner, sidecar]).await;
}

#[tokio::test]
async fn nor_do_they_on_postgres() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let rig = Rig::on_postgres(&url, |_| {}).await;
    chaos(&rig, &rig.owners()).await;
}

/// Two processes share three ComfyUIs; one of them is killed every now and then, at any point.
async fn chaos(rig: &Rig, owners: &[OwnerId]) {
    let seed = std::env::var("REMUDA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let mut dice = StdRng::seed_from_u64(seed);
    let sims = [sim().await, sim().await, sim().await];
    for (n, sim) in sims.iter().enumerate() {
        let n = n as u64;
        sim.faults().add(Fault::lose_answer().on("POST /prompt").probability(0.15).seed(seed + n));
        sim.faults().add(Fault::error_after(500).on("POST /prompt").probability(0.1).seed(seed + 10 + n));
        sim.faults().add(Fault::error(500).on("GET /history/*").probability(0.1).seed(seed + 20 + n));
        sim.faults().add(Fault::garbage().on("GET /queue").probability(0.1).seed(seed + 30 + n));
        sim.faults().add(Fault::cut_answer().on("GET /view").probability(0.1).seed(seed + 40 + n));
    }
    let all: Vec<_> = sims.iter().collect();
    let mut herds: Vec<Herd> = owners.iter().map(|owner| rig.herd_of(*owner, &all)).collect();
    let mut ids = Vec::new();
    for n in 0..40 {
        let graph = if n % 3 == 0 { long(0.3) } else { picture() };
        ids.push(rig.submit(&graph).await);
    }
    let left = async || {
        rig.store.tidy().await.unwrap();
        let counts = rig.store.counts(None).await.unwrap();
        counts.pending + counts.running
    };
    // Not for ever: where a process does not come up between two kills, nothing would end.
    for _ in 0..80 {
        if left().await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(dice.random_range(50..400))).await;
        let victim = dice.random_range(0..4_usize);
        if let Some(herd) = herds.get_mut(victim) {
            // Killed, and started again by whoever looks after it.
            *herd = rig.herd_of(owners[victim], &all);
        }
        if dice.random_bool(0.3) {
            sims[dice.random_range(0..3)].faults().add(Fault::drop_websocket().times(1));
        }
    }
    let ended = remuda_testbed::wait::until("all tasks to end", BOUND, async || match left().await {
        0 => Ok(()),
        left => Err(format!("{left} left")),
    });
    ended.await.expect("in time");
    for id in &ids {
        let task = rig.completed(*id).await;
        assert_eq!(task.result.unwrap().files.len(), 1);
    }
    let mut runs = std::collections::BTreeMap::new();
    for sim in &sims {
        for (graph, count) in sim.stats().by_graph {
            *runs.entry(graph).or_insert(0) += count;
        }
    }
    assert_eq!((runs.len(), runs.values().copied().max()), (ids.len(), Some(1)), "seed {seed}: {runs:?}");
    for herd in herds {
        herd.stop(BOUND).await;
    }
    for sim in sims {
        sim.shutdown().await;
    }
}
