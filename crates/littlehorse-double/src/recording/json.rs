//! Messages as JSON, as recordings have them: the names of the schema, and nothing that is not set.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::vary::TIME;
use crate::message::Message;
use crate::proto::type_definition::DefinedType;
use crate::proto::variable_value::Value as Held;
use crate::proto::{
    Checkpoint, CheckpointId, LhTaskError, LhTaskException, NodeRunId, PutCheckpointRequest,
    PutCheckpointResponse, PutTaskDefRequest, RegisterTaskWorkerResponse, ReportTaskRun, ReturnType,
    ScheduledTask, TaskDef, TaskDefId, TaskRun, TaskRunId, TaskRunSource, TypeDefinition, VarNameAndVal,
    VariableDef, VariableType, VariableValue, WfRunId, WfSpecId, report_task_run, task_run_source,
};

/// An object that grows by what is set.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn set(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }

    fn some<T>(self, name: &str, value: Option<T>, print: impl FnOnce(T) -> Value) -> Self {
        match value {
            Some(value) => self.set(name, print(value)),
            None => self,
        }
    }

    fn text(self, name: &str, text: &str) -> Self {
        if text.is_empty() { self } else { self.set(name, json!(text)) }
    }

    fn number(self, name: &str, number: i32) -> Self {
        if number == 0 { self } else { self.set(name, json!(number)) }
    }

    fn yes(self, name: &str, yes: bool) -> Self {
        if yes { self.set(name, json!(true)) } else { self }
    }

    fn list<T>(self, name: &str, items: &[T], print: impl Fn(&T) -> Value) -> Self {
        if items.is_empty() { self } else { self.set(name, items.iter().map(print).collect()) }
    }

    fn time<T>(self, name: &str, time: Option<T>) -> Self {
        self.some(name, time, |_| json!(TIME))
    }

    /// An enumeration; its first member is not written.
    fn word(self, name: &str, number: i32, word: &str) -> Self {
        if number == 0 { self } else { self.set(name, json!(word)) }
    }

    fn done(self) -> Value {
        Value::Object(self.0)
    }
}

/// As recordings have it; every time is the same.
pub fn to_json(message: &Message) -> Value {
    match message {
        Message::Empty => json!({}),
        Message::PutTaskDefRequest(message) => put_task_def(message),
        Message::TaskDef(message) => task_def(message),
        Message::TaskDefId(message) => def_id(message),
        Message::RegisterTaskWorkerRequest(message) => Object::default()
            .text("task_worker_id", &message.task_worker_id)
            .some("task_def_id", message.task_def_id.as_ref(), def_id)
            .done(),
        Message::RegisterTaskWorkerResponse(message) => registered(message),
        Message::PollTaskRequest(message) => Object::default()
            .some("task_def_id", message.task_def_id.as_ref(), def_id)
            .text("client_id", &message.client_id)
            .some("task_worker_version", message.task_worker_version.as_ref(), |version| json!(version))
            .done(),
        Message::PollTaskResponse(message) => {
            Object::default().some("result", message.result.as_ref(), scheduled).done()
        }
        Message::ReportTaskRun(message) => report(message),
        Message::PutCheckpointRequest(message) => put_checkpoint(message),
        Message::PutCheckpointResponse(message) => put_checkpoint_answer(message),
        Message::CheckpointId(message) => checkpoint_id(message),
        Message::Checkpoint(message) => checkpoint(message),
        Message::TaskRunId(message) => task_run_id(message),
        Message::TaskRun(message) => task_run(message),
        Message::LittleHorseVersion(message) => Object::default()
            .number("major_version", message.major_version)
            .number("minor_version", message.minor_version)
            .some("patch_version", message.patch_version, |patch| json!(patch))
            .some("pre_release_identifier", message.pre_release_identifier.as_ref(), |text| json!(text))
            .done(),
    }
}

fn put_task_def(message: &PutTaskDefRequest) -> Value {
    Object::default()
        .text("name", &message.name)
        .list("input_vars", &message.input_vars, variable_def)
        .some("return_type", message.return_type.as_ref(), return_type)
        .some("description", message.description.as_ref(), |text| json!(text))
        .done()
}

fn task_def(message: &TaskDef) -> Value {
    Object::default()
        .some("id", message.id.as_ref(), def_id)
        .list("input_vars", &message.input_vars, variable_def)
        .time("created_at", message.created_at)
        .some("return_type", message.return_type.as_ref(), return_type)
        .some("description", message.description.as_ref(), |text| json!(text))
        .done()
}

fn def_id(message: &TaskDefId) -> Value {
    Object::default().text("name", &message.name).done()
}

fn variable_def(message: &VariableDef) -> Value {
    Object::default()
        .some("type", message.r#type, |_| json!(message.r#type().as_str_name()))
        .text("name", &message.name)
        .some("default_value", message.default_value.as_ref(), value)
        .some("masked_value", message.masked_value, |masked| json!(masked))
        .some("type_def", message.type_def.as_ref(), type_definition)
        .done()
}

fn return_type(message: &ReturnType) -> Value {
    Object::default().some("return_type", message.return_type.as_ref(), type_definition).done()
}

fn type_definition(message: &TypeDefinition) -> Value {
    let object = Object::default().yes("masked", message.masked);
    match &message.defined_type {
        None => object.done(),
        Some(DefinedType::PrimitiveType(number)) => {
            let name = VariableType::try_from(*number).map_or("unknown", |known| known.as_str_name());
            object.set("primitive_type", json!(name)).done()
        }
        Some(other) => object.set("other", json!(format!("{other:?}"))).done(),
    }
}

fn registered(message: &RegisterTaskWorkerResponse) -> Value {
    Object::default()
        .list("your_hosts", &message.your_hosts, |host| {
            Object::default().text("host", &host.host).number("port", host.port).done()
        })
        .some("is_cluster_healthy", message.is_cluster_healthy, |healthy| json!(healthy))
        .done()
}

fn scheduled(message: &ScheduledTask) -> Value {
    Object::default()
        .some("task_run_id", message.task_run_id.as_ref(), task_run_id)
        .some("task_def_id", message.task_def_id.as_ref(), def_id)
        .number("attempt_number", message.attempt_number)
        .list("variables", &message.variables, variable)
        .time("created_at", message.created_at)
        .some("source", message.source.as_ref(), source)
        .number("total_observed_checkpoints", message.total_observed_checkpoints)
        .done()
}

fn variable(message: &VarNameAndVal) -> Value {
    Object::default()
        .text("var_name", &message.var_name)
        .some("value", message.value.as_ref(), value)
        .yes("masked", message.masked)
        .done()
}

fn source(message: &TaskRunSource) -> Value {
    let object = Object::default().some("wf_spec_id", message.wf_spec_id.as_ref(), spec_id);
    match &message.task_run_source {
        None => object.done(),
        Some(task_run_source::TaskRunSource::TaskNode(node)) => {
            let node = Object::default().some("node_run_id", node.node_run_id.as_ref(), node_run_id);
            object.set("task_node", node.done()).done()
        }
        Some(other) => object.set("other", json!(format!("{other:?}"))).done(),
    }
}

fn spec_id(message: &WfSpecId) -> Value {
    Object::default()
        .text("name", &message.name)
        .number("major_version", message.major_version)
        .number("revision", message.revision)
        .done()
}

fn node_run_id(message: &NodeRunId) -> Value {
    Object::default()
        .some("wf_run_id", message.wf_run_id.as_ref(), wf_run_id)
        .number("thread_run_number", message.thread_run_number)
        .number("position", message.position)
        .done()
}

fn wf_run_id(message: &WfRunId) -> Value {
    Object::default()
        .text("id", &message.id)
        .some("parent_wf_run_id", message.parent_wf_run_id.as_deref(), wf_run_id)
        .done()
}

fn task_run_id(message: &TaskRunId) -> Value {
    Object::default()
        .some("wf_run_id", message.wf_run_id.as_ref(), wf_run_id)
        .text("task_guid", &message.task_guid)
        .done()
}

fn value(message: &VariableValue) -> Value {
    let object = Object::default();
    match &message.value {
        None => object.done(),
        Some(Held::JsonObj(text)) => object.set("json_obj", json!(text)).done(),
        Some(Held::JsonArr(text)) => object.set("json_arr", json!(text)).done(),
        Some(Held::Double(number)) => object.set("double", json!(number)).done(),
        Some(Held::Bool(yes)) => object.set("bool", json!(yes)).done(),
        Some(Held::Str(text)) => object.set("str", json!(text)).done(),
        Some(Held::Int(number)) => object.set("int", json!(number.to_string())).done(),
        Some(Held::Bytes(bytes)) => object.set("bytes", json!(STANDARD.encode(bytes))).done(),
        Some(Held::WfRunId(id)) => object.set("wf_run_id", wf_run_id(id)).done(),
        Some(Held::UtcTimestamp(_)) => object.set("utc_timestamp", json!(TIME)).done(),
        Some(other) => object.set("other", json!(format!("{other:?}"))).done(),
    }
}

fn report(message: &ReportTaskRun) -> Value {
    let object = Object::default()
        .some("task_run_id", message.task_run_id.as_ref(), task_run_id)
        .time("time", message.time)
        .word("status", message.status, message.status().as_str_name())
        .some("log_output", message.log_output.as_ref(), value)
        .number("attempt_number", message.attempt_number)
        .number("total_checkpoints", message.total_checkpoints);
    match &message.result {
        None => object.done(),
        Some(report_task_run::Result::Output(output)) => object.set("output", value(output)).done(),
        Some(report_task_run::Result::Error(failure)) => object.set("error", error(failure)).done(),
        Some(report_task_run::Result::Exception(thrown)) => object.set("exception", exception(thrown)).done(),
    }
}

fn error(message: &LhTaskError) -> Value {
    Object::default()
        .word("type", message.r#type, message.r#type().as_str_name())
        .text("message", &message.message)
        .done()
}

fn exception(message: &LhTaskException) -> Value {
    Object::default()
        .text("name", &message.name)
        .text("message", &message.message)
        .some("content", message.content.as_ref(), value)
        .done()
}

fn put_checkpoint(message: &PutCheckpointRequest) -> Value {
    Object::default()
        .some("task_run_id", message.task_run_id.as_ref(), task_run_id)
        .number("task_attempt", message.task_attempt)
        .some("value", message.value.as_ref(), value)
        .some("logs", message.logs.as_ref(), |logs| json!(logs))
        .done()
}

fn put_checkpoint_answer(message: &PutCheckpointResponse) -> Value {
    let word = message.flow_control_continue_type().as_str_name();
    Object::default()
        .word("flow_control_continue_type", message.flow_control_continue_type, word)
        .some("created_checkpoint", message.created_checkpoint.as_ref(), checkpoint)
        .done()
}

fn checkpoint_id(message: &CheckpointId) -> Value {
    Object::default()
        .some("task_run", message.task_run.as_ref(), task_run_id)
        .number("checkpoint_number", message.checkpoint_number)
        .done()
}

fn checkpoint(message: &Checkpoint) -> Value {
    Object::default()
        .some("id", message.id.as_ref(), checkpoint_id)
        .some("value", message.value.as_ref(), value)
        .some("logs", message.logs.as_ref(), |logs| json!(logs))
        .time("created_at", message.created_at)
        .done()
}

/// No recording has one; enough to be read in a difference.
fn task_run(message: &TaskRun) -> Value {
    Object::default()
        .some("id", message.id.as_ref(), task_run_id)
        .word("status", message.status, message.status().as_str_name())
        .number("timeout_seconds", message.timeout_seconds)
        .number("total_attempts", message.total_attempts)
        .number("attempts", i32::try_from(message.attempts.len()).unwrap_or(i32::MAX))
        .done()
}
