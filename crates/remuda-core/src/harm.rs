//! Tasks that harm Remuda itself: what is known of each time, and when it is enough.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Failure, FailureClass, Timestamp};

/// How often our own work on a task's graph may bring a process down or to a standstill. Once can be chance: a
/// machine out of memory, a process that was killed at a bad moment.
pub const MOST_HARM: usize = 2;

/// What became of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HarmKind {
    /// It died.
    Death,
    /// It went on, but the computation did not end in time.
    Stall,
}

impl HarmKind {
    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Death => "death",
            Self::Stall => "stall",
        }
    }
}

impl fmt::Display for HarmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for HarmKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Death, Self::Stall]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| format!("unknown kind of harm {text:?}"))
    }
}

/// One time that our own work on a task's graph harmed a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Harm {
    /// What became of the process.
    pub kind: HarmKind,
    /// What it was doing.
    pub work: String,
    /// Which process: its id, for people.
    pub process: String,
    /// When that work began. Together with the task it names the incident: the same one again is not counted again.
    pub at: Timestamp,
}

/// What is known after an incident was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Harmed {
    /// How often the task has done harm. Zero: nobody keeps count there.
    pub count: usize,
    /// The task is set aside: it has failed, and its lease is gone.
    pub set_aside: bool,
}

/// Whether it is enough.
pub fn is_enough(count: usize) -> bool {
    count >= MOST_HARM
}

/// Why a task was set aside, with everything that is known, oldest first.
pub fn failure(incidents: &[Harm]) -> Failure {
    let last = incidents.last();
    let work = last.map_or("working on its graph", |harm| harm.work.as_str());
    let became = match last.map(|harm| harm.kind) {
        Some(HarmKind::Stall) => "came to no end",
        _ => "brought the process down",
    };
    let count = incidents.len();
    let message = format!(
        "set aside: Remuda's own work on its graph did harm {count} times; the last time, {work} {became}. \
         The graph is never taken up again; submit a smaller or simpler one"
    );
    let shown =
        |harm: &Harm| json!({"kind": harm.kind, "work": harm.work, "process": harm.process, "at": harm.at});
    let details = json!({"harm": incidents.iter().map(shown).collect::<Vec<_>>()});
    Failure { class: FailureClass::Harmful, message, node_id: None, details: Some(details.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_is_known() {
        let harm = |kind, second| Harm {
            kind,
            work: "editing a graph".to_owned(),
            process: "p".to_owned(),
            at: Timestamp::from_second(second).unwrap(),
        };
        let failure = failure(&[harm(HarmKind::Death, 1), harm(HarmKind::Stall, 2)]);
        assert_eq!(failure.class, FailureClass::Harmful);
        assert!(failure.message.contains("editing a graph came to no end"), "{}", failure.message);
        let details = failure.details.unwrap().read();
        assert_eq!(details["harm"][0]["kind"], "death");
        assert_eq!(details["harm"][1]["at"], "1970-01-01T00:00:02Z");
        assert!(!is_enough(1) && is_enough(2));
    }
}
