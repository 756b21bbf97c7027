//! Long texts on their way into the file, before the rows that name them.

use std::sync::Arc;

use remuda_core::transition::Ending;
use remuda_core::{NewTask, TaskId};
use serde_json::value::RawValue;

use super::SqliteStore;
use super::pieces::{self, Laid, Part};
use super::rows;
use crate::keyring::size_of;
use crate::turns::Party;
use crate::{Error, Keyring, Result};

impl SqliteStore {
    /// Writes part of a long text, piece by piece.
    async fn lay_down(&self, party: &Party, laid: &Arc<Laid>, part: Part, text: &str) -> Result<()> {
        for (n, (begin, end)) in pieces::cut(text).enumerate() {
            let (laid, piece) = (Arc::clone(laid), text.get(begin..end).unwrap_or_default().to_owned());
            let turn = self.turns.take(party.clone(), piece.len()).await?;
            self.write(move |batch| {
                let _in_line = &turn;
                batch.put_piece(&laid, part, n, &piece)
            })
            .await?;
        }
        Ok(())
    }

    /// Takes the long texts out of a new task and writes them.
    pub(super) async fn lay_down_input(&self, new: &mut NewTask) -> Result<Arc<Laid>> {
        let (laid, party) = (self.texts.begin(), Party::from(&new.tenant));
        let workflow = std::mem::replace(&mut new.input.workflow, RawValue::NULL.to_owned());
        self.lay_down(&party, &laid, Part::First, workflow.get()).await?;
        drop(workflow);
        if let Some(mut extra) = new.input.extra.take() {
            let size = size_of(&extra);
            let write = move |_: &Keyring| {
                let text = rows::json_text(&extra)?;
                extra.extra_data = None;
                Ok::<_, Error>((text, extra))
            };
            let (text, extra) = self.settings.secrets().beside(size, write).await??;
            self.lay_down(&party, &laid, Part::Beside, &text).await?;
            new.input.extra = Some(extra);
        }
        Ok(laid)
    }

    /// Writes a long result.
    pub(super) async fn lay_down_result(&self, task: TaskId, ending: &Arc<Ending>) -> Result<Arc<Laid>> {
        let (laid, party) = (self.texts.begin(), self.party(task).await?);
        let ending = Arc::clone(ending);
        let write = move |_: &Keyring| rows::json_text(&ending.result()).map_err(Error::from);
        let text = self.settings.secrets().beside(usize::MAX, write).await??;
        self.lay_down(&party, &laid, Part::First, &text).await?;
        Ok(laid)
    }
}
