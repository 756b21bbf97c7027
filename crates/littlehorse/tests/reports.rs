//! Reports to a double of the server that does not always listen.
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

use std::time::Duration;

use littlehorse::{Client, Config, Delivery, Ending, Error, Heard, Intake, IntakeOptions, Report, Value};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Double, Fault, Method, NewRun, Options, Oversize, Run, quota, too_large};
use tokio::time::timeout;
use tonic::Status;

const SOON: Duration = Duration::from_secs(120);

fn client(double: &Double) -> Client {
    let config = Config { host: "127.0.0.1".into(), port: double.port(0), ..Config::default() };
    Client::new(config).unwrap()
}

/// A task that this worker has, and its report.
async fn delivered(double: &Double, client: &Client, new: NewRun) -> (Run, Delivery, Report) {
    let intake = Intake::open(client.clone(), IntakeOptions::new("execute-comfyui-workflow"));
    let run = double.schedule(new);
    let delivery = timeout(SOON, intake.take()).await.unwrap().unwrap();
    let done = Ending::Success(Value::JsonObj("{}".into()));
    let report = Report::new(delivery.task_run().unwrap(), delivery.attempt(), &done, Some("a log"));
    (run, delivery, report)
}

async fn heard(client: &Client, delivery: &Delivery, report: &Report) -> Heard {
    timeout(SOON, client.report_until_heard(Some(&delivery.host), report)).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_report_ends_its_attempt() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    assert_eq!(client.report(Some(&delivery.host), &report).await.unwrap(), Heard::Yes);
    assert_eq!(run.ended().await.status(), TaskStatus::TaskSuccess);
}

#[tokio::test]
async fn a_report_gets_through_whatever_is_answered_first() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    for refusal in [
        Status::unavailable("restarting"),
        quota(Duration::from_millis(100)),
        Status::internal("stumbled"),
        Status::unauthenticated("who?"),
        Status::unknown("stumbled again"),
        Status::not_found("not yet"),
    ] {
        double.inject(Method::ReportTask, Fault::Refuse(refusal), 1);
    }
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    assert_eq!(double.journal().calls(Method::ReportTask), 7);
    assert_eq!(run.ended().await.attempts[0].log_output, double_log("a log"));
}

fn double_log(text: &str) -> Option<littlehorse_double::proto::VariableValue> {
    use littlehorse_double::proto::{VariableValue, variable_value::Value};
    Some(VariableValue { value: Some(Value::Str(text.into())) })
}

/// Done, and the answer lost: the second is ignored by the server.
#[tokio::test]
async fn a_report_whose_answer_was_lost_is_sent_again() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    double.inject(Method::ReportTask, Fault::DoneThenRefuse(Status::unavailable("lost")), 1);
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    let reports = run.reports();
    assert_eq!(reports.iter().map(|seen| seen.heard).collect::<Vec<_>>(), [true, false]);
    assert_eq!(reports[0].report, reports[1].report);
}

/// Done, and answer after answer lost: asking shows that it was heard.
#[tokio::test]
async fn a_report_that_was_heard_is_not_sent_for_ever() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    double.inject(Method::ReportTask, Fault::DoneThenRefuse(Status::unavailable("lost")), 1000);
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    assert_eq!(run.reports().len(), 3);
}

#[tokio::test]
async fn a_report_waits_until_the_server_is_back() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    double.down(0).await.unwrap();
    assert!(matches!(client.report(None, &report).await, Err(Error::Unavailable { .. })));
    let waiting = tokio::spawn(async move { heard(&client, &delivery, &report).await });
    double.up(0).unwrap();
    assert_eq!(timeout(SOON, waiting).await.unwrap().unwrap(), Heard::Yes);
    assert_eq!(run.ended().await.status(), TaskStatus::TaskSuccess);
}

/// The host that delivered may never come back; any other takes the report.
#[tokio::test]
async fn a_report_goes_to_the_first_host_when_the_delivering_one_is_away() {
    let double = Double::start(Options::default().hosts(2)).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}").at(1)).await;
    assert_eq!(delivery.host.port, double.port(1));
    double.down(1).await.unwrap();
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    assert_eq!(run.ended().await.status(), TaskStatus::TaskSuccess);
}

/// Neither the host that delivered nor the one of the settings comes back; a third one is known.
#[tokio::test]
async fn a_report_goes_to_any_host_that_is_known() {
    let double = Double::start(Options::default().hosts(3)).await.unwrap();
    let client = client(&double);
    let intake = Intake::open(client.clone(), IntakeOptions::new("execute-comfyui-workflow"));
    // When the third is asked for tasks, it is known.
    let all_asked = async {
        double.until_parked(2, 1).await;
        double.schedule(NewRun::json("run", "{}").at(1))
    };
    let (delivery, run) = timeout(SOON, async { tokio::join!(intake.take(), all_asked) }).await.unwrap();
    let delivery = delivery.unwrap();
    let done = Ending::Success(Value::JsonObj("{}".into()));
    let report = Report::new(delivery.task_run().unwrap(), delivery.attempt(), &done, None);
    double.down(0).await.unwrap();
    double.down(1).await.unwrap();
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    assert_eq!(run.ended().await.status(), TaskStatus::TaskSuccess);
}

#[tokio::test]
async fn a_report_that_is_too_large_for_the_server_loses_its_log_first() {
    let options = Options { most_bytes: 2_000, oversize: Oversize::Exhausted, ..Options::default() };
    let double = Double::start(options).await.unwrap();
    let client = client(&double);
    let (run, delivery, _) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    let (id, log) = (delivery.task_run().unwrap(), "l".repeat(3_000));
    let report = Report::new(id, 0, &Ending::Success(Value::JsonObj("{}".into())), Some(&log));
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    let ended = run.ended().await;
    assert_eq!((ended.status(), ended.attempts[0].log_output.clone()), (TaskStatus::TaskSuccess, None));
}

/// Servers of 1.2 say UNAVAILABLE to what is too large, as if they were away.
#[tokio::test]
async fn a_large_report_loses_its_log_when_the_server_answers_everything_else() {
    let options = Options { most_bytes: 80_000, oversize: Oversize::Unavailable, ..Options::default() };
    let double = Double::start(options).await.unwrap();
    let client = client(&double);
    let (run, delivery, _) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    let log = "l".repeat(100_000);
    let done = Ending::Success(Value::JsonObj("{}".into()));
    let report = Report::new(delivery.task_run().unwrap(), 0, &done, Some(&log));
    assert_eq!(heard(&client, &delivery, &report).await, Heard::Yes);
    assert_eq!(run.ended().await.attempts[0].log_output, None);
}

#[tokio::test]
async fn an_output_that_no_server_takes_is_an_error() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (_run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    double.inject(Method::ReportTask, Fault::Refuse(too_large()), 100);
    let error = timeout(SOON, client.report_until_heard(Some(&delivery.host), &report)).await.unwrap();
    assert!(matches!(error, Err(Error::TooLarge { .. })), "{error:?}");
    assert!(double.journal().calls(Method::ReportTask) < 10);
}

/// The 1.3 line ends such an attempt by itself and never answers.
#[tokio::test]
async fn a_report_that_the_server_swallows_is_too_late_in_the_end() {
    let options = Options { most_bytes: 2_000, oversize: Oversize::Swallowed, ..Options::default() };
    let double = Double::start(options).await.unwrap();
    let hasty = Config {
        host: "127.0.0.1".into(),
        port: double.port(0),
        deadline: Duration::from_millis(500),
        ..Config::default()
    };
    let client = Client::new(hasty).unwrap();
    let (run, delivery, _) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    let output = Value::Str("o".repeat(3_000));
    let report = Report::new(delivery.task_run().unwrap(), 0, &Ending::Success(output), None);
    assert_eq!(heard(&client, &delivery, &report).await, Heard::TooLate);
    assert_eq!(run.ended().await.status(), TaskStatus::TaskOutputSerdeError);
}

#[tokio::test]
async fn refusals_of_an_attempt_that_is_over_are_believed() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    let (run, delivery, report) = delivered(&double, &client, NewRun::json("run", "{}")).await;
    run.time_out();
    double.inject(Method::ReportTask, Fault::Refuse(Status::invalid_argument("no such task")), 1000);
    assert_eq!(heard(&client, &delivery, &report).await, Heard::TooLate);
    assert!(double.journal().calls(Method::ReportTask) < 10);
    assert_eq!(double.journal().calls(Method::GetTaskRun), 1);
}
