//! Lanes of faults, side by side: one for servers and sidecars, one for ComfyUIs, one for PostgreSQL, one for the
//! network. A lane does one thing at a time and mends it before the next.

use super::stage::Stage;
use crate::options::Options;
use crate::plan::{Deck, Fault, FleetFault, NetFault, OwnField, SimFault, StoreFault};
use crate::world::{Net, Part, Sim, World};
use anyhow::{Context, Result};
use jiff::Timestamp;
use remuda_testbed::postgres::Cluster;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Longest wait for a simulator to be back, or for an armed fault to strike.
const A_WHILE: Duration = Duration::from_secs(5);
/// How long an orderly end may take, beyond the time to drain.
const ORDERLY: Duration = Duration::from_secs(90);

/// A fault that happened.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    pub(crate) fault: Fault,
    /// To whom.
    pub(crate) on: String,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

/// Runs all lanes until it is calm, then mends everything.
pub(crate) async fn trouble(world: &mut World, options: &Options, stage: &Stage) -> Result<Vec<Done>> {
    let World { servers, sidecars, sims, database, nets, .. } = world;
    let (fleet, sims_done, store, net) = tokio::join!(
        fleet(servers, sidecars, options, stage),
        comfyuis(sims, options, stage),
        postgres(database.as_mut(), options, stage),
        network(nets, options, stage),
    );
    // What is frozen or cut would keep the rest from coming back.
    if let Some(cluster) = database {
        cluster.thaw()?;
        cluster.start_again().await?;
    }
    for net in nets.iter() {
        net.proxy.pass().await;
    }
    for sim in sims.iter_mut() {
        if !sim.part.is_alive()? {
            sim.part.start().await?;
        }
        back(sim).await;
        sim.heal().await;
    }
    for part in servers.iter_mut().chain(sidecars.iter_mut()) {
        part.cont()?;
        if !part.is_alive()? {
            part.start().await?;
        }
    }
    let mut done = fleet.context("servers and sidecars")?;
    done.extend(sims_done.context("ComfyUIs")?);
    done.extend(store.context("PostgreSQL")?);
    done.extend(net.context("network")?);
    done.sort_by_key(|done| done.from);
    Ok(done)
}

/// One lane: waits for its moments, draws its cards, and remembers what it did.
struct Lane<'a> {
    options: &'a Options,
    stage: &'a Stage,
    deck: Deck,
    done: Vec<Done>,
}

impl<'a> Lane<'a> {
    fn new(options: &'a Options, stage: &'a Stage, deck: Deck) -> Lane<'a> {
        Lane { options, stage, deck, done: Vec::new() }
    }

    async fn next(&mut self) -> Option<Fault> {
        let pause = self.deck.dice.millis(self.options.gap / 10, self.options.gap);
        if !self.stage.moment(pause).await {
            return None;
        }
        self.deck.draw(self.options)
    }

    fn pick(&mut self, count: usize) -> usize {
        self.deck.dice.below(count)
    }

    fn note(&mut self, fault: Fault, on: &str, from: Timestamp) {
        self.done.push(Done { fault, on: on.to_owned(), from, to: Timestamp::now() });
    }
}

async fn fleet(
    servers: &mut [Part],
    sidecars: &mut [Part],
    options: &Options,
    stage: &Stage,
) -> Result<Vec<Done>> {
    let mut lane = Lane::new(options, stage, Deck::fleet(options));
    while let Some(fault) = lane.next().await {
        // Who has ended by itself is started again, as a service manager would.
        for part in servers.iter_mut().chain(sidecars.iter_mut()) {
            if !part.is_alive()? {
                part.start().await?;
            }
        }
        let (group, what): (&mut [Part], _) = match &fault {
            Fault::Server(what) => (&mut *servers, what.clone()),
            Fault::Sidecar(what) => (&mut *sidecars, what.clone()),
            Fault::Sim(_) | Fault::Store(_) | Fault::Net(_) => continue,
        };
        let count = group.len();
        let Some(part) = group.get_mut(lane.pick(count)) else { continue };
        let from = Timestamp::now();
        match what {
            FleetFault::Kill { down } => {
                part.kill().await?;
                tokio::time::sleep(down).await;
                part.start().await?;
            }
            FleetFault::Stop { time } => {
                part.stop()?;
                tokio::time::sleep(time).await;
                part.cont()?;
            }
            FleetFault::Term => {
                if let Err(error) = part.end(ORDERLY).await {
                    part.surprises.push(format!("{error:#}"));
                }
                part.start().await?;
            }
        }
        let name = part.name.clone();
        lane.note(fault, &name, from);
    }
    Ok(lane.done)
}

async fn comfyuis(sims: &mut [Sim], options: &Options, stage: &Stage) -> Result<Vec<Done>> {
    let mut lane = Lane::new(options, stage, Deck::sims(options));
    while let Some(fault) = lane.next().await {
        let count = sims.len();
        let Some(sim) = sims.get_mut(lane.pick(count)) else { continue };
        let Fault::Sim(what) = &fault else { continue };
        let from = Timestamp::now();
        perform(sim, what, from).await?;
        let name = sim.part.name.clone();
        lane.note(fault, &name, from);
    }
    Ok(lane.done)
}

async fn perform(sim: &mut Sim, what: &SimFault, from: Timestamp) -> Result<()> {
    match what {
        SimFault::Kill { down } => {
            sim.kill().await?;
            tokio::time::sleep(*down).await;
            sim.part.start().await?;
        }
        SimFault::Crash { down } => {
            sim.fault(&json!({"kind": "crash", "down_ms": down.as_millis() as u64})).await?;
            tokio::time::sleep(*down).await;
            back(sim).await;
            sim.note_loss(from);
        }
        SimFault::Restart => {
            sim.fault(&json!({"kind": "restart"})).await?;
            back(sim).await;
            sim.note_loss(from);
        }
        SimFault::CrashInNode => {
            sim.fault(&json!({"kind": "crash_in_node", "times": 1})).await?;
            // Without a prompt in this time it does not strike; then it is taken back.
            let struck = async || sim.hits("crash_in_node").await.is_ok_and(|hits| hits > 0).then_some(());
            let _ = remuda_testbed::wait::until("a crash in a node", A_WHILE, struck).await;
            back(sim).await;
            sim.heal().await;
            sim.note_loss(from);
        }
        SimFault::Zombie { time } => {
            sim.fault(&json!({"kind": "zombie_worker"})).await?;
            tokio::time::sleep(*time).await;
            sim.heal().await;
            sim.fault(&json!({"kind": "restart"})).await?;
            back(sim).await;
            sim.note_loss(from);
        }
        SimFault::Own { name, fields } => {
            let mut fault = Map::new();
            fault.insert("kind".to_owned(), json!(name));
            for (field, value) in fields {
                let value = match value {
                    OwnField::Number(number) => json!(number),
                    OwnField::Text(text) => json!(text),
                };
                fault.insert((*field).to_owned(), value);
            }
            sim.fault(&Value::Object(fault)).await?;
            if *name == "refuse" {
                back(sim).await;
            }
        }
    }
    Ok(())
}

/// Waits until a simulator's control routes answer again.
async fn back(sim: &Sim) {
    // An error shows later: the simulator's counts cannot be had.
    let _ = remuda_testbed::wait::until("a simulator", A_WHILE * 12, async || sim.hits("").await.ok()).await;
}

async fn postgres(cluster: Option<&mut Cluster>, options: &Options, stage: &Stage) -> Result<Vec<Done>> {
    let Some(cluster) = cluster else { return Ok(Vec::new()) };
    let mut lane = Lane::new(options, stage, Deck::store(options));
    if !options.outage.is_zero() && stage.accepted(crate::run::outage_after(options)).await {
        // The long tasks were taken in just now. Nothing else happens to the workers on which they render.
        stage.hush(true);
        tokio::time::sleep(A_WHILE).await;
        let from = Timestamp::now();
        cluster.stop_for(options.outage).await?;
        lane.note(Fault::Store(StoreFault::Away { time: options.outage }), "PostgreSQL", from);
        tokio::time::sleep(A_WHILE).await;
        stage.hush(false);
    }
    while let Some(fault) = lane.next().await {
        let Fault::Store(what) = &fault else { continue };
        let from = Timestamp::now();
        match what {
            StoreFault::Away { time } => cluster.stop_for(*time).await?,
            StoreFault::Frozen { time } => {
                cluster.freeze()?;
                tokio::time::sleep(*time).await;
                cluster.thaw()?;
            }
        }
        lane.note(fault, "PostgreSQL", from);
        // It is the heart of all servers: it gets a longer rest than they do.
        stage.moment(options.gap * 4).await;
    }
    Ok(lane.done)
}

async fn network(nets: &[Net], options: &Options, stage: &Stage) -> Result<Vec<Done>> {
    let mut lane = Lane::new(options, stage, Deck::nets(options));
    while let Some(fault) = lane.next().await {
        let Some(net) = nets.get(lane.pick(nets.len())) else { return Ok(lane.done) };
        let Fault::Net(what) = &fault else { continue };
        let from = Timestamp::now();
        match what {
            NetFault::Cut => net.proxy.cut().await,
            NetFault::Stalled { time } => {
                net.proxy.stall().await;
                tokio::time::sleep(*time).await;
                net.proxy.pass().await;
            }
            NetFault::Refused { time } => {
                net.proxy.refuse().await;
                net.proxy.cut().await;
                tokio::time::sleep(*time).await;
                net.proxy.pass().await;
            }
        }
        lane.note(fault, &net.name, from);
    }
    Ok(lane.done)
}
