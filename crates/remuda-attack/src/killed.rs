//! Kills the server in the middle of its own work on a hostile graph, until one task has done it twice.
//!
//! The server marks such work in a file of its data directory. It is frozen as soon as a mark is seen, and killed only if
//! the mark is still there: so it is known of each death whose graph it was. A task with two deaths must be set aside,
//! and no other task may be.

use crate::catalogue::Attack;
use crate::deed::attacker;
use crate::options::Options;
use crate::probe::Probe;
use crate::world::World;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The file with the marks, and the length of a mark in it.
const MARKS: &str = "marks";
const MARK: usize = 128;
/// How many deaths of one task are enough.
const ENOUGH: usize = 2;
/// How often the server is killed at most: the attacker has four tasks, so that one of them must have been met twice.
const KILLS: usize = 5;
/// Between two looks at the file.
const LOOK: Duration = Duration::from_millis(1);

/// Work on the graph of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    task: String,
    /// When it began, as it is written.
    at: Vec<u8>,
}

/// What is marked in the file.
fn marks(bytes: &[u8]) -> Vec<Mark> {
    let records = bytes.chunks(MARK).filter(|record| record.len() >= 26 && record[0] == 1);
    let mark = |record: &[u8]| {
        let hex: String = record[2..18].iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Mark { task: parts.join("-"), at: record[18..26].to_vec() }
    };
    records.map(mark).collect()
}

fn marks_in(data: &Path) -> Vec<Mark> {
    marks(&std::fs::read(data.join(MARKS)).unwrap_or_default())
}

/// Kills the server while it works on a graph; of which tasks. Marks of a process before do not count.
async fn die(world: &mut World, before: &[Mark], within: Duration) -> Result<Vec<Mark>, String> {
    let deadline = Instant::now() + within;
    let data = world.stage.data.clone();
    let fresh =
        || -> Vec<Mark> { marks_in(&data).into_iter().filter(|mark| !before.contains(mark)).collect() };
    while Instant::now() < deadline {
        if let Ok(Some(status)) = world.server.exited() {
            return Err(format!("the server ended by itself ({status})"));
        }
        if !fresh().is_empty() {
            world.server.stop().map_err(|error| error.to_string())?;
            let inside = fresh();
            if !inside.is_empty() {
                world.kill().await;
                // What the next process will read.
                return Ok(inside);
            }
            world.server.cont().map_err(|error| error.to_string())?;
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(format!("no work on a graph was seen within {} s", within.as_secs()))
}

/// Makes the attack again and kills the server in the middle of it, again and again; what is wrong afterwards.
pub(crate) async fn killed(
    options: &Options,
    attack: &Attack,
    world: &mut World,
    probe: &Probe,
) -> Vec<String> {
    let stage = world.stage.clone();
    // What is rendered already is not read again.
    if let Err(why) = probe.cancel_all(&stage.keys.mallory).await {
        return vec![why];
    }
    let mut deaths: BTreeMap<String, usize> = BTreeMap::new();
    let mut before = Vec::new();
    for kill in 0..KILLS {
        let died = match kill {
            // The attacker's requests may die with the server: that is no fault.
            0 => tokio::join!(die(world, &before, options.turn), attacker(options, attack, &stage)).0,
            _ => die(world, &before, options.turn).await,
        };
        let inside = match died {
            Ok(inside) => inside,
            Err(why) => return vec![format!("kill {} of a server at work: {why}", kill + 1)],
        };
        for mark in &inside {
            *deaths.entry(mark.task.clone()).or_default() += 1;
        }
        before.extend(inside);
        let enough = deaths.values().any(|count| *count >= ENOUGH);
        if let Err(why) = world.launch_again() {
            return vec![why];
        }
        if enough {
            break;
        }
    }
    if let Err(why) = world.ready().await {
        return vec![format!("after kill -9 in the middle of a graph: {why}")];
    }
    let harmful: Vec<&String> =
        deaths.iter().filter(|(_, count)| **count >= ENOUGH).map(|(task, _)| task).collect();
    if harmful.is_empty() {
        return vec![format!("the attack showed nothing: no task was met twice ({deaths:?})")];
    }
    let mut wrong = Vec::new();
    for task in &harmful {
        if let Err(why) = probe.is_set_aside(&stage.keys.mallory, task, options.turn).await {
            wrong.push(why);
        }
    }
    for key in [&stage.keys.mallory, &stage.keys.bob] {
        match probe.set_aside(key).await {
            Ok(tasks) => {
                let innocent = tasks.iter().filter(|task| !harmful.contains(task));
                wrong.extend(innocent.map(|task| format!("task {task} was set aside without its fault")));
            }
            Err(why) => wrong.push(format!("the tasks that were set aside cannot be listed: {why}")),
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_are_written() {
        let mut file = vec![0; 2 * MARK];
        file[0] = 1;
        file[2..18].copy_from_slice(&[0xab; 16]);
        file[18] = 7;
        let found = marks(&file);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].task, "abababab-abab-abab-abab-abababababab");
        assert_eq!(found[0].at, [7, 0, 0, 0, 0, 0, 0, 0]);
        assert!(marks(&[]).is_empty() && marks(&[1; 20]).is_empty());
    }
}
