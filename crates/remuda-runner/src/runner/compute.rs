//! Our own work on a task's graph: beside the runtime when it is large, marked in any case, and answered for.

use remuda_core::harm::{self, Harm, HarmKind};
use remuda_core::{FailureClass, Timestamp};
use remuda_pool::{Incident, IncidentKind, NotDone, Work};

use super::attempt::{Attempt, Close, Step};
use crate::source::SourceError;

impl Attempt {
    /// Works on this many bytes of the task. A process that dies in the middle of it remembers.
    pub(super) async fn compute<T, F>(&self, what: &'static str, bytes: usize, compute: F) -> Step<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let task = &self.claim.task;
        // Not refused: those who hold leases are few, and have nowhere else to go.
        let work = Work::new(what, task.tenant.as_str(), bytes).of_task(task.id.0).patient();
        match self.worker.shared.options.pool.run(work, compute).await {
            Ok(value) => Ok(value),
            Err(NotDone::Stalled) => Err(self.stalled(what).await),
            Err(NotDone::Closed) => Err(Close::Leave),
            Err(error) => {
                let message = format!("{what} did not work inside Remuda: {error}");
                Err(Close::fail(FailureClass::Lost, message))
            }
        }
    }

    /// The work runs on, and nobody waits for it: the attempt ends as a loss, or with enough of them the task does.
    async fn stalled(&self, what: &'static str) -> Close {
        let incident = Incident {
            task: self.claim.task.id.0,
            kind: IncidentKind::Stall,
            what: what.to_owned(),
            at_us: Timestamp::now().as_microsecond(),
        };
        self.note(self.worker.shared.options.harm.add([incident]));
        match self.answer_for_harm().await {
            Err(close) => close,
            Ok(()) => Close::fail(FailureClass::Lost, format!("{what} came to no end, and was given up")),
        }
    }

    /// Tells of everything that is known against the task and was not told. The close, if that is its end.
    pub(super) async fn answer_for_harm(&self) -> Step<()> {
        let shared = &self.worker.shared;
        let (book, task) = (&shared.options.harm, self.claim.task.id);
        let known = book.of(task.0);
        if known.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::new();
        for incident in known {
            let harm = harm_of(&incident, shared.options.owner.to_string());
            match shared.ask(shared.source.harmed(self.lease(), harm.clone())).await {
                Ok(told) if told.set_aside => {
                    self.note(book.forget(|known| known.task == task.0));
                    return Err(Close::SetAside);
                }
                // Nobody there keeps count, or knows the question.
                Ok(told) if told.count == 0 => kept.push(harm),
                Err(SourceError::Refused(_)) => kept.push(harm),
                Ok(_) => self.note(book.forget(|known| *known == incident)),
                Err(SourceError::Fenced) => {
                    self.note(book.forget(|known| known.task == task.0));
                    return Err(Close::NotOurs);
                }
                Err(SourceError::Unavailable(why)) => {
                    tracing::warn!(%task, %why, "the report that the task harmed this process did not arrive; it is kept");
                }
            }
        }
        if harm::is_enough(kept.len()) {
            self.note(book.forget(|known| known.task == task.0));
            return Err(Close::failed(harm::failure(&kept)));
        }
        Ok(())
    }

    fn note(&self, written: std::io::Result<()>) {
        if let Err(error) = written {
            tracing::warn!(%error, task = %self.claim.task.id, "what is known of harmful tasks cannot be written");
        }
    }
}

/// An incident in the words of the queue.
fn harm_of(incident: &Incident, process: String) -> Harm {
    let kind = match incident.kind {
        IncidentKind::Death => HarmKind::Death,
        IncidentKind::Stall => HarmKind::Stall,
    };
    let at = Timestamp::from_microsecond(incident.at_us).unwrap_or(Timestamp::UNIX_EPOCH);
    Harm { kind, work: incident.what.clone(), process, at }
}
