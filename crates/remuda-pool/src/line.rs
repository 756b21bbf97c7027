//! Who waits, and whose turn it is.

use std::collections::{HashMap, VecDeque};

use crate::NotDone;

/// Waiting work by tenant. Tenants take turns; within a tenant it is first come, first served.
#[derive(Debug)]
pub(crate) struct Line<J> {
    queues: HashMap<String, VecDeque<J>>,
    /// Every tenant that has something waiting, once.
    turns: VecDeque<String>,
    waiting: usize,
    bound: usize,
    share: usize,
}

impl<J> Line<J> {
    /// At most `bound` wait, of one tenant at most a quarter of that.
    pub(crate) fn new(bound: usize) -> Self {
        let bound = bound.max(1);
        let share = (bound / 4).max(1);
        Self { queues: HashMap::new(), turns: VecDeque::new(), waiting: 0, bound, share }
    }

    /// Whether there is room for one more of this tenant.
    pub(crate) fn room(&self, tenant: &str) -> Result<(), NotDone> {
        if self.queues.get(tenant).is_some_and(|queue| queue.len() >= self.share) {
            return Err(NotDone::Share);
        }
        if self.waiting >= self.bound { Err(NotDone::Busy) } else { Ok(()) }
    }

    pub(crate) fn push(&mut self, tenant: String, job: J) {
        let queue = self.queues.entry(tenant.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(tenant);
        }
        queue.push_back(job);
        self.waiting += 1;
    }

    /// The next piece of work of the first tenant in turn that `may` have another thread.
    pub(crate) fn pop(&mut self, may: impl Fn(&str) -> bool) -> Option<(String, J)> {
        let place = self.turns.iter().position(|tenant| may(tenant))?;
        let tenant = self.turns.remove(place)?;
        let queue = self.queues.get_mut(&tenant)?;
        let job = queue.pop_front()?;
        self.waiting -= 1;
        if queue.is_empty() {
            self.queues.remove(&tenant);
        } else {
            self.turns.push_back(tenant.clone());
        }
        Some((tenant, job))
    }

    /// Takes everything of a tenant out of the line that `is` meant.
    pub(crate) fn take(&mut self, tenant: &str, is: impl Fn(&J) -> bool) -> Vec<J> {
        let Some(queue) = self.queues.get_mut(tenant) else { return Vec::new() };
        let (taken, left): (VecDeque<J>, VecDeque<J>) = std::mem::take(queue).into_iter().partition(is);
        self.waiting -= taken.len();
        if left.is_empty() {
            self.queues.remove(tenant);
            self.turns.retain(|waits| waits != tenant);
        } else {
            *queue = left;
        }
        taken.into()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Forgets everything that waits.
    pub(crate) fn clear(&mut self) {
        self.queues.clear();
        self.turns.clear();
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns() {
        let mut line = Line::new(100);
        for n in 0..5 {
            line.push("greedy".to_owned(), n);
        }
        line.push("modest".to_owned(), 100);
        line.push("shy".to_owned(), 200);
        let order: Vec<i32> = std::iter::from_fn(|| line.pop(|_| true)).map(|(_, job)| job).collect();
        assert_eq!(order, [0, 100, 200, 1, 2, 3, 4]);
        assert_eq!(line.waiting(), 0);
    }

    #[test]
    fn one_tenant_leaves_room_for_the_others() {
        let mut line = Line::new(8);
        for tenant in ["a", "a", "b", "c", "d", "e"] {
            assert_eq!(line.room(tenant), Ok(()));
            line.push(tenant.to_owned(), ());
        }
        assert_eq!(line.room("a"), Err(NotDone::Share));
        assert_eq!(line.room("b"), Ok(()));
        line.push("b".to_owned(), ());
        line.push("f".to_owned(), ());
        assert_eq!(line.room("g"), Err(NotDone::Busy));
    }

    #[test]
    fn a_tenant_that_has_enough_threads_is_passed_over() {
        let mut line = Line::new(8);
        line.push("a".to_owned(), 1);
        line.push("b".to_owned(), 2);
        assert_eq!(line.pop(|tenant| tenant != "a"), Some(("b".to_owned(), 2)));
        assert_eq!(line.pop(|tenant| tenant != "a"), None);
        assert_eq!(line.pop(|_| true), Some(("a".to_owned(), 1)));
    }
    #[test]
    fn what_is_taken_out_leaves_nothing_behind() {
        let mut line = Line::new(8);
        for (tenant, job) in [("a", 1), ("b", 2), ("a", 3)] {
            line.push(tenant.to_owned(), job);
        }
        assert_eq!(line.take("a", |job| *job == 3), [3]);
        assert_eq!(line.waiting(), 2);
        assert_eq!(line.take("a", |_| true), [1]);
        assert!(line.take("a", |_| true).is_empty());
        assert_eq!(line.pop(|_| true), Some(("b".to_owned(), 2)));
        assert_eq!((line.pop(|_| true), line.waiting()), (None, 0));
    }
}
