//! Beats: leases and workers are renewed, and the holder of a lease hears that it should stop.

use std::collections::{HashMap, HashSet};

use remuda_core::{LeaseRef, WorkerId};
use rusqlite::params;
use tokio::sync::oneshot;

use super::batch::Batch;
use super::fault::Outcome;
use super::rows::{json_text, micros};
use super::state::State;
use crate::{BeatReply, BeatRequest, LeaseNews, Result};

/// A beat, first to be done, then perhaps to wait for news.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) id: u64,
    pub(super) request: BeatRequest,
    pub(super) lost: Vec<LeaseRef>,
    pub(super) lost_workers: Vec<WorkerId>,
    pub(super) reply: oneshot::Sender<Result<BeatReply>>,
}

/// What was told of which lease: (cancel, wanted).
pub(super) type Told = HashMap<LeaseRef, (bool, bool)>;

impl Batch<'_> {
    /// Renews what is still the caller's, and finds out what is not.
    pub(super) fn beat(&mut self, request: &BeatRequest) -> Outcome<(Vec<LeaseRef>, Vec<WorkerId>)> {
        let until = self.after(self.settings.policy().lease);
        let mut lost = Vec::new();
        for beat in &request.leases {
            let held = self.state.running.get_mut(&beat.lease.task);
            let mine =
                held.filter(|held| held.lease.fence == beat.lease.fence && held.lease.owner == request.owner);
            let Some(held) = mine else {
                lost.push(beat.lease);
                continue;
            };
            held.lease.renew(self.now, self.settings.policy(), beat.phase, beat.share());
            let (no, lease) = (held.no, held.lease.clone());
            self.update_lease(no, &lease)?;
            self.state.inherited.remove(&beat.lease);
        }
        let mut lost_workers = Vec::new();
        for beat in &request.workers {
            let driver = self.state.drivers.get_mut(&beat.id);
            let mine = driver
                .filter(|driver| driver.held && driver.fence == beat.fence && driver.owner == request.owner);
            let Some(driver) = mine else {
                lost_workers.push(beat.id.clone());
                continue;
            };
            driver.until = until;
            let sql = "UPDATE worker SET report = ?2, until = ?3, last_active_at = ?4 WHERE id = ?1";
            let report = json_text(&beat.report)?;
            self.db.prepare_cached(sql)?.execute(params![
                beat.id.as_str(),
                report,
                micros(until),
                micros(self.now)
            ])?;
        }
        Ok((lost, lost_workers))
    }
}

impl Beat {
    /// Whether its caller must hear something now that it did not hear before.
    pub(super) fn is_urgent(&self, state: &State, told: &Told) -> bool {
        let fresh = |news: &LeaseNews| told.get(&news.lease) != Some(&(news.cancel, news.wanted));
        self.request.wait.is_zero()
            || !self.lost.is_empty()
            || !self.lost_workers.is_empty()
            || self.news(state).iter().any(fresh)
    }

    /// Leases went to somebody else while it waited.
    pub(super) fn lose(&mut self, taken: &HashSet<LeaseRef>) {
        if taken.is_empty() {
            return;
        }
        let known: HashSet<LeaseRef> = self.lost.iter().copied().collect();
        let leases = self.request.leases.iter().map(|beat| beat.lease);
        self.lost.extend(leases.filter(|lease| taken.contains(lease) && !known.contains(lease)));
    }

    /// A newer one of the same process is there: whoever asks again does not wait for the answer before. What it is told counts
    /// as untold, because perhaps nobody hears it any more.
    pub(super) fn make_way(self, state: &State) {
        self.answer(state, &mut Told::new());
    }

    /// Tells everything that there is to tell.
    pub(super) fn answer(self, state: &State, told: &mut Told) {
        let news = self.news(state);
        let known: Vec<_> = news.iter().map(|news| (news.lease, (news.cancel, news.wanted))).collect();
        let reply = BeatReply { news, lost: self.lost, lost_workers: self.lost_workers };
        if self.reply.send(Ok(reply)).is_ok() {
            told.extend(known);
        }
    }

    fn news(&self, state: &State) -> Vec<LeaseNews> {
        let mut news = Vec::new();
        let lost: HashSet<LeaseRef> = self.lost.iter().copied().collect();
        for beat in self.request.leases.iter().filter(|beat| !lost.contains(&beat.lease)) {
            let held = state.running.get(&beat.lease.task);
            if let Some(held) = held.filter(|held| held.lease.reference() == beat.lease) {
                let (cancel, wanted) = (held.task.cancel_at.is_some(), held.lease.wanted);
                if cancel || wanted {
                    news.push(LeaseNews { lease: beat.lease, cancel, wanted });
                }
            }
        }
        news
    }
}
