//! A run in which all is well, and what each rule says when one thing of it is changed.

use super::*;
use crate::api::{AttemptView, FileView, ResultView};
use crate::drive::Cancel;
use crate::plan::{Fault, FleetFault, Job, NetFault, Work};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

const TASK: &str = "0190b6c1-0000-7000-8000-000000000001";
const SIM: &str = "http://127.0.0.1:1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn attempt(n: i64, outcome: &str) -> AttemptView {
    AttemptView {
        n,
        worker: Some("w".to_owned()),
        prompt_id: Some(format!("p{n}")),
        outcome: Some(outcome.to_owned()),
        error_class: None,
        started_at: at(n * 100),
        ended_at: Some(at(n * 100 + 50)),
    }
}

fn events(kinds: &[&str]) -> Vec<EventView> {
    let event = |(place, kind): (usize, &&str)| EventView {
        n: place as i64 + 1,
        kind: (*kind).to_owned(),
        data: Value::Null,
    };
    kinds.iter().enumerate().map(event).collect()
}

/// One completed task with one file, executed once.
fn fine() -> Evidence {
    let mut job = Job::plan(1, 1);
    (job.work, job.cancel_after) = (Work::Picture, None);
    let story = Story {
        job: job.clone(),
        ids: [TASK.to_owned()].into(),
        refusals: Vec::new(),
        cancel: Cancel::NotAsked,
        live: Some(events(&["submitted", "claimed", "completed"])),
        end: Some("completed".to_owned()),
    };
    let file = FileView { url: String::new(), size: 3, sha256: Some("abc".to_owned()) };
    let view = TaskView {
        id: TASK.to_owned(),
        status: "completed".to_owned(),
        error_class: None,
        result: Some(ResultView { files: vec![file] }),
        attempts: vec![attempt(1, "completed")],
    };
    let seen = Seen {
        story,
        view: Some(view),
        events: events(&["submitted", "claimed", "completed"]),
        outputs: vec![Ok(Fetched { size: 3, sha256: "abc".to_owned(), is_its_own: true })],
    };
    let stored = Stored { path: format!("outputs/{TASK}/1-1/000-a.png"), size: 3, sha256: "abc".to_owned() };
    Evidence {
        tasks: vec![seen],
        listed: [TASK.to_owned()].into(),
        workers: [("w".to_owned(), SIM.to_owned())].into(),
        counts: Counts { by_prompt: [("p1".to_owned(), 1)].into(), by_graph: [(job.digest(TASK), 1)].into() },
        stored: vec![stored],
        ..Evidence::default()
    }
}

/// The same, executed once more under a second attempt, after the first ended so.
fn twice(outcome: &str) -> Evidence {
    let mut evidence = fine();
    let seen = &mut evidence.tasks[0];
    let between = if outcome == "failed" { "retry_scheduled" } else { outcome };
    let told = events(&["submitted", "claimed", between, "claimed", "completed"]);
    (seen.events, seen.story.live) = (told.clone(), Some(told));
    seen.view.as_mut().unwrap().attempts = vec![attempt(1, outcome), attempt(2, "completed")];
    evidence.counts.by_prompt.insert("p2".to_owned(), 1);
    *evidence.counts.by_graph.values_mut().next().unwrap() += 1;
    evidence
}

fn view(evidence: &mut Evidence) -> &mut TaskView {
    evidence.tasks[0].view.as_mut().unwrap()
}

fn found(evidence: &Evidence) -> Vec<String> {
    check(evidence).violations.iter().map(ToString::to_string).collect()
}

/// Changes one thing, and expects this to be said, and nothing else.
#[track_caller]
fn planted(expected: &str, plant: impl FnOnce(&mut Evidence)) {
    let mut evidence = fine();
    plant(&mut evidence);
    said(&evidence, expected);
}

#[track_caller]
fn said(evidence: &Evidence, expected: &str) {
    let found = found(evidence);
    assert!(found.len() == 1 && found[0].contains(expected), "`{expected}` in {found:?}");
}

#[test]
fn nothing_is_said_when_all_is_well() {
    let verdict = check(&fine());
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
    assert_eq!((verdict.completed, verdict.lost, verdict.duplicates), (1, 0, 0));
}

#[test]
fn lost_and_doubled_tasks_are_found() {
    planted("was never taken in", |evidence| {
        (evidence.tasks[0].view, evidence.tasks[0].story.ids) = (None, BTreeSet::new());
        (evidence.listed, evidence.stored, evidence.counts) = Default::default();
    });
    planted("did not end: it is running", |evidence| {
        view(evidence).status = "running".to_owned();
        evidence.tasks[0].story.end = None;
    });
    planted("made several tasks", |evidence| {
        evidence.tasks[0].story.ids.insert("other".to_owned());
    });
    planted("nobody has submitted it", |evidence| {
        evidence.listed.insert("ghost".to_owned());
    });
    planted("submission was answered with 422", |evidence| {
        evidence.tasks[0].story.refusals.push("submission was answered with 422".to_owned());
    });
    planted("server-1 ended by itself", |evidence| {
        evidence.surprises.push("server-1 ended by itself".to_owned());
    });
}

#[test]
fn ends_that_do_not_fit_are_found() {
    planted("was failed for its client and is completed now", |evidence| {
        evidence.tasks[0].story.end = Some("failed".to_owned());
    });
    planted("its cancellation was confirmed and it is completed", |evidence| {
        evidence.tasks[0].story.cancel = Cancel::Promised;
    });
    planted("has 1 outputs instead of 2", |evidence| renders(evidence, Work::Pair));
    planted("cannot be read: 404", |evidence| evidence.tasks[0].outputs = vec![Err("404".to_owned())]);
    planted("is of another task", |evidence| {
        evidence.tasks[0].outputs[0].as_mut().unwrap().is_its_own = false;
    });
    planted("output 0 should be 3 bytes", |evidence| {
        evidence.tasks[0].outputs[0].as_mut().unwrap().sha256 = "abd".to_owned();
    });
    for class in ["execution", "out_of_memory", "crash", "timeout", "delivery"] {
        planted("which nothing here explains", |evidence| {
            fail(evidence, class);
        });
    }
}

/// The task has another graph, which was executed once.
fn renders(evidence: &mut Evidence, work: Work) {
    let job = &mut evidence.tasks[0].story.job;
    job.work = work;
    evidence.counts.by_graph = [(job.digest(TASK), 1)].into();
}

fn fail(evidence: &mut Evidence, class: &str) {
    let seen = &mut evidence.tasks[0];
    let told = events(&["submitted", "claimed", "failed"]);
    (seen.events, seen.story.live, seen.story.end) = (told.clone(), Some(told), Some("failed".to_owned()));
    evidence.stored.clear();
    let view = view(evidence);
    (view.status, view.error_class) = ("failed".to_owned(), Some(class.to_owned()));
    (view.result, view.attempts) = (None, vec![attempt(1, "failed")]);
}

#[test]
fn a_planned_failure_is_none() {
    let mut evidence = fine();
    renders(&mut evidence, Work::Broken);
    fail(&mut evidence, "execution");
    assert_eq!(found(&evidence), Vec::<String>::new());
}

#[test]
fn gaps_and_second_ends_in_events_are_found() {
    let with = |kinds: &[&str], expected: &str| {
        planted(expected, |evidence| evidence.tasks[0].events = events(kinds));
    };
    with(&["submitted", "claimed", "completed", "completed"], "`completed` in place 3 of 4");
    with(&["submitted", "claimed", "adopted"], "they stop with `adopted`");
    with(&["submitted", "adopted", "claimed", "completed"], "`adopted` in place 2");
    with(&["submitted", "claimed", "failed"], "the end is `failed` and the state completed");
    planted("number 3 is in place 2", |evidence| {
        drop(evidence.tasks[0].story.live.as_mut().unwrap().remove(1))
    });
    planted("attempt 1 has not", |evidence| view(evidence).attempts[0].ended_at = None);
    planted("was claimed 1 times and has the attempts [2]", |evidence| view(evidence).attempts[0].n = 2);
}

#[test]
fn executions_without_a_reason_are_found() {
    said(&twice("lost"), "after its attempt 1 (lost) on w, whose ComfyUI was not lost");
    said(&twice("returned"), "after its attempt 1 (returned)");
    assert_eq!(check(&twice("lost")).duplicates, 1);
    let retried = check(&twice("failed"));
    assert!(retried.violations.is_empty() && retried.retries == 1, "{retried:?}");
    planted("completed what nobody executed", |evidence| evidence.counts = Counts::default());
    planted("executed 2 times, its attempts account for 1", |evidence| {
        *evidence.counts.by_graph.values_mut().next().unwrap() += 1;
    });
    planted("belongs to no attempt", |evidence| {
        evidence.counts.by_prompt.insert("x".to_owned(), 1);
    });
    planted("is left in the queue", |evidence| evidence.queued.push((SIM.to_owned(), "p1".to_owned())));
    planted("was executed again after its attempt 1 (completed)", |evidence| {
        evidence.counts.by_prompt.insert("p1".to_owned(), 2);
        *evidence.counts.by_graph.values_mut().next().unwrap() += 1;
    });
}

#[test]
fn a_lost_comfyui_is_a_reason_only_for_what_it_had() {
    let mut returned = twice("returned");
    returned.losses.push(Loss { sim: SIM.to_owned(), from: at(120), to: at(121) });
    assert_eq!(check(&returned).repeats[0].reason, Reason::ComfyUiLost);
    let with = |sim: &str, from, to| {
        let mut evidence = twice("lost");
        evidence.losses.push(Loss { sim: sim.to_owned(), from: at(from), to: at(to) });
        check(&evidence)
    };
    let excused = with(SIM, 120, 121);
    assert!(excused.violations.is_empty(), "{:?}", excused.violations);
    assert_eq!(excused.repeats[0].reason, Reason::ComfyUiLost);
    assert_eq!(with(SIM, 90, 99).duplicates, 1, "it was lost before the attempt began");
    assert_eq!(with(SIM, 151, 160).duplicates, 1, "it was lost after the attempt had ended");
    assert_eq!(with("http://127.0.0.1:2", 120, 121).duplicates, 1, "another one was lost");
}

#[test]
fn a_request_is_late_only_from_a_process_that_was_stopped_and_only_after_an_adoption() {
    let with = |kinds: &[&str], fault: FleetFault, from, to| {
        let mut evidence = fine();
        evidence.counts.by_prompt.insert("p1".to_owned(), 2);
        *evidence.counts.by_graph.values_mut().next().unwrap() += 1;
        let told = events(kinds);
        (evidence.tasks[0].events, evidence.tasks[0].story.live) = (told.clone(), Some(told));
        evidence.faults.push(Done {
            fault: Fault::Server(fault),
            on: "server-1".to_owned(),
            from: at(from),
            to: at(to),
        });
        check(&evidence).repeats.first().map(|repeat| repeat.reason)
    };
    let stop = || FleetFault::Stop { time: Duration::from_secs(5) };
    let adopted = ["submitted", "claimed", "adopted", "completed"];
    assert_eq!(with(&adopted, stop(), 110, 120), Some(Reason::LateRequest));
    assert_eq!(with(&["submitted", "claimed", "completed"], stop(), 110, 120), None, "nobody adopted it");
    assert_eq!(with(&adopted, stop(), 10, 20), None, "it was stopped long before");
    let kill = FleetFault::Kill { down: Duration::ZERO };
    assert_eq!(with(&adopted, kill, 110, 120), None, "what was killed sends nothing any more");
}

#[test]
fn only_a_sidecar_can_be_away_and_only_for_a_lease_on_end() {
    let with = |beside: &str, faults: &[(&str, i64, i64)]| {
        let mut evidence = twice("lost");
        view(&mut evidence).attempts[0].error_class = Some("lost".to_owned());
        evidence.beside.insert(beside.to_owned(), "server-1".to_owned());
        evidence.lease = Duration::from_secs(10);
        evidence.faults = faults
            .iter()
            .map(|&(on, from, to)| {
                let kill = FleetFault::Kill { down: Duration::ZERO };
                let fault = match on.split_once(' ') {
                    Some(_) => Fault::Net(NetFault::Cut),
                    None if on == "w" => Fault::Sidecar(kill),
                    None => Fault::Server(kill),
                };
                Done { fault, on: on.to_owned(), from: at(from), to: at(to) }
            })
            .collect();
        check(&evidence).repeats.first().map(|repeat| repeat.reason)
    };
    assert_eq!(with("w", &[("w", 110, 120)]), Some(Reason::RunnerAway));
    assert_eq!(with("w", &[("w", 110, 119)]), None, "it was back in time");
    assert_eq!(with("w", &[("w", 110, 115), ("server-1", 116, 121)]), Some(Reason::RunnerAway));
    assert_eq!(
        with("w", &[("w", 110, 115), ("server-1", 118, 123)]),
        None,
        "it could renew its lease in between"
    );
    assert_eq!(with("w", &[("w to its server", 110, 120)]), Some(Reason::RunnerAway));
    assert_eq!(with("w", &[("server-2", 110, 120)]), None, "not its server");
    assert_eq!(with("w", &[("w", 160, 180)]), None, "the attempt was over");
    assert_eq!(with("x", &[("w", 110, 120)]), None, "a server's worker is adopted");
}

#[test]
fn files_without_a_record_and_records_without_a_file_are_found() {
    planted("belongs to no record", |evidence| {
        let path = format!("outputs/{TASK}/1-2/000-a.png");
        evidence.stored.push(Stored { path, size: 3, sha256: "abc".to_owned() });
    });
    planted("belongs to no record", |evidence| {
        evidence.stored.push(Stored { path: "tmp/x".to_owned(), size: 0, sha256: String::new() });
    });
    planted("1 of its files are not in the file store", |evidence| evidence.stored.clear());
}
