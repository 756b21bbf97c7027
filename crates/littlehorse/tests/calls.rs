//! Calls to a double of the server.
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

use std::time::Duration;

use littlehorse::{Client, Config, Error, Intake, IntakeOptions, NewTaskDef, Registered, Type, Value, proto};
use littlehorse_double::{Double, Fault, Method, NewRun, Options, What, json_task, quota};
use tonic::Status;

fn config(double: &Double) -> Config {
    Config { host: "127.0.0.1".into(), port: double.port(0), ..Config::default() }
}

fn client(double: &Double) -> Client {
    Client::new(config(double)).unwrap()
}

fn wanted() -> NewTaskDef {
    NewTaskDef::new("greet").input("name", Type::Str).returns(Type::Str)
}

fn id(run: &littlehorse_double::Run) -> proto::TaskRunId {
    let id = run.id();
    let wf_run = proto::WfRunId { id: id.wf_run_id.as_ref().unwrap().id.clone(), parent_wf_run_id: None };
    proto::TaskRunId { wf_run_id: Some(wf_run), task_guid: id.task_guid.clone() }
}

#[tokio::test]
async fn a_task_def_is_registered_once_and_found_again() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    for _ in 0..2 {
        let Registered::Same(def) = client.put_task_def(&wanted()).await.unwrap() else {
            panic!("it differs from itself")
        };
        assert_eq!(def.id.unwrap().name, "greet");
    }
    assert_eq!(client.get_task_def("greet").await.unwrap().input_vars.len(), 1);
    let version = client.server_version().await.unwrap();
    assert_eq!((version.major_version, version.minor_version), (1, 3));
    // All over one connection.
    assert_eq!(double.connections(0), 1);
}

#[tokio::test]
async fn another_task_def_of_the_name_is_shown_beside_ours() {
    let double = Double::start(Options::default()).await.unwrap();
    double.put_task_def("default", json_task("greet")).unwrap();
    let registered = client(&double).put_task_def(&wanted()).await.unwrap();
    assert!(matches!(registered, Registered::Differs(_)));
    let told = registered.must_be(&wanted()).unwrap_err().to_string();
    assert!(told.contains("registered: (workflow: JSON_OBJ) -> JSON_OBJ"), "{told}");
    assert!(told.contains("wanted:     (name: STR) -> STR"), "{told}");
}

#[tokio::test]
async fn a_bad_name_is_refused_before_it_is_sent() {
    let double = Double::start(Options::default()).await.unwrap();
    let error = client(&double).put_task_def(&NewTaskDef::new("greet me")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the name \"greet me\" of a TaskDef: may have letters, digits and hyphens only"
    );
    assert_eq!(double.journal().calls(Method::PutTaskDef), 0);
}

#[tokio::test]
async fn a_fresh_task_def_is_waited_for_and_a_missing_one_is_not_for_ever() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    client.put_task_def(&wanted()).await.unwrap();
    // It is seen at the third look.
    double.inject(Method::GetTaskDef, Fault::Refuse(Status::not_found("not yet")), 2);
    client.get_task_def("greet").await.unwrap();
    assert_eq!(double.journal().calls(Method::GetTaskDef), 3);
    let error = client.get_task_def("missing").await.unwrap_err();
    assert_eq!(error.to_string(), "the TaskDef missing is not there");
}

#[tokio::test]
async fn every_call_has_its_tenant_and_its_deadline() {
    let double = Double::start(Options::default().tenant("acme")).await.unwrap();
    let acme = Client::new(Config { tenant: Some("acme".into()), ..config(&double) }).unwrap();
    acme.put_task_def(&wanted()).await.unwrap();
    let events = double.journal().events();
    let (metadata, deadline) = events
        .iter()
        .find_map(|event| match &event.what {
            What::Call { metadata, deadline, .. } => Some((metadata.clone(), *deadline)),
            _ => None,
        })
        .unwrap();
    assert_eq!(metadata.get("tenantid").map(String::as_str), Some("acme"));
    assert!(deadline.is_some_and(|deadline| deadline <= Duration::from_secs(30)), "{deadline:?}");
    // Tenants do not see each other's.
    let error = client(&double).get_task_def("greet").await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    // An empty name is none.
    let unnamed = Client::new(Config { tenant: Some(String::new()), ..config(&double) }).unwrap();
    unnamed.server_version().await.unwrap();
    let told = Client::new(Config { tenant: Some("nobody".into()), ..config(&double) }).unwrap();
    let error = told.put_task_def(&wanted()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_quota_is_waited_for_unless_the_settings_say_no() {
    let double = Double::start(Options::default()).await.unwrap();
    let refusal = || Fault::Refuse(quota(Duration::from_millis(300)));
    double.inject(Method::GetServerVersion, refusal(), 2);
    let began = std::time::Instant::now();
    client(&double).server_version().await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert_eq!(double.journal().calls(Method::GetServerVersion), 3);
    double.inject(Method::GetServerVersion, refusal(), 1);
    let hasty = Client::new(Config { wait_for_quota: false, ..config(&double) }).unwrap();
    let error = hasty.server_version().await.unwrap_err();
    let Error::Exhausted { retry_after, .. } = error else { panic!("{error}") };
    assert_eq!(retry_after, Some(Duration::from_millis(300)));
    // A wait that nobody can want is not waited.
    double.inject(Method::GetServerVersion, Fault::Refuse(quota(Duration::from_secs(3600))), 1);
    assert!(client(&double).server_version().await.is_err());
}

#[tokio::test]
async fn a_call_that_is_never_answered_ends_at_its_deadline() {
    let double = Double::start(Options::default()).await.unwrap();
    double.inject(Method::GetServerVersion, Fault::Hang, 1);
    let hasty = Client::new(Config { deadline: Duration::from_secs(4), ..config(&double) }).unwrap();
    let error = hasty.server_version().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    hasty.server_version().await.unwrap();
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let double = Double::start(Options::default()).await.unwrap();
    let client = client(&double);
    client.server_version().await.unwrap();
    double.down(0).await.unwrap();
    let error = client.server_version().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    double.up(0).unwrap();
    client.server_version().await.unwrap();
    double.goaway(0);
    client.server_version().await.unwrap();
}

/// Any host of a cluster answers for all of them.
#[tokio::test]
async fn another_host_is_asked_when_the_first_is_away() {
    let double = Double::start(Options::default().hosts(2)).await.unwrap();
    let run = double.schedule(NewRun::json("run-1", "{}").at(1));
    let client = client(&double);
    let intake = Intake::open(client.clone(), IntakeOptions::new("execute-comfyui-workflow"));
    let delivery = intake.take().await.unwrap();
    assert_eq!(delivery.host.port, double.port(1));
    double.down(0).await.unwrap();
    let found = client.get_task_run(&id(&run)).await.unwrap();
    assert_eq!(found.attempts.len(), 1);
    double.down(1).await.unwrap();
    let error = client.get_task_run(&id(&run)).await.unwrap_err();
    // The one of the settings is what people know.
    assert!(error.to_string().starts_with(&format!("127.0.0.1:{} does", double.port(0))), "{error}");
}

#[tokio::test]
async fn a_task_run_and_its_checkpoints_can_be_read() {
    let double = Double::start(Options::default()).await.unwrap();
    let run = double.schedule(NewRun::json("run-1", "{}").timeout(Duration::from_secs(7)));
    let client = client(&double);
    let found = client.get_task_run(&id(&run)).await.unwrap();
    assert_eq!((found.timeout_seconds, found.attempts.len()), (7, 1));
    let missing = proto::TaskRunId { task_guid: "9-9".into(), ..id(&run) };
    let error = client.get_task_run(&missing).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    // An attempt that was not handed out yet is told to stop.
    let answer = client
        .put_checkpoint(proto::PutCheckpointRequest {
            task_run_id: Some(id(&run)),
            task_attempt: 0,
            value: Some(Value::from("x").into()),
            logs: None,
        })
        .await
        .unwrap();
    assert_eq!(
        answer.flow_control_continue_type(),
        proto::put_checkpoint_response::FlowControlContinue::StopTask
    );
}

#[tokio::test]
async fn a_checkpoint_that_is_too_large_is_not_sent() {
    let double = Double::start(Options::default()).await.unwrap();
    let run = double.schedule(NewRun::json("run-1", "{}"));
    let request = proto::PutCheckpointRequest {
        task_run_id: Some(id(&run)),
        task_attempt: 0,
        value: Some(Value::Bytes(vec![0; 1_000_000]).into()),
        logs: None,
    };
    let error = client(&double).put_checkpoint(request).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(double.journal().calls(Method::PutCheckpoint), 0);
}

#[tokio::test]
async fn a_refusal_is_told_in_the_servers_words() {
    let double = Double::start(Options::default()).await.unwrap();
    double.inject(Method::GetServerVersion, Fault::Refuse(Status::permission_denied("no TASK/READ")), 1);
    let error = client(&double).server_version().await.unwrap_err();
    assert_eq!(error.to_string(), "GetServerVersion was refused (PermissionDenied): no TASK/READ");
    assert!(!error.is_transient());
}
