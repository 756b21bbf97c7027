//! Work of other people's queues: LittleHorse, a table, a job queue elsewhere.
//!
//! Such an [`Employer`] hands out jobs and wants to hear how they ended; it knows nothing of workers, leases and prompts.
//! [`JournalSource`] stands between: towards the runners it is a [`Source`](super::Source), towards the employer a
//! worker with a number of slots, and in between a small journal in the data directory keeps what a killed process must
//! know to find its renders, and its unsent reports, again.
//!
//! ```text
//!  employer ──next──▶ ask ──▶ desk ──claim, beat, end──▶ runners
//!     ▲  │ watch               │ ▲
//!     │  └─────▶ oversee ──────┘ └── look: where is it already?
//!     └─report── reports ◀─── desk          folder: one file for each job
//! ```
//!
//! `desk` decides, as values; everything else carries it out.

mod ask;
mod desk;
mod folder;
mod foreign;
mod left;
mod look;
mod luggage;
mod office;
mod oversee;
mod record;
mod reports;
mod service;
mod source;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{TaskId, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

pub use left::LeftReports;
pub use luggage::{JobFile, SinkFolder};
pub use service::JournalSource;

use super::Result;
use remuda_frames::Frame;

/// The pause before an employer is asked again about a delivery that is over, while the next is to come.
const NEXT: Duration = Duration::from_secs(5);

/// Who gives work to this process and hears how it ended.
#[async_trait]
pub trait Employer: fmt::Debug + Send + Sync + 'static {
    /// Which one: server, tenant, queue. What the journal has from another one is left alone, and so are its renders. A name
    /// that goes on after this one and a blank is this one's as well.
    fn name(&self) -> String;

    /// Whether a job that the journal has under another name is this employer's all the same: one server has many addresses.
    /// `false` when that cannot be said for certain.
    async fn recognises(&self, _name: &str, _job: &Job) -> bool {
        false
    }

    /// Waits for the next job. A call that is dropped has taken nothing.
    async fn next(&self) -> Result<Job>;

    /// Says how a job ended, once. [`super::SourceError::Unavailable`]: it is kept and said again, also after a restart.
    async fn report(&self, job: &Job, ending: &JobEnding) -> Result<Reported>;

    /// Returns when an employer that was away answers again: reports are tried at once then. Without it they are tried
    /// after their pauses only.
    async fn back(&self) {
        std::future::pending().await
    }

    /// Watches over a job under way, and returns when the employer does not want it from this process any more.
    async fn watch(&self, job: &Job) -> Over;

    /// Watches on after [`Over::Superseded`]: until the next delivery turns out to be lost, or the work is over in another
    /// way. Says [`Over::Superseded`] again after a while, so that somebody can look whether this is still of interest.
    async fn watch_next(&self, job: &Job) -> Next {
        tokio::time::sleep(NEXT).await;
        Next::Over(self.watch(job).await)
    }

    /// Nothing of a job is left here. Never waits.
    fn gone(&self, _job: &Job) {}

    /// A job goes to a worker, under the id in [`Job::sent_as`]; `found`: it was there already. Never waits.
    fn begun(&self, _job: &Job, _worker: &WorkerId, _found: bool) {}

    /// The worker's ComfyUI has taken it. Never waits.
    fn sent(&self, _job: &Job) {}

    /// So many prompts run or wait before it at its ComfyUI. Never waits.
    fn queued(&self, _job: &Job, _ahead: usize) {}

    /// Live progress of a job. Never waits.
    fn frame(&self, job: &Job, frame: &Frame);
}

/// A piece of work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The same for every delivery of the same work.
    pub key: String,
    /// Which delivery, by the employer's count.
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
    pub files: Vec<JobFile>,
    /// Where below the sink its outputs are delivered to, if they are delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<SinkFolder>,
    /// What the employer wants to see again with the report: survives a restart.
    pub cookie: serde_json::Value,
    /// Which of the two ids ComfyUI gets it under: set by the journal, kept there, and told with the report. Employers
    /// leave it empty.
    #[serde(default)]
    pub sent_as: Option<Uuid>,
    /// It cannot be begun, and this is to be said of it, in the employer's own words. The journal keeps it until it is heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<serde_json::Value>,
}

impl Job {
    /// Its name towards runners, which their lines of the log have.
    pub fn task(&self) -> TaskId {
        record::task_of(self)
    }
}

impl Job {
    /// The id under which ComfyUI has it, or will.
    fn prompt(&self) -> Uuid {
        self.sent_as.unwrap_or(self.prompt_id)
    }
}

/// How a job ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum JobEnding {
    /// As its runner says.
    Ended(Ending),
    /// It was stopped, or never begun, because of this; `retry`: it may be tried again elsewhere.
    CalledOff {
        /// For people.
        reason: String,
        /// Whether another try makes sense.
        retry: bool,
    },
    /// It could not be begun: what the job said of itself ([`Job::refused`]).
    Refused(serde_json::Value),
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// The employer has it.
    Heard,
    /// The employer does not want it any more.
    TooLate,
}

/// Why a job under way is not wanted any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
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
pub enum Next {
    /// It was handed to this process, and did not arrive: this is it. Should it arrive later, it is the same delivery.
    Lost(Box<Job>),
    /// This, or nothing new.
    Over(Over),
}

/// How a journal source works.
#[derive(Debug)]
pub struct JournalOptions {
    /// Where the journal is kept; made when it is not there. One process at a time.
    pub folder: std::path::PathBuf,
    /// The process.
    pub owner: remuda_core::OwnerId,
    /// How many jobs may be under way at once, over all workers.
    pub slots: usize,
    /// All workers, to look for a job that may have been begun before.
    pub workers: Vec<(remuda_core::WorkerId, comfyui::Client)>,
    /// Where outputs are delivered to; without it they stay at ComfyUI and are only named.
    pub sink: Option<remuda_files::Files>,
}
