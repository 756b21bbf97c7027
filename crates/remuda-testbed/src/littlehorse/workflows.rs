//! Workflows of one task, and what became of their runs.

use super::error::Error;
use super::proto;
use super::proto::little_horse_client::LittleHorseClient;
use super::proto::variable_value::Value;
use crate::wait;
use std::collections::HashMap;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

pub use super::proto::LhStatus as RunStatus;
pub use super::proto::TaskStatus;

/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// What was just made is not seen everywhere at once.
const SETTLES: Duration = Duration::from_secs(120);
/// The variable of the workflow and the input of its task.
const VARIABLE: &str = "workflow";
/// The second ones, if it has two.
const OPTIONS: &str = "options";
/// What a server names the only task of a run: first thread, second step.
const ONLY_TASK: &str = "0-1";

/// The type of the input of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// `JSON_OBJ`, which the server reads and writes anew.
    Json,
    /// `STR`, which arrives as it was sent.
    Text,
}

/// A workflow with one step: the task, whose input is the workflow's.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// Its name.
    pub name: String,
    /// The name of the TaskDef.
    pub task: String,
    /// The type of the input.
    pub input: Input,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How many further attempts there are after the first.
    pub retries: i32,
    /// It has a second input `options`, a JSON object that may be left out.
    pub options: bool,
}

impl Workflow {
    /// A workflow of the same name as its task, with a minute and no second attempt.
    pub fn of(task: &str, input: Input) -> Workflow {
        let name = task.to_owned();
        let timeout = Duration::from_secs(600);
        Workflow { task: name.clone(), name, input, timeout, retries: 0, options: false }
    }

    /// With a second input, `options`.
    #[must_use]
    pub fn with_options(mut self) -> Workflow {
        self.options = true;
        self
    }

    /// With another time for one attempt.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Workflow {
        self.timeout = timeout;
        self
    }

    /// With further attempts.
    #[must_use]
    pub fn retries(mut self, retries: i32) -> Workflow {
        self.retries = retries;
        self
    }
}

/// A run of a workflow, as the server tells of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Where it stands.
    pub status: RunStatus,
    /// Where its task stands.
    pub task: TaskStatus,
    /// The attempts at its task, first one first.
    pub attempts: Vec<Attempt>,
    /// What the workflow sees of a failure.
    pub failure: Option<Failure>,
}

impl Run {
    /// The output of the last attempt, as text.
    pub fn output(&self) -> Option<&str> {
        self.attempts.last().and_then(|attempt| attempt.output.as_deref())
    }
}

/// One attempt at a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// How it ended, if it has.
    pub status: TaskStatus,
    /// What it gave back, if it went well: text, or JSON as text.
    pub output: Option<String>,
    /// What went wrong, in the worker's words.
    pub error: Option<String>,
    /// What the worker has written into the log of the task.
    pub log: String,
    /// The id of the worker.
    pub worker: String,
}

/// A failure as the workflow sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// By this name the workflow can handle it.
    pub name: String,
    /// Words.
    pub message: String,
    /// What came with it: text, or JSON as text.
    pub content: Option<String>,
}

/// A client of the kind that starts workflows; workers do nothing of this.
#[derive(Debug, Clone)]
pub struct Workflows {
    channel: Channel,
    tenant: Option<MetadataValue<Ascii>>,
}

impl Workflows {
    pub(super) fn at(port: u16) -> Workflows {
        let endpoint = Endpoint::from(tonic::transport::Uri::from_static("http://127.0.0.1"));
        let address = format!("http://127.0.0.1:{port}");
        let endpoint = Endpoint::from_shared(address).unwrap_or(endpoint).timeout(DEADLINE);
        Workflows { channel: endpoint.connect_lazy(), tenant: None }
    }

    /// Makes a tenant, and returns a client that works there.
    pub async fn tenant(&self, name: &str) -> Result<Workflows, Error> {
        let request = self.request(proto::PutTenantRequest { id: name.to_owned() });
        self.stub().put_tenant(request).await.map_err(Error::refused("PutTenant"))?;
        let tenant = MetadataValue::try_from(name).ok();
        let theirs = Workflows { channel: self.channel.clone(), tenant };
        wait::until(format!("the tenant {name}"), SETTLES, async || theirs.probe().await).await?;
        Ok(theirs)
    }

    /// Registers a TaskDef with the input `workflow` of this type and a JSON object as its output.
    pub async fn put_task(&self, name: &str, input: Input) -> Result<(), Error> {
        let request = self.request(proto::PutTaskDefRequest {
            name: name.to_owned(),
            input_vars: vec![variable(VARIABLE, input)],
            return_type: Some(proto::ReturnType { return_type: Some(of_type(proto::VariableType::JsonObj)) }),
        });
        self.stub().put_task_def(request).await.map_err(Error::refused("PutTaskDef"))?;
        Ok(())
    }

    /// Makes the workflow. Waits for a TaskDef that somebody is about to register.
    pub async fn put(&self, workflow: &Workflow) -> Result<(), Error> {
        let spec = specification(workflow);
        let put = wait::until(format!("the workflow {}", workflow.name), SETTLES, async || {
            self.stub().put_wf_spec(self.request(spec.clone())).await.map_err(told)
        });
        put.await?;
        Ok(())
    }

    /// Starts a run under this id with this input, in the type that its workflow has. One that exists is fine.
    pub async fn run(&self, workflow: &Workflow, id: &str, input: &str) -> Result<(), Error> {
        self.run_with(workflow, id, input, None).await
    }

    /// The same with options, as JSON.
    pub async fn run_with(
        &self,
        workflow: &Workflow,
        id: &str,
        input: &str,
        options: Option<&str>,
    ) -> Result<(), Error> {
        let value = match workflow.input {
            Input::Json => Value::JsonObj(input.to_owned()),
            Input::Text => Value::Str(input.to_owned()),
        };
        let options = options.map(|options| (OPTIONS, Value::JsonObj(options.to_owned())));
        let variables = [(VARIABLE, value)].into_iter().chain(options);
        let request = proto::RunWfRequest {
            wf_spec_name: workflow.name.clone(),
            variables: variables
                .map(|(name, value)| (name.to_owned(), proto::VariableValue { value: Some(value) }))
                .collect(),
            id: Some(id.to_owned()),
        };
        // A workflow that was just made is not seen at once.
        let started = wait::until(format!("the start of {id}"), SETTLES, async || {
            match self.stub().run_wf(self.request(request.clone())).await {
                Ok(_) => Ok(()),
                Err(status) if status.code() == Code::AlreadyExists => Ok(()),
                Err(status) => Err(told(status)),
            }
        });
        Ok(started.await?)
    }

    /// What the server knows of a run; `None` while it knows nothing of the run or of its task.
    pub async fn look(&self, id: &str) -> Result<Option<Run>, Error> {
        let run = self.stub().get_wf_run(self.request(run_id(id))).await;
        let Some(run) = found("GetWfRun", run)? else { return Ok(None) };
        let task = proto::TaskRunId { wf_run_id: Some(run_id(id)), task_guid: ONLY_TASK.to_owned() };
        let task = self.stub().get_task_run(self.request(task)).await;
        let Some(task) = found("GetTaskRun", task)? else { return Ok(None) };
        let steps = self.request(proto::ListNodeRunsRequest { wf_run_id: Some(run_id(id)) });
        let steps = found("ListNodeRuns", self.stub().list_node_runs(steps).await)?;
        let failures = steps.into_iter().flat_map(|steps| steps.results).flat_map(|step| step.failures);
        let failure = failures.last().map(|failure| Failure {
            name: failure.failure_name,
            message: failure.message,
            content: text(failure.content),
        });
        Ok(Some(Run {
            status: run.status(),
            task: task.status(),
            attempts: task.attempts.into_iter().map(attempt).collect(),
            failure,
        }))
    }

    /// Waits until a run looks like this.
    pub async fn until(
        &self,
        id: &str,
        what: &str,
        within: Duration,
        wanted: impl Fn(&Run) -> bool,
    ) -> Result<Run, Error> {
        let run = wait::until(format!("{id} to be {what}"), within, async || match self.look(id).await {
            Ok(Some(run)) if wanted(&run) => Ok(run),
            Ok(Some(run)) => Err(format!("{run:?}")),
            Ok(None) => Err("unknown to the server".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        Ok(run.await?)
    }

    /// Waits until a run has ended, however.
    pub async fn ended(&self, id: &str, within: Duration) -> Result<Run, Error> {
        let over = |run: &Run| {
            matches!(run.status, RunStatus::Completed | RunStatus::Error | RunStatus::Exception)
                // The run is told of before its task.
                && !matches!(run.task, TaskStatus::TaskRunning | TaskStatus::TaskScheduled)
        };
        self.until(id, "over", within, over).await
    }

    /// Forgets a run, also one that goes on.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let request = self.request(proto::DeleteWfRunRequest { id: Some(run_id(id)) });
        self.stub().delete_wf_run(request).await.map_err(Error::refused("DeleteWfRun"))?;
        Ok(())
    }

    /// A call that only goes well when everything works; it leaves a TaskDef that nobody serves.
    pub(super) async fn probe(&self) -> Result<(), String> {
        let probe = proto::PutTaskDefRequest { name: "probe".to_owned(), ..Default::default() };
        self.stub().put_task_def(self.request(probe)).await.map(drop).map_err(told)
    }

    fn stub(&self) -> LittleHorseClient<Channel> {
        LittleHorseClient::new(self.channel.clone())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(tenant) = &self.tenant {
            request.metadata_mut().insert("tenantid", tenant.clone());
        }
        request
    }
}

fn specification(workflow: &Workflow) -> proto::PutWfSpecRequest {
    let mut inputs = vec![(VARIABLE, workflow.input, true)];
    inputs.extend(workflow.options.then_some((OPTIONS, Input::Json, false)));
    let task = proto::TaskNode {
        task_def_id: Some(proto::TaskDefId { name: workflow.task.clone() }),
        timeout_seconds: i32::try_from(workflow.timeout.as_secs()).unwrap_or(i32::MAX),
        retries: workflow.retries,
        variables: inputs
            .iter()
            .map(|(name, ..)| proto::VariableAssignment { variable_name: (*name).to_owned() })
            .collect(),
    };
    let node = |to: Option<&str>, node| proto::Node {
        outgoing_edges: to.map(|to| proto::Edge { sink_node_name: to.to_owned() }).into_iter().collect(),
        node: Some(node),
    };
    // The server takes number and kind of a step from its name.
    let (first, second, last) = ("0-entrypoint-ENTRYPOINT", "1-task-TASK", "2-exit-EXIT");
    let nodes = [
        (first, node(Some(second), proto::node::Node::Entrypoint(proto::EntrypointNode {}))),
        (second, node(Some(last), proto::node::Node::Task(task))),
        (last, node(None, proto::node::Node::Exit(proto::ExitNode {}))),
    ];
    let variables = inputs.iter().map(|(name, input, required)| proto::ThreadVarDef {
        var_def: Some(variable(name, *input)),
        required: *required,
        access_level: proto::WfRunVariableAccessLevel::PrivateVar.into(),
    });
    let thread = proto::ThreadSpec {
        nodes: nodes.map(|(name, node)| (name.to_owned(), node)).into(),
        variable_defs: variables.collect(),
    };
    proto::PutWfSpecRequest {
        name: workflow.name.clone(),
        thread_specs: HashMap::from([("entrypoint".to_owned(), thread)]),
        entrypoint_thread_name: "entrypoint".to_owned(),
    }
}

fn variable(name: &str, input: Input) -> proto::VariableDef {
    let kind = match input {
        Input::Json => proto::VariableType::JsonObj,
        Input::Text => proto::VariableType::Str,
    };
    proto::VariableDef { name: name.to_owned(), type_def: Some(of_type(kind)) }
}

fn of_type(kind: proto::VariableType) -> proto::TypeDefinition {
    let defined_type = proto::type_definition::DefinedType::PrimitiveType(kind.into());
    proto::TypeDefinition { defined_type: Some(defined_type) }
}

fn run_id(id: &str) -> proto::WfRunId {
    proto::WfRunId { id: id.to_owned() }
}

fn attempt(attempt: proto::TaskAttempt) -> Attempt {
    use proto::task_attempt::Result as Ended;
    let status = attempt.status();
    let (output, error) = match attempt.result {
        Some(Ended::Output(value)) => (text(Some(value)), None),
        Some(Ended::Error(error)) => (None, Some(error.message)),
        Some(Ended::Exception(exception)) => {
            (None, Some(format!("{}: {}", exception.name, exception.message)))
        }
        None => (None, None),
    };
    Attempt {
        status,
        output,
        error,
        log: text(attempt.log_output).unwrap_or_default(),
        worker: attempt.task_worker_id,
    }
}

fn text(value: Option<proto::VariableValue>) -> Option<String> {
    value.and_then(|value| value.value).map(|(Value::JsonObj(text) | Value::Str(text))| text)
}

/// `None` where the server knows nothing of it.
fn found<T>(
    method: &'static str,
    answer: Result<tonic::Response<T>, tonic::Status>,
) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer.into_inner())),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(Error::refused(method)(status)),
    }
}

fn told(status: tonic::Status) -> String {
    format!("{:?} {}", status.code(), status.message())
}
