//! What was recorded, done again: the server's part of each recording, whoever the worker is.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use littlehorse_double::proto::{PollTaskResponse, WfRunId};
use littlehorse_double::recording::{Difference, Recording, Transcript, compare};
use littlehorse_double::{
    Double, Event, Fault, Method, NewRun, OAuth, Options, Tls, What, json_task, quota, too_large,
};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Status;

/// The longest of them takes 14 s on an idle machine.
const LONG: Duration = Duration::from_secs(180);
/// For this long nothing more may be said after the last thing that was recorded.
const QUIET: Duration = Duration::from_millis(300);
/// The worker's name in all recordings.
pub(crate) const WORKER: &str = "worker-under-test";
/// The life of a token in the recording with tokens.
const TOKEN: Duration = Duration::from_secs(8);

/// The credentials and the body of a request for a token.
type Asked = (String, String);

/// One recording and the double in front of which it happens again.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) recording: Recording,
    pub(crate) double: Double,
    /// Notified by a worker when it begins a task. Without it the worker asks for the next task when it has one.
    pub(crate) begun: Option<Arc<Notify>>,
}

/// All recordings.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../littlehorse/tests/recordings")
}

/// A file of the tests.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn pem(name: &str) -> String {
    std::fs::read_to_string(data(name)).expect("a certificate")
}

pub(crate) fn read(name: &str) -> Recording {
    Recording::read(&folder().join(format!("{name}.json"))).expect("a recording")
}

impl Scenario {
    pub(crate) async fn new(name: &'static str, begun: Option<Arc<Notify>>) -> Self {
        let tls = |clients| Some(Tls { certificate: pem("server.pem"), key: pem("server.key.pem"), clients });
        let oauth = || OAuth {
            client_id: "comfy-worker".to_owned(),
            client_secret: "s3cr3t".to_owned(),
            lifetime: TOKEN,
        };
        let local = Options { advertised: "localhost".to_owned(), ..Options::default() };
        let options = match name {
            "success-tenant-version" => Options::default().tenant("comfyui"),
            "rebalance" => Options::default().hosts(2),
            "tls-oauth-tenant" => Options { tls: tls(None), oauth: Some(oauth()), ..local }.tenant("comfyui"),
            "mtls" => Options { tls: tls(Some(pem("ca.pem"))), ..local },
            _ => Options::default(),
        };
        let double = Double::start(options).await.expect("a double");
        Self { name, recording: read(name), double, begun }
    }

    /// The settings that the worker had.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let path = |name| data(name).display().to_string();
        let host = match self.name {
            "tls-oauth-tenant" | "mtls" => "localhost",
            _ => "127.0.0.1",
        };
        let mut settings = vec![
            ("LHC_API_HOST", host.to_owned()),
            ("LHC_API_PORT", self.double.port(0).to_string()),
            ("LHW_TASK_WORKER_ID", WORKER.to_owned()),
        ];
        let oauth = |url: String| {
            [
                ("LHC_OAUTH_CLIENT_ID", "comfy-worker".to_owned()),
                ("LHC_OAUTH_CLIENT_SECRET", "s3cr3t".to_owned()),
                ("LHC_OAUTH_ACCESS_TOKEN_URL", url),
            ]
        };
        let tls = [("LHC_API_PROTOCOL", "TLS".to_owned()), ("LHC_CA_CERT", path("ca.pem"))];
        let tenant = [("LHC_TENANT_ID", "comfyui".to_owned())];
        match self.name {
            "success-tenant-version" => {
                settings.extend(tenant);
                settings.push(("LHW_TASK_WORKER_VERSION", "v-7".to_owned()));
            }
            "two-threads-four-tasks" => settings.push(("LHW_NUM_WORKER_THREADS", "2".to_owned())),
            "one-thread-three-tasks" | "input-bad-json" | "rebalance" | "shutdown-busy-short" => {
                settings.push(("LHW_NUM_WORKER_THREADS", "1".to_owned()));
            }
            "tls-oauth-tenant" => {
                settings.extend(tenant);
                settings.extend(tls);
                settings.extend(oauth(self.double.tokens().expect("tokens").url()));
            }
            "mtls" => {
                settings.extend(tls);
                settings.push(("LHC_CLIENT_CERT", path("client.pem")));
                settings.push(("LHC_CLIENT_KEY", path("client.key.pem")));
            }
            // Nobody should ask there.
            "oauth-on-plaintext" => settings.extend(oauth("http://127.0.0.1:9/token".to_owned())),
            _ => {}
        }
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The tasks that were handed out, each once.
    pub(crate) fn runs(&self) -> Vec<NewRun> {
        let mut seen = HashSet::new();
        let tells = self.recording.events.iter().filter(|event| {
            event.method() == "PollTask" && event.kind == "stream-message" && !event.is_from_client()
        });
        let mut runs = Vec::new();
        for tell in tells {
            let raw = tell.raw().expect("the bytes of a task");
            let Some(task) = PollTaskResponse::decode(raw.as_slice()).expect("a task").result else {
                continue;
            };
            let id = task.task_run_id.expect("a task run");
            let (run, parents) = path(&id.wf_run_id.expect("a workflow run"));
            if !seen.insert((run.clone(), id.task_guid.clone())) {
                continue;
            }
            let tenant = match self.name {
                "success-tenant-version" | "tls-oauth-tenant" => "comfyui",
                _ => "default",
            };
            runs.push(NewRun {
                parents,
                guid: id.task_guid,
                first_attempt: task.attempt_number,
                host: usize::from(tell.server.as_deref() == Some("server-2")),
                ..NewRun::new(run, task.variables).tenant(tenant)
            });
        }
        runs
    }

    /// What has to be so before the worker starts.
    pub(crate) fn prepare(&self) {
        let refuse = |status: Status, times| {
            self.double.inject(Method::ReportTask, Fault::Refuse(status), times);
        };
        match self.name {
            "empty-poll-response" => self.double.inject(Method::PollTask, Fault::Nothing, 1),
            "report-retried" => {
                refuse(Status::unavailable("no leader"), 2);
                refuse(Status::invalid_argument("Provided taskRunId was invalid"), 1);
            }
            "report-resource-exhausted" => {
                refuse(quota(Duration::from_millis(1500)), 1);
                refuse(too_large(), 1);
            }
            "taskdef-conflict" => {
                let mut other = json_task("execute-comfyui-workflow");
                other.input_vars.clear();
                self.double.put_task_def("default", other).expect("the first of its name");
            }
            "rebalance" => self.double.assign(WORKER, Some(vec![0])),
            _ => {}
        }
    }

    /// The server's part while the worker runs. `stop` asks the worker to end.
    pub(crate) async fn perform(&self, stop: impl FnOnce()) {
        timeout(LONG, self.act(stop)).await.unwrap_or_else(|_| {
            let heard: Vec<String> =
                self.double.journal().events().iter().map(|event| format!("{event:?}")).collect();
            panic!("{} does not come to its end; so far:\n{}", self.name, heard.join("\n"));
        });
    }

    async fn act(&self, stop: impl FnOnce()) {
        let double = &self.double;
        let mut runs = self.runs().into_iter();
        let mut next = || runs.next().expect("one more task");
        match self.name {
            "checkpoints" => {
                double.schedule(next().attempts(2)).ended().await;
                let last = double.schedule(next().held());
                last.stop_checkpoints();
                last.release();
            }
            "tls-oauth-tenant" => {
                double.schedule(next()).ended().await;
                // The token has to be too old.
                tokio::time::sleep(TOKEN + Duration::from_millis(500)).await;
                double.schedule(next());
            }
            "rebalance" => self.rebalance(next(), next(), next()).await,
            "server-restart-idle" => {
                double.until_parked(0, 1).await;
                double.down(0).await.expect("down");
                double.up(0).expect("up");
                double.schedule(next());
            }
            "server-restart-busy" => {
                let first = double.schedule(next());
                first.running(0).await;
                // What is told is not heard yet, and a stream that breaks would lose it.
                match &self.begun {
                    Some(begun) => begun.notified().await,
                    None => double.until_parked(0, 1).await,
                }
                double.down(0).await.expect("down");
                // Until after the end of the task, which takes 6 s, or more on a busy machine.
                tokio::time::sleep(Duration::from_secs(10)).await;
                double.up(0).expect("up");
                first.ended().await;
                double.schedule(next());
            }
            "shutdown-idle" => {
                double.until_parked(0, 1).await;
                stop();
                double.journal().count(1, |event| event.what == What::Gone).await;
            }
            "shutdown-busy-short" => {
                double.schedule(next()).running(0).await;
                double.schedule(next()).running(0).await;
                stop();
                double.journal().count(1, |event| event.what == What::Gone).await;
            }
            _ => runs.for_each(|run| drop(double.schedule(run))),
        }
    }

    async fn rebalance(&self, first: NewRun, second: NewRun, third: NewRun) {
        let double = &self.double;
        let half_closed = |count| async move {
            double.journal().count(count, |event| event.what == What::HalfClose).await;
        };
        double.until_parked(0, 1).await;
        double.assign(WORKER, Some(vec![0, 1]));
        double.until_parked(1, 1).await;
        let (first, second) = (double.schedule(first), double.schedule(second));
        first.ended().await;
        second.ended().await;
        double.assign(WORKER, Some(vec![1]));
        half_closed(1).await;
        double.schedule(third).ended().await;
        double.assign(WORKER, Some(Vec::new()));
        double.set_healthy(Some(false));
        half_closed(2).await;
    }

    /// How tokens were asked for: the recorded and the seen credentials and bodies.
    pub(crate) fn token_requests(&self) -> (Vec<Asked>, Vec<Asked>) {
        let text = |value: Option<&String>| value.cloned().unwrap_or_default();
        let asked = self
            .recording
            .events
            .iter()
            .filter(|event| event.kind == "http" && event.is_from_client() && event.method() == "token");
        let recorded = asked.map(|event| {
            let body = event.message.as_ref().and_then(|message| message["body"].as_str());
            (text(event.metadata.get("authorization")), body.unwrap_or_default().to_owned())
        });
        let seen = self.double.tokens().map(|tokens| tokens.requests()).unwrap_or_default();
        let seen = seen.into_iter().map(|asked| (text(asked.headers.get("authorization")), asked.body));
        (recorded.collect(), seen.collect())
    }

    /// Waits until everything that was recorded was said, and a moment longer; then what was said.
    async fn said(&self, settle: impl Fn(Transcript) -> Transcript) -> Vec<Event> {
        let wanted = settle(Transcript::of_recording(&self.recording));
        let enough = |events: &[Event]| {
            let seen = settle(Transcript::of_journal(events));
            (seen.said_by_client() >= wanted.said_by_client()).then_some(())
        };
        // What is missing is shown as a difference.
        let _ = timeout(LONG, self.double.journal().until(enough)).await;
        tokio::time::sleep(QUIET).await;
        self.double.journal().events()
    }

    /// Where what was said is not what was recorded.
    pub(crate) async fn differences(&self, settle: impl Fn(Transcript) -> Transcript) -> Vec<Difference> {
        let seen = Transcript::of_journal(&self.said(&settle).await);
        compare(&settle(Transcript::of_recording(&self.recording)), &settle(seen))
    }
}

/// A workflow run, and those that it is a part of, outermost first.
fn path(run: &WfRunId) -> (String, Vec<String>) {
    let parents = run.parent_wf_run_id.as_ref().map(|parent| {
        let (id, mut parents) = path(parent);
        parents.push(id);
        parents
    });
    (run.id.clone(), parents.unwrap_or_default())
}

/// For a failed test.
pub(crate) fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("\n")
}
