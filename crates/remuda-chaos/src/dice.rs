//! Chance that can be had again: SplitMix64, the same on every machine and with every release.

use std::time::Duration;

/// A source of chance.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Another source, whose numbers do not depend on how many were taken from this one.
    pub(crate) fn fork(&self, label: &str) -> Dice {
        let mixed = label.bytes().fold(self.0 ^ 0xcbf2_9ce4_8422_2325, |mixed, byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Dice(Dice(mixed).next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to one less than `count`; 0 if there is nothing to choose from.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % (count.max(1) as u64)) as usize
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most.saturating_sub(least) + 1)
    }

    pub(crate) fn millis(&mut self, least: Duration, most: Duration) -> Duration {
        let millis = |time: Duration| time.as_millis() as u64;
        Duration::from_millis(self.between(millis(least), millis(most)))
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn shuffle<T>(&mut self, cards: &mut [T]) {
        for last in (1..cards.len()).rev() {
            let other = self.below(last + 1);
            cards.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_and_every_fork_its_own() {
        let take = |mut dice: Dice| (0..4).map(|_| dice.between(0, 999)).collect::<Vec<_>>();
        // Written down once: a seed in an old report must still mean the same.
        assert_eq!(take(Dice::new(7)), [487, 804, 346, 203]);
        assert_ne!(take(Dice::new(7).fork("a")), take(Dice::new(7).fork("b")));
        let mut used = Dice::new(7).fork("x");
        used.next();
        assert_ne!(take(used), take(Dice::new(7).fork("x")));
    }

    #[test]
    fn a_shuffled_deck_has_the_same_cards() {
        let mut cards: Vec<u32> = (0..50).collect();
        Dice::new(1).shuffle(&mut cards);
        assert_ne!(cards, (0..50).collect::<Vec<_>>());
        cards.sort_unstable();
        assert_eq!(cards, (0..50).collect::<Vec<_>>());
    }
}
