//! Everything that was said, in order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

use crate::message::Message;
use crate::proto;

/// A long measurement must not eat the machine: what comes later is not kept.
const MOST: usize = 500_000;

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Method {
    PutTaskDef,
    GetTaskDef,
    RegisterTaskWorker,
    PollTask,
    ReportTask,
    PutCheckpoint,
    GetCheckpoint,
    GetTaskRun,
    GetServerVersion,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Method::PutTaskDef => "PutTaskDef",
            Method::GetTaskDef => "GetTaskDef",
            Method::RegisterTaskWorker => "RegisterTaskWorker",
            Method::PollTask => "PollTask",
            Method::ReportTask => "ReportTask",
            Method::PutCheckpoint => "PutCheckpoint",
            Method::GetCheckpoint => "GetCheckpoint",
            Method::GetTaskRun => "GetTaskRun",
            Method::GetServerVersion => "GetServerVersion",
        })
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When, since the start of the double.
    pub at: Duration,
    /// At which host, from 0.
    pub host: usize,
    /// In which call.
    pub method: Method,
    /// In which stream of this host, from 1.
    pub stream: Option<u32>,
    /// What it was.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A client called a simple method.
    Call {
        /// Without what belongs to gRPC itself.
        metadata: BTreeMap<String, String>,
        /// How long the client means to wait.
        deadline: Option<Duration>,
        /// What it said.
        message: Message,
    },
    /// It was answered.
    Answer(Message),
    /// It was refused, or a stream was ended.
    Refusal {
        /// The code.
        code: Code,
        /// For people.
        text: String,
    },
    /// A client opened a stream.
    Open {
        /// Without what belongs to gRPC itself.
        metadata: BTreeMap<String, String>,
        /// How long the client means to wait.
        deadline: Option<Duration>,
    },
    /// A client said something in a stream.
    Asked(Message),
    /// A client was told something in a stream.
    Told(Message),
    /// A client will say nothing more in a stream.
    HalfClose,
    /// A stream is gone: the client left it, or the connection broke.
    Gone,
}

/// Everything that was said, in order.
#[derive(Debug)]
pub struct Journal {
    start: Instant,
    events: Mutex<Vec<Event>>,
    changed: watch::Sender<usize>,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), events: Mutex::default(), changed: watch::Sender::new(0) }
    }

    pub(crate) fn add(&self, host: usize, method: Method, stream: Option<u32>, what: What) {
        let count = {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            if events.len() < MOST {
                events.push(Event { at: self.start.elapsed(), host, method, stream, what });
            }
            events.len()
        };
        self.changed.send_replace(count);
    }

    /// The start of the double, from which the times count.
    pub fn start(&self) -> std::time::Instant {
        self.start.into_std()
    }

    /// What happened so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many things happened so far: a place in the journal.
    pub fn len(&self) -> usize {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until something is in the journal.
    pub async fn until<T>(&self, mut found: impl FnMut(&[Event]) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let seen = found(&self.events.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(it) = seen {
                return it;
            }
            // The sender lives as long as the journal.
            let _ = changed.changed().await;
        }
    }

    /// Waits until this many things of a kind happened.
    pub async fn count(&self, least: usize, kind: impl Fn(&Event) -> bool) {
        self.until(|events| (events.iter().filter(|event| kind(event)).count() >= least).then_some(())).await;
    }

    /// How often a method was called; for polls, how many streams were opened.
    pub fn calls(&self, method: Method) -> usize {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().filter(|event| event.method == method && event.is_beginning()).count()
    }

    /// How many tasks were asked for.
    pub fn asked(&self) -> usize {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().filter(|event| matches!(event.what, What::Asked(_))).count()
    }

    /// All reports that came, heard or not.
    pub fn reports(&self) -> Vec<proto::ReportTaskRun> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = events.iter().filter_map(|event| match &event.what {
            What::Call { message: Message::ReportTaskRun(report), .. } => Some(report.clone()),
            _ => None,
        });
        reports.collect()
    }
}

impl Event {
    /// Whether it is the beginning of a call.
    pub fn is_beginning(&self) -> bool {
        matches!(self.what, What::Call { .. } | What::Open { .. })
    }

    /// What the client sent with the call.
    pub fn metadata(&self) -> Option<&BTreeMap<String, String>> {
        match &self.what {
            What::Call { metadata, .. } | What::Open { metadata, .. } => Some(metadata),
            _ => None,
        }
    }
}
