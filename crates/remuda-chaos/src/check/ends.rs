//! Every task is one task, and ends once, in a state that can be explained, with what it left.

use super::{Evidence, Seen, Verdict};
use crate::api::TaskView;
use crate::drive::Cancel;
use crate::plan::Job;

/// How often a task may be lost before it fails (`Policy::max_losses`): the next loss is its end.
const MOST_LOSSES: usize = 3;

pub(super) fn check(seen: &Seen, evidence: &Evidence, verdict: &mut Verdict) {
    let story = &seen.story;
    for refusal in &story.refusals {
        verdict.blame(seen, refusal.clone());
    }
    if story.ids.len() > 1 {
        verdict.blame(seen, format!("one idempotency key made several tasks: {:?}", story.ids));
    }
    let Some(view) = &seen.view else {
        verdict.lost += 1;
        let what = if story.ids.is_empty() { "was never taken in" } else { "cannot be read any more" };
        return verdict.blame(seen, what);
    };
    match view.status.as_str() {
        "completed" => verdict.completed += 1,
        "failed" => verdict.failed += 1,
        "cancelled" => verdict.cancelled += 1,
        other => {
            verdict.lost += 1;
            return verdict.blame(seen, format!("did not end: it is {other}"));
        }
    }
    if let Some(end) = story.end.as_ref().filter(|end| **end != view.status) {
        verdict.blame(seen, format!("was {end} for its client and is {} now", view.status));
    }
    match (story.cancel, view.status.as_str()) {
        (Cancel::Promised, "cancelled") | (Cancel::Unknown, _) => {}
        (Cancel::Promised, other) => {
            verdict.blame(seen, format!("its cancellation was confirmed and it is {other}"))
        }
        (Cancel::TooLate | Cancel::NotAsked, "cancelled") => {
            verdict.blame(seen, "is cancelled, and nobody was told so");
        }
        (Cancel::TooLate | Cancel::NotAsked, _) => {}
    }
    match view.status.as_str() {
        "completed" => completed(seen, view, verdict),
        "failed" => failed(seen, view, evidence, verdict),
        _ => {}
    }
    if view.status != "completed" && !view.files().is_empty() {
        verdict.blame(seen, format!("is {} and has outputs", view.status));
    }
}

fn completed(seen: &Seen, view: &TaskView, verdict: &mut Verdict) {
    let job: &Job = &seen.story.job;
    if !job.can_complete() {
        return verdict.blame(seen, "ended well, though its graph cannot");
    }
    if view.files().len() != job.files() {
        let what = format!("has {} outputs instead of {}", view.files().len(), job.files());
        return verdict.blame(seen, what);
    }
    for (number, (file, output)) in view.files().iter().zip(&seen.outputs).enumerate() {
        match output {
            Err(error) => verdict.blame(seen, format!("output {number} cannot be read: {error}")),
            Ok(fetched) => {
                if fetched.size != file.size || file.sha256.as_ref() != Some(&fetched.sha256) {
                    let said = format!("{} bytes, {:?}", file.size, file.sha256);
                    let found = format!("{} bytes, {}", fetched.size, fetched.sha256);
                    verdict.blame(seen, format!("output {number} should be {said} and is {found}"));
                }
                if !fetched.is_its_own {
                    verdict.blame(seen, format!("output {number} is of another task"));
                }
            }
        }
    }
}

/// A failure needs a cause that the run planned.
fn failed(seen: &Seen, view: &TaskView, evidence: &Evidence, verdict: &mut Verdict) {
    let class = view.error_class.as_deref().unwrap_or("no class");
    verdict.set_aside += usize::from(class == "harmful");
    let lost = view.attempts.iter().filter(|attempt| attempt.outcome.as_deref() == Some("lost")).count();
    let starved = || evidence.faults.iter().any(|done| done.fault.to_string().ends_with("out_of_memory"));
    let explained = match class {
        "execution" => !seen.story.job.can_complete(),
        "out_of_memory" => starved(),
        "crash" | "connection" | "lost" => lost > MOST_LOSSES,
        _ => false,
    };
    if !explained {
        verdict.blame(seen, format!("failed ({class}) after {lost} losses, which nothing here explains"));
    }
}
