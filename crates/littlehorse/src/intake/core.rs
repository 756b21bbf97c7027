//! What is asked of whom, decided without clock, socket or task.
//!
//! A host hands out only tasks that it owns, so every assigned host is asked for as many tasks as calls of `take` wait. One
//! stream carries one request at a time. When one host delivers, the others are asked for one task too many: one stream of
//! each is half-closed and still read for a while, because an answer may be under way. Such a task waits here, first in line.
//!
//! It should not happen often, for the timeout of such a task runs. Hosts that have tasks waiting answer at once, all of
//! them; so hosts that did so the last time are asked in turn, the next one only when the one before did not answer soon.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::backoff;
use crate::client::Host;

/// After this long a stream counts as one that worked: its end is the first failure in a row.
const WORKED: Duration = Duration::from_secs(5);
/// Empty answers closer together than this are counted; after a few of them there is a pause.
const CLOSE_TOGETHER: Duration = Duration::from_secs(1);
/// After this many empty answers in a row it is no longer asked again at once.
const EMPTY_AT_ONCE: u32 = 3;
/// How many half-closed streams are read on at once; of more, the oldest are let go.
const MOST_DRAINING: usize = 256;
/// This many failures in a row are more than a restart.
const TROUBLE: u32 = 3;
/// A host that has not failed for this long works again: the pauses between tries are shorter.
const OVER: Duration = Duration::from_secs(8);
/// How long a request outlives the call that wanted it, for a caller that drops its call only to make the next one.
const SURPLUS: Duration = Duration::from_millis(10);

/// A stream, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StreamId(pub(super) u64);

/// A call that waits, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaiterId(pub(super) u64);

/// What has to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Open this stream with a request in it.
    Open(StreamId, Host),
    /// Put a request into this stream.
    Ask(StreamId),
    /// Close the sending side, and read on for a while.
    HalfClose(StreamId),
    /// Let go of a stream that owes nothing, or has had its time.
    Drop(StreamId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A request is parked at the server.
    Asked,
    /// Open, and nothing is asked.
    Idle,
    /// Half-closed; an answer may still come.
    Draining,
}

#[derive(Debug)]
struct Stream {
    host: Host,
    phase: Phase,
    opened: Instant,
    /// When the last request was put into it.
    asked: Instant,
}

#[derive(Debug, Default)]
struct Assigned {
    /// Failures in a row.
    failures: u32,
    last_failure: Option<Instant>,
    /// Empty answers in a row, close together.
    empties: u32,
    last_empty: Option<Instant>,
    /// Not to be asked before.
    not_before: Option<Instant>,
    /// It did not answer soon when it was asked the last time: nothing waits there.
    dry: bool,
    /// Its turn among those that are not dry: who was asked longest ago comes first.
    last_asked: Option<Instant>,
}

/// The state of an intake. `W` is how a waiting call is answered, `D` a delivery.
#[derive(Debug)]
pub(super) struct Core<W, D> {
    hosts: BTreeMap<Host, Assigned>,
    streams: BTreeMap<StreamId, Stream>,
    waiters: VecDeque<(WaiterId, W)>,
    ready: VecDeque<D>,
    numbers: u64,
    surplus_until: Option<Instant>,
    closed: bool,
    /// How soon a host answers that has tasks waiting.
    soon: Duration,
}

impl<W, D> Core<W, D> {
    /// `soon` is how quickly a host answers that has tasks waiting.
    pub(super) fn new(soon: Duration) -> Self {
        Self {
            soon,
            hosts: BTreeMap::new(),
            streams: BTreeMap::new(),
            waiters: VecDeque::new(),
            ready: VecDeque::new(),
            numbers: 0,
            surplus_until: None,
            closed: false,
        }
    }

    /// A task that is already here.
    pub(super) fn first_in_line(&mut self) -> Option<D> {
        self.ready.pop_front()
    }

    /// Somebody waits for a task.
    pub(super) fn want(&mut self, waiter: W) -> WaiterId {
        let id = WaiterId(self.number());
        self.waiters.push_back((id, waiter));
        id
    }

    /// A waiting call was dropped.
    pub(super) fn unwant(&mut self, id: WaiterId, now: Instant) {
        let before = self.waiters.len();
        self.waiters.retain(|(waiter, _)| *waiter != id);
        if self.waiters.len() < before {
            self.surplus_until = Some(now + SURPLUS);
        }
    }

    /// A stream brought a task. Returns whom to give it to; without a waiter it waits here.
    pub(super) fn arrived(&mut self, stream: StreamId, delivery: D, now: Instant) -> Option<(W, D)> {
        let soon = self.soon;
        if let Some((host, asked)) = self.answered(stream) {
            let (dry, last_asked) = (now - asked >= soon, host.last_asked);
            *host = Assigned { dry, last_asked, ..Assigned::default() };
        }
        let Some((_, waiter)) = self.waiters.pop_front() else {
            self.ready.push_back(delivery);
            return None;
        };
        Some((waiter, delivery))
    }

    /// A task that was given to a call which is no more. It is first in line again.
    pub(super) fn given_back(&mut self, delivery: D) -> Option<(W, D)> {
        let Some((_, waiter)) = self.waiters.pop_front() else {
            self.ready.push_front(delivery);
            return None;
        };
        Some((waiter, delivery))
    }

    /// A stream brought an answer without a task: somebody else got it.
    pub(super) fn empty(&mut self, stream: StreamId, now: Instant) {
        let Some((host, _)) = self.answered(stream) else { return };
        host.failures = 0;
        host.not_before = None;
        let close = host.last_empty.is_some_and(|last| now - last < CLOSE_TOGETHER);
        host.empties = if close { host.empties.saturating_add(1) } else { 1 };
        host.last_empty = Some(now);
        if host.empties > EMPTY_AT_ONCE {
            host.not_before = Some(now + backoff::empties(host.empties - EMPTY_AT_ONCE));
        }
    }

    /// A stream is no more. Whether that is bad news: its host should have kept it. `jitter` is between 0 and 1.
    pub(super) fn ended(&mut self, stream: StreamId, now: Instant, jitter: f64) -> bool {
        let Some(stream) = self.streams.remove(&stream) else { return false };
        let Some(host) = self.hosts.get_mut(&stream.host) else { return false };
        if stream.phase == Phase::Draining || self.closed {
            return false;
        }
        if now - stream.opened >= WORKED {
            host.failures = 0;
        }
        host.last_failure = Some(now);
        // A broken connection ends all its streams: that is one failure.
        if host.failures == 0 || host.not_before.is_none_or(|at| at <= now) {
            host.failures = host.failures.saturating_add(1);
            host.not_before = Some(now + backoff::failures(host.failures, jitter));
        }
        true
    }

    /// The failures in a row of a host.
    pub(super) fn failures(&self, host: &Host) -> u32 {
        self.hosts.get(host).map_or(0, |host| host.failures)
    }

    /// A host that fails again and again.
    pub(super) fn trouble(&self, now: Instant) -> Option<&Host> {
        let fails = |host: &Assigned| {
            host.failures >= TROUBLE && host.last_failure.is_some_and(|last| now - last < OVER)
        };
        self.hosts.iter().find(|(_, host)| fails(host)).map(|(name, _)| name)
    }

    /// The server assigned these hosts. Returns those that are new, and those that went.
    pub(super) fn assign(&mut self, hosts: Vec<Host>) -> (Vec<Host>, Vec<Host>) {
        let gone: Vec<Host> = self.hosts.keys().filter(|host| !hosts.contains(host)).cloned().collect();
        for host in &gone {
            self.hosts.remove(host);
        }
        let mut new = Vec::new();
        for host in hosts {
            if !self.hosts.contains_key(&host) {
                self.hosts.insert(host.clone(), Assigned::default());
                new.push(host);
            }
        }
        (new, gone)
    }

    /// The assigned hosts.
    pub(super) fn assigned(&self) -> impl Iterator<Item = &Host> {
        self.hosts.keys()
    }

    /// Nothing is asked any more; the calls that wait are returned.
    pub(super) fn close(&mut self) -> Vec<W> {
        self.closed = true;
        self.waiters.drain(..).map(|(_, waiter)| waiter).collect()
    }

    /// Whether nothing is asked any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether no stream is left.
    pub(super) fn is_quiet(&self) -> bool {
        self.streams.is_empty()
    }

    /// The tasks that nobody took.
    pub(super) fn leftovers(&mut self) -> Vec<D> {
        self.ready.drain(..).collect()
    }

    /// What has to be done, so that every assigned host is asked for what is wanted and nobody for more.
    pub(super) fn plan(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.surplus_until.is_some_and(|at| at <= now) {
            self.surplus_until = None;
        }
        let tolerant = self.surplus_until.is_some() && !self.closed;
        let wanted = if self.closed { 0 } else { self.waiters.len() };
        self.withdraw(wanted, tolerant, &mut steps);
        for (host, missing) in self.whom_to_ask(wanted, now) {
            self.ask(&host, missing, now, &mut steps);
        }
        steps
    }

    /// Takes back requests that are too many, and lets go of hosts that are not ours any more.
    fn withdraw(&mut self, wanted: usize, tolerant: bool, steps: &mut Vec<Step>) {
        let mut asked: BTreeMap<&Host, usize> = BTreeMap::new();
        let mut dropped = Vec::new();
        for (id, stream) in &mut self.streams {
            let ours = self.hosts.contains_key(&stream.host) && !self.closed;
            match stream.phase {
                Phase::Draining => {}
                Phase::Idle if ours => {}
                Phase::Idle => {
                    dropped.push(*id);
                    steps.push(Step::Drop(*id));
                }
                Phase::Asked => {
                    let so_far = asked.entry(&stream.host).or_default();
                    if ours && (*so_far < wanted || tolerant) {
                        *so_far += 1;
                    } else {
                        stream.phase = Phase::Draining;
                        steps.push(Step::HalfClose(*id));
                    }
                }
            }
        }
        let draining = self.streams.iter().filter(|(_, stream)| stream.phase == Phase::Draining);
        let draining: Vec<StreamId> = draining.map(|(id, _)| *id).collect();
        for id in &draining[..draining.len().saturating_sub(MOST_DRAINING)] {
            dropped.push(*id);
            steps.push(Step::Drop(*id));
        }
        for id in dropped {
            self.streams.remove(&id);
        }
    }

    /// The hosts that are asked for too little and may be asked now, and for how many more.
    fn whom_to_ask(&mut self, wanted: usize, now: Instant) -> Vec<(Host, usize)> {
        let mut asked: BTreeMap<&Host, (usize, Instant)> = BTreeMap::new();
        for stream in self.streams.values().filter(|stream| stream.phase == Phase::Asked) {
            let (count, since) = asked.entry(&stream.host).or_insert((0, stream.asked));
            *count += 1;
            *since = (*since).min(stream.asked);
        }
        for (host, state) in &mut self.hosts {
            if state.not_before.is_some_and(|at| at <= now) {
                state.not_before = None;
            }
            if asked.get(host).is_some_and(|(_, since)| now - *since >= self.soon) {
                state.dry = true;
            }
        }
        // One host has its turn: the one that is asked already, or else who was asked longest ago.
        let in_line = || self.hosts.iter().filter(|(_, state)| !state.dry && state.not_before.is_none());
        let taken = in_line().any(|(host, _)| asked.contains_key(host));
        let next = in_line().filter(|_| !taken).min_by_key(|(_, state)| state.last_asked);
        let next = next.map(|(host, _)| host);
        let mut short = Vec::new();
        for (host, state) in &self.hosts {
            let count = asked.get(host).map_or(0, |(count, _)| *count);
            let may = state.dry || count > 0 || next == Some(host);
            if count < wanted && may && state.not_before.is_none() {
                short.push((host.clone(), wanted - count));
            }
        }
        short
    }

    /// Asks a host for this many tasks more.
    fn ask(&mut self, host: &Host, missing: usize, now: Instant, steps: &mut Vec<Step>) {
        if let Some(state) = self.hosts.get_mut(host) {
            state.last_asked = Some(now);
        }
        let mut left = missing;
        for (id, stream) in &mut self.streams {
            if left > 0 && stream.phase == Phase::Idle && stream.host == *host {
                left -= 1;
                stream.phase = Phase::Asked;
                stream.asked = now;
                steps.push(Step::Ask(*id));
            }
        }
        for _ in 0..left {
            let id = StreamId(self.number());
            let stream = Stream { host: host.clone(), phase: Phase::Asked, opened: now, asked: now };
            self.streams.insert(id, stream);
            steps.push(Step::Open(id, host.clone()));
        }
    }

    /// When to plan again, if nothing happens before.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        if self.closed {
            return None;
        }
        let pauses = self.hosts.values().filter_map(|host| host.not_before);
        // While a host has its turn, others that are not dry wait for theirs.
        let turns = self.streams.values().filter_map(|stream| {
            let host = self.hosts.get(&stream.host)?;
            (stream.phase == Phase::Asked && !host.dry && self.hosts.len() > 1)
                .then_some(stream.asked + self.soon)
        });
        let waiting = !self.waiters.is_empty();
        pauses.chain(turns).filter(|_| waiting).chain(self.surplus_until).min()
    }

    /// The request of a stream is answered. Returns its host, if it is still ours, and when it was asked.
    fn answered(&mut self, stream: StreamId) -> Option<(&mut Assigned, Instant)> {
        let stream = self.streams.get_mut(&stream)?;
        if stream.phase == Phase::Asked {
            stream.phase = Phase::Idle;
        }
        Some((self.hosts.get_mut(&stream.host)?, stream.asked))
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
