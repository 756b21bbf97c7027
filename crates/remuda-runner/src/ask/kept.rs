//! Answers that are kept for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::WorkerId;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{Answer, AskError, SORE};

/// How long an answer is believed.
const FRESH: Duration = Duration::from_secs(30);

/// How many answers are kept …
const MOST: usize = 2048;

/// … with how many bytes together …
const MOST_BYTES: usize = 32 << 20;

/// … and for how long when nobody asks for them.
const OLD: Duration = Duration::from_secs(600);

/// Who is asked for what.
pub(super) type Question = (WorkerId, String);

/// One asking: whoever comes while it is under way waits for the same answer.
#[derive(Debug)]
pub(super) struct Slot {
    begun: Instant,
    /// What was answered before, until there is something newer.
    before: Mutex<Option<Weighed>>,
    pub(super) answer: OnceCell<Result<Weighed, Arc<AskError>>>,
}

/// An answer, and about how many bytes it takes.
#[derive(Debug, Clone)]
pub(super) struct Weighed {
    pub(super) answer: Answer,
    pub(super) weight: usize,
    /// Whether it gives way to others.
    pub(super) long: bool,
}

impl Slot {
    /// An asking that begins now.
    pub(super) fn new(before: Option<Weighed>) -> Self {
        Self { begun: Instant::now(), before: Mutex::new(before), answer: OnceCell::new() }
    }

    pub(super) fn is_fresh(&self) -> bool {
        let time = if matches!(self.answer.get(), Some(Err(_))) { SORE } else { FRESH };
        self.begun.elapsed() < time
    }

    /// The last good answer.
    pub(super) fn last(&self) -> Option<Weighed> {
        match self.answer.get() {
            Some(Ok(answer)) => Some(answer.clone()),
            _ => self.before().clone(),
        }
    }

    pub(super) fn before(&self) -> MutexGuard<'_, Option<Weighed>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_long(&self) -> bool {
        self.last().is_some_and(|answer| answer.long)
    }

    fn weight(&self) -> usize {
        let now = self.answer.get().and_then(|answer| answer.as_ref().ok()).map_or(0, |answer| answer.weight);
        now + self.before().as_ref().map_or(0, |before| before.weight)
    }
}

/// Forgets what is old, and of the rest the long and then the oldest until it is within the bounds.
pub(super) fn make_room(kept: &mut HashMap<Question, Arc<Slot>>) {
    kept.retain(|_, slot| slot.begun.elapsed() < OLD);
    let mut bytes: usize = kept.values().map(|slot| slot.weight()).sum();
    if bytes <= MOST_BYTES && kept.len() <= MOST {
        return;
    }
    let mut by_age: Vec<_> =
        kept.iter().map(|(question, slot)| (!slot.is_long(), slot.begun, question.clone())).collect();
    by_age.sort();
    for (.., question) in by_age {
        if bytes <= MOST_BYTES && kept.len() <= MOST {
            return;
        }
        if let Some(slot) = kept.remove(&question) {
            bytes = bytes.saturating_sub(slot.weight());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_in_bytes_and_the_oldest_goes_first() {
        let mut kept = HashMap::new();
        let question = |n: usize| (WorkerId::new("one").unwrap(), n.to_string());
        let now = Instant::now();
        for n in 0..40 {
            let answer = Weighed { answer: None, weight: 1 << 20, long: false };
            let begun = now + Duration::from_millis(n as u64);
            // What was answered before counts too.
            let (before, answer) =
                if n % 2 == 0 { (Some(answer), OnceCell::new()) } else { (None, OnceCell::from(Ok(answer))) };
            kept.insert(question(n), Arc::new(Slot { begun, before: Mutex::new(before), answer }));
        }
        make_room(&mut kept);
        assert_eq!(kept.len(), 32);
        assert!(!kept.contains_key(&question(7)) && kept.contains_key(&question(8)));
        // What is long goes first, however new it is.
        let answer = OnceCell::from(Ok(Weighed { answer: None, weight: 2 << 20, long: true }));
        let begun = now + Duration::from_secs(1);
        kept.insert(question(99), Arc::new(Slot { begun, before: Mutex::default(), answer }));
        make_room(&mut kept);
        assert!(!kept.contains_key(&question(99)) && kept.len() == 32);
    }
}
