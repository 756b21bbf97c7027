//! Judges what was found after a run. Pure: evidence in, verdict out, so that every rule is tested by planting
//! what it must find.

mod ends;
mod events;
mod executions;
mod files;
#[cfg(test)]
mod tests;

use crate::api::{EventView, TaskView};
use crate::drive::{Done, Story};
use crate::world::{Counts, Loss};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// An output as it was read through the API.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    pub(crate) size: u64,
    pub(crate) sha256: String,
    /// The seed of its task's graph is in it.
    pub(crate) is_its_own: bool,
}

/// A file in the file store.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// All that is known of one task.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) story: Story,
    /// As the API shows it at the end.
    pub(crate) view: Option<TaskView>,
    /// All its events, read at the end.
    pub(crate) events: Vec<EventView>,
    /// Its outputs in order, or why one could not be read.
    pub(crate) outputs: Vec<Result<Fetched, String>>,
}

impl Seen {
    /// Its id; its number where it has none.
    pub(crate) fn name(&self) -> String {
        let number = || format!("job {}", self.story.job.number);
        self.view
            .as_ref()
            .map(|view| view.id.clone())
            .or(self.story.ids.first().cloned())
            .unwrap_or_else(number)
    }
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) tasks: Vec<Seen>,
    /// All ids that the API lists.
    pub(crate) listed: BTreeSet<String>,
    /// The address of each worker's ComfyUI.
    pub(crate) workers: BTreeMap<String, String>,
    /// Workers of sidecars, each with the name of the server it works for: nobody else can adopt what runs there.
    pub(crate) beside: BTreeMap<String, String>,
    /// How long a lease holds without being renewed.
    pub(crate) lease: Duration,
    /// How much longer than a fault its consequences may last.
    pub(crate) slack: Duration,
    /// What all simulators executed.
    pub(crate) counts: Counts,
    /// When simulators lost their queues.
    pub(crate) losses: Vec<Loss>,
    pub(crate) faults: Vec<Done>,
    /// Prompts that are left in a queue: simulator and id.
    pub(crate) queued: Vec<(String, String)>,
    pub(crate) stored: Vec<Stored>,
    /// Processes that ended by themselves, or did not end when asked.
    pub(crate) surprises: Vec<String>,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Which task, where it is one.
    pub(crate) task: Option<String>,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.task {
            Some(task) => write!(f, "{task}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Why something ran more than once, and may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The ComfyUI forgot or never finished it: its process was killed or restarted.
    ComfyUiLost,
    /// The only process that can reach its ComfyUI was away for longer than lease and grace.
    RunnerAway,
    /// A process that was stopped on its way to ComfyUI sent its request when it went on, after somebody else had adopted
    /// the attempt.
    LateRequest,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Reason::ComfyUiLost => "ComfyUI lost",
            Reason::RunnerAway => "sidecar away",
            Reason::LateRequest => "late request",
        })
    }
}

/// An execution beyond the first, for a stated reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) task: String,
    pub(crate) attempt: i64,
    pub(crate) reason: Reason,
}

/// What it comes to.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Violation>,
    pub(crate) repeats: Vec<Repeat>,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    pub(crate) cancelled: usize,
    /// Tasks that were never taken in, cannot be read or did not end.
    pub(crate) lost: usize,
    /// Executions beyond the first without a stated reason.
    pub(crate) duplicates: usize,
    pub(crate) adoptions: usize,
    /// Executions after an error of the task's own, as its retries allow.
    pub(crate) retries: usize,
    /// Tasks that were set aside because our own work on their graphs did harm: nothing here does.
    pub(crate) set_aside: usize,
}

impl Verdict {
    fn blame(&mut self, seen: &Seen, what: impl Into<String>) {
        self.violations.push(Violation { task: Some(seen.name()), what: what.into() });
    }
}

/// Judges everything.
pub(crate) fn check(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    for seen in &evidence.tasks {
        ends::check(seen, evidence, &mut verdict);
        if let Some(view) = seen.view.as_ref().filter(|view| view.is_terminal()) {
            events::check(seen, view, &mut verdict);
            executions::check(seen, view, evidence, &mut verdict);
        }
    }
    executions::strangers(evidence, &mut verdict);
    files::check(evidence, &mut verdict);
    let known: BTreeSet<&String> = evidence.tasks.iter().flat_map(|seen| &seen.story.ids).collect();
    for ghost in evidence.listed.iter().filter(|id| !known.contains(id)) {
        let what =
            "nobody has submitted it: an answer was lost and the repetition made a second task".to_owned();
        verdict.violations.push(Violation { task: Some(ghost.clone()), what });
    }
    for (sim, prompt) in &evidence.queued {
        let what = format!("prompt {prompt} is left in the queue of {sim}");
        verdict.violations.push(Violation { task: None, what });
    }
    for surprise in &evidence.surprises {
        verdict.violations.push(Violation { task: None, what: surprise.clone() });
    }
    verdict
}
