//! The lanes that are known here: those with tasks that have not ended, as far as this process has heard.
//!
//! A lane's name is made of its requirements, so what is known of it is never wrong. A lane that no unfinished task is in is
//! forgotten with the next look; who needs one that is not known reads it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use remuda_core::{Capabilities, Lane, LaneId, Requirements};

/// For how many different offers of workers it is remembered which lanes they fit.
const OFFERS: usize = 256;

/// In how many lanes the position of a task is counted.
const COUNTED: usize = 64;

#[derive(Debug)]
struct Entry {
    requires: Arc<Requirements>,
    /// At which look it was heard of last.
    heard: u64,
}

#[derive(Debug, Default)]
struct Known {
    lanes: BTreeMap<LaneId, Entry>,
    /// Which lanes an offer fits, by its address; it is held, so that the address is no other's.
    fits: HashMap<usize, (Arc<Capabilities>, BTreeSet<LaneId>)>,
    look: u64,
}

/// What each lane asks for.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    known: RwLock<Known>,
}

impl Lanes {
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers lanes.
    pub(super) fn learn(&self, lanes: impl IntoIterator<Item = (LaneId, Arc<Requirements>)>) {
        let mut lanes = lanes.into_iter().peekable();
        if lanes.peek().is_none() {
            return;
        }
        let mut known = self.write();
        let Known { lanes: all, fits, look } = &mut *known;
        for (id, requires) in lanes {
            if let Some(entry) = all.get_mut(&id) {
                entry.heard = *look;
                continue;
            }
            for (offer, lanes) in fits.values_mut() {
                if requires.satisfied_by(offer) {
                    lanes.insert(id.clone());
                }
            }
            all.insert(id, Entry { requires, heard: *look });
        }
    }

    /// Begins to look which lanes are in use. What is heard of from now on stays, whatever that look finds.
    pub(super) fn begin_look(&self) -> u64 {
        let mut known = self.write();
        known.look += 1;
        known.look
    }

    /// Forgets lanes that were not in use when this look began. Which?
    pub(super) fn keep(&self, used: &BTreeSet<LaneId>, look: u64) -> Vec<LaneId> {
        let stays = |id: &LaneId, entry: &Entry| entry.heard >= look || used.contains(id);
        let over: Vec<LaneId> = {
            let known = self.read();
            known.lanes.iter().filter(|(id, entry)| !stays(id, entry)).map(|(id, _)| id.clone()).collect()
        };
        if over.is_empty() {
            return over;
        }
        let mut known = self.write();
        let Known { lanes, fits, .. } = &mut *known;
        let gone = |id: &LaneId| lanes.get(id).is_some_and(|entry| entry.heard < look);
        let over: Vec<LaneId> = over.into_iter().filter(gone).collect();
        for id in &over {
            lanes.remove(id);
            fits.values_mut().for_each(|(_, lanes)| _ = lanes.remove(id));
        }
        over
    }

    /// Which of these are not known.
    pub(super) fn unknown(&self, lanes: &BTreeSet<LaneId>) -> BTreeSet<LaneId> {
        let known = self.read();
        lanes.iter().filter(|lane| !known.lanes.contains_key(*lane)).cloned().collect()
    }

    /// Whether a lane is known, and so in the database.
    pub(super) fn knows(&self, lane: &LaneId) -> bool {
        self.read().lanes.contains_key(lane)
    }

    /// What a lane asks for.
    pub(super) fn requires(&self, lane: &LaneId) -> Option<Arc<Requirements>> {
        self.read().lanes.get(lane).map(|entry| Arc::clone(&entry.requires))
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Lane> {
        let lane =
            |(id, entry): (&LaneId, &Entry)| Lane { id: id.clone(), requires: (*entry.requires).clone() };
        self.read().lanes.iter().map(lane).collect()
    }

    /// The lanes that a worker may be served from.
    pub(super) fn fitting(&self, worker: &Arc<Capabilities>) -> BTreeSet<LaneId> {
        let address = Arc::as_ptr(worker).addr();
        if let Some((_, lanes)) = self.read().fits.get(&address) {
            return lanes.clone();
        }
        let mut known = self.write();
        let Known { lanes, fits, .. } = &mut *known;
        if fits.len() >= OFFERS {
            // What nobody else holds does not come again.
            fits.retain(|_, (offer, _)| Arc::strong_count(offer) > 1);
        }
        if fits.len() >= OFFERS {
            fits.clear();
        }
        let fit = lanes.iter().filter(|(_, entry)| entry.requires.satisfied_by(worker));
        let fit: BTreeSet<LaneId> = fit.map(|(id, _)| id.clone()).collect();
        fits.insert(address, (Arc::clone(worker), fit.clone()));
        fit
    }

    /// Whether a worker may be served from one of these; from one that is not known it may.
    pub(super) fn any_fits(&self, lanes: &BTreeSet<LaneId>, worker: &Capabilities) -> bool {
        let known = self.read();
        lanes.iter().any(|lane| known.lanes.get(lane).is_none_or(|entry| entry.requires.satisfied_by(worker)))
    }

    /// Some of the lanes from which every worker is served that satisfies `lane`, and whether these are all.
    pub(super) fn within(&self, lane: &LaneId) -> (Vec<LaneId>, bool) {
        let known = self.read();
        let Some(entry) = known.lanes.get(lane) else { return (vec![lane.clone()], false) };
        let all = &entry.requires;
        let mut lanes =
            known.lanes.iter().filter(|(_, entry)| all.include(&entry.requires)).map(|(id, _)| id);
        let mut some: Vec<LaneId> = lanes.by_ref().take(COUNTED).cloned().collect();
        let exact = lanes.next().is_none();
        if !some.contains(lane) {
            some.push(lane.clone());
        }
        (some, exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_heard_of_while_it_is_looked_stays() {
        let lanes = Lanes::default();
        let lane = |name: &str| {
            let requires = Requirements { labels: [name.to_owned()].into(), ..Requirements::default() };
            (requires.lane(), Arc::new(requires))
        };
        let (used, unused, new) = (lane("used"), lane("unused"), lane("new"));
        let offer = Arc::new(Capabilities {
            labels: ["used", "unused", "new"].map(str::to_owned).into(),
            ..Capabilities::default()
        });
        lanes.learn([used.clone(), unused.clone()]);
        assert_eq!(lanes.fitting(&offer).len(), 2);
        let look = lanes.begin_look();
        lanes.learn([new.clone()]);
        assert_eq!(lanes.keep(&[used.0.clone()].into(), look), std::slice::from_ref(&unused.0));
        assert_eq!(lanes.fitting(&offer), [used.0.clone(), new.0.clone()].into());
        let look = lanes.begin_look();
        assert_eq!(lanes.keep(&BTreeSet::new(), look).len(), 2);
        assert!(lanes.fitting(&offer).is_empty() && lanes.all().is_empty());
        lanes.learn([unused]);
        assert_eq!(lanes.fitting(&offer).len(), 1, "it comes back");
    }
}
