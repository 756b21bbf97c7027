//! The lanes that are known here: few, never removed, and needed at every claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::RwLock;

use remuda_core::{Capabilities, Lane, LaneId, Requirements};

/// What each lane asks for.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    known: RwLock<BTreeMap<LaneId, Requirements>>,
}

impl Lanes {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<LaneId, Requirements>> {
        self.known.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Remembers lanes.
    pub(super) fn learn(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut known = self.known.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.extend(lanes.into_iter().map(|lane| (lane.id, lane.requires)));
    }

    /// Which of them are not known.
    pub(super) fn has_unknown(&self, lanes: &BTreeSet<LaneId>) -> bool {
        let known = self.read();
        lanes.iter().any(|lane| !known.contains_key(lane))
    }

    /// Whether a lane is known, and so in the database.
    pub(super) fn knows(&self, lane: &LaneId) -> bool {
        self.read().contains_key(lane)
    }

    /// What a lane asks for.
    pub(super) fn requires(&self, lane: &LaneId) -> Option<Requirements> {
        self.read().get(lane).cloned()
    }

    /// The lanes that a worker may be served from.
    pub(super) fn fitting(&self, worker: &Capabilities) -> BTreeSet<LaneId> {
        let known = self.read();
        known.iter().filter(|(_, requires)| requires.satisfied_by(worker)).map(|(id, _)| id.clone()).collect()
    }

    /// Whether a worker may be served from one of these; from one that is not known it may.
    pub(super) fn any_fits(&self, lanes: &BTreeSet<LaneId>, worker: &Capabilities) -> bool {
        let known = self.read();
        lanes.iter().any(|lane| known.get(lane).is_none_or(|requires| requires.satisfied_by(worker)))
    }

    /// The lanes of which every worker that satisfies `lane` is served too.
    pub(super) fn within(&self, lane: &LaneId) -> Vec<LaneId> {
        let known = self.read();
        let Some(all) = known.get(lane) else { return vec![lane.clone()] };
        let part = |requires: &Requirements| {
            requires.labels.is_subset(&all.labels)
                && requires.nodes.is_subset(&all.nodes)
                && requires.models.is_subset(&all.models)
        };
        known.iter().filter(|(_, requires)| part(requires)).map(|(id, _)| id.clone()).collect()
    }
}
