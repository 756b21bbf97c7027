//! What must hold after every step, whatever it was.

use std::collections::BTreeSet;

use remuda_core::{Status, Task, TaskId};
use remuda_store::ListQuery;
use uuid::Uuid;

use super::steps::WORKERS;
use super::world::{World, worker_id};

impl World {
    /// What must hold after every step.
    pub(crate) async fn check(&self) {
        let query = ListQuery { limit: 1000, ..ListQuery::default() };
        let page = self.store.list(&query).await.expect("it lists");
        let expected: Vec<&Task> = self.shadow.lives.values().rev().map(|life| &life.task).collect();
        assert_eq!(page.tasks.iter().collect::<Vec<_>>(), expected);
        assert_eq!(self.store.counts(None).await.expect("it counts"), self.shadow.counts());
        let mut held = Vec::new();
        for worker in 0..WORKERS {
            held.extend(self.store.leases(&worker_id(worker)).await.expect("it lists"));
        }
        held.sort_by_key(|lease| lease.task);
        assert_eq!(held, self.shadow.leases().cloned().collect::<Vec<_>>());
        let running = self.shadow.lives.values().filter(|life| life.task.status == Status::Running);
        assert_eq!(running.count(), held.len(), "a lease exactly while it runs");
        for id in &self.touched {
            self.check_life(*id).await;
        }
    }

    async fn check_life(&self, id: TaskId) {
        let Some(life) = self.shadow.lives.get(&id) else {
            assert_eq!(self.store.task(id).await.expect("it answers"), None);
            return;
        };
        let events = self.store.events(id, 0, 10_000).await.expect("it answers");
        assert!(events.iter().map(|event| event.n).eq(1..=life.task.version), "gaps: {events:?}");
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), life.events);
        let ends = events.iter().filter(|event| event.kind.is_terminal()).count();
        assert_eq!(ends, usize::from(life.task.status.is_terminal()));
        assert_eq!(events.last().is_some_and(|event| event.kind.is_terminal()), ends == 1);
        let attempts = self.store.attempts(id, 1000).await.expect("it answers");
        assert!(attempts.iter().map(|attempt| attempt.n).eq(1..=life.task.attempt));
        assert_eq!(attempts.iter().map(|attempt| attempt.outcome).collect::<Vec<_>>(), life.attempts);
        assert!(attempts.iter().all(|attempt| attempt.ended_at.is_some() == attempt.outcome.is_some()));
        let prompts: BTreeSet<Uuid> = attempts.iter().map(|attempt| attempt.prompt_id).collect();
        assert_eq!(prompts.len(), attempts.len(), "every attempt has a prompt of its own");
        if let (Some(lease), Some(attempt)) = (&life.lease, attempts.last()) {
            assert_eq!((attempt.owner, attempt.prompt_id), (lease.owner, lease.prompt_id));
        }
    }

    /// Everything once more at the end, for what no step touched.
    pub(crate) async fn finish(mut self) {
        self.touched = self.shadow.lives.keys().copied().collect();
        self.check().await;
        if let Some(second) = &self.second {
            assert_eq!(second.counts(None).await.expect("it counts"), self.shadow.counts());
            second.close().await;
        }
        self.store.close().await;
    }
}
