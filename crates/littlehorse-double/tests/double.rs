//! The double by itself, with the calls that a worker makes.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

use std::time::Duration;

use littlehorse::proto::little_horse_client::LittleHorseClient;
use littlehorse::proto::{self as client, report_task_run, variable_value::Value};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Double, Event, Fault, Message, Method, NewRun, Options, What, quota};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

const TASK: &str = "execute-comfyui-workflow";
const SOON: Duration = Duration::from_secs(10);

async fn connect(double: &Double) -> LittleHorseClient<Channel> {
    connect_to(double, 0).await
}

async fn connect_to(double: &Double, host: usize) -> LittleHorseClient<Channel> {
    let url = format!("http://127.0.0.1:{}", double.port(host));
    LittleHorseClient::connect(url).await.expect("a connection")
}

fn ask() -> client::PollTaskRequest {
    client::PollTaskRequest {
        task_def_id: Some(client::TaskDefId { name: TASK.to_owned() }),
        client_id: "worker".to_owned(),
        task_worker_version: Some(String::new()),
    }
}

/// What breaks streams.
type Break = fn(&Double);
type Answers = tokio::task::JoinHandle<Result<Streaming<client::PollTaskResponse>, tonic::Status>>;

/// Opens a stream with one request in it; the answers come when the first task comes.
async fn poll(client: &LittleHorseClient<Channel>) -> (mpsc::Sender<client::PollTaskRequest>, Answers) {
    let (sender, requests) = mpsc::channel(16);
    sender.send(ask()).await.expect("room");
    let mut client = client.clone();
    let answers = tokio::spawn(async move {
        client.poll_task(ReceiverStream::new(requests)).await.map(tonic::Response::into_inner)
    });
    (sender, answers)
}

async fn next(answers: &mut Streaming<client::PollTaskResponse>) -> client::ScheduledTask {
    let answer = timeout(SOON, answers.message()).await.expect("an answer").expect("a good one");
    answer.expect("not the end").result.expect("a task")
}

fn success(task: &client::ScheduledTask, output: &str) -> client::ReportTaskRun {
    let output = client::VariableValue { value: Some(Value::JsonObj(output.to_owned())) };
    client::ReportTaskRun {
        task_run_id: task.task_run_id.clone(),
        status: client::TaskStatus::TaskSuccess as i32,
        attempt_number: task.attempt_number,
        result: Some(report_task_run::Result::Output(output)),
        ..client::ReportTaskRun::default()
    }
}

#[tokio::test]
async fn a_task_is_handed_out_once_and_its_report_ends_it() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (_requests, answers) = poll(&client).await;
    double.until_parked(0, 1).await;
    assert!(!answers.is_finished(), "nothing of an answer comes before the first task");
    let run = double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let task = next(&mut answers).await;
    assert_eq!(task.attempt_number, 0);
    run.running(0).await;
    client.report_task(success(&task, "{}")).await.unwrap();
    let ended = timeout(SOON, run.ended()).await.unwrap();
    assert_eq!(ended.status(), TaskStatus::TaskSuccess);
    assert_eq!(ended.attempts[0].task_worker_id, "worker");
    // Again is too late, and not an error.
    client.report_task(success(&task, "{}")).await.unwrap();
    let heard: Vec<bool> = run.reports().iter().map(|seen| seen.heard).collect();
    assert_eq!(heard, [true, false]);
    assert_eq!(double.parked(0), 0, "one request, one task");
}

#[tokio::test]
async fn a_stream_that_was_half_closed_asks_no_more_but_does_not_end() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = connect(&double).await;
    let (requests, answers) = poll(&client).await;
    double.until_parked(0, 1).await;
    let first = double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    next(&mut answers).await;
    requests.send(ask()).await.unwrap();
    double.until_parked(0, 1).await;
    drop(requests);
    double.until_parked(0, 0).await;
    let second = double.schedule(NewRun::json("wfrun-2", "{}"));
    assert_eq!(second.task_run().unwrap().status(), TaskStatus::TaskScheduled);
    // One that was on its way still comes.
    second.hand_to(0, 1, "worker");
    assert_eq!(next(&mut answers).await.task_run_id.unwrap().wf_run_id.unwrap().id, "wfrun-2");
    first.running(0).await;
    drop(answers);
    double.journal().count(1, |event| event.what == What::Gone).await;
}

#[tokio::test]
async fn timeouts_and_failures_lead_to_further_attempts() {
    let double = Double::start(Options::default()).await.unwrap();
    double.put_task_def("default", littlehorse_double::json_task(TASK)).unwrap();
    let mut client = connect(&double).await;
    let (requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}").attempts(3).timeout(Duration::from_secs(60)));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let first = next(&mut answers).await;
    requests.send(ask()).await.unwrap();
    double.until_parked(0, 1).await;
    double.advance(Duration::from_secs(61));
    let second = next(&mut answers).await;
    assert_eq!((first.attempt_number, second.attempt_number), (0, 1));
    // The first one reports too late.
    client.report_task(success(&first, "{}")).await.unwrap();
    assert!(!run.reports()[0].heard);
    let failed = client::ReportTaskRun {
        status: client::TaskStatus::TaskFailed as i32,
        result: None,
        ..success(&second, "{}")
    };
    client.report_task(failed).await.unwrap();
    requests.send(ask()).await.unwrap();
    let third = next(&mut answers).await;
    client.report_task(success(&third, "not JSON")).await.unwrap();
    let ended = timeout(SOON, run.ended()).await.unwrap();
    let statuses: Vec<TaskStatus> = ended.attempts.iter().map(|attempt| attempt.status()).collect();
    assert_eq!(statuses, [TaskStatus::TaskTimeout, TaskStatus::TaskFailed, TaskStatus::TaskOutputSerdeError]);
}

#[tokio::test]
async fn a_host_goes_away_and_comes_back_with_what_it_knew() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (_requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let task = next(&mut answers).await;
    double.down(0).await.unwrap();
    assert!(timeout(SOON, answers.message()).await.unwrap().is_err());
    assert_eq!(client.report_task(success(&task, "{}")).await.unwrap_err().code(), Code::Unavailable);
    double.up(0).unwrap();
    connect(&double).await.report_task(success(&task, "{}")).await.unwrap();
    assert_eq!(run.ended().await.status(), TaskStatus::TaskSuccess);
    assert_eq!(double.connections(0), 2);
}

#[tokio::test]
async fn streams_break_in_every_way() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = connect(&double).await;
    // What a client sees of it; tonic has several codes for the same.
    let ways: [(Break, &str); 3] = [
        (|double| double.reset_streams(0), "CANCEL, Remote"),
        (|double| double.end_streams(0, Code::Unavailable, "going"), "going"),
        (|double| double.cut(0), "BrokenPipe"),
    ];
    for (number, (act, sign)) in ways.into_iter().enumerate() {
        // Once before the first answer, and once after it.
        let (_requests, answers) = poll(&client).await;
        double.until_parked(0, 1).await;
        act(&double);
        let refused = timeout(SOON, answers).await.unwrap().unwrap().unwrap_err();
        assert!(format!("{refused:?}").contains(sign), "{refused:?}");
        let (_requests, answers) = poll(&connect(&double).await).await;
        double.schedule(NewRun::json(format!("wfrun-{number}"), "{}"));
        let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
        next(&mut answers).await;
        act(&double);
        let refused = timeout(SOON, answers.message()).await.unwrap().unwrap_err();
        assert!(format!("{refused:?}").contains(sign), "{refused:?}");
        double.until_parked(0, 0).await;
    }
}

#[tokio::test]
async fn after_goaway_a_stream_goes_on_and_new_calls_take_a_new_connection() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (requests, answers) = poll(&client).await;
    double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    next(&mut answers).await;
    double.goaway(0);
    requests.send(ask()).await.unwrap();
    double.schedule(NewRun::json("wfrun-2", "{}"));
    next(&mut answers).await;
    assert_eq!(double.connections(0), 1);
    // The client may notice only now that it is to go away; then the second try has a new connection.
    let mut version = client.get_server_version(()).await;
    if version.is_err() {
        version = client.get_server_version(()).await;
    }
    assert_eq!(version.unwrap().into_inner().major_version, 1);
    assert_eq!(double.connections(0), 2);
}

#[tokio::test]
async fn calls_go_wrong_as_they_are_told_to() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (_requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let task = next(&mut answers).await;
    double.inject(Method::ReportTask, Fault::Refuse(quota(Duration::from_millis(1500))), 1);
    double.inject(Method::ReportTask, Fault::DoneThenRefuse(tonic::Status::unavailable("no leader")), 1);
    let refused = client.report_task(success(&task, "{}")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(!refused.details().is_empty());
    assert!(run.reports().is_empty());
    let refused = client.report_task(success(&task, "{}")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(run.reports()[0].heard);
    double.inject(Method::ReportTask, Fault::DoneThenHang, 1);
    let hung = timeout(Duration::from_millis(200), client.report_task(success(&task, "{}"))).await;
    assert!(hung.is_err());
    assert_eq!(run.reports().len(), 2);
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(1_100_000));
    let refused = client.report_task(success(&task, &large)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(run.reports().len(), 2);
}

#[tokio::test]
async fn strangers_are_refused() {
    let double = Double::start(Options::default().tenant("studio")).await.unwrap();
    let mut client = connect(&double).await;
    let with_tenant = |name: &'static str| {
        let mut request = tonic::Request::new(client::TaskDefId { name: TASK.to_owned() });
        request.metadata_mut().insert("tenantid", name.parse().unwrap());
        request
    };
    let code = |result: Result<_, tonic::Status>| result.map(drop).unwrap_err().code();
    assert_eq!(code(client.get_task_def(with_tenant("nobody")).await), Code::PermissionDenied);
    assert_eq!(code(client.get_task_def(with_tenant("studio")).await), Code::NotFound);
    let events = double.journal().events();
    let sent = |event: &Event| event.metadata().and_then(|metadata| metadata.get("tenantid").cloned());
    assert_eq!(events.iter().filter_map(sent).collect::<Vec<_>>(), ["nobody", "studio"]);
    assert!(matches!(&events[0].what, What::Call { message: Message::TaskDefId(_), deadline: None, .. }));
}
