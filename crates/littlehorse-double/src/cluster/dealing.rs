//! Which request gets which task.
//!
//! Each host has its own tasks and its own requests. A request is parked without limit and answered once; a stream that was
//! half-closed has no requests any more but stays open.

use std::collections::{HashMap, VecDeque};

use tokio::sync::mpsc;
use tonic::Status;

use super::timers::Timer;
use super::{Cluster, RunKey, State};
use crate::fault::Fault;
use crate::journal::{Method, What};
use crate::proto::{PollTaskRequest, PollTaskResponse, ScheduledTask, TaskStatus};

/// A stream of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StreamKey {
    pub(crate) host: usize,
    pub(crate) number: u32,
}

/// The tasks of one TaskDef at one host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Lane {
    host: usize,
    tenant: String,
    task: String,
}

pub(crate) type Answer = Result<PollTaskResponse, Status>;

#[derive(Debug, Default)]
pub(super) struct Dealing {
    waiting: HashMap<Lane, VecDeque<RunKey>>,
    parked: HashMap<Lane, VecDeque<Parked>>,
    streams: HashMap<StreamKey, Stream>,
    /// How many streams each host had so far.
    opened: HashMap<usize, u32>,
}

#[derive(Debug)]
struct Parked {
    stream: StreamKey,
    worker: String,
    version: Option<String>,
}

#[derive(Debug)]
struct Stream {
    tenant: String,
    /// The TaskDef that was asked for first. A request for another one is never answered.
    task: Option<String>,
    answers: mpsc::Sender<Answer>,
}

impl Cluster {
    pub(crate) fn open_stream(
        &self,
        host: usize,
        tenant: &str,
        answers: mpsc::Sender<Answer>,
        opened: What,
    ) -> StreamKey {
        let mut state = self.state();
        let number = state.dealing.opened.entry(host).or_default();
        *number += 1;
        let key = StreamKey { host, number: *number };
        self.journal.add(host, Method::PollTask, Some(key.number), opened);
        state.dealing.streams.insert(key, Stream { tenant: tenant.to_owned(), task: None, answers });
        key
    }

    /// A request came.
    pub(crate) fn asked(&self, stream: StreamKey, request: PollTaskRequest) {
        let mut state = self.state();
        let asked = What::Asked(request.clone().into());
        self.journal.add(stream.host, Method::PollTask, Some(stream.number), asked);
        let task = request.task_def_id.map(|id| id.name).unwrap_or_default();
        let Some(opened) = state.dealing.streams.get_mut(&stream) else { return };
        if *opened.task.get_or_insert_with(|| task.clone()) != task {
            return;
        }
        let tenant = opened.tenant.clone();
        match state.faults.take(Method::PollTask) {
            Some(Fault::Nothing) => return self.answer(&mut state, stream, Ok(PollTaskResponse::default())),
            Some(Fault::Refuse(status) | Fault::DoneThenRefuse(status)) => {
                return self.answer(&mut state, stream, Err(status));
            }
            // A request that is never answered is what a request is anyway while there are no tasks.
            Some(Fault::Hang | Fault::DoneThenHang) => return,
            Some(Fault::Late(_)) | None => {}
        }
        let lane = Lane { host: stream.host, tenant, task };
        let parked = Parked { stream, worker: request.client_id, version: request.task_worker_version };
        state.dealing.parked.entry(lane.clone()).or_default().push_back(parked);
        self.deal(&mut state, &lane);
        drop(state);
        self.look_at_timers();
        self.tell();
    }

    /// A client will ask no more: what it asked is forgotten.
    pub(crate) fn half_closed(&self, stream: StreamKey) {
        let mut state = self.state();
        self.journal.add(stream.host, Method::PollTask, Some(stream.number), What::HalfClose);
        state.dealing.forget_requests(stream);
        drop(state);
        self.tell();
    }

    /// A stream is gone, and what was on its way in it is lost.
    pub(crate) fn stream_gone(&self, stream: StreamKey) {
        let mut state = self.state();
        state.dealing.forget_requests(stream);
        if state.dealing.streams.remove(&stream).is_some() {
            self.journal.add(stream.host, Method::PollTask, Some(stream.number), What::Gone);
        }
        drop(state);
        self.tell();
    }

    /// Ends all streams of a host with a status.
    pub(crate) fn end_streams(&self, host: usize, status: &Status) {
        let mut state = self.state();
        let mut streams: Vec<StreamKey> =
            state.dealing.streams.keys().filter(|stream| stream.host == host).copied().collect();
        streams.sort_unstable();
        for stream in streams {
            state.dealing.forget_requests(stream);
            self.answer(&mut state, stream, Err(status.clone()));
        }
    }

    /// Puts an attempt where requests find it.
    pub(super) fn begin(&self, state: &mut State, key: &RunKey, attempt: i32) {
        let Some(run) = state.runs.get_mut(key) else { return };
        if run.latest() != attempt
            || !matches!(run.status(), TaskStatus::TaskPending | TaskStatus::TaskScheduled)
        {
            return;
        }
        run.set_status(TaskStatus::TaskScheduled);
        let lane = lane_of(key, run);
        state.dealing.waiting.entry(lane.clone()).or_default().push_back(key.clone());
        self.deal(state, &lane);
    }

    pub(crate) fn release(&self, key: &RunKey) {
        let mut state = self.state();
        let attempt = state.runs.get(key).map_or(0, |run| run.latest());
        self.begin(&mut state, key, attempt);
        drop(state);
        self.look_at_timers();
        self.tell();
    }

    fn deal(&self, state: &mut State, lane: &Lane) {
        while let Some((key, parked)) = state.dealing.pair(lane) {
            self.hand_out(state, &key, parked);
        }
    }

    /// From here on the attempt runs, whatever becomes of the message.
    fn hand_out(&self, state: &mut State, key: &RunKey, parked: Parked) {
        let now = self.clock.timestamp();
        let Some(run) = state.runs.get_mut(key) else { return };
        let attempt = run.latest();
        let timeout = run.timeout;
        run.start(parked.worker, parked.version, now);
        let task = run.scheduled_task();
        state.timers.set(self.clock.now() + timeout, Timer::Timeout(key.clone(), attempt));
        self.tell_task(state, parked.stream, task);
    }

    fn tell_task(&self, state: &mut State, stream: StreamKey, task: ScheduledTask) {
        self.answer(state, stream, Ok(PollTaskResponse { result: Some(task) }));
    }

    fn answer(&self, state: &mut State, key: StreamKey, answer: Answer) {
        let Some(stream) = state.dealing.streams.get(&key) else { return };
        let what = match &answer {
            Ok(message) => What::Told(message.clone().into()),
            Err(status) => What::Refusal { code: status.code(), text: status.message().to_owned() },
        };
        self.journal.add(key.host, Method::PollTask, Some(key.number), what);
        // A stream that does not read loses what it is told, as one that broke does.
        let _ = stream.answers.try_send(answer);
    }

    /// Hands a task to a stream, whether it asked or not: an answer that was on its way when the client changed its mind.
    pub(crate) fn hand_to(&self, key: &RunKey, stream: StreamKey, worker: &str) {
        let mut state = self.state();
        let parked = Parked { stream, worker: worker.to_owned(), version: None };
        state.dealing.withdraw(key);
        self.hand_out(&mut state, key, parked);
        drop(state);
        self.look_at_timers();
        self.tell();
    }

    /// Tells the latest attempt again, in answer to the next request that is parked. Says whether there was one.
    pub(crate) fn deliver_again(&self, key: &RunKey) -> bool {
        let mut state = self.state();
        let Some(run) = state.runs.get(key) else { return false };
        let (lane, task) = (lane_of(key, run), run.scheduled_task());
        let parked = state.dealing.parked.get_mut(&lane).and_then(VecDeque::pop_front);
        let Some(parked) = parked else { return false };
        self.tell_task(&mut state, parked.stream, task);
        true
    }

    /// Takes a task out of what can be handed out.
    pub(crate) fn withdraw(&self, key: &RunKey) {
        self.state().dealing.withdraw(key);
    }
}

impl State {
    /// How many requests are parked at a host.
    pub(crate) fn parked(&self, host: usize) -> usize {
        self.dealing.parked_at(host)
    }
}

fn lane_of(key: &RunKey, run: &crate::run::RunState) -> Lane {
    Lane { host: run.host, tenant: key.tenant.clone(), task: run.task().to_owned() }
}

impl Dealing {
    fn pair(&mut self, lane: &Lane) -> Option<(RunKey, Parked)> {
        let waiting = self.waiting.get_mut(lane).filter(|waiting| !waiting.is_empty())?;
        let parked = self.parked.get_mut(lane)?.pop_front()?;
        Some((waiting.pop_front()?, parked))
    }

    fn forget_requests(&mut self, stream: StreamKey) {
        for parked in self.parked.values_mut() {
            parked.retain(|parked| parked.stream != stream);
        }
    }

    pub(super) fn withdraw(&mut self, key: &RunKey) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|waiting| waiting != key);
        }
    }

    fn parked_at(&self, host: usize) -> usize {
        self.parked.iter().filter(|(lane, _)| lane.host == host).map(|(_, parked)| parked.len()).sum()
    }
}
