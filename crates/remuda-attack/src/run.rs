//! One attack after the other.

use crate::catalogue::{Attack, CATALOGUE, Kind};
use crate::deed::{Made, attacker};
use crate::judge::{Measured, judge};
use crate::killed::killed;
use crate::options::Options;
use crate::probe::Probe;
use crate::report::{Line, Report};
use crate::world::World;
use anyhow::{Result, bail};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Attacks, and says after each how it went.
pub async fn run(options: &Options, mut tell: impl FnMut(&Line)) -> Result<Report> {
    let chosen: Vec<&Attack> = CATALOGUE.iter().filter(|attack| is_chosen(attack, options)).collect();
    if chosen.is_empty() {
        bail!("there is no attack of that name; --list shows them");
    }
    let mut report = Report { seed: options.seed, quick: options.quick, lines: Vec::new() };
    // Checks of one kind of installation share it: they do not wear it out.
    let mut shared: Option<World> = None;
    for attack in chosen {
        let began = Instant::now();
        let outcome = match attack.kind {
            Kind::Check => check(options, attack, &mut shared).await,
            Kind::Load | Kind::Killed => {
                shared = None;
                load(options, attack).await
            }
        }
        .unwrap_or_else(|error| Outcome {
            violations: vec![format!("the attack could not be made: {error:#}")],
            ..Outcome::default()
        });
        let line = Line {
            name: attack.name,
            what: attack.what,
            is_load: attack.kind != Kind::Check,
            measured: outcome.measured,
            violations: outcome.violations,
            broken_off: outcome.broken_off,
            took_s: began.elapsed().as_secs_f64(),
        };
        tell(&line);
        report.lines.push(line);
    }
    Ok(report)
}

fn is_chosen(attack: &Attack, options: &Options) -> bool {
    match options.only.is_empty() {
        true => attack.quick || !options.quick,
        false => options.only.iter().any(|name| attack.name.starts_with(name.as_str())),
    }
}

/// How an attack went.
#[derive(Default)]
struct Outcome {
    measured: Measured,
    violations: Vec<String>,
    /// Nothing but the numbers counts.
    broken_off: bool,
}

async fn check(options: &Options, attack: &Attack, shared: &mut Option<World>) -> Result<Outcome> {
    let kept = shared.take().filter(|world| world.stage.setup == attack.setup);
    let mut world = match kept {
        Some(world) => world,
        None => World::start(options, attack.setup).await?,
    };
    let mut violations = match attacker(options, attack, &world.stage).await? {
        Made::Whole(violations) => violations,
        // There are no numbers: nobody knows whether the door held.
        Made::BrokenOff => {
            vec![format!("broken off after {} s, and nothing was seen", options.longest.as_secs())]
        }
    };
    let measured = Measured { peak: world.peak(), capped: world.was_capped(), ..Measured::default() };
    violations.extend(judge(&measured, options));
    violations.extend(world.panics());
    if let Err(why) = world.ready().await {
        violations.push(why);
    } else {
        *shared = Some(world);
    }
    Ok(Outcome { measured, violations, broken_off: false })
}

async fn load(options: &Options, attack: &Attack) -> Result<Outcome> {
    let mut world = World::start(options, attack.setup).await?;
    let probe = Probe::new(&world.stage, options.patience)?;
    // The first requests of a process are slow.
    for _ in 0..2 {
        probe.renders(options.turn).await.map_err(|why| anyhow::anyhow!("before the attack: {why}"))?;
    }
    let quiet = watched(&probe, tokio::time::sleep(options.quiet)).await;
    if let Some(why) = quiet.0.first_failure {
        bail!("before the attack: {why}");
    }
    let attacked = async {
        let deed = async {
            let made = attacker(options, attack, &world.stage).await;
            made.unwrap_or_else(|error| Made::Whole(vec![format!("the attacker broke off: {error:#}")]))
        };
        // What a request set off may go on after its answer.
        tokio::join!(deed, tokio::time::sleep(options.under)).0
    };
    let under = watched(&probe, attacked).await;
    // One that is broken off did what it could; the numbers say what that was.
    let (mut violations, broken_off) = match under.2 {
        Made::Whole(violations) => (violations, false),
        Made::BrokenOff => (Vec::new(), true),
    };
    let stored = under.0.task.clone().or(quiet.0.task.clone());
    let after = aftermath(options, attack, &mut world, &probe, stored).await;
    // The memory after each restart counts as well.
    let measured = Measured {
        quiet: quiet.0.spread(),
        under: under.0.spread(),
        failed: under.0.failed,
        first_failure: under.0.first_failure.clone(),
        live: under.1.spread(),
        live_failed: under.1.failed,
        peak: world.peak(),
        capped: world.was_capped(),
    };
    violations.extend(judge(&measured, options));
    violations.extend(after);
    violations.extend(world.panics());
    Ok(Outcome { measured, violations, broken_off })
}

/// What the second tenant and `/live` see while something happens, and what that returns.
async fn watched<T>(
    probe: &Probe,
    something: impl Future<Output = T>,
) -> (crate::probe::Seen, crate::probe::Seen, T) {
    let stop = CancellationToken::new();
    let (tenant, tenant_stop) = (probe.clone(), stop.clone());
    let tenant = tokio::spawn(async move { tenant.tenant(&tenant_stop).await });
    let (live, live_stop) = (probe.clone(), stop.clone());
    let live = tokio::spawn(async move { live.live(&live_stop).await });
    let returned = something.await;
    stop.cancel();
    (tenant.await.unwrap_or_default(), live.await.unwrap_or_default(), returned)
}

/// The server ends when it is asked to, starts again with what it has stored, and renders.
async fn aftermath(
    options: &Options,
    attack: &Attack,
    world: &mut World,
    probe: &Probe,
    stored: Option<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    if attack.kind == Kind::Killed {
        wrong.extend(killed(options, attack, world, probe).await);
    }
    // In the short form only those start again of which something is stored that is computed on.
    let computed = ["graph", "descriptions"].iter().any(|name| attack.name.starts_with(name));
    let again = !options.quick || attack.kind == Kind::Killed || computed;
    if !again {
        wrong.extend(still_renders(options, world, probe, "after the attack").await);
    }
    if let Err(why) = world.stop().await {
        wrong.push(why);
    }
    if !again {
        return wrong;
    }
    if let Err(why) = world.start_again().await {
        wrong.push(format!("after a restart: {why}"));
        world.kill().await;
        return wrong;
    }
    // Time to take up again what is stored.
    let again = watched(probe, tokio::time::sleep(options.quiet)).await;
    if let Some(why) = again.0.first_failure.or(again.1.first_failure) {
        wrong.push(format!("after a restart: {why}"));
    }
    if let Some(task) = stored
        && let Err(why) = probe.get(&task).await
    {
        wrong.push(format!("after a restart a stored task cannot be read: {why}"));
    }
    wrong.extend(still_renders(options, world, probe, "after a restart").await);
    if let Err(why) = world.stop().await {
        wrong.push(format!("after a restart: {why}"));
    }
    wrong
}

/// Whether the second tenant's task is rendered once the attacker's are out of the way. Those may keep a ComfyUI busy for
/// as long as its GPU needs: that is no harm, it is a queue.
async fn still_renders(options: &Options, world: &World, probe: &Probe, when: &str) -> Vec<String> {
    let cancelled = probe.cancel_all(&world.stage.keys.mallory).await;
    let rendered = probe.renders(options.turn).await;
    [cancelled, rendered].into_iter().filter_map(Result::err).map(|why| format!("{when}: {why}")).collect()
}
