//! The thread that writes: everything that waits in one transaction, answers after its commit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use remuda_core::{LeaseRef, OwnerId, Status};
use rusqlite::Connection;
use tokio::sync::{broadcast, mpsc};

use super::batch::{Batch, Effects};
use super::beats::{Beat, Told};
use super::claims::{Orphans, RawClaim, Waiting, superseded};
use super::command::{Command, Submit, Work, again, whole};
use super::fault::{Fault, Outcome};
use super::feed;
use super::lanes::Shared;
use super::lock::FileLock;
use super::pieces::Texts;
use super::place::Place;
use super::state::{Settings, State};
use super::unfinished::Unfinished;
use crate::{Change, Error, Submitted};

/// How many commands share one transaction at most.
const TOGETHER: usize = 512;

/// After this many changed rows the log is copied back, when nobody waits …
const COPY_WHEN_IDLE: u64 = 5_000;

/// … and after this many even if somebody does: long before SQLite would do it in the middle of a commit.
const COPY_ALWAYS: u64 = 25_000;

/// … and after this many bytes of long texts: little enough that nobody notices.
const COPY_LONG: usize = 2 << 20;

/// What the thread owns.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) db: Connection,
    pub(super) place: Place,
    pub(super) settings: Arc<Settings>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) changes: broadcast::Sender<Change>,
    pub(super) orphans: Arc<Orphans>,
    pub(super) unfinished: Unfinished,
    pub(super) texts: Arc<Texts>,
    /// Let go last, when the connection is closed.
    pub(super) lock: FileLock,
}

/// A command that writes.
#[derive(Debug)]
enum Item {
    Submit(Box<Submit>),
    Change(Box<dyn Work>),
    Beat(Beat),
}

/// What callers do not wait for any more.
#[derive(Debug, Default)]
struct Over {
    claims: HashSet<u64>,
    beats: HashSet<u64>,
}

/// A transaction that was committed.
#[derive(Debug, Default)]
struct Done {
    effects: Effects,
    served: Vec<(usize, RawClaim)>,
}

#[derive(Debug)]
pub(super) struct Loop {
    writer: Writer,
    state: State,
    /// What is remembered may not be what is in the file.
    stale: bool,
    waiting: Vec<Waiting>,
    /// One of each process: the newest.
    beats: HashMap<OwnerId, Beat>,
    told: Told,
    /// How many rows had been changed when the log was last copied back.
    copied: u64,
    /// How many bytes of long texts were written since.
    long: usize,
}

impl Writer {
    /// Reads what must be known, and gives the leases of other processes time to be renewed.
    pub(super) fn prepare(self) -> Outcome<Loop> {
        feed::mend(&self.db)?;
        let mut state = State::default();
        state.reload(&self.db)?;
        Batch::new(&self.db, &mut state, &self.settings).renew_others()?;
        let owner = self.settings.owner();
        let own = state.running.values().filter(|held| held.lease.owner == owner);
        state.inherited = own.map(|held| held.lease.reference()).collect();
        Ok(Loop {
            writer: self,
            state,
            stale: false,
            waiting: Vec::new(),
            beats: HashMap::new(),
            told: Told::new(),
            copied: 0,
            long: 0,
        })
    }
}

impl Loop {
    /// What readers may know of the lanes.
    pub(super) fn lanes(&self) -> Shared {
        self.state.lanes.shared.clone()
    }

    /// Until the store is closed or dropped.
    pub(super) fn run(mut self) {
        let mut commands = Vec::with_capacity(TOGETHER);
        while self.writer.commands.blocking_recv_many(&mut commands, TOGETHER) > 0 {
            if self.round(commands.drain(..)) {
                // What was sent before is still done; nothing more can be sent.
                self.writer.commands.close();
            }
            self.copy_back();
            self.remove_some();
        }
        for claim in self.waiting.drain(..) {
            claim.answer(Ok(None), &self.writer.orphans);
        }
        for (_, beat) in self.beats.drain() {
            beat.answer(&self.state, &mut self.told);
        }
        let Writer { db, lock, .. } = self.writer;
        if let Err((_, error)) = db.close() {
            tracing::warn!(%error, "the store's file could not be closed cleanly");
        }
        drop(lock);
    }

    /// Copies the log into the file, between transactions: whoever commits should not wait for it.
    fn copy_back(&mut self) {
        let changed = self.writer.db.total_changes();
        let enough = if self.writer.commands.is_empty() { COPY_WHEN_IDLE } else { COPY_ALWAYS };
        if changed - self.copied < enough && self.long < COPY_LONG {
            return;
        }
        (self.copied, self.long) = (changed, 0);
        // Best effort: what a reader still needs, or does not fit, is copied the next time.
        let copied = self.writer.db.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(()));
        if let Err(error) = copied {
            tracing::warn!(%error, "the store's log could not be copied back");
        }
    }

    /// Removes some of the long texts that no row names any more.
    fn remove_some(&mut self) {
        match self.writer.texts.remove_some(&self.writer.db) {
            Ok(true) => self.writer.texts.look_again(),
            Ok(false) => {}
            // They are found again at the next start.
            Err(fault) => {
                let error = Error::from(fault);
                tracing::warn!(%error, "a long text that nothing names could not be removed");
                self.writer.texts.give_up();
            }
        }
    }

    /// Does what came. The answer is whether the store is to be closed.
    fn round(&mut self, commands: impl Iterator<Item = Command>) -> bool {
        let mut items = Vec::new();
        let mut over = Over::default();
        let (mut claims, mut close) = (false, false);
        for command in commands {
            match command {
                Command::Submit(submit) => items.push(Item::Submit(submit)),
                Command::Change(work) => items.push(Item::Change(work)),
                Command::Beat(beat) => items.push(Item::Beat(beat)),
                Command::Claim(claim) => {
                    self.waiting.push(claim);
                    claims = true;
                }
                Command::ClaimOver(id) => _ = over.claims.insert(id),
                Command::BeatOver(id) => _ = over.beats.insert(id),
                Command::Nudge => {}
                Command::Close => close = true,
            }
        }
        if claims {
            for claim in superseded(&mut self.waiting) {
                claim.answer(Ok(None), &self.writer.orphans);
            }
        }
        match self.together(&mut items) {
            Ok(done) => self.conclude(done, items),
            Err(fault) => self.recover(fault.into(), items),
        }
        self.dismiss(&over);
        close
    }

    /// All commands, and the claims that wait, in one transaction.
    fn together(&mut self, items: &mut [Item]) -> Outcome<Done> {
        let orphans = self.writer.orphans.take();
        let given = orphans.clone();
        let done = self.transaction(|batch, waiting| {
            for lease in given {
                batch.take_back(lease)?;
            }
            for item in items {
                item.apply(batch)?;
            }
            let served = batch.serve(waiting)?;
            batch.want_back(waiting, &served)?;
            Ok(served)
        });
        if done.is_err() {
            self.writer.orphans.put_back(orphans);
        }
        done
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&mut Batch<'_>, &mut [Waiting]) -> Outcome<Vec<(usize, RawClaim)>>,
    ) -> Outcome<Done> {
        self.writer.place.check()?;
        if self.stale {
            self.state.reload(&self.writer.db)?;
            self.stale = false;
        }
        let db = &self.writer.db;
        db.prepare_cached("BEGIN IMMEDIATE")?.execute(())?;
        let mut batch = Batch::new(db, &mut self.state, &self.writer.settings);
        let late = if self.writer.settings.was_set(batch.now) { batch.renew_others() } else { Ok(()) };
        let done = late.and_then(|()| work(&mut batch, &mut self.waiting)).and_then(|served| {
            batch.write_feed()?;
            batch.state.flush(db)?;
            db.prepare_cached("COMMIT")?.execute(())?;
            Ok(Done { effects: batch.effects, served })
        });
        if done.is_err() {
            self.stale = true;
            if !db.is_autocommit()
                && let Err(error) = db.execute_batch("ROLLBACK")
            {
                tracing::warn!(%error, "a failed transaction could not be rolled back");
            }
        }
        done
    }

    /// A transaction failed. Perhaps only one command in it is to blame.
    fn recover(&mut self, error: Error, items: Vec<Item>) {
        tracing::warn!(%error, commands = items.len(), "a transaction of the store failed");
        if matches!(error, Error::Unavailable { .. }) {
            for item in items {
                item.refuse(again(&error));
            }
            self.refuse_claims(&error);
            return;
        }
        for mut item in items {
            match self.transaction(|batch, _| item.apply(batch).map(|()| Vec::new()).map_err(Fault::Abort)) {
                Ok(done) => self.conclude(done, vec![item]),
                Err(fault) => item.refuse(fault.into()),
            }
        }
        match self.together(&mut []) {
            Ok(done) => self.conclude(done, Vec::new()),
            Err(fault) => self.refuse_claims(&fault.into()),
        }
    }

    fn refuse_claims(&mut self, error: &Error) {
        for claim in self.waiting.drain(..) {
            claim.answer(Err(again(error)), &self.writer.orphans);
        }
    }

    /// Answers what is durable now.
    fn conclude(&mut self, done: Done, items: Vec<Item>) {
        let Done { effects, served } = done;
        self.writer.unfinished.note(effects.unfinished);
        self.long += effects.long;
        for text in effects.left_over {
            self.writer.texts.leave(text);
        }
        // From the last to the first, so that the places stay right.
        let mut served = served;
        served.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        let mut answers = Vec::with_capacity(served.len());
        for (place, claim) in served {
            answers.push((self.waiting.remove(place), claim));
        }
        for (waiting, claim) in answers.into_iter().rev() {
            waiting.answer(Ok(Some(claim)), &self.writer.orphans);
        }
        // Before the others: who waits for the end of a task waits longest, and whoever is answered goes on to other work.
        for change in effects.changes {
            // Nobody listens.
            let _unheard = self.writer.changes.send(change);
        }
        let mut came = Vec::new();
        for item in items {
            match item {
                Item::Submit(submit) => submit.answer(&self.state),
                Item::Change(work) => work.answer(None),
                Item::Beat(beat) => came.push(beat),
            }
        }
        self.tell(came, effects.news, &effects.lost);
        self.state.trim();
    }

    /// Answers the beats that have something to hear. Those that wait are looked at when there is something new for somebody, and
    /// not with every commit.
    fn tell(&mut self, came: Vec<Beat>, news: bool, lost: &[LeaseRef]) {
        self.beats.retain(|_, beat| !beat.reply.is_closed());
        for beat in &came {
            if let Some(before) = self.beats.remove(&beat.request.owner) {
                before.make_way(&self.state);
            }
        }
        let mut looked_at = Vec::new();
        if news || !lost.is_empty() {
            looked_at.extend(self.beats.drain().map(|(_, beat)| beat));
        }
        looked_at.extend(came);
        let lost: HashSet<LeaseRef> = lost.iter().copied().collect();
        for mut beat in looked_at {
            beat.lose(&lost);
            if beat.is_urgent(&self.state, &self.told) {
                beat.answer(&self.state, &mut self.told);
            } else if let Some(before) = self.beats.insert(beat.request.owner, beat) {
                before.make_way(&self.state);
            }
        }
        if self.told.len() > 2 * self.state.running.len() + 100 {
            let running = &self.state.running;
            self.told.retain(|lease, _| {
                running.get(&lease.task).is_some_and(|held| held.lease.fence == lease.fence)
            });
        }
    }

    /// Answers those who do not wait any more, or cannot be served.
    fn dismiss(&mut self, over: &Over) {
        let mut waiting = Vec::with_capacity(self.waiting.len());
        for claim in self.waiting.drain(..) {
            if claim.is_gone() {
                continue;
            }
            if claim.is_void(&self.state) {
                claim.answer(Err(Error::Fenced), &self.writer.orphans);
            } else if claim.request.wait.is_zero() || over.claims.contains(&claim.id) {
                claim.answer(Ok(None), &self.writer.orphans);
            } else {
                waiting.push(claim);
            }
        }
        self.waiting = waiting;
        if !over.beats.is_empty() {
            for (_, beat) in self.beats.extract_if(|_, beat| over.beats.contains(&beat.id)) {
                beat.answer(&self.state, &mut self.told);
            }
        }
    }
}

impl Item {
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()> {
        match self {
            Self::Submit(submit) => {
                submit.done = Some(whole(batch, |batch| {
                    batch.submit(&submit.new, submit.laid.as_deref(), submit.bytes)
                })?);
                Ok(())
            }
            Self::Change(work) => work.apply(batch),
            Self::Beat(beat) => {
                match whole(batch, |batch| batch.beat(&beat.request))? {
                    Ok((lost, lost_workers)) => {
                        beat.lost = lost;
                        beat.lost_workers = lost_workers;
                        Ok(())
                    }
                    // A beat refuses nothing.
                    Err(error) => Err(rusqlite::Error::ToSqlConversionFailure(Box::new(error))),
                }
            }
        }
    }

    /// Callers that are gone do not want to know.
    fn refuse(self, error: Error) {
        match self {
            Self::Submit(submit) => _ = submit.reply.send(Err(error)),
            Self::Change(work) => work.answer(Some(error)),
            Self::Beat(beat) => _ = beat.reply.send(Err(error)),
        }
    }
}

impl Submit {
    /// With the task as it is after the claims were served.
    fn answer(self, state: &State) {
        let done = self.done.unwrap_or(Err(Error::Closed)).map(|submitted| match submitted {
            Submitted::New(task) => {
                let running = state.running.get(&task.id).map(|held| held.task.clone());
                Submitted::New(running.filter(|task| task.status == Status::Running).unwrap_or(task))
            }
            before @ Submitted::Before(_) => before,
        });
        let _gone = self.reply.send(done);
    }
}

impl Batch<'_> {
    /// A claim did not reach its caller: back with it, unless somebody has it by now.
    fn take_back(&mut self, lease: LeaseRef) -> rusqlite::Result<()> {
        let Some(owner) = self.state.running.get(&lease.task).map(|held| held.lease.owner) else {
            return Ok(());
        };
        match whole(self, |batch| batch.give_back(owner, lease, None))? {
            Ok(_) | Err(Error::Fenced) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, task = %lease.task, "a claim that nobody got could not be given back");
                Ok(())
            }
        }
    }
}
