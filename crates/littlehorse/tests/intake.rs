//! Asking for tasks at a double of the server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::time::Duration;

use littlehorse::{Client, Config, Delivery, Error, Health, Intake, IntakeOptions};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Double, Event, Fault, Message, Method, NewRun, Options, Run, What};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const TASK: &str = "execute-comfyui-workflow";
const WORKER: &str = "worker-under-test";
const SOON: Duration = Duration::from_secs(120);

async fn start(hosts: usize) -> Double {
    Double::start(Options::default().hosts(hosts)).await.unwrap()
}

fn client(double: &Double) -> Client {
    let settings = [
        ("LHC_API_HOST", "127.0.0.1".to_owned()),
        ("LHC_API_PORT", double.port(0).to_string()),
        ("LHW_TASK_WORKER_ID", WORKER.to_owned()),
    ];
    let lookup =
        |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    Client::new(Config::from_lookup(lookup).unwrap()).unwrap()
}

/// With heartbeats so far apart that none but the first can be what helps.
fn options() -> IntakeOptions {
    IntakeOptions { heartbeat: Duration::from_secs(600), ..IntakeOptions::new(TASK) }
}

fn open(double: &Double) -> Arc<Intake> {
    Arc::new(Intake::open(client(double), options()))
}

/// A call that waits in the background.
fn take(intake: &Arc<Intake>) -> JoinHandle<Result<Delivery, Error>> {
    let intake = Arc::clone(intake);
    tokio::spawn(async move { intake.take().await })
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("it should have happened long ago")
}

async fn taken(call: JoinHandle<Result<Delivery, Error>>) -> String {
    let delivery = soon(call).await.unwrap().unwrap();
    delivery.task_run().unwrap().wf_run_id.as_ref().unwrap().id.clone()
}

fn schedule(double: &Double, id: &str) -> Run {
    double.schedule(NewRun::json(id, "{}"))
}

fn is_half_close(event: &Event) -> bool {
    event.what == What::HalfClose
}

#[tokio::test]
async fn one_call_asks_for_one_task_and_the_stream_stays() {
    let double = start(1).await;
    let intake = open(&double);
    for (n, id) in ["wfrun-1", "wfrun-2", "wfrun-3"].into_iter().enumerate() {
        let call = take(&intake);
        soon(double.until_parked(0, 1)).await;
        schedule(&double, id);
        assert_eq!(taken(call).await, id);
        assert_eq!(double.parked(0), 0);
        assert_eq!(double.journal().asked(), n + 1);
    }
    assert_eq!(double.journal().calls(Method::PollTask), 1, "one stream served them all");
    let asked = double.journal().events().into_iter().find_map(|event| match event.what {
        What::Asked(Message::PollTaskRequest(request)) => Some(request),
        _ => None,
    });
    let asked = asked.unwrap();
    assert_eq!(asked.client_id, WORKER);
    assert_eq!(asked.task_worker_version.as_deref(), Some(""), "present, and empty");
    assert_eq!(asked.task_def_id.unwrap().name, TASK);
}

#[tokio::test]
async fn nothing_is_taken_beyond_what_is_wanted() {
    let double = start(1).await;
    let runs = ["wfrun-1", "wfrun-2", "wfrun-3"].map(|id| schedule(&double, id));
    let intake = open(&double);
    for n in 0..runs.len() {
        soon(intake.take()).await.unwrap();
        let running: Vec<bool> =
            runs.iter().map(|run| run.task_run().unwrap().status() == TaskStatus::TaskRunning).collect();
        assert_eq!(running.iter().filter(|runs| **runs).count(), n + 1, "{running:?}");
    }
}

#[tokio::test]
async fn as_many_are_asked_for_as_calls_wait() {
    let double = start(1).await;
    let intake = open(&double);
    let calls = [take(&intake), take(&intake), take(&intake)];
    soon(double.until_parked(0, 3)).await;
    for id in ["wfrun-1", "wfrun-2", "wfrun-3"] {
        schedule(&double, id);
    }
    let mut ids = Vec::new();
    for call in calls {
        ids.push(taken(call).await);
    }
    ids.sort();
    assert_eq!(ids, ["wfrun-1", "wfrun-2", "wfrun-3"]);
    assert_eq!(double.journal().asked(), 3);
}

#[tokio::test]
async fn with_two_hosts_the_other_one_is_not_asked_any_more_when_one_delivers() {
    let double = start(2).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    soon(double.until_parked(1, 1)).await;
    double.schedule(NewRun::json("wfrun-1", "{}").at(1));
    let delivery = soon(call).await.unwrap().unwrap();
    assert_eq!(delivery.host.port, double.port(1));
    soon(double.until_parked(0, 0)).await;
    let second = double.schedule(NewRun::json("wfrun-2", "{}").at(0));
    assert_eq!(second.task_run().unwrap().status(), TaskStatus::TaskScheduled, "nobody has a place for it");
    assert_eq!(taken(take(&intake)).await, "wfrun-2");
    soon(double.until_parked(1, 0)).await;
}

#[tokio::test]
async fn hosts_with_tasks_waiting_are_asked_in_turn_so_that_no_task_waits_here() {
    let double = start(3).await;
    let waiting = |n: usize| double.schedule(NewRun::json(format!("wfrun-{n}"), "{}").at(n % 3));
    let runs: Vec<Run> = (0..9).map(waiting).collect();
    // So that a busy machine is not taken for a host that has nothing.
    let options = IntakeOptions { soon: SOON, ..options() };
    let intake = Arc::new(Intake::open(client(&double), options));
    for n in 0..runs.len() {
        soon(intake.take()).await.unwrap();
        let running = runs.iter().filter(|run| run.task_run().unwrap().status() == TaskStatus::TaskRunning);
        assert_eq!(running.count(), n + 1);
    }
    let hosts: Vec<usize> = double
        .journal()
        .events()
        .iter()
        .filter(|event| matches!(event.what, What::Told(_)))
        .map(|event| event.host)
        .collect();
    for turn in hosts.chunks(3) {
        let mut turn = turn.to_vec();
        turn.sort_unstable();
        assert_eq!(turn, [0, 1, 2], "{hosts:?}");
    }
}

#[tokio::test]
async fn a_task_that_was_on_its_way_waits_here_and_is_first_in_line() {
    let double = start(2).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    soon(double.until_parked(1, 1)).await;
    let late = double.schedule(NewRun::json("wfrun-late", "{}").at(0).held());
    double.schedule(NewRun::json("wfrun-1", "{}").at(1));
    assert_eq!(taken(call).await, "wfrun-1");
    soon(double.journal().count(1, is_half_close)).await;
    late.hand_to(0, 1, WORKER);
    assert_eq!(taken(take(&intake)).await, "wfrun-late");
    // It was told on the half-closed stream, and by no other.
    let told = double.journal().events().into_iter().filter(|event| matches!(event.what, What::Told(_)));
    let at: Vec<(usize, Option<u32>)> = told.map(|event| (event.host, event.stream)).collect();
    assert_eq!(at, [(1, Some(1)), (0, Some(1))]);
}

#[tokio::test]
async fn a_call_that_is_dropped_takes_nothing() {
    let double = start(1).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    call.abort();
    soon(double.until_parked(0, 0)).await;
    let run = schedule(&double, "wfrun-1");
    assert_eq!(run.task_run().unwrap().status(), TaskStatus::TaskScheduled);
    assert_eq!(taken(take(&intake)).await, "wfrun-1");
}

#[tokio::test]
async fn a_task_for_a_call_that_is_dropped_is_given_to_the_next() {
    let double = start(1).await;
    let intake = open(&double);
    for n in 0..50 {
        let mut call = Box::pin(intake.take());
        // Polled once: it asks.
        assert!(futures_util::poll!(&mut call).is_pending());
        soon(double.until_parked(0, 1)).await;
        let run = schedule(&double, &format!("wfrun-{n}"));
        soon(run.running(0)).await;
        // It may have got it by now, and has not said so.
        drop(call);
        let delivery = soon(intake.take()).await.unwrap();
        assert_eq!(delivery.key().as_str(), format!("wfrun-{n}/0-1"));
    }
}

#[tokio::test]
async fn an_empty_answer_is_asked_again_at_once() {
    let double = start(1).await;
    double.inject(Method::PollTask, Fault::Nothing, 2);
    let intake = open(&double);
    let call = take(&intake);
    soon(double.journal().count(3, |event| matches!(event.what, What::Asked(_)))).await;
    schedule(&double, "wfrun-1");
    assert_eq!(taken(call).await, "wfrun-1");
    assert_eq!(double.journal().asked(), 3);
    assert_eq!(double.journal().calls(Method::PollTask), 1);
}

#[tokio::test]
async fn empty_answers_that_pour_are_not_answered_by_pouring() {
    let double = start(1).await;
    double.inject(Method::PollTask, Fault::Nothing, 1000);
    let intake = open(&double);
    let _call = take(&intake);
    soon(double.journal().count(6, |event| matches!(event.what, What::Asked(_)))).await;
    let asked = double.journal().events().into_iter().filter(|event| matches!(event.what, What::Asked(_)));
    let times: Vec<Duration> = asked.map(|event| event.at).collect();
    assert!(times[5] - times[0] >= Duration::from_millis(130), "{times:?}");
}

#[tokio::test]
async fn a_host_that_is_taken_away_is_left_and_what_it_still_sends_is_taken() {
    let double = start(2).await;
    double.assign(WORKER, Some(vec![0]));
    let intake = Arc::new(Intake::open(
        client(&double),
        IntakeOptions { heartbeat: Duration::from_millis(50), ..IntakeOptions::new(TASK) },
    ));
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    assert_eq!(double.parked(1), 0);
    let late = double.schedule(NewRun::json("wfrun-late", "{}").at(0).held());
    double.assign(WORKER, Some(vec![1]));
    soon(double.until_parked(1, 1)).await;
    soon(double.until_parked(0, 0)).await;
    late.hand_to(0, 1, WORKER);
    assert_eq!(taken(call).await, "wfrun-late");
    soon(double.until_parked(1, 0)).await;
    double.assign(WORKER, None);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    soon(double.until_parked(1, 1)).await;
    schedule(&double, "wfrun-2");
    assert_eq!(taken(call).await, "wfrun-2");
}

#[tokio::test]
async fn a_server_that_was_restarted_is_asked_again_within_seconds() {
    let double = start(1).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    let heartbeats = double.journal().calls(Method::RegisterTaskWorker);
    double.down(0).await.unwrap();
    soon(double.until_parked(0, 0)).await;
    double.up(0).unwrap();
    let back = Instant::now();
    soon(double.until_parked(0, 1)).await;
    assert!(back.elapsed() < Duration::from_secs(30), "{:?}", back.elapsed());
    schedule(&double, "wfrun-1");
    assert_eq!(taken(call).await, "wfrun-1");
    // It was told at once that we are here again: the server may have forgotten us.
    soon(
        double.journal().count(heartbeats + 1, |event| {
            event.method == Method::RegisterTaskWorker && event.is_beginning()
        }),
    )
    .await;
}

#[tokio::test]
async fn a_server_that_was_restarted_while_nothing_was_asked_is_asked_again() {
    let double = start(1).await;
    let intake = open(&double);
    schedule(&double, "wfrun-1");
    assert_eq!(taken(take(&intake)).await, "wfrun-1");
    double.down(0).await.unwrap();
    double.up(0).unwrap();
    schedule(&double, "wfrun-2");
    assert_eq!(taken(take(&intake)).await, "wfrun-2");
}

#[tokio::test]
async fn broken_streams_are_opened_again() {
    let double = start(1).await;
    let intake = open(&double);
    let breaks: [&dyn Fn(); 3] = [&|| double.cut(0), &|| double.reset_streams(0), &|| {
        double.end_streams(0, tonic::Code::Unavailable, "shutting down")
    }];
    for (n, broken) in breaks.into_iter().enumerate() {
        let call = take(&intake);
        soon(double.until_parked(0, 1)).await;
        let opened = double.journal().calls(Method::PollTask);
        broken();
        soon(
            double
                .journal()
                .count(opened + 1, |event| event.method == Method::PollTask && event.is_beginning()),
        )
        .await;
        let id = format!("wfrun-{n}");
        schedule(&double, &id);
        assert_eq!(taken(call).await, id);
    }
}

#[tokio::test]
async fn a_server_that_says_goodbye_is_listened_to_and_then_called_anew() {
    let double = start(1).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    double.goaway(0);
    schedule(&double, "wfrun-1");
    assert_eq!(taken(call).await, "wfrun-1");
    for id in ["wfrun-2", "wfrun-3"] {
        schedule(&double, id);
        assert_eq!(taken(take(&intake)).await, id);
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for() {
    let double = start(1).await;
    double.down(0).await.unwrap();
    let intake = open(&double);
    let call = take(&intake);
    let mut health = intake.health();
    soon(health.wait_for(|health| matches!(health, Health::Unhealthy(_)))).await.unwrap();
    double.up(0).unwrap();
    soon(health.wait_for(|health| *health == Health::Healthy)).await.unwrap();
    schedule(&double, "wfrun-1");
    assert_eq!(taken(call).await, "wfrun-1");
}

#[tokio::test]
async fn a_cluster_that_deals_anew_is_told_apart() {
    let double = start(1).await;
    double.set_healthy(Some(false));
    let intake = open(&double);
    let mut health = intake.health();
    soon(health.wait_for(|health| *health == Health::Rebalancing)).await.unwrap();
    double.set_healthy(None);
    soon(health.wait_for(|health| *health == Health::Healthy)).await.unwrap();
}

#[tokio::test]
async fn a_host_that_cannot_be_reached_is_told() {
    let double = start(2).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(1, 1)).await;
    double.down(1).await.unwrap();
    let mut health = intake.health();
    let told = soon(health.wait_for(|health| matches!(health, Health::Unhealthy(_)))).await.unwrap().clone();
    let Health::Unhealthy(reason) = told else { panic!("{told:?}") };
    assert!(reason.contains(&double.port(1).to_string()), "{reason}");
    // The other one is asked all the same.
    schedule(&double, "wfrun-1");
    assert_eq!(taken(call).await, "wfrun-1");
}

#[tokio::test]
async fn heartbeats_go_on_through_refusals() {
    let double = start(1).await;
    double.inject(Method::RegisterTaskWorker, Fault::Refuse(tonic::Status::internal("no leader")), 3);
    let intake = open(&double);
    let call = take(&intake);
    schedule(&double, "wfrun-1");
    assert_eq!(taken(call).await, "wfrun-1");
    assert_eq!(double.journal().calls(Method::RegisterTaskWorker), 4);
}

#[tokio::test]
async fn closing_is_quick_and_returns_what_was_on_its_way() {
    let double = start(1).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    let late = double.schedule(NewRun::json("wfrun-late", "{}").held());
    let begun = Instant::now();
    let closing = tokio::spawn({
        let intake = Arc::clone(&intake);
        async move { intake.close().await }
    });
    soon(double.journal().count(1, is_half_close)).await;
    late.hand_to(0, 1, WORKER);
    let strays = soon(closing).await.unwrap();
    // A stream that does not end is waited for longer.
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    assert_eq!(strays.len(), 1);
    assert_eq!(strays[0].key().as_str(), "wfrun-late/0-1");
    assert!(matches!(soon(call).await.unwrap(), Err(Error::Closed)));
    assert!(matches!(intake.take().await, Err(Error::Closed)));
    soon(double.journal().count(1, |event| event.what == What::Gone)).await;
}

#[tokio::test]
async fn an_intake_that_waits_for_nothing_closes_at_once() {
    let double = start(1).await;
    let intake = open(&double);
    schedule(&double, "wfrun-1");
    assert_eq!(taken(take(&intake)).await, "wfrun-1");
    let begun = Instant::now();
    assert!(intake.close().await.is_empty());
    // A stream that does not end is waited for longer.
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_intake_that_is_dropped_lets_go_of_everything() {
    let double = start(1).await;
    let intake = open(&double);
    let call = take(&intake);
    soon(double.until_parked(0, 1)).await;
    call.abort();
    let _ = call.await;
    drop(intake);
    soon(double.until_parked(0, 0)).await;
    soon(double.journal().count(1, |event| event.what == What::Gone)).await;
}

#[tokio::test]
async fn a_task_that_was_put_back_goes_to_the_next_call() {
    let double = start(1).await;
    let intake = open(&double);
    let run = schedule(&double, "one");
    let delivery = soon(intake.take()).await.unwrap();
    // Somebody waits already.
    let waiting = take(&intake);
    soon(double.until_parked(0, 1)).await;
    assert!(intake.put_back(delivery).is_none());
    assert_eq!(taken(waiting).await, "one");
    assert_eq!(run.task_run().unwrap().attempts.len(), 1);
    // Nobody waits: it is the first in line.
    schedule(&double, "two");
    let delivery = soon(intake.take()).await.unwrap();
    schedule(&double, "three");
    assert!(intake.put_back(delivery).is_none());
    assert_eq!(taken(take(&intake)).await, "two");
    let delivery = soon(intake.take()).await.unwrap();
    soon(intake.close()).await;
    assert!(intake.put_back(delivery).is_some(), "nobody will ask for it");
}
