//! Which lanes are looked into for a round of claims.

use std::collections::BTreeMap;

use remuda_core::LaneId;
use remuda_core::schedule::AFFINITY_WINDOW;

/// How many lanes are looked into for a round of claims: those with the earliest first tasks. However many there are, a
/// round takes no longer.
pub(crate) const LOOKED_INTO: usize = 64;

/// How many tasks of a lane are seen at least, if it is looked into: the first ones may avoid a worker.
const SEEN: usize = 8;

/// The lanes for these claims, and how many tasks of each are enough. Of every claim: the lanes with something for it, in the
/// order of their first tasks.
///
/// For one claim out of `n` the next task is among the first `n` of all its lanes, whatever the others take before it; with
/// some more to choose from. The first tasks of lanes are in order, so these are in its first `n` lanes, and of the second one
/// the first `n - 1` are enough. Every claim has its first lane looked into; beyond that they take turns, until it is
/// [`LOOKED_INTO`] lanes together.
pub(crate) fn shares(claims: &[Vec<LaneId>]) -> BTreeMap<LaneId, usize> {
    let mut depths: BTreeMap<LaneId, usize> = BTreeMap::new();
    let enough = claims.len() + AFFINITY_WINDOW;
    for n in 0..LOOKED_INTO.min(enough) {
        for lane in claims.iter().filter_map(|lanes| lanes.get(n)) {
            if n > 0 && depths.len() >= LOOKED_INTO && !depths.contains_key(lane) {
                continue;
            }
            let depth = depths.entry(lane.clone()).or_default();
            *depth = (*depth).max(enough - n).max(SEEN);
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_has_its_first_lane_looked_into_and_together_they_are_few() {
        let lanes = |from: usize| -> Vec<LaneId> {
            (from..from + 500).map(|n| LaneId::from_stored(format!("{n:05}"))).collect()
        };
        let one = shares(&[lanes(0)]);
        assert_eq!((one.len(), one[&lanes(0)[0]]), (1 + AFFINITY_WINDOW, 1 + AFFINITY_WINDOW));
        let many: Vec<Vec<LaneId>> = (0..100).map(|n| lanes(1000 * n)).collect();
        let shared = shares(&many);
        assert_eq!(shared.len(), 100);
        assert!(many.iter().all(|lanes| shared.contains_key(&lanes[0])));
        let same: Vec<Vec<LaneId>> = (0..100).map(|_| lanes(0)).collect();
        assert_eq!(shares(&same).len(), LOOKED_INTO);
        assert!(shares(&[]).is_empty());
    }
}
