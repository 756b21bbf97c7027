//! What can go wrong with a task, and what is done about each.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{JsonText, Timestamp};

/// The kinds of failure that are treated differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// ComfyUI, or we for it, refused the graph. Never tried again.
    Validation,
    /// A node raised an exception. Mostly the graph's own fault: once more, elsewhere if possible.
    Execution,
    /// The GPU's memory did not suffice. Once more, elsewhere if possible, after memory was freed.
    OutOfMemory,
    /// The ComfyUI died with it. Elsewhere, as a loss.
    Crash,
    /// The ComfyUI could not be reached any more. Elsewhere, as a loss.
    Connection,
    /// It ran longer than it may, or its deadline passed. Not tried again: it would do so again.
    Timeout,
    /// Nobody knows what became of it. Elsewhere, as a loss.
    Lost,
    /// The result was there and could not be stored. Not rendered again.
    Delivery,
    /// Our own work on its graph brought the process down or to a standstill, twice. Not tried again.
    Harmful,
    /// Somebody said so.
    Cancelled,
}

impl FailureClass {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Validation,
        Self::Execution,
        Self::OutOfMemory,
        Self::Crash,
        Self::Connection,
        Self::Timeout,
        Self::Lost,
        Self::Delivery,
        Self::Harmful,
        Self::Cancelled,
    ];

    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Validation => "validation",
            Self::Execution => "execution",
            Self::OutOfMemory => "out_of_memory",
            Self::Crash => "crash",
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Delivery => "delivery",
            Self::Harmful => "harmful",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the infrastructure is to blame: such an end uses the budget for losses, not the task's retries.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Crash | Self::Connection | Self::Lost)
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for FailureClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or_else(|| format!("unknown failure class {text:?}"))
    }
}

/// Why an attempt, or at last a task, failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Failure {
    /// Decides what is done about it.
    pub class: FailureClass,
    /// For people: what happened, to what.
    pub message: String,
    /// The node at fault, when there is one.
    pub node_id: Option<String>,
    /// ComfyUI's own words: node errors, exception, traceback.
    pub details: Option<JsonText>,
}

impl Failure {
    /// About how many bytes it takes to say it.
    pub fn text_bytes(&self) -> usize {
        self.message.len() + self.details.as_ref().map_or(0, |details| details.get().len())
    }
}

/// A failure in a row or on the wire. The release before this one reads them too, and knows no class `harmful`: it is
/// written as a refused graph, which that release does not try again either, with a field that it does not look at.
#[derive(Serialize, Deserialize)]
struct Written {
    class: FailureClass,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    harmful: bool,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<JsonText>,
}

impl From<Written> for Failure {
    fn from(written: Written) -> Self {
        let Written { class, harmful, message, node_id, details } = written;
        Self { class: if harmful { FailureClass::Harmful } else { class }, message, node_id, details }
    }
}

impl From<Failure> for Written {
    fn from(failure: Failure) -> Self {
        let Failure { class, message, node_id, details } = failure;
        let harmful = class == FailureClass::Harmful;
        Self {
            class: if harmful { FailureClass::Validation } else { class },
            harmful,
            message,
            node_id,
            details,
        }
    }
}

/// How many bytes of ComfyUI's own words are kept with a failure: with the task, with the attempt, and with what happened.
pub const MOST_DETAILS: usize = 256 << 10;

/// How many bytes of a message are kept.
const MOST_MESSAGE: usize = 64 << 10;

impl Failure {
    /// Cuts what is too long to be kept: the message, and the details with a mark, see [`JsonText::cut`].
    pub fn bound(&mut self) {
        let most = MOST_MESSAGE.min(self.message.len());
        let end = (0..=most).rev().find(|end| self.message.is_char_boundary(*end)).unwrap_or(0);
        self.message.truncate(end);
        if let Some(details) = &mut self.details {
            details.cut(MOST_DETAILS);
        }
    }

    /// A failure without a node or details.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), node_id: None, details: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.class)
    }
}

/// What is done after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt after this delay, on another worker if there is one.
    Again(Duration),
    /// The end.
    Fail,
}

/// The numbers behind the decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// A lease that was not renewed for this long may be taken over.
    pub lease: Duration,
    /// How much longer an expired lease waits for the next holder of its worker to adopt it, before the task counts
    /// as lost.
    pub adoption: Duration,
    /// The first delay after a failure is random between zero and this; it doubles with every failure.
    pub backoff: Duration,
    /// The longest delay after a failure.
    pub backoff_max: Duration,
    /// How often a task may be lost before it fails.
    pub max_losses: i32,
    /// How long a task that failed on a worker avoids that worker. After that, this worker may be the best there is.
    pub avoid: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            adoption: Duration::from_secs(15),
            backoff: Duration::from_secs(10),
            backoff_max: Duration::from_secs(300),
            max_losses: 3,
            avoid: Duration::from_secs(10),
        }
    }
}

impl Policy {
    /// What is done after an attempt ended with `class`, when the task had `failures` and `losses` before it.
    /// `dice` is from 0 to 1.
    ///
    /// ```
    /// use remuda_core::{FailureClass, Policy, Verdict};
    /// let policy = Policy::default();
    /// assert_eq!(policy.verdict(FailureClass::Validation, 0, 0, 3, 0.5), Verdict::Fail);
    /// assert!(matches!(policy.verdict(FailureClass::Crash, 0, 2, 3, 0.5), Verdict::Again(_)));
    /// assert_eq!(policy.verdict(FailureClass::Crash, 0, 3, 3, 0.5), Verdict::Fail);
    /// ```
    pub fn verdict(
        &self,
        class: FailureClass,
        failures: i32,
        losses: i32,
        max_retries: i32,
        dice: f64,
    ) -> Verdict {
        let allowed = match class {
            FailureClass::Validation
            | FailureClass::Timeout
            | FailureClass::Delivery
            | FailureClass::Harmful
            | FailureClass::Cancelled => return Verdict::Fail,
            FailureClass::Crash | FailureClass::Connection | FailureClass::Lost => {
                return if losses < self.max_losses { Verdict::Again(Duration::ZERO) } else { Verdict::Fail };
            }
            FailureClass::OutOfMemory | FailureClass::Execution => max_retries.min(1),
        };
        if failures >= allowed {
            return Verdict::Fail;
        }
        let doublings = failures.clamp(0, 20).cast_unsigned();
        let ceiling = self.backoff.saturating_mul(1 << doublings).min(self.backoff_max);
        Verdict::Again(ceiling.mul_f64(dice.clamp(0.0, 1.0)))
    }

    /// Whether a task whose lease was good until `lease` counts as lost: nobody renewed it, and nobody adopted it.
    /// `worker` says until when its worker is somebody's. While that may be, or the next one may still take the worker,
    /// somebody can adopt; but whoever drives a worker without doing so is not waited for without end: for ten leases,
    /// because a process that has just lost sight of the store for a while takes nothing from others before it is sure.
    ///
    /// ```
    /// use std::time::Duration;
    /// use remuda_core::{Policy, Timestamp};
    /// let policy = Policy::default(); // a lease is 30 s, adoption takes up to 15 s
    /// let at = |s| Timestamp::UNIX_EPOCH + Duration::from_secs(s);
    /// assert!(!policy.is_lost(at(100), None, at(115)));
    /// assert!(policy.is_lost(at(100), None, at(116)));
    /// assert!(!policy.is_lost(at(100), Some(at(110)), at(125)), "its worker may still be taken over");
    /// assert!(policy.is_lost(at(100), Some(at(110)), at(126)));
    /// assert!(!policy.is_lost(at(100), Some(at(500)), at(415)), "who drives its worker may still adopt it");
    /// assert!(policy.is_lost(at(100), Some(at(500)), at(416)), "its worker's driver had time enough");
    /// ```
    pub fn is_lost(&self, lease: Timestamp, worker: Option<Timestamp>, now: Timestamp) -> bool {
        let over = |until: Timestamp, more: Duration| until.checked_add(more).is_ok_and(|end| end < now);
        let adoptable = worker.is_some_and(|worker| !over(worker, self.adoption));
        over(lease, self.adoption) && (!adoptable || over(lease, self.adoption + 10 * self.lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the release before this one has it.
    #[derive(Debug, Deserialize)]
    struct Before {
        class: String,
        message: String,
    }

    #[test]
    fn a_harmful_task_can_be_read_by_the_release_before() {
        let failure = Failure::new(FailureClass::Harmful, "set aside");
        let text = serde_json::to_string(&failure).unwrap();
        let before: Before = serde_json::from_str(&text).unwrap();
        assert_eq!((before.class.as_str(), before.message.as_str()), ("validation", "set aside"));
        assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
        let usual = Failure::new(FailureClass::Crash, "gone");
        assert_eq!(serde_json::to_string(&usual).unwrap(), r#"{"class":"crash","message":"gone"}"#);
    }

    #[test]
    fn every_class_has_its_treatment() {
        use FailureClass as C;
        let policy = Policy::default();
        // (class, failures before, losses before, retries allowed, whether it is tried again)
        let cases = [
            (C::Validation, 0, 0, 3, false),
            (C::Timeout, 0, 0, 3, false),
            (C::Delivery, 0, 0, 3, false),
            (C::Harmful, 0, 0, 3, false),
            (C::Cancelled, 0, 0, 3, false),
            (C::Execution, 0, 0, 3, true),
            (C::Execution, 0, 9, 3, true),
            (C::Execution, 1, 0, 3, false),
            (C::Execution, 0, 0, 0, false),
            (C::OutOfMemory, 0, 0, 1, true),
            (C::OutOfMemory, 1, 0, 3, false),
            (C::Crash, 9, 2, 0, true),
            (C::Connection, 0, 2, 0, true),
            (C::Lost, 0, 2, 0, true),
            (C::Crash, 0, 3, 9, false),
            (C::Connection, 0, 3, 9, false),
            (C::Lost, 0, 3, 9, false),
        ];
        for (class, failures, losses, retries, again) in cases {
            let verdict = policy.verdict(class, failures, losses, retries, 1.0);
            assert_eq!(matches!(verdict, Verdict::Again(_)), again, "{class} {failures} {losses} {retries}");
            if class.is_loss() && again {
                assert_eq!(verdict, Verdict::Again(Duration::ZERO), "the next worker need not wait");
            }
        }
    }

    #[test]
    fn a_delay_is_random_up_to_its_bound() {
        let policy = Policy { backoff: Duration::from_secs(400), ..Policy::default() };
        let delay = |dice| match policy.verdict(FailureClass::Execution, 0, 0, 3, dice) {
            Verdict::Again(delay) => delay,
            Verdict::Fail => panic!("it has a retry left"),
        };
        assert_eq!((delay(0.0), delay(0.5)), (Duration::ZERO, policy.backoff_max / 2));
        assert_eq!((delay(1.0), delay(7.0)), (policy.backoff_max, policy.backoff_max));
    }

    #[test]
    fn names_of_classes_are_read_as_they_are_written() {
        for class in FailureClass::ALL {
            assert_eq!(class.as_str().parse(), Ok(class));
            assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
        }
        assert!("oom".parse::<FailureClass>().is_err());
    }
}
