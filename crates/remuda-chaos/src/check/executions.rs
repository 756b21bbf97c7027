//! By the simulators' own count nothing is executed more often than it must be.

use super::{Evidence, Reason, Repeat, Seen, Verdict, Violation};
use crate::api::{AttemptView, TaskView};
use crate::plan::{Fault, FleetFault};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;

/// What was broken needs this long to find its way back.
const HEALING: SignedDuration = SignedDuration::from_secs(1);

pub(super) fn check(seen: &Seen, view: &TaskView, evidence: &Evidence, verdict: &mut Verdict) {
    let count = |attempt: &AttemptView| {
        let prompt = attempt.prompt_id.as_ref();
        prompt.and_then(|prompt| evidence.counts.by_prompt.get(prompt)).copied().unwrap_or(0)
    };
    let by_attempt: u64 = view.attempts.iter().map(count).sum();
    let by_graph = evidence.counts.by_graph.get(&seen.story.job.digest(&view.id)).copied().unwrap_or(0);
    if by_attempt != by_graph {
        let what = format!("its graph was executed {by_graph} times, its attempts account for {by_attempt}");
        verdict.duplicates += by_graph.saturating_sub(by_attempt) as usize;
        verdict.blame(seen, what);
    }
    let executed: Vec<&AttemptView> = view.attempts.iter().filter(|attempt| count(attempt) > 0).collect();
    for attempt in &view.attempts {
        if attempt.outcome.as_deref() == Some("completed") && count(attempt) == 0 {
            verdict.blame(seen, format!("attempt {} completed what nobody executed", attempt.n));
        }
    }
    for (place, attempt) in executed.iter().enumerate() {
        // Once for the attempt itself, if a later one was executed too.
        let for_others = usize::from(place + 1 < executed.len());
        let own = count(attempt) as usize - 1;
        for _ in 0..own {
            repeat(seen, attempt, lost(attempt, evidence).or_else(|| late(seen, attempt, evidence)), verdict);
        }
        if for_others > 0 {
            match attempt.outcome.as_deref() {
                Some("failed") => verdict.retries += 1,
                // What a restarted ComfyUI has forgotten looks as if it had never come, and is given back.
                Some("lost" | "returned") => repeat(seen, attempt, excuse(attempt, evidence), verdict),
                _ => repeat(seen, attempt, None, verdict),
            }
        }
    }
}

fn repeat(seen: &Seen, attempt: &AttemptView, reason: Option<Reason>, verdict: &mut Verdict) {
    match reason {
        Some(reason) => {
            verdict.repeats.push(Repeat { task: seen.name(), attempt: attempt.n, reason });
        }
        None => {
            verdict.duplicates += 1;
            let outcome = attempt.outcome.as_deref().unwrap_or("no outcome");
            let what = format!(
                "was executed again after its attempt {} ({outcome}) on {}, whose ComfyUI was not lost",
                attempt.n,
                attempt.worker.as_deref().unwrap_or("an unknown worker"),
            );
            verdict.blame(seen, what);
        }
    }
}

fn excuse(attempt: &AttemptView, evidence: &Evidence) -> Option<Reason> {
    lost(attempt, evidence).or_else(|| away(attempt, evidence))
}

/// Whether an attempt was under way at some moment of this time. All clocks are the same machine's.
fn met(attempt: &AttemptView, from: Timestamp, to: Timestamp) -> bool {
    from <= attempt.ended_at.unwrap_or(Timestamp::MAX) && to >= attempt.started_at
}

/// Whether its ComfyUI was lost while it was under way.
fn lost(attempt: &AttemptView, evidence: &Evidence) -> Option<Reason> {
    let sim = evidence.workers.get(attempt.worker.as_ref()?)?;
    let mut losses = evidence.losses.iter().filter(|loss| loss.sim == *sim);
    losses.any(|loss| met(attempt, loss.from, loss.to)).then_some(Reason::ComfyUiLost)
}

/// Whether the way between a sidecar and the queue was broken for at least a lease on end while it was under way. What a
/// server runs, another server adopts, so it has no such excuse.
fn away(attempt: &AttemptView, evidence: &Evidence) -> Option<Reason> {
    let worker = attempt.worker.as_ref()?;
    let server = evidence.beside.get(worker)?;
    if attempt.error_class.as_deref() != Some("lost") {
        return None;
    }
    let broken = evidence.faults.iter().filter(|done| match &done.fault {
        Fault::Sidecar(_) => done.on == *worker,
        Fault::Server(_) => done.on == *server,
        Fault::Net(_) => [worker, server].iter().any(|name| done.on.starts_with(&format!("{name} to "))),
        Fault::Store(_) => true,
        Fault::Sim(_) => false,
    });
    let slack = SignedDuration::try_from(evidence.slack).unwrap_or_default();
    // Faults are in the order in which they began; one that begins before another has healed prolongs it.
    let mut stretch: Option<(Timestamp, Timestamp)> = None;
    for done in broken.filter(|done| met(attempt, done.from, done.to)) {
        stretch = match stretch {
            Some((from, to)) if done.from.duration_since(to) <= HEALING + slack => {
                Some((from, to.max(done.to)))
            }
            _ => Some((done.from, done.to)),
        };
        if stretch.is_some_and(|(from, to)| {
            to.duration_since(from) + slack >= evidence.lease.try_into().unwrap_or_default()
        }) {
            return Some(Reason::RunnerAway);
        }
    }
    None
}

/// Whether a process was stopped while it was under way, and another one adopted it: what the first was about to send may
/// have come when it went on. Only under the same prompt id, so only for executions of the same attempt.
fn late(seen: &Seen, attempt: &AttemptView, evidence: &Evidence) -> Option<Reason> {
    let adopted = seen.events.iter().any(|event| event.kind == "adopted");
    let stopped = evidence.faults.iter().any(|done| {
        let stop = matches!(
            &done.fault,
            Fault::Server(FleetFault::Stop { .. }) | Fault::Sidecar(FleetFault::Stop { .. })
        );
        stop && met(attempt, done.from, done.to)
    });
    (adopted && stopped).then_some(Reason::LateRequest)
}

/// Prompts that simulators executed and that belong to no attempt.
pub(super) fn strangers(evidence: &Evidence, verdict: &mut Verdict) {
    let attempts =
        evidence.tasks.iter().filter_map(|seen| seen.view.as_ref()).flat_map(|view| &view.attempts);
    let known: BTreeSet<&String> = attempts.filter_map(|attempt| attempt.prompt_id.as_ref()).collect();
    for (prompt, count) in &evidence.counts.by_prompt {
        if !known.contains(prompt) {
            verdict.duplicates += *count as usize;
            let what = format!("prompt {prompt} was executed {count} times and belongs to no attempt");
            verdict.violations.push(Violation { task: None, what });
        }
    }
}
