//! What is known of every watched prompt, and what to ask next.
//!
//! No I/O and no clock in here: the session brings frames, answers and the time, and carries out the [`Ask`]s.
//! That makes every rule of the contract testable without a server.

mod answers;
mod frames;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::{ClientId, PromptId};
use crate::watch::mailbox::Mailbox;
use crate::watch::{Event, GaveUp, Lost, Outcome, SessionOptions};

/// A prompt that seems gone is asked for once more after this.
const CONFIRM_ABSENCE: Duration = Duration::from_millis(300);
/// The end of a run was announced; if the frame that says "the history has it" is missing, look after this.
const AFTER_END: Duration = Duration::from_millis(30);
/// An announced end whose history entry does not appear for this long was deleted by somebody.
const HISTORY_GRACE: Duration = Duration::from_secs(3);
/// A worker is suspected of being dead only after this many looks in a row.
const DEAD_LOOKS: u32 = 3;

/// A request to the server that the session carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The ids in the queue.
    Survey,
    /// One history entry: the prompt is surely or probably over.
    History(PromptId),
    /// Where one prompt is.
    Look(PromptId),
    /// Whether the server's memory reaches back before the connection broke.
    SameServer(PromptId),
    /// Whether these files of a finished prompt exist.
    Files(PromptId),
    /// A sign of life of the connection.
    Ping,
    /// Frames no longer reach this client id: connect under a fresh one.
    FreshClientId,
}

/// The ids in the queue, pending ones in the order they will run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// The server's clock when the newest of them was made.
    pub(crate) clock_ms: u64,
    pub(crate) running: Vec<PromptId>,
    pub(crate) pending: Vec<PromptId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// On its way: the server need not know it yet.
    Submitting,
    /// Not yet seen on the server.
    Unseen,
    Pending,
    Running,
    /// The end was announced at this time.
    Ending(Instant),
}

/// One reader of a watched prompt.
#[derive(Debug)]
struct Listener {
    mailbox: Arc<Mailbox>,
    deadline: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct Watched {
    /// Everybody who follows it.
    listeners: Vec<Listener>,
    /// Whose frames it causes; `None` when somebody else submitted it.
    client_id: Option<ClientId>,
    phase: Phase,
    registered: Instant,
    /// When something new was last heard of it.
    last_sign: Instant,
    /// The connection during which it was last surely there.
    seen_on: Option<u64>,
    absent_since: Option<Instant>,
    /// Ask again at this time.
    look_at: Option<Instant>,
    /// Since when no question about it could be answered.
    failing_since: Option<Instant>,
    /// The server's clock when it was last surely there.
    clock_ms: u64,
    /// A question about it is under way.
    asking: bool,
    /// The connection during which the last question was asked: its answer says nothing about a later one.
    asked_on: u64,
    /// Decided, but files of cached nodes are being looked for.
    deciding: Option<Outcome>,
}

/// State of the frames' way to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down,
    /// Open and greeted.
    Up,
}

#[derive(Debug)]
pub(crate) struct Tracker {
    options: SessionOptions,
    client_id: ClientId,
    watches: HashMap<PromptId, Watched>,
    /// Whose frames came last: binary frames of old servers and text frames do not say.
    current: Option<PromptId>,
    link: Link,
    /// Counts broken connections: the same number means the same server process.
    epoch: u64,
    last_message: Option<Instant>,
    /// The last sign of life of the connection, pongs included.
    last_heard: Option<Instant>,
    /// The server's clock when it was last heard before the connection broke.
    server_clock_ms: u64,
    next_survey: Option<Instant>,
    surveying: bool,
    survey_started: Option<Instant>,
    survey_epoch: u64,
    failing_since: Option<Instant>,
    idle_with_pending: Option<(Instant, u32)>,
    /// The prompt at work, whoever's it is, and when it was first seen so or last gave a sign.
    head: Option<(PromptId, Instant)>,
}

impl Tracker {
    pub(crate) fn new(options: SessionOptions, client_id: ClientId) -> Self {
        Tracker {
            options,
            client_id,
            watches: HashMap::new(),
            current: None,
            link: Link::Down,
            epoch: 0,
            last_message: None,
            last_heard: None,
            server_clock_ms: 0,
            next_survey: None,
            surveying: false,
            survey_started: None,
            survey_epoch: 0,
            failing_since: None,
            idle_with_pending: None,
            head: None,
        }
    }

    /// Starts to follow a prompt. `owner` is the client id it is being submitted under; without one it is somebody
    /// else's, or an older one, and must be looked for.
    pub(crate) fn register(
        &mut self,
        now: Instant,
        id: PromptId,
        mailbox: Arc<Mailbox>,
        limit: Option<Duration>,
        owner: Option<ClientId>,
    ) {
        let listener = Listener { mailbox, deadline: limit.map(|limit| (later(now, limit), limit)) };
        let look = owner.is_none();
        let watched = self.watches.entry(id).or_insert_with(|| Watched {
            listeners: Vec::new(),
            phase: if look { Phase::Unseen } else { Phase::Submitting },
            client_id: owner,
            registered: now,
            last_sign: now,
            seen_on: None,
            absent_since: None,
            look_at: None,
            failing_since: None,
            clock_ms: 0,
            asking: false,
            asked_on: self.epoch,
            deciding: None,
        });
        match watched.phase {
            Phase::Submitting | Phase::Unseen => {}
            Phase::Pending => listener.mailbox.push(Event::Queued { ahead: None }),
            Phase::Running | Phase::Ending(_) => listener.mailbox.push(Event::Started),
        }
        watched.listeners.push(listener);
        if look {
            watched.look_at = Some(now);
        }
        self.schedule_survey(now);
    }

    /// The submission was answered. Old servers choose the id themselves.
    pub(crate) fn accepted(&mut self, now: Instant, sent: &PromptId, got: &PromptId) {
        let Some(mut watched) = self.watches.remove(sent) else {
            return;
        };
        // Accepted at some time since it was registered.
        watched.seen(watched.asked_on, self.server_clock_ms);
        if matches!(watched.phase, Phase::Submitting | Phase::Unseen) {
            watched.phase = Phase::Pending;
            watched.tell(&Event::Queued { ahead: None });
        }
        if sent != got || watched.client_id.as_ref() != Some(&self.client_id) || self.link == Link::Down {
            // Frames under the other id, or before the socket, were not ours to see.
            watched.look_at = Some(now);
        }
        match self.watches.entry(got.clone()) {
            // Somebody followed it under the server's id already.
            Entry::Occupied(mut known) => known.get_mut().listeners.append(&mut watched.listeners),
            Entry::Vacant(free) => {
                free.insert(watched);
            }
        }
    }

    pub(crate) fn client_id_changed(&mut self, client_id: ClientId) {
        self.client_id = client_id;
    }

    /// The session ends.
    pub(crate) fn close(&mut self) {
        for (_, watched) in self.watches.drain() {
            watched.finish(&Outcome::GaveUp(GaveUp::SessionClosed));
        }
    }

    /// What is due.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Ask> {
        self.watches.retain(|_, watched| {
            watched.listeners.retain(|listener| listener.is_waiting(now));
            !watched.listeners.is_empty()
        });
        if self.watches.is_empty() {
            self.next_survey = None;
            self.idle_with_pending = None;
            self.failing_since = None;
            self.head = None;
            return Vec::new();
        }
        let stalled_after = self.options.stalled_after;
        let head_stalled = self.head.as_ref().is_some_and(|(_, sign)| now >= later(*sign, stalled_after));
        let gone = self.failing_since.filter(|since| now - *since >= self.options.unreachable_after);
        let over: Vec<_> = self
            .watches
            .iter()
            .filter_map(|(id, watched)| {
                let unanswered =
                    watched.failing_since.filter(|since| now - *since >= self.options.unreachable_after);
                let outcome = match (watched.phase, gone.or(unanswered)) {
                    (_, Some(since)) => Outcome::GaveUp(GaveUp::Unreachable { for_: now - since }),
                    (Phase::Running | Phase::Ending(_), _)
                        if now >= later(watched.last_sign, stalled_after) =>
                    {
                        Outcome::Lost(Lost::Stalled)
                    }
                    (Phase::Pending, _) if head_stalled => Outcome::Lost(Lost::Stalled),
                    _ => return None,
                };
                Some((id.clone(), outcome))
            })
            .collect();
        for (id, outcome) in over {
            self.end(&id, outcome);
        }
        let mut asks = Vec::new();
        if !self.surveying && self.next_survey.is_some_and(|at| at <= now) {
            self.surveying = true;
            self.survey_started = Some(now);
            self.survey_epoch = self.epoch;
            asks.push(Ask::Survey);
        }
        for (id, watched) in &mut self.watches {
            if !watched.asking && watched.deciding.is_none() && watched.look_at.is_some_and(|at| at <= now) {
                watched.look_at = None;
                watched.asking = true;
                watched.asked_on = self.epoch;
                let ending = matches!(watched.phase, Phase::Ending(since) if now - since < HISTORY_GRACE);
                asks.push(if ending { Ask::History(id.clone()) } else { Ask::Look(id.clone()) });
            }
        }
        asks
    }

    /// When [`Tracker::tick`] has something to do next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let patience = self.options.unreachable_after;
        let gone = self.failing_since.map(|since| later(since, patience));
        let survey = self.next_survey.filter(|_| !self.surveying);
        let head = self.head.as_ref().map(|(_, sign)| later(*sign, self.options.stalled_after));
        let watches = self.watches.values().flat_map(|watched| {
            let look = watched.look_at.filter(|_| !watched.asking && watched.deciding.is_none());
            let stalled = match watched.phase {
                Phase::Running | Phase::Ending(_) => {
                    Some(later(watched.last_sign, self.options.stalled_after))
                }
                Phase::Pending => head,
                Phase::Submitting | Phase::Unseen => None,
            };
            let deadline = watched.listeners.iter().filter_map(|listener| Some(listener.deadline?.0)).min();
            [look, deadline, stalled, watched.failing_since.map(|since| later(since, patience))]
        });
        watches.chain([gone, survey]).flatten().min()
    }

    fn survey_pause(&self) -> Duration {
        let blind = self.link == Link::Down
            || self.idle_with_pending.is_some()
            || self.watches.values().any(|watched| watched.client_id.as_ref() != Some(&self.client_id));
        if blind { self.options.survey_blind } else { self.options.survey }
    }

    fn schedule_survey(&mut self, now: Instant) {
        let due = now + self.survey_pause();
        self.next_survey = Some(self.next_survey.map_or(due, |at| at.min(due)));
    }

    fn survey_now(&mut self, now: Instant) {
        if !self.watches.is_empty() {
            self.next_survey = Some(now);
        }
    }
}

impl Listener {
    /// Whether it still wants to know; one whose time is over is told so.
    fn is_waiting(&self, now: Instant) -> bool {
        if let Some((at, after)) = self.deadline
            && now >= at
        {
            self.mailbox.finish(Outcome::GaveUp(GaveUp::TimedOut { after }));
            return false;
        }
        !self.mailbox.is_abandoned()
    }
}

impl Watched {
    fn tell(&self, event: &Event) {
        for listener in &self.listeners {
            listener.mailbox.push(event.clone());
        }
    }

    fn finish(&self, outcome: &Outcome) {
        for listener in &self.listeners {
            listener.mailbox.finish(outcome.clone());
        }
    }

    fn start(&mut self, now: Instant) {
        if let Phase::Submitting | Phase::Unseen | Phase::Pending = self.phase {
            self.last_sign = now;
            self.phase = Phase::Running;
            self.tell(&Event::Started);
        }
    }

    fn seen(&mut self, epoch: u64, clock_ms: u64) {
        self.failing_since = None;
        self.clock_ms = self.clock_ms.max(clock_ms);
        self.seen_on = self.seen_on.max(Some(epoch));
        self.absent_since = None;
    }
}

impl Drop for Tracker {
    /// Whatever ends the task that owns it, no reader waits for ever.
    fn drop(&mut self) {
        self.close();
    }
}

/// A later time; "never", as a user may say it, is far away instead of an overflow.
fn later(at: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    at + by.min(FAR)
}

#[cfg(test)]
mod tests;
