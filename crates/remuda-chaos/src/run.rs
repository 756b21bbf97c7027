//! One run, from the first process to the verdict.

use crate::check::check;
use crate::drive::{Stage, clients, trouble};
use crate::gather::gather;
use crate::options::Options;
use crate::plan::Job;
use crate::report::Report;
use crate::world::World;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often the state of the run is told.
const TELL: Duration = Duration::from_secs(10);
/// How many tasks are long ones when there is a long outage: more than there are workers.
const LONG: usize = 8;
/// How long an orderly end may take.
const ORDERLY: Duration = Duration::from_secs(90);

/// After how many tasks the long outage begins; those before it are the long ones.
pub(crate) fn outage_after(options: &Options) -> usize {
    options.tasks / 4 + LONG
}

fn plan(options: &Options) -> Vec<Job> {
    let last_long = outage_after(options);
    let job = |number| {
        let job = Job::plan(options.seed, number);
        let is_long = !options.outage.is_zero() && (last_long - LONG..last_long).contains(&number);
        // It still renders when the outage is over.
        if is_long { job.long(options.outage + Duration::from_secs(30)) } else { job }
    };
    (0..options.tasks).map(job).collect()
}

/// Builds an installation, breaks it while clients use it, and judges what is left. `tell` hears how it goes.
pub async fn run(options: &Options, tell: impl Fn(&str)) -> Result<Report> {
    let started = Instant::now();
    let plan = plan(options);
    let mut world = World::start(options).await.context("the installation did not start")?;
    tell(&format!(
        "{} with seed {}: ready after {:.1} s",
        options.scenario,
        options.seed,
        started.elapsed().as_secs_f64()
    ));
    let result = through(&mut world, options, &plan, started, &tell).await;
    if result.is_err() {
        // Whoever has to find out why needs the logs.
        world.keep();
    }
    result.with_context(|| format!("logs and data of the run are in {}", world.folder.display()))
}

async fn through(
    world: &mut World,
    options: &Options,
    plan: &[Job],
    started: Instant,
    tell: &impl Fn(&str),
) -> Result<Report> {
    let stage = Stage::new();
    let api = world.api.clone();
    let work = async {
        let stories = clients(&api, options, plan, &stage).await;
        stage.calm.cancel();
        stage.give_up.cancel();
        stories
    };
    let breaking = async {
        let faults = trouble(world, options, &stage).await;
        tell(&format!(
            "calm after {:.1} s; {} of {} tasks have ended",
            started.elapsed().as_secs_f64(),
            stage.ended(),
            plan.len()
        ));
        // From here on everything works, and what is under way has this long.
        if stage.give_up.run_until_cancelled(sleep(options.rest)).await.is_some() {
            stage.give_up.cancel();
        }
        faults
    };
    let clock = async {
        let all_taken = stage.accepted(plan.len());
        let _ = tokio::time::timeout(options.trouble, all_taken).await;
        stage.calm.cancel();
    };
    let news = async {
        while stage.give_up.run_until_cancelled(sleep(TELL)).await.is_some() {
            tell(&format!(
                "{:.0} s: {} of {} tasks have ended",
                started.elapsed().as_secs_f64(),
                stage.ended(),
                plan.len()
            ));
        }
    };
    let (stories, faults, (), ()) = tokio::join!(work, breaking, clock, news);
    let faults = faults.context("a fault could not be played")?;
    let mut evidence = gather(world, options, stories, faults).await?;
    for part in world.fleet() {
        if let Err(error) = part.end(ORDERLY).await {
            evidence.surprises.push(format!("{error:#}"));
        }
    }
    let verdict = check(&evidence);
    let mut report = Report::new(options, &evidence, verdict, started.elapsed());
    if !report.is_clean() {
        let name = format!("remuda-chaos-{}-{}", options.scenario, options.seed);
        let folder = options.evidence.clone().unwrap_or_else(std::env::temp_dir).join(name);
        report.keep(&evidence, &world.folder, &folder)?;
    }
    Ok(report)
}
