//! A task run, as the server keeps it and as a test holds it.

use std::sync::Arc;
use std::time::Duration;

use prost_types::Timestamp;
use tokio::time::Instant;

use crate::cluster::{Cluster, RunKey, StreamKey};
use crate::options::{Backoff, NewRun};
use crate::proto::{
    Checkpoint, ExponentialBackoffRetryPolicy, NodeRunId, ReportTaskRun, ScheduledTask, TaskAttempt,
    TaskDefId, TaskNodeReference, TaskRun, TaskRunId, TaskRunSource, TaskStatus, VariableValue, WfRunId,
    WfSpecId, task_attempt, task_run_source,
};

/// A report that came.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// As it came.
    pub report: ReportTaskRun,
    /// Whether it changed anything: the attempt ran.
    pub heard: bool,
    /// When, by the clock of the double.
    pub at: Instant,
}

/// As the server keeps it.
#[derive(Debug)]
pub(crate) struct RunState {
    run: TaskRun,
    /// Attempts before this one are not kept.
    first: i32,
    backoff: Option<Backoff>,
    pub(crate) timeout: Duration,
    pub(crate) host: usize,
    pub(crate) reports: Vec<Seen>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Its checkpoints are answered STOP_TASK.
    pub(crate) stops: bool,
    /// What `GetTaskRun` says for ever.
    pub(crate) frozen: Option<TaskRun>,
}

impl RunState {
    pub(crate) fn new(new: NewRun, now: Timestamp) -> (String, Self) {
        let parent = new.parents.iter().fold(None, |parent, id| Some(Box::new(run_id(id, parent))));
        let wf_run_id = run_id(&new.wf_run_id, parent);
        let mut place = new.guid.splitn(2, '-').map(|number| number.parse().unwrap_or_default());
        let node = NodeRunId {
            wf_run_id: Some(wf_run_id.clone()),
            thread_run_number: place.next().unwrap_or_default(),
            position: place.next().unwrap_or_default(),
        };
        let source = TaskRunSource {
            wf_spec_id: Some(WfSpecId { name: "render".to_owned(), ..WfSpecId::default() }),
            task_run_source: Some(task_run_source::TaskRunSource::TaskNode(TaskNodeReference {
                node_run_id: Some(node),
            })),
        };
        let millis = |pause: Duration| u32::try_from(pause.as_millis()).unwrap_or(u32::MAX);
        let run = TaskRun {
            id: Some(TaskRunId { wf_run_id: Some(wf_run_id), task_guid: new.guid }),
            task_def_id: Some(TaskDefId { name: new.task }),
            attempts: Vec::new(),
            total_attempts: new.attempts,
            input_variables: new.inputs,
            source: Some(source),
            scheduled_at: Some(now),
            status: TaskStatus::TaskScheduled as i32,
            // Tests use fractions of seconds, workers read whole ones.
            timeout_seconds: i32::try_from(new.timeout.as_millis().div_ceil(1000)).unwrap_or(i32::MAX),
            exponential_backoff: new.backoff.map(|backoff| ExponentialBackoffRetryPolicy {
                base_interval_ms: millis(backoff.base).cast_signed(),
                max_delay_ms: millis(backoff.most).into(),
                multiplier: backoff.factor,
            }),
            total_checkpoints: 0,
        };
        let mut state = Self {
            run,
            first: new.first_attempt,
            backoff: new.backoff,
            timeout: new.timeout,
            host: new.host,
            reports: Vec::new(),
            checkpoints: Vec::new(),
            stops: false,
            frozen: None,
        };
        state.add_attempt(now);
        (new.tenant, state)
    }

    pub(crate) fn id(&self) -> &TaskRunId {
        static NOBODY: TaskRunId = TaskRunId { wf_run_id: None, task_guid: String::new() };
        self.run.id.as_ref().unwrap_or(&NOBODY)
    }

    pub(crate) fn task(&self) -> &str {
        self.run.task_def_id.as_ref().map_or("", |id| &id.name)
    }

    /// The number of the latest attempt.
    pub(crate) fn latest(&self) -> i32 {
        self.first + self.count() - 1
    }

    fn count(&self) -> i32 {
        i32::try_from(self.run.attempts.len()).unwrap_or(i32::MAX)
    }

    pub(crate) fn attempts_left(&self) -> i32 {
        self.run.total_attempts - self.count()
    }

    /// The status of the latest attempt.
    pub(crate) fn status(&self) -> TaskStatus {
        self.run.attempts.last().map_or(TaskStatus::TaskScheduled, TaskAttempt::status)
    }

    pub(crate) fn set_status(&mut self, status: TaskStatus) {
        self.run.status = status as i32;
        if let Some(attempt) = self.run.attempts.last_mut() {
            attempt.status = status as i32;
        }
    }

    /// Adds one, and says its number.
    pub(crate) fn add_attempt(&mut self, now: Timestamp) -> i32 {
        let attempt = TaskAttempt { schedule_time: Some(now), ..TaskAttempt::default() };
        self.run.attempts.push(attempt);
        self.set_status(TaskStatus::TaskScheduled);
        self.latest()
    }

    /// The pause before the next attempt.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let Backoff { base, most, factor } = self.backoff?;
        let grown = base.mul_f32(factor.powi(self.count() - 1));
        Some(grown.min(most))
    }

    pub(crate) fn start(&mut self, worker: String, version: Option<String>, now: Timestamp) {
        self.set_status(TaskStatus::TaskRunning);
        if let Some(attempt) = self.run.attempts.last_mut() {
            attempt.start_time = Some(now);
            attempt.task_worker_id = worker;
            attempt.task_worker_version = version;
        }
    }

    pub(crate) fn end(
        &mut self,
        status: TaskStatus,
        result: Option<task_attempt::Result>,
        log: Option<VariableValue>,
        time: Option<Timestamp>,
    ) {
        self.set_status(status);
        if let Some(attempt) = self.run.attempts.last_mut() {
            attempt.result = result;
            attempt.log_output = log;
            attempt.end_time = time;
        }
    }

    pub(crate) fn message(&self) -> TaskRun {
        let kept = i32::try_from(self.checkpoints.len()).unwrap_or(i32::MAX);
        TaskRun { total_checkpoints: kept, ..self.run.clone() }
    }

    pub(crate) fn scheduled_task(&self) -> ScheduledTask {
        ScheduledTask {
            task_run_id: self.run.id.clone(),
            task_def_id: self.run.task_def_id.clone(),
            attempt_number: self.latest(),
            variables: self.run.input_variables.clone(),
            created_at: self.run.attempts.last().and_then(|attempt| attempt.schedule_time),
            source: self.run.source.clone(),
            total_observed_checkpoints: i32::try_from(self.checkpoints.len()).unwrap_or(i32::MAX),
        }
    }
}

fn run_id(id: &str, parent: Option<Box<WfRunId>>) -> WfRunId {
    WfRunId { id: id.to_owned(), parent_wf_run_id: parent }
}

/// A task run, as a test holds it. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct Run {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) key: RunKey,
    pub(crate) id: TaskRunId,
}

impl Run {
    /// Its name at the server.
    pub fn id(&self) -> &TaskRunId {
        &self.id
    }

    /// What `GetTaskRun` would say; nothing of one that is gone.
    pub fn task_run(&self) -> Option<TaskRun> {
        self.cluster.state().runs.get(&self.key).map(RunState::message)
    }

    /// The reports that came, in order.
    pub fn reports(&self) -> Vec<Seen> {
        self.cluster.state().runs.get(&self.key).map(|run| run.reports.clone()).unwrap_or_default()
    }

    /// The values that were kept.
    pub fn checkpoints(&self) -> Vec<Checkpoint> {
        self.cluster.state().runs.get(&self.key).map(|run| run.checkpoints.clone()).unwrap_or_default()
    }

    /// Waits until it is over for good.
    pub async fn ended(&self) -> TaskRun {
        self.until(|run| {
            !matches!(
                run.status(),
                TaskStatus::TaskScheduled | TaskStatus::TaskRunning | TaskStatus::TaskPending
            )
        })
        .await
    }

    /// Waits until this attempt, counted from 0, runs.
    pub async fn running(&self, attempt: usize) -> TaskRun {
        self.until(|run| {
            run.attempts.get(attempt).is_some_and(|attempt| attempt.status() == TaskStatus::TaskRunning)
        })
        .await
    }

    /// Waits until something is so; for ever, if the run is gone.
    pub async fn until(&self, is: impl Fn(&TaskRun) -> bool) -> TaskRun {
        self.cluster
            .until(|state| state.runs.get(&self.key).map(RunState::message).filter(|run| is(run)))
            .await
    }

    /// Waits until this many reports came, heard or not.
    pub async fn reported(&self, least: usize) -> Vec<Seen> {
        self.cluster
            .until(|state| {
                let reports = &state.runs.get(&self.key)?.reports;
                (reports.len() >= least).then(|| reports.clone())
            })
            .await
    }

    /// Lets one that was held be handed out.
    pub fn release(&self) {
        self.cluster.release(&self.key);
    }

    /// Tells it to a stream of a host, whether that asked or not: an answer that was on its way when the client changed
    /// its mind.
    pub fn hand_to(&self, host: usize, stream: u32, worker: &str) {
        self.cluster.hand_to(&self.key, StreamKey { host, number: stream }, worker);
    }

    /// Tells the latest attempt once more, in answer to the next parked request. False if none is parked.
    pub fn deliver_again(&self) -> bool {
        self.cluster.deliver_again(&self.key)
    }

    /// The latest attempt runs out of time now.
    pub fn time_out(&self) {
        self.cluster.time_out_now(&self.key);
    }

    /// Another worker has it: the next attempt runs, and is not handed out here.
    pub fn taken_by(&self, worker: &str) {
        self.cluster.withdraw(&self.key);
        let now = self.cluster.clock.timestamp();
        self.cluster.change(&self.key, |run| {
            if run.status() == TaskStatus::TaskRunning {
                run.end(TaskStatus::TaskTimeout, None, None, Some(now));
            }
            if run.status() != TaskStatus::TaskScheduled && run.status() != TaskStatus::TaskPending {
                run.add_attempt(now);
            }
            run.start(worker.to_owned(), None, now);
        });
    }

    /// The latest attempt ends with this status, and there is no other.
    pub fn end(&self, status: TaskStatus) {
        self.cluster.withdraw(&self.key);
        let now = self.cluster.clock.timestamp();
        self.cluster.change(&self.key, |run| run.end(status, None, None, Some(now)));
    }

    /// The workflow run was deleted.
    pub fn delete(&self) {
        self.cluster.remove(&self.key);
    }

    /// `GetTaskRun` says for ever what it says now: the record became too large and was dropped.
    pub fn freeze(&self) {
        self.cluster.change(&self.key, |run| run.frozen = Some(run.message()));
    }

    /// Its checkpoints are answered STOP_TASK from now on.
    pub fn stop_checkpoints(&self) {
        self.cluster.change(&self.key, |run| run.stops = true);
    }
}
