//! The tracker against a scripted server, with time as a parameter.

use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::history::HistoryEntry;
use crate::queue::Whereabouts;
use crate::ws::decode_text;

struct World {
    tracker: Tracker,
    now: Instant,
    mailbox: Arc<Mailbox>,
}

fn id() -> PromptId {
    PromptId::from("p")
}

fn ended(last: &str) -> HistoryEntry {
    let entry = json!({
        "prompt": [0, "p", {}, {}, []],
        "outputs": {"9": {"images": [{"filename": "a.png", "subfolder": "s", "type": "output"}]}},
        "status": {"status_str": "success", "completed": last == "execution_success", "messages": [
            ["execution_start", {"prompt_id": "p", "timestamp": 1000}],
            ["execution_cached", {"prompt_id": "p", "nodes": ["9"], "timestamp": 1001}],
            [last, {"prompt_id": "p", "timestamp": 1500}]]}});
    serde_json::from_value(entry).expect("an entry")
}

impl World {
    fn new() -> World {
        let options = SessionOptions { check_cached_files: false, ..SessionOptions::default() };
        let tracker = Tracker::new(options, ClientId::random());
        World { tracker, now: Instant::now(), mailbox: Arc::new(Mailbox::new(64)) }
    }

    /// A world where the socket is up and the prompt was accepted.
    fn submitted() -> World {
        let mut world = World::new();
        world.tracker.link_up(world.now);
        let owner = Some(world.tracker.client_id.clone());
        world.tracker.register(world.now, id(), Arc::clone(&world.mailbox), None, owner);
        world.tracker.accepted(world.now, &id(), &id());
        world
    }

    fn later(&mut self, milliseconds: u64) -> Vec<Ask> {
        self.now += Duration::from_millis(milliseconds);
        self.tracker.tick(self.now)
    }

    fn frame(&mut self, kind: &str, data: serde_json::Value) -> Vec<Ask> {
        let frame = json!({"type": kind, "data": data}).to_string();
        self.tracker.message(self.now, decode_text(&frame).expect("a frame"), None)
    }

    fn survey(&mut self, running: &[&str], pending: &[&str]) {
        let ids = |ids: &[&str]| ids.iter().map(|id| PromptId::from(*id)).collect();
        self.tracker
            .surveyed(self.now, &Snapshot { clock_ms: 0, running: ids(running), pending: ids(pending) });
    }

    fn outcome(&self) -> Option<Outcome> {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(event)) = self.mailbox.poll(&mut context) {
            if let Event::Finished(outcome) = event {
                return Some(outcome);
            }
        }
        None
    }
}

#[test]
fn the_last_frame_leads_straight_to_the_history() {
    let mut world = World::submitted();
    world.frame("execution_start", json!({"prompt_id": "p", "timestamp": 1}));
    let asks = world.frame("executing", json!({"node": null, "prompt_id": "p"}));
    assert_eq!(asks, [Ask::History(id())]);
    let entry = ended("execution_success");
    assert!(world.tracker.history(world.now, &id(), Some(entry)).is_empty());
    assert!(matches!(world.outcome(), Some(Outcome::Succeeded(success)) if success.duration_ms == Some(500)));
}

#[test]
fn an_announced_end_without_its_last_frame_is_looked_up_after_a_moment() {
    let mut world = World::submitted();
    world.frame("execution_success", json!({"prompt_id": "p", "timestamp": 1}));
    assert!(world.later(10).is_empty());
    assert_eq!(world.later(25), [Ask::History(id())]);
    // Not there yet: the server writes the entry after it says success.
    world.tracker.history(world.now, &id(), None);
    assert!(world.outcome().is_none());
    assert_eq!(world.later(40), [Ask::History(id())]);
}

#[test]
fn a_blocked_branch_does_not_end_the_watch() {
    let mut world = World::submitted();
    world.frame(
        "execution_error",
        json!({"prompt_id": "p", "exception_type": "ExecutionBlocked", "node_id": "3"}),
    );
    assert!(world.later(1_000).is_empty());
    assert!(world.outcome().is_none());
}

#[test]
fn a_mute_socket_delays_and_never_hangs() {
    let mut world = World::submitted();
    assert!(world.later(4_000).is_empty());
    assert_eq!(world.later(1_100), [Ask::Survey]);
    world.survey(&[], &[]);
    assert_eq!(world.later(1), [Ask::Look(id())]);
    let place = Whereabouts::Ended(Box::new(ended("execution_success")));
    let asks = world.tracker.looked(world.now, &id(), place);
    // It ended without a word although the socket is up: the server forgot our name.
    assert_eq!(asks, [Ask::FreshClientId]);
    assert!(matches!(world.outcome(), Some(Outcome::Succeeded(_))));
}

#[test]
fn a_lost_socket_is_answered_by_looking_every_second() {
    let mut world = World::submitted();
    world.tracker.link_down(world.now);
    assert_eq!(world.later(0), [Ask::Survey]);
    world.survey(&["p"], &[]);
    assert!(world.later(900).is_empty());
    assert_eq!(world.later(200), [Ask::Survey]);
}

/// Makes the prompt absent in two looks, on a connection that answers pings.
fn vanish(world: &mut World) -> Vec<Ask> {
    world.tracker.looked(world.now, &id(), Whereabouts::Absent);
    assert!(world.outcome().is_none(), "one look is not enough");
    assert!(world.later(310).contains(&Ask::Look(id())));
    let asks = world.tracker.looked(world.now, &id(), Whereabouts::Absent);
    if asks != [Ask::Ping] {
        return asks;
    }
    assert!(world.outcome().is_none(), "a connection that may be dead proves nothing");
    world.later(5);
    world.tracker.heard(world.now);
    assert!(world.later(1).contains(&Ask::Look(id())));
    world.tracker.looked(world.now, &id(), Whereabouts::Absent)
}

#[test]
fn gone_behind_a_half_open_connection_is_not_taken_for_deleted() {
    let mut world = World::submitted();
    world.tracker.looked(world.now, &id(), Whereabouts::Absent);
    for _ in 0..20 {
        for ask in world.later(1_000) {
            match ask {
                Ask::Look(_) => {
                    assert_eq!(world.tracker.looked(world.now, &id(), Whereabouts::Absent), [Ask::Ping])
                }
                Ask::Survey => world.survey(&[], &[]),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(world.outcome().is_none());
    // The silence is noticed, and another process answers under the address.
    world.tracker.link_down(world.now);
    world.tracker.link_up(world.now);
    assert!(world.later(1_100).contains(&Ask::Look(id())));
    assert_eq!(world.tracker.looked(world.now, &id(), Whereabouts::Absent), [Ask::SameServer(id())]);
}

#[test]
fn nothing_is_concluded_while_the_submission_is_on_its_way() {
    let mut world = World::new();
    world.tracker.link_up(world.now);
    let owner = Some(world.tracker.client_id.clone());
    world.tracker.register(world.now, id(), Arc::clone(&world.mailbox), None, owner);
    for _ in 0..60 {
        for ask in world.later(1_000) {
            assert_eq!(ask, Ask::Survey, "the server need not know it yet");
            world.survey(&[], &[]);
        }
    }
    world.tracker.accepted(world.now, &id(), &id());
    assert!(world.outcome().is_none());
    world.frame("executing", json!({"node": null, "prompt_id": "p"}));
    world.tracker.history(world.now, &id(), Some(ended("execution_success")));
    assert!(matches!(world.outcome(), Some(Outcome::Succeeded(_))));
}

#[test]
fn a_question_that_always_fails_ends_the_watch_although_surveys_work() {
    let mut world = World::submitted();
    for second in 0..200 {
        for ask in world.later(1_000) {
            match ask {
                Ask::Survey => world.survey(&[], &[]),
                Ask::Look(prompt) | Ask::History(prompt) => world.tracker.failed(world.now, Some(&prompt)),
                other => panic!("{other:?}"),
            }
        }
        if let Some(outcome) = world.outcome() {
            assert!(matches!(outcome, Outcome::GaveUp(GaveUp::Unreachable { .. })));
            assert!((60..=75).contains(&second), "after {second} s");
            return;
        }
    }
    panic!("hangs");
}

#[test]
fn a_worker_that_dies_after_announcing_the_end_is_noticed() {
    let mut world = World::submitted();
    world.frame("execution_success", json!({"prompt_id": "p", "timestamp": 1}));
    for _ in 0..60 {
        for ask in world.later(60_000) {
            match ask {
                Ask::Survey => world.survey(&["p"], &[]),
                Ask::Look(prompt) | Ask::History(prompt) => {
                    world.tracker.looked(world.now, &prompt, Whereabouts::Running);
                }
                other => panic!("{other:?}"),
            }
        }
        if let Some(outcome) = world.outcome() {
            assert!(matches!(outcome, Outcome::Lost(Lost::Stalled)));
            return;
        }
    }
    panic!("hangs");
}

#[test]
fn what_the_new_process_says_does_not_make_it_the_old_one() {
    let mut world = World::submitted();
    world.frame("execution_start", json!({"prompt_id": "p", "timestamp": 5_000}));
    world.tracker.link_down(world.now);
    world.tracker.link_up(world.now);
    // Another prompt runs on the new process, later by its clock.
    world.tracker.register(world.now, PromptId::from("q"), Arc::new(Mailbox::new(8)), None, None);
    world.frame("execution_start", json!({"prompt_id": "q", "timestamp": 9_000}));
    assert_eq!(vanish(&mut world), [Ask::SameServer(id())]);
    world.tracker.remembers(&id(), Some(8_999));
    assert!(matches!(world.outcome(), Some(Outcome::Lost(Lost::Restarted))));
}

#[test]
fn never_is_a_time_like_any_other() {
    let mut world = World::new();
    world.tracker.options.stalled_after = Duration::MAX;
    world.tracker.options.unreachable_after = Duration::MAX;
    world.tracker.register(world.now, id(), Arc::clone(&world.mailbox), Some(Duration::MAX), None);
    world.frame("executing", json!({"node": "1", "prompt_id": "p"}));
    world.tracker.failed(world.now, None);
    world.later(3_600_000);
    assert!(world.tracker.next_due().is_some());
    assert!(world.outcome().is_none());
}

#[test]
fn gone_from_the_queue_on_the_same_connection_is_deleted() {
    let mut world = World::submitted();
    assert!(vanish(&mut world).is_empty());
    assert!(matches!(world.outcome(), Some(Outcome::Deleted)));
}

#[test]
fn gone_while_it_ran_on_the_same_connection_is_a_deleted_history() {
    let mut world = World::submitted();
    world.frame("executing", json!({"node": "1", "prompt_id": "p"}));
    assert!(vanish(&mut world).is_empty());
    assert!(matches!(world.outcome(), Some(Outcome::Lost(Lost::HistoryGone))));
}

#[test]
fn gone_after_a_broken_connection_is_lost_by_restart_unless_the_server_remembers() {
    for (oldest, restarted) in [(None, true), (Some(99_000), true), (Some(10), false)] {
        let mut world = World::submitted();
        world.frame("execution_start", json!({"prompt_id": "other", "timestamp": 5_000}));
        world.tracker.link_down(world.now);
        world.tracker.link_up(world.now);
        assert_eq!(vanish(&mut world), [Ask::SameServer(id())]);
        world.tracker.remembers(&id(), oldest);
        match world.outcome() {
            Some(Outcome::Lost(Lost::Restarted)) => assert!(restarted),
            Some(Outcome::Deleted) => assert!(!restarted),
            other => panic!("{oldest:?}: {other:?}"),
        }
    }
}

#[test]
fn an_answer_from_before_the_break_says_nothing_about_the_server_after_it() {
    let mut world = World::submitted();
    assert!(world.later(5_100).contains(&Ask::Survey));
    world.tracker.link_down(world.now);
    // Answered by the old process, read after its socket broke.
    world.survey(&["p"], &[]);
    world.tracker.link_up(world.now);
    assert_eq!(vanish(&mut world), [Ask::SameServer(id())]);
    world.tracker.remembers(&id(), None);
    assert!(matches!(world.outcome(), Some(Outcome::Lost(Lost::Restarted))));
}

#[test]
fn an_unknown_id_was_never_seen() {
    let mut world = World::new();
    world.tracker.link_up(world.now);
    world.tracker.register(world.now, id(), Arc::clone(&world.mailbox), None, None);
    assert_eq!(world.later(0), [Ask::Look(id())]);
    vanish(&mut world);
    assert!(matches!(world.outcome(), Some(Outcome::Lost(Lost::NeverSeen))));
}

#[test]
fn waiting_with_nothing_running_means_the_worker_is_dead_but_only_after_a_while() {
    let mut world = World::submitted();
    let mut looks = 0;
    while world.outcome().is_none() {
        if world.later(100).contains(&Ask::Survey) {
            world.survey(&[], &["p"]);
            looks += 1;
        }
        assert!(looks < 30, "never noticed");
    }
    assert!(looks >= 3);
    let mut busy = World::submitted();
    for _ in 0..60 {
        if busy.later(1_000).contains(&Ask::Survey) {
            busy.survey(&["other"], &["p"]);
        }
    }
    assert!(busy.outcome().is_none(), "a busy worker is not dead");
}

#[test]
fn a_server_that_never_answers_is_given_up_and_one_that_comes_back_is_not() {
    let mut world = World::submitted();
    for second in 0..200 {
        if world.later(1_000).contains(&Ask::Survey) {
            world.tracker.failed(world.now, None);
        }
        if second == 40 {
            world.survey(&["p"], &[]);
        }
        if let Some(outcome) = world.outcome() {
            assert!(matches!(outcome, Outcome::GaveUp(GaveUp::Unreachable { .. })));
            assert!((98..=106).contains(&second), "after {second} s");
            return;
        }
    }
    panic!("hangs");
}

#[test]
fn the_limit_of_a_watch_holds() {
    let mut world = World::new();
    let limit = Duration::from_secs(7);
    world.tracker.register(world.now, id(), Arc::clone(&world.mailbox), Some(limit), None);
    assert_eq!(world.tracker.next_due().map(|at| at <= world.now + limit), Some(true));
    world.later(7_001);
    assert!(matches!(world.outcome(), Some(Outcome::GaveUp(GaveUp::TimedOut { after })) if after == limit));
}

#[test]
fn a_prompt_that_runs_without_a_sign_of_life_is_stalled() {
    let mut world = World::submitted();
    world.frame("executing", json!({"node": "1", "prompt_id": "p"}));
    for minute in 0..50 {
        if world.later(60_000).contains(&Ask::Survey) {
            world.survey(&["p"], &[]);
        }
        if minute == 10 {
            world.frame("progress", json!({"node": "1", "prompt_id": "p", "value": 1, "max": 2}));
        }
        if let Some(outcome) = world.outcome() {
            assert!(matches!(outcome, Outcome::Lost(Lost::Stalled)));
            assert_eq!(minute, 40);
            return;
        }
    }
    panic!("hangs");
}

#[test]
fn a_prompt_behind_one_that_never_ends_does_not_wait_for_ever() {
    let mut world = World::submitted();
    for minute in 0..50 {
        if world.later(60_000).contains(&Ask::Survey) {
            // After ten minutes another one runs: the worker lives.
            world.survey(&[if minute < 10 { "first" } else { "second" }], &["p"]);
        }
        if let Some(outcome) = world.outcome() {
            assert!(matches!(outcome, Outcome::Lost(Lost::Stalled)));
            assert_eq!(minute, 40);
            return;
        }
    }
    panic!("hangs");
}

#[test]
fn two_readers_of_one_prompt_both_hear_the_end_and_each_keeps_its_own_limit() {
    let mut world = World::submitted();
    let (second, third) = (Arc::new(Mailbox::new(8)), Arc::new(Mailbox::new(8)));
    let soon = Duration::from_secs(1);
    world.tracker.register(world.now, id(), Arc::clone(&second), Some(soon), None);
    world.tracker.register(world.now, id(), Arc::clone(&third), None, None);
    world.later(1_001);
    let place = Whereabouts::Ended(Box::new(ended("execution_success")));
    world.tracker.looked(world.now, &id(), place);
    assert!(matches!(world.outcome(), Some(Outcome::Succeeded(_))));
    world.mailbox = third;
    assert!(matches!(world.outcome(), Some(Outcome::Succeeded(_))));
    world.mailbox = second;
    assert!(matches!(world.outcome(), Some(Outcome::GaveUp(GaveUp::TimedOut { after })) if after == soon));
}

#[test]
fn a_stalled_stranger_does_not_make_the_loop_spin() {
    let mut world = World::submitted();
    world.survey(&["stranger"], &[]);
    for _ in 0..40 {
        world.later(60_000);
        world.survey(&["stranger"], &[]);
        world.tracker.failed(world.now, Some(&id()));
        assert!(world.tracker.next_due().is_some_and(|at| at > world.now), "due in the past");
    }
}

#[test]
fn files_of_cached_nodes_are_looked_for_before_success_is_told() {
    let mut world = World::new();
    world.tracker.options.check_cached_files = true;
    world.tracker.register(world.now, id(), Arc::clone(&world.mailbox), None, None);
    let asks = world.tracker.history(world.now, &id(), Some(ended("execution_success")));
    assert_eq!(asks, [Ask::Files(id())]);
    let files = world.tracker.files_to_check(&id());
    assert_eq!(files.len(), 1);
    world.tracker.files_missing(&id(), files);
    let error = world.outcome().expect("an end").into_result(&id()).expect_err("files are gone");
    assert!(matches!(error, crate::Error::OutputsGone { .. }));
}

/// One thing that happens to a tracker.
#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Up,
    Down,
    Frame(usize),
    Survey(u8),
    Look(u8),
    Fail(bool),
    Remembers(Option<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u64..20_000).prop_map(Step::Wait),
        Just(Step::Up),
        Just(Step::Down),
        (0usize..9).prop_map(Step::Frame),
        (0u8..3).prop_map(Step::Survey),
        (0u8..4).prop_map(Step::Look),
        any::<bool>().prop_map(Step::Fail),
        proptest::option::of(0u64..3_000).prop_map(Step::Remembers),
    ];
    proptest::collection::vec(step, 0..60)
}

fn frame_number(world: &mut World, number: usize) {
    let (kind, data) = [
        ("execution_start", json!({"prompt_id": "p", "timestamp": 7})),
        ("execution_cached", json!({"prompt_id": "p", "nodes": []})),
        ("executing", json!({"prompt_id": "p", "node": "1"})),
        ("executing", json!({"prompt_id": "p", "node": null})),
        ("executing", json!({"node": "1"})),
        ("progress", json!({"value": 1, "max": 2})),
        ("execution_success", json!({"prompt_id": "p"})),
        ("execution_error", json!({"prompt_id": "p"})),
        ("status", json!({"status": {}})),
    ][number]
        .clone();
    world.frame(kind, data);
}

proptest! {
    /// Whatever happened before, a server that answers again brings every watch to its end in bounded time.
    #[test]
    fn no_history_of_events_makes_a_watch_hang(steps in steps()) {
        let mut world = World::submitted();
        for step in steps {
            match step {
                Step::Wait(milliseconds) => { world.later(milliseconds); }
                Step::Up => world.tracker.link_up(world.now),
                Step::Down => world.tracker.link_down(world.now),
                Step::Frame(number) => frame_number(&mut world, number),
                Step::Survey(0) => world.survey(&[], &[]),
                Step::Survey(1) => world.survey(&["p"], &[]),
                Step::Survey(_) => world.survey(&[], &["p"]),
                Step::Look(number) => {
                    let place = match number {
                        0 => Whereabouts::Absent,
                        1 => Whereabouts::Pending,
                        2 => Whereabouts::Running,
                        _ => Whereabouts::Ended(Box::new(ended("execution_error"))),
                    };
                    world.tracker.looked(world.now, &id(), place);
                }
                Step::Fail(survey) => {
                    let prompt = id();
                    world.tracker.failed(world.now, (!survey).then_some(&prompt));
                }
                Step::Remembers(oldest) => world.tracker.remembers(&id(), oldest),
            }
        }
        // Questions that were under way are answered with failure first, as a session does when they time out.
        world.tracker.failed(world.now, Some(&id()));
        world.tracker.failed(world.now, None);
        for _ in 0..100 {
            for ask in world.later(100) {
                match ask {
                    Ask::Survey => world.survey(&[], &[]),
                    Ask::History(prompt) => {
                        world.tracker.history(world.now, &prompt, Some(ended("execution_success")));
                    }
                    Ask::Look(prompt) => {
                        let place = Whereabouts::Ended(Box::new(ended("execution_success")));
                        world.tracker.looked(world.now, &prompt, place);
                    }
                    Ask::SameServer(prompt) => world.tracker.remembers(&prompt, None),
                    Ask::Files(prompt) => world.tracker.files_missing(&prompt, Vec::new()),
                    Ask::FreshClientId | Ask::Ping => world.tracker.heard(world.now),
                }
            }
        }
        prop_assert!(world.tracker.watches.is_empty(), "still watching {:?}", world.tracker.watches);
    }
}
