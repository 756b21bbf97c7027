//! The double and a real LittleHorse server are asked the same, and answer the same.
//!
//! `cargo xtask test --littlehorse` fetches the server and runs this.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use littlehorse::proto::little_horse_client::LittleHorseClient;
use littlehorse::proto::variable_value::Value;
use littlehorse::proto::{
    self as client, CheckpointId, LhTaskException, PollTaskRequest, PutCheckpointRequest, PutTaskDefRequest,
    ReportTaskRun, TaskDefId, TaskRunId, TaskStatus, VariableValue, WfRunId, report_task_run, task_attempt,
};
use littlehorse_double::{Double, NewRun, Options, Run};
use remuda_testbed::littlehorse::{Input, LittleHorseServer, Workflow, Workflows};
use remuda_testbed::wait;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

const TASK: &str = "asked-the-same";
const WORKER: &str = "somebody";
/// What a server writes in its own way.
const JSON: &str = r#"{"b": 18446744073709551615, "a": [8.0, 1e-05, 1e3, 12345678.9, 0.001, -0.0, 1e300, 7, null, true],
    "text": "<&='>\"\\/\u00e9\n\u2028\u0007", "": {}}"#;
const PATIENCE: Duration = Duration::from_secs(180);

/// Who is asked.
enum Server {
    Double(Box<Double>, Mutex<HashMap<String, Run>>),
    Real(Workflows, u16),
}

impl Server {
    fn port(&self) -> u16 {
        match self {
            Server::Double(double, _) => double.port(0),
            Server::Real(_, port) => *port,
        }
    }

    /// Starts a run of a workflow whose only step is the task.
    async fn run(&self, id: &str, attempts: i32, seconds: u64) {
        let time = Duration::from_secs(seconds);
        match self {
            Server::Double(double, runs) => {
                let new = NewRun::json(id, JSON).rewritten().task(TASK).attempts(attempts).timeout(time);
                runs.lock().unwrap().insert(id.to_owned(), double.schedule(new));
            }
            Server::Real(workflows, _) => {
                let name = format!("{TASK}-{attempts}-{seconds}");
                let workflow = Workflow { name, ..Workflow::of(TASK, Input::Json) };
                let workflow = workflow.retries(attempts - 1).timeout(time);
                workflows.put(&workflow).await.expect("a workflow");
                workflows.run(&workflow, id, JSON).await.expect("a run");
            }
        }
    }

    async fn delete(&self, id: &str) {
        match self {
            Server::Double(_, runs) => runs.lock().unwrap()[id].delete(),
            Server::Real(workflows, _) => workflows.delete(id).await.expect("a deletion"),
        }
    }
}

/// What was asked and answered, in lines.
struct Talk<'s> {
    server: &'s Server,
    client: LittleHorseClient<Channel>,
    lines: Vec<String>,
}

impl Talk<'_> {
    fn note(&mut self, asked: &str, answered: impl Debug) {
        self.lines.push(format!("{asked}: {answered:?}"));
    }

    /// The status of a call, and nothing of what it returned.
    fn status<T>(&mut self, asked: &str, answered: &Result<Response<T>, Status>) {
        match answered {
            Ok(_) => self.note(asked, "OK"),
            Err(status) => self.note(asked, (status.code(), status.message())),
        }
    }

    /// What the server knows of a task.
    async fn known(&self, id: &str) -> String {
        let known = match self.client.clone().get_task_run(run(id)).await {
            Ok(known) => known.into_inner(),
            Err(status) => return format!("{:?} {}", status.code(), status.message()),
        };
        let attempts: Vec<String> = known
            .attempts
            .iter()
            .map(|attempt| {
                let result = match &attempt.result {
                    Some(task_attempt::Result::Output(value)) => format!("{:?}", value.value),
                    Some(task_attempt::Result::Error(error)) => format!("{error:?}"),
                    Some(task_attempt::Result::Exception(thrown)) => format!("{thrown:?}"),
                    None => "nothing".to_owned(),
                };
                let log = attempt.log_output.as_ref().map(|log| format!("{:?}", log.value));
                format!(
                    "{:?} by {} {:?} with {result}, log {log:?}, begun {} ended {}",
                    attempt.status(),
                    attempt.task_worker_id,
                    attempt.task_worker_version,
                    attempt.start_time.is_some(),
                    attempt.end_time.is_some(),
                )
            })
            .collect();
        format!(
            "{:?}, {} s, {} attempts in all, {} checkpoints: {attempts:?}",
            known.status(),
            known.timeout_seconds,
            known.total_attempts,
            known.total_checkpoints
        )
    }

    /// Notes what is known as soon as a task has this status: the real server needs a moment for everything.
    async fn look(&mut self, asked: &str, id: &str, status: TaskStatus) {
        let begins = format!("{status:?},");
        let look = async || {
            let known = self.known(id).await;
            if known.starts_with(&begins) { Ok(known) } else { Err(known) }
        };
        let known = wait::until(asked, PATIENCE, look).await;
        self.note(asked, known);
    }

    async fn report(&mut self, asked: &str, report: ReportTaskRun) {
        let answered = self.client.report_task(report).await;
        self.status(asked, &answered);
    }

    async fn checkpoint(&mut self, asked: &str, id: &str, task_attempt: i32) {
        let value = Some(VariableValue { value: Some(Value::Str("kept".to_owned())) });
        let request = PutCheckpointRequest {
            task_run_id: Some(run(id)),
            task_attempt,
            value,
            logs: Some(String::new()),
        };
        match self.client.put_checkpoint(request).await.map(Response::into_inner) {
            Ok(answer) => {
                let made = answer.created_checkpoint.as_ref().and_then(|made| made.id.as_ref());
                let number = made.map(|id| id.checkpoint_number);
                self.note(asked, (answer.flow_control_continue_type(), number));
            }
            Err(status) => self.note(asked, (status.code(), status.message())),
        }
    }
}

/// The id of the only task of a run.
fn run(id: &str) -> TaskRunId {
    let wf_run_id = Some(WfRunId { id: id.to_owned(), parent_wf_run_id: None });
    TaskRunId { wf_run_id, task_guid: "0-1".to_owned() }
}

fn def(name: &str) -> PutTaskDefRequest {
    let def = littlehorse::NewTaskDef::new(name).input("workflow", littlehorse::Type::JsonObj);
    def.returns(littlehorse::Type::JsonObj).request
}

fn ask() -> PollTaskRequest {
    PollTaskRequest {
        task_def_id: Some(TaskDefId { name: TASK.to_owned() }),
        client_id: WORKER.to_owned(),
        task_worker_version: Some("v1".to_owned()),
    }
}

fn output(id: &str, attempt_number: i32, json: &str) -> ReportTaskRun {
    let output = VariableValue { value: Some(Value::JsonObj(json.to_owned())) };
    ReportTaskRun {
        task_run_id: Some(run(id)),
        status: TaskStatus::TaskSuccess as i32,
        attempt_number,
        log_output: Some(VariableValue { value: Some(Value::Str("a line".to_owned())) }),
        result: Some(report_task_run::Result::Output(output)),
        ..ReportTaskRun::default()
    }
}

fn failed(id: &str, attempt: i32) -> ReportTaskRun {
    let error = client::LhTaskError {
        r#type: client::LhErrorType::TaskFailure as i32,
        message: "it broke".to_owned(),
    };
    ReportTaskRun {
        status: TaskStatus::TaskFailed as i32,
        result: Some(report_task_run::Result::Error(error)),
        ..output(id, attempt, "{}")
    }
}

fn thrown(id: &str) -> ReportTaskRun {
    let exception = LhTaskException {
        name: "no-paper".to_owned(),
        message: "there is none".to_owned(),
        content: Some(VariableValue { value: Some(Value::JsonObj("{}".to_owned())) }),
    };
    ReportTaskRun {
        status: TaskStatus::TaskException as i32,
        result: Some(report_task_run::Result::Exception(exception)),
        ..output(id, 0, "{}")
    }
}

/// A stream with one request in it.
struct Stream {
    requests: mpsc::Sender<PollTaskRequest>,
    answers: Streaming<client::PollTaskResponse>,
}

impl Stream {
    /// Answers begin with the first task, so there has to be one.
    async fn open(client: &LittleHorseClient<Channel>) -> Stream {
        let (requests, asked) = mpsc::channel(8);
        requests.send(ask()).await.expect("room");
        let answers = client.clone().poll_task(ReceiverStream::new(asked)).await.expect("a stream");
        Stream { requests, answers: answers.into_inner() }
    }

    async fn ask(&self) {
        self.requests.send(ask()).await.expect("room");
    }

    /// The next task in words, without its times and the name of its workflow.
    async fn next(&mut self) -> String {
        let answer = timeout(PATIENCE, self.answers.message()).await.expect("an answer").expect("no error");
        let mut task = answer.expect("not the end").result.expect("a task");
        assert!(task.created_at.take().is_some());
        if let Some(source) = &mut task.source {
            source.wf_spec_id = None;
        }
        format!("{task:?}")
    }
}

async fn talk(server: &Server) -> Vec<String> {
    let channel = Channel::from_shared(format!("http://127.0.0.1:{}", server.port())).expect("an address");
    let client = LittleHorseClient::new(channel.connect().await.expect("a connection"));
    let mut talk = Talk { server, client, lines: Vec::new() };
    definitions(&mut talk).await;
    strangers(&mut talk).await;
    first_run(&mut talk).await;
    ends(&mut talk).await;
    timeouts(&mut talk).await;
    half_close(&mut talk).await;
    talk.lines
}

async fn definitions(talk: &mut Talk<'_>) {
    let name = |name: &str| TaskDefId { name: name.to_owned() };
    let answered = talk.client.get_task_def(name("nobody")).await;
    talk.status("look up what is not there", &answered);
    let answered = talk.client.put_task_def(def("Bad_Name")).await;
    talk.status("register a bad name", &answered);
    let answered = talk.client.put_task_def(def(TASK)).await;
    talk.status("register", &answered);
    let look =
        async || talk.client.clone().get_task_def(name(TASK)).await.map_err(|status| status.to_string());
    let mut found = wait::until("the TaskDef", PATIENCE, look).await.expect("the TaskDef").into_inner();
    assert!(found.created_at.take().is_some());
    talk.note("look it up", found);
    let answered = talk.client.put_task_def(def(TASK)).await;
    talk.status("register again", &answered);
    let other = PutTaskDefRequest { description: Some("other".to_owned()), ..def(TASK) };
    let answered = talk.client.put_task_def(other).await;
    talk.status("register another", &answered);
    for task in [TASK, "nobody"] {
        let task_def_id = Some(name(task));
        let heartbeat = client::RegisterTaskWorkerRequest { task_worker_id: WORKER.to_owned(), task_def_id };
        let answer = talk.client.register_task_worker(heartbeat).await.expect("an answer").into_inner();
        let own = u16::try_from(answer.your_hosts[0].port) == Ok(talk.server.port());
        talk.note(
            "heartbeat",
            (answer.your_hosts.len(), &answer.your_hosts[0].host, own, answer.is_cluster_healthy),
        );
    }
}

async fn strangers(talk: &mut Talk<'_>) {
    for tenant in ["nobody", ""] {
        let mut request = Request::new(());
        request.metadata_mut().insert("tenantid", tenant.parse().expect("a value"));
        let answered = talk.client.get_server_version(request).await;
        talk.status("version for a stranger", &answered);
        let mut request = Request::new(tokio_stream::iter([ask()]));
        request.metadata_mut().insert("tenantid", tenant.parse().expect("a value"));
        let answered = talk.client.poll_task(request).await;
        talk.status("poll for a stranger", &answered);
    }
}

async fn first_run(talk: &mut Talk<'_>) {
    talk.server.run("first", 2, 60).await;
    let mut stream = Stream::open(&talk.client).await;
    let task = stream.next().await;
    talk.note("the first task", task);
    talk.look("it runs", "first", TaskStatus::TaskRunning).await;
    talk.checkpoint("keep", "first", 0).await;
    talk.checkpoint("keep for a later attempt", "first", 7).await;
    talk.checkpoint("keep for nobody", "nobody", 0).await;
    for number in [0, 5] {
        let id = CheckpointId { task_run: Some(run("first")), checkpoint_number: number };
        let answered = talk.client.get_checkpoint(id).await;
        talk.status("read what was kept", &answered);
    }
    let nobody = talk.known("nobody").await;
    talk.note("a task that is not there", nobody);
    talk.report("report of nobody", output("nobody", 0, "{}")).await;
    talk.report("report of nothing", ReportTaskRun::default()).await;
    talk.report("report of a later attempt", output("first", 7, "{}")).await;
    talk.report("success without output", ReportTaskRun { result: None, ..output("first", 0, "{}") }).await;
    let odd = ReportTaskRun { result: failed("first", 0).result, ..thrown("first") };
    talk.report("exception with an error", odd).await;
    // None of these changes anything; the checkpoint shows that they were read before it.
    talk.checkpoint("still there", "first", 0).await;
    talk.look("still running", "first", TaskStatus::TaskRunning).await;
    talk.report("1.1 MB", output("first", 0, &format!("{{\"a\":\"{}\"}}", "x".repeat(1_100_000)))).await;
    let large = output("first", 0, &"x".repeat(5 << 20));
    let answered = talk.client.report_task(large).await.map_err(|status| status.code());
    talk.note("5 MB", answered.map(drop));
    talk.report("failed", failed("first", 0)).await;
    stream.ask().await;
    let task = stream.next().await;
    talk.note("the second attempt", task);
    talk.report("late", output("first", 0, "{}")).await;
    talk.checkpoint("late", "first", 0).await;
    talk.report("bad JSON", output("first", 1, "not JSON")).await;
    talk.look("over", "first", TaskStatus::TaskOutputSerdeError).await;
    talk.server.delete("first").await;
    let gone = async || match talk.known("first").await {
        known if known.starts_with("NotFound") => Ok(known),
        known => Err(known),
    };
    let gone = wait::until("the deletion", PATIENCE, gone).await;
    talk.note("deleted", gone);
    talk.report("report of what was deleted", output("first", 1, "{}")).await;
    talk.checkpoint("keep for what was deleted", "first", 1).await;
}

async fn ends(talk: &mut Talk<'_>) {
    let other = VariableValue { value: Some(Value::Str("text".to_owned())) };
    let other = ReportTaskRun {
        result: Some(report_task_run::Result::Output(other)),
        ..output("other-type", 0, "{}")
    };
    let nothing = ReportTaskRun {
        result: Some(report_task_run::Result::Output(VariableValue::default())),
        ..output("nothing", 0, "{}")
    };
    let cases = [
        ("success", output("success", 0, JSON), TaskStatus::TaskSuccess),
        ("nothing", nothing, TaskStatus::TaskSuccess),
        ("other-type", other, TaskStatus::TaskOutputSerdeError),
        ("not-an-object", output("not-an-object", 0, "[1]"), TaskStatus::TaskOutputSerdeError),
        ("exception", thrown("exception"), TaskStatus::TaskException),
        ("failed", failed("failed", 0), TaskStatus::TaskFailed),
    ];
    for (id, report, status) in cases {
        talk.server.run(id, 1, 60).await;
        let mut stream = Stream::open(&talk.client).await;
        stream.next().await;
        talk.report(id, report.clone()).await;
        talk.look(id, id, status).await;
        talk.report("again", ReportTaskRun { status: TaskStatus::TaskFailed as i32, ..report }).await;
        talk.checkpoint("too late", id, 0).await;
        talk.look(id, id, status).await;
    }
}

async fn timeouts(talk: &mut Talk<'_>) {
    talk.server.run("slow", 2, 2).await;
    let mut stream = Stream::open(&talk.client).await;
    stream.next().await;
    stream.ask().await;
    let task = stream.next().await;
    talk.note("after the timeout", task);
    talk.look("the second attempt", "slow", TaskStatus::TaskRunning).await;
    talk.report("too late", output("slow", 0, "{}")).await;
    talk.look("both over", "slow", TaskStatus::TaskTimeout).await;
}

async fn half_close(talk: &mut Talk<'_>) {
    talk.server.run("before", 1, 60).await;
    let mut stream = Stream::open(&talk.client).await;
    stream.next().await;
    stream.ask().await;
    let Stream { requests, mut answers } = stream;
    drop(requests);
    // It does not end.
    assert!(timeout(Duration::from_secs(1), answers.message()).await.is_err());
    talk.server.run("after", 1, 60).await;
    talk.look("not handed out", "after", TaskStatus::TaskScheduled).await;
    let mut other = Stream::open(&talk.client).await;
    let task = other.next().await;
    talk.note("handed to another stream", task);
    assert!(timeout(Duration::from_millis(200), answers.message()).await.is_err());
}

#[tokio::test]
async fn the_double_answers_as_the_real_server() {
    let real = LittleHorseServer::start().await.unwrap_or_else(|error| panic!("{error}"));
    let wanted = talk(&Server::Real(real.workflows(), real.port())).await;
    let double = Double::start(Options::default()).await.expect("a double");
    let seen = talk(&Server::Double(Box::new(double), Mutex::default())).await;
    let differences: Vec<String> = wanted
        .iter()
        .zip(&seen)
        .filter(|(wanted, seen)| wanted != seen)
        .map(|(wanted, seen)| format!("real:   {wanted}\ndouble: {seen}"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(wanted.len(), seen.len());
}
