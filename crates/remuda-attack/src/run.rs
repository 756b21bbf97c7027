//! One attack after the other.

use crate::catalogue::{Attack, CATALOGUE, Kind};
use crate::judge::{Measured, judge};
use crate::options::Options;
use crate::probe::Probe;
use crate::report::{Line, Report};
use crate::world::World;
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// With the lowest priority, and with as many connections as the machine allows.
const NICED: &str = r#"ulimit -n "$(ulimit -Hn)"; exec nice -n 19 "$@""#;

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
        let (measured, violations) = match attack.kind {
            Kind::Check => check(options, attack, &mut shared).await,
            Kind::Load | Kind::Killed => {
                shared = None;
                load(options, attack).await
            }
        }
        .unwrap_or_else(|error| {
            (Measured::default(), vec![format!("the attack could not be made: {error:#}")])
        });
        let line = Line {
            name: attack.name,
            what: attack.what,
            is_load: attack.kind != Kind::Check,
            measured,
            violations,
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

type Outcome = (Measured, Vec<String>);

async fn check(options: &Options, attack: &Attack, shared: &mut Option<World>) -> Result<Outcome> {
    let kept = shared.take().filter(|world| world.stage.setup == attack.setup);
    let mut world = match kept {
        Some(world) => world,
        None => World::start(options, attack.setup).await?,
    };
    let mut violations = attacker(options, attack, &world).await?;
    let measured = Measured { peak: world.peak(), capped: world.was_capped(), ..Measured::default() };
    violations.extend(judge(&measured, options));
    violations.extend(world.panics());
    if let Err(why) = world.ready().await {
        violations.push(why);
    } else {
        *shared = Some(world);
    }
    Ok((measured, violations))
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
    let mut violations = Vec::new();
    let attacked = async {
        let deed = async {
            let made = attacker(options, attack, &world).await;
            made.unwrap_or_else(|error| vec![format!("the attacker broke off: {error:#}")])
        };
        // What a request set off may go on after its answer.
        tokio::join!(deed, tokio::time::sleep(options.under)).0
    };
    let mut under = watched(&probe, attacked).await;
    violations.append(&mut under.2);
    let stored = under.0.task.clone().or(quiet.0.task.clone());
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
    violations.extend(aftermath(options, attack, &mut world, &probe, stored).await);
    violations.extend(world.panics());
    Ok((measured, violations))
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
        for _ in 0..2 {
            world.kill().await;
            if let Err(why) = world.start_again().await {
                wrong.push(format!("after kill -9: {why}"));
            }
            // Time to take the task up again.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    // In the short form only those start again of which something is stored that is computed on.
    let computed = ["graph", "descriptions"].iter().any(|name| attack.name.starts_with(name));
    let again = !options.quick || attack.kind == Kind::Killed || computed;
    if !again {
        probe.cancel_all(&world.stage.keys.mallory).await;
        if let Err(why) = probe.renders(options.turn).await {
            wrong.push(format!("after the attack: {why}"));
        }
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
    // The attacker's renders may keep a ComfyUI busy for as long as its GPU needs: that is no harm, it is a queue.
    probe.cancel_all(&world.stage.keys.mallory).await;
    if let Err(why) = probe.renders(options.turn).await {
        wrong.push(format!("after a restart: {why}"));
    }
    if let Err(why) = world.stop().await {
        wrong.push(format!("after a restart: {why}"));
    }
    wrong
}

/// Runs the attacker with the lowest priority, and returns what it achieved.
async fn attacker(options: &Options, attack: &Attack, world: &World) -> Result<Vec<String>> {
    let file = tempfile::NamedTempFile::new()?;
    world.stage.write(file.path())?;
    let mut command = Command::new("sh");
    command.args(["-c", NICED, "sh"]).arg(&options.attacker).arg("--attacker").arg(attack.name);
    command.arg("--stage").arg(file.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(options.longest, command.output()).await;
    // One that is broken off did what it could; the numbers say what that was.
    let Ok(output) = output else { return Ok(Vec::new()) };
    let output = output.context("cannot start the attacker")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .with_context(|| format!("the attacker failed: {}", String::from_utf8_lossy(&output.stderr)))
}
