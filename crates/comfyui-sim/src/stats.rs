//! What was executed, so that a test can prove that nothing ran twice.
//!
//! The counters outlive a restart of the simulated ComfyUI: they belong to the simulator.

use crate::json::Json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Of how many executions the times are kept.
const TIMES: usize = 10_000;

/// The counts at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Prompts that the worker began to execute.
    pub executions_total: u64,
    /// The same by prompt id.
    pub by_prompt: BTreeMap<String, u64>,
    /// The same by [`graph_digest`] of the prompt as it was submitted.
    pub by_graph: BTreeMap<String, u64>,
}

/// When the worker was busy with a prompt, in microseconds on a clock of the simulator's own.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Span {
    /// Which prompt.
    pub prompt_id: String,
    /// Its submission was read.
    pub received_us: u64,
    /// Its execution began.
    pub began_us: u64,
    /// Its last node was done; the history entry comes later.
    pub ended_us: u64,
    /// Its history entry was there, and its client is told from here on.
    pub told_us: u64,
}

/// The latest executions, for those who measure in the same process.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// The moment from which the times count.
    pub zero: Instant,
    /// Oldest first.
    pub executions: Vec<Span>,
}

/// The counters themselves.
#[derive(Debug)]
pub(crate) struct Executions {
    counts: Mutex<Stats>,
    spans: Mutex<VecDeque<Span>>,
    zero: Instant,
}

impl Default for Executions {
    fn default() -> Self {
        Executions { counts: Mutex::default(), spans: Mutex::default(), zero: Instant::now() }
    }
}

impl Executions {
    /// Counts one start of a prompt.
    pub(crate) fn count(&self, prompt_id: &str, graph_digest: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.executions_total += 1;
        *counts.by_prompt.entry(prompt_id.to_owned()).or_default() += 1;
        *counts.by_graph.entry(graph_digest.to_owned()).or_default() += 1;
    }

    /// The moment, for [`Span`].
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Keeps when a prompt was executed.
    pub(crate) fn spend(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() == TIMES {
            spans.pop_front();
        }
        spans.push_back(span);
    }

    /// The latest executions that came to an end, oldest first.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The same with the moment from which they count.
    pub(crate) fn timeline(&self) -> Timeline {
        Timeline { zero: self.zero, executions: self.spans() }
    }

    /// The counts now.
    pub(crate) fn snapshot(&self) -> Stats {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts again at zero.
    pub(crate) fn reset(&self) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = Stats::default();
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// SHA-256, in lower-case hex, of a graph written with sorted keys and without spaces, in Python:
/// `sha256(json.dumps(graph, sort_keys=True, separators=(",", ":")).encode()).hexdigest()`.
///
/// ```
/// use comfyui_sim::{json::Json, stats::graph_digest};
///
/// let one: Json = r#"{"1": {"class_type": "A", "inputs": {"x": 1, "y": 2}}}"#.parse()?;
/// let two: Json = r#"{"1": {"inputs": {"y": 2, "x": 1}, "class_type": "A"}}"#.parse()?;
/// assert_eq!(graph_digest(&one), graph_digest(&two));
/// # Ok::<(), comfyui_sim::json::ParseError>(())
/// ```
pub fn graph_digest(graph: &Json) -> String {
    Sha256::digest(graph.canonical().as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_prompt_and_by_graph() {
        let executions = Executions::default();
        executions.count("a", "g");
        executions.count("b", "g");
        executions.count("b", "h");
        let stats = executions.snapshot();
        assert_eq!(stats.executions_total, 3);
        assert_eq!(stats.by_prompt, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
        assert_eq!(stats.by_graph["g"], 2);
        executions.reset();
        assert_eq!(executions.snapshot(), Stats::default());
    }

    #[test]
    fn times_are_kept_of_the_latest_executions_only() {
        let executions = Executions::default();
        for number in 0..=TIMES {
            let now = executions.now_us();
            let prompt_id = number.to_string();
            executions.spend(Span {
                prompt_id,
                received_us: now,
                began_us: now,
                ended_us: now,
                told_us: now,
            });
        }
        let spans = executions.spans();
        assert_eq!((spans.len(), spans[0].prompt_id.as_str()), (TIMES, "1"));
        assert!(spans.windows(2).all(|pair| pair[0].ended_us <= pair[1].began_us));
        executions.reset();
        assert_eq!(executions.spans(), []);
    }

    #[test]
    fn the_digest_is_what_python_computes() {
        let graph: Json =
            r#"{"1": {"inputs": {"z": 1.0, "y": "é\u2028\ud83d\ude00", "x": 1e-5}, "class_type": "A"}}"#
                .parse()
                .unwrap();
        assert_eq!(graph_digest(&graph), "917f7374707dc59e3aea67d3e7cea377052648b1f9515bf3a4e3f4105751121b");
    }
}
