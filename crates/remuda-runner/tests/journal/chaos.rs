//! Everything at once: kills, outages and repeated deliveries, in a fixed disorder.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use remuda_runner::source::foreign::Delivery;

use super::rig::*;

/// Numbers that look like chance, and are the same every time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test]
async fn whatever_is_killed_or_away_every_task_is_rendered_once_and_reported() {
    let (mut rig, one, two) = (Rig::new(), sim().await, sim().await);
    rig.slots = 3;
    let mut chance = Chance(7);
    let mut deliveries: Vec<Delivery> =
        (0..24).map(|n| delivery(&format!("task{n}"), &long(0.1 + chance.below(4) as f64 / 10.0))).collect();
    let mut process = rig.start(&[&one, &two]).await;
    for delivery in &deliveries {
        rig.queue.give(delivery);
    }
    let reported = |rig: &Rig| {
        rig.queue
            .reports()
            .into_iter()
            .map(|(delivery, ending)| {
                result(&ending);
                delivery.key
            })
            .collect::<BTreeSet<_>>()
    };
    let since = Instant::now();
    for round in 0_u64.. {
        let done = reported(&rig).len();
        if done == deliveries.len() {
            break;
        }
        assert!(since.elapsed() < BOUND, "{done} of {} were reported", deliveries.len());
        match chance.below(4) {
            // Where a process does not come up between two kills, nothing would ever end.
            0 if round < 60 => {
                process.kill();
                process = rig.start(&[&one, &two]).await;
            }
            1 => rig.queue.away(true),
            _ => rig.queue.away(false),
        }
        // A task that was handed out and not reported is handed out again after a while.
        if rig.queue.waiting() == 0 {
            rig.queue.away(false);
            let done = reported(&rig);
            let open: Vec<usize> =
                (0..deliveries.len()).filter(|n| !done.contains(&deliveries[*n].key)).collect();
            if !open.is_empty() {
                let n = open[usize::try_from(chance.below(open.len() as u64)).unwrap()];
                deliveries[n] = again(&deliveries[n], deliveries[n].attempt + 1);
                rig.queue.give(&deliveries[n]);
            }
        }
        // Long enough for something to happen, short enough to be in the midst of it.
        tokio::time::sleep(Duration::from_millis(100 + chance.below(400))).await;
    }
    rig.queue.away(false);
    assert_eq!(process.stop().await, 0);
    assert!(rig.journal().is_empty(), "{:?}", rig.journal());
    let mut executions = one.stats().by_graph;
    for (graph, times) in two.stats().by_graph {
        *executions.entry(graph).or_default() += times;
    }
    assert_eq!(executions.len(), deliveries.len());
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
    one.shutdown().await;
    two.shutdown().await;
}
