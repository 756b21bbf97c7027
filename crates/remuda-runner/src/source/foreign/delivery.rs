//! What a foreign queue hands out, and what it hears.

use remuda_core::TaskId;
use remuda_core::transition::Ending;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{AttachedFile, SinkFolder};

/// The namespace of prompt ids that [`Delivery::new`] makes: UUIDv5 of `remuda:foreign-queue` in the namespace of URLs. It
/// never changes: a worker of a later version must find the prompts of an earlier one.
const NAMESPACE: Uuid = Uuid::from_u128(0xbbfb_c7e1_87e5_5a6e_a860_415d_2f5f_4d42);

/// How many deliveries before the present one are looked for by their second ids.
const EARLIER: i32 = 8;

/// A task as a foreign queue hands it out. The same task may be delivered more than once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Delivery {
    /// The same for every delivery of the same work.
    pub key: String,
    /// Which delivery, by the queue's count.
    pub attempt: i32,
    /// The id under which ComfyUI gets it.
    pub prompt_id: Uuid,
    /// The id under which it gets it when a prompt of the first one ended badly before.
    pub second_prompt_id: Uuid,
    /// The second ids of deliveries before this one, with their numbers: a prompt may be known by one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<(i32, Uuid)>,
    /// The graph, as it came.
    pub workflow: Box<RawValue>,
    /// It may have been begun before, here or elsewhere: look for it before it is sent.
    pub again: bool,
    /// Ends a render that takes longer, if set.
    pub timeout_s: Option<u32>,
    /// Files that it brings along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<AttachedFile>,
    /// Where below the sink its outputs are delivered to, if they are delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<SinkFolder>,
    /// What the queue wants to see again with the report: survives a restart.
    pub cookie: serde_json::Value,
    /// Which of the two ids ComfyUI gets it under: set by the source, kept in the journal, and told with the report. Queues
    /// leave it empty.
    #[serde(default)]
    pub sent_as: Option<Uuid>,
    /// It cannot be begun, and this is to be said of it, in the queue's own words. The journal keeps it until it is heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<serde_json::Value>,
}

impl Delivery {
    /// A delivery of a queue that has no rule of its own for prompt ids. They are made of the queue's name, the key and the
    /// graph, so that whoever gets the next delivery of the same work finds what the one before has sent. Deliveries are
    /// counted from 0; a queue that does not count them says 0 and sets [`again`](Self::again).
    pub fn new(queue: &str, key: impl Into<String>, attempt: i32, workflow: Box<RawValue>) -> Self {
        let key = key.into();
        let graph = Sha256::digest(workflow.get().as_bytes());
        // Lengths first: neither a name nor a key can reach into what follows it.
        let mut work = Vec::new();
        for part in [queue.as_bytes(), key.as_bytes(), graph.as_slice()] {
            work.extend_from_slice(&(part.len() as u64).to_be_bytes());
            work.extend_from_slice(part);
        }
        let prompt_id = Uuid::new_v5(&NAMESPACE, &work);
        let second = |attempt: i32| Uuid::new_v5(&prompt_id, &attempt.to_be_bytes());
        let earlier = attempt.saturating_sub(EARLIER).max(1)..attempt;
        Self {
            key,
            attempt,
            prompt_id,
            second_prompt_id: second(attempt),
            earlier: earlier.map(|attempt| (attempt, second(attempt))).collect(),
            workflow,
            again: attempt > 0,
            timeout_s: None,
            files: Vec::new(),
            folder: None,
            cookie: serde_json::Value::Null,
            sent_as: None,
            refused: None,
        }
    }

    /// Its name towards runners, which their lines of the log have: the same for every delivery of the same work with the
    /// same graph.
    pub fn task(&self) -> TaskId {
        TaskId(Uuid::new_v5(&self.prompt_id, self.key.as_bytes()))
    }

    /// The id under which ComfyUI has it, or will.
    pub fn prompt(&self) -> Uuid {
        self.sent_as.unwrap_or(self.prompt_id)
    }
}

/// How a delivery ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum DeliveryEnding {
    /// As its runner says.
    Ended(Ending),
    /// It was stopped, or never begun, because of this; `retry`: it may be tried again elsewhere.
    CalledOff {
        /// For people.
        reason: String,
        /// Whether another try makes sense.
        retry: bool,
    },
    /// It could not be begun: what the delivery said of itself ([`Delivery::refused`]).
    Refused(serde_json::Value),
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// The queue has it.
    Heard,
    /// The queue does not want it any more.
    TooLate,
}

/// Why a delivery under way is not wanted any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withdrawn {
    /// Nobody wants it, nor ever will: its prompt is cancelled, and what was delivered of it is deleted.
    Unwanted(String),
    /// A good end of it was heard, from here or from somebody else, or may have been: its prompt is cancelled. What was
    /// delivered stays: the files of that end have the same names.
    Done(String),
    /// This delivery has timed out, and another one will come: the render goes on for that one, and does not count
    /// against the slots.
    Superseded,
    /// Somebody else has it by now: it is let go of, and nothing is touched at ComfyUI.
    Elsewhere,
}

/// What became of the delivery that follows one whose time is over.
#[derive(Debug)]
pub enum NextDelivery {
    /// It was handed to this process, and did not arrive: this is it. Should it arrive later, it is the same delivery.
    Lost(Box<Delivery>),
    /// This, or nothing new.
    Withdrawn(Withdrawn),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(queue: &str, key: &str, attempt: i32, graph: &str) -> Delivery {
        Delivery::new(queue, key, attempt, RawValue::from_string(graph.to_owned()).unwrap())
    }

    /// These ids are in the histories of ComfyUIs: a later version must find them.
    #[test]
    fn ids_do_not_change() {
        assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::NAMESPACE_URL, b"remuda:foreign-queue"));
        let third = delivery("a table", "7", 2, "{}");
        assert_eq!(third.prompt_id.to_string(), "f323579c-39b4-5c15-a6e5-33a09014c3a0");
        assert_eq!(third.second_prompt_id.to_string(), "9bcc27de-232e-55d2-8481-be8dd9a4e612");
    }

    #[test]
    fn every_delivery_of_the_same_work_has_the_same_first_id_and_knows_the_ids_before() {
        let [first, second, third] = [0, 1, 2].map(|attempt| delivery("a table", "7", attempt, "{}"));
        assert_eq!((first.prompt_id, first.task()), (third.prompt_id, third.task()));
        assert_eq!((first.again, second.again), (false, true));
        assert_eq!(third.earlier, [(1, second.second_prompt_id)]);
        assert_ne!(second.second_prompt_id, third.second_prompt_id);
        assert_eq!(delivery("q", "k", 100, "{}").earlier.len(), 8);
    }

    #[test]
    fn other_work_has_other_ids() {
        let ids = [("ab", "c", "{}"), ("a", "bc", "{}"), ("ab", "c", "{ }"), ("ab", "d", "{}")]
            .map(|(queue, key, graph)| delivery(queue, key, 0, graph).prompt_id);
        let all: std::collections::BTreeSet<_> = ids.into_iter().collect();
        assert_eq!(all.len(), 4);
    }
}
