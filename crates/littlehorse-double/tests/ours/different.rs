//! Where our worker must differ from the official SDK: each of these recordings is played, and the difference is the one that
//! is meant, and no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use littlehorse::{Client, Health, TaskContext, Worker};
use littlehorse_double::proto::{ReportTaskRun, TaskStatus};
use littlehorse_double::recording::{Difference, Lane, Line, Transcript, compare};
use littlehorse_double::{Double, Event, Fault, Method, OAuth, Options, Run, What};
use prost::Message as _;
use serde_json::Value as Json;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::scenarios::{Scenario, WORKER};
use crate::{client, config, settle, task, worker};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(180);

/// One recording that is played.
struct Play {
    scenario: Scenario,
    running: JoinHandle<littlehorse::Result<()>>,
    stop: CancellationToken,
}

impl Play {
    async fn begin(name: &'static str) -> Self {
        Self::with(Scenario::new(name, Some(Arc::default())).await, |worker| worker)
    }

    fn with(scenario: Scenario, tune: impl FnOnce(Worker) -> Worker) -> Self {
        scenario.prepare();
        let (worker, stop) = worker(&scenario);
        Self::run(scenario, tune(worker), stop)
    }

    fn run(scenario: Scenario, worker: Worker, stop: CancellationToken) -> Self {
        let running = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
        Self { scenario, running, stop }
    }

    fn double(&self) -> &Double {
        &self.scenario.double
    }

    /// The next task of the recording.
    fn schedule(&self, n: usize) -> Run {
        self.double().schedule(self.scenario.runs().remove(n))
    }

    fn schedule_all(&self) -> Vec<Run> {
        self.scenario.runs().into_iter().map(|run| self.double().schedule(run)).collect()
    }

    /// Waits until a task function runs.
    async fn begun(&self) {
        let begun = self.scenario.begun.as_ref().expect("a worker that tells");
        timeout(LONG, begun.notified()).await.expect("a task to begin");
    }

    /// Waits until this many things of a kind happened.
    async fn count(&self, least: usize, kind: impl Fn(&Event) -> bool) {
        timeout(LONG, self.double().journal().count(least, kind)).await.unwrap_or_else(|_| {
            let heard: Vec<String> =
                self.double().journal().events().iter().map(|event| format!("{event:?}")).collect();
            panic!("{}: so far\n{}", self.scenario.name, heard.join("\n"));
        });
    }

    /// Waits until this many tasks were asked for: those before are over then.
    async fn asked(&self, times: usize) {
        self.count(times, |event| matches!(event.what, What::Asked(_))).await;
    }

    fn reports(&self) -> Vec<ReportTaskRun> {
        self.double().journal().reports()
    }

    /// Where what was said is not what was recorded.
    fn differences(&self) -> Vec<Difference> {
        let settled = |transcript| {
            // Whether a report that failed, or a task that waited, is still wanted is asked by us alone, and only if need be.
            let transcript = settle(self.scenario.name, transcript);
            transcript.without(|_, line| matches!(line.kind.as_str(), "GetTaskRun" | "GetTaskRun answer"))
        };
        let recorded = settled(Transcript::of_recording(&self.scenario.recording));
        compare(&recorded, &settled(Transcript::of_journal(&self.double().journal().events())))
    }

    /// Only of what was said of tasks: when streams are opened and closed depends on the moment.
    fn differences_of_tasks(&self) -> Vec<Difference> {
        let of_task = |difference: &Difference| matches!(difference.lane, Lane::Task(_));
        self.differences().into_iter().filter(of_task).collect()
    }

    /// Waits for heartbeats that began after now.
    async fn heartbeats(&self, count: usize) {
        let least = self.double().journal().calls(Method::RegisterTaskWorker) + count;
        self.count(least, |event| event.method == Method::RegisterTaskWorker && event.is_beginning()).await;
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(LONG, self.running).await.expect("an end").expect("no panic").expect("a good end");
    }
}

/// Differences in few words: where, what was recorded, and what was said instead.
fn words(differences: &[Difference]) -> Vec<String> {
    let kind = |line: &Option<Line>| line.as_ref().map_or("nothing".to_owned(), |line| line.kind.clone());
    let word = |difference: &Difference| {
        format!("{}: {} -> {}", difference.lane, kind(&difference.wanted), kind(&difference.seen))
    };
    differences.iter().map(word).collect()
}

/// The statuses of two reports that differ: as recorded, and ours.
fn statuses(difference: &Difference) -> [Json; 2] {
    [&difference.wanted, &difference.seen]
        .map(|line| line.as_ref().map_or(Json::Null, |line| line.message["status"].clone()))
}

async fn ended(run: &Run) -> TaskStatus {
    timeout(LONG, run.ended()).await.expect("the task to end").status()
}

/// The SDK never reports it, and the thread that had it is lost: the second task is never begun.
#[tokio::test]
async fn a_json_input_that_does_not_parse_is_reported() {
    let play = Play::begin("input-bad-json").await;
    let runs = play.schedule_all();
    assert_eq!(ended(&runs[0]).await, TaskStatus::TaskInputVarSubError);
    assert_eq!(ended(&runs[1]).await, TaskStatus::TaskSuccess);
    play.asked(3).await;
    let expected = [
        "stream 1 of host 1: nothing -> PollTask ask",
        "task wfrun-1/0-1: nothing -> ReportTask",
        "task wfrun-1/0-1: nothing -> ReportTask answer",
        "task wfrun-2/0-1: nothing -> ReportTask",
        "task wfrun-2/0-1: nothing -> ReportTask answer",
    ];
    assert_eq!(words(&play.differences()), expected);
    play.end().await;
}

/// To the SDK it is a failure, which is tried again and fails again.
#[tokio::test]
async fn an_output_that_cannot_be_written_is_not_tried_again() {
    let scenario = Scenario::new("output-not-serialisable", None).await;
    let function = |_: TaskContext, _: Json| async { Ok(BTreeMap::from([((1, 2), 3)])) };
    let worker = Worker::new(client(scenario.settings()), task(scenario.name), function).register();
    let play = Play::run(scenario, worker, CancellationToken::new());
    let run = play.schedule(0);
    assert_eq!(ended(&run).await, TaskStatus::TaskOutputSerdeError);
    play.asked(2).await;
    let differences = play.differences();
    assert_eq!(words(&differences), ["task wfrun-1/0-1: ReportTask -> ReportTask"]);
    assert_eq!(statuses(&differences[0]), ["TASK_FAILED", "TASK_OUTPUT_SERDE_ERROR"]);
    play.end().await;
}

/// The SDK's limit is per host: with one thread and two hosts two tasks run at once. And it lets go of its hosts when the
/// cluster is about to deal them anew.
#[tokio::test]
async fn one_place_is_one_place_over_all_hosts() {
    let play = Play::begin("rebalance").await;
    let double = play.double();
    let parked = async |host, count| {
        timeout(LONG, double.until_parked(host, count)).await.expect("so many requests");
    };
    parked(0, 1).await;
    double.assign(WORKER, Some(vec![0, 1]));
    parked(1, 1).await;
    let (first, second) = (play.schedule(0), play.schedule(1));
    play.begun().await;
    let running = |run: &Run| run.task_run().expect("a run").status() == TaskStatus::TaskRunning;
    play.begun().await;
    assert!(!running(&first) || !running(&second), "both at once");
    for run in [&first, &second] {
        assert_eq!(ended(run).await, TaskStatus::TaskSuccess);
    }
    double.assign(WORKER, Some(vec![1]));
    play.heartbeats(2).await;
    parked(0, 0).await;
    assert_eq!(ended(&play.schedule(2)).await, TaskStatus::TaskSuccess);
    parked(1, 1).await;
    double.set_healthy(Some(false));
    double.assign(WORKER, Some(Vec::new()));
    play.heartbeats(2).await;
    assert_eq!(double.parked(1), 1, "what it has goes on until it is dealt anew");
    assert_eq!(words(&play.differences_of_tasks()), [""; 0], "every task was reported as it was recorded");
    play.end().await;
}

/// The SDK sends again what was refused for its size.
#[tokio::test]
async fn what_is_too_large_is_made_smaller() {
    let play = Play::begin("report-resource-exhausted").await;
    assert_eq!(ended(&play.schedule(0)).await, TaskStatus::TaskSuccess);
    play.asked(2).await;
    // Refused for the quota, refused for its size, and heard.
    let reports = play.reports();
    let [first, again, less] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(first, again);
    assert!(less.encoded_len() < again.encoded_len(), "{less:?}");
    assert_eq!((&less.result, &less.log_output), (&first.result, &None));
    let mut differences = play.differences();
    assert_eq!(words(&differences), ["task wfrun-1/0-1: ReportTask -> ReportTask"]);
    let recorded = differences[0].wanted.as_mut().expect("a report");
    assert!(recorded.message.as_object_mut().is_some_and(|report| report.remove("log_output").is_some()));
    assert_eq!(differences[0].wanted, differences[0].seen, "nothing but the log is missing");
    play.end().await;
}

/// The same but for the pause: the SDK waits two seconds after its deadline.
#[tokio::test]
async fn a_report_without_an_answer_is_made_again() {
    let scenario = Scenario::new("report-hangs", Some(Arc::default())).await;
    scenario.double.inject(Method::ReportTask, Fault::Hang, 1);
    // Nobody here waits for 30 s. How long is told with every call, and left out below.
    let hasty = littlehorse::Config { deadline: Duration::from_secs(8), ..config(scenario.settings()) };
    let worker =
        Worker::new(Client::new(hasty).expect("a client"), task(scenario.name), |context, workflow| {
            crate::render("report-hangs", context, workflow)
        });
    let play = Play::run(scenario, worker.register(), CancellationToken::new());
    assert_eq!(ended(&play.schedule(0)).await, TaskStatus::TaskSuccess);
    play.asked(2).await;
    let mut differences = play.differences();
    for difference in &mut differences {
        let lines = [&mut difference.wanted, &mut difference.seen].into_iter().flatten();
        lines.for_each(|line| line.deadline = None);
    }
    differences.retain(|difference| difference.wanted != difference.seen);
    assert_eq!(words(&differences), [""; 0]);
    assert_eq!(play.reports().len(), 2);
    play.end().await;
}

/// The SDK gives the result up after half a minute, though the server comes back.
#[tokio::test]
async fn a_result_is_kept_for_a_server_that_is_away_for_long() {
    let play = Play::begin("server-down-45s-busy").await;
    let run = play.schedule(0);
    play.begun().await;
    play.double().down(0).await.expect("down");
    // For longer than the SDK tries: 15 times with pauses of two seconds.
    tokio::time::sleep(Duration::from_secs(36)).await;
    play.double().up(0).expect("up");
    assert_eq!(ended(&run).await, TaskStatus::TaskSuccess);
    play.asked(2).await;
    let expected =
        ["task wfrun-1/0-1: nothing -> ReportTask", "task wfrun-1/0-1: nothing -> ReportTask answer"];
    assert_eq!(words(&play.differences_of_tasks()), expected);
    play.end().await;
}

/// The SDK has claimed a task beyond its threads, and runs it after the signal.
#[tokio::test]
async fn nothing_is_begun_after_the_signal() {
    let mut play = Play::begin("shutdown-busy-short").await;
    let runs = play.schedule_all();
    play.begun().await;
    play.stop.cancel();
    assert_eq!(ended(&runs[0]).await, TaskStatus::TaskSuccess);
    timeout(LONG, &mut play.running).await.expect("an end").expect("no panic").expect("a good end");
    assert_eq!(runs[1].task_run().expect("a run").status(), TaskStatus::TaskScheduled, "for somebody else");
    let expected =
        ["task wfrun-2/0-1: ReportTask -> nothing", "task wfrun-2/0-1: ReportTask answer -> nothing"];
    assert_eq!(words(&play.differences_of_tasks()), expected);
    assert_eq!(play.double().journal().asked(), 1, "for the one that runs");
}

/// The SDK waits for the rest of its heartbeat interval, whatever that is; here it is a setting.
#[tokio::test]
async fn what_runs_for_too_long_is_given_back_after_the_grace() {
    let scenario = Scenario::new("shutdown-busy-long", Some(Arc::default())).await;
    let play = Play::with(scenario, |worker| worker.grace(Duration::from_secs(1)));
    let run = play.schedule(0);
    play.begun().await;
    play.stop.cancel();
    assert_eq!(ended(&run).await, TaskStatus::TaskFailed);
    // When it is answered, the report is complete.
    play.count(1, |event| event.method == Method::ReportTask && matches!(event.what, What::Answer(_))).await;
    assert_eq!(words(&play.differences_of_tasks()), [""; 0], "reported as it was recorded");
    assert_eq!(play.double().journal().asked(), 1, "the SDK asks for one more, which it could not begin");
    play.end().await;
}

/// The SDK exits.
#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    let scenario = Scenario::new("start-unreachable", Some(Arc::default())).await;
    scenario.double.down(0).await.expect("down");
    let (worker, stop) = worker(&scenario);
    let mut health = worker.health();
    let play = Play::run(scenario, worker, stop);
    let away = health.wait_for(|health| matches!(health, Health::Unhealthy(_)));
    timeout(LONG, away).await.expect("in time").expect("a worker");
    assert!(!play.running.is_finished() && play.differences().is_empty(), "nothing was said");
    play.double().up(0).expect("up");
    play.asked(1).await;
    let expected = [
        "TaskDefs and heartbeats: nothing -> PutTaskDef",
        "TaskDefs and heartbeats: nothing -> PutTaskDef answer",
        "TaskDefs and heartbeats: nothing -> GetTaskDef",
        "TaskDefs and heartbeats: nothing -> GetTaskDef answer",
        "TaskDefs and heartbeats: nothing -> RegisterTaskWorker",
        "TaskDefs and heartbeats: nothing -> RegisterTaskWorker answer",
        "stream 1 of host 1: nothing -> PollTask open",
        "stream 1 of host 1: nothing -> PollTask ask",
    ];
    assert_eq!(words(&play.differences()), expected);
    play.end().await;
}

/// The SDK sends no token without TLS, and a server that wants one refuses it. We send it, as the Java SDK does, with a warning.
#[tokio::test]
async fn a_token_is_sent_without_tls() {
    let mut scenario = Scenario::new("oauth-on-plaintext", Some(Arc::default())).await;
    let oauth = OAuth {
        client_id: "comfy-worker".to_owned(),
        client_secret: "s3cr3t".to_owned(),
        lifetime: Duration::from_secs(300),
    };
    let options = Options { oauth: Some(oauth), ..Options::default() };
    scenario.double = Double::start(options).await.expect("a double");
    let url = scenario.double.tokens().expect("tokens").url();
    let settings = scenario.settings().into_iter().map(|(name, value)| match name.as_str() {
        "LHC_OAUTH_ACCESS_TOKEN_URL" => (name, url.clone()),
        _ => (name, value),
    });
    let worker = Worker::new(client(settings.collect()), task(scenario.name), |context, workflow| {
        crate::render("oauth-on-plaintext", context, workflow)
    });
    let play = Play::run(scenario, worker.register(), CancellationToken::new());
    assert_eq!(ended(&play.schedule(0)).await, TaskStatus::TaskSuccess);
    play.asked(2).await;
    let mut differences = play.differences();
    let expected = [
        "TaskDefs and heartbeats: PutTaskDef -> PutTaskDef",
        "TaskDefs and heartbeats: GetTaskDef -> GetTaskDef",
        "TaskDefs and heartbeats: RegisterTaskWorker -> RegisterTaskWorker",
        "stream 1 of host 1: PollTask open -> PollTask open",
        "task wfrun-1/0-1: ReportTask -> ReportTask",
    ];
    assert_eq!(words(&differences), expected);
    for line in differences.iter_mut().filter_map(|difference| difference.seen.as_mut()) {
        assert!(line.metadata.remove("authorization").is_some(), "{line}");
    }
    assert!(differences.iter().all(|difference| difference.seen == difference.wanted), "nothing but tokens");
    play.end().await;
}
