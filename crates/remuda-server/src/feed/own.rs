//! Tasks that were taken in by this process: whoever is to know of them knows already.

use std::collections::{HashSet, VecDeque};

use remuda_core::TaskId;

/// How many are remembered.
const MOST: usize = 16_384;

/// The last tasks that were taken in here.
#[derive(Debug, Default)]
pub(super) struct Own {
    known: HashSet<TaskId>,
    order: VecDeque<TaskId>,
}

impl Own {
    pub(super) fn add(&mut self, task: TaskId) {
        if !self.known.insert(task) {
            return;
        }
        self.order.push_back(task);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Whether a task is among them. It is asked for once.
    pub(super) fn take(&mut self, task: TaskId) -> bool {
        // Its place in the order goes with its time.
        self.known.remove(&task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_once() {
        let mut own = Own::default();
        let tasks: Vec<TaskId> = (0..=MOST).map(|_| TaskId::new()).collect();
        tasks.iter().for_each(|task| own.add(*task));
        assert!(!own.take(tasks[0]) && own.take(tasks[1]) && !own.take(tasks[1]));
        assert!(own.take(tasks[MOST]));
        assert_eq!(own.order.len(), MOST);
    }
}
