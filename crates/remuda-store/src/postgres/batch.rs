//! One batch: everything that was waiting, in one transaction.
//!
//! ```text
//!  begin, lock and read ──▶ decide, in Rust ──▶ write and commit
//!        one round trip                              one round trip
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use remuda_core::LaneId;
use remuda_core::schedule::AFFINITY_WINDOW;

use super::desk::{Chosen, Desk, Outcome, Seen, Served};
use super::fault::Fault;
use super::inner::Inner;
use super::load::{self, Loaded};
use super::queue::{Answer, Batch, Command, Parked, Work};
use super::save::{Save, Tidings};
use crate::windows::{LOOKED_INTO, shares};
use crate::{Error, Submitted};

/// The most tasks of one lane that are looked at for a claim.
const DEEPEST: i64 = 2048;

/// How often a worker lets others go first before it takes the next batch.
const YIELDS: usize = 3;

/// What became of a batch, in the order of its commands and claims.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) served: Vec<Served>,
    pub(super) tidings: Tidings,
    /// There were more lanes than are looked into.
    narrowed: bool,
}

/// Runs a batch. `careful`: look for tasks that were submitted before under the same id, which is seldom and shows
/// itself as a fault of the first try.
pub(super) async fn run(
    inner: &Inner,
    commands: &[Command],
    claims: &[Parked],
    careful: bool,
    shard: i16,
) -> Result<Done, Fault> {
    let session = inner.sessions.unopened().await?;
    let mut needs = needs(inner, commands, claims, careful);
    let client = session.client()?;
    let narrowed = needs.claim_lanes.len() > LOOKED_INTO;
    if narrowed {
        needs.claim_lanes = narrow(inner, client, claims, &needs.claim_lanes).await?;
    }
    let mut loaded =
        load::load(client, inner.sessions.options(), &inner.ledger, &inner.usages, &needs).await?;
    let (measured, requires) = (Vec::new(), HashMap::new());
    let mut desk = Desk { inner, now: loaded.now, save: Save::default(), measured, requires };
    let outcomes: Vec<Outcome> = {
        load_lanes(&mut desk, client, commands, &loaded).await?;
        let mut seen = Seen::default();
        commands.iter().map(|command| desk.command(command, &mut loaded, &mut seen)).collect()
    };
    let chosen = if claims.is_empty() {
        Chosen::default()
    } else {
        let mut depth = needs.depth;
        loop {
            let chosen = desk.choose(claims, &loaded, depth);
            let missed = chosen.hidden || (chosen.unserved && loaded.is_full(depth));
            let deeper = depth < DEEPEST && missed;
            if !deeper {
                break chosen;
            }
            depth *= 8;
            loaded.candidates = load::candidates(client, &needs.claim_lanes, depth).await?;
        }
    };
    if chosen.leaves_idle(claims) {
        loaded.ahead = load::ahead(client, desk.now).await?;
    }
    let served = desk.serve(claims, chosen, &mut loaded)?;
    let Desk { save, measured, .. } = desk;
    let mut done = finish(inner, session, save, outcomes, served, &loaded, shard).await?;
    done.narrowed = narrowed;
    for (shape, ms) in measured {
        inner.ledger.measured(shape, ms);
    }
    Ok(done)
}

async fn finish(
    inner: &Inner,
    session: super::session::Session,
    save: Save,
    mut outcomes: Vec<Outcome>,
    mut served: Vec<Served>,
    loaded: &Loaded,
    shard: i16,
) -> Result<Done, Fault> {
    if save.is_empty() {
        session.client()?.batch_execute("ROLLBACK").await?;
        session.done();
        return Ok(Done { outcomes, served, tidings: Tidings::default(), narrowed: false });
    }
    let mut inputs = save.commit(session, shard).await?;
    for served in &mut served {
        let Served::Claim(claim) = served else { continue };
        // What was locked for us cannot have gone.
        if let Some(input) = inputs.remove(&claim.task.id) {
            claim.input = input;
        }
    }
    for outcome in &mut outcomes {
        // A task that was claimed in the same commit is shown as it is now.
        if let Outcome::Answer(Ok(Answer::Submitted(submitted))) = outcome
            && let Submitted::New(task) = &mut **submitted
            && let Some((now, _)) = save.new_tasks.get(&task.id)
        {
            task.clone_from(now);
        }
    }
    inner.usages.add(save.counts.keys().map(|tenant| (tenant, save.adds(tenant))));
    let mut tidings = save.tidings();
    // While we held them, tasks that we did not take were invisible to everybody else.
    let taken = served.iter().filter(|served| matches!(served, Served::Claim(_))).count();
    if taken > 0 && loaded.candidates.len() > save.inputs.len() {
        tidings.ready.extend(loaded.candidates.iter().map(|task| task.lane.clone()));
    }
    // Also those that were known: they may have been forgotten meanwhile.
    let entered = save.new_tasks.into_values().map(|(task, input)| (task.lane, Arc::new(input.requires)));
    let new = save.new_lanes.into_values().map(|lane| (lane.id, Arc::new(lane.requires)));
    inner.lanes.learn(new.chain(entered));
    inner.ledger.advance(save.lane_v);
    Ok(Done { outcomes, served, tidings, narrowed: false })
}

/// What has to be read for a batch.
fn needs<'a>(inner: &Inner, commands: &'a [Command], claims: &'a [Parked], careful: bool) -> load::Needs<'a> {
    let mut needs = load::Needs::default();
    for command in commands {
        match &command.work {
            Work::Submit(new) => {
                needs.submit(new, &inner.usages, &inner.sessions.options().quota);
                if careful {
                    needs.existing.insert(new.id);
                }
            }
            Work::End(_, lease, _) | Work::GiveBack(_, lease, _) => {
                needs.tasks.insert(lease.task);
            }
        }
    }
    let mut wants = 0;
    let mut window = 0;
    for parked in claims {
        let request = &parked.request;
        needs.workers.insert(request.worker.as_str());
        needs.claim_lanes.extend(inner.lanes.fitting(&request.capabilities));
        wants += 1;
        if !request.loaded.is_empty() {
            window = i64::try_from(AFFINITY_WINDOW).unwrap_or(0);
        }
    }
    needs.depth = wants + window;
    needs
}

/// The lanes that are looked into, of many: for every claim those with the earliest first tasks.
async fn narrow(
    inner: &Inner,
    client: &tokio_postgres::Client,
    claims: &[Parked],
    lanes: &BTreeSet<LaneId>,
) -> Result<BTreeSet<LaneId>, Fault> {
    let next = load::next(client, lanes).await?;
    let of_claim = |parked: &Parked| {
        let fits = inner.lanes.fitting(&parked.request.capabilities);
        let lanes = next.iter().filter(|lane| fits.contains(*lane));
        lanes.skip(parked.skip).take(LOOKED_INTO).cloned().collect()
    };
    let wanted: Vec<Vec<LaneId>> =
        claims.iter().map(of_claim).filter(|lanes: &Vec<_>| !lanes.is_empty()).collect();
    Ok(shares(&wanted).into_keys().collect())
}

/// A task given back with what was learnt goes to the lane of all that is known of it: read those lanes that are
/// not known here.
async fn load_lanes(
    desk: &mut Desk<'_>,
    client: &tokio_postgres::Client,
    commands: &[Command],
    loaded: &Loaded,
) -> Result<(), Fault> {
    for command in commands {
        let Work::GiveBack(_, lease, Some(_)) = &command.work else { continue };
        let Some(task) = loaded.tasks.get(&lease.task) else { continue };
        let requires = match desk.inner.lanes.requires(&task.lane) {
            Some(requires) => (*requires).clone(),
            None => load::requires(client, &task.lane).await?,
        };
        desk.requires.insert(task.id, requires);
    }
    Ok(())
}

/// Runs batches until the queue is closed.
pub(super) async fn worker(inner: std::sync::Arc<Inner>, slot: i16) {
    let shard = inner.shard(slot);
    while let Some(batch) = inner.queue.next().await {
        Box::pin(work(&inner, batch, shard)).await;
        // Those who were answered may have more to do: let them say so first, and the next batch is a full one.
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    }
}

async fn work(inner: &Inner, batch: Batch, shard: i16) {
    let tide = batch.tide();
    let Batch { commands, claims, .. } = batch;
    match repeat(inner, &commands, &claims, shard).await {
        Ok(done) => answer(inner, commands, claims, done, tide),
        // One of them is at fault: each for itself, so that the others do not suffer.
        Err(Fault::Refused(_)) if commands.len() + claims.len() > 1 => {
            for command in commands {
                let one = vec![command];
                match repeat(inner, &one, &[], shard).await {
                    Ok(done) => answer(inner, one, Vec::new(), done, tide),
                    Err(fault) => fail(one, Vec::new(), &fault.into()),
                }
            }
            if !claims.is_empty() {
                match repeat(inner, &[], &claims, shard).await {
                    Ok(done) => answer(inner, Vec::new(), claims, done, tide),
                    Err(fault) => fail(Vec::new(), claims, &fault.into()),
                }
            }
        }
        Err(fault) => fail(commands, claims, &fault.into()),
    }
}

async fn repeat(inner: &Inner, commands: &[Command], claims: &[Parked], shard: i16) -> Result<Done, Fault> {
    let mut tries = super::session::Tries::default();
    let mut careful = false;
    loop {
        match inner.sessions.bounded(run(inner, commands, claims, careful, shard)).await {
            Ok(mut done) => {
                // After the commit: nothing that goes wrong here makes the batch run again.
                inner.open_secrets(done.served.iter_mut().filter_map(Served::claim)).await;
                return Ok(done);
            }
            Err(fault) => tries.again(fault).await?,
        }
        careful = true;
    }
}

fn answer(inner: &Inner, commands: Vec<Command>, claims: Vec<Parked>, done: Done, tide: u64) {
    let mut later = Vec::new();
    for (command, outcome) in commands.into_iter().zip(done.outcomes) {
        match outcome {
            Outcome::Later => later.push(command),
            Outcome::Answer(answer) => {
                if let Some(reply) = command.reply {
                    // A caller that is gone can ask again.
                    let _ = reply.send(answer);
                }
            }
        }
    }
    let mut unserved = Vec::new();
    for (mut parked, served) in claims.into_iter().zip(done.served) {
        match served {
            Served::Claim(claim) => parked.serve(*claim, &inner.queue),
            Served::Fenced => parked.refuse(Error::Fenced),
            Served::Nothing { marked } => {
                parked.marked = marked;
                // All that was looked into avoids its worker: the next lanes have their turn, and then the first again.
                let next = parked.skip + LOOKED_INTO;
                let more = done.narrowed && next < inner.lanes.fitting(&parked.request.capabilities).len();
                parked.skip = if more { next } else { 0 };
                unserved.push(parked);
            }
        }
    }
    inner.announce(done.tidings);
    inner.queue.push_again(later);
    inner.queue.put_back(unserved, tide);
}

fn fail(commands: Vec<Command>, claims: Vec<Parked>, error: &Error) {
    for command in commands {
        if let Some(reply) = command.reply {
            let _ = reply.send(Err(super::fault::copy(error)));
        }
    }
    for parked in claims {
        parked.refuse(super::fault::copy(error));
    }
}
