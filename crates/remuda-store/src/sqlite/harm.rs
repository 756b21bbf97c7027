//! Tasks that harmed a process.

use remuda_core::{Fence, Harm, Harmed, OwnerId, Status, TaskId, harm, transition};

use super::batch::{Batch, Was};
use super::fault::{Outcome, corrupt};
use super::rows::{Numbered, json_text, micros};
use crate::Error;

impl Batch<'_> {
    /// Counts an incident; with enough of them the task ends.
    pub(super) fn note_harm(
        &mut self,
        id: TaskId,
        holder: Option<(OwnerId, Fence)>,
        new: &Harm,
    ) -> Outcome<Harmed> {
        let held = self.state.running.get(&id).map(|held| (held.lease.owner, held.lease.fence));
        if holder.is_some() && holder != held {
            return Err(Error::Fenced.into());
        }
        let Some(Numbered { no, mut task }) = self.load(id)? else {
            return Ok(Harmed { count: 0, set_aside: false });
        };
        let sql = "INSERT INTO harm (task, at, harm) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
        self.db.prepare_cached(sql)?.execute((id.0.as_bytes(), micros(new.at), json_text(new)?))?;
        let known = self.harm(id)?;
        let count = known.len();
        if task.status.is_terminal() || !harm::is_enough(count) {
            return Ok(Harmed { count, set_aside: false });
        }
        let failure = harm::failure(&known);
        let not_possible = |error| corrupt("a task that did not end", error);
        if task.status == Status::Running
            && let Some(mut held) = self.state.running.remove(&id)
        {
            let was = Was::from(&held.task);
            let ended = transition::set_aside(&mut held.task, self.now, failure).map_err(not_possible)?;
            // Whoever holds it should not go on.
            self.effects.lost.push(held.lease.reference());
            self.close(held, &was, &ended)?;
        } else {
            let was = Was::from(&task);
            let ended = transition::set_aside(&mut task, self.now, failure).map_err(not_possible)?;
            self.save(no, &was, &task, &ended.event)?;
        }
        Ok(Harmed { count, set_aside: true })
    }

    /// Everything that is known of a task, oldest first.
    fn harm(&self, id: TaskId) -> Outcome<Vec<Harm>> {
        let mut statement = self.db.prepare_cached("SELECT harm FROM harm WHERE task = ? ORDER BY at")?;
        let mut found = statement.query((id.0.as_bytes(),))?;
        let mut known = Vec::new();
        while let Some(row) = found.next()? {
            let text: String = row.get(0)?;
            known.push(serde_json::from_str(&text).map_err(|error| corrupt("harm", error))?);
        }
        Ok(known)
    }
}
