//! The server's queue, and the question where a prompt is.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::history::HistoryEntry;
use crate::ids::PromptId;
use crate::jobs::JobStatus;
use crate::lenient::count_values;
use crate::limits::Route;

/// More ids than this in the list of output nodes are left out: no graph has so many.
const MOST_OUTPUTS: usize = 200_000;

/// A member of `extra_data` that is longer than this is not read by [`QueueItem::extra`].
const LONGEST_EXTRA: usize = 1 << 20;

/// `GET /queue`.
#[derive(Debug, Clone, Deserialize)]
pub struct Queue {
    /// At most one on a real server.
    #[serde(rename = "queue_running")]
    pub running: Vec<QueueItem>,
    /// In the order the server keeps them, which is a heap; see [`Queue::in_order`].
    #[serde(rename = "queue_pending")]
    pub pending: Vec<QueueItem>,
}

impl Queue {
    /// The waiting prompts in the order they will run: by number, then by the text of the id.
    #[must_use]
    pub fn in_order(&self) -> Vec<&QueueItem> {
        let mut items: Vec<_> = self.pending.iter().collect();
        items.sort_by(|a, b| a.number.total_cmp(&b.number).then_with(|| a.prompt_id.cmp(&b.prompt_id)));
        items
    }
}

/// One prompt in the queue or the history: `[number, prompt_id, prompt, extra_data, outputs]`. The id is the *second*.
#[derive(Debug, Clone)]
pub struct QueueItem {
    /// Priority; the lowest runs first. NaN when the server wrote one.
    pub number: f64,
    /// The id.
    pub prompt_id: PromptId,
    /// The graph, as the server converted it.
    pub prompt: Box<RawValue>,
    /// What was sent with it, with `client_id` and (0.3.69) `create_time` added, as the server wrote it: it can hold a
    /// second copy of the workflow. [`QueueItem::extra`] reads one member.
    pub extra_data: Box<RawValue>,
    /// Output nodes that will run, in no order.
    pub outputs: Vec<String>,
}

impl QueueItem {
    /// One member of `extra_data`. The others are passed over without being kept.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<Value> {
        struct Member<'a>(&'a str);
        impl<'de> Visitor<'de> for Member<'_> {
            type Value = Option<Value>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Value>, A::Error> {
                let mut found: Option<&RawValue> = None;
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    if key == self.0 {
                        found = Some(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                let found = found.filter(|raw| raw.get().len() <= LONGEST_EXTRA);
                Ok(found.and_then(|raw| serde_json::from_str(raw.get()).ok()))
            }
        }
        let mut text = serde_json::Deserializer::from_str(self.extra_data.get());
        text.deserialize_map(Member(key)).ok().flatten()
    }
}

impl<'de> Deserialize<'de> for QueueItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Item;
        impl<'de> Visitor<'de> for Item {
            type Value = QueueItem;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a queue item [number, prompt_id, prompt, extra_data, outputs]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<QueueItem, A::Error> {
                use serde::de::Error as _;
                let missing = |what| A::Error::custom(format!("queue item without {what}"));
                let number: Option<f64> = seq.next_element()?.ok_or_else(|| missing("number"))?;
                let prompt_id = seq.next_element()?.ok_or_else(|| missing("prompt_id"))?;
                let prompt = seq.next_element()?.ok_or_else(|| missing("prompt"))?;
                let extra_data = seq.next_element()?.unwrap_or_else(|| RawValue::NULL.to_owned());
                let outputs: Option<Box<RawValue>> = seq.next_element()?;
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                let outputs = outputs.filter(|raw| count_values(raw.get().as_bytes(), 1) <= MOST_OUTPUTS);
                let outputs = outputs.and_then(|raw| serde_json::from_str(raw.get()).ok());
                let outputs = match outputs {
                    Some(Value::Array(ids)) => {
                        ids.into_iter().filter_map(|id| id.as_str().map(str::to_owned)).collect()
                    }
                    _ => Vec::new(),
                };
                Ok(QueueItem { number: number.unwrap_or(f64::NAN), prompt_id, prompt, extra_data, outputs })
            }
        }
        deserializer.deserialize_seq(Item)
    }
}

/// Where a prompt is at this moment.
#[derive(Debug, Clone)]
pub enum Whereabouts {
    /// Waiting.
    Pending,
    /// Running.
    Running,
    /// Ended; the entry says how.
    Ended(Box<HistoryEntry>),
    /// Neither in the queue nor in the history: never came, was deleted, or was lost in a restart.
    Absent,
}

impl Client {
    /// The whole queue, workflows included: large when much is waiting.
    ///
    /// # Errors
    /// As any call.
    pub async fn queue(&self) -> Result<Queue> {
        self.get(&["queue"]).repeatable().bound(Route::History).read().await
    }

    /// How many prompts are pending or running, of everybody.
    ///
    /// # Errors
    /// As any call.
    pub async fn queue_remaining(&self) -> Result<u64> {
        #[derive(Deserialize)]
        struct Answer {
            exec_info: Info,
        }
        #[derive(Deserialize)]
        struct Info {
            queue_remaining: u64,
        }
        let answer: Answer = self.get(&["prompt"]).repeatable().read().await?;
        Ok(answer.exec_info.queue_remaining)
    }

    /// Takes pending prompts out of the queue. Running and unknown ones are left alone, and the answer does not tell.
    ///
    /// # Errors
    /// As any call.
    pub async fn delete_pending(&self, ids: &[PromptId]) -> Result<()> {
        self.post(&["queue"]).json(&json!({ "delete": ids }))?.repeatable().done().await
    }

    /// Empties the queue, **everybody's** prompts included.
    ///
    /// # Errors
    /// As any call.
    pub async fn clear_pending(&self) -> Result<()> {
        self.post(&["queue"]).json(&json!({ "clear": true }))?.done().await
    }

    /// Where a prompt is. The cheapest certain answer this version can give.
    ///
    /// # Errors
    /// As any call; an error is never "absent".
    pub async fn find(&self, id: &PromptId) -> Result<Whereabouts> {
        if self.capabilities().await?.jobs {
            match self.job(id).await {
                Ok(None) => return Ok(Whereabouts::Absent),
                Ok(Some(job)) => match job.status {
                    JobStatus::Pending => return Ok(Whereabouts::Pending),
                    JobStatus::Running => return Ok(Whereabouts::Running),
                    JobStatus::Unknown => {}
                    JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled => {
                        if let Some(entry) = self.history(id).await? {
                            return Ok(Whereabouts::Ended(Box::new(entry)));
                        }
                        // Deleted from the history between the two looks.
                        return Ok(Whereabouts::Absent);
                    }
                },
                // One entry with odd metadata makes the jobs routes fail for everybody: ask the older ones.
                Err(Error::Status { .. } | Error::Protocol { .. } | Error::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Queue first: a prompt moves from there to the history and never back, so this order cannot miss it.
        let queue = self.queue().await?;
        if queue.running.iter().any(|item| item.prompt_id == *id) {
            return Ok(Whereabouts::Running);
        }
        if queue.pending.iter().any(|item| item.prompt_id == *id) {
            return Ok(Whereabouts::Pending);
        }
        Ok(match self.history(id).await? {
            Some(entry) => Whereabouts::Ended(Box::new(entry)),
            None => Whereabouts::Absent,
        })
    }

    /// The id of the prompt whose `extra_data[key]` equals `value`, in the queue or the history.
    ///
    /// # Errors
    /// As any call.
    pub async fn find_marked(&self, key: &str, value: &Value) -> Result<Option<PromptId>> {
        let marked = |item: &QueueItem| item.extra(key).as_ref() == Some(value);
        let queue = self.queue().await?;
        if let Some(item) = queue.running.iter().chain(&queue.pending).find(|item| marked(item)) {
            return Ok(Some(item.prompt_id.clone()));
        }
        // It is probably a new one; the whole history can be large.
        for newest in [Some(64), None] {
            let history = self.history_page(newest, None).await?;
            if let Some((id, _)) = history.into_iter().find(|(_, entry)| marked(&entry.prompt)) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }
}
