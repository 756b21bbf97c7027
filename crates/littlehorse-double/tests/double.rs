//! The double by itself, with the calls that a worker makes.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

use std::time::Duration;

use littlehorse::proto::little_horse_client::LittleHorseClient;
use littlehorse::proto::{self as client, report_task_run, variable_value::Value};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{
    Backoff, Double, Event, Fault, Message, Method, NewRun, OAuth, Options, What, quota,
};
use remuda_testbed::wait;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

const TASK: &str = "execute-comfyui-workflow";
const SOON: Duration = Duration::from_secs(120);

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
    let hung = tokio::spawn({
        let (mut client, report) = (client.clone(), success(&task, "{}"));
        async move { client.report_task(report).await }
    });
    assert_eq!(timeout(SOON, run.reported(2)).await.unwrap().len(), 2);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!hung.is_finished(), "it was done, and is not answered");
    hung.abort();
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

#[tokio::test]
async fn a_report_that_makes_no_sense_is_answered_and_leaves_the_attempt_running() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (_requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let task = next(&mut answers).await;
    let nothing = client::ReportTaskRun { result: None, ..success(&task, "{}") };
    let status = client::TaskStatus::TaskException as i32;
    let exception = client::ReportTaskRun { status, ..success(&task, "{}") };
    let attempt = client::ReportTaskRun { attempt_number: 7, ..success(&task, "{}") };
    for senseless in [nothing, exception, attempt, client::ReportTaskRun::default()] {
        client.report_task(senseless).await.unwrap();
    }
    assert_eq!(run.task_run().unwrap().status(), TaskStatus::TaskRunning);
    assert!(run.reports().iter().all(|seen| !seen.heard));
    client.report_task(success(&task, "{}")).await.unwrap();
    assert_eq!(run.ended().await.status(), TaskStatus::TaskSuccess);
}

#[tokio::test]
async fn a_report_may_be_answered_before_it_is_read() {
    let options = Options { applied_after: Duration::from_secs(60), ..Options::default() };
    let double = Double::start(options).await.unwrap();
    let mut client = connect(&double).await;
    let (_requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}").timeout(Duration::from_secs(600)));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let task = next(&mut answers).await;
    client.report_task(success(&task, "{}")).await.unwrap();
    let id = task.task_run_id.clone().unwrap();
    let known = client.get_task_run(id).await.unwrap().into_inner();
    assert_eq!(known.status(), client::TaskStatus::TaskRunning);
    double.advance(Duration::from_secs(61));
    assert_eq!(timeout(SOON, run.ended()).await.unwrap().status(), TaskStatus::TaskSuccess);
}

#[tokio::test]
async fn checkpoints_are_kept_until_the_attempt_is_over() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}").attempts(2));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let first = next(&mut answers).await;
    let id = first.task_run_id.clone();
    let put = |task_attempt| client::PutCheckpointRequest {
        task_run_id: id.clone(),
        task_attempt,
        value: Some(client::VariableValue { value: Some(Value::Str("kept".to_owned())) }),
        logs: None,
    };
    let stops = client::put_checkpoint_response::FlowControlContinue::StopTask;
    let kept = client.put_checkpoint(put(0)).await.unwrap().into_inner();
    assert_ne!(kept.flow_control_continue_type(), stops);
    let future = client.put_checkpoint(put(1)).await.unwrap().into_inner();
    assert_eq!(future.flow_control_continue_type(), stops);
    run.time_out();
    let late = client.put_checkpoint(put(0)).await.unwrap().into_inner();
    assert_eq!((late.flow_control_continue_type(), late.created_checkpoint), (stops, None));
    requests.send(ask()).await.unwrap();
    assert_eq!(next(&mut answers).await.total_observed_checkpoints, 1);
    let number = |checkpoint_number| client::CheckpointId { task_run: id.clone(), checkpoint_number };
    assert!(client.get_checkpoint(number(0)).await.unwrap().into_inner().value.is_some());
    assert_eq!(client.get_checkpoint(number(1)).await.unwrap_err().code(), Code::NotFound);
    run.delete();
    assert_eq!(client.put_checkpoint(put(1)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.get_task_run(id.clone().unwrap()).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_pause_between_attempts_is_kept_and_others_may_take_one() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    let (requests, answers) = poll(&client).await;
    let minute = Duration::from_secs(60);
    let backoff = Backoff { base: minute, most: 3 * minute, factor: 2.0 };
    let long = Duration::from_secs(36_000);
    let new = NewRun { backoff: Some(backoff), ..NewRun::json("wfrun-1", "{}").attempts(4).timeout(long) };
    let run = double.schedule(new);
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    for pause in [minute, 2 * minute] {
        let task = next(&mut answers).await;
        let status = client::TaskStatus::TaskFailed as i32;
        let failed = client::ReportTaskRun { status, result: None, ..success(&task, "{}") };
        client.report_task(failed).await.unwrap();
        assert_eq!(run.task_run().unwrap().status(), TaskStatus::TaskPending);
        requests.send(ask()).await.unwrap();
        double.until_parked(0, 1).await;
        double.advance(pause - Duration::from_secs(10));
        assert_eq!(double.parked(0), 1, "it waits");
        double.advance(Duration::from_secs(11));
    }
    let third = next(&mut answers).await;
    assert_eq!(third.attempt_number, 2);
    run.taken_by("somebody");
    let taken = run.running(3).await;
    assert_eq!(taken.attempts[3].task_worker_id, "somebody");
    client.report_task(success(&third, "{}")).await.unwrap();
    assert_eq!(run.task_run().unwrap().status(), TaskStatus::TaskRunning);
}

#[tokio::test]
async fn the_same_attempt_can_come_twice() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = connect(&double).await;
    let (requests, answers) = poll(&client).await;
    let run = double.schedule(NewRun::json("wfrun-1", "{}"));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    let first = next(&mut answers).await;
    assert!(!run.deliver_again(), "nobody asks");
    requests.send(ask()).await.unwrap();
    double.until_parked(0, 1).await;
    assert!(run.deliver_again());
    assert_eq!(next(&mut answers).await, first);
}

#[tokio::test]
async fn a_server_that_starts_answers_little() {
    let double = Double::start(Options::default()).await.unwrap();
    let mut client = connect(&double).await;
    double.set_ready(0, false);
    let name = || client::TaskDefId { name: TASK.to_owned() };
    assert_eq!(client.get_task_def(name()).await.unwrap_err().code(), Code::Unavailable);
    client.get_server_version(()).await.unwrap();
    client.report_task(client::ReportTaskRun::default()).await.unwrap();
    double.set_ready(0, true);
    assert_eq!(client.get_task_def(name()).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn hosts_are_dealt_out_and_each_has_its_own_tasks() {
    let double = Double::start(Options::default().hosts(2)).await.unwrap();
    let mut first = connect_to(&double, 0).await;
    let register = |worker: &str| client::RegisterTaskWorkerRequest {
        task_worker_id: worker.to_owned(),
        task_def_id: Some(client::TaskDefId { name: TASK.to_owned() }),
    };
    let ports = |answer: client::RegisterTaskWorkerResponse| {
        answer.your_hosts.iter().map(|host| u16::try_from(host.port).unwrap()).collect::<Vec<_>>()
    };
    let alone = first.register_task_worker(register("a")).await.unwrap().into_inner();
    assert_eq!(alone.is_cluster_healthy, None);
    assert_eq!(ports(alone), [double.port(0), double.port(1)]);
    let second = first.register_task_worker(register("b")).await.unwrap().into_inner();
    assert_eq!(ports(second), [double.port(1)]);
    double.advance(Duration::from_secs(91));
    let forgotten = first.register_task_worker(register("b")).await.unwrap().into_inner();
    assert_eq!(ports(forgotten), [double.port(0), double.port(1)]);
    double.set_healthy(Some(false));
    double.assign("b", Some(Vec::new()));
    let ill = first.register_task_worker(register("b")).await.unwrap().into_inner();
    assert_eq!((ill.your_hosts.len(), ill.is_cluster_healthy), (0, Some(false)));
    let (_requests, answers) = poll(&first).await;
    double.until_parked(0, 1).await;
    double.schedule(NewRun::json("elsewhere", "{}").at(1));
    double.schedule(NewRun::json("here", "{}").at(0));
    let mut answers = timeout(SOON, answers).await.unwrap().unwrap().unwrap();
    assert_eq!(next(&mut answers).await.task_run_id.unwrap().wf_run_id.unwrap().id, "here");
}

#[tokio::test]
async fn only_good_tokens_come_in() {
    let oauth = OAuth {
        client_id: "me".to_owned(),
        client_secret: "secret".to_owned(),
        lifetime: Duration::from_secs(60),
    };
    let double = Double::start(Options { oauth: Some(oauth), ..Options::default() }).await.unwrap();
    let tokens = double.tokens().unwrap();
    let http = reqwest::Client::new();
    let form = |secret| {
        let asked = http.post(tokens.url()).basic_auth("me", Some(secret));
        asked.body("grant_type=client_credentials").send()
    };
    assert_eq!(form("wrong").await.unwrap().status(), 401);
    tokens.fail(1);
    assert_eq!(form("secret").await.unwrap().status(), 500);
    let given = form("secret").await.unwrap().text().await.unwrap();
    assert_eq!(given, r#"{"access_token":"token-1","token_type":"Bearer","expires_in":60}"#);
    let mut client = connect(&double).await;
    let mut code = async |authorization: &str| {
        let mut request = tonic::Request::new(());
        request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        client.get_server_version(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(code("token-1").await, Code::Ok);
    assert_eq!(code("Bearer token-1").await, Code::Ok);
    assert_eq!(code("bearer token-1").await, Code::Unauthenticated);
    assert_eq!(code("Bearer token-2").await, Code::Unauthenticated);
    tokens.revoke();
    assert_eq!(code("Bearer token-1").await, Code::Unauthenticated);
    assert_eq!(tokens.requests().len(), 3);
}

#[tokio::test]
async fn a_client_that_pings_too_often_is_hung_up_on() {
    let options = |least| Options { least_ping: Duration::from_millis(least), ..Options::default() };
    let pinging = async |double: &Double| {
        let endpoint = Channel::from_shared(format!("http://127.0.0.1:{}", double.port(0))).unwrap();
        let endpoint = endpoint.http2_keep_alive_interval(Duration::from_millis(50));
        LittleHorseClient::new(endpoint.keep_alive_while_idle(true).connect().await.unwrap())
    };
    let strict = Double::start(options(60_000)).await.unwrap();
    let (_requests, answers) = poll(&pinging(&strict).await).await;
    timeout(SOON, answers).await.unwrap().unwrap().unwrap_err();
    assert_eq!(strict.pings(0), 4);
    let lenient = Double::start(options(1)).await.unwrap();
    let (_requests, answers) = poll(&pinging(&lenient).await).await;
    wait::until("ten pings", SOON, async || (lenient.pings(0) > 10).then_some(())).await.unwrap();
    assert!(!answers.is_finished());
}
