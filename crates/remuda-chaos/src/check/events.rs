//! The events of a task tell one story without gaps: each follows from the one before, and the last is its end.

use super::{Seen, Verdict};
use crate::api::{EventView, TaskView, is_terminal};

pub(super) fn check(seen: &Seen, view: &TaskView, verdict: &mut Verdict) {
    verdict.adoptions += seen.events.iter().filter(|event| event.kind == "adopted").count();
    if let Some(problem) = wrong(&seen.events, &view.status) {
        verdict.blame(seen, format!("its events are wrong: {problem}"));
    }
    if let Some(live) = &seen.story.live
        && let Some(problem) = wrong(live, &view.status)
    {
        verdict.blame(seen, format!("its events as they were followed are wrong: {problem}"));
    }
    let claims = seen.events.iter().filter(|event| event.kind == "claimed").count();
    let numbers: Vec<i64> = view.attempts.iter().map(|attempt| attempt.n).collect();
    if claims != numbers.len() || numbers != (1..=numbers.len() as i64).collect::<Vec<_>>() {
        verdict.blame(seen, format!("was claimed {claims} times and has the attempts {numbers:?}"));
    }
    for attempt in &view.attempts {
        if attempt.outcome.is_none() || attempt.ended_at.is_none() {
            verdict.blame(seen, format!("has ended, and its attempt {} has not", attempt.n));
        }
    }
}

fn wrong(events: &[EventView], status: &str) -> Option<String> {
    let mut running = false;
    for (place, event) in events.iter().enumerate() {
        if event.n != place as i64 + 1 {
            return Some(format!("number {} is in place {}", event.n, place + 1));
        }
        let first = place == 0;
        let last = place + 1 == events.len();
        let fits = match event.kind.as_str() {
            "submitted" => first,
            "claimed" => !first && !std::mem::replace(&mut running, true),
            "adopted" | "cancel_requested" => running,
            "returned" | "retry_scheduled" | "lost" => std::mem::replace(&mut running, false),
            // A task that waits can be cancelled, and can fail by its deadline.
            "completed" => running && last,
            "failed" | "cancelled" => !first && last,
            _ => false,
        };
        if !fits {
            return Some(format!("`{}` in place {} of {}", event.kind, place + 1, events.len()));
        }
    }
    match events.last() {
        Some(end) if end.kind == status => None,
        Some(end) if is_terminal(&end.kind) => {
            Some(format!("the end is `{}` and the state {status}", end.kind))
        }
        Some(end) => Some(format!("they stop with `{}`, and it is {status}", end.kind)),
        None => Some("there are none".to_owned()),
    }
}
