//! What the server answers when it is asked.

use tokio::time::Instant;

use super::{AFTER_END, Ask, CONFIRM_ABSENCE, DEAD_LOOKS, HISTORY_GRACE, Link, Phase, Snapshot, Tracker};
use crate::history::HistoryEntry;
use crate::ids::PromptId;
use crate::outputs::OutputFile;
use crate::queue::Whereabouts;
use crate::watch::{Event, Lost, Outcome};

impl Tracker {
    /// The server could not be asked.
    pub(crate) fn failed(&mut self, now: Instant, about: Option<&PromptId>) {
        if about.is_none() {
            self.failing_since.get_or_insert(now);
        }
        match about.and_then(|id| self.watches.get_mut(id)) {
            Some(watched) => {
                watched.failing_since.get_or_insert(now);
                watched.asking = false;
                watched.look_at = Some(now + self.options.survey_blind);
            }
            None if about.is_none() => {
                self.surveying = false;
                self.next_survey = Some(now + self.options.survey_blind);
            }
            None => {}
        }
    }

    /// It ended, and what it left is too large to be read.
    pub(crate) fn unreadable(&mut self, id: &PromptId, what: String, limit: u64, unit: &'static str) {
        if self.watches.contains_key(id) {
            self.end(id, Outcome::TooLarge { what, limit, unit });
        }
    }

    /// Questions may have been lost without an answer: ask them again.
    pub(crate) fn questions_lost(&mut self, now: Instant) {
        self.surveying = false;
        self.schedule_survey(now);
        for watched in self.watches.values_mut().filter(|watched| watched.asking) {
            watched.asking = false;
            watched.look_at = Some(now);
        }
        let deciding: Vec<_> = self
            .watches
            .iter()
            .filter(|(_, watched)| watched.deciding.is_some())
            .map(|(id, _)| id.clone())
            .collect();
        for id in deciding {
            self.files_missing(&id, Vec::new());
        }
    }

    pub(crate) fn surveyed(&mut self, now: Instant, snapshot: &Snapshot) {
        self.failing_since = None;
        self.surveying = false;
        let started = self.survey_started.unwrap_or(now);
        let epoch = self.survey_epoch;
        self.server_clock_ms = self.server_clock_ms.max(snapshot.clock_ms);
        let clock_ms = self.server_clock_ms;
        let busy = usize::from(!snapshot.running.is_empty());
        let mut mine_pending = false;
        match (snapshot.running.first(), &self.head) {
            (Some(now_running), Some((before, _))) if now_running == before => {}
            (now_running, _) => self.head = now_running.map(|id| (id.clone(), now)),
        }
        for (id, watched) in &mut self.watches {
            if snapshot.running.contains(id) {
                watched.seen(epoch, clock_ms);
                watched.start(now);
            } else if let Some(position) = snapshot.pending.iter().position(|pending| pending == id) {
                watched.seen(epoch, clock_ms);
                mine_pending = true;
                if matches!(watched.phase, Phase::Submitting | Phase::Unseen | Phase::Pending) {
                    watched.phase = Phase::Pending;
                    watched.tell(&Event::Queued { ahead: Some(position + busy) });
                }
            } else if watched.phase != Phase::Submitting
                && watched.registered < started
                && !watched.asking
                && watched.deciding.is_none()
            {
                watched.look_at = Some(watched.look_at.map_or(now, |at| at.min(now)));
            }
        }
        if snapshot.running.is_empty() && mine_pending {
            let (since, looks) = self.idle_with_pending.unwrap_or((now, 0));
            self.idle_with_pending = Some((since, looks + 1));
        } else {
            self.idle_with_pending = None;
        }
        self.next_survey = Some(now + self.survey_pause());
        if let Some((since, looks)) = self.idle_with_pending
            && looks >= DEAD_LOOKS
            && now - since >= self.options.worker_dead_after
        {
            let dead: Vec<_> =
                snapshot.pending.iter().filter(|id| self.watches.contains_key(*id)).cloned().collect();
            for id in dead {
                self.end(&id, Outcome::Lost(Lost::WorkerDead));
            }
        }
    }

    pub(crate) fn history(&mut self, now: Instant, id: &PromptId, entry: Option<HistoryEntry>) -> Vec<Ask> {
        let place = match entry {
            Some(entry) => Whereabouts::Ended(Box::new(entry)),
            None => Whereabouts::Absent,
        };
        self.looked(now, id, place)
    }

    pub(crate) fn looked(&mut self, now: Instant, id: &PromptId, place: Whereabouts) -> Vec<Ask> {
        self.failing_since = None;
        let (epoch, clock_ms) = (self.epoch, self.server_clock_ms);
        let (up, heard) = (self.link == Link::Up, self.last_heard);
        let Some(watched) = self.watches.get_mut(id) else {
            return Vec::new();
        };
        watched.asking = false;
        watched.failing_since = None;
        if watched.deciding.is_some() {
            return Vec::new();
        }
        match place {
            Whereabouts::Pending => {
                watched.seen(watched.asked_on, clock_ms);
                if matches!(watched.phase, Phase::Submitting | Phase::Unseen) {
                    watched.phase = Phase::Pending;
                    watched.tell(&Event::Queued { ahead: None });
                }
            }
            Whereabouts::Running => {
                watched.seen(watched.asked_on, clock_ms);
                watched.start(now);
            }
            Whereabouts::Ended(entry) => return self.decide(now, id, *entry),
            Whereabouts::Absent => {
                if let Phase::Ending(since) = watched.phase
                    && now - since < HISTORY_GRACE
                {
                    watched.look_at = Some(now + AFTER_END);
                    return Vec::new();
                }
                let since = *watched.absent_since.get_or_insert(now);
                if now - since < CONFIRM_ABSENCE {
                    watched.look_at = Some(since + CONFIRM_ABSENCE);
                    return Vec::new();
                }
                // The same connection is the same process, if it is still alive.
                let same_connection = up && watched.seen_on == Some(epoch);
                if same_connection && heard.is_none_or(|heard| heard <= since) {
                    watched.look_at = Some(now + self.options.survey_blind);
                    return vec![Ask::Ping];
                }
                let outcome = match (watched.phase, watched.seen_on) {
                    (Phase::Ending(_), _) => Outcome::Lost(Lost::HistoryGone),
                    (_, None) => Outcome::Lost(Lost::NeverSeen),
                    (Phase::Running, _) if same_connection => Outcome::Lost(Lost::HistoryGone),
                    // Somebody took it out.
                    _ if same_connection => Outcome::Deleted,
                    _ => {
                        watched.asking = true;
                        return vec![Ask::SameServer(id.clone())];
                    }
                };
                self.end(id, outcome);
            }
        }
        Vec::new()
    }

    /// The oldest thing the server remembers, by its own clock.
    pub(crate) fn remembers(&mut self, id: &PromptId, oldest_ms: Option<u64>) {
        let Some(watched) = self.watches.get_mut(id) else {
            return;
        };
        watched.asking = false;
        let same = oldest_ms.is_some_and(|oldest| oldest <= watched.clock_ms);
        let outcome = match (same, watched.phase) {
            (false, _) => Outcome::Lost(Lost::Restarted),
            (true, Phase::Running) => Outcome::Lost(Lost::HistoryGone),
            (true, _) => Outcome::Deleted,
        };
        self.end(id, outcome);
    }

    /// Files of a decided success that do not exist.
    pub(crate) fn files_missing(&mut self, id: &PromptId, missing: Vec<OutputFile>) {
        let Some(watched) = self.watches.get_mut(id) else {
            return;
        };
        let Some(mut outcome) = watched.deciding.take() else {
            return;
        };
        if let Outcome::Succeeded(success) = &mut outcome {
            success.missing_files = missing;
        }
        self.end(id, outcome);
    }

    fn decide(&mut self, now: Instant, id: &PromptId, entry: HistoryEntry) -> Vec<Ask> {
        let Some(watched) = self.watches.get_mut(id) else {
            return Vec::new();
        };
        let announced = matches!(watched.phase, Phase::Ending(_));
        let ours = watched.client_id.as_ref() == Some(&self.client_id);
        let outcome = Outcome::judge_within(entry, &self.options.outputs);
        let mut asks = Vec::new();
        // It ended unannounced although the socket seems well: the server forgot our client id.
        let quiet = self.last_message.is_none_or(|heard| now - heard >= self.options.survey);
        if !announced
            && ours
            && self.link == Link::Up
            && quiet
            && watched.registered + self.options.survey < now
        {
            asks.push(Ask::FreshClientId);
        }
        if self.options.check_cached_files && !outcome.cached_files().is_empty() {
            watched.deciding = Some(outcome);
            asks.push(Ask::Files(id.clone()));
        } else {
            self.end(id, outcome);
        }
        asks
    }

    /// Files of cached nodes in a decided outcome.
    pub(crate) fn files_to_check(&self, id: &PromptId) -> Vec<OutputFile> {
        self.watches
            .get(id)
            .and_then(|watched| watched.deciding.as_ref())
            .map(Outcome::cached_files)
            .unwrap_or_default()
    }

    /// Tells the reader, and forgets the prompt.
    pub(super) fn end(&mut self, id: &PromptId, outcome: Outcome) {
        if let Some(watched) = self.watches.remove(id) {
            watched.finish(&outcome);
        }
        if self.current.as_ref() == Some(id) {
            self.current = None;
        }
    }
}
