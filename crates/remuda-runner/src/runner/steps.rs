//! What a runner does about each event, and what it begins when it is due.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use comfyui::SystemStats;
use remuda_core::{Claim, LeaseRef, Phase};
use remuda_store::{Acquired, AdoptRequest, ClaimRequest};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::event::{Event, Fate, Inspected, Stage, Unwell, Word};
use super::inspect::inspect;
use super::service::{Purpose, Runner, Slot};
use super::sweep::{Swept, sweep};
use crate::board::Moment;
use crate::decide::wish::{Wish, wish};
use crate::herd::jitter;
use crate::source::{Result, SourceError};

/// How long ComfyUI may take to say how it is.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// An answer without a task that comes sooner than this is no long poll: the source is closing, or broken.
const TOO_SOON: Duration = Duration::from_millis(20);

impl Runner {
    /// Takes what happened.
    pub(super) fn take(&mut self, event: Event) {
        let now = Instant::now();
        let retry = jitter(self.shared().options.timing.retry);
        match event {
            Event::Acquired(asked, answer) => self.acquired(asked, answer, now + retry),
            Event::Adopted(asked, answer) => self.adopted(asked, answer, now + retry),
            Event::Claimed(asked, answer) => self.claimed(asked, answer, now, retry),
            Event::Inspected(found) => self.inspected(found, now + retry),
            Event::Probed(answer) => self.probed(answer, now),
            Event::Swept(found) => self.swept(found, now),
            Event::Word(word) => self.heard(word, now),
            Event::Ended(lease, fate) => self.ended(lease, &fate, now),
            Event::Socket(up) => self.socket(up, now),
            Event::Beaten | Event::Tick => {}
            Event::Stop => {
                self.draining = true;
                self.condition.drain();
                self.shared().board.call_back(&self.worker.spec.id);
            }
            Event::Abandon => self.abandon(),
        }
    }

    /// Begins whatever is due.
    pub(super) fn advance(&mut self) {
        let now = Instant::now();
        if self.hold.is_some() && self.shared().board.worker_is_lost(&self.worker.spec.id) {
            tracing::warn!(worker = %self.worker.spec.id, "the worker is somebody else's by now");
            self.lose_hold(now);
        }
        if self.draining {
            self.claim = None;
            return;
        }
        if self.hold.is_none() {
            self.claim = None;
            if !self.due.acquiring && now >= self.due.acquire_at {
                self.acquire();
            }
            return;
        }
        // A claim whose answer was lost is found by adopting, and only when no other claim is under way.
        if !self.due.adopted && !self.due.adopting && now >= self.due.adopt_at {
            self.claim = None;
            self.adopt();
        }
        if !self.due.inspecting && self.due.inspect_at.is_some_and(|at| now >= at) {
            self.inspect();
        }
        if self.session.is_some() && !self.due.probing && now >= self.due.probe_at {
            self.probe();
        }
        let sure = self.shared().board.worker_is_sure(&self.worker.spec.id);
        if sure && self.ready.borrow().is_some() && !self.due.sweeping && now >= self.due.sweep_at {
            self.sweep();
        }
        let may = self.purpose == Purpose::Drive
            && sure
            && self.due.adopted
            && self.due.swept
            && self.due.inspect_at.is_none()
            && now >= self.due.claim_at
            && self.condition.may_claim(now);
        let wanted = wish(may, self.slots.values().map(|slot| slot.stage));
        let open = self.claim.as_ref().map_or(Wish::Nothing, |(wish, _)| *wish);
        if wanted != open {
            self.claim = None;
            if wanted != Wish::Nothing {
                self.ask_for_a_task(wanted);
            }
        }
    }

    /// When something is due without anything having happened.
    pub(super) fn next_due(&self) -> Instant {
        let now = Instant::now();
        let due = &self.due;
        let moments = [
            Some(due.acquire_at).filter(|_| self.hold.is_none() && !due.acquiring),
            Some(due.adopt_at).filter(|_| !due.adopted && !due.adopting),
            due.inspect_at.filter(|_| !due.inspecting),
            Some(due.probe_at).filter(|_| self.session.is_some() && !due.probing),
            Some(due.sweep_at).filter(|_| !due.sweeping),
            Some(due.claim_at),
            self.condition.wakes(now),
        ];
        // What cannot be begun although it is due waits for an event; a look each second costs nothing.
        let soonest = moments.into_iter().flatten().filter(|at| *at > now).min();
        let second = now + Duration::from_secs(1);
        soonest.map_or(second, |at| at.min(second))
    }

    fn acquire(&mut self) {
        self.due.acquiring = true;
        let worker = Arc::clone(&self.worker);
        self.doing.push(Box::pin(async move {
            let asked = Moment::now();
            let answer = worker.shared.ask(worker.shared.source.acquire_worker(worker.spec.clone())).await;
            Event::Acquired(asked, answer.map(Box::new))
        }));
    }

    fn acquired(&mut self, asked: Moment, answer: Result<Box<Acquired>>, again: Instant) {
        self.due.acquiring = false;
        self.due.acquire_at = again;
        match answer.map(|answer| *answer) {
            Ok(Acquired::Yes(row)) => {
                let id = self.worker.spec.id.clone();
                tracing::info!(worker = %id, fence = %row.fence, "driving a worker");
                self.hold = Some(row.fence);
                self.held_by = None;
                // What the former holder knew is kept until it is known better.
                self.report.identity = self.report.identity.take().or_else(|| row.report.identity.clone());
                self.report.object_info = self.report.object_info.or(row.report.object_info);
                self.known_identity = row.report.identity;
                self.shared().board.hold_worker(id, row.fence, self.report.clone(), asked);
                self.due.adopted = false;
                self.due.swept = false;
                self.due.adopt_at = Instant::now();
                self.due.sweep_at = Instant::now();
            }
            Ok(Acquired::HeldBy(row)) => self.held_by = Some(row.owner),
            Err(error) => {
                tracing::warn!(worker = %self.worker.spec.id, %error, "the worker cannot be acquired now")
            }
        }
    }

    fn lose_hold(&mut self, now: Instant) {
        self.hold = None;
        self.claim = None;
        self.shared().board.drop_worker(&self.worker.spec.id);
        self.due.acquire_at = now + jitter(self.shared().options.timing.retry);
    }

    fn adopt(&mut self) {
        let Some(worker_fence) = self.hold else { return };
        self.due.adopting = true;
        let worker = Arc::clone(&self.worker);
        self.doing.push(Box::pin(async move {
            let options = &worker.shared.options;
            let asked = Moment::now();
            let request = AdoptRequest {
                owner: options.owner,
                worker: worker.spec.id.clone(),
                worker_fence,
                gateway: options.gateway.clone(),
                known: worker.shared.board.leases_on(&worker.spec.id),
            };
            Event::Adopted(asked, worker.shared.ask(worker.shared.source.adopt(request)).await)
        }));
    }

    fn adopted(&mut self, asked: Moment, answer: Result<Vec<Claim>>, again: Instant) {
        self.due.adopting = false;
        match answer {
            Ok(claims) if !claims.is_empty() => {
                self.strays.clear();
                for claim in claims {
                    self.shared().counters.adoptions.one();
                    self.begin(claim, asked);
                }
                // There may be more than fits into one answer: those that came are known from now on.
                self.due.adopt_at = Instant::now();
            }
            Ok(_) => {
                self.due.adopted = true;
                self.strays.clear();
                // Those were told what was known before; from now on what was found counts.
                if let Some(ready) = &*self.ready.borrow() {
                    self.known_identity = Some(ready.identity.clone());
                }
            }
            Err(SourceError::Fenced) => self.lose_hold(Instant::now()),
            Err(error) => {
                tracing::debug!(worker = %self.worker.spec.id, %error, "what runs there cannot be asked for now");
                self.due.adopt_at = again;
            }
        }
    }

    fn ask_for_a_task(&mut self, wish: Wish) {
        let ready = self.ready.borrow().clone();
        let (Some(worker_fence), Some(ready)) = (self.hold, ready) else { return };
        let worker = Arc::clone(&self.worker);
        let loaded = self.loaded.into_iter().collect();
        let claim = async move {
            let options = &worker.shared.options;
            let asked = Moment::now();
            let wait = jitter(options.timing.claim);
            let request = ClaimRequest {
                owner: options.owner,
                worker: worker.spec.id.clone(),
                worker_fence,
                capabilities: Arc::clone(&ready.offer),
                loaded,
                ahead: wish == Wish::Ahead,
                gateway: options.gateway.clone(),
                wait,
            };
            let limit = wait + options.timing.source;
            let answer = match tokio::time::timeout(limit, worker.shared.source.claim(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(SourceError::Unavailable(format!("no answer within {limit:?}"))),
            };
            Event::Claimed(asked, answer.map(|claim| claim.map(Box::new)))
        };
        self.claim = Some((wish, Box::pin(claim)));
    }

    fn claimed(&mut self, asked: Moment, answer: Result<Option<Box<Claim>>>, now: Instant, retry: Duration) {
        self.claim = None;
        match answer {
            Ok(Some(claim)) => {
                self.shared().counters.claimed.one();
                let since = self.shared().board.claimed(asked);
                self.begin(*claim, since);
            }
            Ok(None) if asked.elapsed() < TOO_SOON => self.due.claim_at = now + Duration::from_millis(200),
            Ok(None) => {}
            Err(SourceError::Fenced) => self.lose_hold(now),
            Err(error) => {
                tracing::warn!(worker = %self.worker.spec.id, %error, "no task can be claimed now");
                // It may have been made, and its answer lost.
                self.due.adopted = false;
                self.due.adopt_at = now + retry;
                self.due.claim_at = now + retry;
            }
        }
    }

    fn begin(&mut self, claim: Claim, asked: Moment) {
        let lease = claim.lease.reference();
        let affinity = claim.task.affinity;
        let stage = match claim.lease.phase {
            Phase::Rendering if claim.adopted => Stage::Rendering,
            _ => Stage::Preparing,
        };
        tracing::debug!(task = %lease.task, worker = %self.worker.spec.id, adopted = claim.adopted, phase = %claim.lease.phase, "an attempt begins");
        let board = Arc::clone(&self.shared().board);
        let grip = board.hold(&claim, asked);
        if self.draining {
            board.call_back(&self.worker.spec.id);
        }
        let known = self.known_identity.clone();
        let attempt = Attempt::new(Arc::clone(&self.worker), claim, grip, known, self.words.clone());
        let id = self.attempts.spawn(attempt.run()).id();
        self.remember(id, lease, Slot { stage, affinity });
    }

    fn inspect(&mut self) {
        self.due.inspecting = true;
        let worker = Arc::clone(&self.worker);
        let (session, options) = (self.session.clone(), self.session_options.clone());
        let known = self.ready.borrow().clone();
        self.doing
            .push(Box::pin(async move { Event::Inspected(inspect(worker, session, options, known).await) }));
    }

    fn inspected(&mut self, found: std::result::Result<Box<Inspected>, Unwell>, again: Instant) {
        self.due.inspecting = false;
        let found = match found {
            Ok(found) => *found,
            Err(unwell) if unwell.excess => {
                self.due.inspect_at = Some(self.condition.excess(Instant::now(), unwell.why).max(again));
                return;
            }
            Err(unwell) => {
                self.condition.silent(unwell.why);
                self.due.inspect_at = Some(again);
                return;
            }
        };
        self.due.inspect_at = None;
        self.due.probe_at = Instant::now() + jitter(self.shared().options.timing.probe);
        self.probes_failed = 0;
        self.follow_socket(&found.session);
        self.session = Some(found.session);
        let identity = found.ready.identity.clone();
        if self.report.identity.as_ref().is_some_and(|before| *before != identity) {
            tracing::warn!(worker = %self.worker.spec.id, "another ComfyUI answers at this address than before");
            self.worker.forget_all_placed();
        }
        let twin = self.shared().board.twin(&self.worker.spec.id, &identity);
        self.condition.twin_of(twin.map(|twin| twin.to_string()));
        self.report.identity = Some(identity.clone());
        self.report.object_info = Some(found.ready.hash);
        self.note_stats(&found.stats);
        self.ready.send_replace(Some(found.ready));
        // Adopted attempts were told what was known before; from now on this is.
        if self.due.adopted {
            self.known_identity = Some(identity);
        }
        self.condition.answered();
    }

    fn note_stats(&mut self, stats: &SystemStats) {
        self.report.comfyui_version.clone_from(&stats.system.comfyui_version);
        let device = stats.devices.first();
        self.report.device = device.map(|device| device.name.clone());
        let bytes = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok());
        self.report.vram =
            device.and_then(|device| Some((bytes(device.vram_free)?, bytes(device.vram_total)?)));
    }

    fn probe(&mut self) {
        self.due.probing = true;
        let client = self.worker.client.clone();
        self.doing.push(Box::pin(async move {
            let answer = tokio::time::timeout(PROBE_LIMIT, client.system_stats()).await;
            Event::Probed(match answer {
                Ok(Ok(stats)) => Ok(Box::new(stats)),
                Ok(Err(error)) => Err(Unwell::from(&error)),
                Err(_) => Err(format!("it does not answer within {} s", PROBE_LIMIT.as_secs()).into()),
            })
        }));
    }

    fn probed(&mut self, answer: std::result::Result<Box<SystemStats>, Unwell>, now: Instant) {
        let probe = jitter(self.shared().options.timing.probe);
        self.due.probing = false;
        self.due.probe_at = now + probe;
        match answer {
            Ok(stats) => {
                self.probes_failed = 0;
                self.note_stats(&stats);
                if self.condition.is_silent() && self.due.inspect_at.is_none() {
                    // It was away: look whether it is still the same.
                    self.due.inspect_at = Some(now);
                } else if self.due.inspect_at.is_none() {
                    self.condition.answered();
                }
            }
            Err(unwell) if unwell.excess => self.put_aside(unwell.why, now),
            Err(unwell) => {
                self.probes_failed += 1;
                let connected = self.session.as_ref().is_some_and(comfyui::Session::is_connected);
                // A busy ComfyUI may miss one question; one whose socket is gone as well is gone.
                if self.probes_failed > 1 || !connected {
                    self.condition.silent(unwell.why);
                } else {
                    self.due.probe_at = now + probe / 5;
                }
            }
        }
    }

    /// It answered with more than it may: it rests, is not asked meanwhile, and is looked over before it works again.
    fn put_aside(&mut self, why: String, now: Instant) {
        let until = self.condition.excess(now, why);
        self.due.inspect_at = Some(until);
        self.due.probe_at = until;
        self.due.sweep_at = until;
        self.due.swept = false;
        // What waits there can be done elsewhere.
        self.shared().board.call_back(&self.worker.spec.id);
    }

    fn socket(&mut self, up: bool, now: Instant) {
        if self.condition.is_aside(now) {
            return;
        }
        self.due.probe_at = now;
        if up {
            // It was away, if only for a moment: it may have been restarted, or be another.
            self.due.inspect_at = Some(now);
            self.due.sweep_at = now;
        } else {
            self.condition.hung_up();
        }
    }

    fn sweep(&mut self) {
        let Some(ready) = self.ready.borrow().clone() else { return };
        self.due.sweeping = true;
        let worker = Arc::clone(&self.worker);
        let tombstone = self.tombstone.as_ref().map(|tombstone| tombstone.prompt.clone());
        let counted = self.late_seen.clone();
        self.doing
            .push(Box::pin(async move { Event::Swept(sweep(worker, ready, tombstone, counted).await) }));
    }

    fn swept(&mut self, found: std::result::Result<Swept, Unwell>, now: Instant) {
        let timing = &self.shared().options.timing;
        let (pause, soon) = (jitter(timing.sweep), timing.retry.min(timing.sweep));
        self.due.sweeping = false;
        self.due.sweep_at = now + pause;
        let found = match found {
            Ok(found) => found,
            Err(unwell) if unwell.excess => return self.put_aside(unwell.why, now),
            Err(Unwell { why, .. }) => {
                tracing::debug!(worker = %self.worker.spec.id, error = why, "its queue could not be swept");
                self.due.sweep_at = now + soon;
                return;
            }
        };
        self.due.swept = true;
        self.condition.late(found.late);
        if found.late > 0 {
            self.due.sweep_at = now + soon;
        }
        self.late_seen = found.stopped.into_iter().collect();
        if self.tombstone.as_ref().is_some_and(|tombstone| found.vanished.as_ref() == Some(&tombstone.prompt))
        {
            tracing::info!(worker = %self.worker.spec.id, "its worker thread lives again");
            self.tombstone = None;
            self.condition.revived();
        }
        let strays: HashSet<LeaseRef> = found.strays.into_iter().collect();
        // Seen once it may be a claim on its way here; seen twice its answer was lost.
        let unanswered = strays.iter().any(|stray| self.strays.contains(stray));
        if found.foreign {
            self.due.sweep_at = now + soon;
        }
        if self.due.adopted && (unanswered || found.foreign) {
            self.due.adopted = false;
            self.due.adopt_at = now;
        }
        self.strays = strays;
    }

    fn heard(&mut self, word: Word, now: Instant) {
        match word {
            Word::Stage(lease, stage) => {
                if let Some(slot) = self.slots.get_mut(&lease) {
                    slot.stage = stage;
                    if stage == Stage::Rendering {
                        self.loaded = slot.affinity.or(self.loaded);
                    }
                }
            }
            Word::Dead(tombstone) => {
                self.condition.died(tombstone.why.clone());
                self.tombstone = Some(tombstone);
                self.due.sweep_at = now + self.shared().options.timing.sweep;
                // What waits there waits for ever.
                self.shared().board.call_back(&self.worker.spec.id);
            }
            Word::Outdated => self.due.inspect_at = Some(now),
            Word::Excess(why) => self.put_aside(why, now),
        }
    }

    fn ended(&mut self, lease: LeaseRef, fate: &Fate, now: Instant) {
        self.slots.remove(&lease);
        match fate {
            Fate::Completed => self.condition.completed(),
            Fate::Failed { class, alone, why } if class.is_loss() => {
                if *alone || self.condition.is_zombie() {
                    self.condition.lost_one(now, why);
                }
                self.loaded = None;
                self.due.probe_at = now;
            }
            Fate::Failed { .. } | Fate::Gone => {}
        }
    }

    /// Gives back claims whose answer was lost, and lets go of the worker if nothing of ours is left there.
    pub(super) async fn let_go(&mut self) {
        let Some(fence) = self.hold else { return };
        let (shared, id) = (Arc::clone(self.shared()), self.worker.spec.id.clone());
        let leases = match shared.ask(shared.source.leases(&id)).await {
            Ok(leases) => leases,
            Err(error) => {
                tracing::warn!(worker = %id, %error, "the worker could not be released");
                return;
            }
        };
        let mut left = 0;
        for lease in leases {
            let never_sent = self.due.adopted && matches!(lease.phase, Phase::Placing | Phase::Ahead);
            if lease.owner == shared.options.owner && never_sent {
                // The claim that was open when we were told to stop: nobody has seen its answer.
                if shared.ask(shared.source.give_back(lease.reference(), None)).await.is_ok() {
                    continue;
                }
            }
            left += 1;
        }
        shared.board.drop_worker(&id);
        if left == 0
            && let Err(error) = shared.ask(shared.source.release_worker(&id, fence)).await
        {
            tracing::warn!(worker = %id, %error, "the worker could not be released");
        }
    }
}
