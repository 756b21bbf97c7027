//! What a task needs of a worker, and what a worker offers.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Sha256;

/// The hard requirements of a task: a worker that lacks one of them never gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Requirements {
    /// Labels that the worker must carry.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// Node classes that it must have.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<String>,
    /// Model files that it must have.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<String>,
}

impl Requirements {
    /// The most bytes that the names of one task's requirements have together: what is asked for, and what its graph was
    /// found to need. Every lane with tasks in it is kept in memory, so it must not become as long as a graph.
    pub const LONGEST: usize = 64 << 10;

    /// How many bytes the names have together.
    pub fn size(&self) -> usize {
        [&self.labels, &self.nodes, &self.models].into_iter().flatten().map(String::len).sum()
    }

    /// Whether every worker that satisfies these is also served from the lane of `other`.
    pub fn include(&self, other: &Self) -> bool {
        other.labels.is_subset(&self.labels)
            && other.nodes.is_subset(&self.nodes)
            && other.models.is_subset(&self.models)
    }

    /// Whether any worker will do.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.nodes.is_empty() && self.models.is_empty()
    }

    /// The lane of tasks with exactly these requirements. Stores keep its name, so it must never change. Lanes that older
    /// releases made have other names; a store finds them, as all lanes, by what they ask for.
    pub fn lane(&self) -> LaneId {
        if self.is_empty() {
            return LaneId::any();
        }
        // Sets are sorted, and every text has its length before it: equal requirements, and only they, have equal bytes.
        let mut bytes = Vec::with_capacity(self.size() + 64);
        for names in [&self.labels, &self.nodes, &self.models] {
            bytes.extend_from_slice(&(names.len() as u64).to_le_bytes());
            for name in names {
                bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
                bytes.extend_from_slice(name.as_bytes());
            }
        }
        LaneId(Sha256::of(&bytes).to_string()[..LaneId::LENGTH].to_owned())
    }

    /// Both together.
    pub fn and(mut self, other: &Self) -> Self {
        self.labels.extend(other.labels.iter().cloned());
        self.nodes.extend(other.nodes.iter().cloned());
        self.models.extend(other.models.iter().cloned());
        self
    }

    /// Whether a worker with these capabilities may run the task.
    ///
    /// ```
    /// use remuda_core::{Capabilities, Requirements};
    /// let wants = Requirements { labels: ["a100".to_owned()].into(), ..Requirements::default() };
    /// assert!(!wants.satisfied_by(&Capabilities::default()));
    /// assert!(Requirements::default().satisfied_by(&Capabilities::default()));
    /// ```
    pub fn satisfied_by(&self, worker: &Capabilities) -> bool {
        self.labels.is_subset(&worker.labels)
            && self.nodes.is_subset(&worker.nodes)
            && self.models.is_subset(&worker.models)
    }

    /// What the worker lacks.
    pub fn missing_on(&self, worker: &Capabilities) -> Self {
        let lacking =
            |wanted: &BTreeSet<String>, there: &BTreeSet<String>| wanted.difference(there).cloned().collect();
        Self {
            labels: lacking(&self.labels, &worker.labels),
            nodes: lacking(&self.nodes, &worker.nodes),
            models: lacking(&self.models, &worker.models),
        }
    }
}

/// How many names of each kind are told to people.
const TOLD: usize = 20;

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (what, names) in [("label", &self.labels), ("node", &self.nodes), ("model", &self.models)] {
            parts.extend(names.iter().take(TOLD).map(|name| format!("{what} {name}")));
            if names.len() > TOLD {
                parts.push(format!("{} more {what}s", names.len() - TOLD));
            }
        }
        if parts.is_empty() { f.write_str("nothing special") } else { f.write_str(&parts.join(", ")) }
    }
}

/// What a worker offers: its labels, and what its `object_info` lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Given by its configuration.
    pub labels: BTreeSet<String>,
    /// Node classes.
    pub nodes: BTreeSet<String>,
    /// Model files, as the choices of its loaders name them.
    pub models: BTreeSet<String>,
}

/// The name of a lane: of all tasks with equal requirements.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaneId(String);

impl LaneId {
    /// How many hexadecimal digits a name has: whoever submits chooses the requirements, and must not find two that meet.
    const LENGTH: usize = 32;

    /// The lane of tasks that any worker may run.
    pub fn any() -> Self {
        Self("any".to_owned())
    }

    /// As it is stored. Only stores make one from text.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lane with what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Its name.
    pub id: LaneId,
    /// What every task in it needs.
    pub requires: Requirements,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> impl Strategy<Value = BTreeSet<String>> {
        // Few and odd ones, so that sets overlap and quoting matters.
        proptest::collection::btree_set(prop_oneof!["[ab]", "[ab\\\\\",\u{0}{}]{1,3}"], 0..3)
    }

    fn requirements() -> impl Strategy<Value = Requirements> {
        (names(), names(), names()).prop_map(|(labels, nodes, models)| Requirements { labels, nodes, models })
    }

    fn capabilities() -> impl Strategy<Value = Capabilities> {
        (names(), names(), names()).prop_map(|(labels, nodes, models)| Capabilities { labels, nodes, models })
    }

    proptest! {
        #[test]
        fn lanes_are_equal_exactly_when_requirements_are(one in requirements(), two in requirements()) {
            prop_assert_eq!(one.lane() == two.lane(), one == two);
            prop_assert_eq!(one.is_empty(), one.lane() == LaneId::any());
            let read: Requirements = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
            prop_assert_eq!(read, one);
        }

        #[test]
        fn a_worker_may_run_what_it_lacks_nothing_of(
            one in requirements(), two in requirements(), worker in capabilities(),
        ) {
            let lacks = one.missing_on(&worker);
            prop_assert_eq!(one.satisfied_by(&worker), lacks.is_empty());
            let both = one.clone().and(&two);
            let each = one.satisfied_by(&worker) && two.satisfied_by(&worker);
            prop_assert_eq!(both.satisfied_by(&worker), each);
            prop_assert_eq!(one.clone().and(&lacks), one.clone());
            prop_assert_eq!(both.include(&one), true);
            prop_assert_eq!(one.include(&two), both == one);
        }
    }

    /// Stores keep these names. They were computed apart from this code.
    #[test]
    fn a_lane_has_its_name_for_ever() {
        let check = |labels: &[&str], nodes: &[&str], models: &[&str], name: &str| {
            let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let requires = Requirements { labels: set(labels), nodes: set(nodes), models: set(models) };
            assert_eq!(requires.lane().as_str(), name, "{requires:?}");
        };
        check(&[], &[], &[], "any");
        check(&["a100"], &[], &[], "f26d5cbaf5e474687eba6bedbfae0ee0");
        check(&["pool=a", "a100"], &[], &["flux.safetensors"], "6ff847a1afc2a7954695cea9a1ad7e44");
        check(&[], &[""], &[], "49293309d25cafc914c11063c2d1cd28");
        let model = "ü\"\n.safetensors";
        check(&["a100"], &["KSampler", "VAEDecode"], &[model], "86508a3b97e1b7fdb370e15ec788335d");
    }

    #[test]
    fn requirements_are_told_to_people() {
        let requires = Requirements {
            labels: ["a100".to_owned()].into(),
            models: ["flux.safetensors".to_owned()].into(),
            ..Requirements::default()
        };
        assert_eq!(requires.to_string(), "label a100, model flux.safetensors");
        assert_eq!(Requirements::default().to_string(), "nothing special");
        assert!(serde_json::from_str::<Requirements>(r#"{"lables": ["a100"]}"#).is_err());
    }
}
