//! `/history`: what ended, and how.

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Result;
use crate::ids::PromptId;
use crate::lenient;
use crate::limits::{Route, VALUES};
use crate::outputs::Outputs;
use crate::queue::QueueItem;
use crate::ws::Message;

/// One ended prompt.
#[derive(Debug, Clone, Deserialize)]
pub struct HistoryEntry {
    /// The queue item it was.
    pub prompt: QueueItem,
    /// `outputs` as the server wrote it; [`HistoryEntry::outputs`] reads it.
    #[serde(rename = "outputs", default = "empty_object")]
    pub raw_outputs: Box<RawValue>,
    /// How it ended. Forks have been seen to leave it out.
    #[serde(default)]
    pub status: Option<Status>,
}

fn empty_object() -> Box<RawValue> {
    serde_json::value::to_raw_value(&serde_json::Map::new()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The status of an entry. `status_str == "success"` alone does not mean success.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// `success` or `error`.
    #[serde(default)]
    pub status_str: String,
    /// True after a good end.
    #[serde(default)]
    pub completed: bool,
    /// What happened, oldest first; the last one tells how it ended.
    #[serde(default, deserialize_with = "messages")]
    pub messages: Vec<Message>,
}

/// `[event, data]` pairs; what does not look like one is skipped.
fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Message>, D::Error> {
    use serde::de::Error as _;
    let Some(raw) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(Vec::new()) };
    if lenient::count_values(raw.get().as_bytes(), usize::MAX) > VALUES {
        return Err(D::Error::custom(format!(
            "the messages of a history entry hold more than {VALUES} values"
        )));
    }
    let pairs: Option<Vec<Value>> = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
    Ok(pairs
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pair| match pair {
            Value::Array(mut pair) if pair.len() >= 2 => {
                let data = pair.swap_remove(1);
                let kind = pair.swap_remove(0);
                Some(Message::from_parts(kind.as_str()?, data))
            }
            _ => None,
        })
        .collect())
}

impl HistoryEntry {
    /// Everything the output nodes left, in the server's order; nothing when it is more than can be held.
    #[must_use]
    pub fn outputs(&self) -> Outputs {
        if self.outputs_fit() { Outputs::from_history(&self.raw_outputs) } else { Outputs::default() }
    }

    /// Whether what the output nodes left can be turned into values.
    pub(crate) fn outputs_fit(&self) -> bool {
        let raw = self.raw_outputs.get();
        raw.len() <= VALUES || lenient::count_values(raw.as_bytes(), usize::MAX) <= VALUES
    }

    /// Nodes that were served from the cache.
    #[must_use]
    pub fn cached_nodes(&self) -> Vec<String> {
        let messages = self.status.as_ref().map(|status| status.messages.as_slice()).unwrap_or_default();
        messages
            .iter()
            .find_map(|message| match message {
                Message::ExecutionCached(cached) => Some(cached.nodes.clone()),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// Milliseconds from the start of the run to its end, by the server's clock.
    #[must_use]
    pub fn duration_ms(&self) -> Option<u64> {
        let messages = &self.status.as_ref()?.messages;
        let start = messages.iter().find_map(|message| match message {
            Message::ExecutionStart(start) => start.timestamp,
            _ => None,
        })?;
        messages.last()?.timestamp()?.checked_sub(start)
    }
}

impl Client {
    /// The entry of one prompt. `None` says nothing: pending, running, unknown, deleted and lost look the same.
    ///
    /// # Errors
    /// As any call.
    pub async fn history(&self, id: &PromptId) -> Result<Option<HistoryEntry>> {
        let call = self.get(&["history", id.as_str()]).repeatable().bound(Route::History);
        let mut entries: IndexMap<PromptId, HistoryEntry> = call.read().await?;
        Ok(entries.swap_remove(id))
    }

    /// Entries, oldest first: the newest `max_items`, or `max_items` from `offset` (0.3.60; older servers ignore it).
    ///
    /// # Errors
    /// As any call.
    pub async fn history_page(
        &self,
        max_items: Option<u32>,
        offset: Option<u32>,
    ) -> Result<IndexMap<PromptId, HistoryEntry>> {
        let mut call = self.get(&["history"]).repeatable().bound(Route::History);
        if let Some(max_items) = max_items {
            call = call.query("max_items", &max_items.to_string());
        }
        if let Some(offset) = offset {
            call = call.query("offset", &offset.to_string());
        }
        call.read().await
    }

    /// Deletes entries. Each one keeps its whole workflow in the server's memory until then.
    ///
    /// # Errors
    /// As any call.
    pub async fn delete_history(&self, ids: &[PromptId]) -> Result<()> {
        self.post(&["history"]).json(&json!({ "delete": ids }))?.repeatable().done().await
    }

    /// Deletes all entries, everybody's.
    ///
    /// # Errors
    /// As any call.
    pub async fn clear_history(&self) -> Result<()> {
        // Not repeated: a second try would also delete what came in between.
        self.post(&["history"]).json(&json!({ "clear": true }))?.done().await
    }
}
