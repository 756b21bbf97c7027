//! How a double is to be, and what it is to hand out.

use std::time::Duration;

use crate::access::OAuth;
use crate::gson::rewritten;
use crate::proto::type_definition::DefinedType;
use crate::proto::variable_value::Value;
use crate::proto::{
    PutTaskDefRequest, ReturnType, TypeDefinition, VarNameAndVal, VariableDef, VariableType, VariableValue,
};
use crate::tls::Tls;

/// How a double is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many hosts the cluster has, each on a port of its own.
    pub hosts: usize,
    /// The name under which hosts tell workers to find them; the port is their own.
    pub advertised: String,
    /// The tenants there are.
    pub tenants: Vec<String>,
    /// How long a worker may be silent before its hosts are given to others: 90 s; 15 s before LittleHorse 0.16.
    pub forget_after: Duration,
    /// How long a new TaskDef cannot be seen.
    pub visible_after: Duration,
    /// How long a report that was answered is not read yet.
    pub applied_after: Duration,
    /// Clients that ping more often are hung up on, after some patience.
    pub least_ping: Duration,
    /// The most bytes of a report or checkpoint.
    pub most_bytes: usize,
    /// What happens to a report that has more.
    pub oversize: Oversize,
    /// Certificates, if the hosts speak TLS.
    pub tls: Option<Tls>,
    /// Who may come in, if tokens are checked.
    pub oauth: Option<OAuth>,
    /// Its version.
    pub version: (i32, i32, i32),
}

/// What happens to a report that is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oversize {
    /// It is refused with UNAVAILABLE, like a report during an outage: 1.2.1.
    Unavailable,
    /// It is refused with RESOURCE_EXHAUSTED.
    Exhausted,
    /// The attempt ends with TASK_OUTPUT_SERDE_ERROR, and the call is never answered: the 1.3 line.
    Swallowed,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hosts: 1,
            advertised: "127.0.0.1".to_owned(),
            tenants: vec!["default".to_owned()],
            forget_after: Duration::from_secs(90),
            visible_after: Duration::ZERO,
            applied_after: Duration::ZERO,
            least_ping: Duration::from_secs(15),
            most_bytes: 1_047_000,
            oversize: Oversize::Unavailable,
            tls: None,
            oauth: None,
            version: (1, 3, 0),
        }
    }
}

impl Options {
    /// With this many hosts.
    #[must_use]
    pub fn hosts(self, hosts: usize) -> Self {
        Self { hosts, ..self }
    }

    /// With one more tenant.
    #[must_use]
    pub fn tenant(mut self, name: &str) -> Self {
        self.tenants.push(name.to_owned());
        self
    }
}

/// How the pauses between attempts grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The first pause.
    pub base: Duration,
    /// The longest pause.
    pub most: Duration,
    /// Each is this many times the one before.
    pub factor: f32,
}

/// A TaskDef with one input `workflow` and an output, both JSON objects: that of the worker that came before.
pub fn json_task(name: &str) -> PutTaskDefRequest {
    let json = || TypeDefinition {
        masked: false,
        defined_type: Some(DefinedType::PrimitiveType(VariableType::JsonObj as i32)),
    };
    PutTaskDefRequest {
        name: name.to_owned(),
        input_vars: vec![VariableDef {
            name: "workflow".to_owned(),
            type_def: Some(json()),
            ..VariableDef::default()
        }],
        return_type: Some(ReturnType { return_type: Some(json()) }),
        description: None,
    }
}

/// A task to be handed out.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Whose it is.
    pub tenant: String,
    /// Its TaskDef. It need not exist.
    pub task: String,
    /// The workflow run.
    pub wf_run_id: String,
    /// The workflow runs that it is a part of, outermost first.
    pub parents: Vec<String>,
    /// Its name within the workflow run.
    pub guid: String,
    /// Its inputs.
    pub inputs: Vec<VarNameAndVal>,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// How many attempts there may be.
    pub attempts: i32,
    /// The pause between them; none by default.
    pub backoff: Option<Backoff>,
    /// The host that hands it out.
    pub host: usize,
    /// The number of the first attempt, for a task that is older than the test.
    pub first_attempt: i32,
    /// It is not handed out before [`crate::Run::release`] or [`crate::Run::hand_to`].
    pub held: bool,
}

impl NewRun {
    /// A task `execute-comfyui-workflow` of tenant `default` with these inputs.
    pub fn new(wf_run_id: impl Into<String>, inputs: Vec<VarNameAndVal>) -> Self {
        Self {
            tenant: "default".to_owned(),
            task: "execute-comfyui-workflow".to_owned(),
            wf_run_id: wf_run_id.into(),
            parents: Vec::new(),
            guid: "0-1".to_owned(),
            inputs,
            timeout: Duration::from_secs(600),
            attempts: 1,
            backoff: None,
            host: 0,
            first_attempt: 0,
            held: false,
        }
    }

    /// The same with one input `workflow`, a JSON object.
    pub fn json(wf_run_id: impl Into<String>, workflow: impl Into<String>) -> Self {
        let value = VariableValue { value: Some(Value::JsonObj(workflow.into())) };
        let input = VarNameAndVal { var_name: "workflow".to_owned(), value: Some(value), masked: false };
        Self::new(wf_run_id, vec![input])
    }

    /// With its JSON as it comes out of the real server; see [`rewritten`].
    #[must_use]
    pub fn rewritten(mut self) -> Self {
        for input in self.inputs.iter_mut().filter_map(|input| input.value.as_mut()?.value.as_mut()) {
            if let Value::JsonObj(text) | Value::JsonArr(text) = input {
                *text = rewritten(text);
            }
        }
        self
    }

    /// Of another tenant.
    #[must_use]
    pub fn tenant(self, tenant: &str) -> Self {
        Self { tenant: tenant.to_owned(), ..self }
    }

    /// Of another TaskDef.
    #[must_use]
    pub fn task(self, task: &str) -> Self {
        Self { task: task.to_owned(), ..self }
    }

    /// With this many attempts in all.
    #[must_use]
    pub fn attempts(self, attempts: i32) -> Self {
        Self { attempts, ..self }
    }

    /// With this much time for each.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Handed out by this host.
    #[must_use]
    pub fn at(self, host: usize) -> Self {
        Self { host, ..self }
    }

    /// Not handed out yet.
    #[must_use]
    pub fn held(self) -> Self {
        Self { held: true, ..self }
    }
}
