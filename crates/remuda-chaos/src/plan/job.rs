//! One task that a client wants done.

use super::graph;
use crate::dice::Dice;
use serde_json::{Value, json};
use std::time::Duration;

/// What a task renders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// One file.
    Picture,
    /// Two files.
    Pair,
    /// One file in ComfyUI's temporary folder.
    Preview,
    /// Text, no file.
    Text,
    /// A node that raises an exception, always.
    Broken,
}

/// One task that a client wants done.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) number: usize,
    pub(crate) work: Work,
    /// In its graph and in no other.
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) step_ms: u64,
    pub(crate) max_retries: u64,
    pub(crate) priority: u64,
    /// Submitted once more with the same key, perhaps through another server.
    pub(crate) twice: bool,
    /// Cancelled this long after it was taken.
    pub(crate) cancel_after: Option<Duration>,
    /// Its events are followed live, instead of asking for its state.
    pub(crate) follow: bool,
}

impl Job {
    /// The task of this number in the run with this seed.
    pub(crate) fn plan(run: u64, number: usize) -> Job {
        let mut dice = Dice::new(run).fork(&format!("job {number}"));
        let work = match dice.below(100) {
            0..70 => Work::Picture,
            70..80 => Work::Pair,
            80..88 => Work::Preview,
            88..95 => Work::Text,
            _ => Work::Broken,
        };
        // Most are quick, some are long enough to be met by whatever happens.
        let (steps, step_ms) = match dice.below(100) {
            0..60 => (dice.between(2, 8), dice.between(5, 30)),
            60..92 => (dice.between(8, 20), dice.between(20, 60)),
            _ => (dice.between(20, 40), dice.between(60, 120)),
        };
        Job {
            number,
            work,
            // Exact as a floating-point number too, so that no reader of JSON on the way can change it.
            seed: (Dice::new(run).next() % (1 << 29)) << 24 | number as u64,
            steps,
            step_ms,
            max_retries: dice.between(0, 3),
            priority: dice.between(0, 9),
            twice: dice.chance(15),
            cancel_after: dice.chance(8).then(|| Duration::from_millis(dice.between(0, 1500))),
            follow: dice.chance(30),
        }
    }

    /// One that is under way for all of this time, to be met by an outage.
    pub(crate) fn long(mut self, time: Duration) -> Job {
        (self.work, self.cancel_after) = (Work::Picture, None);
        self.step_ms = 500;
        self.steps = (time.as_millis() as u64 / self.step_ms).max(1);
        self
    }

    /// By which its submissions are known to be one.
    pub(crate) fn key(&self) -> String {
        format!("chaos-{}", self.seed)
    }

    /// How many files it leaves when it ends well.
    pub(crate) fn files(&self) -> usize {
        match self.work {
            Work::Picture | Work::Preview => 1,
            Work::Pair => 2,
            Work::Text | Work::Broken => 0,
        }
    }

    /// Whether it can end well at all.
    pub(crate) fn can_complete(&self) -> bool {
        self.work != Work::Broken
    }

    /// The workflow.
    pub(crate) fn graph(&self) -> Value {
        let render = graph::render(self.seed, self.steps, self.step_ms);
        let prefix = format!("chaos/{}", self.number);
        match self.work {
            Work::Picture => json!({"1": render, "2": graph::save(&prefix)}),
            Work::Pair => {
                json!({"1": render, "2": graph::save(&prefix), "3": graph::save(&format!("{prefix}b"))})
            }
            Work::Preview => {
                json!({"1": render, "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}})
            }
            Work::Text => {
                let text = format!("chaos {}", self.seed);
                json!({"1": render, "2": {"class_type": "RigSink", "inputs": {"image": ["1", 0]}},
                    "3": {"class_type": "RigText", "inputs": {"text": text}}})
            }
            Work::Broken => {
                let raise = json!({"class_type": "RigRaise", "inputs": {
                    "kind": "ValueError", "message": "as planned", "seed": self.seed, "image": ["1", 0]
                }});
                let sink = json!({"class_type": "RigSink", "inputs": {"image": ["2", 0]}});
                json!({"1": render, "2": raise, "3": sink})
            }
        }
    }

    /// The name under which a simulator counts it, when its task has this id.
    pub(crate) fn digest(&self, task: &str) -> String {
        graph::digest(&graph::as_sent(&self.graph(), task))
    }

    /// The request.
    pub(crate) fn body(&self) -> Value {
        json!({
            "workflow_id": format!("chaos-{}", self.number % 10),
            "priority": self.priority,
            "max_retries": self.max_retries,
            "payload": self.graph(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_gives_the_same_tasks_and_every_task_its_own_graph() {
        let graphs = |run| (0..2_000).map(|number| Job::plan(run, number).digest("t")).collect::<Vec<_>>();
        let first = graphs(1);
        assert_eq!(first, graphs(1));
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), first.len());
        assert!(graphs(2).iter().all(|digest| !first.contains(digest)));
    }

    #[test]
    fn seeds_survive_readers_that_know_only_floating_point() {
        for number in [0, 9_999] {
            let seed = Job::plan(u64::MAX, number).seed;
            assert_eq!(seed as f64 as u64, seed);
        }
    }
}
